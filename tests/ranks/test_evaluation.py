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
from stand_in_torch import torch_that_finds

import hpo
from hpo.evaluation.conversation import Answer, Died, EvaluationOver, EvaluatorAlive, RankContext, pack
from hpo.evaluation.crew import ProcessCrew
from hpo.evaluation.evaluator_host import EvaluatorHost
from hpo.evaluation.evaluator_process import EvaluatorProcess, wait_readable
from hpo.evaluation.process.wait_watch import Wait, WaitWatch
from hpo.evaluation.process_tree import kill_all
from hpo.search.protocols import GO, PAUSE, STOP, TrialReport, Verdict
from hpo.task.outcome import TaskOutcome, summary_line
from hpo.task.task import TaskSource

LIMIT_S = 60.0
HOST = socket.gethostname()
SOURCE = TaskSource(reference="evaluated.py:task", base=str(TESTS))
LAUNCHER = {"OMPI_COMM_WORLD_RANK": "0", "PMIX_RANK": "0", "PMI_RANK": "0", "SLURM_PROCID": "0", "RANK": "7"}
ENVIRONMENT = {**os.environ, **LAUNCHER, "CUDA_VISIBLE_DEVICES": ""}
ENVIRONMENT.pop("PYTHONUNBUFFERED", None)  # with it, C code does not buffer either
TWO_RANKS = pytest.mark.parametrize("bench", [2], indirect=True)


class Clock:
    """Real time, which a test may stop or move on."""

    def __init__(self) -> None:
        self._ahead = 0.0
        self._stopped: float | None = None

    def __call__(self) -> float:
        return self._ahead + (time.monotonic() if self._stopped is None else self._stopped)

    def move_on(self, seconds: float) -> None:
        self._ahead += seconds

    @contextmanager
    def stopped(self) -> Iterator[None]:
        self._stopped = time.monotonic()
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
        self.hosts = (HOST,) * size
        self.interface: str | None = None
        self.environment = dict(ENVIRONMENT)
        self.reports: list[TrialReport] = []
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
            send=lambda epoch, answer: self._to_crew.append(carried(pack(epoch, rank, answer))),
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
        self.reports.append(report)
        if self.pause_at is not None:
            return PAUSE if report.step == self.pause_at else GO
        return STOP if report.value >= self.prune_from else GO

    @property
    def pids(self) -> list[int]:
        return [pid for pid in (self.crew.pid, *(one.pid for one in self.followers)) if pid is not None]

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

    def begin(self, what: str, **params: Any) -> Path:
        """Start an evaluation, and wait until all of its ranks say that they have begun."""
        directory = self.start(what=what, **params)
        last = params.get("only_rank", self.size - 1)
        self.until((directory / f"begun-{last}").exists)
        return directory

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

    def works(self) -> bool:
        """Whether all ranks take part in the next evaluation."""
        what, value = ("complete", 0.5) if self.size == 1 else ("collective", 3.0)
        return self.run(what).objectives == {"value": value}

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
        assert worker.works()  # whichever test is the first, the evaluators are there
        yield worker
    finally:
        worker.close()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    """Makes workers, and closes them."""
    workers: list[Bench] = []

    def made(size: int = 1, module: str = "", **changes: object) -> Bench:
        """``module``: the text of the task's file, in place of evaluated.py."""
        if module:
            (tmp_path / "module.py").write_text(module)
            changes["source"] = TaskSource(reference="module.py:task", base=str(tmp_path))
        workers.append(Bench(size, tmp_path, **changes))
        return workers[-1]

    yield made
    for worker in workers:
        worker.close()


@pytest.fixture
def single(make: Callable[..., Bench]) -> Bench:
    return make()


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
    links = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in links:
                found.append(fields[1].split(":")[0])
    return found


# --- how evaluations end ----------------------------------------------------------------------------------------------


def test_values_and_exceptions_end_an_evaluation_and_no_evaluator(bench: Bench) -> None:
    pids = bench.pids
    assert len(pids) == bench.size
    outcome = bench.run("metrics")
    assert (outcome.status, outcome.objectives, outcome.error) == ("completed", {"value": 1.0}, None)
    assert outcome.metrics == {"epochs": 3, "note": "returned"} and 0 < outcome.seconds < LIMIT_S
    for what, status, words in (
        ("nan", "invalid", ()),
        ("text", "failed", ("'0.5' of type str",)),
        ("raise", "failed", ("evaluated.py", "ValueError: no such thing on rank")),
        ("sys_exit", "failed", ("sys.exit(3)",)),
    ):
        outcome = bench.run(what)
        assert outcome.status == status and all(word in outcome.error for word in words), outcome
        assert "evaluator.py" not in outcome.error
    assert [bench.run("complete", value=value).objectives["value"] for value in (0.25, 0.5)] == [0.25, 0.5]
    assert bench.pids == pids


