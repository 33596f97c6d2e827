"""What a record says of one individual: its configuration, losses and end, and how it is evaluated again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hpo.errors import CampaignError, UsageError
from hpo.individual import COMPLETED, PRUNED, Scalar, known_id
from hpo.islands.assignment import Assignment, anew
from hpo.islands.messages import EvaluationEnd
from hpo.journal.evaluations import CurrentEvaluations, Unfinished
from hpo.journal.files import damaged
from hpo.journal.records import Command, Evaluation, Finished, Header, Known, Record, Reopened, Started
from hpo.search.proposals import key_of
from hpo.search.protocols import Codec
from hpo.task.outcome import summary_line


class InvalidRecord(CampaignError):
    """The record of individual ``identity`` with the parameters ``params`` holds no configuration of the space: it was
    edited, because a campaign goes on in the space that it began in."""

    def __init__(self, identity: str, params: dict[str, Scalar], reason: str) -> None:
        super().__init__(reason)
        self._identity, self._params = identity, params

    def of(self, record: Record) -> bool:
        """Whether this is about ``record``."""
        if isinstance(record, Command):
            return record.id == self._identity
        if isinstance(record, Known):
            return known_id(record.number) == self._identity and record.params == self._params
        return (
            isinstance(record, Evaluation) and record.id == self._identity and record.params == self._params
        )


@contextmanager
def located(directory: Path) -> Iterator[None]:
    """Raise JournalDamaged, with file and line in ``directory``, where what is folded is ``InvalidRecord``."""
    try:
        yield
    except InvalidRecord as error:
        raise damaged(directory, error.of, str(error)) from None


def validated(space: Codec, identity: str, params: dict[str, Scalar]) -> dict[str, Scalar]:
    """``params`` as the space has them; what a journal says reaches neither task nor model unchecked."""
    try:
        return space.validate(params)
    except UsageError as error:
        rules = "; ".join(str(error).splitlines())
        raise InvalidRecord(
            identity, params, f"the parameters of {identity} do not fit the search space ({rules})"
        ) from None


def loss_of(
    record: Finished | Known, losses: Callable[[dict[str, float]], tuple[float, ...]]
) -> tuple[float, ...] | None:
    """What is minimised; None unless it completed."""
    completed = record.status == COMPLETED and record.objectives is not None
    return losses(record.objectives) if completed and record.objectives is not None else None


def end_of(record: Finished, losses: tuple[float, ...] | None) -> EvaluationEnd:
    """What is on record, as its leader reported it to the coordinator."""
    return EvaluationEnd(
        0,
        record.id,
        record.status,
        losses,
        0.0 if record.started is None else record.finished - record.started,
        reported=False,
        fault=None,
        error="" if record.status == COMPLETED else summary_line(record.error or ""),
        started=record.started or 0.0,
        result=None if losses is None else (record.params, record.objectives or {}),
        steps=record.steps,
    )


def progress_of(
    record: Finished, losses: Callable[[dict[str, float]], tuple[float, ...]]
) -> tuple[int, float] | None:
    """Steps and loss of the last report of an individual that was pruned or completed."""
    if record.status not in (PRUNED, COMPLETED):
        return None
    step = record.metrics.get("pruned_step") if record.status == PRUNED else record.steps
    if not isinstance(step, int):
        return None
    return step, losses(record.objectives)[0] if record.objectives else math.inf


def unfinished_assignment(record: Started | Finished, *, space: Codec, deaths: int) -> Assignment:
    """An individual that was begun, to be evaluated again under its id; it may find its own checkpoint."""
    params = validated(space, record.id, record.params)
    return Assignment(
        id=record.id,
        params=params,
        key=key_of(space, params, record.inherits, record.operator, record.id),
        operator=record.operator,
        parents=record.parents,
        retries=record.retries + deaths,
        resumed=True,
        admitted=True,
        resumed_at_step=record.resumed_at_step,
        inherits=record.inherits,
        reopened=record.reopened,
    )


def assignment_of(unfinished: Unfinished, *, space: Codec) -> Assignment:
    _, record, reopened = unfinished
    assignment = unfinished_assignment(record, space=space, deaths=0)
    return assignment if reopened == record.reopened else anew(assignment, reopened)


def failures(records: Iterable[Record], *, space: Codec) -> list[tuple[str, Assignment]]:
    """The status of each individual that ended in a failure, and how it would be evaluated if it was reopened."""
    current = CurrentEvaluations()
    for record in records:
        if isinstance(record, Header):
            current.enter_launch(record)
        elif isinstance(record, Reopened):
            current.reopen(record)
        elif isinstance(record, (Started, Finished)):
            current.add(record)
    return [
        (record.status, anew(unfinished_assignment(record, space=space, deaths=0), record.reopened + 1))
        for record in current.failures
        if isinstance(record, Finished)
    ]
