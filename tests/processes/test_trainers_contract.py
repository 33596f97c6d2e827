"""What every training method owes its users, whichever it is: one suite, all methods.

Replicas agree in the end; what is trained is in the optimizer once and moves, what is frozen does not; a run that
is interrupted after each of its steps ends with the bits of an undisturbed one; no process group is left; a rank
that dies or hangs ends the others with an error, in time."""

from __future__ import annotations

import os
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from cases import cases
from gloo import outcomes_of_ranks, run_ranks
from resuming import After, assert_identical, state_of, without_times
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import trainers
from trainers.lowrank.layers import merged

EPOCHS, STEPS_PER_EPOCH, BATCH_SIZE = 3, 5, 2

DASO = trainers.DASO(sync_every=3, sync_delay=2, warmup_epochs=0.2, cooldown_epochs=0.2)
PHASES: dict[str, Any] = {"warmup_steps": 3, "ab_steps": 4, "rebound_steps": 2, "lr_rebound_steps": 2}
RANKS: dict[str, Any] = {"delay": 4, "update_every": 3, "sigma_cutoff": 0.2, "layer_step": 0.5}
METHODS: dict[str, trainers.Method] = {
    "DDP": trainers.DDP(),
    "DDP bf16": trainers.DDP(compression="bf16"),
    "DDP PowerSGD": trainers.DDP(compression="powersgd", powersgd_rank=2),
    "DASO": DASO,
    "DASO at once": trainers.DASO(sync_every=1, sync_delay=0, wire_dtype=None),
    "DASO adaptive": trainers.DASO(
        sync_every=4,
        sync_delay=4,
        warmup_epochs=0,
        cooldown_epochs=0,
        plateau_patience=1,
        plateau_threshold=0.9,
    ),
    "local SGD": trainers.LocalSGD(world_every=3, start=2),
    "local SGD adaptive": trainers.LocalSGD(households=1, world_every=4, start=0, adaptive=True),
    "OIALR": trainers.OIALR(**RANKS),
    "OIALR from the start": trainers.OIALR(**RANKS, full_rank_warmup=False, full_rank_last_layer=False),
    "OIALR over DASO": trainers.OIALR(**RANKS, synchronisation=DASO),
    "OIALR over local SGD": trainers.OIALR(
        **RANKS, synchronisation=trainers.LocalSGD(world_every=2, start=0)
    ),
    "AB": trainers.AB(**PHASES),
    "AB products": trainers.AB(**PHASES, merge="products"),
    "AB by loss": trainers.AB(**PHASES, merge="loss-weighted", compression="bf16"),
    "AB without groups": trainers.AB(**PHASES, groups=False),
}
PLAIN = ("DDP", "DASO", "local SGD", "OIALR over DASO", "AB")
APART = {name for name, method in METHODS.items() if isinstance(method, trainers.AB) and method.groups}
"""They need a second group: one rank is refused."""


