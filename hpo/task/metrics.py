"""Metrics: conversion of the values that a task logs or returns to plain values that a journal can keep.

NumPy and torch are never imported: arrays and tensors are recognized by their ``item`` and ``tolist`` methods."""

from __future__ import annotations

import math
import numbers

from hpo.individual import Metric

MOST_CHARACTERS = 10_000
"""Most characters of a text that is kept as a metric."""
MOST_NUMBERS = 1_000
"""Most entries of a list that is kept as a metric."""
_RULE = (
    f"kept are numbers, text, True, False, None, and flat lists of at most {MOST_NUMBERS:,} numbers. Log its parts "
    "under names of their own, or save it in trial.directory"
)


def keep(name: str, value: object, metrics: dict[str, Metric], remarks: dict[str, str]) -> None:
    """Add ``value`` to ``metrics`` as a plain value; never raises, as a metric is not worth a failed evaluation.
    ``remarks`` gets a sentence for a value that is not kept, or not as a whole."""
    metrics.pop(name, None)
    # Most metrics are floats, and a task may report thousands of times a second.
    if type(value) is float:
        metrics[name] = value
        return
    try:
        metrics[name] = kept = _plain(value)
        if isinstance(kept, str) and len(kept) > MOST_CHARACTERS:
            metrics[name] = f"{kept[:MOST_CHARACTERS]}…"
            remarks[name] = (
                f"metric {name!r} is text of {len(kept):,} characters, of which the first {MOST_CHARACTERS:,} are "
                "kept. Save longer text in trial.directory"
            )
    except _NotKept as reason:
        remarks[name] = f"metric {name!r} is {_kind(value)}{reason} and is not kept: {_RULE}"
    except Exception as error:  # raised by the value's own methods, so of any class
        cause = f"{type(error).__name__} while it was read"
        remarks[name] = f"metric {name!r} is {_kind(value)} and is not kept: {cause}"


class _NotKept(Exception):
    """A value that is not kept; the text says more of it than its type."""


def _plain(value: object) -> Metric:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        # Lone surrogates cannot be written to the journal, which is UTF-8.
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    number = _number(value)
    if number is not None:
        return number
    dimensions = getattr(value, "ndim", None)
    if isinstance(value, (list, tuple)) or (dimensions == 1 and hasattr(value, "tolist")):
        return _list(value)
    inner = _item(value)
    if isinstance(inner, (bool, int, float, str)):
        return _plain(inner)
    raise _NotKept


def _list(value: object) -> list[int | float]:
    length = len(value)  # type: ignore[arg-type]  # a list, a tuple or an array of one dimension
    if length > MOST_NUMBERS:
        raise _NotKept(f" with {length:,} entries")
    found: list[int | float] = []
    for entry in value if isinstance(value, (list, tuple)) else value.tolist():  # type: ignore[attr-defined]
        number = _number(entry)
        if number is None:
            raise _NotKept(f" with an entry {_kind(entry)}")
        found.append(number)
    return found


def _number(value: object) -> int | float | None:
    """``value`` as a plain number, as a float for integers beyond 64 bits; None for anything but a number."""
    if isinstance(value, bool):
        return None
    if isinstance(value, numbers.Integral) and -(2**63) <= int(value) < 2**63:
        return int(value)
    if isinstance(value, numbers.Real):
        return as_number(value)
    if getattr(value, "ndim", None) == 0:
        inner = _item(value)
        if isinstance(inner, (int, float)):
            return _number(inner)
    return None


def as_number(value: object) -> float | None:
    """``value`` as a float, infinite beyond the range of floats; None for anything but a real number.

    Booleans are refused: a comparison returned in place of a score is a mistake.
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float, numbers.Real)):
        try:
            return float(value)
        except OverflowError:
            return -math.inf if value < 0 else math.inf
        except TypeError:  # numpy.timedelta64 is registered as Integral and converts to no float
            return None
    inner = _item(value)
    return as_number(inner) if isinstance(inner, (int, float)) else None


def _item(value: object) -> object:
    """Only element of an array or a tensor; None for any other number of elements."""
    unwrap = getattr(value, "item", None)
    try:
        inner: object = unwrap() if callable(unwrap) else None
    except (
        TypeError,
        ValueError,
        RuntimeError,
    ):  # several elements: NumPy and torch differ in what they raise
        return None
    return inner


def _kind(value: object) -> str:
    """Type of ``value`` for a sentence, with the shape of an array of several dimensions."""
    shape = getattr(value, "shape", None)
    of = f" and shape {tuple(shape)}" if isinstance(shape, tuple) and len(shape) > 1 else ""
    return f"of type {type(value).__name__}{of}"
