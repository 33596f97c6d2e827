"""A rank that waits in a call which another rank will not make ends the evaluation, with the call in the error."""

import pytest

from hpo.config.settings import EvaluationSettings
from hpo.evaluation.conversation import EvaluationOver, Waits, pack_answer
from hpo.evaluation.crew import ProcessCrew
from hpo.task.outcome import Outcome
from hpo.task.trial import Job

OVER = EvaluationOver(turn=1, outcome=Outcome(status="completed", objectives={"value": 1.0}))


class Child:
    pid, has_device, label, must_be_polled, ending = 1, False, "rank 0", False, False

    def __getattr__(self, name):
        return lambda *arguments: [] if name in ("filenos", "receive") else None


class Guard:
    watch = close = lambda *arguments: None


@pytest.mark.parametrize(
    ("said", "status"),
    (
        ([(0, Waits(1, "trial.report")), (5, None), (600, None)], None),  # the other rank computes
        ([(1, OVER), (0, Waits(1, "trial.report"))], None),  # the wait may be over already
        ([(1, OVER), (5, None), (0, Waits(1, "trial.report"))], "failed"),
        ([(0, OVER), (5, None), (1, Waits(1, "trial.report"))], "completed"),
        ([(0, Waits(1, "trial.report")), (1, Waits(1, "trial.should_checkpoint"))], "failed"),
        ([(0, Waits(1, "trial.report")), (1, Waits(1, "trial.report"))], None),
        ([(0, Waits(1, "trial.report")), (3600, None)], "timeout"),
    ),
)
def test_where_another_rank_will_not_come_the_evaluation_ends(said, status):
    now = [0.0]
    settings = EvaluationSettings(timeout=700.0)
    crew = ProcessCrew(
        size=2, child_factory=Child, send=lambda rank, content: None, objectives=("value",), settings=settings,
        clock=lambda: now[0], straggler_s=60.0, guard=Guard(),
    )  # fmt: skip
    crew.start(Job(id="0-0-1", params={}, seed=1, directory="/nowhere"))
    crew._phase = "idle"  # as when both are ready
    crew._dispatch()
    for rank, answer in said:
        if answer is None:
            now[0] += rank
            if rank == 3600:
                crew._waits[0] = "trial.report", now[0]
        else:
            crew.receive(pack_answer(1, rank, answer))
    outcomes = crew.poll()
    assert [one.status for one in outcomes] == ([] if status is None else [status])
    assert all("waited in trial.report" in one.error for one in outcomes)
