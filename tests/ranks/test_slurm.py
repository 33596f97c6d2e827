"""Campaigns as jobs of a real Slurm of two nodes: the warning ahead of a limit, scancel, the loss of a node, several
jobs together."""

from __future__ import annotations

import json
import sys

import pytest
from cases import cases, nightly
from places import JOBS
from slurm import DONE, User, missing
from terminal import variable, wait_until

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "-")


@pytest.mark.timeout(150)
def test_a_job_that_is_warned_of_its_limit_is_queued_again_and_finishes_by_itself(user: User) -> None:
    """The signal is the one that Slurm sends ahead of the limit; nightly/test_time_limits.py waits for Slurm's own."""
    user.write(evaluations=16, steps=20)
    user.submit()
    user.wait_for_work()
    user.cluster.run("scancel", "--batch", "--signal=USR1", user.job)
    user.wait_for_end(90)
    user.all_is_there_once(16)
    assert len(user.terminal.records("launched")) == 2, user.output()
    assert [record["exit"] for record in user.terminal.records("ended")] == [75, 0]
    assert user.output().count(f"job {user.job} goes into the queue again") == 1
    assert user.steps_repeated() == 0
    user.nothing_is_left()


@pytest.mark.timeout(150)
def test_scancel_loses_nothing_and_the_campaign_goes_on_when_submitted_again(user: User) -> None:
    user.write(evaluations=16, steps=20)
    user.submit()
    user.wait_for_work()
    user.cluster.run("scancel", user.job)
    user.wait_for_end(30)
    user.nothing_is_left()
    assert user.terminal.records("ended")[-1]["exit"] == 75, user.output()
    saved = [record for record in user.terminal.records("finished") if record["status"] == "interrupted"]
    assert saved and all(record["error"] is None for record in saved)
    assert "the queue again" not in user.output()
    user.submit()
    user.wait_for_end(90)
    user.all_is_there_once(16)
    assert user.steps_repeated() == 0


@pytest.mark.timeout(150)
@pytest.mark.parametrize("keeps", cases([True], nightly=[False]))
def test_after_the_loss_of_a_node_the_job_goes_on_and_loses_nothing(user: User, keeps: bool) -> None:
    """With --no-kill Slurm leaves the job the nodes that live, and hpo run starts again on these; else it queues the
    job again."""
    user.write(evaluations=16, steps=20)
    user.submit(*(["--no-kill"] if keeps else []))
    user.wait_for_work()
    try:
        user.cluster.lose("n1")
        if not keeps:
            wait_until(lambda: user.state() == "PENDING", "a job that waits", seconds=30, pause_s=0.1)
            user.nothing_is_left()
            user.cluster.regain("n1")
        user.wait_for_end(100)
    finally:
        if keeps:
            user.cluster.regain("n1")
    user.all_is_there_once(16)
    assert [record["workers"] for record in user.terminal.records("launched")] == [4, 2 if keeps else 4]
    assert ("with 2 ranks on the hosts that are left" in user.output()) is keeps


@pytest.mark.timeout(150)
def test_a_rank_of_srun_that_was_killed_is_queued_again(user: User) -> None:
    """srun returns 137 of it, which says nothing of the campaign."""
    user.write(evaluations=8, steps=5, islands=1)
    user.submit("--start=srun", "--mpi=none", nodes=1, ranks=1)
    wait_until(lambda: user.terminal.side("ended"), "an evaluation that ends", seconds=60, pause_s=0.02)
    for process in user.terminal.processes():
        if variable(process, "SLURM_STEP_ID") == "0" and process.cmdline()[-2:] == ["run", "c.toml"]:
            process.kill()
    user.wait_for_end(90)
    finished = user.terminal.records("finished")
    assert len({record["id"] for record in finished if record["status"] == "completed"}) == 8, user.output()
    headers = user.terminal.records("header")
    assert [header["job"] for header in headers] == [f"{user.job}.0", f"{user.job}.1"], user.output()
    assert [record["exit"] for record in user.terminal.records("ended")] == [0]
    user.nothing_is_left()


