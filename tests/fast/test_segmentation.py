"""Semantic segmentation: network, region mutual information, mean IoU, and what the campaign makes of its options."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refused
from torch import Tensor

import hpo
import trainers
from search_spaces import cityscapes_daso
from search_spaces.building_blocks.recipe_parts.region_mutual_information import (
    binary_cross_entropy,
    region_mutual_information,
    segmentation_loss,
)
from search_spaces.building_blocks.recipes import Run
from search_spaces.building_blocks.segmentation_task import ClassIoU, MeanIoU, SceneParts, held_cities
from search_spaces.folds import Fold
from search_spaces.networks.hrnet_ocr import MultiScaleOCR, Predictions

NARROW: dict[str, Any] = {
    "width": 4, "modules": (1, 1, 1), "blocks": 1, "stem": 4, "middle": 8, "key": 4, "classes": 5
}  # fmt: skip


def count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_the_network_has_the_published_parts_and_the_names_of_published_weights() -> None:
    with torch.device("meta"):
        network = MultiScaleOCR()
    ocr, attention = count(network.ocr), count(network.attention)
    found = [round(number / 1e6, 1) for number in (count(network) - ocr - attention, ocr, attention)]
    assert found == [65.3, 5.0, 1.8]
    shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    for name, shape in {
        "conv1.weight": (64, 3, 3, 3),
        "layer1.0.downsample.0.weight": (256, 64, 1, 1),
        "transition1.1.0.0.weight": (96, 256, 3, 3),
        "transition3.3.0.0.weight": (384, 192, 3, 3),
        "stage2.0.branches.1.3.conv2.weight": (96, 96, 3, 3),
        "stage3.3.fuse_layers.2.0.1.0.weight": (192, 48, 3, 3),
        "stage4.2.fuse_layers.0.3.0.weight": (48, 384, 1, 1),
        "stage4.2.branches.3.3.bn2.running_var": (384,),
    }.items():
        assert shapes[name] == shape


@pytest.mark.parametrize(("height", "width"), [(64, 128), (50, 70)])
def test_predictions_have_the_size_of_the_images_at_any_size(height: int, width: int) -> None:
    torch.manual_seed(0)
    network, images = MultiScaleOCR(**NARROW), torch.randn(2, 3, height, width)
    predictions = network(images)
    assert isinstance(predictions, Predictions)
    assert {tuple(one.shape) for one in predictions} == {(2, 5, height, width)}
    sum(one.square().mean() for one in predictions).backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


def test_attention_weighs_half_against_full_resolution() -> None:
    torch.manual_seed(0)
    network, images = MultiScaleOCR(**NARROW).eval(), torch.randn(1, 3, 32, 64)
    last = network.attention[6]
    assert isinstance(last, torch.nn.Conv2d)
    with torch.no_grad():
        joint = network(images)
        network.evaluation_scales = 1
        full = network(images)
        network.evaluation_scales = 2
        assert not torch.allclose(joint, full)
        # A sigmoid of -∞ leaves the full resolution alone; of +∞ the half.
        network.attention[6] = torch.nn.Sequential(last, torch.nn.Threshold(math.inf, -100.0))
        assert torch.allclose(network(images), full, atol=1e-6)
        network.attention[6] = torch.nn.Sequential(last, torch.nn.Threshold(math.inf, 100.0))
        half = torch.nn.functional.interpolate(images, scale_factor=0.5, mode="bilinear")
        network.evaluation_scales = 1
        low = torch.nn.functional.interpolate(network(half), size=(32, 64), mode="bilinear")
        network.evaluation_scales = 2
        assert torch.allclose(network(images), low, atol=1e-5)


def reference(logits: Tensor, targets: Tensor) -> float:
    """Section 3 of Zhao et al., by sample and class, in NumPy and double precision."""
    total, samples, classes = 0.0, logits.shape[0], logits.shape[1]
    counted = (targets < classes).numpy()
    for n in range(samples):
        for c in range(classes):
            label = ((targets[n] == c).numpy() & counted[n]).astype(np.float64)
            predicted = 1 / (1 + np.exp(-logits[n, c].double().numpy())) * counted[n] + 1e-6
            vectors = []
            for values in (label, predicted):
                padded = np.pad(values, 2)
                rows, columns = padded.shape[0] // 4, padded.shape[1] // 4
                pooled = padded[: 4 * rows, : 4 * columns].reshape(rows, 4, columns, 4).mean((1, 3))
                windows = np.lib.stride_tricks.sliding_window_view(pooled, (3, 3)).reshape(-1, 9)
                vectors.append(windows - windows.mean(0))
            y, p = vectors
            m = y.T @ y - y.T @ p @ np.linalg.inv(p.T @ p + 5e-4 * np.eye(9)) @ (y.T @ p).T
            total += 0.5 * np.linalg.slogdet(m + 5e-4 * np.eye(9))[1] / 9 / samples
    return 0.5 * float(binary_cross_entropy(logits, targets)) + 0.5 * total


def scene(seed: int = 0, classes: int = 4) -> tuple[Tensor, Tensor]:
    """Logits and targets with regions, some of them ignored."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randint(0, classes, (2, 6, 8), generator=generator, dtype=torch.uint8)
    targets = coarse.repeat_interleave(6, 1).repeat_interleave(6, 2)
    targets[0, :5] = 255
    return torch.randn(2, classes, *targets.shape[1:], generator=generator), targets


