from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from test_networks_small_resnet import path
from torch import fx, nn

from search_spaces.networks.residual import ACTIVATIONS, ORDERS, Residual
from search_spaces.networks.resnet import Bottleneck, ResNet20, ResNet50

# Figure 4 of He et al. 2016 for the bottlenecks that its networks are made of: 1×1, 3×3 and 1×1 convolutions, from
# the block's input downwards, with the addition as "+".
DIAGRAMS = {
    "original": "one norm act three norm act one norm + act",
    "norm-after-addition": "one norm act three norm act one + norm act",
    "activation-before-addition": "one norm act three norm act one norm act +",
    "activation-only-pre-activation": "act one norm act three norm act one norm +",
    "full-pre-activation": "norm act one norm act three norm act one +",
}
# What lies on the way from the input to the addition where the shape changes.
SHORTCUTS = {
    "original": "one norm",
    "norm-after-addition": "one",
    "activation-before-addition": "one norm",
    "activation-only-pre-activation": "act one norm",
    "full-pre-activation": "norm act one",
}


def drawn(graph: fx.GraphModule, through: int) -> str:
    return " ".join(path(graph, through)).replace("project", "one").replace("conv", "three")


def parameters(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize("order", ORDERS)
def test_bottleneck_diagram(order: str) -> None:
    assert tuple(DIAGRAMS) == ORDERS
    same = fx.symbolic_trace(Bottleneck(16, 4, stride=1, activation="elu", order=order))
    assert drawn(same, through=1) == DIAGRAMS[order]
    # An identity shortcut: nothing before the addition but the input itself.
    assert drawn(same, through=0) == DIAGRAMS[order][DIAGRAMS[order].index("+") :]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("filters", "stride"), [(8, 2), (8, 1), (4, 2)])
def test_bottleneck_diagram_where_the_shape_changes(order: str, filters: int, stride: int) -> None:
    graph = fx.symbolic_trace(Bottleneck(16, filters, stride=stride, activation="elu", order=order))
    after = DIAGRAMS[order][DIAGRAMS[order].index("+") :]
    assert drawn(graph, through=1) == DIAGRAMS[order]
    assert drawn(graph, through=0) == f"{SHORTCUTS[order]} {after}"
    assert graph(torch.randn(2, 16, 6, 6)).shape == (2, 4 * filters, 6 // stride, 6 // stride)


def test_published_numbers_of_parameters() -> None:
    with torch.device("meta"):
        assert parameters(ResNet50(channels=3, classes=1000)) == 25_557_032
    assert parameters(ResNet20()) == 269_722
    assert ResNet20()(torch.randn(2, 3, 32, 32)).shape == (2, 10)


def test_filters_and_blocks_are_those_asked_for() -> None:
    network = ResNet50(channels=12, classes=19, filters=2, blocks=(2, 1, 1, 3))
    shapes = []
    for module in network.modules():
        if isinstance(module, Residual):
            module.register_forward_hook(lambda m, i, o: shapes.append(tuple(o.shape[1:])))
    assert network(torch.randn(2, 12, 120, 120)).shape == (2, 19)
    assert shapes == [(8, 30, 30)] * 2 + [(16, 15, 15)] + [(32, 8, 8)] + [(64, 4, 4)] * 3


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
