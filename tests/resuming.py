"""What the tests of all methods need to compare a run in a piece with one that was interrupted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hpo
import trainers


class After:
    """True from the given call on."""

    def __init__(self, calls: int) -> None:
        self.left = calls

    def __call__(self) -> bool:
        self.left -= 1
        return self.left < 0


def without_times(result: trainers.Result) -> list[dict[str, float]]:
    return [{name: v for name, v in entry.items() if not name.endswith("_s")} for entry in result.history]


def state_of(net: nn.Module) -> dict[str, Tensor]:
    """Whole tensors of ``net``; of a sharded one on all of its ranks at once."""
    return {name: getattr(v, "full_tensor", v.detach)().clone() for name, v in net.state_dict().items()}


def assert_identical(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


def assert_same_in_pieces(
    train: Callable[..., trainers.Result],
    make: Callable[[], nn.Module],
    directory: Path | str,
    stops: Iterable[int],
    **options: Any,
) -> nn.Module:
    """A run that is interrupted after so many steps each, and goes on each time with a fresh model, ends with the
    weights and metrics of an undisturbed one, whose model this returns."""
    whole, pieces = make(), make()
    expected = train(whole, **{**options, "checkpoint_every": None})
    options["checkpoint"] = directory
    for stop in stops:
        with pytest.raises(trainers.Interrupted):
            train(make(), interrupt=After(stop), **options)
    found = train(pieces, **options)
    assert without_times(found) == without_times(expected)
    assert_identical(state_of(whole), state_of(pieces))
    return whole


class _Stopping(hpo.Trial):
    """Is asked to stop before the given step."""

    __slots__ = ("left",)

    def _should_checkpoint_soon(self) -> bool:
        return self.should_checkpoint()

    def should_checkpoint(self) -> bool:
        self.left -= 1
        return bool(self.left < 0)


def stopped(task: hpo.Task, params: dict[str, Any], directory: Path, *, steps: int) -> None:
    """An evaluation that is interrupted after as many steps."""
    trial = _Stopping.alone(params, directory=directory)
    assert isinstance(trial, _Stopping)
    trial.left = steps
    with pytest.raises(trainers.Interrupted):
        task.evaluate(trial)


def in_two_pieces(task: hpo.Task, params: dict[str, Any], home: Path, *, steps: int) -> dict[str, float]:
    """The result of an evaluation that was interrupted after as many steps: that of a whole one, but for times."""
    whole = task.evaluate(hpo.Trial.alone(params, directory=home / "whole"))
    stopped(task, params, home / "pieces", steps=steps)
    found = task.evaluate(hpo.Trial.alone(params, directory=home / "pieces"))
    assert isinstance(whole, dict) and isinstance(found, dict)
    results = [{name: value for name, value in one.items() if name[-2:] != "_s"} for one in (whole, found)]
    assert results[0] == results[1]
    return results[0]