def test_region_mutual_information_is_that_of_the_paper() -> None:
    for seed in range(3):
        logits, targets = scene(seed)
        assert float(region_mutual_information(logits, targets)) == pytest.approx(
            reference(logits, targets), rel=1e-5
        )
    logits, targets = scene()
    # A prediction of the target has far more information of it than noise.
    right = 8.0 * torch.nn.functional.one_hot(targets.long() % 5, 5).permute(0, 3, 1, 2)[:, :4] - 4.0
    assert (
        float(region_mutual_information(right, targets))
        < float(region_mutual_information(logits, targets)) - 1
    )


def test_ignored_pixels_alone_give_no_gradient_and_no_error() -> None:
    logits, targets = scene()
    logits.requires_grad_()
    loss = segmentation_loss(Predictions(logits, logits, logits, logits), torch.full_like(targets, 255))
    loss.backward()
    assert logits.grad is not None and math.isfinite(loss.item()) and float(logits.grad.abs().max()) == 0.0
    changed = logits.detach().clone()
    changed[0, :, :5] += 3.0
    for function in (binary_cross_entropy, region_mutual_information):
        assert float(function(changed, targets)) == float(function(logits.detach(), targets))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_prediction_that_is_not_finite_diverges_without_an_error(value: float) -> None:
    logits, targets = scene()
    logits[0, 1] = value
    assert not math.isfinite(float(segmentation_loss(logits, targets)))


def test_loss_of_training_adds_auxiliary_head_and_scales() -> None:
    parts = [scene(seed)[0] for seed in range(4)]
    targets = scene()[1]
    joint, auxiliary, low, full = parts
    expected = region_mutual_information(joint, targets) + 0.4 * binary_cross_entropy(auxiliary, targets)
    expected += 0.05 * (binary_cross_entropy(low, targets) + binary_cross_entropy(full, targets))
    assert float(segmentation_loss(Predictions(*parts), targets)) == pytest.approx(float(expected))


