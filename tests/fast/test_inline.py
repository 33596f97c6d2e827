"""Evaluations inside the rank: one rank, and two that share a communicator, played by two threads."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from individuals import make_job

import hpo
from hpo.evaluation.gpu import OwnDevice
from hpo.evaluation.inline import InlineCrew, InlineHost
from hpo.islands.background import BackgroundTurns
from hpo.journal.commands import Stop, asked
from hpo.ledger.opening import give
from hpo.search.protocols import GO, STOP, ReportHandler
from hpo.task.limits import UNLIMITED
from hpo.task.outcome import TaskOutcome
from hpo.task.trial import Job


class ThreadedComm:
    """The ``bcast`` of a communicator of two threads."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(2, timeout=30)
        self.value: object = None

    def of(self, rank: int) -> Any:
        def bcast(obj: Any, root: int = 0) -> Any:
            if rank == root:
                self.value = obj
            self.barrier.wait()
            value = self.value
            self.barrier.wait()
            return value

        return SimpleNamespace(bcast=bcast)


def job(directory: Path, resumed: bool = False, **params: Any) -> Job:
    return make_job(id="0-0-1", params=params, seed=1, directory=str(directory / "0-0-1"), resumed=resumed)


def run(crew: InlineCrew, order: Job) -> TaskOutcome:
    crew.start(order)
    if crew.pending:
        assert crew.busy and not crew.ready and not crew.gone and crew.poll() == []
        crew.evaluate()
    assert crew.ready and not crew.busy and crew.gone
    (outcome,) = crew.poll()
    assert crew.poll() == []
    return outcome


def task_of(evaluate: Callable[[hpo.Trial], object]) -> Any:
    return SimpleNamespace(run=evaluate, objectives=("value",), limits=UNLIMITED)


def crew_of(
    evaluate: Callable[[hpo.Trial], object], *, on_report: ReportHandler | None = None, **more: Any
) -> InlineCrew:
    crew = InlineCrew(task=task_of(evaluate), **more)
    if on_report is not None:
        crew.listen(on_report)
    return crew


