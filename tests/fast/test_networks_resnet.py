"""Blocks of residual networks against figure 4 of He et al. 2016, and the networks that are made of them."""

from __future__ import annotations

import math
import operator
from typing import Any

import pytest
import torch
from cases import combinations
from torch import Tensor, fx, nn

from search_spaces.networks.residual import ACTIVATIONS, ORDERS, Residual
from search_spaces.networks.resnet import Bottleneck, ResNet20, ResNet50
from search_spaces.networks.small_resnet import ACTIVATIONS as SMALL_ACTIVATIONS
from search_spaces.networks.small_resnet import Block, ResNet

# Figure 4 from the block's input downwards, with the addition as "+", and convolutions by their kernels.
DIAGRAMS = {
    "original": "three norm act three norm + act",
    "norm-after-addition": "three norm act three + norm act",
    "activation-before-addition": "three norm act three norm act +",
    "activation-only-pre-activation": "act three norm act three norm +",
    "full-pre-activation": "norm act three norm act three +",
}
# What lies on the way from the input to the addition where the shape changes; in a basic block without the last norm.
SHORTCUTS = {
    "original": "one norm",
    "norm-after-addition": "one",
    "activation-before-addition": "one norm",
    "activation-only-pre-activation": "act one norm",
    "full-pre-activation": "norm act one",
}


def kind_of(node: fx.Node, modules: dict[str, nn.Module]) -> str:
    if node.op == "call_function" and node.target in (operator.add, torch.add):
        return "+"
    module = modules[str(node.target)]
    if isinstance(module, nn.Conv2d):
        return {(3, 3): "three", (1, 1): "one"}[module.kernel_size]
    return "norm" if isinstance(module, nn.BatchNorm2d) else "act"


def path(graph: fx.GraphModule, through: int) -> str:
    """What lies between input and output, taking the ``through``-th argument of the addition."""
    modules = dict(graph.named_modules())
    (output,) = [node for node in graph.graph.nodes if node.op == "output"]
    node: Any = output.args[0]
    kinds: list[str] = []
    while node.op != "placeholder":
        kind = kind_of(node, modules)
        kinds.insert(0, kind)
        node = node.args[through if kind == "+" else 0]
    return " ".join(kinds)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("outputs", "stride"), [(16, 1), (32, 2), (32, 1), (16, 2)])
