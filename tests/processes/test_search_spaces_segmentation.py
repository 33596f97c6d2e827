"""The campaign on street scenes trains through on two ranks, and is tested by class."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from gloo import run_ranks
from torch import nn

import hpo
import trainers
from search_spaces import cityscapes_daso
from search_spaces.readers.cityscapes import CLASSES
from search_spaces.readers.made_up_scenes import write_made_up

FAST: dict[str, Any] = {
    "small": True, "epochs": 2, "batch_size": 4, "warmup_epochs": 1, "cooldown_epochs": 0,
    "ranks_per_node": 1, "steps_on_link": 8.0,
}  # fmt: skip


def trained(rank: int, data: str, root: str) -> dict[str, float]:
    torch.set_num_threads(1)
    task = cityscapes_daso.make_task(**FAST, data=data, lists=f"{root}/lists")
    trial = hpo.Trial.alone({"sync_every": 2, "sync_delay": 1}, directory=f"{root}/run", rank=rank, size=2)
    return dict(task.evaluate(trial))


def test_two_ranks_train_and_agree(tmp_path: Path) -> None:
    write_made_up(tmp_path / "scenes", scenes=2)
    first, second = run_ranks(2, trained, str(tmp_path / "scenes"), str(tmp_path))
    assert first == {**second, "train_s": first["train_s"], "wait_s": first["wait_s"]}
    assert 0 < first["mean_iou"] < 1 and math.isfinite(first["validation_loss"]) and first["steps"] > 6


def test_each_class_is_tested(tmp_path: Path) -> None:
    write_made_up(tmp_path / "scenes", scenes=1)
    options = {**FAST, "method": "ddp", "data": str(tmp_path / "scenes"), "lists": str(tmp_path / "lists")}
    task = cityscapes_daso.make_task(**options)
    (found,) = task.tests(task.default, seeds=[0])
    each = [found[f"test_IoU {name}"] for name in CLASSES]
    counted = [value for value in each if not math.isnan(value)]
    assert found["test"] == pytest.approx(sum(counted) / len(counted)) and len(counted) >= 9


def synchronised(rank: int) -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.SyncBatchNorm(4), nn.Flatten(), nn.Linear(144, 2))
    data = torch.utils.data.TensorDataset(torch.randn(8, 3, 8, 8), torch.zeros(8, dtype=torch.int64))
    keywords: dict[str, Any] = {
        "loss": nn.functional.cross_entropy, "optimizer": lambda p: torch.optim.SGD(p, lr=0.1),
        "epochs": 1, "batch_size": 2, "method": trainers.DDP(),
    }  # fmt: skip
    with pytest.raises(ValueError, match=r"1 is a SyncBatchNorm.*GPUs alone.*Use BatchNorm"):
        trainers.train(network, data, **keywords)
    network[1].eval()  # kept as it is, it synchronises nothing
    assert trainers.train(network, data, **keywords).reason == "finished"


def test_synchronised_norms_on_the_cpu_are_refused_before_the_start() -> None:
    run_ranks(2, synchronised)
