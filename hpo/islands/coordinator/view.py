"""State of a running launch, for what is shown."""

from __future__ import annotations

from hpo.errors import describe_os_error
from hpo.individual import birthplace
from hpo.islands.coordinator.commands import Commands
from hpo.islands.coordinator.deaths import RankDeaths
from hpo.islands.coordinator.ending import Ending
from hpo.islands.coordinator.granting import Granting
from hpo.islands.coordinator.tally import Tally
from hpo.islands.coordinator.worker_registry import WorkerRegistry
from hpo.islands.messages import Assignment, End
from hpo.ledger.entries import Completed


class CoordinatorView:
    """Read-only properties of the coordinator, which has these parts."""

    _ending: Ending
    _granting: Granting
    _deaths: RankDeaths
    _registry: WorkerRegistry
    _commands: Commands | None
    _waiting: dict[int, tuple[float, str]]
    """Begin of a leader's wait for its storage, and path and reason, by leader."""
    evaluations: int | None
    """The budget; None where only a deadline ends the campaign."""
    tally: Tally
    rank_s: float
    """Seconds of the launch's evaluations that have ended, each times the ranks of its worker."""
    end: End | None

    @property
    def stopping(self) -> str | None:
        """Why nothing more is admitted; None until then."""
        return self._ending.stopping

    @property
    def deadline(self) -> float | None:
        """Latest end of the campaign, in Unix seconds."""
        return self._ending.deadline

    def grace_left(self, now: float) -> float:
        """Seconds in which running evaluations may still save themselves, once the launch is stopping."""
        return self._ending.grace_left(now)

    @property
    def grace_until(self) -> float | None:
        """Until when running evaluations may save themselves, in Unix seconds; None where they may not."""
        return self._ending.grace_until

    def next_wake(self) -> float:
        """Latest time of the next ``step``."""
        return min(self._ending.next_look, self._deaths.next_look)

    @property
    def storage_error(self) -> str | None:
        """Path and reason for which a worker waits for its storage; None where none waits."""
        return min(self._waiting.values(), default=(0.0, None))[1]

    @property
    def waiting(self) -> int:
        """Number of workers that wait for their storage."""
        return len(self._waiting)

    def waited_for_storage(self, now: float) -> tuple[str, float] | None:
        """Path and reason of storage that fails, and for how many seconds; None where none does."""
        if self._waiting:
            since, error = min(self._waiting.values())
            return error, now - since
        error_ = None if self._commands is None else self._commands.error
        return None if error_ is None else (describe_os_error(error_, "the ledger"), 0.0)

    @property
    def running(self) -> int:
        """Individuals that are granted and have not ended."""
        return self._granting.grants.running

    @property
    def busy(self) -> int:
        """Number of leaders that have something to evaluate."""
        return len(self._granting.grants.busy_leaders)

    @property
    def unbegun(self) -> int:
        """Number of units of the budget for which nothing is granted."""
        return self._granting.budget.remaining + len(self._granting.budget.assignments)

    @property
    def unended(self) -> int:
        """Number of units of the budget whose individuals have not ended."""
        return self.unbegun + self.running + self._registry.number_held

    def may_evaluate(self, assignment: Assignment) -> bool:
        """Whether a worker of this launch may evaluate ``assignment``."""
        return self._granting.may_evaluate(assignment)

    def has_island(self, identity: str) -> bool:
        """Whether workers of this launch serve the island on which an individual was bred."""
        return birthplace(identity)[0] in {place.island for place in self._registry.places.values()}

    @property
    def used_up(self) -> bool:
        """Whether all configurations are taken, so that nothing is begun for the units that are left."""
        return self._granting.budget.exhausted

    @property
    def given_up(self) -> set[str]:
        """Individuals that began and did not end, and that nobody here will evaluate."""
        again = (one.id for one in self._granting.budget.assignments)
        return {*self.tally.unfinished}.difference(again, self._granting.grants.assigned)

    @property
    def alone(self) -> bool:
        """Whether no other launch is or was at work beside this launch."""
        return self._commands is None or self._commands.sharing.alone

    @property
    def ended_early(self) -> Completed | None:
        """Entry of the ledger by which the whole campaign has ended before its budget was used up."""
        return None if self._commands is None else self._commands.participation.state.ended_early

    @property
    def rank_hours(self) -> float:
        """Hours of all evaluations of the campaign, each times the ranks of its worker, as far as is known."""
        used_s = self.rank_s if self._commands is None else self._commands.sharing.rank_s(self)
        return used_s / 3600

    @property
    def final(self) -> int:
        """Number of individuals of the campaign that have ended, as far as is known."""
        return (
            self.tally.final if self._commands is None or self.alone else self._commands.sharing.final(self)
        )

    @property
    def idle_workers(self) -> int:
        """Number of workers at work that have nothing to evaluate."""
        busy = self._granting.grants.busy_leaders
        return 0 if self.stopping is not None else len(set(self._registry.at_work).difference(busy))

    @property
    def is_complete(self) -> bool:
        """Whether the campaign's budget is used up."""
        if self._commands is not None:
            return self._commands.sharing.completes(self)
        return self.evaluations is not None and self.tally.final >= self.evaluations

    @property
    def workers(self) -> dict[str, int]:
        """Leaders of the workers at work, by island and number of the worker."""
        places = self._registry.places.items()
        return {f"{place.island}-{place.worker}": leader for leader, place in places}

    @property
    def dead(self) -> frozenset[int]:
        """Ranks whose deaths were handled."""
        return self._registry.dead

    @property
    def all_ended(self) -> bool:
        """Whether the launch is over, and all that was evaluated has ended, unless its worker was given up."""
        return self.end is not None and not self.running

    @property
    def standing(self) -> dict[str, int]:
        """Numbers of individuals by status, without those that run."""
        return self.tally.standing(self._granting.grants.assigned)

    @property
    def exact(self) -> bool:
        """Whether ``standing`` equals the journals once the launch has ended."""
        return self.tally.exact and not self._granting.grants.running