@pytest.mark.parametrize("bottleneck", [False, True])
def test_block_diagram(order: str, outputs: int, stride: int, bottleneck: bool) -> None:
    """Where the shape changes, the shortcut is a projection of what the branch sees; else it is the input itself."""
    assert tuple(DIAGRAMS) == ORDERS
    diagram, shortcut = DIAGRAMS[order], SHORTCUTS[order]
    how: dict[str, Any] = {"stride": stride, "activation": "elu", "order": order}
    if bottleneck:
        before, _, behind = diagram.rpartition("three")
        diagram = f"{before.replace('three', 'one norm act three')}one{behind}"
        graph = fx.symbolic_trace(Bottleneck(16, outputs // 4, **how))
    else:
        shortcut = shortcut.removesuffix(" norm")
        graph = fx.symbolic_trace(Block(16, outputs, **how))
    after = diagram[diagram.index("+") :]
    assert path(graph, through=1) == diagram
    assert path(graph, through=0) == (after if (outputs, stride) == (16, 1) else f"{shortcut} {after}")
    assert graph(torch.randn(2, 16, 6, 6)).shape == (2, outputs, 6 // stride, 6 // stride)


def executed(network: nn.Module, images: Tensor) -> list[str]:
    """Kinds of the leaves, in the order in which they run."""
    names = {nn.Conv2d: "three", nn.BatchNorm2d: "norm", nn.ELU: "act", nn.Linear: "linear"}
    order: list[str] = []
    for module in network.modules():
        if type(module) in names:
            module.register_forward_hook(lambda m, i, o: order.append(names[type(m)]))
    network(images)
    return order


@pytest.mark.parametrize(
    ("order", "stem", "end"),
    [
        ("original", ["three", "norm", "act"], []),
        ("norm-after-addition", ["three", "norm", "act"], []),
        ("activation-before-addition", ["three", "norm", "act"], []),
        ("activation-only-pre-activation", ["three"], ["act"]),
        ("full-pre-activation", ["three"], ["norm", "act"]),
    ],
)
def test_stem_and_end_fit_the_order(order: str, stem: list[str], end: list[str]) -> None:
    network = ResNet(channels=1, classes=10, width=4, activation="elu", order=order, stages=1, blocks=2)
    block = [kind for kind in DIAGRAMS[order].split() if kind != "+"]
    assert executed(network, torch.randn(2, 1, 8, 8)) == [*stem, *block, *block, *end, "linear"]


def test_stages_double_the_filters_and_halve_the_image() -> None:
    network = ResNet(channels=3, classes=5, width=4, activation="relu", order="original", stages=3, blocks=2)
    shapes = []
    for module in network.modules():
        if isinstance(module, Block):
            module.register_forward_hook(lambda m, i, o: shapes.append(tuple(o.shape[1:])))
    assert network(torch.randn(2, 3, 28, 28)).shape == (2, 5)
    assert shapes == [(4, 28, 28)] * 2 + [(8, 14, 14)] * 2 + [(16, 7, 7)] * 2


@pytest.mark.parametrize(("order", "activation"), combinations(ORDERS, SMALL_ACTIVATIONS))
def test_every_order_and_activation_trains_all_its_parameters(order: str, activation: str) -> None:
    torch.manual_seed(0)
    network = ResNet(channels=1, classes=10, width=4, activation=activation, order=order)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    before = [parameter.clone() for parameter in network.parameters()]
    for _ in range(2):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(torch.randn(16, 1, 8, 8)), torch.arange(16) % 10).backward()
        optimizer.step()
    for (name, parameter), old in zip(network.named_parameters(), before, strict=True):
        assert parameter.isfinite().all(), name
        assert not torch.equal(parameter, old), name


def test_published_numbers_of_parameters() -> None:
    with torch.device("meta"):
        networks = ResNet50(channels=3, classes=1000), ResNet20()
    counts = [sum(parameter.numel() for parameter in network.parameters()) for network in networks]
    assert counts == [25_557_032, 269_722]
    assert ResNet20()(torch.randn(2, 3, 32, 32)).shape == (2, 10)


def test_shortcuts_of_resnet20_take_every_second_pixel_and_pad_the_channels_with_zeros() -> None:
    network = ResNet20(width=2)
    (shortcut, _) = [m.projection for m in network.modules() if isinstance(m, Residual) and m.projection]
    images = torch.arange(2 * 16.0).view(1, 2, 4, 4)
    halved = shortcut(images)
    assert halved.shape == (1, 4, 2, 2)
    assert halved[0, 0].tolist() == [[0, 2], [8, 10]]
    assert not halved[0, 2:].any()


# x = -3, -1, 0, 2 through Keras' definitions, by hand.
VALUES: dict[str, Any] = {
    "elu": [math.exp(-3) - 1, math.exp(-1) - 1, 0, 2],
    "exponential": [math.exp(-3), math.exp(-1), 1, math.exp(2)],
    "hard-sigmoid": [0, 0.3, 0.5, 0.9],
    "linear": [-3, -1, 0, 2],
    "relu": [0, 0, 0, 2],
    "selu": [
        1.0507009873554805 * 1.6732632423543772 * (math.exp(-3) - 1),
        1.0507009873554805 * 1.6732632423543772 * (math.exp(-1) - 1),
        0,
        2 * 1.0507009873554805,
    ],
    "sigmoid": [1 / (1 + math.exp(3)), 1 / (1 + math.exp(1)), 0.5, 1 / (1 + math.exp(-2))],
    "softmax": [
        math.exp(x) / (math.exp(-3) + math.exp(-1) + 1 + math.exp(2)) for x in (-3, -1, 0, 2)
    ],
    "softplus": [math.log1p(math.exp(x)) for x in (-3, -1, 0, 2)],
    "softsign": [-3 / 4, -1 / 2, 0, 2 / 3],
    "swish": [-3 / (1 + math.exp(3)), -1 / (1 + math.exp(1)), 0, 2 / (1 + math.exp(-2))],
    "tanh": [math.tanh(x) for x in (-3, -1, 0, 2)],
}  # fmt: skip


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_those_of_keras(name: str) -> None:
    assert set(VALUES) == set(ACTIVATIONS)
    # Four channels of one pixel, as softmax goes over the channels.
    x = torch.tensor([-3.0, -1.0, 0.0, 2.0]).view(1, 4, 1, 1)
    assert ACTIVATIONS[name]()(x).flatten().tolist() == pytest.approx(VALUES[name], rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"activation": "gelu"}, "activation = 'gelu': must be one of elu, exponential"),
        ({"order": "pre"}, "order = 'pre': must be one of original"),
    ],
)
def test_unknown_names_are_refused(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ResNet50(channels=3, classes=2, filters=2, **keywords)
