"""Cityscapes' folders: what is listed and what is refused, and crops of scenes with their masks."""

from __future__ import annotations

import random
import shutil
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from search_spaces.building_blocks.data_sets.street_scenes import StreetScenes, cropped
from search_spaces.readers.cityscapes import CLASSES, IDS, IGNORED, Scenes, list_scenes
from search_spaces.readers.made_up_scenes import SCENES, write_made_up


@pytest.fixture(scope="module")
def made_up(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scenes") / "made-up"
    write_made_up(path)
    return path


@pytest.fixture
def copied(made_up: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made_up, tmp_path / "cityscapes"))


def listed(root: Path, part: Any = "train") -> Scenes:
    list_scenes.cache_clear()
    return list_scenes(root, part, root.parent / "lists")


def test_masks_have_the_numbers_of_the_benchmarks_classes(copied: Path) -> None:
    mask = copied / "gtFine/train/traintown0/traintown0_000000_000019_gtFine_labelIds.png"
    Image.fromarray(np.arange(64 * 128, dtype=np.int64).reshape(64, 128).astype(np.uint8) % 34).save(mask)
    found = np.asarray(listed(copied).mask(0)).ravel()
    names = dict(zip(IDS, CLASSES, strict=True))
    assert (names[7], names[11], names[26], names[33]) == ("road", "building", "car", "bicycle")
    for identity in range(34):
        expected = CLASSES.index(names[identity]) if identity in names else IGNORED
        assert set(found[np.arange(64 * 128) % 256 % 34 == identity]) == {expected}


def test_the_numbers_of_a_palette_count_and_not_its_colours(copied: Path) -> None:
    mask = Image.new("P", (128, 64), 26)
    mask.putpalette([3 * value % 256 for value in range(768)])
    mask.save(copied / "gtFine/train/traintown0/traintown0_000000_000019_gtFine_labelIds.png")
    assert set(np.asarray(listed(copied).mask(0)).ravel()) == {CLASSES.index("car")}


