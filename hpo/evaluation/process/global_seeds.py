"""Makes an evaluation's draws depend on its seed alone, and not on what its process did before."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

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
        sys.meta_path.insert(0, self)

    def seed(self, seed: int) -> None:
        """Begin an evaluation."""
        self._seed = seed
        random.seed(seed)
        for name, function in _SEEDED.items():
            if name in sys.modules:
                function(sys.modules[name], seed)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Called by the import system for each module: have these two seeded once they are executed."""
        if name not in _SEEDED:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_seed(module: ModuleType) -> None:
            execute(module)
            _SEEDED[name](module, self._seed)

        spec.loader.exec_module = execute_and_seed  # type: ignore[method-assign]
        return spec
