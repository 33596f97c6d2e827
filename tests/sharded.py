"""A small model of blocks, and its training in parts by several ranks, for the tests of FSDP."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from gloo import run_ranks
from resuming import state_of
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import IterableDataset, TensorDataset

import trainers

adamw = partial(torch.optim.AdamW, lr=1e-2)


class Block(nn.Module):
    def __init__(self, width: int = 16, inner: int = 32) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.down(torch.relu(self.up(self.norm(x))))
        return out


class Net(nn.Module):
    """Five classes of twelve numbers; no width but those inside the blocks is a multiple of four."""

    def __init__(self, inner: int = 32, compiled: bool = False) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Linear(12, 18)
        self.blocks = nn.ModuleList(Block(18, inner) for _ in range(2))
        self.last = nn.Linear(18, 5)
        for block in self.blocks if compiled else ():
            block.compile(backend="aot_eager")

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.last(x)
        return out


def split_blocks(model: nn.Module, mesh: Any) -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    parallelize_module(model, mesh, {"blocks.*.up": ColwiseParallel(), "blocks.*.down": RowwiseParallel()})


FSDP = trainers.FSDP()
HSDP = trainers.FSDP(shard=2)
TENSOR = trainers.FSDP(tensor=2, parallelize=split_blocks)


def samples(count: int, seed: int = 2) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    return TensorDataset(
        torch.randn(count, 12, generator=generator), torch.randint(5, (count,), generator=generator)
    )


class Streamed(IterableDataset[object]):
    def __init__(self, count: int) -> None:
        self.samples = samples(count, 3)

    def __iter__(self) -> Iterator[object]:
        return iter([self.samples[index] for index in range(len(self.samples))])

    def __len__(self) -> int:
        return len(self.samples)


def accuracy(outputs: Tensor, classes: Tensor) -> Tensor:
    return (outputs.argmax(1) == classes).double().mean()


def train(net: nn.Module, method: Any, **options: Any) -> trainers.Result:
    """Two epochs of steps of sixteen samples, whatever the ranks."""
    ranks = dist.get_world_size(options.get("group")) if dist.is_initialized() else 1
    batch_size = 16 * getattr(method, "tensor", 1) // ranks // options.get("accumulate", 1)
    settings: dict[str, Any] = {
        "loss": cross_entropy,
        "metrics": {"accuracy": accuracy},
        "optimizer": adamw,
        "epochs": 2,
        "batch_size": batch_size,
        "evaluation_batch_size": 8,
        "method": method,
    }
    return trainers.train(net, samples(96), samples(33, 3), **{**settings, **options})


def trained(
    rank: int, method: Any, options: dict[str, Any], some: tuple[int, ...] = ()
) -> tuple[dict[str, Tensor], list[float]] | None:
    """Weights of a training on all ranks, or on ``some``, and validation losses."""
    group = dist.new_group(some) if some else None  # type: ignore[no-untyped-call]
    if some and rank not in some:
        return None
    net = Net(compiled=bool(options.get("compiled")))
    options = {name: value for name, value in options.items() if name != "compiled"}
    result = train(net, method, group=group, **options)
    return state_of(net), [entry["validation_loss"] for entry in result.history]


def assert_as_one_rank(
    ranks: int, method: Any, options: dict[str, Any], *, some: tuple[int, ...] = ()
) -> None:
    """Training in parts equals that of the joint batch on one rank, on each rank."""
    expected = trained(0, None, {**options, "compiled": False})
    assert expected is not None
    largest = max(float(value.abs().max()) for value in expected[0].values())
    loss = 2e-2 if options.get("precision") == "bf16" else 1e-6
    found = [one for one in run_ranks(ranks, trained, method, options, some) if one is not None]
    assert len(found) == len(some or range(ranks))
    for weights, losses in found:
        torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected[1]), rtol=0, atol=loss)
        for name, value in weights.items():
            if loss == 1e-6:
                assert float((value - expected[0][name]).abs().max()) <= 1e-5 * largest, name
