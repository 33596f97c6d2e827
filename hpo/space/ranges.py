"""Ranges of numbers: Float and Int, and the exact map between a value and its gene.

``decode(encode(v)) == v`` holds for every value that ``decode`` or ``canonical`` returns: a Float's values lie on a
decimal grid, coarse against the map's rounding errors; the gene of an Int, and of a Float with a step, is the middle of
its cell."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TypeVar, cast

from hpo.arguments import checked_arguments
from hpo.errors import UsageError
from hpo.individual import Scalar
from hpo.space.beliefs import Confidence
from hpo.space.choices import LARGEST_INT, plain_number
from hpo.space.parameters import Condition, Decoder, Encoder, Parameter, conditions
from hpo.text import excerpt

Bound = TypeVar("Bound", int, float)

# 1e300 leaves room below the largest float, 1.8e308, for the difference of two limits.
_LARGEST_FLOAT = 1e300
# A gene resolves 2**53 values in [0, 1]; 2**50 leaves the roundings of the map three bits.
_MOST_INTS = 2**50
_LARGEST_LOG_INT = 2**40
_FEWEST_FLOATS = 1e6
_NARROWEST_LOG = 1 + 1e-6
_MOST_STEPS = 2**40
# Share of a step by which a value may lie beside its place: sums of decimal fractions are not exact.
_OFF_GRID = 1e-6


@dataclass(frozen=True, init=False)
class Float(Parameter):
    """A real number from ``low`` to ``high``, both included.

    Values have 12 decimal digits, relative to the width of the range, or with ``log`` to the value. Both ends stay
    exactly as given.

    Args:
        low (float): the smallest value.
        high (float): the largest value; may equal ``low``.
        log (bool; default False): spread evenly over orders of magnitude; needs ``low`` > 0.
        step (float; default None): difference of neighbouring values, not with ``log``: ``high`` becomes the last of
            ``low``, ``low + step``, ….
        prior (float; default None): value around which good values are believed to lie: first draws come from there,
            and models prefer it, the less the more results there are. None: no belief.
        prior_confidence (str; default None): standard deviation of a truncated normal distribution: "low" a half of the
            range, on its scale, "medium" a quarter, "high" an eighth. None: "medium" where there is a prior.
        when (dict; default None): value, or tuple of values, under which this parameter exists, by name of another
            parameter; None: always.

    Raises:
        UsageError: the range or the condition is not allowed.
    """

    kind = "float"
    low: float
    high: float
    log: bool
    step: float | None

    @checked_arguments()
    def __init__(
        self,
        low: float,
        high: float,
        *,
        log: bool = False,
        step: float | None = None,
        prior: float | None = None,
        prior_confidence: Confidence | None = None,
        when: Condition | None = None,
    ) -> None:
        shown, low, high = _checked_range("Float", low, high, log, _float)
        if step is not None:
            step, high = _checked_step(shown, low, high, step, log, _float)
        fixed = low == high
        if log:
            if low <= 0:
                raise UsageError(f"{shown}: a logarithmic range needs low > 0. Raise low or drop log=True.")
            if low < 1 / _LARGEST_FLOAT:
                raise UsageError(f"{shown}: a logarithmic range must not go below 1e-300. Raise low.")
            if high / low < _NARROWEST_LOG and not fixed:
                raise UsageError(
                    f"{shown}: log=True needs high / low of at least {_NARROWEST_LOG}, as on a narrower "
                    "range it changes nothing. Drop log=True or widen the range."
                )
        elif high - low < _FEWEST_FLOATS * math.ulp(max(-low, high)) and not fixed and step is None:
            raise UsageError(
                f"{shown}: there are fewer than a million floating-point numbers between low and high. "
                "Search for the difference from low, and add low in the task."
            )
        self._set(low=low, high=high, log=log, step=step, when=conditions(shown, when))
        self._believe(shown, prior, prior_confidence, given=prior is not None)

    @property
    def count(self) -> int | None:
        if self.low == self.high:
            return 1
        return None if self.step is None else round((self.high - self.low) / self.step) + 1

    def values(self) -> Iterator[Scalar]:
        if self.count is None:
            raise TypeError("a Float without a step has no list of values")
        return (self._at(place) for place in range(self.count))

    def _at(self, place: int) -> float:
        """The value so many steps above ``low``; decimal, as 0.1 + 2 * 0.1 is not 0.3. Both ends are exact."""
        if self.step is None or place == 0:
            return self.low
        return self.high if place + 1 == self.count else _on_grid(self.low, self.step, place)

    def canonical(self, value: object) -> float:
        number, beside = plain_number(value, Real), _OFF_GRID * (self.step or 0.0)
        if number is not None and self.low - beside <= number <= self.high + beside:
            found = cast(float, self.decoder()(self.encoder()(float(number))))
            if self.step is None or abs(found - number) <= beside:
                return found
        steps = "" if self.step is None else f" in steps of {self.step!r}"
        raise ValueError(f"a number from {self.low!r} to {self.high!r}{steps}")

    def encoder(self) -> Encoder:
        low, width = self.low, self.high - self.low
        if not width:
            return lambda value: self.neutral
        if (step := self.step) is not None:
            count = cast(int, self.count)
            return lambda value: ((cast(float, value) - low) / step + 0.5) / count
        if not self.log:
            return lambda value: (cast(float, value) - low) / width
        log, log_low = math.log, math.log(low)
        log_width = math.log(self.high) - log_low
        return lambda value: (log(cast(float, value)) - log_low) / log_width

    def decoder(self) -> Decoder:
        if self.low == self.high:
            return self._only
        if self.step is not None:
            count = cast(int, self.count)
            return lambda gene: self._at(_cell(gene, count))
        return self._log_decoder() if self.log else self._linear_decoder()

    def _only(self, gene: float) -> float:
        if math.isnan(gene):
            raise ValueError(f"a gene must be a number, not {gene}")
        return self.low

    def _linear_decoder(self) -> Decoder:
        low, high, width = self.low, self.high, self.high - self.low
        digits = 12 - math.floor(math.log10(width))
        # A grid point closer to an end than half a step could share the end's gene: the end replaces it.
        half_step = 0.5 * 10.0**-digits
        lowest, highest = low + half_step, high - half_step

        # The map errs by some 1e-15 of the width, the grid's half step is 5e-14 of it or more. With an offset
        # so large that floating-point numbers lie further apart, value - low is exact and low + gene * width
        # rounds to the value.
        def decode(gene: float) -> float:
            gene = float(gene)
            if 0.0 < gene < 1.0:
                value = round(low + gene * width, digits)
                return low if value <= lowest else high if value >= highest else value + 0.0
            return _end(gene, low, high)

        return decode

    def _log_decoder(self) -> Decoder:
        low, high, exp, log_low = self.low, self.high, math.exp, math.log(self.low)
        log_width = math.log(high) - log_low
        lowest, highest = low * (1 + 5e-13), high * (1 - 5e-13)

        # On the widest range, 1e-300 to 1e300, the roundings of log, -, /, * and + add up to 4.2e-13 in the
        # exponent; the half step of 12 significant digits is at least 5e-13 of the value.
        def decode(gene: float) -> float:
            gene = float(gene)
            if 0.0 < gene < 1.0:
                value = float(f"{exp(log_low + gene * log_width):.11e}")
                return low if value <= lowest else high if value >= highest else value
            return _end(gene, low, high)

        return decode


@dataclass(frozen=True, init=False)
class Int(Parameter):
    """A whole number from ``low`` to ``high``, both included.

    Args:
        low (int): the smallest value.
        high (int): the largest value; may equal ``low``.
        log (bool; default False): spread evenly over orders of magnitude; needs ``low`` >= 1, ``high`` <= 2**40.
        step (int; default 1): difference of neighbouring values, not with ``log``: ``high`` becomes the last of
            ``low``, ``low + step``, ….
        prior (int; default None): value around which good values are believed to lie: first draws come from there,
            and models prefer it, the less the more results there are. None: no belief.
        prior_confidence (str; default None): standard deviation of a truncated normal distribution: "low" a half of the
            range, on its scale, "medium" a quarter, "high" an eighth. None: "medium" where there is a prior.
        when (dict; default None): value, or tuple of values, under which this parameter exists, by name of another
            parameter; None: always.

    Raises:
        UsageError: the range or the condition is not allowed.
    """

    kind = "int"
    low: int
    high: int
    log: bool
    step: int

    @checked_arguments()
    def __init__(
        self,
        low: int,
        high: int,
        *,
        log: bool = False,
        step: int = 1,
        prior: int | None = None,
        prior_confidence: Confidence | None = None,
        when: Condition | None = None,
    ) -> None:
        shown, low, high = _checked_range("Int", low, high, log, _int)
        if type(step) is not int or step != 1:
            step, high = _checked_step(shown, low, high, step, log, _int)
        if high - low >= _MOST_INTS:
            raise UsageError(f"{shown}: a range holds at most 2**50 whole numbers. Narrow it or use Float.")
        if log:
            if low < 1:
                raise UsageError(f"{shown}: a logarithmic range needs low >= 1. Raise low or drop log=True.")
            if high > _LARGEST_LOG_INT:
                raise UsageError(f"{shown}: a logarithmic range ends at 2**40. Lower high or use Float.")
        self._set(low=low, high=high, log=log, step=step, when=conditions(shown, when))
        self._believe(shown, prior, prior_confidence, given=prior is not None)

    @property
    def count(self) -> int:
        return (self.high - self.low) // self.step + 1

    def values(self) -> Iterator[Scalar]:
        return iter(range(self.low, self.high + 1, self.step))

    def canonical(self, value: object) -> int:
        number = plain_number(value, Integral)
        if number is not None and self.low <= number <= self.high and (number - self.low) % self.step == 0:
            return int(number)
        steps = "" if self.step == 1 else f" in steps of {self.step}"
        raise ValueError(f"a whole number from {self.low} to {self.high}{steps}")

    def encoder(self) -> Encoder:
        low, step, count = self.low, self.step, self.count
        if not self.log:
            return lambda value: ((cast(int, value) - low) / step + 0.5) / count
        log, start = math.log, math.log(low - 0.5)
        twice_width = 2 * (math.log(self.high + 0.5) - start)

        def encode(value: Scalar) -> float:
            number = cast(int, value)
            return (log(number - 0.5) + log(number + 0.5) - 2 * start) / twice_width

        return encode

    def decoder(self) -> Decoder:
        low, high, step, count = self.low, self.high, self.step, self.count
        if not self.log:
            return lambda gene: low + step * _cell(gene, count)
        # The cell of n is [log(n - 1/2), log(n + 1/2)]; up to 2**40 half of it is 30 times the roundings.
        exp, start = math.exp, math.log(low - 0.5)
        width = math.log(high + 0.5) - start

        def decode_log(gene: float) -> int:
            gene = float(gene)
            if 0.0 < gene < 1.0:
                return min(max(int(exp(start + gene * width) + 0.5), low), high)
            return _end(gene, low, high)

        return decode_log


def _cell(gene: float, count: int) -> int:
    """Place of the cell of ``gene`` among ``count`` of equal width."""
    gene = float(gene)
    return min(int(gene * count), count - 1) if 0.0 < gene < 1.0 else _end(gene, 0, count - 1)


def _on_grid(low: float, step: float, place: int) -> float:
    # Twelve digits of the step, against which the roundings of the sum are small.
    return round(low + place * step, 12 - math.floor(math.log10(step))) + 0.0


def _end(gene: float, low: Bound, high: Bound) -> Bound:
    if gene <= 0.0:
        return low
    if gene >= 1.0:
        return high
    raise ValueError(f"a gene must be a number, not {gene}")


def _checked_range(
    kind: str, low: object, high: object, log: object, checked: Callable[[str, str, object], Bound]
) -> tuple[str, Bound, Bound]:
    """A range as users write it, for errors, and its ends as ``checked`` returns them."""
    more = ", log=True" if log is True else ""
    shown = f"{kind}({excerpt(low)}, {excerpt(high)}{more})"
    first, last = checked(shown, "low", low), checked(shown, "high", high)
    if first > last:
        raise UsageError(f"{shown}: low must not be above high. Write {kind}({last!r}, {first!r}{more}).")
    if not isinstance(log, bool):
        raise UsageError(f"{shown}: log must be True or False, not {excerpt(log)}.")
    return shown, first, last


def _checked_step(
    shown: str, low: Bound, high: Bound, step: object, log: bool, checked: Callable[[str, str, object], Bound]
) -> tuple[Bound, Bound]:
    """``step``, and the last value up to ``high``."""
    found = checked(shown, "step", step)
    if log and (found != 1 or isinstance(low, float)):
        raise UsageError(
            f"{shown}: step={found!r} and log=True exclude each other. Drop one, or write the values: "
            "Ordinal(1, 10, 100)."
        )
    if found <= 0:
        raise UsageError(f"{shown}: step must be above 0, not {found!r}. Write step=1, say.")
    # Below that, roundings of low and high are no small part of a step.
    coarse = isinstance(low, float) and found < 1e-9 * max(abs(low), abs(high))
    if coarse or (high - low) / found >= _MOST_STEPS:
        raise UsageError(f"{shown}: step={found!r} is too small for this range. Raise it, or leave it out.")
    # The last value is often meant to be high, and (1.0 - 0.0) / 0.1 may be a little less than 10.
    count = math.floor((high - low) / found + _OFF_GRID)
    last = low + count * found
    return found, last if isinstance(low, int) or not count else min(high, _on_grid(low, found, count))


def _float(shown: str, name: str, value: object) -> float:
    number = plain_number(value, Real)
    if number is None or not -_LARGEST_FLOAT <= number <= _LARGEST_FLOAT:
        raise UsageError(
            f"{shown}: {name} must be a finite number within 1e300 of zero, not {excerpt(value)}. Write 0.1, say."
        )
    # Adding zero turns -0.0, which equals 0.0 but is written otherwise, into 0.0.
    return float(number) + 0.0


def _int(shown: str, name: str, value: object) -> int:
    number = plain_number(value, Integral)
    if number is None or not -LARGEST_INT <= number <= LARGEST_INT:
        rule = "a whole number within 2**53 of zero"
        raise UsageError(
            f"{shown}: {name} must be {rule}, not {excerpt(value)}. Use Float for any other range."
        )
    return int(number)