def test_values_and_exceptions_are_results_and_ctrl_c_is_the_campaigns(tmp_path: Path) -> None:
    def fail(trial: hpo.Trial) -> float:
        raise trial.params["kind"]

    outcome = run(crew_of(lambda trial: trial.params["x"]), job(tmp_path, x=0.5))
    assert outcome.objectives == {"value": 0.5} and list(tmp_path.iterdir()) == []
    outcome = run(crew_of(fail), job(tmp_path, kind=ValueError("bad")))
    assert outcome.status == "failed" and "ValueError: bad" in outcome.error
    assert "/trial.py" not in outcome.error
    assert run(crew_of(fail), job(tmp_path, kind=SystemExit(2))).status == "failed"
    crew = crew_of(fail)
    crew.start(job(tmp_path, kind=KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        crew.evaluate()


def test_directory_is_emptied_unless_resumed(tmp_path: Path) -> None:
    def count(trial: hpo.Trial) -> float:
        found = len(list(trial.directory.iterdir()))
        (trial.directory / "state").touch()
        return found

    crew = crew_of(count)
    found = [run(crew, job(tmp_path, resumed=resumed)).objectives for resumed in (False, False, True)]
    assert found == [{"value": 0.0}, {"value": 0.0}, {"value": 1.0}]


@pytest.mark.parametrize(
    ("what", "status"),
    [("complete", "completed"), ("report", "pruned"), ("raise", "failed"), ("stop", "interrupted")],
)
def test_two_ranks_evaluate_together(tmp_path: Path, what: str, status: str) -> None:
    comm = ThreadedComm()
    sides = [comm.of(0), comm.of(1)]
    ranks: list[tuple[int, int]] = []

    def evaluate(trial: hpo.Trial) -> float:
        ranks.append((trial.rank, trial.size))
        assert trial.comm is sides[trial.rank]
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
        host.receive(message)
        assert host.pending and not host.gone
        threads.append(threading.Thread(target=host.evaluate))
        threads[-1].start()

    crew = crew_of(
        evaluate,
        size=2,
        comm=sides[0],
        send=send,
        on_report=lambda report: STOP if report.value >= 2 else GO,
        stopping=lambda: True,
    )
    host = InlineHost(worker_rank=1, size=2, task=task_of(evaluate), comm=sides[1], send=to_crew.append)
    crew.start(job(tmp_path))
    crew.evaluate()
    assert crew.poll() == [] and crew.busy, "the other rank has not told its end yet"
    threads[0].join(30)
    assert host.gone
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


def test_what_runs_is_not_ended_and_counts_unless_other_ranks_are_missing(tmp_path: Path) -> None:
    crew = crew_of(lambda trial: 1.0)
    crew.start(job(tmp_path))
    crew.kill("interrupted")
    assert crew.busy and not crew.gone and crew.poll() == []
    crew.evaluate()
    (outcome,) = crew.poll()
    assert outcome.status == "completed"
    comm = ThreadedComm().of(0)
    crew = crew_of(lambda trial: 1.0, size=2, comm=comm, send=lambda worker_rank, message: None)
    crew.start(job(tmp_path))
    crew.kill("interrupted")
    crew.evaluate()
    (outcome,) = crew.poll()
    assert outcome.status == "interrupted" and not crew.busy
    crew.start(job(tmp_path))
    crew.disband()
    assert not crew.gone and not crew.ready, "its directory is still in use"
    crew.evaluate()
    assert crew.gone and crew.poll() == []


def test_a_task_that_returns_nothing_ends_the_launch_however_it_reports(tmp_path: Path) -> None:
    def evaluate(trial: hpo.Trial) -> None:
        trial.report(1, 0.5)

    task = hpo.Task(hpo.SearchSpace(x=hpo.Float(0, 1)), evaluate)
    with pytest.raises(hpo.CampaignError, match=r"(?s)evaluations failed and none completed.*returned None"):
        hpo.Campaign(
            task, directory=tmp_path / "run", evaluations=60, isolation="inline", kind="random"
        ).run()


def test_after_a_deadline_what_paused_can_go_on(tmp_path: Path) -> None:
    def evaluate(trial: hpo.Trial) -> float:
        saved = trial.directory / "step"
        for step in range(int(saved.read_text()) + 1 if saved.exists() else 1, 10):
            saved.write_text(str(step))
            trial.report(step, float(trial.params["x"]))
            if trial.should_checkpoint():
                raise hpo.Interrupted
        return float(trial.params["x"])

    task = hpo.Task(hpo.SearchSpace(x=hpo.Float(0, 1)), evaluate, steps=9)
    keywords = {"isolation": "inline", "pruner": "halving", "kind": "random", "checkpoints": True, "keep": 1}
    result = hpo.Campaign(task, directory=tmp_path / "run", deadline=1.0, **keywords).run()
    assert result.reason == "deadline"
    paused = [one.id for one in result.individuals if one.status == "pruned"]
    there = [identity for identity in paused if (tmp_path / "run/evaluations" / identity / "step").exists()]
    assert len(paused) > 10 and len(there) > 8, "the latest that a leader keeps"


def test_a_stop_from_outside_is_heard_during_an_evaluation(tmp_path: Path) -> None:
    def evaluate(trial: hpo.Trial) -> float:
        give(tmp_path / "run", Stop(**asked()))
        end = time.monotonic() + 20
        while time.monotonic() < end:
            if trial.should_checkpoint():
                raise hpo.Interrupted
            time.sleep(0.01)
        return 1.0

    task = hpo.Task(hpo.SearchSpace(x=hpo.Float(-1, 1)), evaluate)
    result = hpo.Campaign(task, directory=tmp_path / "run", evaluations=2, isolation="inline").run()
    assert result.reason == "stopped" and [one.status for one in result.individuals] == ["interrupted"]


def test_what_ends_the_event_loop_during_an_evaluation_is_raised_after_it() -> None:
    lock, failed = threading.Lock(), threading.Event()
    reported: list[BaseException] = []

    def turn() -> float:
        assert lock.locked()
        raise OSError("no space")

    def fail(error: BaseException) -> None:
        reported.append(error)
        failed.set()

    with (
        BackgroundTurns(lock=lock, turn=turn, wait=lambda seconds: None, failed=fail) as beside,
        pytest.raises(OSError, match="no space") as raised,
    ):
        beside.evaluate(lambda: None if failed.wait(20) else pytest.fail("no turn was taken"))
    assert reported == [raised.value]


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
