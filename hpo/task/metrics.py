"""Metrics: which of the values that a task logs or returns are kept, and what is said of the others.

NumPy and torch are never imported here: what has an ``item`` or a ``tolist`` is asked for it."""

from __future__ import annotations

import math
import numbers

from hpo.individual import Metric

MOST_CHARACTERS = 10_000
MOST_NUMBERS = 1_000
_RULE = f"kept are numbers, text, True, False, None, and flat lists of at most {MOST_NUMBERS:,} numbers"


def keep(name: str, value: object, metrics: dict[str, Metric], remarks: dict[str, str]) -> None:
    """Put ``value`` into ``metrics`` as a journal can keep it: plain, and whole. What cannot be kept, or not whole, is
    named in ``remarks``, a sentence by name; it never raises, for a metric is not worth an evaluation."""
    metrics.pop(name, None)
    if type(value) is float:  # as most are, and reports come often
        metrics[name] = value
        return
    try:
        metrics[name] = _plain(value)
    except _NotWholeError as reason:
        remarks[name] = f"metric {name!r} is {reason}"
        if reason.kept is not None:
            metrics[name] = reason.kept
    except Exception as error:  # its class is the user's, or any library's
        remarks[name] = (
            f"metric {name!r} is {_kind(value)} and is not kept: {type(error).__name__} while it was read"
        )


class _NotWholeError(Exception):
    def __init__(self, reason: str, kept: str | None = None) -> None:
        super().__init__(reason)
        self.kept = kept


def _plain(value: object) -> Metric:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value)
    number = _number(value)
    if number is not None:
        return number
    dimensions = getattr(value, "ndim", None)
    if isinstance(value, (list, tuple)) or (dimensions == 1 and hasattr(value, "tolist")):
        return _list(value)
    inner = _item(value)
    if isinstance(inner, (bool, int, float, str)):
        return _plain(inner)
    raise _NotWholeError(f"{_kind(value)} and is not kept: {_RULE}. Log its parts under names of their own")


def _text(value: str) -> str:
    text = value.encode("utf-8", "backslashreplace").decode("utf-8")  # lone surrogates would stop the journal
    if len(text) <= MOST_CHARACTERS:
        return text
    raise _NotWholeError(
        f"text of {len(text):,} characters, of which the first {MOST_CHARACTERS:,} are kept. Save longer text in "
        "trial.directory",
        f"{text[:MOST_CHARACTERS]}…",
    )


def _list(value: object) -> list[int | float]:
    length = len(value)  # type: ignore[arg-type]  # whatever has one dimension has a length
    if length > MOST_NUMBERS:
        raise _NotWholeError(
            f"{_kind(value)} with {length:,} entries and is not kept: {_RULE}. Log fewer, or save it in trial.directory"
        )
    entries = value if isinstance(value, (list, tuple)) else value.tolist()  # type: ignore[attr-defined]
    found: list[int | float] = []
    for entry in entries:
        number = _number(entry)
        if number is None:
            raise _NotWholeError(f"{_kind(value)} with an entry {_kind(entry)} and is not kept: {_RULE}")
        found.append(number)
    return found


def _number(value: object) -> int | float | None:
    """``value`` as a plain number, an integer beyond 64 bits as a float; None if it is none."""
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
    """The float that ``value`` stands for, infinite when it is too large; None when it is no real number.

    Booleans are refused: a comparison returned in place of a score is a mistake.
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float, numbers.Real)):
        try:
            return float(value)
        except OverflowError:
            return -math.inf if value < 0 else math.inf
        except TypeError:  # numpy's spans of time are registered as whole numbers
            return None
    inner = _item(value)
    return as_number(inner) if isinstance(inner, (int, float)) else None


def _item(value: object) -> object:
    """The only element of an array or a tensor; None where there are others or none."""
    unwrap = getattr(value, "item", None)
    if not callable(unwrap):
        return None
    try:
        inner: object = unwrap()
    except (
        TypeError,
        ValueError,
        RuntimeError,
    ):  # several elements: NumPy and torch differ in what they raise
        return None
    return inner


def _kind(value: object) -> str:
    """What ``value`` is, for a sentence: its type, and its shape if it has several dimensions."""
    shape = getattr(value, "shape", None)
    of = f" and shape {tuple(shape)}" if isinstance(shape, tuple) and len(shape) > 1 else ""
    return f"of type {type(value).__name__}{of}"
