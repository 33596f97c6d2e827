"""Options of ``trainers.train`` as values and as keywords: the same run, and what is wrong is refused at once."""

from __future__ import annotations

import dataclasses
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import TensorDataset

import trainers
from trainers.options import Keywords

KINDS = (
    trainers.Optimisation,
    trainers.DataLoading,
    trainers.Checkpointing,
    trainers.Monitoring,
    trainers.Ranks,
)


def train(**changed: Any) -> torch.Tensor:
    torch.manual_seed(0)
    net = nn.Linear(3, 1)
    samples = TensorDataset(torch.randn(12, 3), torch.randn(12, 1))
    settings: dict[str, Any] = {
        "loss": mse_loss,
        "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.5),
        "epochs": 2,
        "batch_size": 2,
    }
    trainers.train(net, samples, **{**settings, **changed})
    return net.weight.detach()


def test_type_checkers_know_each_field_as_a_keyword() -> None:
    declared = {field.name: field.type for kind in KINDS for field in dataclasses.fields(kind)}
    assert declared == {name: hint.__forward_arg__ for name, hint in Keywords.__annotations__.items()}


def test_a_value_and_its_keywords_give_the_same_run() -> None:
    by_keyword = train(clip_norm=0.01, accumulate=2)
    assert torch.equal(by_keyword, train(optimisation=trainers.Optimisation(clip_norm=0.01, accumulate=2)))
    assert torch.equal(
        by_keyword, train(optimisation=trainers.Optimisation(clip_norm=0.01), accumulate=2, ranks=None)
    )
    assert not torch.equal(by_keyword, train())


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (
            {"clip_norm": 1.0, "optimisation": trainers.Optimisation(clip_norm=2.0)},
            ValueError,
            r"^clip_norm is given twice: as a keyword, and in optimisation\. Leave one",
        ),
        ({"ranks": 2}, ValueError, r"^ranks = 2: must be a trainers\.Ranks\(…\), or None"),
        (
            {"clip_nrom": 1.0},
            TypeError,
            r"^train\(\) has no keyword 'clip_nrom'\. Did you mean 'clip_norm'\?",
        ),
        ({"xyz": 1.0}, TypeError, r"has no keyword 'xyz'\. help\(trainers\.train\) lists all"),
    ],
)
def test_what_cannot_be_combined_is_refused(given: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        train(**given)


def test_utilisation_needs_both_costs_above_0() -> None:
    with pytest.raises(ValueError, match=r"mfu needs both\. Give the other"):
        trainers.Monitoring(peak_flops=1e15)
    with pytest.raises(ValueError, match=r"^flops_per_sample = 0: must be a number above 0"):
        train(flops_per_sample=0, peak_flops=1.0)


def test_an_interval_of_checkpoints_is_above_0() -> None:
    assert trainers.Checkpointing(checkpoint_every=timedelta(minutes=20))
    for value in (timedelta(0), 0, 2.5):
        with pytest.raises(
            ValueError, match=r"^checkpoint_every = .* a datetime\.timedelta above 0, or None"
        ):
            trainers.Checkpointing(checkpoint_every=value)  # type: ignore[arg-type]


def test_a_directory_for_traces_is_made_or_refused(tmp_path: Path) -> None:
    train(profile=tmp_path / "new", epochs=1, batch_size=4)  # three steps
    assert json.loads((tmp_path / "new/trace.json").read_text())["traceEvents"]
    with pytest.raises(ValueError, match=r"cannot be made \(.*\)\. Name a directory that rank 0"):
        train(profile=tmp_path / "new/trace.json")
    with pytest.raises(ValueError, match=r"^profile = 3: must be None or the path"):
        train(profile=3)


def test_a_value_refuses_what_the_run_would() -> None:
    with pytest.raises(ValueError, match=r"^timeout = datetime.timedelta\(0\): must be"):
        trainers.Ranks(timeout=timedelta(0))
