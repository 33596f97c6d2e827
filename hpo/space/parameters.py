"""The four kinds of parameter: their allowed values, and the exact map between a value and its gene.

A gene is a number in [0, 1] (Float, Int) or the index of a choice (Categorical, Ordinal).
``decode(encode(v)) == v`` holds for every value that ``decode`` or ``canonical`` returns: a Float's values
lie on a decimal grid, coarse against the map's rounding errors; an Int's gene is the middle of its cell.
"""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import ClassVar, TypeVar, cast

from hpo.arguments import checked_arguments
from hpo.errors import UsageError
from hpo.individual import Scalar
from hpo.spelling import suggestion
from hpo.text import excerpt

Encoder = Callable[[Scalar], float]
Decoder = Callable[[float], Scalar]
Bound = TypeVar("Bound", int, float)
When = Mapping[str, tuple[Scalar, ...]]
Condition = Mapping[str, Scalar | Iterable[Scalar]]

# 1e300 leaves room below the largest float, 1.8e308, for the difference of two limits.
_LARGEST_FLOAT = 1e300
# All whole numbers up to 2**53 are exact as floats, which genes and JSON readers use.
_LARGEST_INT = 2**53
# A gene resolves 2**53 values in [0, 1]; 2**50 leaves the roundings of the map three bits.
_MOST_INTS = 2**50
_LARGEST_LOG_INT = 2**40
_FEWEST_FLOATS = 1e6
_NARROWEST_LOG = 1 + 1e-6
_STEP = "Write the values: Ordinal(0, 2, 4, 6, 8, 10), or Ordinal(*range(0, 11, 2)) of whole numbers."


@dataclass(frozen=True, init=False)
class Parameter(ABC):
    """One axis of a search space."""

    kind: ClassVar[str]
    """Name of the class in ``campaign.json``."""
    when: When = field(hash=False, repr=False)
    """Values under which this parameter is active, by name of a parent."""

    @property
    def limits(self) -> tuple[float, float]:
        """Smallest and largest gene in Propulate's form: two floats, or two ints for an index of choices."""
        return 0.0, 1.0

    @property
    def neutral(self) -> float:
        """Gene of this parameter in a configuration where it is inactive."""
        return 0.5

    @property
    @abstractmethod
    def count(self) -> int | None:
        """Number of values; None for a Float with more than a single value."""

    @abstractmethod
    def values(self) -> Iterator[Scalar]:
        """All values, in order; TypeError for a Float with more than a single value."""

    @abstractmethod
    def canonical(self, value: object) -> Scalar:
        """``value`` as ``decode`` would return it; ValueError, whose text is the rule, where it is not allowed."""

    @abstractmethod
    def encoder(self) -> Encoder:
        """Function from a canonical value to its gene."""

    @abstractmethod
    def decoder(self) -> Decoder:
        """Function from any gene, clipped to the limits, to a canonical value; ValueError for NaN."""

    def describe(self) -> dict[str, object]:
        """Definition as JSON-able data, without the conditions."""
        own = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "when"}
        return {"type": self.kind, **{k: list(v) if isinstance(v, tuple) else v for k, v in own.items()}}

    def _set(self, **attributes: object) -> None:
        # The only way past a frozen dataclass; each class checks its values in an __init__ of its own.
        for name, value in attributes.items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True, init=False)
