"""Deaths of ranks: the coordinator counts what their workers finished, and passes on what they knew."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from hpo.config.layout import WorkerPlacement
from hpo.errors import describe_os_error
from hpo.islands.coordinator.grants import Grants
from hpo.islands.coordinator.launch import LaunchLog
from hpo.islands.coordinator.worker_registry import Broken, WorkerRegistry
from hpo.islands.messages import EvaluationEnd, Lost, Migrant, Records, Waiting, encode
from hpo.islands.storage import StorageWait
from hpo.islands.transport import Transport
from hpo.search.population import Population


@dataclass(kw_only=True)
class RankDeaths:
    """Accounts for workers whose ranks died."""

    transport: Transport
    registry: WorkerRegistry
    grants: Grants
    log: LaunchLog
    """Reads the journals of dead leaders."""
    count: Callable[[int, EvaluationEnd], None]
    """Counts an end that a dead leader had not reported."""
    forget: Callable[[int], None]
    """Makes the individuals free again that were granted to a leader."""
    waiting: Callable[[int, Waiting], None]
    """Notes that a dead leader's journal cannot be read for now, and why."""
    stopping: Callable[[], bool]
    """Whether the launch ends, and leaves such a journal to the next launch."""
    _wait: StorageWait = field(default_factory=StorageWait)
    _deserted: set[int] = field(default_factory=set)
    """Islands without workers, whose populations no other island has yet."""
    _reported: Counter[int] = field(default_factory=Counter)
    """Number of results that each leader has reported: later results of a dead leader are in its journal alone."""

    def results_arrived(self, leader: int, number: int) -> None:
        self._reported[leader] += number

    def handle(self, dead: frozenset[int], living: Iterable[int]) -> list[WorkerPlacement]:
        """Tell the ``living`` of deaths; the workers that end by them."""
        registry = self.registry
        inhabited = {place.island for place in registry.places.values()}
        hit = registry.handle_rank_deaths(dead)
        news = encode(Lost(sorted(dead), [place.leader for place in hit]))
        for rank in living:
            self.transport.send(rank, news)
        self._deserted |= {island for island in inhabited if not registry.leaders(island)}
        self._wait.retry_at = -math.inf
        self.account()
        return hit

    @property
    def next_look(self) -> float:
        """Time of the next ``account``, in Unix seconds."""
        return self._wait.retry_at if self._wait.error is not None else math.inf

    def account(self) -> bool:
        """Read the journals of dead leaders, unless that has just failed; whether it worked. Until then the individuals
        of these leaders stay with them."""
        now = self.transport.now()
        if now < self._wait.retry_at:
            return False
        leader = None
        try:
            for broken in self.registry.unaccounted:
                leader = broken.place.leader
                self._read_journal(broken)
            leader = None
            for island in sorted(self._deserted):
                self._evacuate(island)
                self._deserted.discard(island)
        except OSError as error:
            if self.stopping():
                for broken in self.registry.unaccounted:
                    broken.open = False
                    self.forget(broken.place.leader)
                self._deserted.clear()
                self._wait.worked()
                return True
            self._wait.failed(describe_os_error(error, "the journals"), now)
            if leader is not None:
                self.waiting(leader, Waiting(self._wait.error, self._wait.over))
            return False
        self._wait.worked()
        return True

    def _read_journal(self, broken: Broken) -> None:
        """Count what a dead leader finished and had not reported, and hold the individuals that it had begun."""
        leader = broken.place.leader
        may_run = self.registry.may_run([leader])
        found = self.log.dead_leader_record(broken.place, may_run=may_run)
        tokens = self.grants.tokens(leader)
        for key, end in found.finished[self._reported[leader] :]:
            if tokens.get(key):
                # The oldest: an individual that paused may have asked to go on already, under the same key.
                self.grants.take(leader, tokens[key].pop(0))
                self.count(leader, end)
        for assignment in found.begun:
            if tokens.get(assignment.key):
                self.grants.take(leader, tokens[assignment.key].pop())
                broken.held.append(assignment)
        broken.open = False
        self.forget(leader)
        # The dead leader may not have sent its results and its migrants to all. A leader of its island owns the former
        # from now on, so that they can emigrate.
        for island, population in found.populations.items():
            heirs = self.registry.leaders(island)
            if heirs:
                self._hand_over(population, heirs, owned=island == broken.place.island)

    def _evacuate(self, island: int) -> None:
        """Give the population of ``island``, which has no workers, to the next island that has workers."""
        heirs = self.registry.next_with_leaders(island)
        population = self.log.journal_totals().populations.get(island) if heirs else None
        if population is not None:
            self._hand_over(population, heirs, owned=True)

    def _hand_over(self, population: Population, heirs: list[int], *, owned: bool) -> None:
        # Receivers take the last member for the most recent.
        worst_first = [*population.failures, *population.pruned, *reversed(list(population))]
        news = encode(Records(worst_first, [], []))
        for heir in heirs:
            self.transport.send(heir, news)
        if owned:
            for member in population.best:
                self.transport.send(heirs[0], encode(Migrant(member)))


def hung_remark(ranks: Sequence[int]) -> str:
    """Sentence for the user on ``ranks`` that are given up."""
    several = len(ranks) > 1
    named = ", ".join(map(str, ranks[:8])) + (" …" if len(ranks) > 8 else "")
    return (
        f"rank{'s' * several} {named} hang{'s' * (not several)} (nothing heard for hang_timeout): given up, and what "
        "was evaluated there runs again elsewhere"
    )
