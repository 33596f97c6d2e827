"""Configurations as figures show them: short, and none of it obeyed as markup."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

from hpo.space.look_alikes import LookAlikes
from hpo.terminal import one_line
from hpo.views.figures.drawing.theme import label, number

if TYPE_CHECKING:
    from hpo.individual import Scalar
    from hpo.space.parameters import Categorical

_CONTEXT = 2
"""Characters before the first that differs."""
_WIDER = 4
"""Characters more in each further attempt to tell texts apart."""


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


def distinct(texts: Sequence[str], most: int) -> list[str]:
    """``texts`` shortened to about ``most`` characters each, so that those which differ still do: where both ends are
    alike, what is between them is shown."""
    short = {text: shortened(text, most) for text in texts}
    clashing: set[str] = set()
    while again := _shared(short):
        clashing |= again
        start = max(0, _common(clashing) - _CONTEXT)
        end = _common(text[: start + _CONTEXT - 1 : -1] for text in clashing)
        for text in clashing:
            middle = shortened(text[start : len(text) - end], most - 2)
            short[text] = f"{'…' if start else ''}{middle}{'…' if end else ''}"
        most += _WIDER
    return [short[text] for text in texts]


def _common(texts: Iterable[str]) -> int:
    """The number of characters with which all of them begin."""
    return sum(1 for _ in takewhile(lambda letters: len({*letters}) == 1, zip(*texts)))


def _shared(short: Mapping[str, str]) -> set[str]:
    """The texts whose short form is another's, too."""
    counts = Counter(short.values())
    return {text for text, one in short.items() if counts[one] > 1}


def choices(parameter: Categorical, most: int) -> list[str]:
    """The choices of ``parameter`` as plain texts that differ, with their types where ``1`` and ``"1"`` are two."""
    texts: list[str] = []
    # As Python writes them where they differ by characters that cannot be shown.
    for write in (_plain_choice, LookAlikes(parameter).text, repr):
        texts = [one_line(write(one)) for one in parameter.choices]
        if len({*texts}) == len(texts):
            break
    return distinct(texts, most)


def _plain_choice(choice: Scalar) -> str:
    return str(choice) if isinstance(choice, (bool, str)) or choice is None else number(choice)


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