class Float(Parameter):
    """A real number from ``low`` to ``high``, both included.

    Values have 12 decimal digits, relative to the width of the range, or with ``log`` to the value. Both ends stay
    exactly as given.

    Args:
        low (float): the smallest value.
        high (float): the largest value; may equal ``low``.
        log (bool; default False): spread evenly over orders of magnitude; needs ``low`` > 0.
        when (dict; default None): value, or tuple of values, under which this parameter exists, by name of another
            parameter; None: always.

    Raises:
        UsageError: the range or the condition is not allowed.
    """

    kind = "float"
    low: float
    high: float
    log: bool

    @checked_arguments(step=_STEP)
    def __init__(self, low: float, high: float, *, log: bool = False, when: Condition | None = None) -> None:
        shown, low, high = _checked_range("Float", low, high, log, _float)
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
        elif high - low < _FEWEST_FLOATS * math.ulp(max(-low, high)) and not fixed:
            raise UsageError(
                f"{shown}: there are fewer than a million floating-point numbers between low and high. "
                "Search for the difference from low, and add low in the task."
            )
        self._set(low=low, high=high, log=log, when=_conditions(shown, when))

    @property
    def count(self) -> int | None:
        return 1 if self.low == self.high else None

    def values(self) -> Iterator[Scalar]:
        if self.low == self.high:
            return iter((self.low,))
        raise TypeError("a Float has no list of values")

    def canonical(self, value: object) -> float:
        number = _plain_number(value, Real)
        if number is not None and self.low <= number <= self.high:
            return cast(float, self.decoder()(self.encoder()(float(number))))
        raise ValueError(f"a number from {self.low!r} to {self.high!r}")

    def encoder(self) -> Encoder:
        low, width = self.low, self.high - self.low
        if not width:
            return lambda value: self.neutral
        if not self.log:
            return lambda value: (cast(float, value) - low) / width
        log, log_low = math.log, math.log(low)
        log_width = math.log(self.high) - log_low
        return lambda value: (log(cast(float, value)) - log_low) / log_width

    def decoder(self) -> Decoder:
        if self.low == self.high:
            return self._only
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
        when (dict; default None): value, or tuple of values, under which this parameter exists, by name of another
            parameter; None: always.

    Raises:
        UsageError: the range or the condition is not allowed.
    """

    kind = "int"
    low: int
    high: int
    log: bool

    @checked_arguments(step=_STEP)
    def __init__(self, low: int, high: int, *, log: bool = False, when: Condition | None = None) -> None:
        shown, low, high = _checked_range("Int", low, high, log, _int)
        if high - low >= _MOST_INTS:
            raise UsageError(f"{shown}: a range holds at most 2**50 whole numbers. Narrow it or use Float.")
        if log:
            if low < 1:
                raise UsageError(f"{shown}: a logarithmic range needs low >= 1. Raise low or drop log=True.")
            if high > _LARGEST_LOG_INT:
                raise UsageError(f"{shown}: a logarithmic range ends at 2**40. Lower high or use Float.")
        self._set(low=low, high=high, log=log, when=_conditions(shown, when))

    @property
    def count(self) -> int:
        return self.high - self.low + 1

    def values(self) -> Iterator[Scalar]:
        return iter(range(self.low, self.high + 1))

    def canonical(self, value: object) -> int:
        number = _plain_number(value, Integral)
        if number is not None and self.low <= number <= self.high:
            return int(number)
        raise ValueError(f"a whole number from {self.low} to {self.high}")

    def encoder(self) -> Encoder:
        low, count = self.low, self.count
        if not self.log:
            return lambda value: (cast(int, value) - low + 0.5) / count
        log, start = math.log, math.log(low - 0.5)
        twice_width = 2 * (math.log(self.high + 0.5) - start)

        def encode(value: Scalar) -> float:
            number = cast(int, value)
            return (log(number - 0.5) + log(number + 0.5) - 2 * start) / twice_width

        return encode

    def decoder(self) -> Decoder:
        low, high, count = self.low, self.high, self.count
        if not self.log:

            def decode(gene: float) -> int:
                gene = float(gene)
                if 0.0 < gene < 1.0:
                    return min(low + int(gene * count), high)
                return _end(gene, low, high)

            return decode
        # The cell of n is [log(n - 1/2), log(n + 1/2)]; up to 2**40 half of it is 30 times the roundings.
        exp, start = math.exp, math.log(low - 0.5)
        width = math.log(high + 0.5) - start

        def decode_log(gene: float) -> int:
            gene = float(gene)
            if 0.0 < gene < 1.0:
                return min(max(int(exp(start + gene * width) + 0.5), low), high)
            return _end(gene, low, high)

        return decode_log


@dataclass(frozen=True, init=False)
class Categorical(Parameter):
    """One of several choices without an order.

    Args:
        *choices (str, int, float, bool or None): at least one, all different under ==.
        when (dict; default None): value, or tuple of values, under which this parameter exists, by name of another
            parameter; None: always.

    Raises:
        UsageError: the choices or the condition are not allowed.
    """

    kind = "categorical"
    choices: tuple[Scalar, ...]

    @checked_arguments()
    def __init__(self, *choices: Scalar, when: Condition | None = None) -> None:
        name = type(self).__name__
        if not choices:
            raise UsageError(f'{name}(): at least one choice is needed. Write {name}("a", "b").')
        if len(choices) == 1 and isinstance(choices[0], (list, tuple, set, frozenset, dict)):
            raise UsageError(
                f"{name}({excerpt(choices[0])}): choices are separate arguments. Write {name}(*choices)."
            )
        plain: dict[Scalar, Scalar] = {}
        for choice in (_choice(name, choice) for choice in choices):
            if choice in plain:
                raise UsageError(
                    f"{name}(...): choices must differ under ==, and {choice!r} equals {plain[choice]!r}. "
                    "Remove one, or write them as strings."
                )
            plain[choice] = choice
        self._set(choices=tuple(plain), when=_conditions(f"{name}(...)", when))

    @property
    def limits(self) -> tuple[float, float]:
        return 0, len(self.choices) - 1

    @property
    def count(self) -> int:
        return len(self.choices)

    @property
    def neutral(self) -> float:
        return 0

    def values(self) -> Iterator[Scalar]:
        return iter(self.choices)

    def canonical(self, value: object) -> Scalar:
        for choice in self.choices if isinstance(value, (str, bool, Real, type(None))) else ():
            # True == 1 in Python, but a choice of 1 does not allow the value True, nor the reverse.
            if isinstance(choice, bool) is isinstance(value, bool) and choice == value:
                return choice
        rule = "one of " + ", ".join(map(repr, self.choices))
        if isinstance(value, str):
            raise ValueError(f"{rule}. {suggestion(value, (c for c in self.choices if isinstance(c, str)))}")
        raise ValueError(rule)

    def encoder(self) -> Encoder:
        return {choice: index for index, choice in enumerate(self.choices)}.__getitem__

    def decoder(self) -> Decoder:
        choices, top = self.choices, len(self.choices) - 1

        def decode(gene: float) -> Scalar:
            return choices[min(max(round(gene), 0), top)]

        return decode


@dataclass(frozen=True, init=False)
class Ordinal(Categorical):
    """One of several choices in order, such as 32, 64, 128, 256: neighbours count as similar.

    Args:
        *choices (str, int, float, bool or None): at least one, all different under ==; numbers ascend or descend.
        when (dict; default None): value, or tuple of values, under which this parameter exists, by name of another
            parameter; None: always.

    Raises:
        UsageError: the choices or the condition are not allowed.
    """

    kind = "ordinal"

    @checked_arguments()
    def __init__(self, *choices: Scalar, when: Condition | None = None) -> None:
        super().__init__(*choices, when=when)
        numbers = [number for choice in self.choices if (number := _plain_number(choice, Real)) is not None]
        ascending = sorted(numbers)
        if len(numbers) == len(self.choices) and numbers not in (ascending, ascending[::-1]):
            shown = ", ".join(map(repr, ascending))
            raise UsageError(
                f"Ordinal({', '.join(map(repr, numbers))}): numbers must ascend or descend, as neighbours count as "
                f"alike. Write Ordinal({shown}), or Categorical if they have no order."
            )


def is_unicode(text: str) -> bool:
    """Whether ``text`` can be written as UTF-8, the encoding of journals: lone surrogates cannot."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _end(gene: float, low: Bound, high: Bound) -> Bound:
    if gene <= 0.0:
        return low
    if gene >= 1.0:
        return high
    raise ValueError(f"a gene must be a number, not {gene}")


