"""Hints: corrections for values that a setting does not accept, and for files that are not valid TOML."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import ConfigDict, TypeAdapter, ValidationError

from hpo import aliases
from hpo.config.settings import Section
from hpo.spelling import nearest
from hpo.text import excerpt

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]

# Smallest number that may be meant as a percentage where a setting takes a share from 0 to 1.
_PERCENT = 5


def written(text: str) -> object:
    """Value of ``text`` as TOML, as in a campaign file; ``text`` itself where it is not valid TOML."""
    # A newline would let the text define further keys.
    try:
        return tomllib.loads(f"value = {text}")["value"] if "\n" not in text else text
    except (ValueError, RecursionError):  # also numbers too long for Python, and deeply nested brackets
        return text


def assignment(key: str, value: object, *, keyword: bool) -> str:
    """``key = value`` in the form of a campaign file, or of a Python keyword argument with ``keyword``."""
    return f"{key}{'=' if keyword else ' = '}{excerpt(value, as_json=not keyword)}"


def remedy(
    section: type[Section], key: str, value: object, shown: str, *, keyword: bool, item: bool = False
) -> str:
    """Sentence with the valid value most likely meant by an invalid ``value`` of ``key`` in ``section``; empty without
    a close match. ``shown``: the key's name in the sentence; ``keyword``: whether the user wrote a Python keyword
    argument, not a campaign file; ``item``: whether ``value`` is an item of the setting's list."""
    if isinstance(value, str) and "," in value and not item:
        names = [part.strip() for part in value.split(",")]
        return f"Write {assignment(shown, names, keyword=keyword)}." if accepts(section, key, names) else ""
    word = _meant_choice(section, key, value)
    if word is not None and (item or accepts(section, key, word)):
        return f'Did you mean "{word}"?'
    for form in () if item else _other_forms(value if word is None else word):
        if accepts(section, key, form):
            quotes = ", without quotes" if isinstance(value, str) and not isinstance(form, list) else ""
            return f"Write {assignment(shown, form, keyword=keyword)}{quotes}."
    return "Leave it out for its default." if value is None and keyword else ""


def accepts(section: type[Section], key: str, value: object) -> bool:
    """Whether ``value`` is valid for the setting ``key``."""
    annotation = _field(section, key).rebuild_annotation()
    adapter: TypeAdapter[Any] = TypeAdapter(annotation, config=ConfigDict(strict=True, allow_inf_nan=False))
    with suppress(ValidationError):
        adapter.validate_python(value)
        return True
    return False


def _field(section: type[Section], key: str) -> Any:
    fields = section.model_fields
    return next(field for name, field in fields.items() if key in (name, field.validation_alias))


def _meant_choice(section: type[Section], key: str, value: object) -> str | None:
    """Name most likely meant by ``value``, of the names that a setting or the items of its list take."""
    if not isinstance(value, str):
        return None
    kind = _field(section, key).annotation
    if get_origin(kind) is list:
        (kind,) = get_args(kind)
    choices = get_args(kind) if get_origin(kind) is Literal else ()
    found = aliases.VALUES.get(key, {}).get(aliases.folded(value)) or nearest(value, choices)
    return None if found == value else found


def _other_forms(value: object) -> Iterator[object]:
    """Forms of ``value``, the likeliest first: without quotes, as a whole number, as a share from 0 to 1, as a list."""
    number: object = value
    if isinstance(value, str):
        number = written(value.lower() if value in ("True", "False") else value.strip())
        yield number
    if isinstance(number, float) and number.is_integer():
        yield int(number)
    if isinstance(number, (int, float)) and _PERCENT <= number <= 100:
        yield number / 100
    if not isinstance(value, (list, tuple)):
        yield [value]


def syntax(path: Path, message: str) -> str:
    """Message for a file that is not valid TOML, by the ``message`` of the TOML parser."""
    if path.suffix == ".py":
        return (
            f'{path}: is Python, and hpo takes a campaign file (TOML). Write one with task = "{path.name}:NAME", NAME '
            "being the task in it, directory and evaluations, and name that."
        )
    found = re.fullmatch(r"(.*) \(at line (\d+), column (\d+)\)", message)
    place = f", line {found[2]}, column {found[3]}" if found else ""
    reason = (found[1] if found else message).rstrip(".")
    return (
        f"{path}{place}: not valid TOML: {reason}. Strings need quotes, lists brackets; it is true and false, without "
        "None; a key or a section stands once, under one name."
    )
