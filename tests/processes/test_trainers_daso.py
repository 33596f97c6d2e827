"""DASO against DDP and against a serial simulator of Eq. 3.2, mostly in double precision and with parameters
sent as they are, where only roundings may differ.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import diloco
import pytest
import torch
from cases import cases
from gloo import run_ranks
from models import (
    EPOCHS,
    STEPS_PER_EPOCH,
    Workers,
    adamw,
    alone,
    assert_same,
    communicator,
    fill,
    flat,
    labelled,
    network,
    setup_of,
    sgd,
    train,
    trained,
)
from resuming import assert_same_in_pieces
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import trainers
from trainers.checkpoints.shards import read_alone
from trainers.communication.channel import Channel
from trainers.methods import daso_exchange
from trainers.methods.daso_exchange import NodeExchange
from trainers.methods.strategy import Method

SHORT = {"warmup_epochs": 0, "cooldown_epochs": 0, "adaptive": False, "wire_dtype": None}
"""Cycling from the first step to the last, exact on the wire."""


sgd_of_one = partial(torch.optim.SGD, lr=1.0)
"""The outer optimizer with which the base is the average."""


def model() -> nn.Module:
    return network(6, 8, 8, 1)


def test_one_node_is_averaging_of_gradients_and_one_rank_plain_training() -> None:
    one, other = run_ranks(2, trained, model, 2, [trainers.DASO(), trainers.DDP()])[0]
    assert torch.equal(one, other)
    net = model()
    result = train(net, trainers.DASO(), ranks=1, per_node=1)
    assert torch.equal(flat(net), alone(model, 1))
    assert result.metrics["synchronisations"] == 0


def simulated(
    nodes: int,
    per_node: int,
    *,
    every: int,
    delay: int,
    warm: int = 0,
    cool: int = 0,
    outer: Any = sgd_of_one,
) -> Tensor:
    """Eq. 3.2, in one process; ``warm`` and ``cool`` in steps. ``outer`` steps what was sent in between."""
    workers = Workers(model, nodes * per_node)
    base = nn.Parameter(flat(model()))
    optimizer = outer([base])
    of_nodes = workers.parts(per_node)
    sent: list[Tensor] | None = None
    age = since = 0
    for step in range(EPOCHS * STEPS_PER_EPOCH):
        workers.step(step, per_node)
        weights = [flat(nets[0]) for nets in of_nodes]
        age, since = age + 1, since + 1
        ends = step % STEPS_PER_EPOCH == STEPS_PER_EPOCH - 1
        blocking = step < warm or step >= EPOCHS * STEPS_PER_EPOCH - cool or ends
        cycling = warm <= step < EPOCHS * STEPS_PER_EPOCH - cool
        if sent is not None and (age == delay or blocking):
            base.grad = base.detach() - sum(sent) / nodes
            optimizer.step()
            weights = [(2 * age * own + nodes * base.detach()) / (2 * age + nodes) for own in weights]
            sent = None
        if blocking or (since == every and delay == 0):
            base.grad = base.detach() - sum(weights) / nodes
            if cycling:
                optimizer.step()
            else:
                base.data -= base.grad
            weights, since = [base.detach().clone()] * nodes, 0
        elif since == every:
            sent, age, since = weights, 0, 0
        for nets, own in zip(of_nodes, weights, strict=True):
            fill(nets, own)
    return weights[0]


# 32 bytes: each parameter is a message of its own.
@pytest.mark.parametrize(
    ("ranks", "per_node", "periods"),
    cases(
        [(4, 2, [(1, 0), (2, 2), (4, 3)]), (3, 1, [(4, 3)])],
        nightly=[
            (4, 2, [(b, s) for b in (1, 2, 4) for s in range(b + 1)]),
            (2, 1, [(3, 2)]),
            (3, 1, [(1, 0), (5, 5)]),
            (8, 4, [(1, 0), (3, 2)]),
            (8, 2, [(4, 3)]),
        ],
    ),
)
def test_equals_the_simulator_for_every_delay(
    ranks: int, per_node: int, periods: list[tuple[int, int]]
) -> None:
    methods: list[Method] = [
        trainers.DASO(sync_every=b, sync_delay=s, bucket_bytes=size, **SHORT)
        for b, s in periods
        for size in (32, 25 * 2**20)
    ]
    expected = [
        simulated(ranks // per_node, per_node, every=b, delay=s) for b, s in periods for _ in range(2)
    ]
    results = run_ranks(ranks, trained, model, per_node, methods)
    for rank in results:
        for found, wanted, first in zip(rank, expected, results[0], strict=True):
            assert_same(found, wanted)
            assert torch.equal(found, first)


def test_phases_meet_where_the_settings_say() -> None:
    # Of 22 steps five of warm-up, and eleven of cool-down with a synchronisation under way before it.
    method = trainers.DASO(
        sync_every=3, sync_delay=2, **{**SHORT, "warmup_epochs": 5 / 22, "cooldown_epochs": 1}
    )
    later = trainers.DASO(sync_every=3, sync_delay=2, **{**SHORT, "cooldown_epochs": 8 / 22})
    # The outer optimizer rests in both phases, and steps at an epoch's end between them.
    keywords: dict[str, Any] = {**SHORT, "warmup_epochs": 5 / 22, "cooldown_epochs": 3 / 22}
    stepped = trainers.DASO(
        sync_every=3, sync_delay=2, outer_optimizer=diloco.outer, bucket_bytes=32, **keywords
    )
    for found, other, last in run_ranks(4, trained, model, 2, [method, later, stepped]):
        assert_same(found, simulated(2, 2, every=3, delay=2, warm=5, cool=11))
        assert_same(other, simulated(2, 2, every=3, delay=2, cool=8))
        assert_same(last, simulated(2, 2, every=3, delay=2, warm=5, cool=3, outer=diloco.outer))


def watched(rank: int, per_node: int, delay: int) -> tuple[list[Tensor], list[int], list[int], Tensor]:
    """The parameters before each step and at the end, and in which steps this rank sends between nodes and waits."""
    net, parameters = model(), list[Tensor]()
    steps: dict[str, list[int]] = {"_start": [], "_wait": []}

    def noted(name: str) -> Any:
        original = getattr(Channel, name)

        def method(channel: Channel, *arguments: Any) -> Any:
            if channel.name == "across":
                steps[name].append(len(parameters) - 1)
            return original(channel, *arguments)

        return method

    for name in steps:
        setattr(Channel, name, noted(name))

    def before_step() -> bool:
        parameters.append(flat(net).clone())
        return False

    method = trainers.DASO(sync_every=4, sync_delay=delay, **{**SHORT, "wire_dtype": "bf16"})
    train(net, method, ranks=4, per_node=per_node, interrupt=before_step, optimizer=adamw)
    return parameters, steps["_start"], steps["_wait"], flat(net)


def test_ranks_of_a_node_stay_equal_members_take_turns_and_nobody_waits_early() -> None:
    delay = 3
    ranks = run_ranks(4, watched, 2, delay)
    starts, steps = (0, STEPS_PER_EPOCH), EPOCHS * STEPS_PER_EPOCH
    for step in range(steps):
        first, second, third, fourth = (rank[0][step] for rank in ranks)
        assert torch.equal(first, second)
        assert torch.equal(third, fourth)
        # Nodes agree from each epoch's end to the next step.
        assert torch.equal(first, third) == (step in starts)
    assert all(torch.equal(rank[3], ranks[0][3]) for rank in ranks)
    # An epoch's synchronisations are sent with the steps 3 and 7, and with the last one, 10.
    sent_at = [start + step for start in starts for step in (3, 7, 10)]
    for rank in range(4):
        mine = [step for turn, step in enumerate(sent_at) if turn % 2 == rank % 2]
        assert ranks[rank][1] == mine
        due = {start + when for start in starts for when in (3 + delay, 7 + delay, 10)}
        assert set(ranks[rank][2]) <= due


def in_fewer_bytes(rank: int) -> list[tuple[Tensor, float]]:
    found = []
    for wire_dtype in (None, "fp32", "bf16"):
        net = frozen()
        method = trainers.DASO(sync_every=4, **{**SHORT, "wire_dtype": wire_dtype})
        metrics = train(net, method, ranks=4, per_node=2).metrics
        assert metrics["synchronisations"] == 6
        found.append((flat(net), metrics["bytes_between_nodes"]))
    return [*found, (flat(model()), 0.0)]


def frozen() -> nn.Module:
    net = model()
    net[0].weight.requires_grad_(False)
    net[2].bias.requires_grad_(False)
    return net


def test_bytes_between_nodes_are_as_predicted_and_few_stray_little() -> None:
    (exact, sent), (single, half), (rounded, quarter), (start, _) = run_ranks(4, in_fewer_bytes)[0]
    # Two nodes, of which a rank sends eight, four or two bytes a trained parameter.
    trained = sum(parameter.numel() for parameter in frozen().parameters() if parameter.requires_grad)
    assert (sent, half, quarter) == tuple(2 * 6 * size * trained for size in (8, 4, 2))
    # Changes are rounded, to 8 bits, and not the parameters themselves.
    strays = [(found - exact).abs().max().item() for found in (single, rounded)]
    assert 0 < strays[0] < strays[1] < 2**-7 * (exact - start).abs().max().item()


# B and S


def periods_of(losses: list[float], **settings: Any) -> list[tuple[float, float]]:
    """(B, S) of each epoch of three steps."""
    setup = setup_of(model(), communicator(), epochs=len(losses), steps_per_epoch=3)
    strategy = trainers.DASO(**settings).strategy(setup)
    trace = []
    for epoch, loss in enumerate(losses):
        for step in range(3):
            strategy.after_step(3 * epoch + step, torch.zeros(()))
        strategy.end_epoch(epoch, loss)
        metrics = strategy.metrics()
        trace.append((metrics["sync_every"], metrics["sync_delay"]))
    return trace


def test_periods_follow_the_training_loss() -> None:
    cycling = {"warmup_epochs": 0, "cooldown_epochs": 0, "plateau_threshold": 0.1, "plateau_patience": 1}
    # 0.95 is no better than 1 by a tenth; 0.85 is.
    losses = [1.0, 0.95, 0.85, 0.84, 0.8, 0.8, 0.5, 0.5]
    assert periods_of(losses, sync_every=8, sync_delay=3, **cycling) == [
        (8, 3), (8, 3), (4, 1), (4, 1), (2, 1), (1, 1), (8, 3), (8, 3),
    ]  # fmt: skip
    assert periods_of(losses, sync_every=3, sync_delay=3, **cycling) == [
        (3, 3), (3, 3), (1, 1), (1, 1), (3, 3), (1, 1), (3, 3), (3, 3),
    ]  # fmt: skip
    flat_ = [1.0] * 6
    assert [s for _, s in periods_of(flat_, sync_every=4, sync_delay=0, **cycling)] == [0] * 6
    assert periods_of(flat_, sync_every=4, **{**cycling, "plateau_patience": 2}) == [
        (4, 1), (4, 1), (4, 1), (2, 1), (2, 1), (1, 1),
    ]  # fmt: skip
    assert set(periods_of(flat_, sync_every=4, adaptive=False, **cycling)) == {(4, 1)}
    # A loss below zero plateaus like any other.
    assert periods_of([-1.0, -1.05, -1.2, -1.2], sync_every=4, **cycling)[1:] == [(4, 1), (2, 1), (2, 1)]


def test_only_cycling_epochs_count() -> None:
    assert periods_of(
        [1.0] * 8, sync_every=8, sync_delay=8, warmup_epochs=2, cooldown_epochs=1, plateau_patience=1
    ) == [(1, 0), (1, 0), (8, 8), (8, 8), (4, 4), (2, 2), (1, 1), (1, 0)]
    # A warm-up that ends inside an epoch: the first whole cycling one is the third.
    trace = periods_of([1.0] * 5, sync_every=8, warmup_epochs=4 / 15, cooldown_epochs=0, plateau_patience=1)
    assert trace == [(1, 0), (8, 1), (8, 1), (8, 1), (4, 1)]


# Settings


def test_a_run_that_would_never_cycle_is_refused() -> None:
    for settings in (
        {"warmup_epochs": 4},
        {"cooldown_epochs": 1.0},
        {"warmup_epochs": 2, "cooldown_epochs": 0.5},
    ):
        with pytest.raises(ValueError, match=r"warmup_epochs=.*, cooldown_epochs=.*: .* 3 epochs"):
            train(model(), trainers.DASO(**settings), ranks=1, per_node=1, epochs=3)
    train(model(), trainers.DASO(), ranks=1, per_node=1, epochs=1)  # long enough for the fractions by default


def uneven(rank: int) -> None:
    ranks = communicator()
    ranks.nodes = ((0, 1), (2,))
    with pytest.raises(ValueError, match="Start as many ranks on every node"):
        trainers.DASO().strategy(setup_of(model(), ranks))
    ranks.close()


def test_nodes_of_different_size_are_refused() -> None:
    run_ranks(3, uneven)


def sharded(rank: int) -> list[tuple[Tensor, dict[str, float]]]:
    """What one sender a node and, as on NCCL, one a rank leave, in messages that do not divide by their number."""
    found = []
    for sharding in ((), ("gloo",)):
        daso_exchange.SHARDING_BACKENDS = frozenset(sharding)
        for wire_dtype in (None, "bf16"):
            method = trainers.DASO(
                sync_every=3, sync_delay=2, bucket_bytes=32, **{**SHORT, "wire_dtype": wire_dtype}
            )
            net = model()
            result = train(net, method, ranks=4, per_node=2)
            found.append((flat(net), result.metrics))
    return found


def test_a_share_sent_by_each_rank_is_what_one_rank_sends_for_all() -> None:
    (*single, exact, rounded), *others = run_ranks(4, sharded)
    for (parameters, metrics), (expected, before) in zip((exact, rounded), single, strict=True):
        assert torch.equal(parameters, expected)
        assert metrics["bytes_between_nodes"] == pytest.approx(before["bytes_between_nodes"], rel=0.2)
    for other in others:
        assert torch.equal(other[2][0], exact[0])


# The base


def merged_once(rank: int, dtype: torch.dtype) -> tuple[list[float], float, bool]:
    """The base and a parameter after a step of rank 0 alone, merged with weight 1/2; whether another exchange takes
    up the base.
    """
    parameter = nn.Parameter(torch.ones(3, dtype=dtype))
    ranks = communicator(1)
    keywords: dict[str, Any] = {"bucket_bytes": None, "wire_dtype": None}
    with torch.no_grad():
        exchange = NodeExchange([parameter], ranks, **keywords)
        if rank == 0:
            parameter += torch.finfo(dtype).eps
        exchange.send(0)
        exchange.merge(0, exchange.share_within_node(0, 0), 0.5)
        exchange.receive()
        state = exchange.state()
        base = torch.cat(state["base"])
        other = NodeExchange([parameter], ranks, **keywords)
        kept = other.load(state) and torch.equal(torch.cat(other.state()["base"]), base)
        with torch.device("meta"):  # the user's default device, which is another than the parameters'
            kept = kept and other.load(state)
    ranks.close()
    return base.tolist(), parameter[0].item(), kept


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_the_base_of_low_precision_parameters_holds_the_average_of_small_steps(dtype: torch.dtype) -> None:
    eps = torch.finfo(dtype).eps
    low = dtype in (torch.bfloat16, torch.float16)
    # Halfway between two numbers of the type, which rounds to the even one.
    average = 1 + eps / 2 if low else 1.0
    # Three quarters of a step round to a whole one, half a step to none.
    expected = [1 + eps if low else 1.0, 1.0]
    for (base, parameter, kept), value in zip(run_ranks(2, merged_once, dtype), expected, strict=True):
        assert base == [average] * 3
        assert parameter == value
        assert kept


class Narrow(nn.Module):
    """Of bfloat16, but for its norm."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.hidden, self.norm, self.out = nn.Linear(6, 16), nn.LayerNorm(16), nn.Linear(16, 2)
        self.hidden.bfloat16()
        self.out.bfloat16()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.norm(self.hidden(x.bfloat16()).float()).bfloat16())
        return out.float()


def in_pieces_of_several_precisions(rank: int, directory: str) -> tuple[Tensor, list[torch.dtype]]:
    """Warm-up to the middle of the first of four epochs, cool-down in the last, B and S halved between."""
    method = trainers.DASO(
        sync_every=3, sync_delay=2, warmup_epochs=0.15, cooldown_epochs=1, plateau_patience=1, plateau_threshold=0.9
    )  # fmt: skip
    run = partial(
        trainers.train, train_set=labelled(20), method=method, loss=cross_entropy, optimizer=sgd, epochs=4,
        batch_size=2, topology=trainers.Topology(ranks_per_node=1),
    )  # fmt: skip
    whole = assert_same_in_pieces(run, Narrow, directory, (4, 4, 4))
    base: Any = read_alone(directory)["strategy"]
    return flat(whole), [part.dtype for part in base["base"]]


def test_parameters_of_several_precisions_resume_bit_for_bit(tmp_path: Path) -> None:
    (whole, dtypes), (other, _) = run_ranks(2, in_pieces_of_several_precisions, str(tmp_path))
    assert torch.equal(whole, other)
    assert dtypes == [torch.float32] * 2
