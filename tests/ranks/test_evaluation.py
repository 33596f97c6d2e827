"""Evaluations in real child processes, by workers of one and of two ranks, without MPI: queues join the parts."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cases import cases
from individuals import make_job
from places import ROOT, TESTS
from skips import NOT_POSSIBLE
from stand_in_torch import torch_that_finds

import hpo
from hpo.evaluation.conversation import Alive, Answer, Died, EvaluationOver, pack_answer
from hpo.evaluation.crew import ProcessCrew
from hpo.evaluation.evaluator_host import EvaluatorHost
from hpo.evaluation.evaluator_process import EvaluatorProcess, RankContext, wait_readable
from hpo.evaluation.process.wait_watch import Wait, WaitWatch
from hpo.search.protocols import GO, PAUSE, STOP, TrialReport, Verdict
from hpo.task.outcome import TaskOutcome, summary_line
from hpo.task.task import TaskSource

LIMIT_S = 60.0
SOURCE = TaskSource(reference="evaluated.py:task", base=str(TESTS))
LAUNCHER = {"OMPI_COMM_WORLD_RANK": "0", "PMIX_RANK": "0", "PMI_RANK": "0", "SLURM_PROCID": "0", "RANK": "7"}
ENVIRONMENT = {**os.environ, **LAUNCHER, "CUDA_VISIBLE_DEVICES": ""}
ENVIRONMENT.pop("PYTHONUNBUFFERED", None)  # with it, C code does not buffer either


class Clock:
    """Real time, which a test may stop or move on."""

    def __init__(self) -> None:
        self._ahead = 0.0
        self._stopped: float | None = None

    def __call__(self) -> float:
        return time.monotonic() + self._ahead if self._stopped is None else self._stopped

    def move_on(self, seconds: float) -> None:
        self._ahead += seconds
        if self._stopped is not None:
            self._stopped += seconds

    @contextmanager
    def stopped(self) -> Iterator[None]:
        self._stopped = self()
        try:
            yield
        finally:
            self._stopped = None


class Bench:
    """A worker with all its ranks in this process, and the individuals' directories under ``root``.

    ``settings`` may be changed between evaluations.
    """

    def __init__(self, size: int, root: Path, **changes: object) -> None:
        self.root = root
        self.size = size
        self.settings = SimpleNamespace(isolation="warm", timeout_s=None, start_timeout_s=LIMIT_S)
        self.source: TaskSource = SOURCE
        self.hosts = (socket.gethostname(),) * size
        self.interface: str | None = None
        self.environment = dict(ENVIRONMENT)
        self.reports: list[tuple[str, int, float]] = []
        self.saves: list[bool] = []
        self.prune_from = 4.0
        self.pause_at: int | None = None
        self.clock = Clock()
        self._to_hosts: deque[tuple[int, dict[str, Any]]] = deque()
        self._to_crew: deque[dict[str, Any]] = deque()
        self._count = 0
        for name, value in changes.items():
            setattr(self.settings if hasattr(self.settings, name) else self, name, value)
        self.crew = ProcessCrew(
            size=size,
            child_factory=lambda: self.child(0),
            send=lambda rank, content: self._to_hosts.append((rank, carried(content))),
            settings=self.settings,  # type: ignore[arg-type]
            clock=self.clock,
        )
        self.crew.listen(self._on_report)
        self.crew.failure_grace_s, self.crew.straggler_s = 2.0, 0.5
        self.followers = [self._follower(rank) for rank in range(1, size)]

    def _follower(self, rank: int) -> EvaluatorHost:
        return EvaluatorHost(
            worker_rank=rank,
            child_factory=lambda: self.child(rank),
            send=lambda epoch, answer: self._to_crew.append(carried(pack_answer(epoch, rank, answer))),
        )

    def child(self, rank: int) -> EvaluatorProcess:
        context = RankContext(
            worker_rank=rank,
            size=self.size,
            local_rank=self.hosts[:rank].count(self.hosts[rank]),
            local_size=self.hosts.count(self.hosts[rank]),
            cores_agreed=True,
            hosts=self.hosts,
            source=self.source,
            interface=self.interface,
        )
        return EvaluatorProcess(context, self.environment)

    def _on_report(self, report: TrialReport) -> Verdict:
        self.reports.append((report.id, report.step, report.value))
        self.saves.append(report.saves)
        if self.pause_at is not None:
            return PAUSE if report.step == self.pause_at else GO
        return STOP if report.value >= self.prune_from else GO

    @property
    def pids(self) -> list[int | None]:
        return [self.crew.pid, *(follower.pid for follower in self.followers)]

    def deliver(self) -> None:
        while self._to_hosts or self._to_crew:
            while self._to_hosts:
                rank, content = self._to_hosts.popleft()
                self.followers[rank - 1].receive(content)
            while self._to_crew:
                self.crew.receive(self._to_crew.popleft())

    def turn(self) -> list[TaskOutcome]:
        """Serve all parts, deliver all messages, and wait a little unless that led to something."""
        for follower in self.followers:
            follower.poll()
        self.deliver()
        outcomes = self.crew.poll()
        if not outcomes and not self._to_hosts and not self._to_crew:
            numbers = self.crew.filenos() + [n for follower in self.followers for n in follower.filenos()]
            due = self.crew.deadline()
            wait_readable(numbers, 0.1 if due is None else min(0.1, due - self.clock()))
        return outcomes

    def until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < end, "it did not happen"
            assert self.turn() == []

    def start(self, *, resumed: bool = False, id: str | None = None, **params: Any) -> Path:
        """Start an evaluation of ``tests/evaluated.py`` and return its directory."""
        self._count += 1
        name = id or f"0-0-{self._count}"
        self.crew.start(
            make_job(id=name, params=params, seed=7, directory=str(self.root / name), resumed=resumed)
        )
        return self.root / name

    def finish(self) -> TaskOutcome:
        end = time.monotonic() + LIMIT_S
        while not (outcomes := self.turn()):
            assert time.monotonic() < end, "the evaluation did not end"
        assert len(outcomes) == 1 and not self.crew.busy
        self.deliver()
        return outcomes[0]

    def run(self, what: str, **params: Any) -> TaskOutcome:
        self.start(what=what, **params)
        return self.finish()

    def close(self, timeout_s: float = 5.0) -> None:
        self.crew.close(timeout_s)
        self.deliver()
        for follower in self.followers:
            follower.close()


def carried(content: dict[str, Any]) -> dict[str, Any]:
    """The content as the transport would bring it."""
    return json.loads(json.dumps(content))


@pytest.fixture(scope="module", params=[1, 2], ids=["one rank", "two ranks"])
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A worker that lives through all tests of this file, so that each finds what the one before left."""
    worker = Bench(request.param, tmp_path_factory.mktemp(f"ranks-{request.param}"))
    try:
        # Whichever test is the first, the evaluators are there.
        assert worker.run("complete").status == "completed"
        yield worker
    finally:
        worker.close()