@TWO_RANKS
@pytest.mark.parametrize(
    ("what", "rank"),
    cases([("raise", 0), ("raise_late_in_model", 1)], nightly=[("raise", 1), ("raise_late_in_model", 0)]),
)
def test_exception_on_one_rank_frees_the_others_from_their_collective(
    bench: Bench, what: str, rank: int
) -> None:
    pids = bench.pids
    bench.run("complete", only_rank=2)  # all ranks import what takes seconds the first time
    with bench.clock.stopped():  # nor does the grace of silent ranks ever end
        outcome = bench.run(what, only_rank=rank)
    assert outcome.status == "failed" and outcome.error.startswith(f"worker rank {rank} on {HOST}: ")
    assert ("late" if what == "raise_late_in_model" else f"no such thing on rank {rank}") in outcome.error
    assert outcome.metrics == ({"waits": True} if rank else {}), "what worker rank 0 has logged counts"
    assert bench.works() and bench.pids == pids, "evaluators that only raised are not replaced"


@TWO_RANKS
def test_rank_that_goes_on_after_an_end_is_replaced(bench: Bench) -> None:
    for fails, status, words in cases(
        [(False, "completed", "worker rank 1 still ran 0.5 s after rank 0")],
        nightly=[(True, "failed", "rank 0 failed")],
    ):
        pids = bench.pids
        outcome = bench.run("straggle", fails=fails)
        assert outcome.status == status and words in outcome.error
        assert bench.works() and not set(bench.pids) & set(pids)


@pytest.fixture
def heard(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, type[Answer]]]:
    """The answers that the crew took, by worker rank."""
    found: list[tuple[int, type[Answer]]] = []
    take = bench.crew._take

    def note(epoch: int, worker_rank: int, answer: Answer) -> None:
        found.append((worker_rank, type(answer)))
        take(epoch, worker_rank, answer)

    assert bench.works()
    monkeypatch.setattr(bench.crew, "_take", note)
    return found


@TWO_RANKS
@pytest.mark.parametrize(("failing", "dying"), cases([(0, 1)], nightly=[(1, 1)]))
def test_deaths_after_a_failure_do_not_hide_it(
    bench: Bench, heard: list[tuple[int, type[Answer]]], failing: int, dying: int
) -> None:
    """NCCL ends a rank that had an error, and those that wait for it."""
    bench.start(what="raise", only_rank=failing, peers="hang")
    bench.until(
        lambda: (failing, EvaluationOver) in heard and (dying == failing or (dying, EvaluatorAlive) in heard)
    )
    os.kill(bench.pids[dying], signal.SIGABRT)
    outcome = bench.finish()
    assert (dying, Died) in heard, "it was the grace of silent ranks that ended it"
    assert outcome.status == "failed" and f"ValueError: no such thing on rank {failing}" in outcome.error
    assert bench.works()


@TWO_RANKS
def test_failure_that_follows_from_a_death_does_not_hide_that(
    bench: Bench, heard: list[tuple[int, type[Answer]]]
) -> None:
    bench.begin("hang", only_rank=1)
    os.kill(bench.pids[1], signal.SIGKILL)
    end = time.monotonic() + LIMIT_S
    while (0, EvaluationOver) not in heard:  # its error is known before that death is
        assert time.monotonic() < end
        assert bench.crew.poll() == []
        wait_readable(bench.crew.filenos(), 0.1)
    outcome = bench.finish()
    assert outcome.status == "crashed" and "SIGKILL" in outcome.error
    assert bench.works()


@TWO_RANKS
def test_group_that_cannot_be_left_does_not_hide_the_failure(
    bench: Bench, heard: list[tuple[int, type[Answer]]]
) -> None:
    outcome = bench.run("raise_and_cannot_leave", only_rank=1, peers="hang")
    assert outcome.status == "failed" and "ValueError: first of all" in outcome.error
    assert (1, Died) in heard, "it was the grace of silent ranks that ended it"
    assert bench.works()


