"""Commands (see ``hpo.journal.commands``) to a running campaign."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpo.config import reader as config
from hpo.errors import HpoError, UsageError
from hpo.individual import ENQUEUED, Configuration, Scalar
from hpo.islands.end_reasons import STOPPED
from hpo.islands.messages import Assignment
from hpo.journal.commands import (
    Drain,
    Enqueue,
    Inbox,
    Pause,
    Request,
    Retry,
    Set,
    Standing,
    Stop,
    Unpause,
    name_of,
    record_of,
)
from hpo.journal.files import JournalWriter
from hpo.spelling import suggestion

if TYPE_CHECKING:
    from hpo.islands.coordinator.coordinator import Coordinator


@dataclass(kw_only=True)
class Commands:
    """Applies commands to the coordinator of a running campaign, each once, and puts them on record."""

    inbox: Inbox
    standing: Standing
    """State that follows from the commands on record."""
    journal: JournalWriter
    """Rank 0's journal."""
    in_file: Mapping[str, int | float | None]
    """Budget and deadline of the campaign file."""
    began: float
    """Unix seconds from which the deadline counts."""
    assigned: Callable[[str, Mapping[str, object]], Assignment]
    """Makes an assignment of a point with this name; HpoError where the task does not take it."""
    failures: Callable[[], list[tuple[str, Assignment]]]
    """Returns the status of each individual that ended in a failure, and how it would be evaluated again."""
    now: Callable[[], float]
    """Unix seconds."""
    _unread: OSError | None = None

    def look(self, target: Coordinator) -> bool:
        """Apply new commands; whether there were any."""
        found, nonsense = self.inbox.look()
        for name, reason in nonsense:
            target.remarks.append(f"commands/{name} is no command ({reason}), so it is left alone")
            self.inbox.set_aside(name)
        any_new, self._unread = False, None
        for identity, request in found:
            if target.end is not None:  # the next launch applies it
                break
            if identity not in self.standing.applied:
                try:
                    self._apply(identity, request, target)
                except OSError as error:
                    # The journals could not be read: that may pass, and the file stays until then.
                    self._unread = error
                    continue
                any_new = True
        if found and self._recorded():
            for identity, request in found:
                if identity in self.standing.applied:
                    self.inbox.finish(identity, request)
        return any_new

    def _recorded(self) -> bool:
        """Whether all records are on disk; until then the files stay. They stay for the next launch where records were
        given up with the journal."""
        try:
            self.journal.commit()
        except OSError:  # rank 0's leader, whose journal it is, tries again
            return False
        return not self.journal.discarded

    @property
    def error(self) -> OSError | None:
        """Why the last look at the inbox found nothing, or why a command waits; None where neither is so."""
        return self.inbox.error or self._unread

    def _apply(self, identity: str, request: Request, target: Coordinator) -> None:
        refused = None
        try:
            said = self._execute(request, target)
        except HpoError as error:
            refused = "; ".join(str(error).splitlines()).rstrip(".")
            said = f"refused: {refused}"
        in_file = {key: self.in_file[key] for key in request.values} if isinstance(request, Set) else None
        # After the effect, of which nothing outlasts this process but records: the next launch applies what is not on
        # record.
        record = record_of(identity, request, time=self.now(), refused=refused, in_file=in_file)
        self.journal.append(record)
        self.standing.add(record)
        target.remarks.append(f"`hpo {name_of(request)}` by {request.by}: {said}")

    def _execute(self, request: Request, target: Coordinator) -> str:
        """A sentence on the effect; HpoError where there is none."""
        if isinstance(request, Stop):
            target.stop(STOPPED)
            return "nothing more is begun, in no launch before a person gives `hpo run`"
        if isinstance(request, Pause):
            target.paused = True
            return "what runs goes on, and nothing new starts until `hpo unpause`"
        if isinstance(request, Unpause):
            target.paused = False
            return "goes on"
        if isinstance(request, Drain):
            leader = target.workers.get(request.worker)
            if leader is None:
                raise UsageError(
                    f"there is no worker {request.worker} at work. {suggestion('', target.workers)}"
                )
            target.drain(leader)
            return f"worker {request.worker} gets nothing more in this launch"
        if isinstance(request, Retry):
            chosen = [(status, one) for status, one in self.failures() if status in request.statuses]
            number = target.retry(chosen, f"hpo retry by {request.by}")
            return f"{number} that ended as {' or '.join(request.statuses)} are evaluated again"
        if isinstance(request, Enqueue):
            numbered = enumerate(request.points, start=1)
            points = [self.assigned(f"point {number}", point) for number, point in numbered]
            fresh = target.enqueue(points)
            known = f"; {len(points) - fresh} more are known already" if fresh < len(points) else ""
            return f"{fresh} evaluated next, as far as the budget goes{known}"
        assert isinstance(request, Set)
        config.check_limits(request.evaluations, request.deadline_s)
        said = []
        if request.evaluations is not None:
            target.resize(request.evaluations)
            said.append(f"evaluations = {request.evaluations}")
        if request.deadline_s is not None:
            target.set_deadline(self.began + request.deadline_s)
            said.append(f"deadline = {request.deadline_s:g} s")
        return ", ".join(said)


def point_assignment(params: dict[str, Scalar], key: Callable[[dict[str, Scalar]], str]) -> Assignment:
    """A configuration that ``hpo enqueue`` gave, to be evaluated."""
    configuration = Configuration(id="", params=params, operator=ENQUEUED)
    return Assignment(configuration=configuration, key=key(params))
