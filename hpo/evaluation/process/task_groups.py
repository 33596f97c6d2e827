"""torch.distributed's groups as a task meets them in an evaluator that outlives its evaluations.

A script of one's own begins with ``init_process_group`` and ends with ``destroy_process_group``. On several ranks the
worker's group is there already: the first call takes it up and the second puts it aside until the next evaluation. To
form a new group each time would take as long as a short training. On one rank a group is made and destroyed indeed.
Groups that a task makes beside, and leaves, are destroyed when its evaluation is over, but for those that ``trainers``
keeps for its next training.
"""

from __future__ import annotations

import functools
import gc
import inspect
import os
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hpo.evaluation.process.when_imported import when_imported

if TYPE_CHECKING:
    from torch._C._distributed_c10d import ProcessGroup

_MODULE = "torch.distributed.distributed_c10d"
_ALONE = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
"""Variables that scripts read beside their calls. Not set before: libraries take LOCAL_RANK for a launcher's."""
_SPARED = "kept for the next training"
"""The description of groups that ``trainers`` keeps, as NCCL needs seconds to form them: no operation is under way in
them."""
_TIDY_S = 20.0
"""Groups that are not destroyed within it have operations under way whose other ranks never come."""
_SETTLE_S = 0.2
"""Before torch 2.13 a group's end holds the interpreter, which gloo's threads need to let go their last tensors."""


