"""Checks the types of a user's values, which would else fail later with an error about something else.

Nothing here is about which values of the right kind are allowed: that is said where these are.
"""

from __future__ import annotations

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
        if not allowed:
            raise ValueError(
                f"{type(settings).__name__}({field.name}={value!r}): {field.name} must be {rule}. Correct it."
            )


def check_whole(settings: DataclassInstance, **least: int) -> None:
    """ValueError unless each named field of ``settings`` is a whole number of at least the given one, or None where
    that is its default. Numbers of numpy become plain ones.
    """
    make_plain(settings)
    kind = type(settings)
    for name, smallest in least.items():
        value = getattr(settings, name)
        if not (is_whole(value, smallest) or (value is None and getattr(kind, name) is None)):
            raise ValueError(
                f"{kind.__name__}({name}={value!r}): {name} must be a whole number of at least {smallest}. Correct it."
            )


def check_argument(name: str, value: object, allowed: bool, rule: str) -> None:
    """ValueError that ``value`` of the argument ``name`` must be ``rule``, unless ``allowed``."""
    if not allowed:
        text = repr(value)
        # Models, optimizers and data sets show themselves in full.
        shown = text if len(text) <= 80 and "\n" not in text else f"an object of type {type(value).__name__}"
        raise ValueError(f"{name} = {shown}: must be {rule}. Correct it.")