class Everything(nn.Module):
    """An embedding, attention, a convolution, norms, dropout, and a frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embedding = nn.Embedding(20, 16)
        self.encoder = nn.TransformerEncoderLayer(16, 2, 24, dropout=0.1, batch_first=True)
        self.conv = nn.Conv1d(16, 16, 3, padding=1)
        self.norm = nn.BatchNorm1d(16)
        self.frozen = nn.Linear(16, 16).requires_grad_(False)
        self.output = nn.Linear(16, 20)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.encoder(self.embedding(tokens))
        x = self.norm(self.conv(x.transpose(1, 2))).transpose(1, 2)
        out: Tensor = self.output(self.frozen(x)).mean(1)
        return out


def tokens(samples: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(4)
    x = torch.randint(20, (samples, 6), generator=generator)
    return TensorDataset(x, x[:, 0])


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-3)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=5e-3)


def train(net: nn.Module, name: str, per_node: int, **changed: Any) -> trainers.Result:
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    settings: dict[str, Any] = {
        "loss": cross_entropy,
        "optimizer": adamw,
        "method": METHODS[name],
        "epochs": EPOCHS,
        "batch_size": BATCH_SIZE,
        "clip_norm": 1.0,
        "topology": trainers.Topology(ranks_per_node=per_node),
        "timeout": timedelta(seconds=20),
    }
    settings["train_set"] = tokens(STEPS_PER_EPOCH * BATCH_SIZE * ranks)
    settings["validation_set"] = tokens(20)
    return trainers.train(net, **{**settings, **changed})


def of(ranks: int, function: Any, *arguments: Any) -> list[Any]:
    """What ``function(rank, *arguments)`` gave on each of so many ranks; one needs no group."""
    return run_ranks(ranks, function, *arguments) if ranks > 1 else [function(0, *arguments)]


def groups() -> int:
    return len(dist.distributed_c10d._world.pg_map)


# What is trained


class Watch:
    """Called before each step: the optimizer holds what is trained, once, and that has moved since the last."""

    def __init__(self, net: nn.Module) -> None:
        self.net = net
        self.optimizer: torch.optim.Optimizer | None = None
        self.before: dict[str, tuple[nn.Parameter, Tensor]] = {}
        self.moved: set[str] = set()

    def make(self, parameters: Any) -> torch.optim.Optimizer:
        self.optimizer = adamw(parameters)
        return self.optimizer

    def __call__(self) -> bool:
        assert self.optimizer is not None
        trained = {name: p for name, p in self.net.named_parameters() if p.requires_grad}
        held = [p for group in self.optimizer.param_groups for p in group["params"]]
        assert {id(p) for p in held} == {id(p) for p in trained.values()}
        assert len(held) == len(trained)
        assert {id(p) for p in self.optimizer.state} <= {id(p) for p in held}
        for name, parameter in trained.items():
            earlier, value = self.before.get(name, (None, None))
            if earlier is parameter and value is not None and value.shape == parameter.shape:
                assert not torch.equal(value, parameter), name
                self.moved.add(name)
        self.before = {name: (p, p.detach().clone()) for name, p in trained.items()}
        return False


def watched(rank: int, name: str, per_node: int) -> tuple[dict[str, Tensor], list[str], int]:
    net, before = Everything(), groups() if dist.is_initialized() else 0
    frozen = net.frozen.weight.detach().clone()
    watch = Watch(net)
    result = train(net, name, per_node, optimizer=watch.make, interrupt=watch)
    assert result.reason == "finished", result.reason
    assert torch.equal(net.frozen.weight, frozen)
    assert not net.frozen.weight.requires_grad
    watch()  # also after the last step and what follows it
    left = (groups() if dist.is_initialized() else 0) - before
    return state_of(net), sorted(watch.moved), left


@pytest.mark.parametrize(
    ("name", "ranks", "per_node"),
    cases(
        [(name, *layout) for name in METHODS for layout in ((1, 1), (3, 1), (4, 2))],
        nightly=[(name, 8, 4) for name in PLAIN],
    ),
)
def test_replicas_agree_and_what_is_trained_moves(name: str, ranks: int, per_node: int) -> None:
    if name in APART and ranks == 1:
        with pytest.raises(ValueError, match="group"):
            train(Everything(), name, 1)
        return
    (state, moved, left), *others = of(ranks, watched, name, per_node)
    assert left == 0
    assert {"embedding.weight", "norm.bias", "output.bias"} <= set(moved)
    for other, _, groups_left in others:
        assert_identical(state, other)
        assert groups_left == 0


# In which memory format


def images(samples: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(5)
    return TensorDataset(
        torch.randn(samples, 4, 6, 6, generator=generator), torch.randint(8, (samples,), generator=generator)
    )


def laid_out(rank: int, memory_format: torch.memory_format) -> dict[str, dict[str, Tensor]]:
    states = {}
    for name in PLAIN:
        torch.manual_seed(3)
        layers = [nn.Conv2d(4, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.Flatten(), nn.Linear(128, 8)]
        net = nn.Sequential(*layers).to(memory_format=memory_format)
        train(net, name, 2, train_set=images(60), validation_set=None, optimizer=sgd)
        weight = cast(nn.Conv2d, merged(net)[2]).weight  # OIALR leaves it in factors
        assert weight.is_contiguous(memory_format=memory_format), name
        states[name] = state_of(net)
    return states


def test_channels_last_stays_and_changes_nothing() -> None:
    """Methods that send or factor weights know their memory format: training is the same but for roundings."""
    plain, apart = (of(2, laid_out, kept)[1] for kept in (torch.contiguous_format, torch.channels_last))
    for name in PLAIN:
        for key, value in plain[name].items():
            torch.testing.assert_close(apart[name][key], value, rtol=1e-3, atol=1e-4, msg=f"{name}: {key}")


def of_two_formats(rank: int) -> str:
    net = nn.Sequential(nn.Conv2d(4, 16, 3), nn.Flatten(), nn.Linear(256, 8))
    if rank:
        net = net.to(memory_format=torch.channels_last)
    with pytest.raises(ValueError) as caught:
        train(net, "DDP", 2, train_set=images(20), validation_set=None)
    return str(caught.value)


def test_ranks_with_other_memory_formats_are_refused() -> None:
    assert "0.weight (16, 4, 3, 3) float32 channels_last on rank 1" in of(2, of_two_formats)[1]


# Interrupted after every step


def interrupted(
    rank: int, name: str, per_node: int, directory: str, optimizer: str, steps: int
) -> tuple[Any, ...]:
    keywords: dict[str, Any] = {"optimizer": {"sgd": sgd, "adamw": adamw}[optimizer]}
    before = groups()
    whole, pieces = Everything(), Everything()
    expected = train(whole, name, per_node, **keywords)
    keywords["checkpoint"] = directory
    for _ in range((EPOCHS * STEPS_PER_EPOCH - 1) // steps):
        with pytest.raises(trainers.Interrupted):
            train(Everything(), name, per_node, interrupt=After(steps), **keywords)
        assert groups() == before
    found = train(pieces, name, per_node, **keywords)
    return state_of(whole), without_times(expected), state_of(pieces), without_times(found)


@pytest.mark.parametrize(
    ("name", "ranks", "per_node", "optimizer", "steps"),
    cases(
        [
            *((name, 4, 2, "sgd", 1) for name in PLAIN),
            *((name, 2, 1, "adamw", 4) for name in METHODS if name not in PLAIN),
        ],
        nightly=[
            *((name, 4, 2, "sgd", 1) for name in METHODS if name not in PLAIN),
            *((name, 2, 1, "adamw", 1) for name in PLAIN),
        ],
    ),
)
def test_a_run_in_pieces_of_so_many_steps_ends_with_the_same_bits(
    tmp_path: Path, name: str, ranks: int, per_node: int, optimizer: str, steps: int
) -> None:
    arguments = (name, per_node, str(tmp_path), optimizer, steps)
    for whole, expected, pieces, found in of(ranks, interrupted, *arguments):
        assert found == expected
        assert_identical(whole, pieces)


# A lost rank


def lost(rank: int, name: str, how: str, at: int) -> float:
    calls = After(at)

    def leave() -> bool:
        if calls() and rank == 1:
            if how == "hangs":
                threading.Event().wait(2.5)
            os._exit(9)
        return False

    begin = time.perf_counter()
    with pytest.raises(trainers.CommunicationError, match="another rank"):
        train(Everything(), name, 1, interrupt=leave, timeout=timedelta(seconds=1))
    return time.perf_counter() - begin


@pytest.mark.parametrize(
    ("name", "how", "at"),
    cases(
        [*((name, "ends", 9) for name in METHODS), *((name, "hangs", 6) for name in PLAIN)],
        nightly=[(name, "hangs", 6) for name in METHODS if name not in PLAIN],
    ),
)
def test_a_lost_rank_ends_the_run_with_an_error(name: str, how: str, at: int) -> None:
    (kind, seconds), (other, _) = outcomes_of_ranks(2, lost, name, how, at)
    assert (kind, other) == ("returned", "ended"), seconds
    assert seconds < 10
