"""A rank that waits in a call which another rank will not make ends the evaluation, with the call in the error."""

import pytest
from individuals import make_job

from hpo.config.settings import EvaluationSettings
from hpo.evaluation.conversation import EvaluationOver, Waits, pack
from hpo.evaluation.crew import ProcessCrew
from hpo.task.outcome import TaskOutcome

OVER = EvaluationOver(turn=1, outcome=TaskOutcome(status="completed", objectives={"value": 1.0}))


class Child:
    pid, has_device, label, must_be_polled, ending = 1, False, "rank 0", False, False

    def __getattr__(self, name):
        return lambda *arguments: [] if name in ("filenos", "receive") else None


class Guard:
    watch = close = lambda *arguments: None


REPORT, ASK = (Waits(turn=1, call=f"trial.{name}", of_all=True) for name in ("report", "should_checkpoint"))
REDUCE, TRAIN = (
    Waits(turn=1, call=name, of_all=False) for name in ("torch.distributed.all_reduce", "trainers.train")
)
LARGE = Waits(turn=1, call="torch.distributed.broadcast", of_all=False, large=True)


@pytest.mark.parametrize(
    ("size", "said", "status"),
    (
        (2, [(0, REPORT), (5, None), (600, None)], None),  # the other rank computes
        (2, [(1, OVER), (0, REPORT)], None),  # the wait may be over already
        (2, [(1, OVER), (5, None), (0, REPORT)], "failed"),
        (3, [(1, OVER), (5, None), (0, REPORT)], "failed"),
        (2, [(0, OVER), (5, None), (1, REPORT)], "completed"),
        (2, [(0, REPORT), (1, ASK)], "failed"),
        (3, [(0, REPORT), (1, ASK)], "failed"),
        (2, [(0, REPORT), (1, REPORT)], None),
        (2, [(0, REPORT), (699, None), (0, REPORT), (1, None)], "timeout"),
        (2, [(0, TRAIN), (699, None), (0, TRAIN), (1, None)], "timeout"),
        (2, [(1, OVER), (5, None), (0, TRAIN)], "failed"),
        (2, [(0, TRAIN), (1, REDUCE)], "failed"),
        (2, [(0, REPORT), (1, REDUCE)], "failed"),
        (2, [(0, REDUCE), (1, REDUCE)], None),  # the network may have stopped
        (2, [(1, OVER), (5, None), (0, LARGE)], None),  # or be slow
        (2, [(0, REDUCE), (11, None), (1, TRAIN)], None),  # rank 0 has gone on
        (3, [(1, OVER), (5, None), (0, REDUCE)], None),  # rank 2 may be in the same group, and computes
        (3, [(0, REPORT), (1, REDUCE)], None),
        (3, [(1, OVER), (5, None), (0, REDUCE), (2, REDUCE)], "failed"),
    ),
)
def test_where_another_rank_will_not_come_the_evaluation_ends(size, said, status):
    now = [0.0]
    settings = EvaluationSettings(timeout=700.0)
    crew = ProcessCrew(
        size=size, child_factory=Child, send=lambda rank, content: None, settings=settings,
        clock=lambda: now[0], guard=Guard(),
    )  # fmt: skip
    crew.start(make_job(id="0-0-1", params={}, seed=1, directory="/nowhere"))
    crew._phase = "idle"  # as when all are ready
    crew._dispatch()
    calls = set()
    for rank, answer in said:
        if answer is None:
            now[0] += rank
        else:
            calls |= {getattr(answer, "call", "")}
            crew.receive(pack(1, rank, answer))
    outcomes = crew.poll()
    assert [one.status for one in outcomes] == ([] if status is None else [status])
    assert all(call in one.error for one in outcomes for call in calls)
