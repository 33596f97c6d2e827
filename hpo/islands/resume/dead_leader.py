"""What a leader that died had done, as its journal says."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hpo.islands.coordinator.launch import DeadLeaderRecord
from hpo.islands.resume.fold import fold
from hpo.islands.resume.individuals import end_of, loss_of, unfinished_assignment
from hpo.journal.records import Finished, Record, Started
from hpo.search.proposals import key_of
from hpo.search.protocols import Codec


def dead_leader_record(
    records: Sequence[Record],
    *,
    space: Codec,
    islands: int,
    losses: Callable[[dict[str, float]], tuple[float, ...]],
) -> DeadLeaderRecord:
    """``records``: of one journal, whose writer writes no more."""
    found = DeadLeaderRecord()
    open_: dict[str, Started] = {}
    ended_runs: set[tuple[str, int, int]] = set()
    for record in records:
        if isinstance(record, Started):
            open_[record.id] = record
        elif isinstance(record, Finished):
            open_.pop(record.id, None)
            run = (record.id, record.reopened, record.resumed_at_step)
            if run in ended_runs:
                continue  # written again, after a write that failed
            ended_runs.add(run)
            key = key_of(space, record.params, record.inherits, record.operator, record.id)
            found.finished.append((key, end_of(record, loss_of(record, losses))))
    found.begun = [unfinished_assignment(record, space=space, deaths=1) for record in open_.values()]
    found.populations = fold(records, space=space, islands=islands, losses=losses).populations
    return found
