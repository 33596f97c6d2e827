"""OIALR against algebra, in double precision where rounding would hide a mistake, and against its own resumed
runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import cases
from gloo import run_ranks
from models import adamw, communicator, noisy_model, setup_of
from resuming import After, assert_identical, state_of, without_times
from test_trainers_contract import Everything, tokens
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import TensorDataset

import trainers
from trainers.lowrank.layers import MatrixWeight, matrix_weights
from trainers.methods.strategy import Strategy

SAMPLES = 48


def data(width: int = 24, samples: int = SAMPLES, dtype: torch.dtype = torch.float64) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(samples, width, dtype=dtype, generator=generator)
    return TensorDataset(x, torch.sin(x[:, :3].sum(1, keepdim=True)))


def model(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(24, 32), nn.Tanh(), nn.LayerNorm(32), nn.Linear(32, 20), nn.Tanh(), nn.Linear(20, 1)
    ).to(dtype)


def square(width: int = 16) -> nn.Module:
    """Here Σ has as many freedoms as W, and every step of a linear optimizer is the same in both."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
    ).double()


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3)


def train(net: nn.Module, **changed: Any) -> trainers.Result:
    keywords: dict[str, Any] = {
        "train_set": data(),
        "validation_set": data(),
        "loss": mse_loss,
        "optimizer": adamw,
        "method": trainers.OIALR(delay=6, update_every=3, layer_step=0.5),
        "epochs": 5,
        "batch_size": 12,
    }
    return trainers.train(net, **{**keywords, **changed})


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def orthogonality_error(net: nn.Module) -> float:
    bases = [b for w in matrix_weights(net) if w.factors for b in (w.factors["u"], w.factors["vt"].T)]
    grams = [basis.double().T @ basis.double() for basis in bases]
    return max((gram - torch.eye(len(gram), dtype=torch.float64)).abs().max().item() for gram in grams)


class Steps:
    """A strategy that is stepped by hand, on one rank, with random gradients between."""

    def __init__(self, net: nn.Module, optimizer: torch.optim.Optimizer, **settings: Any) -> None:
        keywords = {"delay": 0, "update_every": 1, "layer_step": 1.0, "full_rank_last_layer": False}
        self.net, self.optimizer, self.step = net, optimizer, 0
        setup = setup_of(net, communicator(), optimizer=optimizer)
        self.strategy: Strategy = trainers.OIALR(**{**keywords, **settings}).strategy(setup)

    def before(self) -> None:
        self.strategy.before_pass(self.step, last=True)
        self.step += 1

    def random_step(self) -> None:
        generator = torch.Generator().manual_seed(self.step)
        for parameter in self.net.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.randn(parameter.shape, dtype=parameter.dtype, generator=generator)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def weight(self, index: int = 0) -> MatrixWeight:
        return matrix_weights(self.net)[index]


def rectangle(rows: int = 20, columns: int = 30, dtype: torch.dtype = torch.float64) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(columns, rows).to(dtype)


@pytest.mark.parametrize("warmup", [True, False])
def test_when_it_converts_and_which_layers_it_updates_when(warmup: bool) -> None:
    net = nn.Sequential(*(nn.Linear(16, 16) for _ in range(7)))
    stepped = Steps(
        net,
        sgd(net.parameters()),
        delay=4,
        update_every=3,
        layer_step=0.19,
        full_rank_first_layer=True,
        full_rank_last_layer=True,
        full_rank_warmup=warmup,
    )
    assert all(not w.factors for w in matrix_weights(net))
    turned = []
    for step in range(24):
        bases = {w.name: w.factors["u"].clone() for w in matrix_weights(net) if w.factors}
        stepped.before()
        # A second pass of the same step changes nothing more.
        stepped.strategy.before_pass(step, last=True)
        factors = {w.name: w.factors["u"] for w in matrix_weights(net) if w.factors}
        # Five of seven: neither the first nor the last.
        assert [*factors] == ([f"{i}.weight" for i in range(1, 6)] if step >= 4 or not warmup else [])
        new = [name for name, u in bases.items() if not torch.equal(u, factors[name])]
        assert new == [*factors][len(factors) - len(new) :], "the last ones first"
        turned.append(len(new))
        stepped.random_step()
    # 5 · 0.19 · u, rounded down, but at least one, each three steps; all from the sixth on.
    assert turned == [0] * 7 + [1, 0, 0, 1, 0, 0, 2, 0, 0, 3, 0, 0, 4, 0, 0, 5, 0]
    assert set(stepped.strategy.metrics()) == {
        "trainable_fraction",
        "compression_ratio",
        "decomposition_s",
        *(f"{kind}/{i}" for kind in ("rank", "stability") for i in range(1, 6)),
    }


