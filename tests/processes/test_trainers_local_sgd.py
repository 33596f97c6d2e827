"""Local SGD against a serial simulator of several workers, in double precision, where only roundings may
differ.
"""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from cases import cases
from gloo import run_ranks
from models import (
    EPOCHS,
    STEPS_PER_EPOCH,
    Workers,
    adamw,
    assert_same,
    assert_same_bits,
    communicator,
    fill,
    flat,
    labelled,
    network,
    noisy_model,
    setup_of,
    sgd,
    train,
    trained,
)
from resuming import After, assert_same_in_pieces
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import trainers
from trainers.methods.local_sgd import adapted_period, effective_batch_size
from trainers.methods.strategy import Method

STEPS = STEPS_PER_EPOCH * EPOCHS


def model() -> nn.Module:
    return network(6, 8, 1)


def simulated(
    ranks: int,
    levels: list[tuple[int, int]],
    *,
    start: int = 0,
    joint: int = 1,
    epoch_ends: bool = True,
    optimizer: Any = sgd,
) -> Tensor:
    """One process with a model a worker, that averages parameters over parts of ``size`` ranks every
    ``period`` steps for (period, size) in ``levels``, the world last, at the end of each epoch or with ``epoch_ends``
    False of the last one, and gradients over parts of ``joint``, and before ``start`` over all.
    """
    workers = Workers(model, ranks, optimizer)
    since = 0
    for step in range(STEPS):
        workers.step(step, joint if step >= start else ranks)
        since += step >= start
        for level in levels:
            period, size = level
            ends = (step + 1) % STEPS_PER_EPOCH == 0 if epoch_ends else step == STEPS - 1
            if (since and since % period == 0) or (ends and level == levels[-1]):
                for nets in workers.parts(size):
                    fill(nets, sum(map(flat, nets)) / size)  # type: ignore[arg-type]
                since = 0 if level == levels[-1] else since
    return flat(workers.nets[0])


# (settings, the simulator's) for four ranks.
FOUR: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"households": 1}, {"levels": [(8, 4)]}),
    ({"households": 1, "world_every": 3}, {"levels": [(3, 4)]}),
    ({"households": 4}, {"levels": [(8, 4)], "joint": 4}),
    ({"households": 2, "world_every": 5}, {"levels": [(5, 4)], "joint": 2}),
    ({"households": 2, "household_every": 2, "world_every": 5}, {"levels": [(2, 2), (5, 4)]}),
    ({"households": 4, "household_every": 3, "world_every": 7}, {"levels": [(3, 4), (7, 4)]}),
    ({"world_every": 3, "start": 6}, {"levels": [(3, 4)], "joint": None, "start": 6}),
    ({"households": 1, "world_every": 4, "start": 0.5}, {"levels": [(4, 4)], "start": 11}),
    ({"households": 1, "start": STEPS - 1}, {"levels": [(8, 4)], "start": STEPS - 1}),
    (
        {"households": 1, "neighbourhoods": 2, "neighbourhood_every": 2, "world_every": 6},
        {"levels": [(2, 2), (6, 4)]},
    ),
    (
        {"households": 2, "world_every": 7, "average_at_epoch_end": False},
        {"levels": [(7, 4)], "joint": 2, "epoch_ends": False},
    ),
    # Longer than an epoch.
    (
        {"households": 1, "world_every": STEPS_PER_EPOCH + 3, "average_at_epoch_end": False},
        {"levels": [(STEPS_PER_EPOCH + 3, 4)], "epoch_ends": False},
    ),
]


# Households that are a node, a part of a node, and all of two.
EIGHT: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {"households": 2, "neighbourhoods": 4, "neighbourhood_every": 3, "world_every": 7},
        {"levels": [(3, 4), (7, 8)], "joint": 2},
    ),
    (
        {
            "households": 2,
            "household_every": 2,
            "neighbourhoods": 4,
            "neighbourhood_every": 4,
            "world_every": 9,
        },
        {"levels": [(2, 2), (4, 4), (9, 8)]},
    ),
    ({"households": 4, "household_every": 2, "world_every": 5}, {"levels": [(2, 4), (5, 8)]}),
]