@pytest.fixture
def single(tmp_path: Path) -> Iterator[Bench]:
    worker = Bench(1, tmp_path)
    yield worker
    worker.close()


def gone(pid: int, limit_s: float = 10.0) -> bool:
    """Wait for the end of a process that need not be ours."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], limit_s)[0])
    finally:
        os.close(descriptor)


def listening(pid: int) -> list[str]:
    """Addresses on which a process listens, in hexadecimal as the kernel lists them."""
    inodes = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        target = os.readlink(f"/proc/{pid}/fd/{name}")
        if target.startswith("socket:["):
            inodes.add(target[len("socket:[") : -1])
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                found.append(fields[1].split(":")[0])
    return found


# --- how evaluations end ----------------------------------------------------------------------------------------------


def test_completes_with_metrics_logged_and_returned(bench: Bench) -> None:
    outcome = bench.run("metrics")
    assert (outcome.status, outcome.objectives, outcome.error) == ("completed", {"value": 1.0}, None)
    assert outcome.metrics == {"epochs": 3, "note": "returned"} and 0 < outcome.seconds < LIMIT_S


def test_warm_evaluators_are_used_again(bench: Bench) -> None:
    pids = bench.pids
    assert None not in pids
    assert [bench.run("complete", value=value).objectives for value in (0.25, 0.5)] == [
        {"value": 0.25},
        {"value": 0.5},
    ]
    assert bench.pids == pids


def test_nan_is_invalid_and_text_fails(bench: Bench) -> None:
    pids = bench.pids
    assert bench.run("nan").status == "invalid"
    outcome = bench.run("text")
    assert outcome.status == "failed" and "'0.5' of type str" in outcome.error
    assert bench.run("complete").status == "completed" and bench.pids == pids


def test_exception_on_all_ranks_fails_with_its_traceback(bench: Bench) -> None:
    pids = bench.pids
    outcome = bench.run("raise")
    assert (
        outcome.status == "failed" and "evaluated.py" in outcome.error and "evaluator.py" not in outcome.error
    )
    assert "ValueError: no such thing on rank" in outcome.error
    assert bench.run("complete").status == "completed" and bench.pids == pids


def test_sys_exit_is_a_failure(bench: Bench) -> None:
    outcome = bench.run("sys_exit")
    assert outcome.status == "failed" and "sys.exit(3)" in outcome.error


@pytest.mark.parametrize("bench", [2], indirect=True)
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("what", ["raise", "raise_late_in_model"])
def test_exception_on_one_rank_frees_the_others_from_their_collective(
    bench: Bench, what: str, rank: int
) -> None:
    bench.run("complete")
    pids = bench.pids
    bench.run("complete", only_rank=2)  # all ranks import what takes seconds the first time
    with bench.clock.stopped():  # nor does the grace of silent ranks ever end
        outcome = bench.run(what, only_rank=rank)
    assert outcome.status == "failed" and outcome.error.startswith(
        f"worker rank {rank} on {socket.gethostname()}: "
    )
    assert ("late" if what == "raise_late_in_model" else f"no such thing on rank {rank}") in outcome.error
    assert bench.run("collective").objectives == {"value": 3.0}
    assert bench.pids == pids, "evaluators that only raised are not replaced"


@pytest.mark.parametrize("bench", [2], indirect=True)
def test_rank_that_does_not_notice_a_failure_is_replaced(bench: Bench) -> None:
    bench.run("complete")
    pids = bench.pids
    outcome = bench.run("straggle_after_failure")
    assert outcome.status == "failed" and "rank 0 failed" in outcome.error
    assert bench.run("collective").objectives == {"value": 3.0}
    assert not set(bench.pids) & set(pids)


@pytest.fixture
def heard(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, type[Answer]]]:
    """The answers that the crew took, by worker rank."""
    found: list[tuple[int, type[Answer]]] = []
    take = bench.crew._take

    def note(epoch: int, worker_rank: int, answer: Answer) -> None:
        found.append((worker_rank, type(answer)))
        take(epoch, worker_rank, answer)

    monkeypatch.setattr(bench.crew, "_take", note)
    return found


@pytest.mark.parametrize("bench", [2], indirect=True)
@pytest.mark.parametrize(("failing", "dying"), cases([(0, 1)], nightly=[(1, 1)]))
def test_deaths_after_a_failure_do_not_hide_it(
    bench: Bench, heard: list[tuple[int, type[Answer]]], failing: int, dying: int
) -> None:
    """NCCL ends a rank that had an error, and those that wait for it."""
    bench.run("complete")
    heard.clear()
    bench.start(what="raise", only_rank=failing, peers="hang")
    bench.until(lambda: (failing, EvaluationOver) in heard and (dying == failing or (dying, Alive) in heard))
    victim = bench.pids[dying]
    assert victim is not None
    os.kill(victim, signal.SIGABRT)
    outcome = bench.finish()
    assert (dying, Died) in heard, "it was the grace of silent ranks that ended it"
    assert outcome.status == "failed" and f"ValueError: no such thing on rank {failing}" in outcome.error
    assert bench.run("collective").objectives == {"value": 3.0}


@pytest.mark.parametrize("bench", [2], indirect=True)
def test_failure_that_follows_from_a_death_does_not_hide_that(
    bench: Bench, heard: list[tuple[int, type[Answer]]]
) -> None:
    bench.run("complete")
    heard.clear()
    directory = bench.start(what="hang", only_rank=1)
    bench.until((directory / "begun-1").exists)
    victim = bench.pids[1]
    assert victim is not None
    os.kill(victim, signal.SIGKILL)
    end = time.monotonic() + LIMIT_S
    while (0, EvaluationOver) not in heard:  # its error is known before that death is
        assert time.monotonic() < end
        assert bench.crew.poll() == []
        wait_readable(bench.crew.filenos(), 0.1)
    outcome = bench.finish()
    assert outcome.status == "crashed" and "SIGKILL" in outcome.error
    assert bench.run("collective").objectives == {"value": 3.0}


@pytest.mark.parametrize("bench", [2], indirect=True)
def test_group_that_cannot_be_left_does_not_hide_the_failure(
    bench: Bench, heard: list[tuple[int, type[Answer]]]
) -> None:
    bench.run("complete")
    outcome = bench.run("raise_and_cannot_leave", only_rank=1, peers="hang")
    assert outcome.status == "failed" and "ValueError: first of all" in outcome.error
    assert (1, Died) in heard, "it was the grace of silent ranks that ended it"
    assert bench.run("collective").objectives == {"value": 3.0}


def test_process_on_its_way_out_is_told_from_one_that_works(single: Bench) -> None:
    single.run("complete")
    child = single.child(0)
    try:
        assert not child.ending
        child.kill()
        assert gone(child.pid) and child.ending, "nobody has waited for it yet"
        assert child.ended() is not None and child.ending
    finally:
        child.release()


@pytest.mark.parametrize("bench", [2], indirect=True)
def test_result_of_rank_0_counts_although_another_rank_hangs(bench: Bench) -> None:
    outcome = bench.run("straggle")
    assert outcome.status == "completed" and outcome.objectives == {"value": 2.0}
    assert "worker rank 1 still ran 0.5 s after rank 0" in outcome.error


@pytest.mark.parametrize("bench", [2], indirect=True)
def test_group_that_the_task_destroyed_is_formed_again(bench: Bench) -> None:
    bench.run("complete")
    pids = bench.pids
    assert bench.run("destroy_group").objectives == {"value": 3.0}
    assert bench.run("collective").objectives == {"value": 3.0} and bench.pids == pids


@pytest.mark.parametrize(
    ("bench", "what", "rank", "error"),
    cases(
        [
            (1, "exit", 0, "exited with code 7"),
            (1, "exit_zero", 0, "exited in the middle of its work"),
            (1, "segfault_beside_many_modules", 0, "was killed by SIGSEGV"),
            (1, "exit_after_blanks", 0, "exited with code 7"),
            (1, "killed", 0, "was killed by SIGKILL, most likely by the out-of-memory killer"),
            (2, "segfault", 1, "was killed by SIGSEGV"),
        ],
        nightly=[
            (1, "segfault", 0, "was killed by SIGSEGV"),
            (2, "exit", 0, "exited with code 7"),
        ],
    ),
    indirect=["bench"],
)
def test_death_of_an_evaluator_is_a_crash(bench: Bench, what: str, rank: int, error: str) -> None:
    outcome = bench.run(what, only_rank=rank)
    assert outcome.status == "crashed" and error in outcome.error
    if bench.size > 1:
        assert outcome.error.startswith(f"worker rank {rank} on {socket.gethostname()} ")
    if what == "exit":
        assert outcome.error.endswith(".\nIt last printed:\nlast words")
    if what == "exit_after_blanks":
        assert "last printed" not in outcome.error
    if what.startswith("segfault"):
        assert f"in _{what}" in outcome.error, "the stack is missing"
        assert "Extension modules" not in outcome.error
    assert summary_line(outcome.error).endswith(("work.", "output.", "host.")), (
        "the first line alone is whole"
    )
    assert bench.run("complete").status == "completed"


def test_evaluator_killed_from_outside_is_a_crash(bench: Bench) -> None:
    directory = bench.start(what="hang")
    bench.until((directory / f"begun-{bench.size - 1}").exists)
    victim = bench.pids[-1]
    assert victim is not None
    os.kill(victim, signal.SIGKILL)
    outcome = bench.finish()
    assert outcome.status == "crashed" and "SIGKILL" in outcome.error
    assert bench.run("complete").status == "completed" and victim not in bench.pids


def test_evaluator_killed_between_evaluations_costs_nothing(single: Bench) -> None:
    single.run("complete")
    victim = single.crew.pid
    assert victim is not None
    os.kill(victim, signal.SIGKILL)
    single.until(lambda: single.crew.pid != victim and single.crew.ready)
    assert single.run("complete").status == "completed"


@pytest.mark.parametrize(
    ("bench", "what"),
    cases([(1, "hang"), (2, "hang_holding_the_lock")], nightly=[(1, "hang_holding_the_lock"), (2, "hang")]),
    indirect=["bench"],
)
def test_time_out_kills_at_once_and_tells_where_it_hung(bench: Bench, what: str) -> None:
    bench.run("complete")
    pids = bench.pids
    bench.settings.timeout_s = 1.0
    try:
        with bench.clock.stopped():
            output = bench.start(what=what) / "output-0.txt"
            bench.until(lambda: output.exists() and f"in _{what}" in output.read_text())
            bench.clock.move_on(1.0)
            outcome = bench.finish()
    finally:
        bench.settings.timeout_s = None
    assert outcome.status == "timeout" and "not over after 1 s (timeout)" in outcome.error
    assert all(gone(pid) for pid in pids if pid is not None)
    assert bench.run("complete").status == "completed"


def test_kill_ends_the_evaluation_with_the_status_asked_for(single: Bench) -> None:
    directory = single.start(what="hang")
    single.until((directory / "begun-0").exists)
    pid = single.crew.pid
    single.crew.kill("interrupted")
    assert single.finish().status == "interrupted"
    assert pid is not None and gone(pid)
    assert single.crew.pid is None, "a campaign that stops needs no new evaluator"
    assert single.run("complete").status == "completed"
    single.crew.kill("interrupted")
    assert single.turn() == []


def test_fresh_means_a_new_process_each_time(tmp_path: Path) -> None:
    worker = Bench(1, tmp_path, isolation="fresh")
    try:
        pids = [worker.run("describe").metrics["pid"] for _ in range(3)]
    finally:
        worker.close()
    assert len(set(pids)) == 3


@pytest.mark.parametrize("devices", ["", "0"])
def test_next_evaluator_waits_for_the_device_only(tmp_path: Path, devices: str) -> None:
    """The former one holds memory of it until it is gone."""
    worker = Bench(1, tmp_path, isolation="fresh")
    worker.environment["CUDA_VISIBLE_DEVICES"] = devices
    try:
        former = worker.run("linger").metrics["pid"]
        assert worker.run("linger", former=former).metrics["alone"] is (devices == "0")
    finally:
        worker.close()


def test_waiting_for_the_device_is_no_failed_start(single: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpo.evaluation.evaluator_host._HOLD", 0.25)
    single.settings.isolation, single.settings.start_timeout_s = "fresh", 8.0
    single.environment["CUDA_VISIBLE_DEVICES"] = "0"
    former = single.run("linger", lingers=60.0).metrics["pid"]
    outcome = single.run("linger", former=former)
    assert (outcome.status, single.crew.failed_starts) == ("completed", 0)
    assert outcome.metrics["alone"] is False
    os.kill(former, signal.SIGKILL)  # nor need the end of the test wait for it


def test_a_process_that_never_goes_is_not_waited_for(single: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpo.evaluation.evaluator_host._RETIREMENT_S", 0.1)
    monkeypatch.setattr(EvaluatorProcess, "kill", lambda child: None)
    single.settings.isolation = "fresh"
    single.environment["CUDA_VISIBLE_DEVICES"] = "0"
    former = single.run("linger").metrics["pid"]
    assert single.run("linger", former=former).metrics["alone"] is False
    monkeypatch.undo()


# --- reports and checkpoints ------------------------------------------------------------------------------------------


def test_all_ranks_agree_on_pruning(bench: Bench) -> None:
    bench.run("complete")
    pids = bench.pids
    bench.reports.clear()
    bench.start(what="report", id="pruned")
    outcome = bench.finish()
    assert outcome.status == "pruned" and outcome.objectives == {"value": 4.0}
    assert outcome.metrics == {"seen": 3, "pruned_step": 4}
    assert bench.reports == [("pruned", step, float(step)) for step in range(5)]
    assert bench.run("complete").status == "completed" and bench.pids == pids


def test_a_pause_is_asked_of_all_ranks_until_the_next_report(bench: Bench) -> None:
    """Who goes on to its last step is not asked any more: it is to complete."""
    bench.run("complete")
    bench.saves.clear()
    bench.pause_at = 3
    try:
        bench.start(what="asks_after_reports")
        outcome = bench.finish()
    finally:
        bench.pause_at = None
    assert outcome.status == "completed" and outcome.objectives == {"value": 300.0}
    assert bench.saves == [False, True, True, True, True], (
        "it can save, which it showed after the first report"
    )


def test_a_rank_that_waits_for_long_says_for_what_once_an_evaluation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("hpo.evaluation.process.wait_watch._SLOW_S", 0.04)
    watch = WaitWatch(1)
    heard = ""
    for _ in range(2):
        watch.said = False
        watch.begun = Wait("trial.report", time.monotonic(), of_all=True)
        end = time.monotonic() + LIMIT_S
        while not watch.said:
            assert time.monotonic() < end
            time.sleep(0.01)
        watch.begun = None
        heard += capsys.readouterr().err
    assert heard.count("worker rank 1 has waited 0 s in trial.report for other ranks of the worker") == 2
    watch.said = True  # it is a thread of this process


@pytest.mark.parametrize("bench", [2], indirect=True)
@pytest.mark.parametrize(
    ("waits", "other"),
    [
        ("trainers.train", "returns"),
        ("torch.distributed.all_reduce", "torch.distributed.barrier"),
        ("torch.distributed.all_reduce", "comes"),
    ],
)
def test_a_collective_that_another_rank_does_not_make_ends_the_evaluation(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, waits: str, other: str
) -> None:
    monkeypatch.setattr("hpo.evaluation.process.waiting_ranks._SETTLED_S", 0.2)
    outcome = bench.run("wait_apart", waits=waits, other=other)
    if other == "comes":
        assert outcome.status == "completed"
    else:
        assert outcome.status == "failed" and f"worker rank 0 waited in {waits} for" in outcome.error
    assert bench.run("collective").objectives == {"value": 3.0}


def test_nothing_is_pruned_without_a_reason(bench: Bench) -> None:
    bench.prune_from = 100.0
    try:
        outcome = bench.run("report")
    finally:
        bench.prune_from = 4.0
    assert outcome.status == "completed" and outcome.objectives == {"value": 9.0}


@pytest.mark.parametrize("bench", [2], indirect=True)
def test_ranks_that_call_different_things_are_told(bench: Bench) -> None:
    outcome = bench.run("quarrel")
    assert outcome.status == "failed"
    assert "worker rank 1 is in trial.should_checkpoint, but rank 0 in trial.report" in outcome.error
    assert bench.run("collective").objectives == {"value": 3.0}


def test_all_ranks_agree_on_stopping_and_go_on_later(bench: Bench) -> None:
    directory = bench.start(what="checkpoint", id="stopped")
    bench.until((directory / f"begun-{bench.size - 1}").exists)
    bench.crew.request_checkpoint()
    assert bench.finish().status == "interrupted"
    assert {path.name for path in directory.glob("state-*")} == {
        f"state-{rank}" for rank in range(bench.size)
    }
    bench.start(what="checkpoint", id="stopped", resumed=True)
    outcome = bench.finish()
    assert outcome.status == "completed" and outcome.objectives == {"value": 41.0}
    directory = bench.start(what="checkpoint", id="stopped")  # the wish to stop was the former evaluation's
    bench.until(
        lambda: (directory / f"begun-{bench.size - 1}").exists() and not list(directory.glob("state-*"))
    )
    bench.crew.request_checkpoint()
    assert bench.finish().status == "interrupted"


def test_wish_to_stop_reaches_an_individual_that_waits_for_its_evaluator(single: Bench) -> None:
    single.start(what="checkpoint")
    single.crew.request_checkpoint()
    assert single.finish().status == "interrupted"


# --- directories and output -------------------------------------------------------------------------------------------


def test_what_is_printed_is_in_the_file_of_its_rank(bench: Bench) -> None:
    directory = bench.start(what="output")
    assert bench.finish().status == "completed"
    assert {path.name for path in directory.iterdir()} == {f"output-{rank}.txt" for rank in range(bench.size)}
    for path in directory.iterdir():
        assert set(path.read_text().splitlines()) == {
            "printed by Python",
            "to stderr",
            "written to the descriptor",
            "printed by C",
            "printed by a program",
        }


def test_an_evaluation_leaves_its_working_directory_and_its_streams_behind(bench: Bench) -> None:
    for kept in ("kept\n", "kept\nkept\n"):
        directory = bench.start(what="elsewhere")
        found = bench.finish()
        assert found.metrics == {"before": os.getcwd(), "kept": kept}
        assert (directory / "output-0.txt").read_text() == "seen\n"


def test_nothing_printed_leaves_nothing(bench: Bench) -> None:
    directory = bench.start(what="complete")
    bench.finish()
    bench.until(lambda: not directory.exists())


def test_second_try_finds_an_empty_directory_but_its_output_is_kept(single: Bench) -> None:
    for _ in range(2):
        directory = single.start(what="leave_files", id="tried")
        assert single.finish().objectives == {"value": 0.0}
    assert (directory / "output-0.txt").read_text() == "tried\ntried\n"


def test_a_file_in_the_place_of_the_directory_fails_that_evaluation(bench: Bench) -> None:
    (bench.root / "file").touch()
    bench.start(what="complete", id="file")
    outcome = bench.finish()
    assert outcome.status == "failed" and "directory cannot be used" in outcome.error and not outcome.storage
    assert bench.run("complete").status == "completed"


def test_a_directory_that_cannot_be_made_is_the_storage_s_and_no_failed_start(bench: Bench) -> None:
    above = bench.root / "above"
    above.touch()
    pids = bench.pids
    for _ in range(4):
        bench.start(what="complete", id="above/inside")
        outcome = bench.finish()
        assert outcome.storage and outcome.error == f"{above / 'inside'}: Not a directory"
        assert bench.crew.failed_starts == 0 and not bench.crew.prepared
    above.unlink()
    above.mkdir()
    # From then on it is known at once that the evaluation has begun: it may take hours.
    bench.start(what="checkpoint", id="above/inside")
    bench.until(lambda: bench.crew.prepared)
    bench.crew.request_checkpoint()
    assert bench.finish().status == "interrupted"
    assert not bench.crew.prepared and bench.pids == pids


def test_error_quotes_this_evaluation_only(single: Bench) -> None:
    single.start(what="leave_files", id="tried")
    single.finish()
    single.start(what="exit", id="tried")
    outcome = single.finish()
    assert outcome.error.endswith("It last printed:\nlast words")


# --- what the evaluator is given --------------------------------------------------------------------------------------


def test_evaluator_sees_nothing_of_the_launcher(bench: Bench) -> None:
    seen = bench.run("describe").metrics
    assert seen["launcher"] == "" and seen["place"] == f"0 of {bench.size}, 0, cpu"
    assert seen["torchrun"] == ("0,2,0" if bench.size == 2 else "-,-,-")
    assert seen["parent"] == os.getpid() and seen["threads"] == os.environ["OMP_NUM_THREADS"]


def test_one_rank_needs_no_torch(single: Bench) -> None:
    assert single.run("describe").metrics["torch"] is False


def test_draws_do_not_depend_on_what_the_process_did_before(bench: Bench) -> None:
    first = bench.run("draw")
    bench.run("complete")
    second = bench.run("draw")
    assert first.objectives == second.objectives and first.metrics == second.metrics


def test_binding_to_one_core_is_not_inherited(tmp_path: Path) -> None:
    cores = os.sched_getaffinity(0)
    worker = Bench(1, tmp_path)
    del worker.environment["OMP_NUM_THREADS"]
    os.sched_setaffinity(0, {min(cores)})
    try:
        worker.start(what="describe")
    finally:
        os.sched_setaffinity(0, cores)
    seen = worker.finish().metrics
    worker.close()
    assert seen["cores"] >= len(cores) and seen["threads"] == str(seen["cores"])


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason=f"{NOT_POSSIBLE}one core")
def test_evaluators_of_a_host_have_cores_of_their_own(tmp_path: Path) -> None:
    worker = Bench(2, tmp_path)
    try:
        worker.run("collective")  # by threads of torch's
        [first], [second] = (
            {frozenset(os.sched_getaffinity(int(one.name))) for one in Path(f"/proc/{pid}/task").iterdir()}
            for pid in worker.pids
        )
        assert not first & second and first | second == os.sched_getaffinity(0)
    finally:
        worker.close()


def test_worker_that_spans_hosts_meets_on_the_interface_named(tmp_path: Path) -> None:
    worker = Bench(2, tmp_path, hosts=("alpha", "beta"), interface="lo")
    try:
        assert worker.run("collective").objectives == {"value": 3.0}
        outcome = worker.run("raise", only_rank=1)
        assert outcome.error.startswith("worker rank 1 on beta: ")
        seen = worker.run("describe").metrics
        assert seen["place"] == "0 of 2, 0, cpu" and seen["torchrun"] == "0,2,0"
    finally:
        worker.close()


@pytest.mark.parametrize("bench", [2], indirect=True)
def test_interface_is_named_to_gloo_and_to_nccl(bench: Bench) -> None:
    """With the sign that has NCCL take the name as a whole."""
    assert bench.run("describe").metrics["interfaces"] == "lo =lo"


def test_nothing_listens_beyond_this_host(bench: Bench) -> None:
    bench.run("complete")
    addresses = [listening(pid) for pid in bench.pids if pid is not None]
    assert len(addresses) == bench.size
    if bench.size == 1:
        assert addresses == [[]]
    else:
        assert all(addresses), "a gloo rank listens, so this finds nothing by mistake"
    assert {address for found in addresses for address in found} <= {"0100007F"}


# --- no process outlives its use --------------------------------------------------------------------------------------


def started_by(directory: Path) -> list[int]:
    return [int(number) for number in (directory / "descendants").read_text().split()]


def test_what_a_killed_evaluator_started_is_gone(single: Bench) -> None:
    directory = single.start(what="descendants")
    single.until((directory / "descendants").exists)
    started = started_by(directory)
    assert len(started) == 4 and not any(gone(pid, 0.0) for pid in started)
    single.crew.kill("interrupted")
    single.finish()
    assert all(gone(pid) for pid in started)


@pytest.mark.parametrize(("value", "status"), [(4.0, "pruned"), (0.0, "failed")])
def test_what_one_that_did_not_complete_had_started_does_not_run_beside_the_next(
    single: Bench, value: float, status: str
) -> None:
    directory = single.start(what="leave_running", value=value, id="first")
    single.until((directory / "descendants").exists)
    assert single.finish().status == status
    assert single.run("complete").status == "completed"
    assert all(gone(pid) for pid in started_by(directory))


def test_helpers_of_libraries_are_no_reason_for_another_evaluator(single: Bench) -> None:
    single.run("complete")
    evaluator = single.crew.pid
    assert single.run("tracked").status == "failed"
    assert single.run("complete").status == "completed" and single.crew.pid == evaluator


def test_output_is_kept_where_the_task_leads_its_descriptor_elsewhere(single: Bench) -> None:
    directory = single.start(what="output_elsewhere")
    assert single.finish().status == "completed"
    assert (directory / "output-0.txt").read_text() == "seen\n"


def test_forked_process_does_not_hide_the_end_of_its_evaluator(single: Bench) -> None:
    outcome = single.run("fork")
    assert outcome.status == "crashed" and "exited with code 5" in outcome.error


def test_evaluators_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    script = (
        "import pathlib, sys, test_evaluation\n"
        "worker = test_evaluation.Bench(1, pathlib.Path(sys.argv[1]))\n"
        "directory = worker.start(what='descendants')\n"
        "worker.until((directory / 'descendants').exists)\n"
        "print(worker.crew.pid, flush=True)\n"
        "input()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=TESTS,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, TESTS, Path(__file__).parent)))},
    )
    with parent:
        evaluator = int(parent.stdout.readline())
        started = started_by(tmp_path / "0-0-1")[
            :1
        ]  # those in its group; the kernel tells nobody of the others
        assert not any(gone(pid, 0.0) for pid in (evaluator, *started))
        parent.kill()
        assert gone(evaluator) and all(gone(pid) for pid in started)


def test_close_leaves_nothing(tmp_path: Path) -> None:
    worker = Bench(1, tmp_path)
    worker.run("complete")
    pid = worker.crew.pid
    begun = time.monotonic()
    worker.close(timeout_s=100.0)  # by itself, and not by force when the time is over
    assert pid is not None and gone(pid, 0.0) and time.monotonic() - begun < 60.0


def test_close_does_not_wait_for_an_evaluation(tmp_path: Path) -> None:
    worker = Bench(1, tmp_path)
    directory = worker.start(what="hang_holding_the_lock")
    worker.until((directory / "begun-0").exists)
    pid = worker.crew.pid
    begun = time.monotonic()
    worker.close(timeout_s=100.0)
    assert pid is not None and gone(pid, 0.0) and time.monotonic() - begun < 60.0


# --- evaluators that do not start -------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2])
def test_task_that_cannot_be_loaded_fails_the_individual(tmp_path: Path, size: int) -> None:
    (tmp_path / "broken.py").write_text("print('importing')\nraise KeyError('no data here')\n")
    worker = Bench(size, tmp_path, source=TaskSource(reference="broken.py:task", base=str(tmp_path)))
    try:
        outcome = worker.run("complete")
        assert outcome.status == "failed" and "no data here" in outcome.error
        assert worker.crew.failed_starts == 1 and worker.crew.ready
        worker.source = SOURCE
        assert worker.run("complete").status == "completed" and worker.crew.failed_starts == 0
    finally:
        worker.close()


def torch_without_devices(worker: Bench, built: str | None) -> None:
    """Let evaluators find a torch built for this CUDA, or for none, and no device, whatever this machine has."""
    if worker.size == 1:
        torch_that_finds((), worker.root, built=built)
    else:  # the ranks' group is torch's
        (worker.root / "sitecustomize.py").write_text(
            f"import torch\ntorch.version.cuda = {built!r}\ntorch.cuda.is_available = lambda: False\n"
            "torch.cuda.device_count = lambda: 0\n"
        )
    worker.environment |= {"CUDA_VISIBLE_DEVICES": "0,1", "PYTHONPATH": str(worker.root)}


def no_fault_of_the_individual(worker: Bench, failed: int) -> None:
    outcome = worker.run("describe")
    assert outcome.status == "failed" and "cannot use its GPU, cuda:" in outcome.error
    assert socket.gethostname() in outcome.error and "load the task" not in outcome.error
    assert worker.crew.failed_starts == failed and worker.crew.ready


def test_gpu_that_does_not_work_is_no_fault_of_the_individual(single: Bench) -> None:
    torch_without_devices(single, built="12.8")
    for failed in (1, 2):
        no_fault_of_the_individual(single, failed)
    assert single.run("complete").status == "completed", "it asks for no device"
    single.environment["CUDA_VISIBLE_DEVICES"] = ""
    single.settings.isolation = "fresh"
    single.run("complete")
    assert single.run("describe").metrics["place"] == "0 of 1, 0, cpu"
    assert single.crew.failed_starts == 0
    assert single.run("raise").status == "failed" and single.crew.failed_starts == 0


def test_without_gpus_that_work_the_ranks_of_a_worker_meet_nevertheless(tmp_path: Path) -> None:
    worker = Bench(2, tmp_path)
    torch_without_devices(worker, built="12.8")
    try:
        no_fault_of_the_individual(worker, 1)
        assert worker.run("collective").status == "completed", "it asks for no device"
    finally:
        worker.close()


POISONED = """
import sys
from types import ModuleType, SimpleNamespace
import hpo


