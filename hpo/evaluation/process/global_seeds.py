"""Makes an evaluation's draws depend on its seed alone, and not on what its process did before."""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from hpo.evaluation.process.when_imported import when_imported

_SEEDED: dict[str, Callable[[Any, int], object]] = {
    "numpy": lambda numpy, seed: numpy.random.seed(seed % 2**32),
    "torch": lambda torch, seed: torch.manual_seed(seed % 2**63),
}


class Seeder:
    """Seeds Python's, NumPy's and torch's global generators.

    A library that a task imports only while it evaluates is seeded right after that: else the first evaluation of
    a process would draw differently from the others.
    """

    def __init__(self) -> None:
        self._seed = 0
        when_imported({name: functools.partial(self._seed_module, name) for name in _SEEDED})

    def seed(self, seed: int) -> None:
        """Begin an evaluation."""
        self._seed = seed
        random.seed(seed)
        for name, function in _SEEDED.items():
            if name in sys.modules:
                function(sys.modules[name], seed)

    def _seed_module(self, name: str, module: ModuleType) -> None:
        _SEEDED[name](module, self._seed)