def _plain_number(value: object, kind: type[Real | Integral]) -> int | float | None:
    """``value`` of the type ``kind`` as an int or a float of Python's; None for any other value."""
    if isinstance(value, bool) or not isinstance(value, kind):
        return None
    try:
        return int(operator.index(value)) if isinstance(value, Integral) else float(value)
    except (
        TypeError,
        OverflowError,
    ):  # numpy.timedelta64 is an Integral without an index; a Fraction may be too large
        return None


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


def _float(shown: str, name: str, value: object) -> float:
    number = _plain_number(value, Real)
    if number is None or not -_LARGEST_FLOAT <= number <= _LARGEST_FLOAT:
        raise UsageError(
            f"{shown}: {name} must be a finite number within 1e300 of zero, not {excerpt(value)}. Write 0.1, say."
        )
    # Adding zero turns -0.0, which equals 0.0 but is written otherwise, into 0.0.
    return float(number) + 0.0


def _int(shown: str, name: str, value: object) -> int:
    number = _plain_number(value, Integral)
    if number is None or not -_LARGEST_INT <= number <= _LARGEST_INT:
        rule = "a whole number within 2**53 of zero"
        raise UsageError(
            f"{shown}: {name} must be {rule}, not {excerpt(value)}. Use Float for any other range."
        )
    return int(number)


def _choice(kind: str, choice: object) -> Scalar:
    """``choice`` as a plain Python value, converted from types of NumPy and from members of enumerations."""
    if choice is None or isinstance(choice, bool):
        return choice
    if isinstance(choice, str) and is_unicode(choice):
        return str.__str__(choice)
    number = _plain_number(choice, Real)
    if isinstance(number, int) and abs(number) <= _LARGEST_INT:
        return number
    if isinstance(number, float) and math.isfinite(number):
        return number
    raise UsageError(
        f"{kind}(...): a choice must be a string, a finite number (up to 2**53 if whole), True, False or "
        f"None, as it is written to the journal, not {excerpt(choice)}. Choose by a name and look it up in the task."
    )


def _conditions(shown: str, when: object) -> When:
    if when is None:
        return {}
    if not isinstance(when, Mapping) or not when or not all(isinstance(parent, str) for parent in when):
        raise UsageError(
            f"{shown}: when={excerpt(when)} must map the name of another parameter to the value or values that it "
            'needs. Write when={"optimizer": "sgd"} or when={"optimizer": ("sgd", "rmsprop")}.'
        )
    conditions = {}
    for parent, allowed in when.items():
        values = tuple(allowed) if isinstance(allowed, (tuple, list)) else (allowed,)
        if not values:
            raise UsageError(f"{shown}: when names no value of {parent!r}. Name one or drop the condition.")
        conditions[parent] = values
    return conditions
