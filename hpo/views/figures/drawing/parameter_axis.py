"""A parameter as an axis: places of its values, and ticks."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from hpo.space.parameters import Categorical, Encoder, Parameter
from hpo.space.ranges import Float, Int
from hpo.terminal import one_line
from hpo.views.figures.drawing.labels import choices, distinguishable, plain, shortened
from hpo.views.figures.drawing.theme import label

if TYPE_CHECKING:
    from hpo.individual import Scalar

_TICKS = 5
_FEW = 32  # values, among which individuals lie beside one another
_WIDTH = 1 / 3  # part of the space between two values in which they lie
_MOST_LETTERS = 14
_ACROSS = 66  # letters that fit side by side below a panel of half a page


@dataclass(frozen=True, kw_only=True)
class Axis:
    """Axis of a parameter, from 0 to 1."""

    parameter: Parameter

    def place(self, one: Scalar) -> float | None:
        """Place of a value from 0 to 1; None for a value outside the space (of an edited journal)."""
        if isinstance(self.parameter, Categorical):
            try:
                choice = self.parameter.canonical(one)
            except ValueError:
                return None
            return (self._encode(choice) + 0.5) / len(self.parameter.choices)
        assert isinstance(self.parameter, (Float, Int))
        if isinstance(one, bool | str | tuple | None) or not self.parameter.low <= one <= self.parameter.high:
            return None
        return self._encode(one)

    @cached_property
    def _encode(self) -> Encoder:
        return self.parameter.encoder()

    def mark(self, one: Scalar, identity: str) -> float | None:
        """Place of a value beside the places of other individuals with the same value."""
        place, count = self.place(one), self.parameter.count
        if place is None or count is None or count > _FEW or getattr(self.parameter, "log", False):
            return place
        return place + (zlib.crc32(identity.encode()) % 1000 / 999 - 0.5) * _WIDTH / count

    def layout(self) -> dict[str, object]:
        """Layout of an axis of plotly."""
        letters = _MOST_LETTERS
        if categorical := isinstance(self.parameter, Categorical):
            count = len(self.parameter.choices)
            shown = -(-count // _step(count, _TICKS))
            letters = max(6, min(_MOST_LETTERS, _ACROSS // shown - 2))
        ticks = self.ticks(letters=letters)
        return {
            "range": [-0.03, 1.03],
            "tickvals": [at for at, _ in ticks],
            "ticktext": [label(text) for _, text in ticks],
            "tickangle": 0,  # labels at an angle would reach into the panel below
            "showgrid": not categorical,
        }

    def condition(self) -> str:
        """Condition of the parameter as plain text; empty if it always exists."""
        found = []
        for parent, allowed in self.parameter.when.items():
            values = " or ".join(plain(one, 10) for one in allowed[:2])
            found.append(f"{shortened(one_line(parent), 14)} {values}{' …' if len(allowed) > 2 else ''}")
        return f"where {', '.join(found[:2])}" if found else ""

    def ticks(self, most: int = _TICKS, letters: int = _MOST_LETTERS) -> list[tuple[float, str]]:
        """Places and plain texts of about ``letters`` characters in ascending order."""
        parameter = self.parameter
        if isinstance(parameter, Categorical):
            count = len(parameter.choices)
            texts = choices(parameter, letters)
            return [((index + 0.5) / count, text) for index, text in enumerate(texts)][:: _step(count, most)]
        encode = parameter.encoder()
        whole = isinstance(parameter, Int)
        return [(encode(int(one) if whole else one), text) for one, text in self._numbers(most)]

    def _numbers(self, most: int) -> list[tuple[float, str]]:
        parameter = self.parameter
        assert isinstance(parameter, (Float, Int))
        low, high = parameter.low, parameter.high
        if low == high:
            numbers = [float(low)]
        elif parameter.log:
            numbers = _decades(low, high, most)
        else:
            numbers = rounds(low, high, most, whole=isinstance(parameter, Int))
        return list(zip(numbers, distinguishable(numbers)))


def _step(count: int, most: int) -> int:
    """Number of choices from a tick to the next, so that at most twice ``most`` of ``count`` have a tick."""
    return max(1, math.ceil(count / (2 * most)))


def _decades(low: float, high: float, most: int) -> list[float]:
    """Powers of ten; if there are fewer than two, also 2 and 5 times them."""
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    if last - first >= 1:
        step = max(1, math.ceil((last - first) / (most - 1)))
        return [min(high, max(low, 10.0**power)) for power in range(first, last + 1, step)]
    powers = [10.0**power for power in range(first - 1, last + 1)]
    fine = [factor * power for power in powers for factor in (1, 2, 5) if low <= factor * power <= high]
    return fine[:most] if len(fine) > 1 else [low, high]


def rounds(low: float, high: float, most: int, *, whole: bool) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / (most - 1)
    power = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 0.0
    if not power:  # underflow
        return [low, high]
    step = next(power * one for one in (1, 2, 5, 10) if power * one >= rough * 0.999)
    if whole:
        step = max(1.0, step)
    first = math.ceil(low / step - 1e-9)
    places = range(first, math.floor(high / step + 1e-9) + 1)
    found = [min(high, max(low, float(f"{place * step:.12g}"))) for place in places]
    return found if len(found) > 1 else [low, high]
