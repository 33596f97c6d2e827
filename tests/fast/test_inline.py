"""Evaluations inside the rank: one rank, and two that share a communicator, played by two threads."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hpo
from hpo.evaluation.cuda import OwnDevice
from hpo.evaluation.inline import InlineCrew, InlineHost
from hpo.search.protocols import GO, STOP, TrialReport, Verdict
from hpo.task.outcome import Outcome
from hpo.task.trial import Job


class ThreadedComm:
    """The ``bcast`` of a communicator of two threads."""

    def __init__(self) -> None:
        self._barrier = threading.Barrier(2, timeout=30)
        self._value: object = None

    def of(self, rank: int) -> ThreadedComm.Side:
        return ThreadedComm.Side(self, rank)

    class Side:
        def __init__(self, comm: ThreadedComm, rank: int) -> None:
            self._comm = comm
            self._rank = rank

        def bcast(self, obj: Any, root: int = 0) -> Any:
            if self._rank == root:
                self._comm._value = obj
            self._comm._barrier.wait()
            value = self._comm._value
            self._comm._barrier.wait()
            return value


def job(directory: Path, resumed: bool = False, **params: Any) -> Job:
    return Job(id="0-0-1", params=params, seed=1, directory=str(directory / "0-0-1"), resumed=resumed)


def run(crew: InlineCrew, order: Job) -> Outcome:
    crew.start(order)
    assert crew.ready and not crew.busy
    (outcome,) = crew.poll()
    assert crew.poll() == []
    return outcome


def crew_of(evaluate: Callable[[hpo.Trial], object], **more: Any) -> InlineCrew:
    return InlineCrew(evaluate=evaluate, objectives=("value",), **more)


def test_outcome_is_there_when_start_returns_and_nothing_is_written(tmp_path: Path) -> None:
    outcome = run(crew_of(lambda trial: trial.params["x"]), job(tmp_path, x=0.5))
    assert outcome.objectives == {"value": 0.5} and list(tmp_path.iterdir()) == []


def test_exceptions_are_failures_and_ctrl_c_is_the_campaigns(tmp_path: Path) -> None:
    def fail(trial: hpo.Trial) -> float:
        raise trial.params["kind"]

    outcome = run(crew_of(fail), job(tmp_path, kind=ValueError("bad")))
    assert (
        outcome.status == "failed" and "ValueError: bad" in outcome.error and "/trial.py" not in outcome.error
    )
    assert run(crew_of(fail), job(tmp_path, kind=SystemExit(2))).status == "failed"
    with pytest.raises(KeyboardInterrupt):
        crew_of(fail).start(job(tmp_path, kind=KeyboardInterrupt()))


def test_reports_prune_and_stopping_interrupts(tmp_path: Path) -> None:
    def train(trial: hpo.Trial) -> float:
        for step in range(10):
            trial.report(step, step)
            if trial.should_checkpoint():
                raise hpo.Interrupted
        return 1.0

    reports: list[tuple[str, int, float]] = []

    def prune(report: TrialReport) -> Verdict:
        reports.append((report.id, report.step, report.value))
        return STOP if report.value >= 2 else GO

    assert run(crew_of(train, on_report=prune), job(tmp_path)).status == "pruned"
    assert reports == [("0-0-1", step, float(step)) for step in range(3)]
    assert run(crew_of(train, stopping=lambda: True), job(tmp_path)).status == "interrupted"
    assert run(crew_of(train), job(tmp_path)).status == "completed"


def test_directory_is_emptied_unless_resumed(tmp_path: Path) -> None:
    def count(trial: hpo.Trial) -> float:
        found = len(list(trial.directory.iterdir()))
        (trial.directory / "state").touch()
        return found

    crew = crew_of(count)
    for resumed, found in ((False, 0.0), (False, 0.0), (True, 1.0)):
        assert run(crew, job(tmp_path, resumed=resumed)).objectives == {"value": found}


def test_communicator_is_handed_to_the_task(tmp_path: Path) -> None:
    comm = ThreadedComm().of(0)
    seen: list[object] = []
    crew = crew_of(lambda trial: seen.append(trial.comm) or 0.0, comm=comm)
    assert run(crew, job(tmp_path)).status == "completed" and seen == [comm]
    outcome = run(crew_of(lambda trial: trial.comm), job(tmp_path))
    assert outcome.status == "failed" and "inline" in outcome.error


@pytest.mark.parametrize(
    ("what", "status"),
    [("complete", "completed"), ("report", "pruned"), ("raise", "failed"), ("stop", "interrupted")],
)
def test_two_ranks_evaluate_together(tmp_path: Path, what: str, status: str) -> None:
    comm = ThreadedComm()
    ranks: list[tuple[int, int]] = []

    def evaluate(trial: hpo.Trial) -> float:
        ranks.append((trial.rank, trial.size))
        if what == "raise" and trial.rank:
            raise ValueError("one rank only")
        if what == "report":
            for step in range(10):
                trial.report(step, step + 100 * trial.rank)
        if what == "stop" and trial.should_checkpoint():
            raise hpo.Interrupted
        return float(trial.rank)

    to_crew: deque[dict[str, Any]] = deque()
    threads: list[threading.Thread] = []

    def send(worker_rank: int, message: dict[str, Any]) -> None:
        assert worker_rank == 1
        threads.append(threading.Thread(target=host.receive, args=(message,)))
        threads[-1].start()

    crew = crew_of(
        evaluate,
        size=2,
        comm=comm.of(0),
        send=send,
        on_report=lambda report: STOP if report.value >= 2 else GO,
        stopping=lambda: True,
    )
    host = InlineHost(
        worker_rank=1, size=2, evaluate=evaluate, objectives=("value",), comm=comm.of(1), send=to_crew.append
    )
    crew.start(job(tmp_path))
    assert crew.poll() == [] and crew.busy, "the other rank has not told its end yet"
    threads[0].join(30)
    crew.receive(to_crew.popleft())
    (outcome,) = crew.poll()
    assert outcome.status == status and sorted(ranks) == [(0, 2), (1, 2)]
    if status == "completed":
        assert outcome.objectives == {"value": 0.0}
    if status == "failed":
        assert outcome.error.startswith("worker rank 1: ")


def test_a_device_that_does_not_work_is_no_fault_of_the_individual(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise RuntimeError("No CUDA GPUs are available")

    gpus = SimpleNamespace(is_available=lambda: False, device_count=lambda: 0, init=refuse)
    monkeypatch.setitem(
        sys.modules, "torch", SimpleNamespace(cuda=gpus, version=SimpleNamespace(cuda="12.8"))
    )

    def careless(trial: hpo.Trial) -> float:
        try:
            return float(trial.device == "cuda:0")
        except Exception:
            return 0.5

    crew = crew_of(careless, device=OwnDevice("cuda:0", label="rank 0 on node7"))
    for failed in (1, 2):
        outcome = run(crew, job(tmp_path))
        assert outcome.status == "failed" and outcome.error.startswith("rank 0 on node7 cannot use its GPU")
        assert crew.failed_starts == failed
    gpus.is_available, gpus.device_count = lambda: True, lambda: 1
    assert run(crew, job(tmp_path)).objectives == {"value": 1.0} and crew.failed_starts == 0


def test_worker_of_several_ranks_needs_a_communicator() -> None:
    with pytest.raises(ValueError, match="comm and send"):
        crew_of(lambda trial: 0.0, size=2)


def test_an_error_of_the_directory_itself_is_the_storage_s_and_any_other_the_task_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(28, "No space left on device")

    def make_directory(path: Path) -> None:
        raise full

    def writes(trial: hpo.Trial) -> float:
        raise full

    def goes_without(trial: hpo.Trial) -> float:
        with suppress(OSError):
            assert trial.directory
        return 1.0

    def needs_it(trial: hpo.Trial) -> float:
        return float(len(str(trial.directory)))

    monkeypatch.setattr("hpo.task.trial.make_directory", make_directory)
    ends = [run(crew_of(evaluate), job(tmp_path)) for evaluate in (writes, goes_without, needs_it)]
    assert [one.status for one in ends] == ["failed", "completed", "failed"]
    assert [one.storage for one in ends] == [False, False, True]
    assert ends[2].error == f"{tmp_path / '0-0-1'}: No space left on device"
