"""Ranks that were told different things are told so, all of them, before the first step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from gloo import run_ranks
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import trainers
from trainers.data.batches import Batch


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
        "optimizer": adam(0.1),
        "epochs": 2,
        "batch_size": 4,
        "interrupt": no_step,
        "topology": trainers.Topology(ranks_per_node=1),
        **changed,
    }


class Frozen(nn.Sequential):
    """Another class with parameters of the same names: what a layer is called does not count."""


class Dealt:
    """A user's assignment, which gives each rank a set of its own."""

    def epoch(self, *, rank: int, **told: Any) -> list[list[Batch]]:
        indices = torch.arange(4) + rank
        return [[Batch(indices=indices, weight=1.0, seed=0)] for _ in range(3)]


class OneMore(Dealt):
    def epoch(self, *, rank: int, **told: Any) -> list[list[Batch]]:
        steps = super().epoch(rank=rank, **told)
        return steps[:1] if rank == 1 else steps


@dataclass(frozen=True)
class Own(trainers.Constant):
    """A user's schedule. Sets are shown in another order in every process."""

    names: frozenset[str] = frozenset("abcdefgh")
    function: object = None


class Elsewhere:
    """Shows where it lies in memory."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __repr__(self) -> str:
        return f"<Elsewhere object at 0x7f{self.rank:x}0>"


def adam(lr: float, decay: float = 0.0) -> Any:
    return lambda parameters: torch.optim.AdamW(parameters, lr=lr, weight_decay=decay)


def rank_1s() -> dict[str, dict[str, Any]]:
    """What rank 1 is told otherwise, by how the sentence begins there."""
    return {
        "epochs = 3 on": call(epochs=3),
        "batch_size = 8 on": call(batch_size=8),
        "accumulate = 2 on": call(accumulate=2),
        "seed = 1 on": call(seed=1),
        "clip_norm = 1.0 on": call(clip_norm=1),
        "samples of train_set = 20 on": call(train_set=samples(20)),
        "samples of validation_set = 8 on": call(validation_set=samples(8)),
        "samples of validation_set = None on": call(validation_set=None, metrics=None),
        "metrics = (precision, accuracy) on": call(metrics={"precision": accuracy, "accuracy": accuracy}),
        "precision = bf16 on": call(precision="bf16"),
        "schedule = Cosine(": call(schedule=trainers.Cosine()),
        "assignment = FullOverlap(": call(assignment=trainers.FullOverlap()),
        "assignment = OneMore on": call(assignment=OneMore()),
        "method = LocalSGD(": call(method=trainers.LocalSGD()),
        "early_stopping = EarlyStopping(": call(early_stopping=trainers.EarlyStopping(patience=1)),
        "checkpoint = a directory on": call(checkpoint="never-made"),
        "ranks of each node = ((0, 1, 2)) on": call(topology=trainers.Topology(ranks_per_node=3)),
        "number of the model's parameters and buffers = 2 on": call(model=nn.Linear(6, 3)),
        "model's tensor 0 = 0.weight (7, 6) float32 on": call(model=mlp(7)),
        "model's tensor 0 = 1.weight (3, 5) float32 on": call(model=frozen_first()),
        "optimizer = SGD with": call(optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1)),
        "lr of the optimizer's group 0 = 0.2 on": call(optimizer=adam(0.2)),
        "weight_decay of the optimizer's group 0 = 0.5 on": call(optimizer=adam(0.1, 0.5)),
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


def steps_of_one(rank: int) -> str:
    with pytest.raises(ValueError) as caught:
        trainers.train(**call(assignment=OneMore()))
    return str(caught.value)


def test_ranks_with_other_numbers_of_steps_are_told_so() -> None:
    assert run_ranks(2, steps_of_one)[1].startswith("steps an epoch = 1 on rank 1: not the same")


class Keeps(nn.Linear):
    """Keeps its last outputs in a buffer: of as many samples as this rank's last batch had."""

    def __init__(self) -> None:
        super().__init__(6, 3)
        self.register_buffer("last", torch.zeros(1, 3), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = super().forward(x)
        return self.last


def ending(rank: int, count: int) -> str:
    keywords = call(model=Keeps(), train_set=samples(count), interrupt=None)
    if not count % 2:
        return trainers.train(**keywords).reason
    with pytest.raises(ValueError) as caught:
        trainers.train(**keywords)
    return str(caught.value)


def test_buffers_of_other_shapes_at_an_epoch_s_end_are_told_of() -> None:
    assert run_ranks(2, ending, 8) == ["finished"] * 2
    for rank, said in enumerate(run_ranks(2, ending, 7)):
        shape = f"last ({3 + rank}, 3) on rank {rank}: not the same on all ranks"
        assert said.startswith(f"shapes of the model's buffers at the epoch's end = {shape}")


@dataclass(frozen=True)
class FewerLater(trainers.Disjoint):
    def epoch(self, *, epoch: int, batch_size: int, **others: Any) -> list[list[Batch]]:
        return super().epoch(epoch=epoch, batch_size=batch_size * (1 + epoch), **others)


@dataclass(frozen=True)
class DealsNothing(trainers.Disjoint):
    def epoch(self, **others: Any) -> list[list[Batch]]:
        return []


def test_an_assignment_without_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="assignment: it deals no step to this rank"):
        trainers.train(**call(assignment=DealsNothing(), interrupt=None, topology=None))


def test_an_epoch_of_other_steps_than_the_first_is_refused() -> None:
    with pytest.raises(ValueError, match="assignment: deals 2 steps in epoch 2, and dealt 4 in the first"):
        trainers.train(**call(assignment=FewerLater(), interrupt=None, topology=None))


def ways_to_say_it(rank: int) -> dict[str, Any]:
    # Else sets are in one order in all ranks, which come of one process.
    letters = "abcdefgh" if rank else "hgfedcba"
    return call(
        interrupt=None,
        # Weights may differ: all get those of rank 0. So may what they are wrapped in.
        model=Frozen(*mlp()) if rank else mlp(),
        schedule=Own(names=frozenset(letters), function=Elsewhere(rank)),
        clip_norm=1 if rank else 1.0,
        optimizer=adam(0.1)
        if rank
        else lambda parameters: torch.optim.AdamW(list(parameters), 0.1, weight_decay=0.0),
        assignment=Dealt(),
        train_set=samples(16 + rank),
        batch_size=4 + rank,
        report=None if rank else lambda epoch, metrics: None,
        loader_processes=0,
        evaluation_batch_size=2 + rank,
    )


def with_what_may_differ(rank: int) -> str:
    torch.manual_seed(rank)
    return trainers.train(**ways_to_say_it(rank)).reason


def test_what_may_differ_is_not_refused() -> None:
    assert repr(Elsewhere(0)) != repr(Elsewhere(1))
    assert run_ranks(3, with_what_may_differ) == ["finished"] * 3
