"""Random generators of a data set's own, other than the global generators, which the loop seeds."""

from __future__ import annotations

import functools
import random
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice
from types import FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

_DEPTH, _OBJECTS, _ENTRIES = 8, 2000, 32
"""Most levels, objects and entries of a container that the search visits."""
_KINDS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
_LEAVES = (str, bytes, int, float, complex, Tensor, np.ndarray, ModuleType, type, type(None))
_LIBRARIES = {"torch", "torchvision", "numpy", "trainers"} | (sys.stdlib_module_names - {"__main__"})
"""Packages whose classes and functions are not searched."""


class OwnGenerators:
    """Random generators of a data set, found by a bounded search.

    It visits the attributes of the data set, its class and its transforms, and global variables that their methods use.
    """

    def __init__(self, samples: object) -> None:
        shared = {id(torch.default_generator), id(np.random.mtrand._rand), id(getattr(random, "_inst", None))}
        self.generators: list[Any] = [
            value for value in _held(samples) if issubclass(type(value), _KINDS) and id(value) not in shared
        ]

    def states(self) -> list[Any]:
        """States of the generators, for ``restore``."""
        return list(map(_state, self.generators))

    def restore(self, states: list[Any]) -> None:
        """Restore the generators' ``states``."""
        for generator, state in zip(self.generators, states, strict=True):
            if isinstance(generator, np.random.Generator):
                generator.bit_generator.state = state
            elif isinstance(generator, random.Random):
                generator.setstate(state)
            else:
                generator.set_state(state)


def comparable(state: object) -> str:
    """``state`` as text that is equal for equal states."""
    if isinstance(state, (Tensor, np.ndarray)):
        return np.asarray(state).tobytes().hex()
    if isinstance(state, Mapping):
        return ", ".join(f"{name}: {comparable(part)}" for name, part in state.items())
    if isinstance(state, (list, tuple)):
        return ", ".join(map(comparable, state))
    return repr(state)


def _state(generator: Any) -> Any:
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.getstate() if isinstance(generator, random.Random) else generator.get_state()


def _held(value: object) -> Iterator[object]:
    """``value`` and the objects in it, breadth first."""
    waiting, seen = deque([(value, 0)]), {id(value)}
    while waiting and len(seen) < _OBJECTS:
        held, depth = waiting.popleft()
        yield held
        if depth == _DEPTH or issubclass(type(held), (*_KINDS, *_LEAVES)):
            continue
        try:
            parts = _parts(held)
        except Exception:  # raised by the user's object, such as a lazy proxy
            continue
        for part in parts:
            if id(part) not in seen:
                seen.add(id(part))
                waiting.append((part, depth + 1))


def _parts(value: Any) -> list[object]:
    # Not isinstance, which may run code of the object in its ``__class__``.
    kind = type(value)
    if issubclass(kind, Mapping):
        return [*islice(value.values(), _ENTRIES)] if kind is dict else []
    if issubclass(kind, (list, tuple, set, frozenset)):
        return [*islice(value, _ENTRIES)]
    if issubclass(kind, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if kind is MethodType:
        return [value.__self__, value.__func__]
    if kind is FunctionType:
        cells = [cell.cell_contents for cell in value.__closure__ or () if not _is_empty(cell)]
        if _is_of_library(value.__module__):
            return cells
        return [*cells, *(value.__globals__.get(name) for name in value.__code__.co_names)]
    found = [*getattr(value, "__dict__", {}).values()]
    for base in kind.__mro__:
        if _is_of_library(base.__module__):
            continue
        for member in vars(base).values():
            if isinstance(member, MemberDescriptorType):  # of __slots__
                found.append(getattr(value, member.__name__, None))
            else:
                found.append(member)
    return found


def _is_of_library(module: object) -> bool:
    return str(module).partition(".")[0] in _LIBRARIES


def _is_empty(cell: Any) -> bool:
    try:
        return cell.cell_contents is cell
    except ValueError:
        return True
