"""Results of a dead leader in its journal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from hpo.islands.coordinator.launch import DeadLeaderRecord
from hpo.islands.resume.fold import fold
from hpo.islands.resume.individuals import assignment_of, end_of, loss_of
from hpo.journal.evaluations import CurrentEvaluations
from hpo.journal.records import Finished, Record, Started
from hpo.search.proposals import key_of
from hpo.search.protocols import Codec
from hpo.task.limits import UNLIMITED, OutcomeLimits


def dead_leader_record(
    records: Sequence[Record],
    *,
    space: Codec,
    islands: int,
    losses: Callable[[dict[str, float]], tuple[float, ...]],
    limits: OutcomeLimits = UNLIMITED,
) -> DeadLeaderRecord:
    """``records``: the leader's journal, to which nothing is written any more."""
    found = DeadLeaderRecord()
    current = CurrentEvaluations()
    ended_runs: set[tuple[str, tuple[int, int]]] = set()
    for record in records:
        current.take(record)
        if isinstance(record, Finished):
            run = record.id, record.run
            if run in ended_runs:
                continue  # written twice, after a write that failed
            ended_runs.add(run)
            loss = loss_of(record.outcome, losses)
            kept = loss is not None and limits.keeps(record.objectives, record.metrics)
            end = end_of(record, loss if kept else None)
            found.finished.append((key_of(space, record.configuration), end))
    found.begun = [
        assignment_of(record, replace(attempt, retries=attempt.retries + 1), space=space)
        for _, record, attempt in current.open
        if isinstance(record, Started)
    ]
    state = fold(records, space=space, islands=islands, losses=losses, limits=limits)
    found.populations = state.populations
    return found
