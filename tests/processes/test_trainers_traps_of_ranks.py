"""Traps and checkpoints of several ranks, and of processes that read ahead."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gloo import run_ranks
from torch import Tensor, nn
from torch.nn.functional import l1_loss, mse_loss
from torch.utils.data import Dataset

import trainers

X = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))


class Opened(Dataset[tuple[Tensor, Tensor]]):
    """Opens at its first sample what must not be shared by processes; draws from its own ``generator``."""

    def __init__(self, seed: int = 0, *, draws: bool = False) -> None:
        self.opened_by: int | None = None
        self.draws, self.generator = draws, np.random.default_rng(seed)

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.opened_by = self.opened_by or os.getpid()
        assert self.opened_by == os.getpid()
        return X[index] + (self.generator.normal() if self.draws else 0.0), X[index, :1]


def train(**changed: Any) -> trainers.Result:
    settings: dict[str, Any] = {
        "loss": mse_loss, "epochs": 1, "batch_size": 8, "train_set": Opened(),
        "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.01), **changed,
    }  # fmt: skip
    return trainers.train(nn.Linear(4, 1), **settings)


def test_a_process_that_reads_ahead_takes_the_look_at_the_data(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"checkpoint": tmp_path, "loader_processes": 2}
    for _ in range(2):
        samples = Opened()
        train(train_set=samples, validation_set=samples, **settings)
        assert samples.opened_by is None
    (path,) = tmp_path.glob("step-*/shared.pt")
    assert [len(torch.load(path)["samples"][name]) for name in ("train_set", "validation_set")] == [4, 4]


def of_ranks(rank: int, directory: str) -> list[str]:
    said = []
    for samples in (Opened(draws=True), Opened(rank, draws=True), Opened()):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            train(train_set=samples)
        said.append(" ".join(str(one.message)[:30] for one in caught))
    # What only a rank knows does not count: rank 0's facts are compared on all.
    train(checkpoint=directory, metrics={"own": Owned(rank)}, validation_set=Opened())
    train(checkpoint=directory, metrics={"own": Owned(rank)}, validation_set=Opened())
    with pytest.raises(ValueError, match="loss was"):
        train(checkpoint=directory, loss=l1_loss, metrics={"own": Owned(rank)}, validation_set=Opened())
    return said


class Owned:
    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __call__(self, outputs: Tensor, targets: Tensor) -> float:
        return 0.0


def test_ranks_with_the_same_series_are_warned_and_facts_are_rank_0_s(tmp_path: Path) -> None:
    one, other = run_ranks(2, of_ranks, str(tmp_path))
    assert one == ["train_set: it draws from a ran", "", ""]
    assert other == ["", "", ""]


def of_sharded(rank: int) -> list[str]:
    from torch.distributed.fsdp import fully_shard

    said = []
    model = fully_shard(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for call in (
        lambda: trainers.train(
            model, Opened(), loss=mse_loss, epochs=1, batch_size=8, optimizer=lambda parameters: optimizer
        ),
        lambda: trainers.wrap(model, optimizer, epochs=1, steps_per_epoch=1),
    ):
        with pytest.raises(ValueError) as caught:
            call()
        said.append(str(caught.value))
    return said


def test_a_sharded_model_is_refused_by_name() -> None:
    for said in run_ranks(2, of_sharded):
        assert all("model: 0.weight is a DTensor" in one and "before it is sharded" in one for one in said)
