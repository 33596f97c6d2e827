"""DASO and LocalSGD whose models are sharded over the ranks of each node, beside the same with a model a rank."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from cases import cases
from gloo import run_ranks
from resuming import After, assert_identical, assert_same_in_pieces, state_of
from sharded import Net, adamw, samples, train

import trainers

SHORT: dict[str, Any] = {"warmup_epochs": 0, "cooldown_epochs": 0, "adaptive": False}
NODES = trainers.Topology(ranks_per_node=2)
AVERAGED = {"evaluate_every": 2, "ema_decay": 0.7}


def daso(sync_every: int, sync_delay: int) -> Any:
    return partial(trainers.DASO, sync_every=sync_every, sync_delay=sync_delay, **SHORT)


def found(rank: int, method: trainers.Method, options: dict[str, Any]) -> tuple[Any, ...]:
    net = Net()
    result = train(net, method, topology=NODES, **options)
    losses = [entry["validation_loss"] for entry in result.history]
    sent = [result.metrics[f"bytes_{where}_nodes"] for where in ("between", "inside")]
    return state_of(net), losses, sent


def beside(rank: int, made: list[Any], options: dict[str, Any]) -> None:
    for make in made:
        whole, losses, sent = found(rank, make(), options)
        parts, found_losses, found_sent = found(rank, make(shard="node"), options)
        assert_identical(whole, parts)
        assert (found_losses, found_sent[0]) == (losses, sent[0])
        # Weights are gathered twice and gradients reduced once a step by each rank, and nothing else is sent.
        weights = 4 * sum(value.numel() for value in whole.values())
        assert found_sent[1] == pytest.approx(12 * 4 * 3 * weights / 2, rel=0.05)


@pytest.mark.parametrize(
    ("made", "options"),
    cases(
        [([daso(4, 2), partial(trainers.LocalSGD, world_every=5, average_at_epoch_end=False)], AVERAGED)],
        nightly=[
            ([daso(*periods) for periods in ((1, 0), (4, 1), (4, 2), (3, 3))], {}),
            ([partial(trainers.LocalSGD, world_every=3)], {"evaluate_every": 2}),
        ],
    ),
)
def test_parts_are_trained_as_whole_models_are(made: list[Any], options: dict[str, Any]) -> None:
    run_ranks(4, beside, made, options)


def test_each_step_merged_at_once_is_ddp() -> None:
    sgd = {"optimizer": partial(torch.optim.SGD, lr=0.05)}
    each = trainers.DASO(sync_every=1, sync_delay=0, wire_dtype="fp32", shard="node", adaptive=False)
    first = trainers.LocalSGD(start=11, shard="node")
    (expected, *_), *_ = run_ranks(4, found, trainers.DDP(), sgd)
    for method in (each, first):
        (weights, *_), *_ = run_ranks(4, found, method, sgd)
        for name, value in expected.items():
            torch.testing.assert_close(weights[name], value, rtol=0, atol=1e-6)


def in_pieces(rank: int, method: trainers.Method, directory: str) -> None:
    """Interrupted after each of seven steps, of an epoch of six; the first evaluation is the best."""
    options: dict[str, Any] = {
        **AVERAGED,
        "early_stopping": trainers.EarlyStopping(patience=9, restore_best=True),
    }
    options["optimizer"] = partial(adamw, maximize=True)
    run = partial(train, method=method, topology=NODES, clip_norm=0.3, **options)
    whole = state_of(assert_same_in_pieces(run, Net, directory, (1,) * 7))
    loaded = trainers.load_trained(Net(), directory)
    assert_identical(dict(loaded.state_dict()), whole)


@pytest.mark.parametrize(
    "method",
    cases(
        [trainers.DASO(sync_every=3, sync_delay=2, shard="node", **SHORT)],
        nightly=[trainers.LocalSGD(world_every=4, start=3, average_at_epoch_end=False, shard="node")],
    ),
)
def test_interrupted_at_each_step_it_goes_on_bit_for_bit(method: trainers.Method, tmp_path: Any) -> None:
    run_ranks(4, in_pieces, method, str(tmp_path))


def on_other_nodes(rank: int, directory: str) -> None:
    method = trainers.DASO(shard="node", **SHORT)
    run = partial(
        trainers.train, loss=torch.nn.functional.cross_entropy, optimizer=adamw, epochs=2, batch_size=4
    )
    with pytest.raises(trainers.Interrupted):
        run(Net(), samples(96), method=method, topology=NODES, checkpoint=directory, interrupt=After(3))
    with pytest.raises(ValueError, match="each rank, or node, has a model"):
        run(Net(), samples(96), method=method, checkpoint=directory)
    # On one node it is FSDP, whose parts any ranks take up.
    run(Net(), samples(96), method=trainers.DASO(shard="node", **SHORT), checkpoint=f"{directory}/one")
    wrong = trainers.LocalSGD(households=1, shard="node")
    with pytest.raises(ValueError, match="households must be None with shard, or a node's ranks"):
        run(Net(), samples(96), method=wrong, topology=NODES)


def test_other_nodes_and_households_are_refused(tmp_path: Any) -> None:
    run_ranks(4, on_other_nodes, str(tmp_path))
