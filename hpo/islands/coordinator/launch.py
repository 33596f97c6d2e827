"""Rules, backlog and log of a launch, as the coordinator gets them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hpo.config.layout import WorkerPlacement
from hpo.islands.coordinator.budget import Reserving, Suits
from hpo.islands.coordinator.tally import Tally
from hpo.islands.coordinator.unseen import UnseenConfigurations
from hpo.islands.messages import Assignment, End, EvaluationEnd
from hpo.search.phases import Phases
from hpo.search.population import Population


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
