"""Checks the types of a user's values, which would else fail later with an error about something else.

Nothing here is about which values of the right kind are allowed: that is said where these are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from numbers import Integral, Real
from typing import TYPE_CHECKING, TypeGuard

import numpy as np

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def is_number(value: object) -> bool:
    """Whether it is a real number, numpy's included, and no truth value."""
    return isinstance(value, Real) and not isinstance(value, bool)


def is_integer(value: object) -> TypeGuard[int]:
    """Whether it is a whole number, numpy's included, and no truth value."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_whole(value: object, least: int) -> bool:
    """Whether it is a whole number of at least ``least``, numpy's included, and no truth value."""
    return is_integer(value) and value >= least


def make_plain(settings: DataclassInstance) -> None:
    """Numbers and truth values of numpy in the fields of ``settings``, such as a table of results has, become Python's:
    checkpoints say of both the same.
    """
    for field in fields(settings):
        value = getattr(settings, field.name)
        if isinstance(value, np.generic):
            object.__setattr__(settings, field.name, value.item())


def check_kinds(settings: DataclassInstance) -> None:
    """ValueError unless the fields of ``settings`` that are annotated so hold a float, an int or a bool, which become
    plain ones.
    """
    make_plain(settings)
    for field in fields(settings):
        value = getattr(settings, field.name)
        # Annotations are not evaluated: they are the words that stand there.
        if field.type == "float":
            allowed, rule = is_number(value), "a number"
        elif field.type == "int":
            allowed, rule = is_integer(value), "a whole number"
        elif field.type == "bool":
            allowed, rule = isinstance(value, bool), "True or False"
        else:
            continue
        check_rules(settings, (field.name, allowed, rule))


def check_whole(settings: DataclassInstance, **least: int) -> None:
    """ValueError unless each named field of ``settings`` is a whole number of at least the given one, or None where
    that is its default. Numbers of numpy become plain ones.
    """
    make_plain(settings)
    for name, smallest in least.items():
        value = getattr(settings, name)
        allowed = is_whole(value, smallest) or (value is None and getattr(type(settings), name) is None)
        check_rules(settings, (name, allowed, f"a whole number of at least {smallest}"))


def check_rules(settings: object, *rules: tuple[str, bool, str]) -> None:
    """Raise ValueError for the first of the ``rules`` for fields of ``settings`` that is broken.

    Args:
        settings (object): object of a class that the user knows.
        rules (tuples): name of the field, to which further names may be added that are shown; whether the rule is kept;
            the rule, as it goes on after "must be".
    """
    for names, kept, rule in rules:
        if not kept:
            shown = ", ".join(f"{name}={getattr(settings, name)!r}" for name in names.split())
            raise ValueError(
                f"{type(settings).__name__}({shown}): {names.split()[0]} must be {rule}. Correct it."
            )


_BOUNDS: dict[str, Callable[[float], bool]] = {
    "at least 0": lambda value: value >= 0,
    "at least 1": lambda value: value >= 1,
    "above 0": lambda value: value > 0,
    "above 0 and at most 1": lambda value: 0 < value <= 1,
    "above 0 and below 1": lambda value: 0 < value < 1,
    "at least 0 and below 1": lambda value: 0 <= value < 1,
}


def check_bounds(settings: object, **bounds: str) -> None:
    """Raise ValueError for the first number among the fields of ``settings`` that is out of its bounds, which are given
    in words, such as "at least 0".
    """
    for name, rule in bounds.items():
        check_rules(settings, (name, _BOUNDS[rule](getattr(settings, name)), rule))


def check_argument(name: str, value: object, allowed: bool, rule: str) -> None:
    """ValueError that ``value`` of the argument ``name`` must be ``rule``, unless ``allowed``."""
    if not allowed:
        text = repr(value)
        # Models, optimizers and data sets show themselves in full.
        shown = text if len(text) <= 80 and "\n" not in text else f"an object of type {type(value).__name__}"
        raise ValueError(f"{name} = {shown}: must be {rule}. Correct it.")