# Updates


def test_an_update_leaves_the_weight_as_it_is() -> None:
    layer = rectangle()
    stepped = Steps(layer, sgd(layer.parameters()), sigma_cutoff=1e-9)
    stepped.before()
    for _ in range(4):
        stepped.random_step()
        matrix = stepped.weight().matrix().detach()
        sigma = stepped.weight().factors["sigma"]
        stepped.before()
        close(stepped.weight().matrix(), matrix, 1e-12)
        # The same parameter: nothing that knows it has to be told.
        assert stepped.weight().factors["sigma"] is sigma
        assert torch.equal(sigma, torch.diag(torch.diagonal(sigma)))


@pytest.mark.parametrize("cutoff", cases([0.1], nightly=[0.04, 0.5]))
def test_what_an_update_drops_is_the_error_that_it_makes(cutoff: float) -> None:
    layer = rectangle(30, 20)
    stepped = Steps(layer, sgd(layer.parameters()), sigma_cutoff=cutoff)
    stepped.before()
    stepped.random_step()
    matrix = stepped.weight().matrix().detach()
    values = torch.linalg.svdvals(matrix)
    kept = int((values > cutoff * values[0]).sum())
    stepped.before()
    assert len(stepped.weight().factors["sigma"]) == kept < 20
    error = (stepped.weight().matrix() - matrix).norm()
    close(error, values[kept:].square().sum().sqrt(), 1e-8)
    assert stepped.strategy.metrics()["rank/weight"] == kept


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bases_stay_orthogonal_through_hundreds_of_updates(dtype: torch.dtype) -> None:
    layer = rectangle(48, 40, dtype)
    stepped = Steps(layer, adamw(layer.parameters()), sigma_cutoff=0.06)
    ranks = []
    for _ in range(300):
        stepped.before()
        stepped.random_step()
        ranks.append(len(stepped.weight().factors["sigma"]))
    assert ranks == sorted(ranks, reverse=True)
    assert len(set(ranks)) > 2
    assert orthogonality_error(layer) < (5e-7 if dtype == torch.float32 else 5e-3) * 4


def bases(net: nn.Module) -> tuple[Tensor, Tensor]:
    u, _, vt = (factor.detach().clone() for factor in matrix_weights(net)[0].factors.values())
    return u, vt


@pytest.mark.parametrize("cutoff", [1e-9, 0.3])
def test_stability_is_equation_4_6_over_the_smaller_rank(cutoff: float) -> None:
    layer = rectangle()
    stepped = Steps(layer, sgd(layer.parameters()), sigma_cutoff=cutoff)
    stepped.before()
    stepped.random_step()
    u, vt = bases(layer)
    stepped.before()
    new_u, new_vt = bases(layer)
    expected = torch.trace((u @ vt) @ (new_vt.T @ new_u.T)) / min(len(vt), len(new_vt))
    found = stepped.strategy.metrics()["stability/weight"]
    assert found == pytest.approx(expected.item(), abs=1e-12)
    assert 0 < found < 0.999
    # The signs of singular vectors come in pairs.
    signs = torch.tensor([-1.0, 1.0] * 10, dtype=torch.float64)
    flipped = torch.trace((u * signs @ (signs[:, None] * vt)) @ (new_vt.T @ new_u.T)) / len(new_vt)
    assert flipped.item() == pytest.approx(expected.item(), abs=1e-12)
    stepped.before()  # the bases have not turned since
    assert stepped.strategy.metrics()["stability/weight"] == pytest.approx(1, abs=1e-12)


