"""Facts of an individual in a record: configuration, losses and end, and how it is evaluated again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from hpo.errors import CampaignError, UsageError
from hpo.individual import COMPLETED, PRUNED, Attempt, Outcome, Scalar, known_id
from hpo.islands.messages import Assignment, EvaluationEnd
from hpo.journal.evaluations import CurrentEvaluations
from hpo.journal.records import Evaluation, Finished, Known, Record, Started
from hpo.ledger.journals import damaged
from hpo.search.proposals import key_of
from hpo.search.protocols import Codec
from hpo.task.outcome import brief_outcome


class InvalidRecord(CampaignError):
    """The parameters ``params`` of individual ``identity`` do not fit the space: the record was edited, because a
    campaign goes on in the space that it began in."""

    def __init__(self, identity: str, params: dict[str, Scalar], reason: str) -> None:
        super().__init__(reason)
        self._identity, self._params = identity, params

    def of(self, record: Record) -> bool:
        """Whether this error is about ``record``."""
        if isinstance(record, Known):
            return known_id(record.number) == self._identity and record.params == self._params
        return isinstance(record, Evaluation) and (record.id, record.params) == (self._identity, self._params)


@contextmanager
def located(directory: Path) -> Iterator[None]:
    """Context that raises JournalDamaged, with file and line, in the place of InvalidRecord."""
    try:
        yield
    except InvalidRecord as error:
        raise damaged(directory, error.of, str(error)) from None


def validated(space: Codec, identity: str, params: dict[str, Scalar]) -> dict[str, Scalar]:
    """``params`` as the space has them, checked: journals may be edited. Raises InvalidRecord."""
    try:
        return space.validate(params)
    except UsageError as error:
        rules = "; ".join(str(error).splitlines())
        raise InvalidRecord(
            identity, params, f"the parameters of {identity} do not fit the search space ({rules})"
        ) from None


def loss_of(
    outcome: Outcome | Known, losses: Callable[[dict[str, float]], tuple[float, ...]]
) -> tuple[float, ...] | None:
    """Losses of an individual; None unless it completed."""
    if outcome.status != COMPLETED or outcome.objectives is None:
        return None
    return losses(outcome.objectives)


def end_of(record: Finished, losses: tuple[float, ...] | None) -> EvaluationEnd:
    """The end on record as a leader reports it to the coordinator. ``losses``: None unless it completed and kept all
    limits."""
    best = losses is not None
    return EvaluationEnd(
        token=0,
        id=record.id,
        outcome=brief_outcome(record.outcome, objectives=best),
        losses=losses,
        started=record.started or 0.0,
        params=record.params if best else None,
    )


def progress_of(
    outcome: Outcome, losses: Callable[[dict[str, float]], tuple[float, ...]]
) -> tuple[int, float] | None:
    """Steps and loss of the last report of an individual that was pruned or completed."""
    if outcome.status not in (PRUNED, COMPLETED):
        return None
    step = outcome.metrics.get("pruned_step") if outcome.status == PRUNED else outcome.steps
    if not isinstance(step, int):
        return None
    return step, losses(outcome.objectives)[0] if outcome.objectives else math.inf


def assignment_of(record: Started | Finished, attempt: Attempt, *, space: Codec) -> Assignment:
    """The next ``attempt`` at an individual that was begun."""
    configuration = record.configuration
    params = validated(space, record.id, configuration.params)
    configuration = replace(configuration, params=params)
    return Assignment(
        configuration=configuration, attempt=attempt, key=key_of(space, configuration), admitted=True
    )


def failures(records: Iterable[Record], *, space: Codec) -> list[tuple[str, Assignment]]:
    """Status and, if it was reopened, assignment of each individual that ended in a failure."""
    current = CurrentEvaluations()
    for record in records:
        current.take(record)
    return [
        (record.status, assignment_of(record, attempt, space=space))
        for _, record, attempt in current.failures
        if isinstance(record, Finished)
    ]
