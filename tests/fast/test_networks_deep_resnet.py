from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import combinations
from torch import nn

from search_spaces.building_blocks.architecture_search import memory
from search_spaces.building_blocks.architecture_search.memory import (
    DoesNotFit,
    TrainingMemory,
    available_bytes,
    check_fits,
    training_memory,
)
from search_spaces.networks.deep_resnet import (
    STEMS,
    DeepBlock,
    DeepResNet,
    SqueezeExcitation,
    start_new_blocks_as_identity,
)
from search_spaces.networks.residual import ACTIVATIONS, ORDERS, PRE_ACTIVATION
from search_spaces.networks.resnet import ResNet50

SMALL: dict[str, Any] = {"channels": 3, "classes": 4, "filters": 2, "blocks": (1, 1, 1, 1)}


@pytest.mark.parametrize("order", ORDERS)
def test_it_computes_what_resnet50_does(order: str) -> None:
    keywords = {"channels": 3, "classes": 5, "filters": 2, "blocks": (2, 1, 1, 2), "order": order}
    torch.manual_seed(0)
    deep, published = DeepResNet(**keywords), ResNet50(**keywords)
    published.load_state_dict(
        dict(zip(published.state_dict(), deep.state_dict().values(), strict=True)), strict=True
    )
    images = torch.randn(4, 3, 32, 32)
    assert torch.equal(deep(images), published(images))


def test_random_architectures_take_a_step() -> None:
    rng = random.Random(0)
    torch.manual_seed(0)
    for _ in range(20):
        reduction = rng.choice((1, 4))
        keywords = {
            "filters": rng.choice((1, 3, 8)),
            "blocks": tuple(rng.randint(1, 2) for _ in range(4)),
            "bottleneck": rng.choice((1, 2, 4, 8)),
            "kernel": rng.choice((3, 5, 7)),
            "stem": rng.choice(STEMS),
            "groups": rng.choice((1, 2, 8, 32)),
            "squeeze": rng.choice((0.0, 0.0625, 0.25)),
            "activation": rng.choice(tuple(ACTIVATIONS)),
            "order": rng.choice(ORDERS),
            "reduction": reduction,
        }
        network = DeepResNet(channels=3, classes=4, **keywords)
        loss = nn.functional.cross_entropy(network(torch.randn(4, 3, 32, 32)), torch.arange(4))
        loss.backward()
        assert all(one.grad is not None for one in network.parameters()), keywords


@pytest.mark.parametrize(
    ("stem", "reduction", "side"),
    [*[(stem, 4, 8) for stem in STEMS], *[("convolution", 1, 32), ("deep", 1, 32), ("patches", 1, 16)]],
)
def test_stem_leaves_the_side(stem: str, reduction: int, side: int) -> None:
    network = DeepResNet(**SMALL, stem=stem, reduction=reduction)
    assert network.stem(torch.randn(2, 3, 32, 32)).shape == (2, 2, side, side)


def test_choices_are_where_they_belong() -> None:
    network = DeepResNet(**{**SMALL, "filters": 4}, kernel=5, groups=32, bottleneck=2, squeeze=0.25)
    blocks = [one for one in network.modules() if isinstance(one, DeepBlock)]
    middle = [one.branch[3] for one in blocks]
    assert [(one.in_channels, one.groups, one.kernel_size) for one in middle] == [
        (8, 8, (5, 5)), (16, 16, (5, 5)), (32, 32, (5, 5)), (64, 32, (5, 5)),
    ]  # fmt: skip
    gates = [one.branch[-1] for one in blocks]
    assert [one.gates[0].out_features for one in gates] == [4, 8, 16, 32]


def test_squeeze_and_excitation_scales_channels() -> None:
    module = SqueezeExcitation(4, 0.5)
    x = torch.randn(2, 4, 3, 3)
    by_hand = torch.sigmoid(
        torch.relu(x.mean(dim=(2, 3)) @ module.gates[0].weight.T + module.gates[0].bias)
        @ module.gates[2].weight.T
        + module.gates[2].bias
    )
    assert torch.allclose(module(x), x * by_hand.view(2, 4, 1, 1))


def test_an_unknown_stem_is_refused() -> None:
    with pytest.raises(ValueError, match="stem = 'none': must be one of convolution, deep, patches"):
        DeepResNet(**SMALL, stem="none")


def grows_exactly(order: str, activation: str) -> bool:
    if order in PRE_ACTIVATION:
        return True
    if order == "activation-before-addition":
        return bool((ACTIVATIONS[activation]()(torch.zeros(1, 2, 1, 1)) == 0).all())
    return order == "original" and activation in ("relu", "linear")