def test_moments_follow_the_bases() -> None:
    layer = rectangle()
    optimizer = adamw(layer.parameters())
    stepped = Steps(layer, optimizer, sigma_cutoff=0.3, delay=3)
    for _ in range(3):
        stepped.before()
        stepped.random_step()
    (whole,) = (p for p in layer.parameters() if p.dim() == 2)
    moment, square = (optimizer.state[whole][name].clone() for name in ("exp_avg", "exp_avg_sq"))
    bias_state = {name: value.clone() for name, value in optimizer.state[layer.bias].items()}
    stepped.before()
    sigma = stepped.weight().factors["sigma"]
    u, vt = bases(layer)
    close(optimizer.state[sigma]["exp_avg"], u.T @ moment @ vt.T)
    close(optimizer.state[sigma]["exp_avg_sq"], (u**2).T @ square @ (vt.T**2))
    for name, value in bias_state.items():
        assert torch.equal(optimizer.state[layer.bias][name], value)
    stepped.before()
    new = stepped.weight().factors["sigma"]
    assert len(new) < len(sigma)
    new_u, new_vt = bases(layer)
    # Seen from the whole space it is the same moment, within the new bases.
    close(optimizer.state[new]["exp_avg"], new_u.T @ moment @ new_vt.T)
    assert optimizer.state[new]["step"] == 3
    assert sigma not in optimizer.state


# Whole runs


class Tied(Everything):
    """Its embedding is also the output."""

    def __init__(self) -> None:
        super().__init__()
        self.output.weight = self.embedding.weight


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_numbers_count_what_is_trained_and_stored(precision: str) -> None:
    net = Tied()
    plain, full = state_of(net), sum(p.numel() for p in net.parameters())
    full_trained = sum(p.numel() for p in net.parameters() if p.requires_grad)
    method = trainers.OIALR(
        delay=6, update_every=4, layer_step=0.4, sigma_cutoff=0.3, full_rank_last_layer=False
    )
    data_and_loss = {"train_set": tokens(SAMPLES), "validation_set": tokens(SAMPLES), "loss": cross_entropy}
    result = train(net, **data_and_loss, precision=precision, method=method)
    weights = [w for w in matrix_weights(net) if w.factors]
    attention, layers = "encoder.self_attn", ["encoder.linear1", "encoder.linear2", "conv"]
    assert [w.layer for w in weights] == [f"{attention}.in_proj", f"{attention}.out_proj", *layers]
    others = [p for name, p in net.named_parameters() if not name.endswith(("_u", "_sigma", "_vt"))]
    ranks = [len(w.factors["sigma"]) for w in weights]
    assert any(rank < min(w.rows, w.columns) for rank, w in zip(ranks, weights, strict=True))
    trained = sum(k * k for k in ranks) + sum(p.numel() for p in others if p.requires_grad)
    stored = sum(k * (w.rows + w.columns + k) for k, w in zip(ranks, weights, strict=True))
    stored += sum(p.numel() for p in others)
    assert result.metrics["trainable_fraction"] == trained / full_trained
    assert result.metrics["compression_ratio"] == full / stored
    assert [result.metrics[f"rank/{w.layer}"] for w in weights] == ranks
    assert all(0 < result.metrics[f"stability/{w.layer}"] <= 1 + 1e-6 for w in weights)
    assert math.isfinite(result.metrics["validation_loss"])
    # The model as it is, and as an ordinary model.
    net.eval()
    expected = net(tokens(SAMPLES).tensors[0])
    trainers.merged(net)
    close(net(tokens(SAMPLES).tensors[0]), expected, 1e-4)
    assert list(state_of(net)) == list(plain)
    Tied().load_state_dict(net.state_dict())


DASO = trainers.DASO(sync_every=1, sync_delay=0, wire_dtype=None)


def square_run(
    rank: int, batch_size: int, accumulate: int, oialr: dict[str, Any] | None, under: trainers.Method | None
) -> tuple[dict[str, Tensor], dict[str, float]]:
    net = square()
    method = under if oialr is None else trainers.OIALR(**oialr, synchronisation=under)
    result = train(
        net,
        train_set=data(16),
        validation_set=data(16),
        optimizer=sgd,
        method=method,
        batch_size=batch_size,
        accumulate=accumulate,
        topology=trainers.Topology(ranks_per_node=1),
    )
    return state_of(trainers.merged(net)), result.metrics