def test_mean_iou_counts_pixels_of_all_samples_and_leaves_ignored_ones_out() -> None:
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(6, 4, 5, 7, generator=generator)
    outputs[:, 3] = -10.0
    targets = torch.randint(0, 3, (6, 5, 7), generator=generator, dtype=torch.uint8)
    targets[2, 1] = 255
    whole = MeanIoU(4)
    for batch in (slice(0, 4), slice(4, 6)):
        whole.update(outputs[batch], targets[batch])
    chosen, counted = outputs.argmax(1), targets < 4
    expected = [
        float(((chosen == c) & (targets == c)).sum() / (((chosen == c) | (targets == c)) & counted).sum())
        for c in range(3)
    ]
    assert whole.each()[:3].tolist() == pytest.approx(expected)
    # The fourth class is neither present nor predicted.
    assert math.isnan(ClassIoU(whole, 3).compute())
    assert float(whole.compute()) == pytest.approx(sum(expected) / 3)
    assert float(ClassIoU(whole, 1).compute()) == pytest.approx(expected[1])
    whole.reset()
    assert int(whole.sums()[0].sum()) == 0


def test_whole_cities_are_held_out() -> None:
    cities = np.repeat(np.arange(10), [5, 20, 10, 5, 15, 5, 10, 10, 10, 10])
    held = held_cities(cities, 0.2)
    assert 0.2 <= held.mean() < 0.45 and not set(cities[held]) & set(cities[~held])
    assert np.array_equal(held, held_cities(cities, 0.2))
    with pytest.raises(hpo.UsageError, match=r"validation_part = 0\.5.*no city.*Choose less"):
        held_cities(np.zeros(8, dtype=np.int64), 0.5)


def test_folds_are_of_cities() -> None:
    options = cityscapes_daso.Options(data="data", folds=4)
    scenes = SimpleNamespace(cities=np.repeat(np.arange(8), 3))
    parts = SceneParts(scenes=scenes, train=np.arange(24), held=np.arange(0), tested=scenes)  # type: ignore[arg-type]
    held: list[int] = []
    for index in range(4):
        fold = options.of_fold(parts, Fold(index=index, folds=4))
        assert not set(scenes.cities[fold.train]) & set(scenes.cities[fold.held]) and len(fold.held) == 6
        held += fold.held.tolist()
    assert sorted(held) == list(range(24))


def test_settings_are_those_of_the_source() -> None:
    options = cityscapes_daso.Options(data="data")
    with torch.device("meta"):
        made = cityscapes_daso.recipe({}, options, Run())
    (group,) = made.optimizer([torch.nn.Parameter(torch.zeros(1))]).param_groups
    assert (options.most_epochs, group["momentum"], group["weight_decay"]) == (175, 0.9, 1e-4)
    assert group["lr"] == pytest.approx(0.02)
    schedule = made.schedule
    assert isinstance(schedule, trainers.ReduceOnPlateau)
    assert (schedule.patience, schedule.factor, schedule.warmup_epochs, schedule.metric) == (
        5,
        0.75,
        5,
        "train_loss",
    )
    large = cityscapes_daso.Options(data="data", batch_size=4096)
    with torch.device("meta"):
        made = cityscapes_daso.recipe({}, large, Run())
    (group,) = made.optimizer([torch.nn.Parameter(torch.zeros(1))]).param_groups
    assert group["lr"] == 0.4


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, ["data = ''", "Cityscapes"]),
        ({"data": "missing"}, ["missing", "is not there"]),
        ({"small": True, "coarse": True}, ["coarse = True", "without data"]),
        ({"data": "data", "coarse": True, "folds": 2}, ["coarse = True", "folds"]),
        ({"small": True, "validation_part": 0.99}, ["validation_part = 0.99", "no city"]),
        ({"small": True, "folds": 9}, ["folds = 9", "there are 8"]),
        ({"small": True, "evaluation_scales": 3}, ["evaluation_scales = 3", "1 or 2"]),
        (
            {"small": True, "epochs": 2, "warmup_epochs": 1, "cooldown_epochs": 1},
            ["epochs = 2", "raise epochs"],
        ),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], words: list[str]) -> None:
    refused(lambda: cityscapes_daso.make_task(**options), *words)