def test_a_list_is_kept_until_files_are_removed(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = listed(copied)
    assert len(before) == 8 * SCENES and before.size == (64, 128)
    assert Counter(before.cities.tolist()) == dict.fromkeys(range(8), SCENES)
    with monkeypatch.context() as patched:
        patched.setattr("search_spaces.readers.cityscapes.decoded", None)  # nothing is decoded again
        assert np.array_equal(listed(copied).centres, before.centres)
    assert not [entry for entry in warnings.filters if entry[2] is Image.DecompressionBombWarning]
    for path in copied.glob("*/train/traintown3"):
        shutil.rmtree(path)
    (
        copied / "leftImg8bit/train/traintown1/._traintown1_leftImg8bit.png"
    ).touch()  # as macOS unpacks archives
    assert len(listed(copied)) == 7 * SCENES


def test_centres_are_those_of_a_class_in_a_tile(copied: Path) -> None:
    ids = np.zeros((64, 128), np.uint8)
    ids[10:13, 20:31] = IDS[11]  # person: rows 10 to 12, columns 20 to 30
    ids[40:61, 100:105] = IDS[11]
    Image.fromarray(ids).save(copied / "gtFine/val/valtown0/valtown0_000000_000019_gtFine_labelIds.png")
    centres = listed(copied, "val").centres
    assert centres[centres[:, 0] == 0].tolist() == [[0, 11, 11, 25], [0, 11, 50, 102]]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def other_size(path: Path) -> None:
    Image.new("L" if "gtFine" in path.name else "RGB", (64, 64)).save(path)


def other_ids(path: Path) -> None:
    Image.new("L", (128, 64), 255).save(path)


def coloured(path: Path) -> None:
    Image.new("RGB", (128, 64)).save(path)


IMAGE = "leftImg8bit/train/traintown1/traintown1_000002_000019_leftImg8bit.png"
MASK = "gtFine/train/traintown1/traintown1_000002_000019_gtFine_labelIds.png"


@pytest.mark.parametrize(
    ("path", "change", "rule"),
    [
        (IMAGE, Path.unlink, "is missing"),
        (MASK, Path.unlink, "is missing"),
        (IMAGE, cut, "no whole PNG"),
        (MASK, cut, "no whole PNG"),
        (IMAGE, other_size, "64 × 64"),
        (MASK, other_size, "64 × 64"),
        (MASK, other_ids, "labelIds"),
        ("gtFine/train/traintown1", shutil.rmtree, "is missing"),
        ("leftImg8bit/train/traintown1", shutil.rmtree, "is missing"),
        (MASK, coloured, "RGB"),
        ("leftImg8bit/train", shutil.rmtree, "Unpack"),
    ],
)
def test_what_is_missing_or_damaged_is_named_before_the_start(
    copied: Path, path: str, change: Any, rule: str
) -> None:
    change(copied / path)
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        listed(copied)
    assert str(copied / path) in str(caught.value) and rule in str(caught.value)


def test_coarse_scenes_are_listed_beside_fine_ones(copied: Path) -> None:
    images, masks = copied / "leftImg8bit/train_extra/far", copied / "gtCoarse/train_extra/far"
    shutil.copytree(copied / "leftImg8bit/val/valtown0", images)
    shutil.copytree(copied / "gtFine/val/valtown0", masks)
    for mask in masks.iterdir():
        mask.rename(mask.with_name(mask.name.replace("gtFine", "gtCoarse")))
    fine, coarse = listed(copied), listed(copied, "coarse")
    both = fine.with_others(coarse)
    assert len(both) == len(fine) + SCENES and len(set(both.cities.tolist())) == 9
    assert np.array_equal(np.asarray(both.mask(len(fine) + 3)), np.asarray(coarse.mask(3)))
    assert np.array_equal(both.centres[len(fine.centres) :, 1:], coarse.centres[:, 1:])
    assert both.centres[-1, 0] == len(both) - 1


def test_a_crop_shows_the_same_pixels_of_image_and_mask() -> None:
    classes = np.repeat(np.arange(16, dtype=np.uint8).reshape(2, 8), 32, axis=0).repeat(
        16, axis=1
    )  # (64, 128)
    image, mask = Image.fromarray(np.stack([10 * classes] * 3, axis=2)), Image.fromarray(classes)
    mirrored = smaller = 0
    for seed in range(60):
        shown, kept = (np.asarray(one) for one in cropped(image, mask, (32, 48), None, random.Random(seed)))
        assert shown.shape == (32, 48, 3) and kept.shape == (32, 48)
        counted = kept != IGNORED
        # Away from borders, where resizing mixes colours.
        inside = counted & np.roll(counted, 3, 0) & np.roll(counted, -3, 0)
        far = np.abs(shown[..., 0].astype(int) - 10 * kept.astype(int)) > 5
        assert (far & inside).mean() < 0.35 and (~far & inside).any()
        mirrored += bool((np.diff(kept[16][counted[16]].astype(int)) < 0).any())
        smaller += bool(not counted.all())
    assert 15 < mirrored < 45 and smaller == 0
    for seed in range(20):
        _, kept = (np.asarray(one) for one in cropped(image, mask, (64, 128), None, random.Random(seed)))
        smaller += bool((kept == IGNORED).any())
    assert smaller > 3  # a scene scaled down does not fill its crop


def test_a_crop_around_a_centre_shows_it() -> None:
    classes = np.zeros((64, 128), np.uint8)
    classes[5:8, 120:124] = 11
    image, mask = Image.new("RGB", (128, 64)), Image.fromarray(classes)
    for seed in range(40):
        _, kept = cropped(image, mask, (32, 32), (6, 122), random.Random(seed))
        assert 11 in np.asarray(kept)


def test_crops_are_as_often_of_rare_classes_and_depend_on_seed_and_epoch(made_up: Path) -> None:
    scenes = listed(made_up)
    places = np.flatnonzero(scenes.cities < 6)
    data = StreetScenes(scenes, places, crop=(32, 64))
    data.set_epoch(1)
    first = [one for one in data._drawn if one[1] is not None]
    present = {number for scene, number, _, _ in scenes.centres.tolist() if scene in places}
    assert len(first) == len(present) * int(0.5 * len(places) / len(present)) and len(data._drawn) == len(
        places
    )
    assert {scene for scene, _ in data._drawn} <= set(places.tolist())
    images, masks = data.read_batch(torch.arange(4))
    assert images.dtype == masks.dtype == torch.uint8 and images.shape == (4, 3, 32, 64)
    again = StreetScenes(scenes, places, crop=(32, 64))
    again.set_epoch(1)
    assert torch.equal(again.read_batch([0, 1, 2, 3])[0], images)
    again.set_epoch(2)
    assert not torch.equal(again.read_batch([0, 1, 2, 3])[0], images)
    normalised, _ = data.on_device(images, masks)
    assert torch.allclose(normalised[0], data[0][0]) and abs(float(normalised.mean())) < 2
