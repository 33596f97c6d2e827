"""A task that initialises and destroys the process group itself, and one that leaves groups behind, in evaluators that
live on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cases import all_cases, cases
from terminal import wait_until
from test_evaluation import Bench

RUNS = 100 if all_cases else 6


@pytest.fixture(scope="module", params=[1, 2], ids=["one rank", "two ranks"])
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    worker = Bench(request.param, tmp_path_factory.mktemp(f"ranks-{request.param}"))
    yield worker
    worker.close()


def sockets(pid: int) -> int:
    return sum(str(path.readlink()).startswith("socket:") for path in Path(f"/proc/{pid}/fd").iterdir())


def threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def test_a_script_that_manages_its_group_is_evaluated_again_and_again(bench: Bench) -> None:
    bench.run("manage_group")
    pids = bench.pids
    before = {pid: (sockets(pid), threads(pid)) for pid in pids if pid is not None}
    for index in range(RUNS):
        outcome = bench.run("manage_group", leaves=(None, "groups")[index % 2])
        assert outcome.status == "completed", outcome.error
        assert outcome.objectives == {"value": bench.size * (bench.size + 1) / 2}
        # The default group and three, and on several ranks one by which these agree with the campaign.
        assert outcome.metrics["groups"] == 4 + (bench.size > 1)
    # Linux lists a thread for a moment after it has been joined.
    wait_until(
        lambda: all(sockets(pid) <= most[0] and threads(pid) <= most[1] for pid, most in before.items()),
        "as few sockets and threads as after the first run",
        seconds=5,
    )
    for leaves in ("model", "model", None):  # it keeps its group
        assert bench.run("manage_group", leaves=leaves).status == "completed"
    assert bench.pids == pids


def test_another_group_than_the_worker_s_is_refused(bench: Bench) -> None:
    """A worker of one rank makes what the task asks for, if torch can."""
    for given, word in cases(
        [
            ({"twice": True}, "twice"),
            ({"backend": "nccl"}, "NCCL needs a GPU"),
            ({"world_size": 3}, "world_size=3"),
        ],
        nightly=[({"backend": "cpu:gloo,cuda:other"}, "cuda:other"), ({"rank": 5}, "rank=5")],
    ):
        if bench.size > 1 or "twice" in given:
            outcome = bench.run("ask_for_another_group", **given)
            assert outcome.status == "failed" and word in outcome.error
    assert bench.run("manage_group").status == "completed"


@pytest.mark.parametrize("bench", [2], indirect=True)
def test_a_training_takes_over_the_groups_of_the_one_before(bench: Bench) -> None:
    first, second = bench.run("train"), bench.run("train")
    assert first.status == second.status == "completed", (first.error, second.error)
    assert first.metrics["groups"] > 0
    assert second.metrics["groups"] == first.metrics["groups"]
    assert second.metrics["name"] == first.metrics["name"]
    pids = bench.pids
    # Beside groups of a task's own, which are destroyed.
    assert bench.run("manage_group", leaves="groups").metrics["groups"] == 4 + 1 + first.metrics["groups"]
    assert bench.run("train").metrics["name"] == first.metrics["name"]
    # Unless a rank ends with an error: the other waits for it in vain, and neither has them any more.
    assert bench.run("train", raises=1).status == "failed"
    after = bench.run("train")
    assert after.status == "completed", after.error
    assert after.metrics["groups"] == first.metrics["groups"]
    # The worker that destroys its group has to make them anew.
    assert bench.run("manage_group").status == "completed"
    again = bench.run("train")
    assert again.status == "completed" and again.metrics["name"] > after.metrics["name"]
    assert bench.pids == pids


@pytest.mark.parametrize("bench", [2], indirect=True)
def test_the_time_out_that_a_task_asks_for_holds(bench: Bench) -> None:
    """Else rank 0 would wait half an hour for the other, which has ended."""
    outcome = bench.run("ask_for_another_group")
    # With torch 2.6 the group keeps its own time-out, and the worker notices that its ranks wait for each other.
    words = ("imed out", "waited in torch.distributed.all_reduce")
    assert outcome.status == "failed" and any(word in outcome.error for word in words)
    assert bench.run("collective").status == "completed"