class TaskGroups:
    """Stands between the task and torch.distributed, from before torch is imported, which it does not import itself."""

    def __init__(self) -> None:
        self._ours: tuple[ProcessGroup, ...] = ()
        """Default group and control group of a worker of several ranks."""
        self._timeout = timedelta(0)
        self._store: Any = None
        self._count = 0
        self._taken_up = False
        """Whether the task has called ``init_process_group`` and not ``destroy_process_group`` since."""
        self._kept: list[ProcessGroup] = []
        """Destroyed, but for this reference. If a model were the last to let a group go, it would wait for the group's
        threads, and these for the interpreter, which the model's end holds."""
        self._real: dict[str, Callable[..., Any]] = {}
        self._named: set[str] = set()
        if _MODULE in sys.modules:
            self._stand_in(sys.modules[_MODULE])
        else:
            when_imported({_MODULE: self._stand_in})

    def _stand_in(self, module: ModuleType) -> None:
        for name, method in (
            ("init_process_group", self._initialise),
            ("destroy_process_group", self._destroy),
        ):
            self._real[name] = real = getattr(module, name)
            function = _function(method, real)
            setattr(module, name, function)
            if hasattr(sys.modules["torch.distributed"], name):  # it was imported before this
                setattr(sys.modules["torch.distributed"], name, function)

    def adopt(self, control: ProcessGroup, timeout: timedelta) -> None:
        """The default group, and with it ``control``, are the worker's own: tasks share the default group, and never
        see the other. ``timeout``: of the default group's collectives."""
        world, default = self._world, self._c10d.GroupMember.WORLD
        self._ours, self._timeout = (default, control), timeout
        self._store, self._count = world.pg_map[default], world.group_count

    def leave(self) -> None:
        """Destroy all groups, the worker's own too."""
        self._restore()
        self._ours, self._store = (), None
        if self._c10d.is_initialized():
            self._real["destroy_process_group"]()
        self._kept.clear()

    @property
    def whole(self) -> bool:
        """Whether the worker's groups are still known to torch."""
        return bool(self._ours) and all(group in self._world.pg_map for group in self._ours)

    def begin(self, turn: int) -> None:
        """An evaluation begins; ``turn`` is its number, the same on all ranks."""
        self._restore()
        if self._ours:
            from torch._C._distributed_c10d import PrefixStore

            backend, store = self._store
            # Groups that the task makes are named by how many there are, which may differ between ranks by now, or by
            # their members. Where names come again, the store must not answer with addresses of last time.
            self._world.group_count = self._count
            self._world.pg_map[self._ours[0]] = (backend, PrefixStore(f"evaluation/{turn}", store))

    def tidy(self) -> bool:
        """The evaluation is over: destroy what groups it has left. Whether that was possible."""
        for name in self._named:
            os.environ.pop(name, None)
        self._named.clear()
        if _MODULE not in sys.modules or not (self._kept or self._unwanted()):
            return True
        gc.collect()  # models, before the groups that they use
        thread = threading.Thread(target=self._destroy_left, name="tidy-groups", daemon=True)
        thread.start()
        thread.join(_TIDY_S)
        return not thread.is_alive()

    def _destroy_left(self) -> None:
        for group in reversed(self._unwanted()):
            self._forget(group)
        version = tuple(map(int, sys.modules["torch"].__version__.split(".")[:2]))
        if self._kept and version < (2, 13):
            time.sleep(_SETTLE_S)
        self._kept.clear()

    # --- what tasks call -------------------------------------------------------------------------------------

    def _initialise(self, *arguments: Any, **named: Any) -> None:
        real = self._real["init_process_group"]
        given = inspect.signature(real).bind(*arguments, **named).arguments
        if not self._ours:
            self._initialise_alone(given)
            return
        if self._taken_up:
            real(*arguments, **named)  # which says that it is the second time
        self._refuse_other(given)
        self._restore()
        if given.get("timeout") is not None:
            self._c10d._set_pg_timeout(given["timeout"], self._ours[0])
        self._taken_up = True

    def _initialise_alone(self, given: dict[str, Any]) -> None:
        """A group of this rank alone needs no address, and no variables of a launcher."""
        alone = given.get("rank", -1) in (-1, 0) and given.get("world_size", -1) in (-1, 1)
        if alone and given.get("store") is None and os.environ.get("WORLD_SIZE", "1") == "1":
            from torch._C._distributed_c10d import HashStore

            given = {name: value for name, value in given.items() if name != "init_method"}
            given |= {"store": HashStore(), "rank": 0, "world_size": 1}
        self._real["init_process_group"](**given)
        for name, value in _ALONE.items() if alone else ():
            if name not in os.environ:
                os.environ[name] = value
                self._named.add(name)

    def _refuse_other(self, given: dict[str, Any]) -> None:
        """ValueError where the task asks for another group than the worker's."""
        default = self._ours[0]
        own = {*_backends(self._c10d.get_backend_config(default)), "gloo"}
        places = (("rank", default.rank()), ("world_size", default.size()))
        wrong = [name for name, value in places if given.get(name, -1) not in (-1, value)]
        if not own.issuperset(_backends(str(given.get("backend") or "gloo"))):
            wrong.append("backend")
        for name in wrong:
            raise ValueError(
                f"init_process_group({name}={given[name]!r}): this is rank {default.rank()} of a worker of "
                f"{default.size()} ranks, whose group is there already, with {' and '.join(sorted(own))} (NCCL needs a "
                f"GPU for each rank). Leave {name} out, or make a group beside it by torch.distributed.new_group."
            )

    def _destroy(self, group: ProcessGroup | None = None) -> None:
        default = self._c10d.GroupMember.WORLD
        if group is not None and group is not default:
            if group in self._world.pg_map:
                self._kept.append(group)
            self._real["destroy_process_group"](group)
        elif default is None or not self._ours:  # a group of one rank; or there is none, which torch says
            self._kept += self._left()
            self._real["destroy_process_group"](group)
        else:
            for other in reversed(self._left()):
                self._forget(other)
            self._c10d._update_default_pg(None)
            self._taken_up = False

    # --- torch's own state -----------------------------------------------------------------------------------

    @property
    def _c10d(self) -> Any:
        return sys.modules[_MODULE]

    @property
    def _world(self) -> Any:
        return self._c10d._world

    def _left(self) -> list[ProcessGroup]:
        """The groups that torch has, but for the worker's own."""
        return [group for group in self._world.pg_map if group not in self._ours]

    def _unwanted(self) -> list[ProcessGroup]:
        """Those of them that are not spared for the next evaluation."""
        return [group for group in self._left() if group.group_desc != _SPARED]

    def _forget(self, group: ProcessGroup) -> None:
        if group in self._world.pg_map:  # the default group of one rank takes all with it
            self._kept.append(group)
            self._real["destroy_process_group"](group)

    def _restore(self) -> None:
        """Have torch know the worker's default group again, with its time-out."""
        if self.whole:
            self._c10d._update_default_pg(self._ours[0])
            self._c10d._set_pg_timeout(self._timeout, self._ours[0])
        self._taken_up = False


def _backends(config: str) -> list[str]:
    """The backends named in ``config``: "nccl", "cpu:gloo,cuda:nccl"."""
    return [name.rpartition(":")[2].lower() for name in config.split(",")]


def _function(method: Callable[..., None], real: Callable[..., Any]) -> Callable[..., None]:
    """``method`` as a function, which is pickled by its name."""

    @functools.wraps(real)
    def stand_in(*arguments: Any, **named: Any) -> None:
        method(*arguments, **named)

    return stand_in