ARRAY, SEVERAL = ["--array=0-3%2"], ["--jobs=4", "--exclusive"]
KILL = ["--full", "--signal=KILL"]


@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    ("options", "signal"),
    cases(
        [(ARRAY, KILL)],
        nightly=[(ARRAY, []), (SEVERAL, KILL), (SEVERAL, []), ([*ARRAY, "--start=srun", "--mpi=none"], KILL)],
    ),
)
def test_jobs_share_a_budget_and_the_end_of_one_costs_nothing(
    user: User, options: list[str], signal: list[str]
) -> None:
    """Two at a time: the third takes the place of the one that is cancelled, the last finds nothing to do."""
    user.write(evaluations=16, steps=20)
    jobs = user.submit_several(*options, number=4)
    user.wait_for_launches(2)
    user.cluster.run("scancel", *signal, jobs[0])
    user.wait_for_all()
    user.budget_is_met(16, killed=len(signal) // 2)
    assert user.exits(jobs)[1:] == [DONE] * 3, user.outputs()
    assert user.exits(jobs)[0][2] == "0"
    assert len(user.terminal.records("launched")) == 3


GPUS = """
import os
import hpo
from task import note


def evaluate(trial):
    note(trial.id, "ended", os.environ["CUDA_VISIBLE_DEVICES"])
    return 0.0


task = hpo.Task(hpo.SearchSpace(x=hpo.Float(0.0, 1.0)), evaluate)
"""


@nightly
@pytest.mark.timeout(150)
def test_a_job_gets_the_gpus_that_it_asks_for_and_each_worker_one(user: User) -> None:
    """Two of a node's four, by number; without ``--ntasks-per-node`` there is a rank for each."""
    user.write(evaluations=12, steps=1)
    user.terminal.write("saving.py", GPUS)
    user.submit("--gpus-per-node=2", nodes=1, ranks=None)
    assert user.cluster.job(user.job)["TresPerNode"].endswith("gpu:2")
    user.wait_for_end(90)
    assert user.terminal.side(), user.output()
    lines = (user.terminal.directory / "side.txt").read_text().splitlines()
    assert {line.split()[2] for line in lines} == {"0", "1"}, user.output()
    user.all_is_there_once(12)


@nightly
@pytest.mark.timeout(150)
def test_compare_trains_on_the_nodes_of_its_job_with_all_of_their_cores(user: User) -> None:
    folder = user.terminal.directory
    (folder / "placed.py").write_text(
        "import json, os\n"
        "import torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "mine = {name: os.environ[name] for name in ('SLURMD_NODENAME', 'SLURM_CPUS_PER_TASK', 'LOCAL_WORLD_SIZE')}\n"
        "all_of_them = [None] * dist.get_world_size()\n"
        "dist.all_gather_object(all_of_them, mine)\n"
        "if dist.get_rank() == 0:\n"
        "    print(json.dumps(all_of_them))\n"
        "dist.destroy_process_group()\n"
    )
    # Both nodes are this machine, whose name is another than theirs.
    (folder / "started.py").write_text(
        "import subprocess, sys\n"
        f"sys.path.insert(0, {str(JOBS)!r})\n"
        "import compare\n"
        "command = compare.Place(ranks=4, nodes=2).command('placed', compare._free_port())\n"
        "command = [word.replace('endpoint=n0:', 'endpoint=127.0.0.1:') for word in command]\n"
        "sys.exit(subprocess.run(command, timeout=50).returncode)\n"
    )
    printed = user.cluster.run(
        "salloc", "--quiet", "--nodes=2", "--ntasks-per-node=2", "--cpus-per-task=2", sys.executable, "started.py",
        cwd=folder,
    )  # fmt: skip
    found = json.loads(printed)
    assert sorted(one["SLURMD_NODENAME"] for one in found) == ["n0", "n0", "n1", "n1"]
    assert {(one["SLURM_CPUS_PER_TASK"], one["LOCAL_WORLD_SIZE"]) for one in found} == {("4", "2")}