@pytest.mark.parametrize(
    ("ranks", "per_node", "optimizer"),
    cases([(4, 2, adamw)], nightly=[(4, 1, sgd), (4, 4, sgd), (8, 4, adamw), (8, 2, sgd)]),
)
def test_equals_the_simulator(ranks: int, per_node: int, optimizer: Any) -> None:
    table = FOUR if ranks == 4 else EIGHT
    methods: list[Method] = [trainers.LocalSGD(**settings) for settings, _ in table]
    found = run_ranks(ranks, trained, model, per_node, methods, optimizer)
    assert_same_bits(found)
    for parameters, (_, expected) in zip(found[0], table, strict=True):
        if expected.get("joint", 1) is None:
            expected = {**expected, "joint": per_node}
        wanted = simulated(ranks, **expected, optimizer=optimizer)
        torch.testing.assert_close(parameters, wanted, rtol=1e-9, atol=1e-9)


def on_uneven_nodes(rank: int) -> Tensor:
    """Two ranks on one node and one on the other: the mean over ranks, after each step."""
    ranks = communicator()
    ranks.nodes = ((0, 1), (2,))
    ranks._node_of = {0: 0, 1: 0, 2: 1}
    net = model()
    strategy = trainers.LocalSGD(household_every=2, world_every=3).strategy(setup_of(net, ranks))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(float(3**rank))
    for step in range(3):
        strategy.reduce_gradients(step)
        strategy.after_step(step, torch.zeros(()))
    ranks.close()
    return flat(net)


def test_ranks_count_alike_on_nodes_of_different_size() -> None:
    for found in run_ranks(3, on_uneven_nodes):
        assert_same(found, torch.full_like(found, (1 + 3 + 9) / 3))


def traffic(rank: int) -> list[tuple[float, float]]:
    found = []
    for settings in (
        {"world_every": 11},
        {"households": 1, "world_every": 11},
        {"households": 1, "neighbourhoods": 4, "neighbourhood_every": 5, "world_every": 11},
    ):
        metrics = train(model(), trainers.LocalSGD(**settings), ranks=8, per_node=2, epochs=1).metrics
        found.append((metrics["bytes_between_nodes"], metrics["synchronisations"]))
    return found


def test_slow_links_carry_each_average_once() -> None:
    nodes, households, neighbourhoods = run_ranks(8, traffic)[0]
    size = 8 * flat(model()).numel()
    # A ring of one rank of each of the four nodes, at the epoch's end, which is the eleventh step.
    assert nodes == households == (4 * 2 * size * 3 / 4, 1)
    # Twice inside neighbourhoods of two nodes. Then those first, and two leaders that hand on to two nodes.
    inside = 2 * 2 * size * 1 / 2 * 2
    assert neighbourhoods == (2 * inside + inside + 2 * size / 2 * 2 + 4 * size / 2, 1)


# The period


def test_the_adaptive_period_is_that_of_adacomm() -> None:
    assert [adapted_period(period=8, first_loss=2.0, loss=loss) for loss in (2, 1.9, 1, 0.5, 0.1, 0, 3)] == [
        8, 8, 6, 4, 2, 1, 8,
    ]  # fmt: skip
    for period in (1, 8, 100):
        for loss in (0.01, 0.3, 0.9):
            expected = math.ceil(math.sqrt(loss) * period)
            assert adapted_period(period=period, first_loss=1.0, loss=loss) == expected
    # Losses below zero tell nothing, nor does one that is no number.
    assert adapted_period(period=8, first_loss=-1.0, loss=-2.0) == 8
    assert adapted_period(period=8, first_loss=1.0, loss=-2.0) == 1
    assert adapted_period(period=8, first_loss=1.0, loss=math.nan) == 8


