"""Hints: corrections for values that a setting does not accept, and for files that are not valid TOML."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import ConfigDict, TypeAdapter, ValidationError

from hpo import aliases
from hpo.config.settings import Section
from hpo.spelling import nearest, suggestion
from hpo.text import excerpt

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]


_PERCENT = 5
"""Smallest number that may be meant as a percentage where a setting takes a share from 0 to 1."""


def written(text: str) -> object:
    """Value of ``text`` as TOML, as in a campaign file; ``text`` itself where it is not valid TOML."""
    # A newline would let the text define further keys.
    try:
        return tomllib.loads(f"value = {text}")["value"] if "\n" not in text else text
    except (
        ValueError,
        RecursionError,
    ):  # also for numbers too long for Python, and for deeply nested brackets
        return text


def assignment(key: str, value: object, *, keyword: bool) -> str:
    """``key = value`` in the form of a campaign file, or of a Python keyword argument with ``keyword``."""
    return f"{key}{'=' if keyword else ' = '}{excerpt(value, as_json=not keyword)}"


def remedy(
    section: type[Section],
    key: str,
    value: object,
    shown: str,
    *,
    keyword: bool,
    item: bool = False,
    within: str | None = None,
) -> str:
    """Sentence with the valid value most likely meant by an invalid ``value``; empty without a close match.

    Args:
        section (class): settings that have ``key``.
        key (str): name of the field, or its alias.
        value (object): the invalid value.
        shown (str): name of the setting in the sentence.
        keyword (bool): whether the user wrote a Python keyword argument, not a campaign file.
        item (bool): whether ``value`` is an item of the setting's list.
        within (str): key of ``value`` in the setting's table; None where the setting is no table.
    """
    choices = _choices(section, key)
    if isinstance(value, str) and "," in value and not item and accepts(section, key, [*choices[:1]]):
        # "tensorboard, wandb" is a frequent way to write a list of names.
        words = [word for word in (part.strip() for part in value.split(",")) if word]
        several = [_meant(key, word, choices) or word for word in words]
        if accepts(section, key, several):
            return f"Write {assignment(shown, several, keyword=keyword)}."
    word = _meant(key, value, choices)
    if word is not None and (item or accepts(section, key, word)):
        return f'Did you mean "{word}"?'
    for form in () if item else _forms(value if word is None else word):
        if accepts(section, key, form if within is None else {within: form}):
            quotes = ", without quotes" if isinstance(value, str) and not isinstance(form, list) else ""
            if within is not None and keyword:
                return f"Write {assignment(shown, {within: form}, keyword=True)}{quotes}."
            place = shown if within is None else f"{shown}.{within}"
            return f"Write {assignment(place, form, keyword=keyword)}{quotes}."
    if value is None and keyword:
        return "Leave it out for its default."
    return ""


def accepts(section: type[Section], key: str, value: object) -> bool:
    """Whether ``value`` is valid for the setting ``key``."""
    field = _field(section, key)
    if field is None:
        return False
    adapter: TypeAdapter[Any] = TypeAdapter(
        field.rebuild_annotation(), config=ConfigDict(strict=True, allow_inf_nan=False)
    )
    with suppress(ValidationError):
        adapter.validate_python(value)
        return True
    return False


def _meant(key: str, value: object, choices: tuple[str, ...]) -> str | None:
    if not isinstance(value, str):
        return None
    found = aliases.VALUES.get(key, {}).get(aliases.folded(value)) or nearest(value, choices)
    return None if found == value else found


def _forms(value: object) -> Iterator[object]:
    """Other forms of ``value`` to try: without quotes, as a whole number, as a share from 0 to 1, as a list."""
    # Ordered by likelihood: the first form that the setting accepts is suggested.
    number: object = value
    if isinstance(value, str):
        text = value.strip()
        number = written(text.lower() if text in ("True", "False") else text.removesuffix("%").rstrip())
        if not text.endswith("%"):
            yield number
    if isinstance(number, float) and number.is_integer():
        yield int(number)
    percent = isinstance(value, str) and "%" in value
    if isinstance(number, (int, float)) and (0 if percent else _PERCENT) <= number <= 100:
        yield number / 100
    if not isinstance(value, (list, tuple)):
        yield [value]


def _field(section: type[Section], key: str) -> Any:
    fields = section.model_fields
    return next((field for name, field in fields.items() if key in (name, field.validation_alias)), None)


def _choices(section: type[Section], key: str) -> tuple[str, ...]:
    """Valid names of a setting that takes a name or a list of names; () for other settings."""
    field = _field(section, key)
    kind = None if field is None else field.annotation
    if get_origin(kind) is list:
        (kind,) = get_args(kind)
    return get_args(kind) if get_origin(kind) is Literal else ()


def syntax(path: Path, message: str, keys: Iterable[str]) -> str:
    """Message with line and column for a file that is not valid TOML.

    Args:
        path (path): the campaign file.
        message (str): message of the TOML parser.
        keys (iterable of str): keys at the top level of a campaign file.
    """
    if path.suffix == ".py":
        return (
            f'{path}: is Python, and hpo takes a campaign file (TOML). Write one with task = "{path.name}:NAME", NAME '
            "being the task in it, directory and evaluations, and name that."
        )
    found = re.fullmatch(r"(.*) \(at line (\d+), column (\d+)\)", message)
    place = f"{path}, line {found[2]}, column {found[3]}" if found else f"{path}"
    reason = (found[1] if found else message).rstrip(".")
    line = ""
    if found:
        with suppress(OSError, IndexError, UnicodeDecodeError):
            line = path.read_text(encoding="utf-8").splitlines()[int(found[2]) - 1]
    if python := re.match(r"\s*([\w.-]+)\s*=\s*(True|False|None|null)\b", line):
        key, word = python.groups()
        remedy = f"Write {key} = {word.lower()}" if word in ("True", "False") else f"Leave {key} out"
        return f"{place}: {word} is no TOML. {remedy}."
    section = re.fullmatch(r"\s*\[\s*([\w-]+)\s*\]\s*(?:#.*)?", line)
    # tomli 2.0 writes "Can not".
    if section and re.search("Can ?not overwrite a value", reason):
        name = section[1]
        return (
            f"{place}: [{name}] is a section, and above it {name} = … is a key. Remove one. "
            f"{suggestion(name, [key for key in keys if key != name])}"
        )
    return f"{place}: not valid TOML: {reason}. Strings need quotes, lists brackets, and a key stands once."
