"""AB training against a serial simulation of its groups, in double precision, and against its equations."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import pytorch_optimizer
import torch
import torch.distributed as dist
from cases import cases
from gloo import groups_in_use, run_ranks
from models import adamw, communicator, network, setup_of
from resuming import assert_identical, assert_same_in_pieces, state_of
from test_trainers_contract import Everything, tokens
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import TensorDataset

import trainers
from trainers.data.batches import Disjoint
from trainers.lowrank.layers import matrix_weights
from trainers.methods.ab_merge import groups_of

SAMPLES = 48
RATE, MOMENTUM, DECAY = 0.05, 0.9, 1e-3
WARMUP, PHASE, REBOUND, LR_REBOUND = 3, 4, 2, 3
FACTORED = ("2.weight", "4.weight")


def model() -> nn.Module:
    return network(6, 16, 24, 16, 1)


def everything() -> nn.Module:
    return Everything().double()


def data(samples: int = SAMPLES) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(samples, 6, dtype=torch.float64, generator=generator)
    return TensorDataset(x, torch.sin(x[:, :3].sum(1, keepdim=True)))


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=RATE, momentum=MOMENTUM, weight_decay=DECAY)


def method(**changed: Any) -> trainers.AB:
    settings: dict[str, Any] = {
        "warmup_steps": WARMUP,
        "ab_steps": PHASE,
        "rebound_steps": REBOUND,
        "lr_rebound_steps": LR_REBOUND,
    }
    return trainers.AB(**{**settings, **changed})


def train(net: nn.Module, per_node: int | None = None, **changed: Any) -> trainers.Result:
    settings: dict[str, Any] = {
        "train_set": data(),
        "validation_set": data(16),
        "loss": mse_loss,
        "optimizer": sgd,
        "method": method(),
        "epochs": 3,
        "batch_size": 2,
        "topology": trainers.Topology(ranks_per_node=per_node),
    }
    return trainers.train(net, **{**settings, **changed})


def moved(a: Tensor, b: Tensor) -> float:
    return (a - b).abs().max().item()


# The whole method beside a simulation that knows no ranks


class Simulated:
    """All groups one after the other in one process: SGD by hand, W built from its factors by a product."""

    def __init__(self, groups: list[list[int]], settings: dict[str, Any], *, epochs: int, batch_size: int):
        self.groups, self.ranks, self.settings = groups, sorted(chain(*groups)), settings
        self.net = model()
        dealt: dict[str, int] = {"samples": SAMPLES, "seed": 0, "ranks": len(self.ranks), "accumulate": 1}
        dealt["batch_size"] = batch_size
        self.per_rank = [
            [step[0] for epoch in range(epochs) for step in Disjoint().epoch(rank=rank, epoch=epoch, **dealt)]
            for rank in self.ranks
        ]
        self.total = len(self.per_rank[0])

    def run(self) -> dict[str, Tensor]:
        p = {name: value.detach().clone() for name, value in self.net.named_parameters()}
        v = {name: torch.zeros_like(value) for name, value in p.items()}
        step, changed = 0, -1000
        warmup = self.settings.get("warmup_steps", WARMUP)
        for _ in range(warmup):
            self.descend(p, v, self.ranks, step, changed, list(p))
            step += 1
        while step < self.total:
            changed, taken = step, min(PHASE, self.total - step)
            self.phase(p, v, step, taken)
            step += taken
            changed = step
            for _ in range(min(REBOUND, self.total - step)):
                self.descend(p, v, self.ranks, step, changed, list(p))
                step += 1
        return p

    def phase(self, p: dict[str, Tensor], v: dict[str, Tensor], step: int, taken: int) -> None:
        old = {}
        for name in FACTORED:
            u, s, vt = torch.linalg.svd(p[name], full_matrices=False)
            k = int((s > s[0] * self.settings.get("sigma_cutoff", 0.15)).sum())
            old[name] = (u[:, :k] * s[:k].sqrt(), s[:k].sqrt()[:, None] * vt[:k])
        count, ends, losses = len(self.groups), [], []
        for index, ranks in enumerate(self.groups):
            of_a = index < count // 2
            q, w = copy.deepcopy(p), copy.deepcopy(v)
            for name, (a, b) in old.items():
                q[name + "_a"], q[name + "_b"] = a.clone(), b.clone()
                del q[name]
                momentum = w.pop(name)
                w[name + ("_a" if of_a else "_b")] = momentum @ b.T if of_a else a.T @ momentum
            trained = [name for name in q if not name.endswith("_b" if of_a else "_a")]
            loss = [self.descend(q, w, ranks, step + i, step, trained) for i in range(taken)]
            ends.append((q, w))
            losses.append(sum(loss) / taken)
        self.merge(p, v, old, ends, losses)

    def merge(self, p: Any, v: Any, old: Any, ends: Any, losses: list[float]) -> None:
        count, of_a, kind = len(ends), len(ends) // 2, self.settings.get("merge", "factors")

        def mean(tensors: list[Tensor], of: list[float]) -> Tensor:
            shares = [1.0] * len(of)
            if kind == "loss-weighted":
                shares = [math.exp(-loss) for loss in of]
            return sum(share * tensor for share, tensor in zip(shares, tensors)) / sum(shares)  # type: ignore[return-value]

        for name in p:
            if name in FACTORED:
                a, b = old[name]
                products = [q[name + "_a"] @ q[name + "_b"] for q, _ in ends]
                gain = self.settings.get("merge_gain", 0.5)
                mean_a = mean([q[name + "_a"] for q, _ in ends[:of_a]], losses[:of_a])
                mean_b = mean([q[name + "_b"] for q, _ in ends[of_a:]], losses[of_a:])
                p[name] = (a + gain * (mean_a - a)) @ (b + gain * (mean_b - b))
                if kind == "products":
                    p[name] = sum(products) / count
                v[name] = torch.zeros_like(p[name])
            else:
                p[name] = mean([q[name] for q, _ in ends], losses)
                v[name] = mean([w[name] for _, w in ends], losses)

    def descend(self, p: Any, v: Any, ranks: list[int], step: int, changed: int, trained: list[str]) -> float:
        """A step with the mean gradient of ``ranks``; their mean loss."""
        leaves = {name: value.detach().requires_grad_(name in trained) for name, value in p.items()}
        whole = {name: value for name, value in leaves.items() if not name.endswith(("_a", "_b"))}
        for name in FACTORED:
            if name not in whole:
                whole[name] = leaves[name + "_a"] @ leaves[name + "_b"]
        x, y = data().tensors
        loss = torch.zeros((), dtype=torch.float64)
        for rank in ranks:
            batch = self.per_rank[rank][step]
            found = functional_call(self.net, whole, (x[batch.indices],))
            loss = loss + batch.weight * mse_loss(found, y[batch.indices]) / len(ranks)
        gradients = torch.autograd.grad(loss, [leaves[name] for name in trained])
        rate = RATE * min(1.0, (step - changed + 1) / (LR_REBOUND + 1))
        for name, gradient in zip(trained, gradients):
            v[name] = MOMENTUM * v[name] + gradient + DECAY * p[name]
            p[name] = p[name].detach() - rate * v[name]
        return loss.item()


def of_rank(rank: int, per_node: int | None, settings: dict[str, Any], epochs: int) -> dict[str, Tensor]:
    net = model()
    result = train(net, per_node, method=method(**settings), epochs=epochs)
    assert result.metrics["synchronisations"] >= 2
    assert groups_in_use() == 1
    return state_of(net)


@pytest.mark.parametrize(
    ("ranks", "per_node", "groups", "settings"),
    cases(
        [
            (2, 1, [[0], [1]], {"warmup_steps": 0, "merge_gain": 1.0}),
            (4, 2, [[0, 1], [2, 3]], {"merge": "products"}),
            (4, 1, [[0], [1], [2], [3]], {"merge": "loss-weighted", "sigma_cutoff": 0.3}),
        ],
        nightly=[
            (3, None, [[0], [1], [2]], {"group_size": 1, "merge": "products"}),
            (2, None, [[0], [1]], {}),
            (8, 4, [[0, 1], [2, 3], [4, 5], [6, 7]], {"group_size": 2}),
            (6, 2, [[0, 1], [2, 3], [4, 5]], {"merge": "loss-weighted", "merge_gain": 0.8}),
        ],
    ),
    ids=str,
)
def test_equals_groups_that_are_trained_one_after_the_other(
    ranks: int, per_node: int | None, groups: list[list[int]], settings: dict[str, Any]
) -> None:
    epochs = -(-2 * ranks * 16 // SAMPLES)
    expected = Simulated(groups, settings, epochs=epochs, batch_size=2).run()
    one, *others = run_ranks(ranks, of_rank, per_node, settings, epochs)
    torch.testing.assert_close(one, expected, rtol=1e-9, atol=1e-10)
    assert moved(one["2.weight"], model().state_dict()["2.weight"]) > 1e-2
    for other in others:
        assert_identical(other, one)


def no_groups(rank: int, batch_size: int) -> dict[str, Tensor]:
    net = model()
    result = train(net, method=method(groups=False, sigma_cutoff=0.3), batch_size=batch_size)
    # The last phase is cut off by the end.
    assert result.metrics["synchronisations"] == 6
    return state_of(net)


def test_without_groups_ranks_equal_one_with_the_joint_batch() -> None:
    expected = no_groups(0, 4)
    one, other = run_ranks(2, no_groups, 2)
    assert_identical(one, other)
    torch.testing.assert_close(one, expected, rtol=1e-10, atol=1e-11)


# Equations


class Driven:
    """A strategy under a loop of its own, so that a test can look between steps."""

    def __init__(
        self,
        net: nn.Module,
        settings: trainers.AB,
        *,
        per_node: int | None = None,
        steps: int = 15,
        optimizer: Callable[[Any], torch.optim.Optimizer] = adamw,
    ):
        self.net = net
        self.communicator = communicator(per_node)
        self.optimizer = optimizer([p for p in net.parameters() if p.requires_grad])
        self.strategy = settings.strategy(
            setup_of(net, self.communicator, optimizer=self.optimizer, steps_per_epoch=steps)
        )
        self.taken = 0

    def step(self, rate: float | None = None) -> None:
        step, rank = self.taken, self.communicator.rank
        for group in self.optimizer.param_groups:
            group["lr"] = self.strategy.learning_rate(step, 0.01 if rate is None else rate)
        self.optimizer.zero_grad(set_to_none=True)
        self.strategy.before_pass(step, last=True)
        of_tokens = isinstance(self.net, Everything)
        x, y = (tokens(SAMPLES) if of_tokens else data()).tensors
        first = (7 * step + 4 * rank) % 40
        loss = (cross_entropy if of_tokens else mse_loss)(
            self.net(x[first : first + 4]), y[first : first + 4]
        )
        torch.autograd.backward(loss)
        self.strategy.reduce_gradients(step)
        self.optimizer.step()
        self.strategy.after_step(step, loss.detach().double())
        self.taken += 1

    def run(self, steps: int, rate: float | None = None) -> Driven:
        for _ in range(steps):
            self.step(rate)
        return self

    def sent(self, counter: str) -> float:
        """By this rank's channels but the loop's."""
        service = self.communicator.service
        return sum(getattr(c, counter) for c in self.communicator.channels if c is not service)

    def close(self) -> None:
        self.strategy.close()
        self.communicator.close()


def test_factors_share_singular_values_and_a_model_closed_in_the_middle_of_a_phase_is_ordinary() -> None:
    net = everything()
    before = {w.name: w.matrix().detach().clone() for w in matrix_weights(net)}
    driven = Driven(net, method(warmup_steps=0, groups=False, sigma_cutoff=1e-9))
    driven.step(0.0)
    weights = [weight for weight in matrix_weights(net) if weight.factors]
    assert len(weights) == 5
    for weight in weights:
        a, b = weight.factors.values()
        torch.testing.assert_close(a @ b, before[weight.name])
        torch.testing.assert_close(a.T @ a, b @ b.T)
    driven.close()
    assert net.state_dict().keys() == everything().state_dict().keys()


def test_the_cutoff_says_which_singular_values_stay() -> None:
    net = model()
    values = torch.linalg.svdvals(net.get_parameter("2.weight").detach())
    driven = Driven(net, method(warmup_steps=0, groups=False, sigma_cutoff=0.4)).run(1)
    expected = int((values > 0.4 * values[0]).sum())
    metrics = driven.strategy.metrics()
    assert metrics["rank/2"] == expected < 16
    a, b = matrix_weights(net)[0].factors.values()
    assert (a.shape, b.shape) == ((24, expected), (expected, 16))
    ranks = expected + metrics["rank/4"]
    assert metrics["mean_rank_fraction"] == ranks / 32
    full = sum(p.numel() for p in model().parameters())
    stored = sum(p.numel() for p in net.parameters())
    trained = sum(p.numel() for p in net.parameters() if p.requires_grad)
    assert metrics["compression_ratio"] == full / stored
    assert metrics["trainable_fraction"] == trained / full
    assert metrics["decomposition_s"] > 0
    driven.close()


# What groups do, and what crosses between them


def in_phases(rank: int, kind: Any, optimizer: Any) -> None:
    """Two nodes of two ranks; checks each phase, bytes included."""
    net, group = kind(), rank // 2
    driven = Driven(net, method(), per_node=2, optimizer=optimizer)
    communicator, strategy = driven.communicator, driven.strategy

    def alike(ranks: list[int]) -> bool:
        flat = torch.cat([p.detach().flatten() for p in net.parameters()])
        sizes = communicator.service.all_gather(torch.tensor([flat.numel()]))
        assert len(set(map(int, sizes))) == 1
        parts = communicator.service.all_gather(flat)
        return all(torch.equal(parts[r], parts[ranks[0]]) for r in ranks)

    def trained_once() -> None:
        held = [id(p) for g in driven.optimizer.param_groups for p in g["params"]]
        assert len(held) == len(set(held))
        assert set(held) == {id(p) for p in net.parameters() if p.requires_grad}

    driven.run(WARMUP)
    assert strategy.replicated
    assert alike([0, 1, 2, 3])
    before = driven.sent("bytes_between")
    driven.step()
    assert not strategy.replicated
    sent = torch.tensor(driven.sent("bytes_between") - before)
    communicator.service.all_reduce(sent).wait()
    weights = [weight for weight in matrix_weights(net) if weight.factors]
    own, other = ("a", "b") if group == 0 else ("b", "a")
    starts = {w.name: {k: f.detach().clone() for k, f in w.factors.items()} for w in weights}
    between, buffers = driven.sent("bytes_between"), len(list(net.buffers()))
    driven.run(PHASE - 2)
    strategy.end_epoch(0, 0.0)
    assert driven.sent("bytes_between") == between
    trained_once()
    for weight in weights:
        assert torch.equal(weight.factors[other], starts[weight.name][other])
        assert moved(weight.factors[own], starts[weight.name][own]) > 1e-5
    assert alike([2 * group, 2 * group + 1])
    assert not alike([0, 1, 2, 3])
    shared = [p for p in net.parameters() if p.requires_grad]
    shared = [p for p in shared if all(p is not f for w in weights for f in w.factors.values())]
    moments = 1 if optimizer is sgd else 2
    rest = 8 * (1 + moments) * sum(p.numel() for p in shared)
    sizes = {k: 8 * sum(w.factors[k].numel() for w in weights) for k in ("a", "b")}
    # The other node got each decomposition once.
    assert sent.item() == sum(sizes.values())
    driven.step()
    assert alike([0, 1, 2, 3])
    trained_once()
    if not buffers:
        # A rank carries half of what its node has to tell. Of the factors either node sends its own; on the
        # pair's channel each broadcast counts for both halves of the way.
        carried = driven.sent("bytes_between") - between
        assert carried == pytest.approx((sum(sizes.values()) / 2 + rest) / 2, abs=8 * 4)
    driven.run(REBOUND)
    assert strategy.replicated
    assert alike([0, 1, 2, 3])
    states = [s for p in net.parameters() for s in driven.optimizer.state[p].values() if s.dim()]
    flat = torch.cat([state.flatten() for state in states])
    parts = communicator.service.all_gather(flat)
    assert all(torch.equal(part, parts[0]) for part in parts)
    driven.close()


@pytest.mark.parametrize(
    ("kind", "optimizer"), cases([(everything, adamw), (model, sgd)], nightly=[(everything, sgd)])
)
def test_groups_train_one_factor_each_and_send_nothing_until_they_merge(kind: Any, optimizer: Any) -> None:
    run_ranks(4, in_phases, kind, optimizer)


# Training as users see it


class Scaled(nn.Module):
    """A number, one that is complex, and a layer of complex ones: none of these becomes factors; and a buffer of a type
    without arithmetic.
    """

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = model()
        self.scale = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))
        self.phase = nn.Parameter(torch.tensor(1 + 0.5j, dtype=torch.complex128))
        self.turned = nn.Linear(1, 3, dtype=torch.complex128)
        self.register_buffer("stored", torch.ones(3).to(torch.float8_e4m3fn), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.scale * self.net(x)
        return y + (self.turned(y.to(torch.complex128)) * self.phase).abs().mean(1, keepdim=True)


class Own(torch.optim.Optimizer):
    """Divides gradients by the norm that they had so far, one number a parameter as NovoGrad, or takes the mean of the
    last two, which it keeps in a list."""

    def __init__(self, parameters: Any, name: str) -> None:
        super().__init__(parameters, {"lr": 0.02, "name": name})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                state, gradient = self.state[parameter], parameter.grad
                if group["name"] == "list":
                    last = state.setdefault("last", [])
                    last[:] = [*last[-1:], gradient.clone()]
                    direction = torch.stack(last).mean(0)
                else:
                    square = gradient.abs().square().sum()
                    state.setdefault(group["name"], square).lerp_(square, 0.3)
                    direction = gradient / (state[group["name"]].sqrt() + 1e-8)
                parameter -= group["lr"] * direction


def scaled_on_ranks(rank: int, optimizer: Any) -> dict[str, Tensor]:
    net = Scaled()
    # Of twelve steps the last five are a rebound, which begins with what the merge has left.
    batch_size = 48 // (12 * dist.get_world_size())
    train(net, 1, optimizer=optimizer, epochs=1, batch_size=batch_size, method=method(rebound_steps=5))
    return state_of(net)


@pytest.mark.parametrize("ranks", cases([2], nightly=[4]))
@pytest.mark.parametrize(
    "optimizer", [adamw, *(partial(Own, name=n) for n in ("list", "exp_avg_sq", "squares"))]
)
def test_what_the_optimizer_keeps_of_numbers_and_complex_parameters_merges_too(
    ranks: int, optimizer: Any
) -> None:
    first, *others = run_ranks(ranks, scaled_on_ranks, optimizer)
    for other in others:
        assert_identical(first, other)


def by_step(rank: int, optimizer: Any) -> list[list[Tensor]]:
    net, found = model(), []

    def on_step(step: int, values: object) -> None:
        found.append([p.detach().clone() for p in net.parameters()])

    trainers.train(
        net, data(), loss=mse_loss, optimizer=optimizer, steps=20, batch_size=4, on_step=on_step,
        method=trainers.AB(warmup_steps=4, ab_steps=4, rebound_steps=4),
        topology=trainers.Topology(ranks_per_node=1),
    )  # fmt: skip
    return found


@pytest.mark.parametrize("name", cases(["Prodigy"], nightly=["DAdaptAdam", "ScheduleFreeAdamW"]))
def test_what_an_optimizer_finds_out_for_all_weights_together_merges_too(name: str) -> None:
    """Those have estimates of the rate among the settings of their groups."""
    one, other = run_ranks(2, by_step, getattr(pytorch_optimizer, name))
    apart = [step for step, pair in enumerate(zip(one, other, strict=True), 1) if not alike(*pair)]
    assert apart == [5, 6, 7, 13, 14, 15]  # the eighth and the sixteenth end with a merge


def alike(some: list[Tensor], others: list[Tensor]) -> bool:
    return all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(some, others, strict=True))


def at_an_evaluation(rank: int) -> None:
    net = everything()
    driven = Driven(net, method(warmup_steps=0), per_node=2).run(2)
    strategy, communicator = driven.strategy, driven.communicator
    before, held = state_of(net), [id(p) for p in net.parameters()]
    sent = driven.sent("bytes_between"), driven.sent("bytes_inside"), driven.sent("operations")
    with strategy.evaluating():
        merged = state_of(net)
        assert merged.keys() == everything().state_dict().keys()
        assert strategy.state()["factored"] is False
    assert [id(p) for p in net.parameters()] == held
    assert_identical(state_of(net), before)
    assert sent == (driven.sent("bytes_between"), driven.sent("bytes_inside"), driven.sent("operations"))
    assert communicator.service.bytes_between + communicator.service.bytes_inside > 0
    # What was evaluated is what the merge makes.
    strategy.synchronise()
    assert_identical(state_of(net), merged)
    for tensor in merged.values():
        parts = communicator.service.all_gather(tensor.clone())
        assert all(torch.equal(part, tensor) for part in parts)
    # Synchronised by another method's wish, it decomposes again.
    assert strategy.replicated
    driven.step()
    assert not strategy.replicated
    strategy.finalise()
    assert strategy.metrics()["synchronisations"] == 2
    driven.close()


def test_an_evaluation_sees_the_merged_model_the_same_on_all_ranks() -> None:
    run_ranks(4, at_an_evaluation)


def test_a_model_with_channels_last_resumes_bit_for_bit(tmp_path: Path) -> None:
    def net() -> nn.Module:
        torch.manual_seed(0)
        layers = [nn.Conv2d(1, 32, 3), nn.Tanh(), nn.Conv2d(32, 64, 3), nn.Flatten(), nn.Linear(256, 1)]
        made: nn.Module = nn.Sequential(nn.Unflatten(1, (1, 6, 6)), *layers)
        return made.to(memory_format=torch.channels_last)

    generator = torch.Generator().manual_seed(2)
    images = TensorDataset(torch.randn(24, 36, generator=generator), torch.randn(24, 1, generator=generator))
    # Of the gradient's norm the sum depends on its layout.
    keywords: dict[str, Any] = {"train_set": images, "validation_set": None, "clip_norm": 0.1, "epochs": 2}
    keywords["method"] = method(groups=False, rebound_steps=20)
    # Before, in and after the phase in factors.
    assert_same_in_pieces(train, net, tmp_path, (2, 3, 3), **keywords)


# Interrupted, diverged, lost


def not_finite(rank: int, methods: list[trainers.Method]) -> list[str]:
    found = []
    for each in methods:
        net = model()
        with torch.no_grad():
            net.get_parameter("2.weight")[0, 0] = torch.nan
        found.append(train(net, 1, method=each).reason)
    return found


def test_what_is_not_finite_ends_as_diverged_everywhere() -> None:
    oialr = trainers.OIALR(delay=2, update_every=1)
    methods = [method(), method(merge="loss-weighted"), oialr]
    assert run_ranks(2, not_finite, methods) == [["diverged"] * 3] * 2


# Settings


def test_groups_are_made_of_neighbours_or_refused() -> None:
    two_nodes = ((0, 1, 2, 3), (4, 5, 6, 7))
    assert groups_of(two_nodes, None) == two_nodes
    assert groups_of(two_nodes, 2) == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert groups_of(((0, 2), (1, 3)), None) == ((0, 2), (1, 3))
    assert groups_of(((0, 1, 2, 3),), None) == ((0, 1), (2, 3))
    wrong: list[tuple[Any, int | None]] = [
        (((0,),), None),
        (((0, 1, 2),), None),
        (((0, 1), (2,)), None),
        (((0, 1, 2, 3),), 3),
        (((0, 1, 2, 3),), 4),
    ]
    for nodes, size in wrong:
        with pytest.raises(ValueError, match=rf"AB\(group_size={size}\): .* use AB\(groups=False\)"):
            groups_of(nodes, size)


def test_runs_without_a_weight_to_factorise_or_steps_for_groups_are_refused() -> None:
    small = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 1)).double()
    factored = model()
    train(factored, method=trainers.OIALR(delay=2, update_every=2), epochs=1)
    late = method(groups=False, warmup_steps=1.0)
    for net, settings, named in (
        (model(), method(), "group_size=None"),
        (small, method(groups=False), "no weight"),
        (factored, method(groups=False), "trainers.merged"),
        (model(), late, "warmup_steps=1.0"),
    ):
        with pytest.raises(ValueError, match=named):
            train(net, method=settings)
    train(trainers.merged(factored), method=method(groups=False), epochs=1)


def test_what_is_not_set_follows_from_the_run_and_the_phase_in_groups() -> None:
    for settings, phases in (
        ({}, (900, 200, 20, 50)),
        ({"warmup_steps": 600, "ab_steps": 100}, (600, 100, 10, 25)),
        ({"ab_steps": 0.1, "rebound_steps": 7, "lr_rebound_steps": 0.01}, (900, 300, 7, 30)),
    ):
        driven = Driven(model(), trainers.AB(groups=False, **settings), steps=3000)
        strategy: Any = driven.strategy
        assert (strategy._warmup, strategy._ab, strategy._rebound, strategy._lr_rebound) == phases
        driven.close()
