"""Fragments that DASO and LocalSGD exchange in turn, beside the exchange of all parameters at once."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import diloco
import torch
from gloo import run_ranks
from models import (
    STEPS_PER_EPOCH,
    Workers,
    adamw,
    assert_same,
    assert_same_bits,
    fill,
    flat,
    labelled,
    network,
    train,
)
from torch import Tensor, nn

import trainers
from trainers.communication.channel import Channel

SHORT: dict[str, Any] = {"warmup_epochs": 0, "cooldown_epochs": 0, "adaptive": False}
OUTER: dict[str, Any] = {"outer_optimizer": diloco.outer}


def model() -> nn.Module:
    return network(6, 7, 5, 1)


def simulated(ranks: int, *, every: int, delay: int, fragments: int, outer: Any = None) -> Tensor:
    """An epoch in one process: fragment i is sent at steps (i + 1) B // F modulo B, and merged S steps later by
    Eq. 3.2; all are at the end.
    """
    workers, steps = Workers(model, ranks, adamw), STEPS_PER_EPOCH
    start = flat(model())
    bounds = [len(start) * i // fragments for i in range(fragments + 1)]
    parts = [slice(*ends) for ends in pairwise(bounds)]
    bases = [nn.Parameter(start[part].clone()) for part in parts]
    make = outer or partial(torch.optim.SGD, lr=1.0)
    optimizers = [make([base]) for base in bases]
    sent: dict[int, tuple[int, list[Tensor]]] = {}
    for step in range(1, steps + 1):
        workers.step(step - 1, 1)
        weights = [flat(net) for net in workers.nets]

        def merge(i: int, weights: list[Tensor] = weights, step: int = step) -> None:
            at, own = sent.pop(i)
            bases[i].grad = bases[i].detach() - sum(own) / ranks
            optimizers[i].step()
            for each in weights:
                each[parts[i]] = torch.lerp(
                    each[parts[i]], bases[i].detach(), ranks / (2 * (step - at) + ranks)
                )

        for i, part in enumerate(parts):
            if i in sent and (step - sent[i][0] == delay or step == steps):
                merge(i)
            if step == steps or (i + 1) * every // fragments % every == step % every:
                sent[i] = step, [each[part].clone() for each in weights]
                if delay == 0 or step == steps:
                    merge(i)
        for net, each in zip(workers.nets, weights, strict=True):
            fill([net], each)
    return flat(workers.nets[0])


def runs(rank: int, made: list[trainers.Method], per_node: int) -> list[Tensor]:
    found = []
    for method in made:
        net = model()
        train(net, method, ranks=2, per_node=per_node, epochs=1, optimizer=adamw)
        found.append(flat(net))
    return found


def test_each_is_sent_in_turn_and_merged_as_all_are() -> None:
    daso = partial(trainers.DASO, wire_dtype=None, **SHORT)
    table = [(4, 1, 2), (5, 0, 2), (4, 4, 3), (5, 2, 5), (5, 3, 1)]
    made = [daso(sync_every=b, sync_delay=s, fragments=f, bucket_bytes=64, **OUTER) for b, s, f in table]
    made += [trainers.LocalSGD(world_every=b, fragments=f) for b, _, f in table]
    made += [trainers.LocalSGD(world_every=b, fragments=f, **OUTER) for b, _, f in table]
    expected = [simulated(2, every=b, delay=s, fragments=f, outer=diloco.outer) for b, s, f in table]
    expected += [
        simulated(2, every=b, delay=0, fragments=f, outer=outer)
        for outer in (None, diloco.outer)
        for b, _, f in table
    ]
    found = run_ranks(2, runs, made, 1)
    assert_same_bits(found)
    for weights, wanted in zip(found[0], expected, strict=True):
        assert_same(weights, wanted)


def most_sent(rank: int, makes: list[Any]) -> list[float]:
    """Most bytes that a rank sends to other nodes at a step that does not end the epoch, over a parameter."""
    found, count = [], Channel.count
    for make in makes:
        net, sent = network(6, 300, 300, 1).float(), [0.0]

        def counted(channel: Channel, nbytes: float, sent: list[float] = sent) -> None:
            count(channel, nbytes)
            sent[-1] += 0.0 if channel.next_is_near else nbytes

        Channel.count = counted  # type: ignore[method-assign]
        trainers.train(
            net, labelled(44), loss=lambda outputs, classes: outputs.square().mean(), optimizer=adamw, epochs=1,
            batch_size=2, method=make(), topology=trainers.Topology(ranks_per_node=1),
            on_step=lambda step, values, sent=sent: sent.append(0.0),
        )  # fmt: skip
        Channel.count = count  # type: ignore[method-assign]
        found.append(max(sent[1:10]) / flat(net).numel())
    return found


def test_no_step_within_an_epoch_sends_more_than_a_fragment() -> None:
    makes = [
        partial(trainers.DASO, sync_every=4, sync_delay=3, wire_dtype="fp32", **SHORT),
        # Merged at once, as a delay spreads the two messages of these over several steps.
        partial(trainers.DASO, sync_every=4, sync_delay=0, wire_dtype="int8", **SHORT),
        partial(trainers.LocalSGD, world_every=4, **OUTER),
    ]
    cut = [partial(make, fragments=fragments) for make in makes for fragments in (1, 2, 4)]
    found = run_ranks(2, most_sent, cut)[0]
    for whole, half, quarter in (found[:3], found[3:6], found[6:]):
        assert half <= whole * (1 / 2 + 0.1)
        assert quarter <= whole * (1 / 4 + 0.1)


def test_all_meet_in_warm_up_and_where_periods_are_shorter_than_fragments_are_many() -> None:
    """B = 4 falls to 1 with the first plateau, in the third epoch of four; a step each synchronises in the last."""
    plateau: dict[str, Any] = {"plateau_patience": 1, "plateau_threshold": 0.99}
    phases: dict[str, Any] = {"warmup_epochs": 1, "cooldown_epochs": 1}
    found = run_ranks(2, adapted, {"sync_every": 2, "fragments": 2, **plateau, **phases})
    assert found[0] == found[1]
    # 11 in warm-up; 5 and a half, one more at the epoch's end; then, with B = 1, in each step.
    assert [entry["synchronisations"] for entry in found[0][1]] == [11, 17, 23, 34, 45]
    assert [entry["sync_every"] for entry in found[0][1]] == [1, 2, 2, 1, 1]


def adapted(rank: int, settings: dict[str, Any]) -> tuple[list[float], list[dict[str, float]]]:
    net = model()
    result = train(net, trainers.DASO(**settings), ranks=2, per_node=1, epochs=5, optimizer=adamw)
    return flat(net).tolist(), result.history
