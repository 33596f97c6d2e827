"""Factored layers against the dense ones with the product of the factors as their weight."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from cases import combinations
from torch import Tensor, nn

import trainers.lowrank.layers
from trainers.lowrank.layers import (
    Factored,
    MatrixWeight,
    factorise,
    make_whole,
    matrix_weights,
    merged,
    product,
)

Build = Callable[[], nn.Module]

LAYERS: dict[str, tuple[Build, tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(24, 40), (3, 5, 24)),
    "linear without bias": (lambda: nn.Linear(40, 16, bias=False), (7, 40)),
    "conv1d": (lambda: nn.Conv1d(8, 20, 3), (2, 8, 11)),
    "conv1d reflecting": (lambda: nn.Conv1d(8, 20, 3, padding=2, padding_mode="reflect"), (2, 8, 11)),
    "conv2d": (lambda: nn.Conv2d(4, 24, 3), (2, 4, 7, 6)),
    "conv2d with all": (
        lambda: nn.Conv2d(4, 32, (3, 2), stride=2, padding=(2, 1), dilation=(1, 2)),
        (2, 4, 9, 8),
    ),
    "conv1d valid": (lambda: nn.Conv1d(8, 20, 3, padding="valid", stride=2), (2, 8, 12)),
    "conv2d circular": (lambda: nn.Conv2d(4, 24, 3, padding=1, padding_mode="circular"), (2, 4, 6, 6)),
    "conv2d same": (lambda: nn.Conv2d(4, 24, 3, padding="same"), (2, 4, 6, 6)),
    "conv2d in groups": (lambda: nn.Conv2d(8, 24, 3, groups=2), (2, 8, 6, 6)),
}


def decomposed(weight: MatrixWeight, rank: int | None) -> Tensor:
    """Factors the weight as OIALR does, keeping the ``rank`` largest singular values; the matrix left."""
    u, values, vt = torch.linalg.svd(weight.matrix().detach(), full_matrices=False)
    u, values, vt = u[:, :rank].contiguous(), values[:rank], vt[:rank].contiguous()
    factors = {
        "u": nn.Parameter(u, requires_grad=False),
        "sigma": nn.Parameter(torch.diag(values)),
        "vt": nn.Parameter(vt, requires_grad=False),
    }
    factorise(weight, factors)
    return u @ torch.diag(values) @ vt


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("kind", "rank", "borders"), combinations(LAYERS, [None, 5, 1], [None, 0b00, 0b01, 0b10, 0b11])
)
def test_a_factored_layer_computes_what_the_dense_one_does_with_the_product(
    kind: str, rank: int | None, borders: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if borders is not None:
        # Whichever of the factors are multiplied first.
        monkeypatch.setattr(
            trainers.lowrank.layers,
            "cheapest",
            lambda factors, rows: trainers.lowrank.layers._divided(factors, borders),
        )
    build, shape = LAYERS[kind]
    torch.manual_seed(0)
    layer = build().double()
    dense = copy.deepcopy(layer)
    (weight,) = matrix_weights(nn.Sequential(layer))
    matrix = decomposed(weight, rank)
    with torch.no_grad():
        dense.weight.copy_(matrix.view_as(dense.weight))
    x = torch.randn(shape, dtype=torch.float64)
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    outputs = [net(i) for net, i in zip((layer, dense), inputs, strict=True)]
    close(outputs[0], outputs[1])
    towards = torch.randn_like(outputs[0])
    for output in outputs:
        (output * towards).sum().backward()
    close(inputs[0].grad, inputs[1].grad)
    u, sigma, vt = weight.factors.values()
    gradient = dense.weight.grad.reshape(weight.rows, weight.columns)
    # ∂L/∂Σ = Uᵀ G V
    close(sigma.grad, u.T @ gradient @ vt.T)
    assert u.grad is None
    assert vt.grad is None
    if dense.bias is not None:
        close(layer.bias.grad, dense.bias.grad)
    assert isinstance(layer, Factored)
    assert isinstance(layer, type(dense))
    close(layer.weight, dense.weight)


def gone_through(layer: nn.Module, x: Tensor, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Shapes of the matrices that the input went through, from the first."""
    found: list[tuple[int, ...]] = []
    matrices = Factored._matrices

    def look(self: Factored, rows: int) -> list[Tensor]:
        made = matrices(self, rows)
        found.extend(tuple(matrix.shape) for matrix in made)
        return made

    with monkeypatch.context() as patch:
        patch.setattr(Factored, "_matrices", look)
        layer(x)
    return found


