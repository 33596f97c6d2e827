from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from cases import combinations
from torch import Tensor, fx, nn

from search_spaces.networks.small_resnet import ACTIVATIONS, ORDERS, Block, ResNet

# Figure 4 of He et al. 2016, read from the block's input downwards, with the addition as "+".
DIAGRAMS = {
    "original": "conv norm act conv norm + act",
    "norm-after-addition": "conv norm act conv + norm act",
    "activation-before-addition": "conv norm act conv norm act +",
    "activation-only-pre-activation": "act conv norm act conv norm +",
    "full-pre-activation": "norm act conv norm act conv +",
}


def kind_of(node: fx.Node, modules: dict[str, nn.Module]) -> str:
    if node.op == "call_function" and node.target in (operator.add, torch.add):
        return "+"
    module = modules[str(node.target)]
    if isinstance(module, nn.Conv2d):
        return "conv" if module.kernel_size == (3, 3) else "project"
    return "norm" if isinstance(module, nn.BatchNorm2d) else "act"


def path(graph: fx.GraphModule, through: int) -> list[str]:
    """What lies between input and output, taking the ``through``-th argument of the addition."""
    modules = dict(graph.named_modules())
    (output,) = [node for node in graph.graph.nodes if node.op == "output"]
    node: Any = output.args[0]
    kinds: list[str] = []
    while node.op != "placeholder":
        kind = kind_of(node, modules)
        kinds.insert(0, kind)
        node = node.args[through if kind == "+" else 0]
    return kinds


def traced(inputs: int, outputs: int, stride: int, order: str) -> fx.GraphModule:
    return fx.symbolic_trace(Block(inputs, outputs, stride=stride, activation="elu", order=order))


def test_the_orders_are_those_of_the_paper() -> None:
    assert tuple(DIAGRAMS) == ORDERS


@pytest.mark.parametrize("order", ORDERS)
def test_block_diagram(order: str) -> None:
    graph = traced(4, 4, 1, order)
    diagram = DIAGRAMS[order].split()
    assert path(graph, through=1) == diagram
    # An identity shortcut: nothing before the addition but the input itself.
    assert path(graph, through=0) == diagram[diagram.index("+") :]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("outputs", "stride"), [(8, 2), (8, 1), (4, 2)])
def test_where_the_shape_changes_the_shortcut_is_a_projection_of_what_the_branch_sees(
    order: str, outputs: int, stride: int
) -> None:
    graph = traced(4, outputs, stride, order)
    diagram = DIAGRAMS[order].split()
    before = diagram[: diagram.index("conv")]
    assert path(graph, through=1) == diagram
    assert path(graph, through=0) == [*before, "project", *diagram[diagram.index("+") :]]
    out = graph(torch.randn(2, 4, 6, 6))
    assert out.shape == (2, outputs, 6 // stride, 6 // stride)


def executed(network: nn.Module, images: Tensor) -> list[str]:
    """Kinds of the leaves, in the order in which they run."""
    names = {nn.Conv2d: "conv", nn.BatchNorm2d: "norm", nn.ELU: "act", nn.Linear: "linear"}
    order: list[str] = []
    for module in network.modules():
        if type(module) in names:
            module.register_forward_hook(lambda m, i, o: order.append(names[type(m)]))
    network(images)
    return order


@pytest.mark.parametrize(
    ("order", "stem", "end"),
    [
        ("original", ["conv", "norm", "act"], []),
        ("norm-after-addition", ["conv", "norm", "act"], []),
        ("activation-before-addition", ["conv", "norm", "act"], []),
        ("activation-only-pre-activation", ["conv"], ["act"]),
        ("full-pre-activation", ["conv"], ["norm", "act"]),
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


@pytest.mark.parametrize(("order", "activation"), combinations(ORDERS, ACTIVATIONS))
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


def test_an_unknown_order_is_refused() -> None:
    with pytest.raises(ValueError, match="must be one of original, norm-after-addition"):
        Block(4, 4, stride=1, activation="relu", order="pre")
