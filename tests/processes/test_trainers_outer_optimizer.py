"""The outer optimizer of DASO and LocalSGD: torchft's DiLoCo, none, and what checkpoints keep of it."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import diloco
import pytest
import torch
from cases import cases
from gloo import run_ranks
from models import adamw, flat, labelled, network, noisy_model, train
from places import GOLDEN
from resuming import After, assert_same_in_pieces
from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss

import trainers

SHORT: dict[str, Any] = {"warmup_epochs": 0, "cooldown_epochs": 0, "adaptive": False}
ALONE = trainers.Topology(ranks_per_node=1)


def each_step_by_step(rank: int, methods: list[trainers.Method]) -> list[list[list[float]]]:
    return [step_by_step(rank, method) for method in methods]


def step_by_step(rank: int, method: trainers.Method) -> list[list[float]]:
    model, optimizer = diloco.model_and_optimizer()
    found = []
    with trainers.wrap(
        model, optimizer, method=method, epochs=1, steps_per_epoch=diloco.STEPS, topology=ALONE
    ) as run:
        for step in range(diloco.STEPS):
            x, y = diloco.batch(step, rank)
            optimizer.zero_grad()
            run.backward(mse_loss(model(x), y))
            optimizer.step()
            found.append(diloco.weights(model))
    return found


@pytest.mark.parametrize(("name", "fragments"), diloco.RECORDED.items())
def test_each_step_is_that_of_torchft(name: str, fragments: int) -> None:
    recorded = json.loads((GOLDEN / name).read_text())
    every = diloco.EVERY * fragments
    keywords: dict[str, Any] = {"fragments": fragments, "outer_optimizer": diloco.outer}
    daso = partial(trainers.DASO, sync_every=every, wire_dtype="fp32", **keywords, **SHORT)
    methods = [*(daso(sync_delay=int(delay)) for delay in recorded)]
    local = trainers.LocalSGD(world_every=every, **keywords)
    found = run_ranks(2, each_step_by_step, [*methods, local])[0]
    for mine, theirs in zip(found, [*recorded.values(), recorded["0"]], strict=True):
        # All nodes meet after the last step, the epoch's end.
        for step, other in zip(mine[:-1], theirs, strict=False):
            assert step == pytest.approx(other, rel=0, abs=1e-6)


def ends(rank: int, makes: list[Any]) -> list[Tensor]:
    found = []
    for make in makes:
        net = network(6, 8, 1)
        train(net, make(), ranks=3, per_node=1, optimizer=adamw)
        found.append(flat(net))
    return found


def test_a_rate_of_one_without_momentum_changes_nothing() -> None:
    one = {"outer_optimizer": partial(torch.optim.SGD, lr=1.0)}
    daso = partial(trainers.DASO, sync_every=3, sync_delay=2)
    local = partial(trainers.LocalSGD, world_every=3, start=5)
    makes = [make for plain in (daso, local) for make in (plain, partial(plain, **one))]
    for plain, outer, averaged, based in run_ranks(3, ends, makes):
        assert torch.equal(plain, outer)
        torch.testing.assert_close(averaged, based, rtol=0, atol=1e-6 * float(averaged.abs().max()))


def in_pieces(rank: int, method: trainers.Method, directory: str) -> None:
    keywords: dict[str, Any] = {"loss": cross_entropy, "optimizer": adamw, "epochs": 2, "batch_size": 2}
    topology = trainers.Topology(ranks_per_node=2)
    run = partial(trainers.train, train_set=labelled(40), topology=topology, method=method, **keywords)
    assert_same_in_pieces(run, noisy_model, directory, (1,) * 6)


OUTER: dict[str, Any] = {"outer_optimizer": partial(torch.optim.AdamW, lr=0.1)}


@pytest.mark.parametrize(
    "method",
    cases(
        [trainers.DASO(sync_every=3, sync_delay=2, bucket_bytes=64, **SHORT, **OUTER)],
        nightly=[
            trainers.DASO(sync_every=3, sync_delay=2, shard="node", **SHORT, **OUTER),
            trainers.LocalSGD(world_every=3, start=2, average_at_epoch_end=False, **OUTER),
            trainers.LocalSGD(world_every=3, shard="node", **OUTER),
            trainers.OIALR(
                delay=3, update_every=2, synchronisation=trainers.LocalSGD(world_every=2, **OUTER)
            ),
        ],
    ),
)
def test_interrupted_at_each_step_it_goes_on_bit_for_bit(method: trainers.Method, tmp_path: Path) -> None:
    run_ranks(4, in_pieces, method, str(tmp_path))


def gone_on(rank: int, directory: str) -> None:
    run = partial(
        trainers.train, loss=cross_entropy, optimizer=adamw, epochs=2, batch_size=2, checkpoint=directory
    )
    data = labelled(40)

    def outer(momentum: float) -> Any:
        return trainers.DASO(
            outer_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.7, momentum=momentum), **SHORT
        )

    with pytest.raises(trainers.Interrupted):
        run(noisy_model(), data, method=outer(0.9), topology=ALONE, interrupt=After(5))
    for other in (outer(0.8), trainers.DASO(**SHORT)):
        with pytest.raises(ValueError, match=r"of other settings: method was .*momentum=0\.9"):
            run(noisy_model(), data, method=other, topology=ALONE)
    with pytest.raises(ValueError, match=r"outer_settings=SGD.* on rank .*not the same on all ranks"):
        run(noisy_model(), data, method=outer(0.9 - rank / 10), topology=ALONE)
    run(noisy_model(), data, method=outer(0.9), topology=ALONE)


def unused(rank: int) -> None:
    run = partial(trainers.train, loss=cross_entropy, optimizer=adamw, epochs=1, batch_size=2)
    for method in (trainers.DASO(**OUTER), trainers.LocalSGD(**OUTER)):
        if rank:
            run(noisy_model(), labelled(8), method=method)
        else:
            with pytest.warns(UserWarning, match=r"outer_optimizer=AdamW\(.* is not used"):
                run(noisy_model(), labelled(8), method=method)


def test_it_counts_by_what_it_makes_and_is_not_used_on_one_node(tmp_path: Path) -> None:
    run_ranks(2, gone_on, str(tmp_path))
    run_ranks(2, unused)


@pytest.mark.parametrize(
    "make", [3, torch.optim.SGD(noisy_model().parameters(), lr=1.0), torch.optim.LBFGS, list, lambda: None]
)
def test_what_makes_no_optimizer_is_refused(make: Any) -> None:
    for method in (trainers.DASO, trainers.LocalSGD):
        with pytest.raises(ValueError, match=r"^outer_optimizer"):
            method(outer_optimizer=make)
