from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import cases
from gloo import run_ranks
from places import JOBS
from resuming import in_two_pieces
from stand_ins import bigearthnet as made_store
from torch.utils.data import TensorDataset

import hpo
from hpo.config.reader import read_file
from search_spaces import bigearthnet
from search_spaces.building_blocks import patch_task
from search_spaces.building_blocks.recipe_parts import losses, optimizers
from search_spaces.building_blocks.recipe_parts.f1 import f1_metrics
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
    monkeypatch.setattr(patch_task, "_part", lambda data, name, **size: PARTS[name])


def trial(params: dict[str, Any], directory: Path) -> hpo.Trial:
    return hpo.Trial.alone(params, directory=directory)


def default(**values: Any) -> dict[str, Any]:
    return {**bigearthnet.default_for(8), **values}


def test_the_space_is_read_without_torch() -> None:
    code = "import sys, search_spaces.bigearthnet as b; b.make_task(small=True); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


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
    for number in range(10):
        params = SPACE.decode(SPACE.sample(rng))
        found = task.evaluate(trial(params, tmp_path / str(number)))
        assert isinstance(found, dict)
        assert set(found) == {"value", "epochs", *patch_task.RECORDED}
        assert 0 <= found["value"] <= 1 or math.isnan(found["value"])


def test_a_run_that_diverges_is_no_result(tmp_path: Path) -> None:
    params = default(optimizer="sgd", lr=1e30, momentum=0.9, nesterov=False)
    del params["beta1"], params["beta2"], params["epsilon"]
    found = bigearthnet.make_task(**FAST).evaluate(trial(params, tmp_path))
    assert isinstance(found, dict)
    assert math.isnan(found["value"])


def test_training_finds_the_classes(tmp_path: Path) -> None:
    task = bigearthnet.make_task(**{**FAST, "epochs": 15})
    watched = trial(default(lr=0.01), tmp_path)
    found = task.evaluate(watched)
    assert isinstance(found, dict)
    assert found["value"] > 0.8
    # Fifteen of 19 classes are never there.
    assert found["macro_f1"] == pytest.approx(sum(found[f"f1/{name}"] for name in CLASSES) / 19, abs=1e-6)
    assert found[f"f1/{CLASSES[18]}"] == 0
    assert watched.last_report is not None


def test_scores_by_hand() -> None:
    logits = torch.full((3, 19), -1.0)
    targets = torch.zeros(3, 19)
    # Class 0: two right, one missed. Class 1: one right, one too many.
    targets[:, 0] = 1
    logits[:2, 0] = 1
    targets[0, 1] = 1
    logits[:2, 1] = 1
    found = {name: metric(logits, targets) for name, metric in f1_metrics(CLASSES).items()}
    assert found["micro_f1"] == pytest.approx(2 * 3 / (2 * 3 + 1 + 1))
    assert found[f"f1/{CLASSES[0]}"] == pytest.approx(4 / 5)
    assert found[f"f1/{CLASSES[1]}"] == pytest.approx(2 / 3)
    assert found["macro_f1"] == pytest.approx((4 / 5 + 2 / 3) / 19)


def test_training_ends_ten_epochs_after_the_best_validation_loss(tmp_path: Path) -> None:
    # A rate so small that rounding leaves the network as it is: only the running statistics move, then settle.
    params = default(lr=1e-5, final_fraction=1e-3)
    found = bigearthnet.make_task(**{**FAST, "epochs": 200, "batch_size": 64}).evaluate(
        trial({**params, "optimizer": "adam"}, tmp_path)
    )
    assert isinstance(found, dict)
    assert 10 < found["epochs"] < 200


@pytest.mark.parametrize("optimizer", ["adam", "ftrl"])
def test_an_interrupted_evaluation_goes_on(optimizer: str, tmp_path: Path) -> None:
    params = SPACE.decode(SPACE.encode({**default(), "optimizer": optimizer}))
    in_two_pieces(bigearthnet.make_task(**{**FAST, "epochs": 3}), params, tmp_path, steps=3)


def evaluated(rank: int, directory: str) -> dict[str, float]:
    patch_task._part = lambda data, name, **size: PARTS[name]  # type: ignore[assignment]
    both = hpo.Trial.alone(default(lr=0.01), directory=directory, rank=rank, size=2)
    found = bigearthnet.make_task(**{**FAST, "epochs": 4}).evaluate(both)
    assert isinstance(found, dict)
    return found


def test_two_ranks_share_the_work_and_agree(tmp_path: Path) -> None:
    one, other = run_ranks(2, evaluated, str(tmp_path), timeout_s=100)
    assert one["value"] == other["value"] > 0.3
    assert one["train_loss"] == other["train_loss"]
    assert one["bytes_inside_nodes"] > 0


def test_the_search_never_reads_the_test_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        patch_task, "_part", lambda data, name, **size: {**PARTS, "test": TensorDataset()}[name]
    )
    bigearthnet.make_task(**FAST).evaluate(trial(default(), tmp_path))
    with pytest.raises(Exception):  # noqa: B017
        bigearthnet.test_f1(default(), seeds=[0], **FAST)


def test_a_test_has_the_macro_f1_beside_the_micro_f1(monkeypatch: pytest.MonkeyPatch) -> None:
    task = bigearthnet.make_task(**{**FAST, "epochs": 4})
    (found,) = task.tests(default(lr=0.01), seeds=[3])
    model, result = task.fit(default(lr=0.01), seed=3)
    images, targets = PARTS["test"].tensors
    with torch.no_grad():
        there = model.eval()(images) > 0
    each = []
    for of_class, right in zip(there.T, targets.T > 0, strict=True):
        hits, either = int((of_class & right).sum()), int(of_class.sum() + right.sum())
        each.append(2 * hits / either if either else 0.0)
    assert found["test_macro_f1"] == pytest.approx(sum(each) / len(CLASSES)) != found["test"]
    assert found["validation"] == result.metrics["micro_f1"]


def test_one_configuration_from_a_file_is_tested(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "best.json"
    path.write_text(json.dumps([{"id": "0-0-1", "value": 0.5, "params": default(lr=0.01)}]))
    arguments = ["--small", "--epochs", "1", "--batch-size", "16", "--config", str(path)]
    made = tmp_path / "model.safetensors"
    code = bigearthnet.main([*arguments, "--export", str(made)])
    found = json.loads(capsys.readouterr().out)
    assert code == 0
    assert 0 <= found["test"] <= 1
    assert made.exists()


def test_data_that_is_not_there_is_refused_before_anything_starts() -> None:
    with pytest.raises(hpo.UsageError, match=r"data = 'nowhere': is not there\. Name what python -m"):
        bigearthnet.make_task(data="nowhere")


@pytest.mark.parametrize("name", ["bigearthnet", "bigearthnet_islands", "bigearthnet_small"])
def test_campaign_files_fit_the_task(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made_store(tmp_path / "data" / "bigearthnet")
    settings = read_file(JOBS / f"{name}.toml")
    campaign = hpo.Campaign.from_file(JOBS / f"{name}.toml")
    campaign.check()
    if settings.island:
        # Together the islands have every optimizer.
        homes = [settings.search_of(island).only["optimizer"] for island in range(settings.layout.islands)]
        assert {one for home in homes for one in home} == set(optimizers.OPTIMIZERS)
