"""Rules, backlog and log of a launch, as the coordinator gets them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hpo.config.layout import WorkerPlacement
from hpo.islands.coordinator.budget import Reserving, Suits
from hpo.islands.coordinator.tally import Tally
from hpo.islands.coordinator.unseen import UnseenConfigurations
from hpo.islands.end_reasons import HOURS, NO_GAIN, REACHED
from hpo.islands.messages import Assignment, End, EvaluationEnd
from hpo.ledger.entries import Limits
from hpo.search.campaign_end import BestOverTime, losses_to_reach, noise_of
from hpo.search.phases import Phases
from hpo.search.population import Population
from hpo.terminal import one_line

_SHARE = 0.02
"""Most of the time of rank 0 for reading the journals."""
_LEAST_PAUSE_S = 1.0
"""Least time between two readings."""


@dataclass(frozen=True, kw_only=True)
class LaunchRules:
    """Limits of a launch."""

    ranks: int
    evaluations: int | None
    """Budget over all launches; None where only a deadline ends the campaign."""
    duplicates: bool
    """Whether a configuration may be evaluated more than once."""
    checkpoints: bool
    """Whether the task saves when it is asked to."""
    grace_s: float
    """Seconds in which running evaluations may save when the launch stops."""
    timed: bool = False
    """Whether evaluations have a time-out."""
    deadline: float | None = None
    """End of the campaign, in Unix seconds."""
    must_end: Callable[[], float] | None = None
    """Unix seconds at which all must be on disk; asked again and again, as a signal may change it."""
    phases: Phases = field(default_factory=Phases)
    """Open parts of the space, in turn."""
    unseen: Sequence[UnseenConfigurations] = ()
    """Configurations by island (see ``Budget``); empty: all islands search a space that cannot be listed."""
    reservations: Reserving | None = None
    """See ``Budget``."""
    suits: Suits = lambda island, assignment: True
    """See ``Budget``."""
    restarts: bool = False
    """Whether another launch is started where this launch ends because ranks died."""


@dataclass(kw_only=True)
class EndRules:
    """Rules by which the whole campaign ends before its evaluations are used up: ``[stop]`` and ``rank_hours``."""

    objectives: Mapping[str, str] = field(default_factory=dict)
    """Direction by name."""
    noisy: bool = False
    """Whether configurations are evaluated again on purpose, so that the noise is known."""
    on_record: Callable[[], tuple[BestOverTime, Iterable[Population]]] | None = None
    """Reads the evaluations of all launches from the journals."""
    _next_reading: float = 0.0

    def reached(self, tally: Tally, limits: Limits, rank_hours: float) -> str:
        """Reason why the campaign ends by its value or its hours; "" while it goes on. ``rank_hours``: used so far."""
        if limits.rank_hours is not None and rank_hours >= limits.rank_hours:
            return (
                f"{HOURS}: {rank_hours:.4g} hours of ranks are used, and rank_hours = {limits.rank_hours:g}"
            )
        goal = losses_to_reach(limits.stop_value, self.objectives)
        identity = None if goal is None else tally.reaching(goal)
        if identity is None:
            return ""
        return f"{REACHED}: {identity} is as good as [stop] value = {_written(limits.stop_value)}"

    def no_gain(self, tally: Tally, limits: Limits, *, alone: bool, now: float) -> str:
        """Reason why the campaign ends as too little gain is expected; "" while it goes on. OSError where the journals
        cannot be read for now.

        Args:
            alone: no other launch is or was at work beside this launch, so that ``tally`` has all evaluations.
            now: Unix seconds.
        """
        history, noise, least = tally.history, 0.0, limits.stop_gain
        if least is None:
            return ""
        if not alone or self.noisy:
            if now < self._next_reading or self.on_record is None:
                return ""
            # Results of others, and of repeated evaluations, are there alone.
            begun = time.perf_counter()
            history, populations = self.on_record()
            noise = noise_of(populations) if self.noisy else 0.0
            self._next_reading = now + max(_LEAST_PAUSE_S, (time.perf_counter() - begun) / _SHARE)
        gain = history.expected_gain(limits.stop_over)
        if gain is None or gain >= max(least, noise):
            return ""
        more = f"{NO_GAIN}: {limits.stop_over} more evaluations are expected to gain at most {gain:.2g}"
        if noise > least:  # Makarova et al. 2022 (arXiv:2104.08166): a smaller gain could not be seen
            return f"{more}, and evaluations of a configuration differ by {noise:.2g}"
        return f"{more}, and [stop] gain = {least:g}"


def _written(value: float | dict[str, float] | None) -> str:
    """``value`` of ``[stop]`` as in a campaign file."""
    if not isinstance(value, dict):
        return f"{value:g}"
    return f"{{ {', '.join(f'{one_line(name)} = {number:g}' for name, number in value.items())} }}"


@dataclass(frozen=True, kw_only=True)
class Backlog:
    """Work and counts from earlier launches. ``units``: number of individuals that may be admitted at once."""

    units: int = 0

    known: set[str] = field(default_factory=set)
    """Keys of all admitted configurations."""
    tally: Tally = field(default_factory=Tally)
    """Counts of what has ended."""


@dataclass
class DeadLeaderRecord:
    """Last launch of a dead leader, as its journal has it."""

    finished: list[tuple[str, EvaluationEnd]] = field(default_factory=list)
    """Key and end of each evaluation, in the order in which the leader reported them."""
    begun: list[Assignment] = field(default_factory=list)
    """Individuals that it was evaluating."""
    populations: dict[int, Population] = field(default_factory=dict)
    """Individuals that it has put on each island, by island."""


class JournalTotals(Protocol):
    """Content of all journals together (see ``hpo.islands.resume``)."""

    populations: dict[int, Population]


class LaunchLog:
    """Records that the coordinator writes, and reads of ranks that died. This class keeps nothing; a subclass writes
    journals."""

    def stop_begun(self, reason: str) -> None:
        """Record, once, that nothing more is admitted."""

    def storage_changed(self, error: str | None) -> None:
        """Record that workers wait for storage because of ``error``, path and reason; None: none waits any more."""

    def launch_ended(self, end: End) -> None:
        """Record the end, once, before the other ranks learn of it."""

    def reopened(self, again: Sequence[Assignment], reason: str, entry: int = 0) -> None:
        """Record that failures do not count, and their individuals are evaluated ``again``. ``entry``: number of the
        ledger's entry that asks for it, if one does."""

    def worker_left(self, place: WorkerPlacement, reason: str, *, may_run: bool) -> None:
        """Record that a worker takes no more part. ``may_run``: some of its ranks may still be at work."""

    def dead_leader_record(self, place: WorkerPlacement, *, may_run: bool) -> DeadLeaderRecord:
        """Journal of a worker's dead leader, which still runs if ``may_run``; OSError where it cannot be read for
        now."""
        return DeadLeaderRecord()

    def journal_totals(self) -> JournalTotals:
        """Content of all journals; OSError where they cannot be read for now."""
        raise NotImplementedError("there are no journals")
