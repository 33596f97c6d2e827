"""Acts on a module right after it was imported, before the code that imports it goes on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


def when_imported(actions: Mapping[str, Callable[[ModuleType], None]]) -> None:
    """From now on call ``actions[name](module)`` after each import of the module of that name."""
    sys.meta_path.insert(0, _Finder(actions))


class _Finder(MetaPathFinder):
    def __init__(self, actions: Mapping[str, Callable[[ModuleType], None]]) -> None:
        self._actions = actions

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's own, with a loader that calls the action; None for modules without one."""
        if fullname not in self._actions:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        execute, act = spec.loader.exec_module, self._actions[fullname]

        def executed(module: ModuleType) -> None:
            execute(module)
            act(module)

        spec.loader.exec_module = executed  # type: ignore[method-assign]
        return spec
