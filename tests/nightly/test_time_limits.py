"""A campaign as a job of a real Slurm that runs into its time limit, and goes on, again and again."""

from __future__ import annotations

import pytest
from slurm import User, missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "-")


@pytest.mark.timeout(240)
def test_a_campaign_of_three_time_limits_finishes_by_itself(user: User) -> None:
    """A minute is Slurm's shortest limit, and the warning comes when Slurm looks, every half minute: so each job has
    up to half a minute, of which its start takes some. Four workers need 50 s."""
    user.write(evaluations=48, steps=80)
    # hpo slurm demands more than the warning's lead.
    user.submit("--time=2", "--hold")
    user.cluster.run("scontrol", "update", f"JobId={user.job}", "TimeLimit=1")
    user.cluster.run("scontrol", "release", user.job)
    user.wait_for_end(220)
    user.all_is_there_once(48)
    launches = user.terminal.records("launched")
    assert len(launches) >= 3, user.output()
    assert [record["exit"] for record in user.terminal.records("ended")] == [75] * (len(launches) - 1) + [0]
    assert user.output().count(f"job {user.job} goes into the queue again") == len(launches) - 1
    assert user.steps_repeated() == 0
    user.nothing_is_left()