def adapted(rank: int, losses: list[float]) -> list[tuple[float, float]]:
    """(period, averages of the world) of each epoch of 16 steps; the first is DDP."""
    ranks = communicator(1)
    method = trainers.LocalSGD(world_every=8, start=16, adaptive=True)
    setup = setup_of(model(), ranks, epochs=len(losses), steps_per_epoch=16)
    strategy = method.strategy(setup)
    found = []
    before = 0.0
    for epoch, loss in enumerate(losses):
        for step in range(16):
            strategy.reduce_gradients(16 * epoch + step)
            strategy.after_step(16 * epoch + step, torch.zeros(()))
        strategy.end_epoch(epoch, loss)
        metrics = strategy.metrics()
        found.append((metrics["world_every"], metrics["synchronisations"] - before))
        before = metrics["synchronisations"]
    ranks.close()
    return found


def test_the_period_shrinks_with_the_loss() -> None:
    # The first loss after the start counts as the beginning; an epoch's period is of the loss before it.
    losses = [9.0, 4.0, 1.0, 0.25, 4.0, 9.0, 1.0]
    assert run_ranks(2, adapted, losses)[0] == [(1, 0), (8, 2), (8, 2), (4, 4), (2, 8), (8, 2), (8, 2)]


def test_the_effective_batch_size_is_that_of_the_appendix() -> None:
    # A.2 in the form in which it is derived, with households of B_h samples.
    for households in (1, 2, 4, 16):
        for world_every in (1, 2, 128):
            of_household = 8 * 16 / households
            assert effective_batch_size(
                batch_size=8, ranks=16, households=households, world_every=world_every
            ) == pytest.approx((of_household * (world_every - 1) + of_household * households) / world_every)
    # All at each step, and one alone.
    assert effective_batch_size(batch_size=8, ranks=16, households=16, world_every=1) == 128
    assert effective_batch_size(batch_size=8, ranks=1, households=1, world_every=5) == 8


def recorded(rank: int) -> list[list[float | None]]:
    found = []
    for settings in (
        {"households": 2, "start": STEPS_PER_EPOCH},
        {"households": 2, "household_every": 2},
        {"households": 1, "neighbourhoods": 2, "neighbourhood_every": 2},
    ):
        result = train(
            model(), trainers.LocalSGD(**settings), ranks=4, per_node=2, batch_size=1, accumulate=2
        )
        found.append([entry.get("effective_batch_size") for entry in result.history])
    return found


def test_the_effective_batch_size_is_recorded_where_it_is_defined() -> None:
    assert run_ranks(4, recorded)[0] == [[8, 2 * 4 * 9 / 16], [None, None], [None, None]]


# Epochs that end without an average


def evaluated_at_epoch_ends(rank: int) -> None:
    """Epochs of five steps: none ends with an average, which come after the eighth step and at the run's end."""
    samples = labelled(10 * dist.get_world_size())
    method = trainers.LocalSGD(households=1, world_every=8, average_at_epoch_end=False)
    keywords: dict[str, Any] = {"optimizer": adamw, "epochs": 3, "batch_size": 2, "method": method}
    whole, again = noisy_model(), noisy_model()
    own: list[Tensor] = []
    evaluations = 0

    def weights_and_buffers() -> list[Tensor]:
        return [each.detach().double().clone() for each in (*whole.parameters(), *whole.buffers())]

    def take(model: nn.Module, batch: Any) -> dict[str, Tensor]:
        nonlocal evaluations
        if not model.training:
            evaluations += 1
            for found, mine in zip(weights_and_buffers(), own, strict=True):
                mean = mine.clone()
                dist.all_reduce(mean)
                torch.testing.assert_close(found, mean / dist.get_world_size())
            assert not torch.equal(weights_and_buffers()[0], own[0])
        inputs, classes = batch
        outputs = model(inputs)
        return {"loss": cross_entropy(outputs, classes), "outputs": outputs}

    def after_step(step: int, taken: object) -> None:
        own[:] = weights_and_buffers()

    result = trainers.train(whole, samples, labelled(), step=take, on_step=after_step, **keywords)
    assert evaluations
    assert [entry["synchronisations"] for entry in result.history] == [0, 1, 2]
    # Without evaluations training takes the same course.
    trainers.train(again, samples, loss=cross_entropy, **keywords)
    for one, other in zip(whole.state_dict().values(), again.state_dict().values(), strict=True):
        assert torch.equal(one, other)
        first = one.clone()
        dist.broadcast(first, 0)
        assert torch.equal(one, first)


