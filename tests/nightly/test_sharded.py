"""Every layout of a sharded model with everything that a training may do beside."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sharded import FSDP, HSDP, TENSOR, assert_as_one_rank, split_blocks
from terminal import Terminal

import trainers

LAYOUTS = {
    "FSDP": (2, FSDP),
    "FSDP of four": (4, FSDP),
    "one unit": (2, trainers.FSDP(blocks=(), reshard_after_forward=False)),
    "HSDP": (4, HSDP),
    "tensor": (2, TENSOR),
    "tensor of four": (4, trainers.FSDP(tensor=4, parallelize=split_blocks)),
    "both": (4, TENSOR),
    "offload": (2, trainers.FSDP(offload=True)),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "clip_norm": {"clip_norm": 0.3},
    "clip_value": {"clip_value": 0.01},
    "average": {"ema_decay": 0.8},
    "accumulate": {"accumulate": 2},
    "recomputed": {"activation_checkpointing": ("blocks.*",)},
    "often": {"evaluate_every": 2, "ema_decay": 0.7},
    "best": {"early_stopping": trainers.EarlyStopping(patience=9, restore_best=True)},
    "compiled": {"compiled": True},
    "bf16": {"precision": "bf16"},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize(("ranks", "method"), LAYOUTS.values(), ids=LAYOUTS)
def test_training_in_parts_equals_one_rank(
    ranks: int, method: trainers.FSDP, options: dict[str, Any]
) -> None:
    assert_as_one_rank(ranks, method, options)


def test_two_of_four_ranks_train_together() -> None:
    assert_as_one_rank(4, FSDP, {"clip_norm": 0.3, "ema_decay": 0.8}, some=(1, 3))


CAMPAIGN = """
task = "search_spaces.digits:make_task"
directory = "runs/c"
evaluations = 40
seed = 1

[layout]
islands = 1
ranks_per_worker = 2

[search]
kind = "evolution"
pruner = "halving"

[task_options]
method = "fsdp"
epochs = 4
"""


def test_two_workers_shard_one_individual_after_another(terminal: Terminal) -> None:
    terminal.write("c.toml", CAMPAIGN)
    terminal.hpo("run", "c.toml", "--ranks", 4, seconds=110, returns=0)
    counts = json.loads(terminal.hpo("status", "runs/c", "--json").stdout)["evaluations"]
    assert counts["completed"] > 0 and counts["completed"] + counts["pruned"] == 40
