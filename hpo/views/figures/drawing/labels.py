"""Configurations as short texts in figures, without markup."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

from hpo.space.look_alikes import LookAlikes
from hpo.terminal import one_line
from hpo.text import digits
from hpo.views.figures.drawing.theme import label, number

if TYPE_CHECKING:
    from hpo.individual import Scalar
    from hpo.space.parameters import Categorical


# Characters before the first that differs.
_CONTEXT = 2
# Characters more in each further attempt to distinguish texts.
_WIDER = 4


def short(value: float) -> str:
    """A number of at most three significant digits, for a place among words."""
    return number(value if isinstance(value, int) else float(f"{value:.3g}"))


def shortened(text: str, most: int) -> str:
    """``text`` without its middle if it is too long: names of a family differ at their ends."""
    if len(text) <= most:
        return text
    head = (most - 1) * 2 // 3
    return f"{text[:head]}…{text[len(text) - (most - 1 - head) :]}"


def distinct(texts: Sequence[str], most: int) -> list[str]:
    """``texts`` shortened to about ``most`` characters so that different texts stay different: where both ends are
    alike, the middle is shown."""
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
    """Length of the common beginning."""
    return sum(1 for _ in takewhile(lambda letters: len({*letters}) == 1, zip(*texts)))


def _shared(short: Mapping[str, str]) -> set[str]:
    """Texts whose short form is that of another, too."""
    counts = Counter(short.values())
    return {text for text, form in short.items() if counts[form] > 1}


def choices(parameter: Categorical, most: int) -> list[str]:
    """Choices of ``parameter`` as different texts, with types if both ``1`` and ``"1"`` are choices."""
    texts: list[str] = []
    # The last form distinguishes characters that cannot be shown.
    for form in (_plain_choice, LookAlikes(parameter).text, repr):
        texts = [one_line(form(one)) for one in parameter.choices]
        if len({*texts}) == len(texts):
            break
    return distinct(texts, most)


def _plain_choice(choice: Scalar) -> str:
    return str(choice) if isinstance(choice, (bool, str)) or choice is None else number(choice)


def distinguishable(values: Sequence[float]) -> list[str]:
    """Numbers beside an axis, with as many digits as they need to differ."""
    count = digits(values, 3)
    return [short(one) if count == 3 else f"{one:.{count}g}" for one in values]


def plain(value: Scalar, most: int = 24) -> str:
    """A parameter's value as plain text."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return shortened(one_line(value), most)
    return short(value)


def written(value: Scalar, most: int = 24) -> str:
    """A parameter's value as text that plotly shows."""
    return label(plain(value, most), most)


def configuration(params: Mapping[str, Scalar], most: int = 12) -> str:
    """A line for each parameter, for a box beside the pointer."""
    lines = [f"{label(name, 28)} {written(params[name])}" for name in list(params)[:most]]
    return "<br>".join(lines + ([f"and {len(params) - most} more"] if len(params) > most else []))