MANY = 10_000


@pytest.mark.parametrize(
    ("rank", "rows", "gradients", "matrices"),
    [
        # Two of 32 k < 32²; of few rows a product counts as well.
        (16, MANY, False, 2),
        (17, MANY, False, 1),
        (14, 8, False, 3),
        # 2 k (32 + 32 + k) + k² < 2 · 2 · 32 k + 32 k: frozen factors get no gradient.
        (10, MANY, True, 3),
        (11, MANY, True, 2),
        # 5 · 32 k < 3 · 32²
        (19, MANY, True, 2),
        (20, MANY, True, 1),
        # Σ Vᵀ pays from 192 rows on.
        (12, 190, True, 3),
        (12, 200, True, 2),
    ],
)
def test_factors_or_their_products_are_what_takes_fewest_operations(
    rank: int, rows: int, gradients: bool, matrices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = {"linear": (nn.Linear(32, 32), (rows, 32)), "conv": (nn.Conv1d(16, 32, 2), (rows // 4, 16, 5))}
    for layer, shape in layers.values():
        (weight,) = matrix_weights(layer)
        decomposed(weight, rank)
        with torch.set_grad_enabled(gradients):
            x = torch.randn(shape)
            assert len(gone_through(layer, x, monkeypatch)) == matrices
            torch.testing.assert_close(layer(x), merged(copy.deepcopy(layer))(x), rtol=1e-4, atol=1e-4)


def test_two_trained_factors_cost_more_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    # 3 · 2 · 32 k < 3 · 32² for k < 16
    for rank, matrices in ((15, 2), (17, 1)):
        layer = nn.Linear(32, 32)
        factors = {"a": nn.Parameter(torch.randn(32, rank)), "b": nn.Parameter(torch.randn(rank, 32))}
        factorise(matrix_weights(layer)[0], factors)
        assert len(gone_through(layer, torch.randn(MANY, 32), monkeypatch)) == matrices


ATTENTION: dict[str, dict[str, Any]] = {
    "plain": {"embed_dim": 16},
    "batch first": {"embed_dim": 16, "batch_first": True},
    "other keys": {"embed_dim": 16, "kdim": 20, "vdim": 24},
    "other values, no bias": {"embed_dim": 16, "vdim": 24, "bias": False, "batch_first": True},
    "with bias_kv": {"embed_dim": 16, "add_bias_kv": True, "add_zero_attn": True},
}


@pytest.mark.parametrize("rank", [None, 3])
@pytest.mark.parametrize("kind", ATTENTION)
def test_attention(kind: str, rank: int | None) -> None:
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(num_heads=4, **ATTENTION[kind]).double()
    dense = copy.deepcopy(layer)
    weights = matrix_weights(layer)
    assert [w.name for w in weights][-1] == "out_proj.weight"
    assert len(weights) == (2 if layer._qkv_same_embed_dim else 4)
    for weight, other in zip(weights, matrix_weights(dense), strict=True):
        with torch.no_grad():
            other.whole.copy_(decomposed(weight, rank))
    q, k, v = (torch.randn(5, 6, d, dtype=torch.float64) for d in (16, layer.kdim, layer.vdim))
    found, expected = layer(q, k, v), dense(q, k, v)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    for output, _ in (found, expected):
        output.square().sum().backward()
    for weight, other in zip(weights, matrix_weights(dense), strict=True):
        u, sigma, vt = weight.factors.values()
        close(sigma.grad, u.T @ other.whole.grad @ vt.T)
    for name, parameter in dense.named_parameters():
        if not name.endswith("weight"):
            close(layer.get_parameter(name).grad, parameter.grad)
    merged(layer)
    assert type(layer) is nn.MultiheadAttention
    assert layer.state_dict().keys() == dense.state_dict().keys()
    close(layer(q, k, v)[0], expected[0])


@pytest.mark.parametrize("kind", ["plain", "batch first"])
def test_attention_multiplies_its_weights_out_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(num_heads=4, **ATTENTION[kind]).double()
    weights = matrix_weights(layer)
    for weight in weights:
        decomposed(weight, 3)
    inside, made = {id(factor) for weight in weights[:-1] for factor in weight.factors.values()}, []

    def counted(factors: tuple[Tensor, ...], rows: int, columns: int) -> Tensor:
        made.append(id(factors[0]) in inside)
        return product(factors, rows, columns)

    monkeypatch.setattr(trainers.lowrank.layers, "product", counted)
    x = torch.randn(5, 6, 16, dtype=torch.float64)
    for turn in range(1, 4):
        layer.train(turn < 3)
        layer(x, x, x)
        assert made.count(True) == turn * (len(weights) - 1)
    # Other threads go through the layer, too.
    layer.eval()
    with ThreadPoolExecutor(4) as threads:
        for found, _ in threads.map(lambda _: layer(x, x, x), range(40)):
            close(found, layer(x, x, x)[0])
    # Outside of a pass nothing is kept: factors change.
    with torch.no_grad():
        weights[0].factors["sigma"].zero_()
    assert not getattr(layer, weights[0].attribute).any()


@pytest.mark.parametrize("rank", [None, 3])
def test_an_encoder_layer_and_its_fast_path(rank: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True).double()
    dense = copy.deepcopy(layer)
    weights = matrix_weights(layer)
    assert [w.name for w in weights] == [
        "self_attn.in_proj_weight", "self_attn.out_proj.weight", "linear1.weight", "linear2.weight"
    ]  # fmt: skip
    for weight, other in zip(weights, matrix_weights(dense), strict=True):
        with torch.no_grad():
            other.whole.copy_(decomposed(weight, rank))
    x = torch.randn(3, 6, 16, dtype=torch.float64)
    close(layer(x), dense(x))
    layer.eval(), dense.eval()
    kernel, calls = torch._transformer_encoder_layer_fwd, []

    def counted(*arguments: Any) -> Tensor:
        calls.append(1)
        return kernel(*arguments)

    monkeypatch.setattr(torch, "_transformer_encoder_layer_fwd", counted)
    with torch.no_grad():
        close(layer(x), dense(x))
    assert calls == [1, 1]
    close(layer(x), dense(x))


def test_other_layers_that_read_a_weight_themselves_get_the_product() -> None:
    class Normed(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return nn.functional.linear(input, self.weight / self.weight.norm(), self.bias)

    layer = Normed(20, 16).double()
    x = torch.randn(3, 20, dtype=torch.float64)
    expected = layer(x)
    (weight,) = matrix_weights(layer)
    decomposed(weight, None)
    close(layer(x), expected)


def test_factors_stand_in_the_weight_s_place_and_go_as_they_came() -> None:
    layer = nn.Linear(16, 16)
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    hooked = []
    layer.register_forward_hook(lambda *_: hooked.append(1))
    (weight,) = matrix_weights(layer)
    decomposed(weight, 16)
    assert list(layer.state_dict()) == ["weight_u", "weight_sigma", "weight_vt", "bias"]
    layer(torch.randn(2, 16))
    assert hooked == [1]
    a, b = nn.Parameter(torch.zeros(16, 3)), nn.Parameter(torch.zeros(3, 20))
    with pytest.raises(ValueError, match="16 × 16"):
        factorise(weight, {"a": a, "b": b})
    decomposed(weight, 7)
    assert weight.factors["sigma"].shape == (7, 7)
    whole = make_whole(weight, before["weight"])
    assert weight.whole is whole is layer.weight
    assert whole.requires_grad
    assert type(layer) is nn.Linear
    assert list(layer.state_dict()) == list(before)
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())
    assert repr(layer) == repr(nn.Linear(16, 16))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("way", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_a_copy_of_a_layer_computes_with_its_own_weights(
    way: Callable[[nn.Module], nn.Module], compiled: bool
) -> None:
    layer, x = nn.Linear(20, 24), torch.randn(3, 20)
    if compiled:  # in place
        layer.compile(backend="eager")
    decomposed(matrix_weights(layer)[0], 5)
    expected = layer(x)
    other = way(layer)
    torch.testing.assert_close(other(x), expected)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert not other(x).any()
    torch.testing.assert_close(layer(x), expected)


class Chosen(nn.Module):
    """What is eligible, and what is not."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.narrow = nn.Linear(32, 15)
        self.lopsided = nn.Linear(16, 16 * 65)
        self.frozen = nn.Linear(32, 32)
        self.frozen.weight.requires_grad_(False)
        self.good = nn.Linear(32, 32)
        self.norm = nn.LayerNorm(32)
        self.conv = nn.Conv2d(2, 32, 3)
        self.depthwise = nn.Conv2d(32, 32, 3, groups=32)
        self.up = nn.ConvTranspose2d(32, 32, 3)
        self.lstm = nn.LSTM(32, 32)
        self.complex = nn.Linear(32, 32, dtype=torch.complex64)
        self.parametrised = nn.utils.parametrizations.weight_norm(nn.Linear(32, 32))
        self.tied = nn.Linear(32, 50, bias=False)
        self.tied.weight = self.embedding.weight


def test_what_is_eligible() -> None:
    net = Chosen()
    assert [w.name for w in matrix_weights(net)] == ["good.weight", "conv.weight"]
    assert (matrix_weights(net)[1].rows, matrix_weights(net)[1].columns) == (32, 18)
    assert matrix_weights(nn.Linear(16, 16))[0].name == "weight"


def test_layers_have_one_name_whatever_is_compiled() -> None:
    net = nn.Sequential(nn.MultiheadAttention(16, 2, kdim=20), nn.Sequential(nn.Linear(16, 16)))
    expected = ["0.q_proj", "0.k_proj", "0.v_proj", "0.out_proj", "1.0"]
    assert [w.layer for w in matrix_weights(net)] == expected
    net[1] = torch.compile(net[1], backend="eager")
    compiled = torch.compile(net, backend="eager")
    assert [w.layer for w in matrix_weights(compiled)] == expected
    assert matrix_weights(nn.Linear(16, 16))[0].layer == "weight"
    beside = nn.ModuleDict({"gate": nn.Linear(16, 16), "gate_weight": nn.Linear(16, 16)})
    assert [w.layer for w in matrix_weights(beside)] == ["gate", "gate_weight"]


def test_first_and_last_mean_the_model_s() -> None:
    def names(net: nn.Module, **which: bool) -> list[str]:
        return [w.name for w in matrix_weights(net, **which)]

    net = nn.Sequential(*(nn.Linear(16, 16) for _ in range(3)))
    assert names(net, first=False, last=False) == ["1.weight"]
    assert names(net, first=False) == ["1.weight", "2.weight"]
    # An embedding, a recurrent layer or a small head is a layer with a weight: the others stay eligible.
    for first in (nn.Embedding(9, 16), nn.LSTM(16, 16), nn.Linear(3, 16)):
        framed = nn.Sequential(first, nn.Linear(16, 16), nn.Linear(16, 10))
        assert names(framed, first=False, last=False) == ["1.weight"]
    # Factored weights keep their places.
    for weight in matrix_weights(net)[:2]:
        decomposed(weight, 3)
    assert names(net, first=False) == ["1.weight", "2.weight"]
    assert [w.name for w in matrix_weights(net, factored=False)] == ["2.weight"]
