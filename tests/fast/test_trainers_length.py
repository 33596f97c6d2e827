"""Runs whose length and evaluations are counted in steps, and the hook of each step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cases import cases
from models import small_model, train_small
from resuming import assert_identical, assert_same_in_pieces, state_of, without_times

import trainers


def at(result: trainers.Result) -> list[float]:
    return [entry["steps"] for entry in result.history]


def test_as_many_steps_as_some_epochs_have_are_the_same_run() -> None:
    by_epochs, by_steps = small_model(), small_model()
    expected = train_small(by_epochs, epochs=3, schedule=trainers.Cosine(warmup_epochs=0.5))
    found = train_small(by_steps, steps=15, schedule=trainers.Cosine(warmup_epochs=0.5))
    assert without_times(found) == without_times(expected)
    assert at(found) == [5, 10, 15]
    assert_identical(state_of(by_epochs), state_of(by_steps))


def test_evaluations_within_epochs_leave_the_training_as_it_is() -> None:
    plain, evaluated = small_model(), small_model()
    steps: list[tuple[int, float]] = []
    whole = train_small(
        plain, epochs=2, on_step=lambda step, values: steps.append((step, float(values["loss"])))
    )
    found = train_small(evaluated, epochs=2, evaluate_every=3)
    assert at(found) == [3, 6, 9, 10]
    assert [entry["epoch"] for entry in found.history] == [0.6, 1.2, 1.8, 2.0]
    assert_identical(state_of(plain), state_of(evaluated))
    assert found.metrics["validation_loss"] == whole.metrics["validation_loss"]
    # Each entry's loss is the mean of its own steps, whatever the epochs.
    losses = dict(steps)
    for entry, first, last in zip(found.history, (1, 4, 7, 10), (3, 6, 9, 10), strict=True):
        mean = sum(losses[step] for step in range(first, last + 1)) / (last + 1 - first)
        assert entry["train_loss"] == pytest.approx(mean, rel=1e-12)


@pytest.mark.parametrize(
    ("every", "expected"), [(None, [5, 10, 12]), (0.5, [6, 12]), (100, [12]), (1.0, [12]), (4, [4, 8, 12])]
)
def test_an_int_counts_steps_and_a_float_is_a_fraction_of_the_run(every: Any, expected: list[int]) -> None:
    reports: list[tuple[int, Any]] = []
    rates: list[Any] = []
    result = train_small(
        small_model(),
        steps=12,
        evaluate_every=every,
        schedule=trainers.Polynomial(),
        report=lambda number, metrics: reports.append((number, metrics)),
        on_step=lambda step, values: rates.append(values["lr"]),
    )
    assert at(result) == expected
    assert reports == list(enumerate(result.history, 1))
    assert (result.reason, result.metrics["epoch"]) == ("finished", 2.4)
    # The schedule ends with the run, whose last epoch is cut short.
    assert rates == pytest.approx([0.1 * (1 - step / 12) for step in range(12)])


@pytest.mark.parametrize("pieces", cases([4], nightly=[1, 3]))
def test_a_run_in_pieces_ends_with_the_same_bits(tmp_path: Path, pieces: int) -> None:
    settings: dict[str, Any] = {
        "steps": 13,
        "evaluate_every": 3,
        "checkpoint_every": 2,
        "schedule": trainers.ReduceOnPlateau(patience=0, metric="validation_loss", warmup_epochs=0.5),
    }
    assert_same_in_pieces(train_small, small_model, tmp_path, [pieces] * (12 // pieces), **settings)


def test_patience_counts_evaluations_and_the_best_one_is_restored() -> None:
    losses = iter([3.0, 1.0, 2.0, 2.0, 0.5])
    kept: list[dict[str, torch.Tensor]] = []
    net = small_model()

    def falling(outputs: torch.Tensor, targets: torch.Tensor) -> float:
        kept.append(state_of(net))
        return next(losses)

    result = train_small(
        net,
        steps=100,
        evaluate_every=3,
        metrics={"score": falling},
        early_stopping=trainers.EarlyStopping(metric="score", patience=2, restore_best=True),
    )
    assert (result.reason, at(result), result.metrics["steps"]) == ("stopped early", [3, 6, 9, 12], 6)
    assert_identical(state_of(net), kept[1])


def test_the_step_hook_sees_the_gradients_norm_and_may_end_the_run() -> None:
    class Enough(Exception):
        pass

    seen: list[dict[str, Any]] = []

    def look(step: int, values: dict[str, Any]) -> None:
        seen.append(values)
        if step == 3:
            raise Enough

    with pytest.raises(Enough):
        train_small(small_model(), steps=9, clip_norm=0.1, on_step=look)
    assert [set(values) for values in seen] == [{"loss", "lr", "gradient_norm"}] * 3
    assert not seen[0]["loss"].requires_grad
