"""Values as errors and views show them: on one line, and no longer than a person reads."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

MOST_SHOWN = 200
"""Characters."""
_PASSWORD = re.compile(r"(?<=://)([^/@:]*):[^/]*@")


def excerpt(value: object, *, as_json: bool = False) -> str:
    """``value`` as Python writes it, or a file; what is too long is cut, what cannot be written is described."""
    if isinstance(value, int) and value.bit_length() > 4 * MOST_SHOWN:
        return f"a whole number of {value.bit_length()} bits"  # Python refuses to write many digits
    try:
        text = json.dumps(value, default=str, ensure_ascii=False) if as_json else repr(value)
    except (RecursionError, ValueError):  # too deep, circular, or with such a number inside
        return f"a {type(value).__name__} that is too large to show"
    text = " ".join(text.split()) if "\n" in text else text
    return cut(text)


def cut(text: str) -> str:
    """``text``, or its beginning where it is too long."""
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]} …"


def digits(values: Iterable[object], least: int = 4) -> int:
    """Number of significant digits, ``least`` to 17, at which those ``values`` that are different floats differ."""
    different = {value for value in values if isinstance(value, float)}

    def differ(count: int) -> bool:
        return len({f"{value:.{count}g}" for value in different}) == len(different)

    return next(filter(differ, range(least, 17)), 17)


def without_password(name: str) -> str:
    """``name``, of a URL without its password: what is shown and put on record is read by others."""
    return _PASSWORD.sub(r"\1:***@", name)