def evaluate(trial):
    fake = ModuleType("torch.cuda")
    fake.is_initialized, fake.current_device = (lambda: True), (lambda: 0)
    fake.empty_cache = lambda: None
    torch = ModuleType("torch")
    torch.cuda, torch.manual_seed = fake, lambda seed: None
    torch.accelerator = SimpleNamespace(empty_host_cache=lambda: None)

    def synchronize(device):
        if trial.params["what"] == "poison":
            raise RuntimeError("CUDA error: device-side assert triggered")

    fake.synchronize = synchronize
    sys.modules |= {"torch": torch, "torch.cuda": fake}
    return float("nan") if trial.params["what"] == "poison" else 0.5


task = hpo.Task(hpo.SearchSpace(value=hpo.Float(0.0, 1.0)), evaluate)
"""


def test_evaluator_is_replaced_after_a_cuda_error_that_did_not_end_the_task(tmp_path: Path) -> None:
    (tmp_path / "poisoned.py").write_text(POISONED)
    worker = Bench(1, tmp_path, source=TaskSource(reference="poisoned.py:task", base=str(tmp_path)))
    try:
        assert worker.run("well").status == "completed"
        pid = worker.crew.pid
        assert worker.run("well").status == "completed" and worker.crew.pid == pid
        assert worker.run("poison").status == "invalid"
        assert worker.run("well").status == "completed" and worker.crew.pid not in (pid, None)
    finally:
        worker.close()


def test_torch_without_cuda_uses_the_cpu_although_there_is_a_gpu(single: Bench) -> None:
    torch_without_devices(single, built=None)
    assert single.run("describe").metrics["place"] == "0 of 1, 0, cpu"


def test_evaluator_that_dies_while_it_starts_is_a_crash(tmp_path: Path) -> None:
    (tmp_path / "dying.py").write_text("import os\nprint('no licence', flush=True)\nos._exit(9)\n")
    worker = Bench(1, tmp_path, source=TaskSource(reference="dying.py:task", base=str(tmp_path)))
    try:
        outcome = worker.run("complete")
    finally:
        worker.close()
    assert (
        outcome.status == "crashed"
        and "exited with code 9" in outcome.error
        and "no licence" in outcome.error
    )


def test_evaluator_that_does_not_get_ready_is_a_crash(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(3600)\n")
    source = TaskSource(reference="slow.py:task", base=str(tmp_path))
    worker = Bench(1, tmp_path, source=source, start_timeout_s=0.5)
    try:
        outcome = worker.run("complete")
    finally:
        worker.close()
    assert outcome.status == "crashed" and "not ready within 0.5 s (start_timeout)" in outcome.error
    assert "worker rank 0" in outcome.error


def test_no_process_to_be_had_is_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Bench(1, tmp_path)
    monkeypatch.setattr(
        worker, "child", lambda rank: (_ for _ in ()).throw(BlockingIOError("no more processes"))
    )
    outcome = worker.run("complete")
    worker.close()
    assert outcome.status == "crashed" and "no more processes" in outcome.error


@pytest.mark.parametrize("big", [False, True])
def test_task_without_a_module_travels_by_value(single: Bench, big: bool) -> None:
    data = bytes(5_000_000 if big else 5)  # more than a socket takes at once
    task = hpo.Task(hpo.SearchSpace(x=hpo.Float(0.0, 1.0)), lambda trial: len(data) + trial.params["x"])
    single.source = TaskSource.of(task)
    single.start(x=0.5)
    assert single.finish().objectives == {"value": len(data) + 0.5}


def test_failed_start_before_an_individual_is_there_blames_none(tmp_path: Path) -> None:
    worker = Bench(1, tmp_path, source=TaskSource(reference="missing.py:task", base=str(tmp_path)))
    try:
        worker.crew.prepare()
        assert not worker.crew.ready
        worker.until(lambda: worker.crew.ready)
        assert worker.crew.failed_starts == 1
    finally:
        worker.close()


def test_kernel_without_process_descriptors_is_served_too(
    single: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(pid: int) -> int:
        raise OSError("no such system call")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    assert single.run("complete").status == "completed"
    for what in ("exit", "fork"):
        assert single.run(what).status == "crashed"
    single.close()
    assert single.crew.pid is None


# --- the messages between crew and evaluator hosts --------------------------------------------------------------------


def test_late_words_of_an_earlier_evaluator_are_not_heard(single: Bench) -> None:
    single.run("complete")
    directory = single.start(what="hang")
    single.until((directory / "begun-0").exists)
    single.crew.receive(pack_answer(0, 0, Died("long ago")))
    stale = TaskOutcome(status="completed", objectives={"value": 0.0})
    single.crew.receive(pack_answer(1, 0, EvaluationOver(turn=1, outcome=stale)))
    assert single.turn() == [] and single.crew.busy
    single.crew.kill("interrupted")
    assert single.finish().status == "interrupted"


def test_one_individual_at_a_time(single: Bench) -> None:
    single.start(what="complete")
    with pytest.raises(RuntimeError, match="cannot start while 0-0-1"):
        single.start(what="complete")
    assert single.finish().status == "completed"


def test_deadline_is_none_while_nothing_is_due(single: Bench) -> None:
    single.run("complete")
    single.until(lambda: single.crew.deadline() is None)
    single.settings.timeout_s = 5.0
    single.start(what="complete")
    due = single.crew.deadline()
    assert due is not None and due - single.clock() <= 5.0
    single.finish()