@pytest.mark.parametrize(
    ("ranks", "accumulate", "under", "update_every"),
    cases(
        [(1, 3, None, 2), (3, 1, None, 3), (2, 1, DASO, 2)],
        nightly=[(1, 1, None, 12), (2, 2, None, 2), (4, 1, None, 2)],
    ),
    ids=str,
)
def test_with_square_weights_and_nothing_dropped_it_is_plain_training(
    ranks: int, accumulate: int, under: trainers.Method | None, update_every: int
) -> None:
    expected, plain = square_run(0, 12, 1, None, None)
    oialr = {"delay": 7, "update_every": update_every, "sigma_cutoff": 1e-9, "layer_step": 0.6}
    arguments = (12 // ranks // accumulate, accumulate, oialr, under)
    found = run_ranks(ranks, square_run, *arguments) if ranks > 1 else [square_run(0, *arguments)]
    for state, metrics in found:
        torch.testing.assert_close(state, expected, rtol=1e-10, atol=1e-10)
        assert metrics["validation_loss"] == pytest.approx(plain["validation_loss"], rel=1e-9)
        assert metrics["rank/0"] == metrics["rank/2"] == 16
        assert_identical(state, found[0][0])


def bytes_by_epoch(rank: int, method: trainers.Method) -> list[dict[str, float]]:
    net = model(torch.float32)
    return without_times(
        train(
            net,
            train_set=data(dtype=torch.float32),
            validation_set=None,
            method=method,
            batch_size=4,
            epochs=3,
            topology=trainers.Topology(ranks_per_node=1),
        )
    )


def test_bytes_of_a_step_are_those_of_ddp_times_the_trainable_fraction() -> None:
    steps = SAMPLES // 8
    plain = run_ranks(2, bytes_by_epoch, trainers.DDP())[0]
    method = trainers.OIALR(delay=steps, update_every=steps)
    found = run_ranks(2, bytes_by_epoch, method)[0]
    sent = [entry["bytes_between_nodes"] for entry in found]
    per_epoch = plain[0]["bytes_between_nodes"]
    assert sent[0] == per_epoch
    # 24·32 becomes 24², 20·32 becomes 20²; one decomposition: U, the values and Vᵀ, of which in a broadcast to
    # one other rank each sends half in the mean.
    # With each trained tensor goes a flag that tells whether the rank has a gradient of it: as many as before.
    tensors = list(model().parameters())
    flags = per_epoch * len(tensors) / (len(tensors) + sum(p.numel() for p in tensors))
    trained = flags + (per_epoch - flags) * found[1]["trainable_fraction"]
    conversion = 4 * (24 * (32 + 24 + 1) + 20 * (32 + 20 + 1))
    assert sent[1] - sent[0] == pytest.approx(trained + conversion, rel=1e-12)
    # One update of one layer: P, the values and Qᵀ.
    assert found[1]["trainable_fraction"] == (24**2 + 20**2 + 32 * 3 + 20 + 20 + 1) / (
        24 * 32 + 32 * 20 + 32 * 3 + 20 + 20 + 1
    )
    k = found[2]["rank/3"]
    smaller = flags + (per_epoch - flags) * found[2]["trainable_fraction"]
    assert sent[2] - sent[1] == pytest.approx(smaller + 4 * k * (2 * 20 + 1), rel=1e-12)


def resumed_and_not(rank: int, directory: str) -> tuple[Any, ...]:
    keywords = {
        "train_set": data(dtype=torch.float32),
        "validation_set": data(dtype=torch.float32),
        "optimizer": sgd,
        "batch_size": 6,
        "method": trainers.OIALR(
            delay=6,
            update_every=3,
            sigma_cutoff=0.2,
            layer_step=0.5,
            synchronisation=trainers.DDP(compression="powersgd", powersgd_rank=2),
        ),
    }
    whole, pieces = noisy_model(24, 32, 20, 1), noisy_model(24, 32, 20, 1)
    expected = train(whole, **keywords)
    for stop in (3, 3, 1, 4, 2):
        with pytest.raises(trainers.Interrupted):
            train(pieces, checkpoint=directory, interrupt=After(stop), **keywords)
    found = train(pieces, checkpoint=directory, **keywords)
    finished = train(pieces, checkpoint=directory, **keywords)
    return state_of(whole), [without_times(r) for r in (expected, found, finished)], state_of(pieces)


def test_the_same_call_with_the_same_model_over_powersgd_continues_bit_for_bit(tmp_path: Path) -> None:
    for whole, (expected, found, finished), pieces in run_ranks(2, resumed_and_not, str(tmp_path)):
        assert found == finished == expected
        assert expected[-1]["compression_ratio"] != 1
        assert_identical(whole, pieces)


def with_names(net: nn.Module) -> Callable[[Any], torch.optim.Optimizer]:
    return lambda parameters: adamw([(n, p) for n, p in net.named_parameters() if p.requires_grad])


@pytest.mark.parametrize("named", [False, True])
def test_a_compiled_model_that_was_interrupted_in_factors_goes_on(tmp_path: Path, named: bool) -> None:
    whole = noisy_model(24, 32, 20, 1).double()
    expected = train(whole)
    plain = noisy_model(24, 32, 20, 1).double()
    # As whole weights, and later on as factors, of which the optimizer knows other names.
    for stop, net in ((3, plain), (9, torch.compile(plain, backend="eager")), (4, plain)):
        optimizer = with_names(net) if named else adamw
        with pytest.raises(trainers.Interrupted):
            train(net, checkpoint=tmp_path, interrupt=After(stop), optimizer=optimizer)
    net = torch.compile(plain, backend="eager")
    found = train(net, checkpoint=tmp_path, optimizer=with_names(net) if named else adamw)
    assert without_times(found) == without_times(expected)
    assert_identical(state_of(plain), state_of(whole))


def test_a_model_that_a_run_left_in_factors_starts_the_next_as_a_whole_model() -> None:
    net = model()
    train(net, method=trainers.OIALR(delay=6, update_every=3, full_rank_last_layer=False))
    expected = net(data().tensors[0]).detach()
    full = sum(p.numel() for p in model().parameters())
    made: list[torch.optim.Optimizer] = []

    def make(parameters: Any) -> torch.optim.Optimizer:
        made.append(adamw([{"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.1}]))
        made[0].add_param_group({"params": [p for p in net.parameters() if p.dim() == 1]})
        return made[0]

    def look() -> bool:
        if len(seen) == 0:
            close(net(data().tensors[0]), expected)
            assert state_of(net).keys() == state_of(model()).keys()
            matrices, others = (group["params"] for group in made[0].param_groups)
            assert [id(p) for p in matrices] == [id(p) for p in net.parameters() if p.dim() > 1]
            assert [id(p) for p in others] == [id(p) for p in net.parameters() if p.dim() == 1]
        seen.append(1)
        return False

    seen: list[int] = []
    result = train(net, optimizer=make, interrupt=look)
    assert seen
    assert result.history[0]["compression_ratio"] == result.history[0]["trainable_fraction"] == 1
    assert result.metrics["compression_ratio"] == full / sum(p.numel() for p in net.parameters())


# Settings


def test_runs_without_a_weight_to_factorise_or_an_update_are_refused() -> None:
    small = nn.Sequential(nn.Linear(24, 12), nn.Linear(12, 1)).double()
    calls: list[tuple[nn.Module, dict[str, Any], str]] = [
        (nn.Linear(24, 1).double(), {}, "full_rank_last_layer"),
        (small, {"full_rank_last_layer": False}, "at least 16"),
        (model(), {"delay": 20}, "delay=20"),
        (model(), {"delay": 0, "update_every": 20}, "20 steps, and the run has 20"),
        (model(), {"delay": 0.9, "update_every": 0.1}, "20 steps, and the run has 20"),
    ]
    for net, settings, named in calls:
        with pytest.raises(ValueError, match=named):
            train(net, method=trainers.OIALR(**settings))
    # A run of a step or two is long enough for the fractions by default.
    for batch_size in (SAMPLES, SAMPLES // 2, SAMPLES // 3):
        train(model(), method=trainers.OIALR(), epochs=1, batch_size=batch_size)


def test_the_default_is_a_third_and_a_fiftieth_of_all_steps() -> None:
    # Of 108 steps 36, and each second from then on: the tenth update is in the fifth epoch of twelve steps.
    histories = train(model(), method=trainers.OIALR(), epochs=9, batch_size=4).history
    assert ["rank/3" in entry for entry in histories] == [False] * 3 + [True] * 6
    assert ["stability/0" in entry for entry in histories] == [False] * 4 + [True] * 5