def test_an_evaluation_between_averages_sees_the_mean_and_leaves_the_ranks_as_they_were() -> None:
    run_ranks(2, evaluated_at_epoch_ends)


# Going on


def resumed_and_not(rank: int, directory: str, at_epoch_end: bool) -> None:
    samples = labelled(10 * dist.get_world_size())
    keywords: dict[str, Any] = {
        "loss": cross_entropy,
        "optimizer": adamw,
        "epochs": 4,
        "batch_size": 2,
        "clip_norm": 1.0,
        "topology": trainers.Topology(ranks_per_node=2),
        "method": trainers.LocalSGD(
            households=1,
            neighbourhoods=2,
            neighbourhood_every=2,
            world_every=4,
            start=3,
            average_at_epoch_end=at_epoch_end,
        ),
    }
    run = partial(trainers.train, train_set=samples, validation_set=labelled(), **keywords)
    assert_same_in_pieces(run, noisy_model, directory, (1, 1, 1, 2, 4, 1, 2))


@pytest.mark.parametrize("at_epoch_end", cases([False], nightly=[True]))
def test_resumes_bit_for_bit_with_neighbourhoods(tmp_path: Path, at_epoch_end: bool) -> None:
    run_ranks(4, resumed_and_not, str(tmp_path), at_epoch_end)


def test_a_checkpoint_from_before_a_setting_came_is_gone_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def earlier(self: trainers.LocalSGD) -> str:
        return now(self).split(", average_at_epoch_end")[0] + ")"

    def run(method: trainers.LocalSGD, stop: int = 100) -> trainers.Result:
        return trainers.train(
            noisy_model(), labelled(), loss=cross_entropy, optimizer=sgd, epochs=2, batch_size=8, method=method,
            checkpoint=tmp_path, interrupt=After(stop),
        )  # fmt: skip

    now = trainers.LocalSGD.__repr__
    with monkeypatch.context() as before, pytest.raises(trainers.Interrupted):
        before.setattr(trainers.LocalSGD, "__repr__", earlier)
        run(trainers.LocalSGD(), stop=3)
    with pytest.raises(ValueError, match=r"of other settings: method was .*adaptive=False\)"):
        run(trainers.LocalSGD(average_at_epoch_end=False))
    assert run(trainers.LocalSGD()).history


# Settings


def does_not_fit(rank: int) -> None:
    for settings, message in (
        ({"households": 3}, "households=3"),
        ({"neighbourhoods": 3, "neighbourhood_every": 2}, "neighbourhoods=3"),
        ({"neighbourhoods": 1, "neighbourhood_every": 2}, "Set households too"),
        *(({"start": start}, rf"start={start}.* the run has {STEPS}") for start in (1.0, STEPS)),
    ):
        with pytest.raises(ValueError, match=message):
            train(model(), trainers.LocalSGD(**settings), ranks=4, per_node=2)


def test_parts_that_do_not_divide_the_ranks_and_a_start_after_the_end_are_refused() -> None:
    run_ranks(4, does_not_fit)


def on_nodes(rank: int) -> None:
    normed = nn.Sequential(nn.Linear(3, 4), nn.SyncBatchNorm(4), nn.Linear(4, 1))
    ranks = communicator(1)
    for method in (trainers.LocalSGD(), trainers.DASO(), trainers.AB(full_rank_first_layer=False)):
        net = normed
        if isinstance(method, trainers.AB):
            net = nn.Sequential(nn.Linear(16, 16), nn.SyncBatchNorm(16), nn.Linear(16, 1))
        with pytest.raises(ValueError, match=r"1 is a SyncBatchNorm.*Use BatchNorm"):
            method.strategy(setup_of(net, ranks))
    # Ranks that never train apart may have them.
    for method in (trainers.LocalSGD(households=2), trainers.DDP()):
        method.strategy(setup_of(normed, ranks)).close()
    dist.barrier()  # who closes a group before another rank has joined it spoils that
    ranks.close()


def test_synchronised_norms_are_refused_where_ranks_train_apart() -> None:
    run_ranks(2, on_nodes)
