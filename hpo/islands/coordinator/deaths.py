"""What the coordinator does when ranks die: count what their workers finished, and hand on what they knew."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from hpo.config.layout import WorkerPlacement
from hpo.errors import describe_os_error
from hpo.islands.coordinator.grants import Grants
from hpo.islands.coordinator.launch import LaunchLog
from hpo.islands.coordinator.worker_registry import Broken, WorkerRegistry
from hpo.islands.messages import EvaluationEnd, Lost, Migrant, Records, Waiting, encode
from hpo.islands.storage import StorageWait
from hpo.islands.transport import Transport
from hpo.search.population import Member, Population


class RankDeaths:
    """``log``: where the journals of the dead are read; ``count``: called with a dead leader and an end that it had not
    reported; ``forget``: takes from a leader what was granted to it and makes it free again; ``waiting``: called with a
    dead leader whose journal cannot be read for now, and why; ``stopping``: whether the launch ends, and leaves that
    journal to the next one."""

    def __init__(
        self,
        *,
        transport: Transport,
        registry: WorkerRegistry,
        grants: Grants,
        log: LaunchLog,
        count: Callable[[int, EvaluationEnd], None],
        forget: Callable[[int], None],
        waiting: Callable[[int, Waiting], None],
        stopping: Callable[[], bool],
    ) -> None:
        self._transport = transport
        self._registry = registry
        self._grants = grants
        self._log = log
        self._count = count
        self._forget = forget
        self._waiting = waiting
        self._stopping = stopping
        self._wait = StorageWait()
        # Islands without workers, whose populations no other has yet.
        self._deserted: set[int] = set()
        # How many results each leader has reported: those of a dead one after them are in its journal only.
        self._reported: dict[int, int] = dict.fromkeys(grants.leaders, 0)

    def results_arrived(self, leader: int, number: int) -> None:
        self._reported[leader] += number

    def handle(self, dead: frozenset[int], living: Iterable[int]) -> list[WorkerPlacement]:
        """``dead`` ranks have died: the ``living`` learn it, and the workers of the dead end, which are returned."""
        registry = self._registry
        inhabited = {place.island for place in registry.places.values()}
        hit = registry.handle_rank_deaths(dead)
        news = encode(Lost(sorted(dead), [place.leader for place in hit]))
        for rank in living:
            self._transport.send(rank, news)
        self._deserted |= {island for island in inhabited if not registry.leaders(island)}
        self._wait.retry_at = -math.inf
        self.account()
        return hit

    @property
    def next_look(self) -> float:
        """When to call ``account`` again; Unix seconds."""
        return self._wait.retry_at if self._wait.error is not None else math.inf

    def account(self) -> bool:
        """Read the journals of dead leaders that have not been, unless that has just failed; whether it worked. What
        these leaders had stays with them until then."""
        now = self._transport.now()
        if now < self._wait.retry_at:
            return False
        leader = None
        try:
            for broken in self._registry.unaccounted:
                leader = broken.place.leader
                self._read_journal(broken)
            leader = None
            for island in sorted(self._deserted):
                self._evacuate(island)
                self._deserted.discard(island)
        except OSError as error:
            if self._stopping():
                for broken in self._registry.unaccounted:
                    broken.open = False
                    self._forget(broken.place.leader)
                self._deserted.clear()
                self._wait.worked()
                return True
            self._wait.failed(describe_os_error(error, "the journals"), now)
            if leader is not None:
                self._waiting(leader, Waiting(self._wait.error, self._wait.over))
            return False
        self._wait.worked()
        return True

    def _read_journal(self, broken: Broken) -> None:
        """Count what a dead leader finished and had not reported, and hold what it had begun."""
        leader = broken.place.leader
        may_run = self._registry.may_run([leader])
        found = self._log.dead_leader_record(broken.place, may_run=may_run)
        tokens = self._grants.tokens(leader)
        for key, end in found.finished[self._reported[leader] :]:
            if tokens.get(key):
                # The oldest: one that paused may have asked to go on already, under the same key.
                self._grants.take(leader, tokens[key].pop(0))
                self._count(leader, end)
        for assignment in found.begun:
            if tokens.get(assignment.key):
                self._grants.take(leader, tokens[assignment.key].pop())
                broken.held.append(assignment)
        broken.open = False
        self._forget(leader)
        # The dead leader may not have sent to all what it evaluated, and what it sent to other islands. One leader of
        # its island owns the former from now on, so that they can emigrate.
        for island, population in found.populations.items():
            heirs = self._registry.leaders(island)
            if heirs:
                self._hand_over(population, heirs, owned=island == broken.place.island)

    def _evacuate(self, island: int) -> None:
        """No worker is left on ``island``: the next island that has one takes its population over."""
        heirs = self._registry.next_with_leaders(island)
        population = self._log.journal_totals().populations.get(island) if heirs else None
        if population is not None:
            self._hand_over(population, heirs, owned=True)

    def _hand_over(self, population: Population, heirs: list[int], *, owned: bool) -> None:
        news = encode(Records(_worst_first(population), [], []))
        for heir in heirs:
            self._transport.send(heir, news)
        if owned:
            for member in population.best:
                self._transport.send(heirs[0], encode(Migrant(member)))


def hung_remark(ranks: Sequence[int]) -> str:
    """What the user reads when ``ranks`` are given up."""
    several = len(ranks) > 1
    named = ", ".join(map(str, ranks[:8])) + (" …" if len(ranks) > 8 else "")
    return (
        f"rank{'s' * several} {named} hang{'s' * (not several)} (nothing heard for hang_timeout): given up, and what "
        "was evaluated there runs again elsewhere"
    )


def _worst_first(population: Population) -> list[Member]:
    """All members: what comes last counts as most recent."""
    return [*population.failures, *population.pruned, *reversed(list(population))]
