"""Short one-line forms of values, for errors and views."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from hpo.terminal import one_line

MOST_SHOWN = 200
"""Most characters of a value that a message shows."""
_PASSWORD = re.compile(r"(?<=://)([^/@:]*):[^/]*@")


def excerpt(value: object, *, as_json: bool = False) -> str:
    """``value`` on one line and cut to MOST_SHOWN characters: its ``repr``, or JSON as a campaign file has it."""
    # Python refuses to convert integers of more than 4300 digits to text.
    if isinstance(value, int) and value.bit_length() > 4 * MOST_SHOWN:
        return f"a whole number of {value.bit_length()} bits"
    try:
        text = json.dumps(value, default=str, ensure_ascii=False) if as_json else repr(value)
    except (RecursionError, ValueError):  # nested too deeply, circular, or with such an integer inside
        return f"a {type(value).__name__} that is too large to show"
    text = " ".join(text.split()) if "\n" in text else text
    return cut(text)


def cut(text: str) -> str:
    """``text`` on one line, cut to MOST_SHOWN characters, with control characters as escape sequences."""
    # A name with a carriage return or a terminal's codes must not change what is seen of a message.
    shown = one_line(text[:MOST_SHOWN])
    return shown if len(text) <= MOST_SHOWN else f"{shown} …"


def digits(values: Iterable[object], least: int = 4) -> int:
    """Number of significant digits, ``least`` to 17, at which those ``values`` that are different floats differ."""
    different = {value for value in values if isinstance(value, float)}

    def differ(count: int) -> bool:
        return len({f"{value:.{count}g}" for value in different}) == len(different)

    return next(filter(differ, range(least, 17)), 17)


def without_password(name: str) -> str:
    """``name`` with the password of a URL replaced: messages and journals are read by others than its owner."""
    return _PASSWORD.sub(r"\1:***@", name)


def toml_key(name: str) -> str:
    """Key of TOML, in quotes where it needs them."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)


def plural(count: int, noun: str) -> str:
    """A count with its noun."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{'es' if noun.endswith('ch') else 's'}"
