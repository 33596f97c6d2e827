"""Random generators that a data set holds for itself, beside the global generators, which the loop seeds."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator, Mapping
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainers.data.fetching import epoch_setters

_DEPTH, _OBJECTS, _ENTRIES = 8, 2000, 32
"""Bounds of the search."""
_KINDS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)


class OwnGenerators:
    """The generators in a data set's attributes, its transforms' included, found by a bounded search."""

    def __init__(self, samples: object) -> None:
        of_everybody = {
            id(torch.default_generator),
            id(np.random.mtrand._rand),
            id(getattr(random, "_inst", None)),
        }
        reached = [*epoch_setters(samples)]
        self.generators: list[Any] = []
        self.hides_epochs = False
        """Whether it holds a data set with ``set_epoch`` which the loop does not call."""
        for value in _held(samples):
            if isinstance(value, _KINDS):
                if id(value) not in of_everybody:
                    self.generators.append(value)
            elif not reached and callable(getattr(type(value), "set_epoch", None)):
                self.hides_epochs = True

    def states(self) -> list[Any]:
        """Their states, for ``restore``."""
        return [_state(one) for one in self.generators]

    def restore(self, states: list[Any]) -> None:
        """Put them back into ``states``."""
        for generator, state in zip(self.generators, states, strict=True):
            if isinstance(generator, torch.Generator):
                generator.set_state(state)
            elif isinstance(generator, np.random.Generator):
                generator.bit_generator.state = state
            elif isinstance(generator, np.random.RandomState):
                generator.set_state(state)
            else:
                generator.setstate(state)


def comparable(state: object) -> str:
    """``state`` as text that is the same for the same state."""
    if isinstance(state, (Tensor, np.ndarray)):
        return np.asarray(state).tobytes().hex()
    if isinstance(state, Mapping):
        return ", ".join(f"{name}: {comparable(one)}" for name, one in state.items())
    if isinstance(state, (list, tuple)):
        return ", ".join(map(comparable, state))
    return repr(state)


def _state(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.get_state() if isinstance(generator, np.random.RandomState) else generator.getstate()


def _held(value: object) -> Iterator[object]:
    """``value`` and the objects in it."""
    waiting, seen = [(value, 0)], {id(value)}
    while waiting and len(seen) < _OBJECTS:
        one, depth = waiting.pop()
        yield one
        if depth < _DEPTH and not isinstance(one, _KINDS):
            for part in _parts(one):
                if id(part) not in seen:
                    seen.add(id(part))
                    waiting.append((part, depth + 1))


def _parts(value: object) -> list[object]:
    if value is None or isinstance(
        value, (str, bytes, int, float, complex, Tensor, np.ndarray, ModuleType, type)
    ):
        return []
    if isinstance(value, Mapping):
        return [one for one, _ in zip(value.values(), range(_ENTRIES))] if type(value) is dict else []
    if isinstance(value, (list, tuple, set, frozenset)):
        return [one for one, _ in zip(value, range(_ENTRIES))]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, MethodType):
        return [value.__self__]
    if isinstance(value, FunctionType):
        return [cell.cell_contents for cell in value.__closure__ or () if not _is_empty(cell)]
    return list(getattr(value, "__dict__", {}).values())


def _is_empty(cell: Any) -> bool:
    try:
        return cell.cell_contents is cell
    except ValueError:
        return True
