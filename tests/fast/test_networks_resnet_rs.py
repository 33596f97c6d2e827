from __future__ import annotations

import torch
from torch import nn

from search_spaces.networks.deep_resnet import DeepBlock
from search_spaces.networks.resnet import ResNet50
from search_spaces.networks.resnet_rs import ResNetRS


def test_the_stem_and_each_stage_but_the_first_halve_the_image() -> None:
    network = ResNetRS(filters=8, blocks=(1, 2, 1, 1), classes=5).eval()
    x, sides = torch.randn(2, 3, 65, 65), []
    x = network.stem(x)
    sides.append(x.shape[-1])
    for block in network.body:
        x = block(x)
        sides.append(x.shape[-1])
    assert sides == [17, 17, 9, 9, 5, 3]
    assert network(torch.randn(2, 3, 65, 65)).shape == (2, 5)


def test_shortcuts_average_before_their_convolution() -> None:
    torch.manual_seed(0)
    block = ResNetRS(filters=8, blocks=(1, 1), classes=5).body[1].eval()
    assert isinstance(block, DeepBlock) and block.projection is not None
    x = torch.randn(2, 32, 4, 4)
    weight, scale = block.projection[1].weight, (1 + 1e-5) ** -0.5  # type: ignore[index]
    means = x.view(2, 32, 2, 2, 2, 2).mean(dim=(3, 5))
    # Its branch adds nothing at first.
    assert torch.allclose(block(x), (nn.functional.conv2d(means, weight) * scale).relu(), atol=1e-6)
    block.train()
    block(x).square().sum().backward()
    last = next(one for one in reversed(block.branch) if isinstance(one, nn.BatchNorm2d))
    assert last.weight.grad.abs().sum() > 0  # and learns to


def test_dropout_comes_before_the_last_layer() -> None:
    for network in (
        ResNetRS(filters=4, blocks=(1,), classes=3, dropout=0.5),
        ResNet50(channels=3, classes=3, filters=4, blocks=(1,), dropout=0.5),
    ):
        seen: list[torch.Tensor] = []
        network.classifier.register_forward_hook(lambda m, given, o, seen=seen: seen.append(given[0]))
        network.train()(torch.rand(64, 3, 32, 32))
        network.eval()(torch.rand(64, 3, 32, 32))
        dropped = [(one == 0).float().mean().item() for one in seen]
        assert dropped[0] - dropped[1] > 0.3
