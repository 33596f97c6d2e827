"""A kind of global state: how to read it and how to set it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple


class Kind(NamedTuple):
    """``get`` raises where the state does not exist (its module is not imported); ``put`` sets what ``get`` returned.

    Dictionaries and lists are changed by imports item by item, all other values as a whole.
    """

    get: Callable[[], Any]
    put: Callable[[Any], object]


def attribute(owner: Any, name: str) -> Kind:
    return Kind(lambda: getattr(owner, name), lambda value: setattr(owner, name, value))


def items(owner: Callable[[], list[Any]]) -> Kind:
    """The items of a list that stays the same object."""

    def put(value: list[Any]) -> None:
        owner()[:] = value

    return Kind(lambda: list(owner()), put)


def entries(owner: Callable[[], dict[Any, Any]]) -> Kind:
    """The entries of a dictionary that stays the same object."""

    def put(value: dict[Any, Any]) -> None:
        current = owner()
        for key in current.keys() - value.keys():
            del current[key]
        current.update(value)

    return Kind(lambda: dict(owner()), put)


def of_module(name: str, get: Callable[[Any], Any], put: Callable[[Any, Any], object]) -> Kind:
    """State of a module that may not be imported; ``get`` and ``put`` get the module first."""
    return Kind(lambda: get(sys.modules[name]), lambda value: put(sys.modules[name], value))
