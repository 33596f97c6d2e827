"""Global state and global generators of the process: each evaluation finds them as if it were the first there."""

from __future__ import annotations

import functools
import gc
import random
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType
from typing import Any

from hpo.evaluation.process import python_state, torch_state
from hpo.evaluation.process.when_imported import Execute, execute_with, find_behind, when_imported
from hpo.task.outcome import is_users_file

_KINDS = {**python_state.KINDS, **torch_state.KINDS}
_SEEDED: dict[str, Callable[[Any, int], object]] = {
    "numpy": lambda numpy, seed: numpy.random.seed(seed % 2**32),
    "torch": lambda torch, seed: torch.manual_seed(seed % 2**63),
}
_ENDS_S = 0.1
"""Time for a thread that is about to end."""
_ABSENT = object()


class Seeder:
    """Seeds Python's, NumPy's and torch's global generators.

    A library that a task imports only while it evaluates is seeded right after that: otherwise the first evaluation of
    a process would draw differently from the others.
    """

    def __init__(self) -> None:
        self._seed = 0
        when_imported({name: functools.partial(self._seed_module, name) for name in _SEEDED})

    def seed(self, seed: int) -> None:
        """Begin an evaluation."""
        self._seed = seed
        random.seed(seed)
        for name in _SEEDED.keys() & sys.modules.keys():
            self._seed_module(name, sys.modules[name])

    def _seed_module(self, name: str, module: ModuleType) -> None:
        _SEEDED[name](module, self._seed)


class GlobalState:
    """Restores global state after each evaluation.

    A module that is imported for the first time in an evaluation may set state for good, and begin threads, as it would
    at the top of a script: these changes stay.
    """

    def __init__(self) -> None:
        self._before: dict[str, Any] = {}
        self._known = False
        """Whether the state is as ``_before``: reading it takes a quarter of a millisecond."""
        self._present: set[threading.Thread] = set()
        """Threads that were there at the beginning, or that an import has begun."""
        self._at_work: set[int] = set()
        """Threads that may be in code of the user's."""
        sys.meta_path.insert(0, _ImportWatch(self))

    def begin(self) -> None:
        """Remember the state that the evaluation begins with: where nothing has been changed since ``restore``, the
        state that this has put back."""
        if not self._known:
            self._before = self.read()
        self._known = False
        self._present = {*threading.enumerate()}
        self._at_work = _threads_of_user()

    def changed(self) -> None:
        """Between two evaluations state was changed that is to stay."""
        self._known = False

    def restore(self) -> list[str]:
        """Put back what has changed; return the kinds of state that cannot be put back."""
        now = self.read()
        left = []
        for name, value in self._before.items():
            if _same(value, now.get(name, _ABSENT)):
                continue
            get, put = _KINDS[name]
            try:
                put(value)
                restored = _same(get(), value)
            except Exception:  # a limit that only root may raise; what a task has replaced by something else
                restored = False
            if not restored:
                left.append(name)
        for thread in threading.enumerate():
            if isinstance(thread, threading.Timer) and thread not in self._present:
                thread.cancel()
        if _threads_of_user() - self._at_work:
            gc.collect()  # some end with their objects
            for thread in threading.enumerate():
                if thread.ident in _threads_of_user() - self._at_work:
                    thread.join(_ENDS_S)
            if _threads_of_user() - self._at_work:
                left.append("running threads")
        self._known = not left and now.keys() <= self._before.keys()
        return left

    def read(self) -> dict[str, Any]:
        """All kinds of state that exist, by name."""
        found = {}
        for name, (get, _) in _KINDS.items():
            try:
                found[name] = get()
            except Exception:  # its module is not imported, or this torch does not have it
                continue
        return found

    def execute(self, execute: Execute, module: ModuleType) -> None:
        """Execute a module that is imported, and take what this changes into the state that ``restore`` puts back."""
        before, threads, present = self.read(), _threads(), {*threading.enumerate()}
        try:
            execute(module)
        finally:
            self._keep(before, self.read())
            self._present |= {*threading.enumerate()} - present
            self._at_work |= _threads() - threads

    def _keep(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        for name, value in after.items():
            if name not in before or name not in self._before:
                self._before[name] = value
            elif not _same(before[name], value):
                self._before[name] = _merged(self._before[name], before[name], value)


class _ImportWatch(MetaPathFinder):
    """Keeps what the import of a module changes, with all that it imports itself. It looks at the main thread, where
    evaluations run."""

    def __init__(self, state: GlobalState) -> None:
        self._state = state
        self._busy = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's own specification, from the other finders, with a loader that watches; None inside another
        import."""
        if self._busy or threading.current_thread() is not threading.main_thread():
            return None
        self._busy = True
        try:
            spec = find_behind(self, fullname, path, target)
        finally:
            self._busy = False
        if spec is None or isinstance(spec.loader, type):  # a class: built in, or frozen
            return spec
        return execute_with(spec, self._run)

    def _run(self, execute: Execute, module: ModuleType) -> None:
        self._busy = True
        try:
            self._state.execute(execute, module)
        finally:
            self._busy = False


def _same(value: object, other: object) -> bool:
    try:
        return value is other or bool(value == other)
    except Exception:  # arrays, and what else cannot be compared
        return False


def _merged(kept: Any, before: Any, after: Any) -> Any:
    """``kept``, changed as ``before`` has been changed into ``after``."""
    if isinstance(kept, dict):
        changed = {key: value for key, value in after.items() if not _same(before.get(key, _ABSENT), value)}
        return {key: value for key, value in {**kept, **changed}.items() if key in after or key not in before}
    if isinstance(kept, list):
        new = [item for item in after if item not in before]
        return new + kept if new and after[0] in new else kept + new
    return after


def _threads() -> set[int]:
    return {*sys._current_frames()}


def _threads_of_user() -> set[int]:
    """Threads other than the main one that are in code of the user's now; the idle threads of libraries are not."""
    main = threading.main_thread().ident
    return {number for number, frame in sys._current_frames().items() if number != main and _in_users(frame)}


_is_users = functools.lru_cache(maxsize=1024)(is_users_file)


def _in_users(frame: FrameType | None) -> bool:
    while frame is not None:
        if _is_users(frame.f_code.co_filename):
            return True
        frame = frame.f_back
    return False
