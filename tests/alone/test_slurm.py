"""Campaigns as jobs of a real Slurm of two nodes: job after job until all is done, scancel, the loss of a node."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import pytest
from slurm import Slurm, missing
from terminal import Terminal, variable, wait_until

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "-")

SAVING = """
import time
import hpo
from task import note


def evaluate(trial):
    state = trial.directory / "state"
    step = int(state.read_text()) if state.exists() else 0
    note(trial.id, "began", step)
    while step < STEPS:
        step += 1
        time.sleep(0.05)
        note(trial.id, "did", step)
        if trial.should_checkpoint():
            state.write_text(str(step))
            raise hpo.Interrupted
    note(trial.id, "ended", step)
    return 0.0


task = hpo.Task(hpo.SearchSpace(x=hpo.Float(0.0, 1.0)), evaluate)
"""
"""Evaluations of STEPS steps of 50 ms that save what they have reached."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    slurm = Slurm(tmp_path_factory.mktemp("slurm"))
    try:
        slurm.start()
        yield slurm
    finally:
        slurm.stop()


class User:
    """Submits a campaign of c.toml from a terminal's directory, and looks at what becomes of it."""

    def __init__(self, cluster: Slurm, terminal: Terminal) -> None:
        self.cluster = cluster
        self.terminal = terminal
        terminal.environment |= cluster.environment
        self.job = ""

    def write(self, *, evaluations: int, steps: int, grace_s: float = 5.0, islands: int = 2) -> None:
        self.terminal.task()
        self.terminal.write("saving.py", SAVING.replace("STEPS", str(steps)))
        self.terminal.campaign(
            f"[layout]\nislands = {islands}\n[evaluation]\ngrace = {grace_s}\n",
            evaluations=evaluations,
            task="saving.py:task",
        )

    def submit(self, *options: str, nodes: int = 2, ranks: int = 2) -> None:
        size = (f"--nodes={nodes}", f"--ntasks-per-node={ranks}")
        done = self.terminal.hpo("slurm", "c.toml", *size, *options)
        assert done.returncode == 0, done.stderr
        found = re.match(r"job (\d+) is in the queue", done.stdout)
        assert found and f"tail -F slurm-{found[1]}.out" in done.stdout, done.stdout
        self.job = found[1]

    def state(self) -> str:
        return self.cluster.jobs().get(self.job, "over")

    def output(self) -> str:
        path = self.terminal.directory / f"slurm-{self.job}.out"
        return path.read_text() if path.exists() else ""

    def wait_for_work(self) -> None:
        """Until each worker has begun something, and some have ended something, in this launch."""
        before = len(self.terminal.side("ended"))
        wait_until(
            lambda: len(self.terminal.side("ended")) >= before + 4,
            "evaluations that end",
            seconds=60,
            pause_s=0.1,
        )

    def wait_for_end(self, seconds: float) -> None:
        try:
            wait_until(lambda: self.state() == "over", "the job's end", seconds=seconds, pause_s=0.2)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.cluster.job(self.job)}\n{self.output()}") from None

    def nothing_is_left(self) -> None:
        wait_until(lambda: not self.terminal.processes(), "the end of all processes", seconds=30, pause_s=0.1)

    def all_is_there_once(self, evaluations: int) -> None:
        """The budget is met exactly; nothing ended twice, and no step was repeated."""
        finished = [record for record in self.terminal.records("finished") if record["status"] == "completed"]
        assert len({record["id"] for record in finished}) == len(finished) == evaluations
        assert Counter(self.terminal.side("ended")) == Counter(record["id"] for record in finished)
        assert self.terminal.records("ended")[-1]["exit"] == 0

    def steps_repeated(self) -> int:
        lines = (self.terminal.directory / "side.txt").read_text().splitlines()
        did = Counter(line for line in lines if line.split()[1] == "did")
        return sum(did.values()) - len(did)


@pytest.fixture
def user(cluster: Slurm, terminal: Terminal) -> Iterator[User]:
    user = User(cluster, terminal)
    yield user
    if user.job and user.state() != "over":
        cluster.run("scancel", user.job, check=False)
        wait_until(lambda: user.state() == "over", "the job's end", seconds=30, pause_s=0.2)


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
    legs = user.terminal.records("launched")
    assert len(legs) >= 3, user.output()
    assert [record["exit"] for record in user.terminal.records("ended")] == [75] * (len(legs) - 1) + [0]
    assert user.output().count(f"job {user.job} is in the queue again") == len(legs) - 1
    assert user.steps_repeated() == 0
    user.nothing_is_left()


@pytest.mark.timeout(150)
def test_scancel_loses_nothing_and_the_campaign_goes_on_when_submitted_again(user: User) -> None:
    user.write(evaluations=16, steps=40)
    user.submit()
    user.wait_for_work()
    user.cluster.run("scancel", user.job)
    user.wait_for_end(30)
    user.nothing_is_left()
    assert user.terminal.records("ended")[-1]["exit"] == 75, user.output()
    saved = [record for record in user.terminal.records("finished") if record["status"] == "interrupted"]
    assert saved and all(record["error"] is None for record in saved)
    assert "in the queue again" not in user.output()
    user.submit()
    user.wait_for_end(90)
    user.all_is_there_once(16)
    assert user.steps_repeated() == 0


@pytest.mark.timeout(150)
def test_after_the_loss_of_a_node_the_job_is_queued_again_and_loses_nothing(user: User) -> None:
    user.write(evaluations=16, steps=40)
    user.submit()
    user.wait_for_work()
    user.cluster.lose("n1")
    wait_until(lambda: user.state() == "PENDING", "a job that waits", seconds=30, pause_s=0.1)
    user.nothing_is_left()
    user.cluster.regain("n1")
    user.wait_for_end(90)
    user.all_is_there_once(16)
    assert len(user.terminal.records("launched")) == 2, user.output()


@pytest.mark.timeout(150)
def test_a_job_that_keeps_what_is_left_goes_on_there_with_fewer_ranks(user: User) -> None:
    """With --no-kill Slurm leaves the job the nodes that live; hpo run starts again on these."""
    user.write(evaluations=16, steps=40)
    user.submit("--no-kill")
    user.wait_for_work()
    try:
        user.cluster.lose("n1")
        user.wait_for_end(100)
    finally:
        user.cluster.regain("n1")
    user.all_is_there_once(16)
    assert [record["workers"] for record in user.terminal.records("launched")] == [4, 2], user.output()
    assert "with 2 ranks on the hosts that are left" in user.output()


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


@pytest.mark.timeout(100)
def test_a_campaign_that_was_stopped_by_hand_stays_out_of_the_queue(user: User) -> None:
    user.write(evaluations=400, steps=40)
    user.submit()
    user.wait_for_work()
    assert user.terminal.hpo("stop", "run").returncode == 0
    user.wait_for_end(40)
    assert "not put into the queue again: `hpo stop` was asked for" in user.output()
    assert len(user.terminal.records("launched")) == 1
