"""Acts on a module around its import, before the code that imports it goes on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Execute = Callable[[ModuleType], None]


def when_imported(actions: Mapping[str, Callable[[ModuleType], None]]) -> None:
    """From now on call ``actions[name](module)`` after each import of the module of that name."""
    sys.meta_path.insert(0, _Finder(actions))


def execute_with(spec: ModuleSpec, run: Callable[[Execute, ModuleType], None]) -> ModuleSpec:
    """``spec``, by which ``run(execute, module)`` is called where its loader would execute the module."""
    if hasattr(spec.loader, "exec_module"):
        spec.loader = _Loader(spec, run)  # type: ignore[assignment]
    return spec


def find_behind(
    finder: MetaPathFinder, name: str, path: Sequence[str] | None, target: ModuleType | None
) -> ModuleSpec | None:
    """The specification that the finders behind ``finder`` have of a module."""
    for other in sys.meta_path[sys.meta_path.index(finder) + 1 :]:
        # Python passes over old finders, which have find_module alone.
        find: Any = getattr(other, "find_spec", None)
        spec: ModuleSpec | None = None if find is None else find(name, path, target)
        if spec is not None:
            return spec
    return None


class _Loader:
    """A loader in the place of ``spec``'s own until the module is executed. The own loader is not changed: one object
    may load many modules (a zip file's), allow no new attributes, or be pickled with its module's specification."""

    def __init__(self, spec: ModuleSpec, run: Callable[[Execute, ModuleType], None]) -> None:
        self._spec = spec
        self._own: Any = spec.loader
        self._run = run

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copy and pickle ask for these of an object without attributes
            raise AttributeError(name)
        return getattr(self._own, name)

    def exec_module(self, module: ModuleType) -> None:
        self._spec.loader = module.__loader__ = self._own
        self._run(self._own.exec_module, module)


class _Finder(MetaPathFinder):
    def __init__(self, actions: Mapping[str, Callable[[ModuleType], None]]) -> None:
        self._actions = actions

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's own, with a loader that calls the action; None for modules without one."""
        spec = find_behind(self, fullname, path, target) if fullname in self._actions else None

        def run(execute: Execute, module: ModuleType) -> None:
            execute(module)
            self._actions[fullname](module)

        return None if spec is None else execute_with(spec, run)
