"""Tasks of a Slurm array, and several jobs, that are warned, cancelled and stopped while they work on one campaign."""

from __future__ import annotations

import pytest
from slurm import DONE, User, missing

pytestmark = [
    pytest.mark.skipif(bool(missing()), reason=missing() or "-"),
    pytest.mark.timeout(200),
]


@pytest.mark.parametrize("task", [0, 1])
def test_a_task_that_is_warned_goes_into_the_queue_again_alone(user: User, task: int) -> None:
    """The last task of an array has the array's number, which names all tasks where Slurm is asked."""
    user.write(evaluations=16, steps=20)
    jobs = user.submit_several("--array=0-1", number=2)
    user.wait_for_launches(2)
    assert user.cluster.job(jobs[1])["JobId"] == jobs[1].split("_")[0]
    user.cluster.run("scancel", "--batch", "--signal=USR1", jobs[task])
    user.wait_for_all()
    user.budget_is_met(16)
    again = [("COMPLETED", "0:0", str(int(one == task))) for one in range(2)]
    assert user.exits(jobs) == again, user.outputs()


def test_the_last_task_has_its_own_end_and_not_that_of_a_task_before_it(user: User) -> None:
    user.write(evaluations=8, steps=20)
    jobs = user.submit_several("--array=0-1%1", number=2)
    user.wait_for_launches(1)
    user.cluster.run("scancel", jobs[0])
    user.wait_for_all()
    user.budget_is_met(8)
    assert user.exits(jobs)[1] == DONE, user.outputs()


@pytest.mark.parametrize("options", [["--array=0-3%2"], ["--jobs=4", "--exclusive"]])
def test_a_stop_ends_all_jobs_and_those_that_wait_begin_nothing(user: User, options: list[str]) -> None:
    user.write(evaluations=32, steps=20)
    jobs = user.submit_several(*options, number=4)
    user.wait_for_launches(2)
    user.terminal.hpo("stop", "run", returns=0)
    user.wait_for_all(40)
    assert user.exits(jobs) == [("FAILED", "75:0", "0")] * 2 + [DONE] * 2, user.outputs()
    assert len(user.terminal.records("launched")) == 2
    jobs = user.submit_several("--jobs=2", number=2)
    user.wait_for_all()
    user.budget_is_met(32)
    assert user.exits(jobs) == [DONE] * 2
