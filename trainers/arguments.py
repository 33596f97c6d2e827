"""Checks of the types of a user's values, which would otherwise fail later with an error about something else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from numbers import Integral, Real
from typing import TYPE_CHECKING, TypeGuard

import numpy as np

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def is_number(value: object) -> bool:
    """Whether ``value`` is a real number, numpy's included, and no truth value."""
    return isinstance(value, Real) and not isinstance(value, bool)


def is_integer(value: object) -> TypeGuard[int]:
    """Whether ``value`` is a whole number, numpy's included, and no truth value."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_whole(value: object, least: int) -> bool:
    """Whether ``value`` is a whole number of at least ``least``, numpy's included, and no truth value."""
    return is_integer(value) and value >= least


# Keys are annotations of fields, which are not evaluated.
_KINDS = {
    "float": (is_number, "a number"),
    "int": (is_integer, "a whole number"),
    "bool": (lambda value: isinstance(value, bool), "True or False"),
}


def make_plain(settings: DataclassInstance) -> None:
    """Replace numbers and truth values of numpy in the fields of ``settings`` by Python's, as checkpoints name both."""
    for field in fields(settings):
        value = getattr(settings, field.name)
        if isinstance(value, np.generic):
            object.__setattr__(settings, field.name, value.item())


def check_kinds(settings: DataclassInstance) -> None:
    """Make numbers plain; ValueError unless fields annotated as float, int or bool hold such a value."""
    make_plain(settings)
    for field in fields(settings):
        allowed, rule = _KINDS.get(str(field.type), (None, ""))
        if allowed is not None:
            check_rules(settings, (field.name, allowed(getattr(settings, field.name)), rule))


def check_whole(settings: DataclassInstance, **least: int) -> None:
    """Make numbers plain; ValueError unless the named fields are whole numbers of at least ``least``, or None where
    that is their default.
    """
    make_plain(settings)
    for name, smallest in least.items():
        value = getattr(settings, name)
        allowed = is_whole(value, smallest) or (value is None and getattr(type(settings), name) is None)
        check_rules(settings, (name, allowed, f"a whole number of at least {smallest}"))


def check_rules(settings: object, *rules: tuple[str, bool, str]) -> None:
    """ValueError for the first of the ``rules`` for fields of ``settings`` that is broken.

    A rule has the name of the field, to which further names may be added that are shown; whether it is kept; and its
    words, as they go on after "must be".
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
    """ValueError for the first number among the fields of ``settings`` that is out of its bounds, which are given in
    words, such as "at least 0".
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
