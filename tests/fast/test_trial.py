"""A trial hands reports and questions to its link, and its directory exists from the first use on."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from individuals import make_job

import trainers
from hpo.errors import Pruned, UsageError
from hpo.task.trial import Trial, attempt, checkpoint_in


class Recorder:
    """A link that remembers what passes it and prunes from ``limit`` on."""

    device = "cpu"

    def __init__(self, limit: float = 10.0, comm: object | None = None, *, stops: bool = True) -> None:
        self.limit = limit
        self.stops = stops
        self.comm = comm
        self.reports: list[tuple[int, float]] = []
        self.last_steps: list[int | None] = []

    def report(self, step: int, value: float, last_step: int | None) -> bool:
        self.reports.append((step, value))
        self.last_steps.append(last_step)
        return value >= self.limit

    def should_checkpoint_soon(self) -> bool:
        return self.should_checkpoint()

    def should_checkpoint(self) -> bool:
        return self.stops and len(self.reports) > 1


def make(link: Recorder, directory: Path, **changes: bool) -> Trial:
    job = make_job(id="0-0-1", params={"lr": 0.1}, seed=3, directory=str(directory / "0-0-1"))
    return Trial(link, job, **changes)


def test_report_prunes_when_the_link_says_so(tmp_path: Path) -> None:
    link = Recorder()
    trial = make(link, tmp_path)
    trial.report(0, np.float32(2.0))
    assert not trial.should_checkpoint()
    with pytest.raises(Pruned, match="step 1") as pruned:
        trial.report(np.int64(1), 10)
    assert pruned.value.on_all_ranks and not Pruned().on_all_ranks
    assert link.reports == [(0, 2.0), (1, 10.0)] and trial.should_checkpoint()
    assert trial.last_report == (1, 10.0)


def train_two_numbers(**more: Any) -> trainers.Result:
    import torch
    from torch.utils.data import TensorDataset

    data = TensorDataset(torch.ones(8, 1), torch.ones(8, 1))
    return trainers.train(
        torch.nn.Linear(1, 1),
        data,
        data,
        loss=torch.nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        epochs=5,
        batch_size=4,
        **more,
    )


def test_training_is_all_that_trainers_needs(tmp_path: Path) -> None:
    link = Recorder(limit=math.inf)
    trial = make(link, tmp_path)
    with pytest.raises(trainers.Interrupted):  # this link wants to stop after two reports
        train_two_numbers(**trial.training(value="validation_loss"))
    assert [step for step, _ in link.reports] == [1, 2] and link.last_steps == [5, 5]
    link = Recorder(limit=math.inf, stops=False)
    train_two_numbers(**make(link, tmp_path).training(value="validation_loss"))
    assert [step for step, _ in link.reports] == [3, 4, 5], "it goes on where it was"


def test_training_ends_early_at_a_last_step_that_the_campaign_knows(tmp_path: Path) -> None:
    link = Recorder(limit=math.inf, stops=False)
    stopping = trainers.EarlyStopping(patience=1, min_delta=1e9)
    train_two_numbers(**make(link, tmp_path).training(value="validation_loss"), early_stopping=stopping)
    assert [step for step, _ in link.reports] == [1, 2] and link.last_steps == [5, 2]


@pytest.mark.parametrize("returned", [0.3, math.nan])
def test_a_training_that_diverged_and_counts_is_named(tmp_path: Path, returned: float) -> None:
    def evaluate(trial: Trial) -> float:
        result = train_two_numbers(
            **trial.training(value="one"),
            metrics={"one": lambda outputs, targets: 1.0},
            schedule=trainers.Constant(warmup_epochs=0.5, warmup_lr=1e30),
        )
        assert result.reason == "diverged"
        return returned

    link = Recorder(limit=math.inf, stops=False)
    outcome = attempt(evaluate, make(link, tmp_path), ("value",))
    assert outcome.status == ("completed" if returned == 0.3 else "invalid"), outcome.error
    named = [sentence for sentence in outcome.remarks.values() if "was not finite in epoch 1" in sentence]
    assert len(named) == (returned == 0.3)


def test_a_metric_that_training_does_not_record_is_refused(tmp_path: Path) -> None:
    def on_step(steps: int, values: object) -> None:
        raise AssertionError("it is refused before the first step")

    with pytest.raises(UsageError, match=r"'validation_los'.*Did you mean \"validation_loss\""):
        train_two_numbers(**make(Recorder(), tmp_path).training(value="validation_los"), on_step=on_step)


@pytest.mark.parametrize(
    ("step", "value"),
    [
        (0, None), (0, "1"), (0, [1.0]), (0, True),
        (0.25, 3), ("a", 1.0), (np.float32(1), 1.0), (2**53 + 1, 1.0), (-1, 1.0),
    ],
)  # fmt: skip
def test_report_refuses_what_is_no_number_or_no_step(tmp_path: Path, step: Any, value: object) -> None:
    link = Recorder()
    wrong = value if step == 0 else step
    with pytest.raises(UsageError, match=rf"trial\.report.* not {re.escape(repr(wrong))}"):
        make(link, tmp_path).report(step, value)
    make(link, tmp_path).report(2**53, 1.0)
    assert link.reports == [(2**53, 1.0)]


def test_a_training_goes_on_from_what_was_saved_last_by_whichever_number_of_ranks(tmp_path: Path) -> None:
    assert checkpoint_in(tmp_path, 3) == tmp_path / "3-ranks"
    for ranks, at in ((3, 10), (2, 30), (4, 20)):
        (tmp_path / f"{ranks}-ranks").mkdir()
        latest = tmp_path / f"{ranks}-ranks" / "latest"
        latest.touch()
        os.utime(latest, ns=(at, at))
    (tmp_path / "5-ranks").mkdir()  # nothing was saved there
    assert checkpoint_in(tmp_path, 3) == checkpoint_in(tmp_path, 5) == tmp_path / "2-ranks"


def test_a_training_that_has_saved_is_interrupted_and_has_not_failed(tmp_path: Path) -> None:
    """``trainers.train(…, interrupt=trial.should_checkpoint)`` needs nothing around it."""

    def evaluate(trial: Trial) -> float:
        return train_two_numbers(
            checkpoint=trial.directory / "1-ranks",
            interrupt=trial.should_checkpoint,
            report=lambda epoch, metrics: trial.report(epoch, 0.0),
        ).metrics["epoch"]

    def nowhere(trial: Trial) -> float:
        raise trainers.Interrupted("nothing is saved, as no checkpoint was named")

    link = Recorder()
    first = attempt(evaluate, make(link, tmp_path), ["value"])
    assert (first.status, first.error) == ("interrupted", None)
    link.stops = False
    second = attempt(evaluate, make(link, tmp_path), ["value"])
    assert (second.status, second.objectives) == ("completed", {"value": 5.0})
    assert [step for step, _ in link.reports] == [1, 2, 3, 4, 5]
    outcome = attempt(nowhere, make(Recorder(), tmp_path), ["value"])
    assert outcome.status == "failed" and "no checkpoint was named" in (outcome.error or "")


def test_directory_appears_at_first_use_and_a_stale_one_is_emptied_once(tmp_path: Path) -> None:
    trial = make(Recorder(), tmp_path)
    assert list(tmp_path.iterdir()) == []
    (trial.directory / "model.pt").write_text("state")
    assert trial.directory == tmp_path / "0-0-1"
    assert (make(Recorder(), tmp_path).directory / "model.pt").exists(), "as it may be resumed"
    again = make(Recorder(), tmp_path, stale=True)
    assert not (again.directory / "model.pt").exists()
    (again.directory / "model.pt").write_text("new")
    assert (again.directory / "model.pt").exists()


def test_comm_is_there_only_inline(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="inline"):
        _ = make(Recorder(), tmp_path).comm
    comm = object()
    assert make(Recorder(comm=comm), tmp_path).comm is comm


def test_alone_is_never_pruned_and_has_a_copy_of_the_params(tmp_path: Path) -> None:
    params = {"lr": 0.1}
    trial = Trial.alone(params, directory=tmp_path / "x", rank=1, size=2, device="cuda:1")
    trial.report(0, float("nan"))
    assert not trial.should_checkpoint() and trial.device == "cuda:1" and (trial.rank, trial.size) == (1, 2)
    trial.params["lr"] = 0.2
    assert trial.directory.is_dir() and params == {"lr": 0.1}
