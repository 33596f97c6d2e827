"""Ranks that were told different things are told so, all of them, before the first step."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch
from gloo import run_ranks
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import trainers
from trainers.agreement import refuse_disagreement
from trainers.communication import Communicator


def samples(count: int) -> TensorDataset:
    return TensorDataset(torch.zeros(count, 6), torch.zeros(count, dtype=torch.int64))


def accuracy(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    return (outputs.argmax(1) == targets).double().mean().item()


def no_step() -> bool:
    raise AssertionError("a step was begun")


def mlp(width: int = 5) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, width), nn.Linear(width, 3))


def frozen_first() -> nn.Sequential:
    model = mlp()
    model[0].requires_grad_(False)
    return model


def call(**changed: Any) -> dict[str, Any]:
    return {
        "model": mlp(),
        "train_set": samples(16),
        "validation_set": samples(4),
        "loss": cross_entropy,
        "metrics": {"accuracy": accuracy},
        "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        "epochs": 2,
        "batch_size": 4,
        "interrupt": no_step,
        **changed,
    }


def rank_1s() -> dict[str, dict[str, Any]]:
    """What rank 1 is told otherwise, by how the sentence begins there."""
    return {
        "epochs = 3 on": call(epochs=3),
        "batch_size = 8 on": call(batch_size=8),
        "accumulate = 2 on": call(accumulate=2),
        "seed = 1 on": call(seed=1),
        "samples = 20 on": call(train_set=samples(20)),
        "validation_set = 8 samples on": call(validation_set=samples(8)),
        "validation_set = None on": call(validation_set=None, metrics=None),
        "metrics = ['precision', 'accuracy'] on": call(metrics={"precision": accuracy, "accuracy": accuracy}),
        "precision = bf16 on": call(precision="bf16"),
        "schedule = Cosine(": call(schedule=trainers.Cosine()),
        "method = LocalSGD(": call(method=trainers.LocalSGD()),
        "early_stopping = EarlyStopping(": call(early_stopping=trainers.EarlyStopping(patience=1)),
        "model = a Sequential of 73 numbers in 4 parameters": call(model=mlp(7)),
        "model = a Sequential of 53 numbers in 4 parameters": call(model=frozen_first()),
        "checkpoint = a directory on": call(checkpoint="never-made"),
        "optimizer = {'optimizer': 'SGD', 'lr of group 0': '0.2'": call(
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.2)
        ),
        "optimizer = {'optimizer': 'AdamW'": call(optimizer=torch.optim.AdamW),
    }


def refusals(rank: int) -> list[str]:
    found = []
    for other in rank_1s().values():
        with pytest.raises(ValueError) as caught:
            trainers.train(**(other if rank == 1 else call()))
        found.append(str(caught.value))
    return found


def test_ranks_that_were_told_different_things_are_all_told_so() -> None:
    first, second, third = run_ranks(3, refusals)
    for begin, of_0, of_1, of_2 in zip(rank_1s(), first, second, third, strict=True):
        assert of_1.startswith(begin)
        assert of_0.split(" = ")[0] == begin.split(" = ")[0] == of_2.split(" = ")[0]
        for rank, said in enumerate((of_0, of_1, of_2)):
            assert (
                f"on rank {rank}: not the same on all ranks; rank 1 of 3 and rank 0 differ. Give all" in said
            )
            assert "\n" not in said


class Own:
    """A user's schedule without a __repr__ of its own: it shows where it lies in memory, and that differs."""

    warmup_epochs = 0.0


def with_addresses(rank: int) -> None:
    communicator = Communicator(topology=None, timeout=timedelta(seconds=30), device=torch.device("cpu"))
    kept = [Own() for _ in range(rank + 1)]
    refuse_disagreement(communicator.service, {"schedule": repr(kept[-1])}, torch.device("cpu"))
    # Weights may differ: all get those of rank 0.
    torch.manual_seed(rank)
    trainers.train(**call(interrupt=None, model=mlp()))
    communicator.close()


def test_what_may_differ_is_not_refused() -> None:
    run_ranks(3, with_addresses)
