"""Virtual time for whole launches, and what outlives a launch: directories of individuals, hosts, a file server."""

from __future__ import annotations

import heapq
import itertools
import math
import os
import random
from collections.abc import Callable
from pathlib import Path

from hpo.evaluation.directories import EvaluationDirectories
from hpo.journal.machine import Machine
from simulation.evaluators import Directories

EPOCH_S = 1.7e9
_MOST_EVENTS = 60_000


class SimulatedDirectories(EvaluationDirectories):
    """The directories of individuals, by name alone."""

    def __init__(self) -> None:
        super().__init__(Path("simulated"))
        self._number: dict[str, int] = {}

    def path(self, identity: str) -> Path:
        number = self._number.get(identity, 1)
        return self._attempt(identity, number) if number > 1 else self._root / identity

    def copy(self, identity: str) -> tuple[Path, bool]:
        self._number[identity] = self._number.get(identity, 1) + 1
        return self.path(identity), True


class World:
    """Virtual time, and what outlives a launch: the directories of individuals."""

    def __init__(self, seed: object) -> None:
        self.rng = random.Random(f"world/{seed}")
        self.time = 0.0
        self.directories = Directories()
        self.copies = SimulatedDirectories()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Do ``action`` when it is ``when``."""
        self._count += 1
        heapq.heappush(self._events, (when, self._count, action))

    def run(self, done: Callable[[], bool], until: float = math.inf) -> None:
        """Let time pass until ``done``, at most ``until``."""
        for _ in range(_MOST_EVENTS):
            if done():
                return
            if not self._events or self._events[0][0] > until:
                self.time = max(self.time, until)
                if until == math.inf:
                    raise RuntimeError(f"a standstill at {self.time} s")
                return
            self.time, _, action = heapq.heappop(self._events)
            action()
        raise RuntimeError(f"no end in sight at {self.time} s")

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.run(lambda: False, self.time + seconds)


class SimulatedMachine(Machine):
    """A host whose clock is ``skew_s`` ahead, with a directory on a file server whose clock is ``server_skew_s`` ahead.
    ``unreachable``: called before each use of the server's files, which fails where it raises an OSError."""

    numbers = itertools.count(1)
    """Process numbers."""

    def __init__(
        self, world: World, name: str, *, skew_s: float, server_skew_s: float, runs: Callable[[int], bool]
    ) -> None:
        self._world = world
        self._name = name
        self._skew_s = skew_s
        self._server_skew_s = server_skew_s
        self._runs = runs
        self._pid = next(self.numbers)
        self.unreachable: Callable[[], object] = lambda: None

    @property
    def host(self) -> str:
        return self._name

    @property
    def identity(self) -> str:
        return self._name

    @property
    def pid(self) -> int:
        return self._pid

    def process_started(self, pid: int) -> int:
        return pid

    def is_running(self, pid: int, started: int | None) -> bool:
        return self._runs(pid)

    def time(self) -> float:
        return EPOCH_S + self._world.time + self._skew_s

    def monotonic(self) -> float:
        return self._world.time + 7 * self._skew_s

    def sleep(self, seconds: float) -> None:
        self._world.sleep(seconds)

    def write(self, path: Path, data: bytes, *, durable: bool) -> None:
        self.unreachable()
        super().write(path, data, durable=False)
        now = EPOCH_S + self._world.time + self._server_skew_s
        os.utime(path, (now, now))

    def file_time(self, directory: Path) -> float:
        return EPOCH_S + self._world.time + self._server_skew_s
