from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import cases
from stand_ins import bigearthnet as made_store
from torch.utils.data import TensorDataset

import hpo
from search_spaces import bigearthnet
from search_spaces.building_blocks import patch_task
from search_spaces.building_blocks.recipe_parts import losses, optimizers
from search_spaces.networks.residual import ACTIVATIONS, ORDERS
from search_spaces.readers.bigearthnet_files.format import CLASSES

SPACE = bigearthnet.make_space(8)
FAST: dict[str, Any] = {"small": True, "epochs": 1, "batch_size": 16}


def patches(count: int, seed: int) -> TensorDataset:
    """Patches of 32×32 whose band b is bright where class b is there, of four; the other classes never are."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.zeros(count, len(CLASSES))
    targets[:, :4] = (torch.rand(count, 4, generator=generator) < 0.5).float()
    images = torch.randn(count, 12, 32, 32, generator=generator)
    images[:, :4] += 3 * targets[:, :4, None, None]
    return TensorDataset(images, targets)


PARTS = {"train": patches(64, 0), "validation": patches(16, 1), "test": patches(16, 2)}


@pytest.fixture(autouse=True)
def _own_patches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patch_task, "_part", lambda options, name: PARTS[name])


def trial(params: dict[str, Any], directory: Path) -> hpo.Trial:
    return hpo.Trial.alone(params, directory=directory)


def default(**values: Any) -> dict[str, Any]:
    return {**bigearthnet.default_for(8), **values}


def test_the_choices_are_those_that_can_be_built_and_the_default_is_a_point(tmp_path: Path) -> None:
    space = bigearthnet.make_space()
    choices = {name: getattr(one, "choices", None) for name, one in space.parameters.items()}
    assert choices["activation"] == tuple(ACTIVATIONS)
    assert len(ACTIVATIONS) == 12
    assert choices["order"] == ORDERS
    assert choices["loss"] == tuple(losses.LOSSES)
    assert choices["optimizer"] == optimizers.OPTIMIZERS
    assert choices["schedule"] == optimizers.SCHEDULES
    assert (space.parameters["filters"].low, space.parameters["filters"].high) == (2, 256)  # type: ignore[attr-defined]
    for data in ("", str(made_store(tmp_path / "store"))):
        task = bigearthnet.make_task(data=data, small=not data)
        assert task.space.validate(task.default or {}) == task.default
        assert task.objectives == {"value": "maximize"}


# Every decodable configuration builds and trains: none is refused by a constraint. Random ones, nightly a hundred.
@pytest.mark.parametrize("seed", cases(range(3), nightly=range(3, 10)))
def test_random_configurations_train_or_diverge(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    task = bigearthnet.make_task(**FAST)
    for number in range(4):
        params = SPACE.decode(SPACE.sample(rng))
        found = task.evaluate(trial(params, tmp_path / str(number)))
        assert set(found) == {"value", "epochs", *patch_task.PatchTask.recorded}
        assert 0 <= found["value"] <= 1 or math.isnan(found["value"])


def test_training_finds_the_classes(tmp_path: Path) -> None:
    task = bigearthnet.make_task(**{**FAST, "epochs": 12})
    watched = trial(default(lr=0.01), tmp_path)
    found = task.evaluate(watched)
    assert found["value"] > 0.8
    # Fifteen of 19 classes are never there.
    assert found["macro_f1"] == pytest.approx(sum(found[f"f1/{name}"] for name in CLASSES) / 19, abs=1e-6)
    assert found[f"f1/{CLASSES[18]}"] == 0
    assert watched.last_report is not None
    (tested,) = task.tests(default(lr=0.01), seeds=[0])
    assert {"test", "test_macro_f1", "validation"} <= set(tested)


def test_training_ends_ten_epochs_after_the_best_validation_loss(tmp_path: Path) -> None:
    # A rate so small that rounding leaves the network as it is: only the running statistics move, then settle.
    params = default(lr=1e-5, final_fraction=1e-3)
    found = bigearthnet.make_task(**{**FAST, "epochs": 200, "batch_size": 64}).evaluate(
        trial({**params, "optimizer": "adam"}, tmp_path)
    )
    assert 10 < found["epochs"] < 200
