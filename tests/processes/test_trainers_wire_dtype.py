"""DASO and LocalSGD that send differences in eight or four bits, and checkpoints of these and of fragments."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import cases
from gloo import run_ranks
from models import (
    adamw,
    assert_same_bits,
    communicator,
    flat,
    labelled,
    network,
    noisy_model,
    setup_of,
    train,
)
from resuming import assert_same_in_pieces
from sharded import Net
from sharded import train as train_sharded
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import trainers
from trainers.methods import daso_exchange

SHORT: dict[str, Any] = {"warmup_epochs": 0, "cooldown_epochs": 0, "adaptive": False}
OUTER: dict[str, Any] = {"outer_optimizer": partial(torch.optim.SGD, lr=0.7, momentum=0.9, nesterov=True)}


def model() -> nn.Module:
    return network(6, 200, 200, 1)


def runs(rank: int, makes: list[Any], per_node: int, backends: list[str]) -> list[tuple[Tensor, float]]:
    """Weights, and bytes between nodes for each synchronisation and number."""
    daso_exchange.SHARDING_BACKENDS = frozenset(backends)
    found = []
    for make in makes:
        net = model()
        metrics = train(net, make(), ranks=4, per_node=per_node, epochs=1, optimizer=adamw).metrics
        between = metrics["bytes_between_nodes"] / metrics["synchronisations"] / flat(net).numel()
        found.append((flat(net), between))
    return found


@pytest.mark.parametrize("per_node", [2, 1])
def test_all_ranks_agree_bytes_are_as_predicted_and_few_stray_little(per_node: int) -> None:
    daso = partial(trainers.DASO, sync_every=3, sync_delay=2, **SHORT)
    local = partial(trainers.LocalSGD, world_every=4, **OUTER)
    makes = [partial(make, wire_dtype=wire) for make in (daso, local) for wire in (None, "int8", "int4")]
    found = run_ranks(4, runs, makes, per_node, [])
    assert_same_bits([weights for weights, _ in own] for own in found)
    nodes = 4 // per_node
    start = flat(model())
    for exact, eight, four in (found[0][:3], found[0][3:]):
        moved = float((exact[0] - start).abs().max())
        for (weights, sent), bits, most in ((eight, 8, 0.02), (four, 4, 0.3)):
            assert 0 < float((weights - exact[0]).abs().max()) < most * moved
            assert sent == pytest.approx(nodes * 2 * (nodes - 1) / nodes * (bits / 8 + 4 / 64), rel=0.01)


def test_a_share_sent_by_each_rank_is_what_one_rank_sends_for_all() -> None:
    makes = [partial(trainers.DASO, sync_every=3, sync_delay=2, wire_dtype="int4", **SHORT)]
    (alone, few), *_ = (own[0] for own in run_ranks(4, runs, makes, 2, []))
    for [(weights, sent)] in run_ranks(4, runs, makes, 2, ["gloo"]):
        assert torch.equal(weights, alone)
        assert sent == pytest.approx(few, rel=0.01)


def on_nodes_out_of_order(rank: int) -> Tensor:
    """Ranks 0 and 3 on one node, 2 and 1 on the other; rank r has moved by r."""
    ranks = communicator()
    ranks.nodes = ((0, 3), (2, 1))
    net = network(2, 64, 1)
    method = trainers.DASO(sync_every=1, sync_delay=0, wire_dtype="int8", **SHORT)
    strategy = method.strategy(setup_of(net, ranks))
    for step in range(2):  # each rank of a node sends once
        with torch.no_grad():
            for number, parameter in enumerate(net.parameters()):
                parameter += (number + 1.0) * (rank in (0, 3))
        strategy.reduce_gradients(step)
        strategy.after_step(step, torch.zeros(()))
    ranks.close()
    return flat(net)


def test_nodes_whose_ranks_are_out_of_order_exchange_the_same_parts() -> None:
    start = network(2, 64, 1)
    moved = torch.cat([torch.full((p.numel(),), n + 1.0) for n, p in enumerate(start.parameters())])
    for found in run_ranks(4, on_nodes_out_of_order):
        torch.testing.assert_close(found, (flat(start) + moved), rtol=0, atol=4 * 4 / 127)


def diverged(rank: int) -> None:
    for method in (
        trainers.DASO(sync_every=2, wire_dtype="int8", **SHORT),
        trainers.LocalSGD(world_every=2, wire_dtype="int4"),
    ):
        net = model()

        def spoil(step: int, values: object, net: nn.Module = net) -> None:
            if rank == 3 and step == 4:
                with torch.no_grad():
                    net[0].bias[3] = torch.inf

        assert train(net, method, ranks=4, per_node=1, on_step=spoil).reason == "diverged"
        assert not bool(net[0].bias[3].isfinite())


def test_a_rank_that_diverges_is_seen_by_all() -> None:
    run_ranks(4, diverged)


def in_pieces(rank: int, method: trainers.Method, directory: str) -> None:
    """Interrupted at each step of two periods, of an epoch of five."""
    keywords: dict[str, Any] = {"loss": cross_entropy, "optimizer": adamw, "epochs": 2, "batch_size": 2}
    topology = trainers.Topology(ranks_per_node=2)
    run = partial(trainers.train, train_set=labelled(40), topology=topology, method=method, **keywords)
    assert_same_in_pieces(run, noisy_model, directory, (1,) * 8)
    if isinstance(method, trainers.DASO) and method.shard is None:
        of_rank, of_node = (
            torch.load(sorted(Path(directory).glob(f"*/{name}.pt"))[-1], weights_only=True)["strategy"]
            for name in ("rank-1", "replica-0")
        )
        assert "residuals" in of_node and "residuals" not in of_rank  # the node's, written once


@pytest.mark.parametrize(
    "method",
    cases(
        [
            trainers.DASO(
                sync_every=4, sync_delay=3, bucket_bytes=64, fragments=3, wire_dtype="int4", **SHORT
            ),
            trainers.LocalSGD(world_every=4, fragments=2, wire_dtype="int8", average_at_epoch_end=False),
        ],
        nightly=[
            trainers.DASO(sync_every=3, sync_delay=3, wire_dtype="int8", **SHORT, **OUTER),
            trainers.DASO(
                sync_every=4, sync_delay=2, fragments=2, shard="node", wire_dtype="int8", **SHORT, **OUTER
            ),
            trainers.LocalSGD(world_every=4, fragments=4, households=1, start=2, wire_dtype="bf16"),
            trainers.LocalSGD(world_every=4, fragments=2, households=1, average_at_epoch_end=False),
            trainers.LocalSGD(world_every=3, shard="node", wire_dtype="int4", **OUTER),
            trainers.OIALR(delay=3, update_every=2, synchronisation=trainers.DASO(fragments=2, **SHORT)),
        ],
    ),
)
def test_interrupted_at_each_step_it_goes_on_bit_for_bit(method: trainers.Method, tmp_path: Path) -> None:
    run_ranks(4, in_pieces, method, str(tmp_path))


def sharded(rank: int) -> None:
    """Each rank rounds its own part, so that only the blocks are others."""
    found = []
    for shard in (None, "node"):
        net = Net()
        method = trainers.DASO(sync_every=4, sync_delay=2, wire_dtype="int8", shard=shard, **SHORT)
        result = train_sharded(net, method, topology=trainers.Topology(ranks_per_node=2))
        found.append((result.metrics["validation_loss"], result.metrics["bytes_between_nodes"]))
    (whole, sent), (parts, of_parts) = found
    assert parts == pytest.approx(whole, rel=1e-3)
    assert of_parts == pytest.approx(sent, rel=0.1)


def test_parts_of_sharded_models_are_rounded_on_their_own() -> None:
    run_ranks(4, sharded)
