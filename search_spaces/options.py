"""What a task's options must be: checked when the task is made, before anything is trained.

    check.whole(1, epochs=epochs, batch_size=batch_size)
    check.one_of(check.PRECISIONS, precision=precision)
    check.number("above 0", lambda value: value > 0, lr=lr)

Each raises UsageError that names option, value, rule and remedy; within ``with check.together():`` all are raised at
its end, a line each. It imports no torch: the ranks that search check, too.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

import hpo

PRECISIONS = ("fp32", "tf32", "bf16")

P = ParamSpec("P")
R = TypeVar("R")


_found: ContextVar[list[str] | None] = ContextVar("found", default=None)
"""What is wrong so far, within ``together``."""


@contextmanager
def together() -> Iterator[None]:
    """Around several checks: UsageError with what all of them found, a line each. One within another adds to it.

    What depends on an option that is right is checked after them.
    """
    outer = _found.get()
    found = [] if outer is None else outer
    token = _found.set(found)
    try:
        yield
    except hpo.UsageError as error:
        found.append(str(error))
    finally:
        _found.reset(token)
    if outer is None and found:
        raise hpo.UsageError("\n".join(dict.fromkeys(found)))


def whole(least: int, /, **options: object) -> None:
    """Whole numbers of at least ``least``."""
    for name, value in options.items():
        if not _is_whole(value, least):
            refuse(name, value, f"a whole number of at least {least}")


def whole_or_none(least: int, /, **options: object) -> None:
    """As ``whole``, or not given."""
    for name, value in options.items():
        if value is not None and not _is_whole(value, least):
            refuse(name, value, f"a whole number of at least {least}, or left out")


def number(rule: str, allowed: Callable[[float], bool], /, **options: object) -> None:
    """Finite numbers that are ``allowed``, which ``rule`` says in words: "above 0"."""
    for name, value in options.items():
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or not (math.isfinite(value) and allowed(value))
        ):
            refuse(name, value, f"a number {rule}")


def one_of(choices: Sequence[str], /, **options: object) -> None:
    """One of ``choices``."""
    for name, value in options.items():
        if value not in choices:
            refuse(name, value, " or ".join(map(repr, choices)))


def truth(**options: object) -> None:
    """True or false."""
    for name, value in options.items():
        if not isinstance(value, bool):
            refuse(name, value, "true or false")


def divisor(of: str, total: int, /, **options: int) -> None:
    """Whole numbers that divide ``total``, the option named ``of``, where that is one: else it is reported already."""
    for name, value in options.items():
        if not _is_whole(value, 1):
            refuse(name, value, "a whole number of at least 1")
        elif _is_whole(total, 1) and total % value:
            refuse(name, value, f"a divisor of {of} = {total}")


def refuse(name: str, value: object, rule: str) -> None:
    """Tell of an option that breaks a rule: with the others within ``together``, else at once."""
    found, error = _found.get(), wrong(name, value, rule)
    if found is None:
        raise error
    found.append(str(error))


def wrong(name: str, value: object, rule: str) -> hpo.UsageError:
    """The sentence for an option that breaks a rule."""
    return hpo.UsageError(f"{name} = {value!r}: must be {rule}. Correct it.")


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


# What cannot be said before data are read


@contextmanager
def as_usage() -> Iterator[None]:
    """Around the reading of data: what the reader says of data that are not there, or are not what they should be, is
    the user's to hear.
    """
    try:
        yield
    except hpo.HpoError:
        raise
    except (OSError, EOFError, ValueError, ModuleNotFoundError) as error:
        raise hpo.UsageError(str(error)) from error


def refusing(train: Callable[P, R]) -> Callable[P, R]:
    """``trainers.train``, of which a ValueError that comes before the first step is a UsageError: settings, or a
    checkpoint of others. Later ones stay what they are, with their traceback.
    """

    @functools.wraps(train)
    def wrapped(*given: P.args, **named: P.kwargs) -> R:
        begun, interrupt = False, named.get("interrupt")

        def asked() -> bool:
            nonlocal begun
            begun = True
            return bool(interrupt()) if callable(interrupt) else False

        named["interrupt"] = asked
        try:
            return train(*given, **named)
        except ValueError as error:
            if begun or isinstance(error, hpo.HpoError):
                raise
            raise hpo.UsageError(str(error)) from error

    return wrapped