@pytest.mark.parametrize(
    ("order", "activation"), combinations(ORDERS, ["relu", "elu", "swish", "softmax", "linear"])
)
def test_a_grown_network_computes_what_its_parent_did(order: str, activation: str) -> None:
    torch.manual_seed(0)
    keywords = {**SMALL, "order": order, "activation": activation, "squeeze": 0.25}
    parent = DeepResNet(**keywords)
    images = torch.randn(8, 3, 32, 32)
    for _ in range(2):  # its normalisations have seen data
        parent(images)
    child = DeepResNet(**{**keywords, "blocks": (2, 1, 3, 1)})
    child.load_state_dict(parent.state_dict(), strict=False)
    new = start_new_blocks_as_identity(child, parent.state_dict())
    assert new == ["stages.0.1", "stages.2.1", "stages.2.2"]
    if grows_exactly(order, activation):
        for mode in (True, False):
            atol = 1e-3 if order == "activation-before-addition" else 1e-5
            assert torch.allclose(child.train(mode)(images), parent.train(mode)(images), atol=atol)
    # What was added learns.
    child.train()
    nn.functional.cross_entropy(child(images), torch.arange(8) % 4).backward()
    for name in new:
        assert any(one.grad is not None and one.grad.any() for one in child.get_submodule(name).parameters())


def test_memory_of_a_layer_by_hand() -> None:
    with torch.device("meta"):
        network = nn.Sequential(nn.Linear(10, 20, bias=False), nn.ReLU(), nn.Linear(20, 5, bias=False))
    found = training_memory(network, (8, 10), optimizer=lambda weights: torch.optim.Adam(weights))
    weights = 4 * (10 * 20 + 20 * 5)
    assert found.parameters == found.gradients == weights
    assert found.optimizer == 2 * weights
    # The input, ReLU's output (twice more as the largest), and what comes out.
    assert found.activations == 4 * 8 * (10 + 20 + 5) + 2 * 4 * 8 * 20
    assert found.total == 4 * weights + found.activations
    half = training_memory(
        network, (8, 10), optimizer=lambda weights: torch.optim.SGD(weights, lr=1.0), precision="bf16"
    )
    assert (half.optimizer, half.activations) == (0, found.activations // 2 + weights // 2)


def test_what_does_not_fit_is_refused_in_a_sentence() -> None:
    needed = TrainingMemory(parameters=2**30, gradients=2**30, optimizer=2**31, activations=2**32)
    check_fits(needed, 2**33, per_rank=32)
    with pytest.raises(DoesNotFit) as refused:
        check_fits(needed, 2**33 - 1, per_rank=32)
    for words in (
        "needs about 8.00 GiB (parameters 1.00 GiB, gradients 1.00 GiB, optimizer 2.00 GiB, activations 4.00",
        "with 32 samples a rank, and its share is 8.00 GiB. Lower batch_size",
    ):
        assert words in str(refused.value)


@pytest.mark.parametrize(
    ("variables", "ranks", "share"),
    [
        ({}, 4, 4),
        (
            {"LOCAL_WORLD_SIZE": "2", "HPO_RANKS_ON_HOST": "8"},
            2,
            8,
        ),  # of an evaluator whose worker has two ranks
        ({"HPO_RANKS_ON_HOST": "2"}, 4, 2),  # of a worker on two hosts
        ({"LOCAL_WORLD_SIZE": "4"}, 1, 4),  # torchrun, and a fold for each rank
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, 1, 4),
    ],
)
def test_all_ranks_of_a_host_share_its_memory(
    variables: dict[str, str], ranks: int, share: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in memory._RANKS_ON_HOST:
        monkeypatch.delenv(name, raising=False)
    whole = available_bytes("cpu", 1)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert available_bytes("cpu", ranks) == pytest.approx(whole / share, rel=0.01)


@pytest.mark.parametrize(
    ("own", "files", "available"),
    [
        ("0::/system.slice/job_7/step_0", {"system.slice/job_7/memory.max": 3, "memory.max": "max"}, 3),
        ("0::/a/b", {"a/memory.max": 5, "a/b/memory.max": 9}, 5),
        ("0::/../outside", {"memory.max": 2}, 2),
        (
            "4:memory:/slurm/job_7\n1:cpu:/x",
            {"memory/slurm/job_7/memory.limit_in_bytes": 4, "x/memory.max": 1},
            4,
        ),
        ("1:cpu:/x", {"memory.max": 1}, None),
    ],
)
def test_memory_is_what_the_control_groups_of_a_job_allow(
    own: str, files: dict[str, object], available: int | None, tmp_path: Path
) -> None:
    for name, number in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        value = f"{number * 2**20}" if isinstance(number, int) else str(number)
        path.write_text(f"{value}\n")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"{own}\n")
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert available_bytes("cpu", 2, tmp_path) == (whole if available is None else available * 2**20) // 2
