"""The campaigns on ImageNet: their settings are those of their sources, their data what their options say."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import stand_ins
import torch
from torch import nn

import hpo
import trainers
from search_spaces import imagenet_ab, imagenet_daso, imagenet_oialr
from search_spaces.building_blocks import methods
from search_spaces.building_blocks.architecture_search import memory
from search_spaces.building_blocks.imagenet_task import ImageNetOptions, ImageNetParts
from search_spaces.building_blocks.recipe_parts.schedules import TimmCosine
from search_spaces.building_blocks.recipes import Recipe, Run
from search_spaces.folds import Fold
from search_spaces.networks.resnet_rs import ResNetRS
from search_spaces.networks.vit import ViT

MODULES = [imagenet_ab, imagenet_daso, imagenet_oialr]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def recipe(module: ModuleType, ranks: int = 1, **options: Any) -> Recipe:
    """Of the default, at full size without memory."""
    chosen = module.Options(**options)
    params = module.default(chosen) if callable(module.default) else module.default
    with torch.device("meta"):
        made: Recipe = module.recipe(dict(params), chosen, Run(data={"classes": 1000}, ranks=ranks))
    return made


def settings(made: Recipe) -> dict[str, Any]:
    """Of its optimizer."""
    (group,) = made.optimizer(made.network.parameters()).param_groups
    return group


def parameters(network: nn.Module) -> int:
    return sum(one.numel() for one in network.parameters())


# Sources


@pytest.mark.parametrize("module", MODULES)
def test_made_up_images_stay_of_their_class_unless_asked_otherwise(module: ModuleType) -> None:
    assert module.Options(small=True).used_augmentation == "none"
    assert module.Options(small=True, augmentation="rand-augment").used_augmentation == "rand-augment"
    assert module.Options().used_augmentation in ("resized-crop-flip", "rand-augment")


@pytest.mark.parametrize("network", ["vit-b-16", "resnet-rs-101"])
def test_oialr_is_that_of_table_a_1(network: str) -> None:
    options = imagenet_oialr.Options(network=network)
    assert (options.most_epochs, options.samples_a_step) == (125, 1024)
    assert options.used_augmentation == "rand-augment"
    size = options.size
    assert (size.side, size.crop_fraction) == (160, 0.9)
    assert size.evaluation_side == (160 if network == "vit-b-16" else 224)
    made = recipe(imagenet_oialr, network=network)
    assert made.label_smoothing == 0.1 and made.clip_norm is None
    assert settings(made)["lr"] == 1e-3
    assert made.schedule == TimmCosine(warmup_epochs=10, warmup_lr=1e-5, min_lr=1e-5, k_decay=1)
    if network == "vit-b-16":
        assert isinstance(made.network, ViT) and made.network.dropout.p == 0.1
        assert parameters(made.network) == 86_567_656 - 96 * 768  # fewer positions: 160 × 160 pixels
        assert made.network(torch.empty(1, 3, 160, 160, device="meta")).shape == (1, 1000)
    else:
        assert isinstance(made.network, ResNetRS) and made.network.dropout.p == 0.25
        assert parameters(made.network) == 63_618_696
    method = methods.make("oialr", imagenet_oialr.default, ranks=8)
    assert isinstance(method, trainers.OIALR)
    steps = 125 * -(-1_281_167 // 1024)
    assert [round(float(one) * steps) for one in (method.delay, method.update_every)] == [25_000, 1000]
    assert method.sigma_cutoff == 0.1
    assert (method.full_rank_first_layer, method.full_rank_last_layer) == (False, True)
    assert imagenet_oialr.space.validate(imagenet_oialr.default) == pytest.approx(imagenet_oialr.default)


def test_a_small_transformer_has_the_rates_of_its_width() -> None:
    """Of a network of another kind they stay what they are."""
    for options, factor in (
        ({"small": True}, 16),
        ({"small": True, "network": "resnet-rs-101"}, 1),
        ({"small": True, "architecture": "deep"}, 1),
    ):
        made = recipe(imagenet_oialr, **options)
        assert settings(made)["lr"] == pytest.approx(factor * 1e-3)
        assert isinstance(made.schedule, trainers.Cosine)
        assert (made.schedule.warmup_lr, made.schedule.min_lr) == pytest.approx((factor * 1e-5,) * 2)
        if factor > 1:
            assert isinstance(made.network, ViT) and made.network.head.in_features * factor == 768


def test_batch_norms_are_synchronised_as_the_source_does_where_torch_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trained: list[nn.Module] = []

    def train(model: nn.Module, *parts: Any, **named: Any) -> Any:
        trained.append(model)
        return SimpleNamespace()

    monkeypatch.setattr(trainers, "train", train)
    monkeypatch.setattr(nn.Module, "to", lambda self, *where, **how: self)  # there is no GPU here
    monkeypatch.setattr(memory, "available_bytes", lambda device, ranks: 2**40)
    deep = {"architecture": "deep"}

    def synchronised(ranks: int = 8, device: str = "cuda:0", group: Any = None, **options: Any) -> bool:
        task = imagenet_oialr.make_task(small=True, network="resnet-rs-101", **options)
        parts = SimpleNamespace(
            train=range(4), validation=None, listing=SimpleNamespace(classes=8, train=None)
        )
        monkeypatch.setattr(type(task.options), "training_set", lambda *_: None)
        task.fit(task.default, parts, ranks=ranks, device=device, group=group)
        return any(isinstance(module, nn.SyncBatchNorm) for module in trained.pop().modules())

    assert synchronised() and synchronised(method="ddp") and synchronised(**deep)
    assert not synchronised(device="cpu") and not synchronised(ranks=1) and not synchronised(method="daso")
    assert not synchronised(group=SimpleNamespace(size=lambda: 4))  # a fold's


@pytest.mark.parametrize("network", ["vit-b-16", "resnet-50"])
def test_ab_is_that_of_tables_a_6_to_a_8(network: Any) -> None:
    options = imagenet_ab.Options(network=network)
    assert (options.most_epochs, options.samples_a_step) == (150, 4096)
    assert (options.size.side, options.size.evaluation_side) == (224, 224)
    made = recipe(imagenet_ab, network=network)
    assert (made.label_smoothing, made.clip_norm) == (0.1, 1.0)
    assert settings(made)["lr"] == 0.0035
    assert settings(made)["weight_decay"] == (0.1 if network == "vit-b-16" else 0.01)
    assert made.schedule == TimmCosine(warmup_epochs=10)
    assert parameters(made.network) == {"vit-b-16": 86_567_656, "resnet-50": 25_557_032}[network]
    dropouts = [one.p for one in made.network.modules() if isinstance(one, nn.Dropout)]
    assert set(dropouts) == ({0.0} if network == "vit-b-16" else {0.1})
    for batch_size, row in imagenet_ab.STEPS[network].items():
        chosen = imagenet_ab.Options(network=network, batch_size=batch_size)
        p = imagenet_ab.space.validate(imagenet_ab.default(chosen))
        method = methods.make("ab", p, ranks=16, group_size=chosen.ranks_of_a_group)
        assert isinstance(method, trainers.AB)
        parts = (method.warmup_steps, method.ab_steps, method.rebound_steps, method.lr_rebound_steps)
        assert tuple(round(float(one or 0) * 150 * row[4]) for one in parts) == row[:4]
        assert (method.sigma_cutoff, method.group_size) == (0.15, 4)
    rare = imagenet_ab.default(imagenet_ab.Options(network=network, batch_size=1000))
    assert rare == imagenet_ab.default(options)


def test_daso_is_that_of_table_3_2() -> None:
    options = imagenet_daso.Options()
    assert (options.most_epochs, options.samples_a_step, options.warmup_epochs) == (90, 32 * 32, 5)
    made = recipe(imagenet_daso)
    found = settings(made)
    assert (found["lr"], found["momentum"], found["weight_decay"]) == (pytest.approx(0.4), 0.9, 1e-4)
    schedule = made.schedule
    assert isinstance(schedule, trainers.ReduceOnPlateau)
    assert (schedule.warmup_epochs, schedule.patience, schedule.factor) == (5, 5, 0.5)
    assert schedule.warmup_lr == pytest.approx(0.1)
    assert parameters(made.network) == 25_557_032 and made.label_smoothing == 0.0
    assert settings(recipe(imagenet_daso, batch_size=4096))["lr"] == pytest.approx(1.6)


# Data


def test_small_without_data_makes_images_up_once(tmp_path: Path) -> None:
    task = imagenet_ab.make_task(small=True)
    assert not (tmp_path / "runs").exists()
    parts = task.options.parts()
    assert (len(parts.train), len(parts.held), parts.listing.classes) == (576, 192, 8)
    assert len(parts.test) == 8 * 96
    made = tmp_path / "runs" / "made-up" / "imagenet-96-seed-0"
    before = made.stat().st_mtime_ns
    assert imagenet_ab.make_task(small=True).options.parts().train.tolist() == parts.train.tolist()
    assert made.stat().st_mtime_ns == before
    for part in (task.options.training_set(parts, 0), parts.validation, parts.test):
        image, label = part[0]
        assert image.shape == (3, 32, 32) and 0 <= int(label) < 8


def options(data: Path, **others: Any) -> ImageNetOptions:
    made: ImageNetOptions = imagenet_ab.make_task(data=str(data), **others).options
    return made


def test_a_part_of_the_training_images_is_set_apart(tmp_path: Path) -> None:
    data = stand_ins.imagenet(tmp_path / "data", classes=20, trained=10)
    chosen = options(data, classes=20, validation_part=0.1, train_samples=150)
    parts: ImageNetParts = chosen.parts()
    assert (len(parts.train), len(parts.held)) == (150, 20)
    assert not {*parts.train.tolist()} & {*parts.held.tolist()}
    # The same ones, however many are trained with.
    assert options(data, classes=20, validation_part=0.1).parts().held.tolist() == parts.held.tolist()
    chosen = options(data, classes=20, folds=4, train_samples=160)
    whole = chosen.parts()
    assert whole.validation is None and len(whole.train) == 160
    held = []
    for index in range(4):
        fold = chosen.of_fold(whole, Fold(index=index, folds=4))
        assert not {*fold.train.tolist()} & {*fold.held.tolist()}
        held += fold.held.tolist()
    assert sorted(held) == sorted(whole.train.tolist())


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, r"^data = .*20 classes.* 1000\..*classes = 20"),
        ({"small": True, "classes": 8}, r"^data = .*20 classes.* 8\."),
        ({"classes": 20, "train_samples": 37}, "^train_samples = 37: .*36"),
        ({"classes": 20, "validation_part": 0.001}, "^validation_part = 0.001: .*40"),
        ({"classes": 20, "augmentation": "crop"}, "^augmentation = 'crop': "),
        ({"classes": 20, "group_size": 0}, "^group_size = 0: "),
        ({"data": ""}, "^data = '': "),
        ({"data": "nowhere"}, "^data = 'nowhere': "),
        ({"data": "."}, "folders of classes"),
    ],
)
def test_data_that_do_not_fit_are_refused(tmp_path: Path, given: dict[str, Any], sentence: str) -> None:
    data = stand_ins.imagenet(tmp_path / "data", classes=20)
    # Data of one's own have any number of classes if they are for a small run.
    assert options(data, small=True).parts().listing.classes == 20
    with pytest.raises(hpo.UsageError, match=sentence):
        imagenet_ab.make_task(**{"data": str(data), "validation_part": 0.1, **given})
