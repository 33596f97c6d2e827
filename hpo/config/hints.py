"""Hints: what to write in place of a value that a setting does not take, or of text that is no TOML."""

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
"""A number from here to 100 may be meant as a percentage, where a share of 1 is asked for."""


def written(text: str) -> object:
    """The value that ``text`` is in a campaign file; ``text`` itself where it is none there."""
    try:
        return tomllib.loads(f"value = {text}")["value"] if "\n" not in text else text
    except (
        ValueError,
        RecursionError,
    ):  # also of a number too long for Python to read, and of nested brackets
        return text


def assignment(key: str, value: object, *, keyword: bool) -> str:
    """``key = value`` as a campaign file has it, or as a ``keyword`` of Python."""
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
    """A sentence with what was most likely meant by ``value``, which the field of ``key`` refuses; empty where nothing
    is near. ``shown``: the name of the setting for the user; ``item``: ``value`` is one of a list; ``within``:
    the name of ``value`` in the table that the setting is."""
    choices = _choices(section, key)
    if isinstance(value, str) and "," in value and not item and accepts(section, key, [*choices[:1]]):
        words = [one for one in (each.strip() for each in value.split(",")) if one]
        several = [_meant(key, one, choices) or one for one in words]
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
    """Whether the setting ``key`` takes ``value``."""
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
    """Forms of a value that may have been meant: without quotes, as a whole number, as a share of 1, as a list."""
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
    return next((one for name, one in fields.items() if key in (name, one.validation_alias)), None)


def _choices(section: type[Section], key: str) -> tuple[str, ...]:
    """The names that a key takes, if it takes names only, or a list of them."""
    field = _field(section, key)
    kind = None if field is None else field.annotation
    if get_origin(kind) is list:
        (kind,) = get_args(kind)
    return get_args(kind) if get_origin(kind) is Literal else ()


def syntax(path: Path, message: str, keys: Iterable[str]) -> str:
    """The sentence for a file that is no TOML, with its line. ``keys``: those at the top of a campaign file."""
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
    if section and "Cannot overwrite a value" in reason:
        name = section[1]
        return (
            f"{place}: [{name}] is a section, and above it {name} = … is a key. Remove one. "
            f"{suggestion(name, [one for one in keys if one != name])}"
        )
    return f"{place}: not valid TOML: {reason}. Strings need quotes, lists brackets, and a key stands once."
