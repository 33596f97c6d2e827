"""Applies commands (see ``hpo.journal.commands``) to a running campaign, each once, and puts them on record."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from hpo.config import reader as config
from hpo.errors import HpoError, UsageError
from hpo.individual import ENQUEUED, Configuration, Scalar
from hpo.islands.end_reasons import STOPPED
from hpo.islands.messages import Assignment
from hpo.journal.commands import (
    Drain,
    Enqueue,
    Look,
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
from hpo.journal.records import Record
from hpo.spelling import suggestion


class Inbox(Protocol):
    """Where commands are found (see ``hpo.journal.commands``)."""

    @property
    def error(self) -> OSError | None: ...
    def look(self) -> Look: ...
    def set_aside(self, name: str) -> None: ...
    def finish(self, identity: str, request: Request) -> None: ...


class Journal(Protocol):
    """Where they are put on record: rank 0's journal."""

    @property
    def discarded(self) -> bool: ...
    def append(self, record: Record) -> None: ...
    def commit(self) -> None: ...


class Target(Protocol):
    """What they are applied to: the coordinator."""

    remarks: deque[str]
    paused: bool

    @property
    def end(self) -> object: ...
    @property
    def workers(self) -> Mapping[str, int]: ...
    def stop(self, reason: str) -> None: ...
    def drain(self, leader: int) -> None: ...
    def retry(self, failures: Iterable[tuple[str, Assignment]], reason: str) -> int: ...
    def enqueue(self, assignments: Iterable[Assignment]) -> int: ...
    def resize(self, evaluations: int) -> None: ...
    def set_deadline(self, deadline: float) -> None: ...


class Commands:
    """``standing``: what the commands on record come to, to which it adds; ``in_file``: budget and deadline of the
    campaign file; ``began``: from when the deadline counts; ``assigned``: makes an assignment of a point with this
    name, HpoError where the task does not take it; ``failures``: the status of each individual that ended in a failure,
    and how it would be evaluated again; ``now``: Unix seconds."""

    def __init__(
        self,
        *,
        inbox: Inbox,
        standing: Standing,
        journal: Journal,
        in_file: Mapping[str, int | float | None],
        began: float,
        assigned: Callable[[str, Mapping[str, object]], Assignment],
        failures: Callable[[], list[tuple[str, Assignment]]],
        now: Callable[[], float],
    ) -> None:
        self._inbox = inbox
        self.standing = standing
        self._journal = journal
        self._in_file = in_file
        self._began = began
        self._assigned = assigned
        self._failures = failures
        self._now = now
        self._unread: OSError | None = None
        self._handlers: dict[type[Request], Callable[[Any, Target], str]] = {
            Stop: self._stop,
            Pause: self._pause,
            Unpause: self._unpause,
            Drain: self._drain,
            Retry: self._retry,
            Enqueue: self._enqueue,
            Set: self._set,
        }

    def look(self, target: Target) -> bool:
        """Apply what has come; whether anything was."""
        found, nonsense = self._inbox.look()
        for name, reason in nonsense:
            target.remarks.append(f"commands/{name} is no command ({reason}), so it is left alone")
            self._inbox.set_aside(name)
        any_new, self._unread = False, None
        for identity, request in found:
            if target.end is not None:  # the next launch applies it
                break
            if identity not in self.standing.applied:
                try:
                    self._apply(identity, request, target)
                except OSError as error:
                    # Of journals that it reads: it may pass, and the file stays until then.
                    self._unread = error
                    continue
                any_new = True
        if found and self._recorded():
            for identity, request in found:
                if identity in self.standing.applied:
                    self._inbox.finish(identity, request)
        return any_new

    def _recorded(self) -> bool:
        """Whether all records are on disk; until then the files stay. Those of records that were given up with the
        journal stay for the next launch, which sees what is on record."""
        try:
            self._journal.commit()
        except OSError:  # rank 0's leader, whose journal it is, tries again
            return False
        return not self._journal.discarded

    @property
    def error(self) -> OSError | None:
        """Why the last look at the inbox said nothing, or why a command waits; None where neither is so."""
        return self._inbox.error or self._unread

    def _apply(self, identity: str, request: Request, target: Target) -> None:
        refused = None
        try:
            said = self._handlers[type(request)](request, target)
        except HpoError as error:
            refused = "; ".join(str(error).splitlines()).rstrip(".")
            said = f"refused: {refused}"
        in_file = {key: self._in_file[key] for key in request.values} if isinstance(request, Set) else None
        # After its effect, which is nothing that outlasts this process but for records that say it themselves: what is
        # not on record is applied by the next launch.
        record = record_of(identity, request, time=self._now(), refused=refused, in_file=in_file)
        self._journal.append(record)
        self.standing.add(record)
        target.remarks.append(f"`hpo {name_of(request)}` by {request.by}: {said}")

    # --- what each does: the sentence for the user, or HpoError ---------------------------------------------

    def _stop(self, request: Stop, target: Target) -> str:
        target.stop(STOPPED)
        return "nothing more is begun, in no launch before a person gives `hpo run`"

    def _pause(self, request: Pause, target: Target) -> str:
        target.paused = True
        return "what runs goes on, and nothing new starts until `hpo unpause`"

    def _unpause(self, request: Unpause, target: Target) -> str:
        target.paused = False
        return "goes on"

    def _drain(self, request: Drain, target: Target) -> str:
        leader = target.workers.get(request.worker)
        if leader is None:
            raise UsageError(f"there is no worker {request.worker} at work. {suggestion('', target.workers)}")
        target.drain(leader)
        return f"worker {request.worker} gets nothing more in this launch"

    def _retry(self, request: Retry, target: Target) -> str:
        chosen = [(status, one) for status, one in self._failures() if status in request.statuses]
        number = target.retry(chosen, f"hpo retry by {request.by}")
        return f"{number} that ended as {' or '.join(request.statuses)} are evaluated again"

    def _enqueue(self, request: Enqueue, target: Target) -> str:
        points = [
            self._assigned(f"point {number}", point) for number, point in enumerate(request.points, start=1)
        ]
        fresh = target.enqueue(points)
        known = f"; {len(points) - fresh} more are known already" if fresh < len(points) else ""
        return f"{fresh} evaluated next, as far as the budget goes{known}"

    def _set(self, request: Set, target: Target) -> str:
        config.check_limits(request.evaluations, request.deadline_s)
        said = []
        if request.evaluations is not None:
            target.resize(request.evaluations)
            said.append(f"evaluations = {request.evaluations}")
        if request.deadline_s is not None:
            target.set_deadline(self._began + request.deadline_s)
            said.append(f"deadline = {request.deadline_s:g} s")
        return ", ".join(said)


def point_assignment(params: dict[str, Scalar], key: Callable[[dict[str, Scalar]], str]) -> Assignment:
    """A configuration that ``hpo enqueue`` gave, to be evaluated."""
    configuration = Configuration(id="", params=params, operator=ENQUEUED)
    return Assignment(configuration=configuration, key=key(params))