@pytest.mark.parametrize(
    ("bench", "what", "rank", "error"),
    cases(
        [
            (1, "exit", 0, "exited with code 7"),
            (1, "killed", 0, "was killed by SIGKILL, most likely by the out-of-memory killer"),
            (1, "fork", 0, "exited with code 5"),
            (1, "segfault", 0, "was killed by SIGSEGV"),
        ],
        nightly=[
            (1, "exit_zero", 0, "exited in the middle of its work"),
            (2, "segfault", 1, "was killed by SIGSEGV"),
            (1, "abort", 0, "was killed by SIGABRT"),
            (2, "exit", 0, "exited with code 7"),
        ],
    ),
    indirect=["bench"],
)
def test_death_of_an_evaluator_is_a_crash(bench: Bench, what: str, rank: int, error: str) -> None:
    outcome = bench.run(what, only_rank=rank)
    assert outcome.status == "crashed" and error in outcome.error
    assert outcome.error.startswith(f"worker rank {rank} on {HOST} " if bench.size > 1 else "the evaluator")
    if what == "exit":
        assert outcome.error.endswith("last words")
    if what == "segfault":
        assert "in _segfault" in outcome.error, "the stack is missing"
        assert "Extension modules" not in outcome.error
    assert summary_line(outcome.error).endswith(("work.", "output.", "host.")), "it is whole by itself"
    assert bench.works()


def test_evaluator_killed_between_evaluations_costs_nothing(single: Bench) -> None:
    single.run("complete")
    (victim,) = single.pids
    os.kill(victim, signal.SIGKILL)
    single.until(lambda: single.crew.pid != victim and single.crew.ready)
    assert single.works()


@pytest.mark.parametrize(
    ("bench", "what"),
    cases([(1, "hang"), (2, "hang_holding_the_lock")], nightly=[(1, "hang_holding_the_lock"), (2, "hang")]),
    indirect=["bench"],
)
def test_time_out_kills_at_once_and_tells_where_it_hung(bench: Bench, what: str) -> None:
    pids = bench.pids
    bench.settings.timeout_s = 1.0
    try:
        with bench.clock.stopped():
            output = bench.start(what=what) / "output-0.txt"
            bench.until(lambda: output.exists() and f"in _{what}" in output.read_text())
            due = bench.crew.deadline()
            assert due is not None and due - bench.clock() <= 1.0, "the event loop wakes up for it"
            bench.clock.move_on(1.0)
            outcome = bench.finish()
    finally:
        bench.settings.timeout_s = None
    assert outcome.status == "timeout" and "1 s (timeout)" in outcome.error
    assert all(map(gone, pids)) and bench.works()


@pytest.mark.parametrize("devices", ["", "0"])
def test_next_evaluator_waits_for_the_device_only(make: Callable[..., Bench], devices: str) -> None:
    """The former one holds memory of it until it is gone. Where evaluators are fresh, each is another process."""
    worker = make(isolation="fresh")
    worker.environment["CUDA_VISIBLE_DEVICES"] = devices
    former = worker.run("linger").metrics["pid"]
    found = worker.run("linger", former=former).metrics
    assert found["alone"] is (devices == "0") and found["pid"] != former


