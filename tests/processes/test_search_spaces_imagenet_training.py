"""The campaigns on ImageNet train through, from either form of the same images."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import cases
from gloo import run_ranks
from PIL import Image

import hpo
from search_spaces import imagenet_oialr
from search_spaces.readers.imagenet import write_made_up

FAST: dict[str, Any] = {"small": True, "epochs": 2, "batch_size": 4}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("imagenet_ab", {"network": "resnet-50"}),
    ("imagenet_oialr", {"network": "resnet-rs-101", "method": "ab"}),
    ("imagenet_daso", {"warmup_epochs": 1, "cooldown_epochs": 0, "ranks_per_node": 1, "steps_on_link": 8.0}),
]


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_made_up(tmp_path / "folders", classes=3, trained=12, tested=4)
    return tmp_path / "folders"


def trained(rank: int, data: str, lists: str, root: str) -> list[Any]:
    torch.set_num_threads(1)
    results = []
    for number, (name, options) in enumerate(CASES):
        module = importlib.import_module(f"search_spaces.{name}")
        task = module.make_task(**FAST, **options, data=data, lists=lists)
        trial = hpo.Trial.alone(task.default, directory=f"{root}/{number}", rank=rank, size=2, seed=number)
        results.append(task.evaluate(trial))
    return results


def test_two_ranks_train_by_each_campaign(folders: Path, tmp_path: Path) -> None:
    first, second = run_ranks(2, trained, str(folders), str(tmp_path / "lists"), str(tmp_path / "runs"))
    for one, other in zip(first, second, strict=True):
        assert one["train_loss"] == other["train_loss"] and math.isfinite(one["train_loss"])
    assert [0 <= one.get("value", one.get("accuracy")) <= 1 for one in first] == [True] * 3
    assert first[2]["steps"] > 2 * 7


def test_folders_and_shards_train_alike(folders: Path, tmp_path: Path) -> None:
    write_made_up(tmp_path / "shards", form="shards", classes=3, trained=12, tested=4)
    found = []
    for data in ("folders", "shards"):
        task = imagenet_oialr.make_task(**FAST, data=data)
        trial = hpo.Trial.alone(task.default or {}, directory=tmp_path / f"run-{data}")
        result = task.evaluate(trial)
        assert result["trainable_fraction"] < 0.9
        found.append([result["value"], result["train_loss"], result["validation_loss"]])
        found[-1] += [one["test"] for one in task.tests(task.default or {}, seeds=[0])]
    assert found[0] == found[1]


@pytest.mark.parametrize("damage", cases(["torn"], nightly=["another format", "huge"]))
def test_a_damaged_image_ends_the_training_with_its_name(
    folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    if damage == "huge":
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10**6)
    for path in sorted((folders / "train" / "n01440774").iterdir()):
        if damage == "torn":
            path.write_bytes(path.read_bytes()[:300])
        elif damage == "another format":  # of which Pillow has many, and EPS starts another program
            Image.new("RGB", (40, 40)).save(path, format="BMP")
        else:
            Image.new("RGB", (1500, 1000)).save(path, format="PNG")
    task = imagenet_oialr.make_task(**FAST, data=str(folders), loader_processes=1)
    with pytest.raises((ValueError, hpo.UsageError), match=r"n01440774_train_000\d\d\.JPEG is no"):
        task.evaluate(hpo.Trial.alone(task.default or {}, directory=tmp_path / "run"))
