"""Configurations as figures show them: short, and none of it obeyed as markup."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hpo.results.figures.drawing.theme import label, number
from hpo.terminal import one_line

if TYPE_CHECKING:
    from hpo.individual import Scalar


def short(value: float) -> str:
    """A number of at most three significant digits, where it stands among words."""
    if isinstance(value, int):
        return number(value)
    return number(float(f"{value:.3g}"))


def shortened(text: str, most: int) -> str:
    """``text`` with its middle left out where it is longer: names of a family differ at their ends."""
    if len(text) <= most:
        return text
    head = (most - 1) * 2 // 3
    return f"{text[:head]}…{text[len(text) - (most - 1 - head) :]}"


def distinguishable(values: Sequence[float]) -> list[str]:
    """Numbers beside an axis, with as many digits as they need to differ."""
    found = [short(one) for one in values]
    for digits in range(4, 13):
        if len({*found}) == len({*values}):
            break
        found = [f"{one:.{digits}g}" for one in values]
    return found


def plain(value: Scalar, most: int = 24) -> str:
    """A parameter's value as plain text."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return shortened(one_line(value), most)
    return short(value)


def written(value: Scalar, most: int = 24) -> str:
    """A parameter's value, where plotly shows it."""
    return label(plain(value, most), most)


def configuration(params: Mapping[str, Scalar], first: Sequence[str] = (), most: int = 12) -> str:
    """A line a parameter for a box beside the pointer, those of ``first`` before the others."""
    names = [
        *[name for name in first if name in params],
        *[name for name in params if name not in set(first)],
    ]
    lines = [f"{label(name, 28)} {written(params[name])}" for name in names[:most]]
    if len(names) > most:
        lines.append(f"and {len(names) - most} more")
    return "<br>".join(lines)