def test_waiting_for_the_device_is_no_failed_start(single: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpo.evaluation.evaluator_host._HOLD", 0.25)
    single.settings.isolation, single.settings.start_timeout_s = "fresh", 8.0
    single.environment["CUDA_VISIBLE_DEVICES"] = "0"
    former = single.run("linger", lingers=60.0).metrics["pid"]
    outcome = single.run("linger", former=former)
    assert (outcome.status, single.crew.failed_starts) == ("completed", 0)
    assert outcome.metrics["alone"] is False
    os.kill(former, signal.SIGKILL)  # nor need the end of the test wait for it


# --- reports and checkpoints ------------------------------------------------------------------------------------------


def test_all_ranks_agree_on_pruning(bench: Bench) -> None:
    pids = bench.pids
    bench.reports.clear()
    outcome = bench.run("report", id="pruned")
    assert outcome.status == "pruned" and outcome.objectives == {"value": 4.0}
    assert outcome.metrics == {"seen": 3, "pruned_step": 4}
    assert [(one.id, one.step, one.value) for one in bench.reports] == [
        ("pruned", step, float(step)) for step in range(5)
    ]
    assert bench.works() and bench.pids == pids


def test_a_pause_is_asked_of_all_ranks_until_the_next_report(bench: Bench) -> None:
    """Who goes on to its last step is not asked any more: it is to complete."""
    bench.reports.clear()
    bench.pause_at = 3
    try:
        outcome = bench.run("asks_after_reports")
    finally:
        bench.pause_at = None
    assert outcome.status == "completed" and outcome.objectives == {"value": 300.0}
    saves = [one.saves for one in bench.reports]
    assert saves == [False, True, True, True, True], "it can save, which it showed after the first report"


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


@TWO_RANKS
@pytest.mark.parametrize(
    ("waits", "other"),
    cases(
        [
            ("trainers.train", "returns"),
            ("torch.distributed.all_reduce", "comes"),
            ("trial.report", "trial.should_checkpoint"),
        ],
        nightly=[("torch.distributed.all_reduce", "torch.distributed.barrier")],
    ),
)
def test_a_collective_that_another_rank_does_not_make_ends_the_evaluation(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, waits: str, other: str
) -> None:
    monkeypatch.setattr("hpo.evaluation.process.waiting_ranks._SETTLED_S", 0.2)
    outcome = bench.run("wait_apart", waits=waits, other=other)
    if other == "comes":
        assert outcome.status == "completed"
    else:
        both = f"worker rank 1 is in {other}, but rank 0 in {waits}"
        words = both if waits == "trial.report" else f"worker rank 0 waited in {waits} for"
        assert outcome.status == "failed" and words in outcome.error
    assert bench.works()


def test_all_ranks_agree_on_stopping_and_go_on_later(bench: Bench) -> None:
    directory = bench.begin("checkpoint", id="stopped")
    bench.crew.request_checkpoint()
    assert bench.finish().status == "interrupted"
    saved = {path.name for path in directory.glob("state-*")}
    assert saved == {f"state-{rank}" for rank in range(bench.size)}
    assert bench.run("checkpoint", id="stopped", resumed=True).objectives == {"value": 41.0}
    bench.start(what="checkpoint", id="stopped")  # the wish to stop was the former evaluation's
    last = directory / f"begun-{bench.size - 1}"
    bench.until(lambda: last.exists() and not list(directory.glob("state-*")))
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
    directory = bench.start(what="complete")
    bench.finish()
    bench.until(lambda: not directory.exists())  # as nothing was printed


def test_an_evaluation_leaves_its_working_directory_and_its_streams_behind(bench: Bench) -> None:
    for kept in ("kept\n", "kept\nkept\n"):
        directory = bench.start(what="elsewhere")
        assert bench.finish().metrics == {"before": os.getcwd(), "kept": kept}
        assert (directory / "output-0.txt").read_text() == "seen\n"


def test_second_try_finds_an_empty_directory_and_errors_quote_this_try_alone(single: Bench) -> None:
    for _ in range(2):
        directory = single.start(what="leave_files", id="tried")
        assert single.finish().objectives == {"value": 0.0}
    assert (directory / "output-0.txt").read_text() == "tried\ntried\n"
    assert single.run("exit", id="tried").error.endswith("printed:\nlast words")


def test_a_file_in_the_place_of_the_directory_fails_that_evaluation(bench: Bench) -> None:
    (bench.root / "file").touch()
    outcome = bench.run("complete", id="file")
    assert outcome.status == "failed" and "directory cannot be used" in outcome.error and not outcome.storage
    assert bench.works()


def test_a_directory_that_cannot_be_made_is_the_storage_s_and_no_failed_start(bench: Bench) -> None:
    above = bench.root / "above"
    above.touch()
    pids = bench.pids
    for _ in range(2):
        outcome = bench.run("complete", id="above/inside")
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


# --- what the evaluator is given --------------------------------------------------------------------------------------


def test_evaluator_sees_nothing_of_the_launcher(bench: Bench) -> None:
    seen = bench.run("describe").metrics
    assert seen["launcher"] == "" and seen["place"] == f"0 of {bench.size}, 0, cpu"
    assert seen["torchrun"] == ("0,2,0" if bench.size == 2 else "-,-,-")
    assert seen["parent"] == os.getpid() and seen["threads"] == os.environ["OMP_NUM_THREADS"]
    # With the sign that has NCCL take the name as a whole.
    assert seen["interfaces"] == ("lo =lo" if bench.size == 2 else "- -")


def test_draws_do_not_depend_on_what_the_process_did_before(bench: Bench) -> None:
    first = bench.run("draw")
    bench.run("complete")
    second = bench.run("draw")
    assert first.objectives == second.objectives and first.metrics == second.metrics


def test_binding_to_one_core_is_not_inherited_and_one_rank_needs_no_torch(single: Bench) -> None:
    cores = os.sched_getaffinity(0)
    del single.environment["OMP_NUM_THREADS"]
    os.sched_setaffinity(0, {min(cores)})
    try:
        single.start(what="describe")
    finally:
        os.sched_setaffinity(0, cores)
    seen = single.finish().metrics
    assert seen["cores"] >= len(cores) and seen["threads"] == str(seen["cores"]) and seen["torch"] is False


def test_worker_that_spans_hosts_meets_on_the_interface_named(make: Callable[..., Bench]) -> None:
    worker = make(2, hosts=("alpha", "beta"), interface="lo")
    assert worker.works()
    seen = worker.run("describe").metrics
    assert seen["place"] == "0 of 2, 0, cpu" and seen["torchrun"] == "0,2,0"


def test_nothing_listens_beyond_this_host(bench: Bench) -> None:
    addresses = [listening(pid) for pid in bench.pids]
    if bench.size == 1:
        assert addresses == [[]]
    else:
        assert all(addresses), "a gloo rank listens, so this finds nothing by mistake"
    assert {address for found in addresses for address in found} <= {"0100007F"}


# --- no process outlives its use --------------------------------------------------------------------------------------


def started_by(directory: Path) -> list[int]:
    return [int(number) for number in (directory / "descendants").read_text().split()]


def test_a_killed_evaluator_is_gone_with_all_that_it_started(single: Bench) -> None:
    directory = single.start(what="descendants")
    single.until((directory / "descendants").exists)
    started = [*started_by(directory), *single.pids]
    assert len(started) == 5 and not any(gone(pid, 0.0) for pid in started)
    single.crew.kill("interrupted")
    assert single.finish().status == "interrupted"
    assert all(map(gone, started)) and single.pids == [], "a campaign that stops needs no new evaluator"
    assert single.works()
    single.crew.kill("interrupted")
    assert single.turn() == []


@pytest.mark.parametrize(("value", "status"), cases([(4.0, "pruned")], nightly=[(0.0, "failed")]))
def test_what_an_evaluation_that_did_not_complete_had_started_does_not_run_beside_the_next(
    single: Bench, value: float, status: str
) -> None:
    directory = single.start(what="leave_running", value=value, id="first")
    single.until((directory / "descendants").exists)
    assert single.finish().status == status
    assert single.works() and all(map(gone, started_by(directory)))


def test_helpers_of_libraries_are_no_reason_for_another_evaluator(single: Bench) -> None:
    single.run("complete")
    pids = single.pids
    assert single.run("tracked").status == "failed"
    assert single.works() and single.pids == pids


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
        # The first is in its group; the kernel tells nobody of the others.
        started = started_by(tmp_path / "0-0-1")
        ours = [evaluator, started[0]]
        try:
            assert not any(gone(pid, 0.0) for pid in ours)
            parent.kill()
            assert all(map(gone, ours))
        finally:
            kill_all(started)


@pytest.mark.parametrize("what", ["complete", "hang_holding_the_lock"])
def test_close_leaves_nothing_and_does_not_wait_for_an_evaluation(single: Bench, what: str) -> None:
    if what == "complete":
        single.run(what)
    else:
        single.begin(what)
    (pid,) = single.pids
    begun = time.monotonic()
    single.close(timeout_s=100.0)  # by itself, and not by force when the time is over
    assert gone(pid, 0.0) and time.monotonic() - begun < 60.0


# --- evaluators that do not start -------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", cases([1], nightly=[2]))
def test_task_that_cannot_be_loaded_fails_the_individual(make: Callable[..., Bench], size: int) -> None:
    worker = make(size, "raise KeyError('no data here')\n")
    worker.crew.prepare()
    worker.until(lambda: worker.crew.ready)
    assert worker.crew.failed_starts == 1, "before an individual is there, none is blamed"
    outcome = worker.run("complete")
    assert outcome.status == "failed" and "no data here" in outcome.error
    assert worker.crew.failed_starts == 2 and worker.crew.ready
    worker.source = SOURCE
    assert worker.works() and worker.crew.failed_starts == 0


@pytest.mark.parametrize("size", cases([1], nightly=[2]))
def test_gpu_that_does_not_work_is_no_fault_of_the_individual(make: Callable[..., Bench], size: int) -> None:
    """Evaluators find a torch built for CUDA and no device, whatever this machine has."""
    worker = make(size)
    if size == 1:
        torch_that_finds((), worker.root, built="12.8")
    else:  # the ranks' group is torch's
        (worker.root / "sitecustomize.py").write_text(
            "import torch\ntorch.version.cuda = '12.8'\ntorch.cuda.is_available = lambda: False\n"
            "torch.cuda.device_count = lambda: 0\n"
        )
    worker.environment |= {"CUDA_VISIBLE_DEVICES": "0,1", "PYTHONPATH": str(worker.root)}
    for failed in range(1, 3 if size == 1 else 2):
        outcome = worker.run("describe")
        assert outcome.status == "failed" and "cannot use its GPU, cuda:" in outcome.error
        assert HOST in outcome.error and "load the task" not in outcome.error
        assert worker.crew.failed_starts == failed and worker.crew.ready
    assert worker.works(), "it asks for no device"
    if size == 1:
        torch_that_finds((), worker.root, built=None)
        worker.settings.isolation = "fresh"
        worker.run("complete")
        assert worker.run("describe").metrics["place"] == "0 of 1, 0, cpu", "a torch without CUDA"
        assert worker.crew.failed_starts == 0
        assert worker.run("raise").status == "failed" and worker.crew.failed_starts == 0


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


def test_evaluator_is_replaced_after_a_cuda_error_that_did_not_end_the_task(
    make: Callable[..., Bench],
) -> None:
    worker = make(1, POISONED)
    assert worker.run("well").status == "completed"
    pids = worker.pids
    assert worker.run("well").status == "completed" and worker.pids == pids
    assert worker.run("poison").status == "invalid"
    assert worker.run("well").status == "completed" and worker.pids != pids


@pytest.mark.parametrize(
    ("module", "start_timeout_s", "words"),
    [
        (
            "import os\nprint('no licence', flush=True)\nos._exit(9)\n",
            60.0,
            ("exited with code 9", "no licence"),
        ),
        ("import time\ntime.sleep(3600)\n", 0.5, ("0.5 s (start_timeout)", "worker rank 0")),
    ],
)
def test_evaluator_that_does_not_get_ready_is_a_crash(
    make: Callable[..., Bench], module: str, start_timeout_s: float, words: tuple[str, ...]
) -> None:
    outcome = make(1, module, start_timeout_s=start_timeout_s).run("complete")
    assert outcome.status == "crashed" and all(word in outcome.error for word in words)


def test_no_process_to_be_had_is_a_crash(single: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(rank: int) -> EvaluatorProcess:
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(single, "child", refuse)
    outcome = single.run("complete")
    assert outcome.status == "crashed" and "no more processes" in outcome.error


def test_task_without_a_module_travels_by_value(single: Bench) -> None:
    data = bytes(5_000_000)  # more than a socket takes at once
    task = hpo.Task(hpo.SearchSpace(x=hpo.Float(0.0, 1.0)), lambda trial: len(data) + trial.params["x"])
    single.source = TaskSource.of(task)
    single.start(x=0.5)
    assert single.finish().objectives == {"value": len(data) + 0.5}


def test_kernel_without_process_descriptors_is_served_too(
    single: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(pid: int) -> int:
        raise OSError("no such system call")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    assert single.works()
    for what in ("exit", "fork"):
        assert single.run(what).status == "crashed"
    single.close()
    assert single.pids == []


# --- the messages between crew and evaluator hosts --------------------------------------------------------------------


def test_late_words_of_an_earlier_evaluator_are_not_heard(single: Bench) -> None:
    single.run("complete")
    single.begin("hang")
    single.crew.receive(pack(0, 0, Died("long ago")))
    stale = TaskOutcome(status="completed", objectives={"value": 0.0})
    single.crew.receive(pack(1, 0, EvaluationOver(turn=1, outcome=stale)))
    assert single.turn() == [] and single.crew.busy
    with pytest.raises(RuntimeError, match="cannot start while 0-0-2"):
        single.start(what="complete")
    single.crew.kill("interrupted")
    assert single.finish().status == "interrupted"
