from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import trainers
from trainers.optim.early_stopping import EarlyStopping

LR = 0.4
EPOCHS = 12.0

CLOSED_FORMS = [
    (trainers.Constant(), lambda t: LR),
    (trainers.Cosine(), lambda t: LR * (1 + math.cos(math.pi * t / EPOCHS)) / 2),
    (
        trainers.Cosine(min_lr=0.1, k_decay=2.5),
        lambda t: 0.1 + 0.3 * 0.5 * (1 + math.cos(math.pi * t**2.5 / EPOCHS**2.5)),
    ),
    (trainers.Exponential(rate_factor=0.8), lambda t: LR * math.exp(t * math.log(0.8))),
    (trainers.Exponential(rate_factor=0.1, every_epochs=12.0), lambda t: LR * 10 ** (-t / 12)),
    (trainers.InverseTime(decay=0.5), lambda t: LR / (1 + t / 2)),
    (trainers.InverseTime(decay=9.0, every_epochs=12.0), lambda t: LR / (1 + 9 * t / 12)),
    (trainers.Polynomial(), lambda t: LR * (1 - t / EPOCHS)),
    (trainers.Polynomial(power=2.0, min_lr=0.1), lambda t: 0.1 + 0.3 * (1 - t / EPOCHS) ** 2),
]
# A function's own name holds its address, which is another in each process.
NAMES = [str(schedule) for schedule, _ in CLOSED_FORMS]


@pytest.mark.parametrize(("schedule", "formula"), CLOSED_FORMS, ids=NAMES)
def test_closed_form_and_a_warm_up_that_is_a_line_and_shifts_the_course(
    schedule: trainers.Schedule, formula: Any
) -> None:
    for t in (0.0, 0.3, 1.0, 5.5, 11.9, 12.0):
        assert schedule.rate(LR, epoch=t, epochs=EPOCHS) == pytest.approx(formula(t), rel=1e-12)
    warm = dataclasses.replace(schedule, warmup_epochs=2.0, warmup_lr=0.05)
    for t in (0.0, 0.5, 1.9):
        assert warm.rate(LR, epoch=t, epochs=EPOCHS + 2) == pytest.approx(0.05 + (LR - 0.05) * t / 2)
    for t in (0.0, 0.3, 7.0, 12.0):
        assert warm.rate(LR, epoch=2 + t, epochs=EPOCHS + 2) == pytest.approx(formula(t), rel=1e-12)


def test_drops_come_at_the_very_epoch_that_follows_the_warm_up() -> None:
    schedule = trainers.Drops(at=(0.5, 0.75), factor=0.1, warmup_epochs=2.0)
    rates = [
        schedule.rate(LR, epoch=2 + epoch, epochs=2 + EPOCHS) for epoch in (5.999, 6.0, 8.999, 9.0, 12.0)
    ]
    assert rates == pytest.approx([LR, 0.1 * LR, 0.1 * LR, 0.01 * LR, 0.01 * LR])


def test_a_rate_below_the_least_one_is_not_raised_to_it() -> None:
    schedule = trainers.ReduceOnPlateau(metric="loss", patience=0, min_lr=0.2)
    flat = [{"epoch": 1.0, "loss": 1.0}, {"epoch": 2.0, "loss": 1.0}, {"epoch": 3.0, "loss": 1.0}]
    assert schedule.rate(0.5, epoch=3.0, epochs=EPOCHS, history=flat) == 0.2
    assert schedule.rate(0.05, epoch=3.0, epochs=EPOCHS, history=flat) == 0.05
    line = trainers.Polynomial(min_lr=0.2)
    assert [line.rate(0.05, epoch=t, epochs=EPOCHS) for t in (0.0, 5.5, 12.0)] == [0.05] * 3


@given(
    st.lists(st.sampled_from([0.1, 0.2, 0.25, 0.3, 0.5, 1.0, math.nan]), max_size=40),
    st.integers(0, 3),
    st.sampled_from(["minimize", "maximize"]),
    st.sampled_from([0.0, 0.06]),
)
def test_reduce_on_plateau_is_torch_s(
    values: list[float], patience: int, direction: str, min_delta: float
) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=LR)
    peer = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer,
        mode=direction[:3],  # type: ignore[arg-type]
        factor=0.5,
        patience=patience,
        threshold=min_delta,
        threshold_mode="abs",
        min_lr=0.02,
    )
    ours = trainers.ReduceOnPlateau(
        metric="loss", direction=direction, patience=patience, min_delta=min_delta, min_lr=0.02
    )
    history: list[dict[str, float]] = []
    for epoch, value in enumerate(values):
        peer.step(value)
        history.append({"loss": value})
        rate = ours.rate(LR, epoch=epoch + 1, epochs=40, history=history)
        assert rate == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-6)


def test_reduce_on_plateau_counts_from_the_end_of_the_warm_up() -> None:
    schedule = trainers.ReduceOnPlateau(metric="loss", patience=1, warmup_epochs=3)
    flat = [{"loss": 1.0}] * 5
    assert schedule.rate(LR, epoch=5, epochs=9, history=flat) == LR
    assert schedule.rate(LR, epoch=6, epochs=9, history=[*flat, {"loss": 1.0}]) == LR / 2
    # What it keeps of a history makes equal schedules no different.
    fresh = trainers.ReduceOnPlateau(metric="loss", patience=1, warmup_epochs=3)
    assert (schedule, hash(schedule), repr(schedule)) == (fresh, hash(fresh), repr(fresh))


def losses(*values: float) -> list[dict[str, float]]:
    return [{"validation_loss": value} for value in values]


def test_early_stopping() -> None:
    stopping = EarlyStopping(patience=2)
    assert not stopping.should_stop(losses())
    assert not stopping.should_stop(losses(3, 2, 2.5))
    assert stopping.should_stop(losses(3, 2, 2.5, 2))
    assert not stopping.should_stop(losses(3, 2, 2.5, 1.9))
    assert stopping.best_epoch(losses(3, 2, 2.5, 1.9)) == 3
    # Equal is not better: the first of equals is the best.
    assert stopping.best_epoch(losses(3, 2, 2, 2)) == 1
    assert stopping.should_stop(losses(math.nan, math.nan))
    assert stopping.best_epoch(losses(math.nan)) is None


def test_early_stopping_asks_for_more_than_min_delta_over_the_best_not_over_the_last() -> None:
    stopping = EarlyStopping(metric="accuracy", direction="maximize", patience=2, min_delta=0.1)
    slowly = [{"accuracy": value} for value in (0.5, 0.58, 0.66)]
    assert stopping.best_epoch(slowly) == 2
    assert stopping.should_stop([{"accuracy": value} for value in (0.5, 0.58, 0.59)])
