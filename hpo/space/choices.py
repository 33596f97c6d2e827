"""Stored form of choices, in which genomes, journals and tables have them: tuples of plain values in place of lists and
named tuples, and names in place of members of enumerations."""

from __future__ import annotations

import json
import math
import operator
from enum import Enum
from numbers import Integral, Real

from hpo.individual import Plain, Scalar

# All whole numbers up to 2**53 are exact as floats, which genes and JSON readers use.
LARGEST_INT = 2**53
# A choice stands in each line of the journal that has it.
_MOST_VALUES = 100
# See ``hpo.individual.Scalar``.
_MOST_LEVELS = 3


def stored(choice: object) -> Scalar:
    """Stored form of ``choice``, which may be of NumPy's types, too; ValueError, whose text is the rule, where it has
    none. A member of an enumeration that is a text or a number itself is kept as that, others by name."""
    return _stored(choice, [_MOST_VALUES], _MOST_LEVELS)


def _stored(choice: object, left: list[int], levels: int) -> Scalar:
    if not isinstance(choice, (list, tuple)):
        return _plain(choice)
    left[0] -= len(choice)
    if not levels or left[0] < 0:
        raise ValueError(
            f"a tuple of at most {_MOST_VALUES} values, in at most {_MOST_LEVELS} levels of tuples"
        )
    return tuple(_stored(one, left, levels - 1) for one in choice)  # type: ignore[misc]


def _plain(choice: object) -> Plain:
    if choice is None or isinstance(choice, bool):
        return choice
    if isinstance(choice, str) and is_unicode(choice):
        return str.__str__(choice)
    number = plain_number(choice, Real)
    if isinstance(number, int) and abs(number) <= LARGEST_INT:
        return number
    if isinstance(number, float) and math.isfinite(number):
        return number
    # A combination of flags may have no name.
    if isinstance(choice, Enum) and number is None and choice.name is not None and is_unicode(choice.name):
        return choice.name
    raise ValueError(
        "a string, a finite number (up to 2**53 if whole), True, False, None, a member of an enumeration, or a tuple "
        "of these, as it is written to the journal"
    )


def changed(choice: object) -> bool:
    """Whether ``choice`` has to be given back to the task in another form than the stored one."""
    if isinstance(choice, (list, tuple)):
        return type(choice) is not tuple or any(map(changed, choice))
    return isinstance(choice, Enum)


def copied(choice: object) -> object:
    """``choice`` with lists of its own, so that a task that changes them changes no other evaluation's."""
    if isinstance(choice, list):
        return [copied(one) for one in choice]
    if isinstance(choice, tuple) and not isinstance(choice, Enum):
        make = getattr(choice, "_make", type(choice))  # that of named tuples takes an iterable, as tuple does
        return make(map(copied, choice))
    return choice


def same(one: Scalar, other: Scalar) -> bool:
    """Whether two stored choices are equal; 1 and True, which are equal in Python, are not, inside tuples either."""
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return isinstance(one, bool) is isinstance(other, bool) and one == other


def as_text(choice: Scalar) -> str:
    """``choice`` as a table without types has it: a tuple as a list of JSON."""
    return json.dumps(choice, ensure_ascii=False) if isinstance(choice, tuple) else str(choice)


def is_unicode(text: str) -> bool:
    """Whether ``text`` can be written as UTF-8, the encoding of journals: lone surrogates cannot."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def plain_number(value: object, kind: type[Real | Integral]) -> int | float | None:
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
