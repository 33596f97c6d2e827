"""ImageNet's two forms: what is accepted, what is refused and how, and that both give the same samples."""

from __future__ import annotations

import io
import os
import pickle
import random
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat

from search_spaces.building_blocks.data_sets.imagenet_images import (
    AUGMENTATIONS,
    DEVIATION,
    MEAN,
    ImageNet,
    centred,
    cropped,
)
from search_spaces.readers import imagenet
from search_spaces.readers.imagenet_files import listing
from search_spaces.readers.pictures import decoded

Listing = imagenet.Listing


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    imagenet.write_made_up(tmp_path / "folders", classes=3, trained=4, tested=2)
    return tmp_path / "folders"


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    imagenet.write_made_up(tmp_path / "shards", form="shards", classes=3, trained=4, tested=2)
    return tmp_path / "shards"


def listed(data: Path) -> Listing:
    listing.list_images.cache_clear()
    return imagenet.list_images(data, data.parent / "lists")


def samples(found: Listing, **how: object) -> ImageNet:
    given = {"side": 24, "augmentation": AUGMENTATIONS["rand-augment"], "random_interpolation": True, **how}
    return ImageNet(found.train, np.arange(len(found.train)), **given)  # type: ignore[arg-type]


def test_folders_and_shards_of_the_same_images_are_the_same_samples(folders: Path, shards: Path) -> None:
    one, other = listed(folders), listed(shards)
    assert one.classes == other.classes == 3
    assert one.class_names == ("n01440764", "n01440774", "n01440784") and other.class_names == ()
    assert one.train.classes.tolist() == other.train.classes.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert len(one.validation) == len(other.validation) == 6
    for how in ({}, {"augmentation": None}):
        pairs = zip(samples(one, **how), samples(other, **how), strict=True)
        assert all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in pairs)
    assert "n01440764_train_00000.JPEG" in one.train.describe(0)
    assert other.train.describe(0).endswith("imagenet-train-000000.tar: n01440764_train_00000.jpg")


def test_shards_in_one_folder_are_told_apart_by_their_names(shards: Path, tmp_path: Path) -> None:
    flat = tmp_path / "flat"
    flat.mkdir()
    for shard in shards.rglob("*.tar"):
        shutil.copy(shard, flat)
    assert len(listed(flat).train) == 12 and len(listed(flat).validation) == 6


@pytest.mark.parametrize("form", ["kaggle", "names", "devkit"])
def test_a_flat_validation_part_is_read_by_its_list(folders: Path, form: str) -> None:
    expected = listed(folders).validation
    truth = [(Path(os.fsdecode(expected.names[i])), int(expected.classes[i])) for i in range(len(expected))]
    wnids = sorted(path.name for path in (folders / "train").iterdir())
    val, said = folders / "val", []
    # In an order in which classes alternate, as published.
    for number, (path, label) in enumerate(sorted(truth, key=lambda one: one[0].name[::-1])):
        name = f"ILSVRC2012_val_{number:08d}"
        os.rename(folders / path, val / f"{name}.JPEG")
        said.append((name, label))
    for wnid in wnids:
        (val / wnid).rmdir()
    with pytest.raises(FileNotFoundError, match=r"LOC_val_solution.csv, val.txt or ILSVRC2012_validation"):
        listed(folders)
    if form == "kaggle":
        lines = "".join(f"{name},{wnids[label]} 1 2 3 4 \n" for name, label in said)
        (folders / "LOC_val_solution.csv").write_text("ImageId,PredictionString\n" + lines)
    elif form == "names":
        (val / "val.txt").write_text("".join(f"{name}.JPEG {wnids[label]}\n" for name, label in said))
    else:
        # Numbers of the devkit are from 1, and not in the order of the names.
        ids = {0: 3, 1: 1, 2: 2}
        devkit = folders / "ILSVRC2012_devkit_t12" / "data"
        devkit.mkdir(parents=True)
        (devkit / "ILSVRC2012_validation_ground_truth.txt").write_text(
            "".join(f"{ids[label]}\n" for _, label in said)
        )
        with pytest.raises(FileNotFoundError, match=r"meta\.mat is not there: it says what"):
            listed(folders)
        kind = [("ILSVRC2012_ID", "O"), ("WNID", "O"), ("num_children", "O")]
        rows = [(float(ids[label]), wnids[label], 0.0) for label in ids] + [(1001.0, "n00001740", 3.0)]
        savemat(devkit / "meta.mat", {"synsets": np.array(rows, dtype=kind)[:, None]})
    found = listed(folders).validation
    assert len(found) == 6
    for i in range(6):
        stem = Path(os.fsdecode(found.names[i])).stem
        assert dict(said)[stem] == found.classes[i]


def test_the_list_is_made_once_and_again_when_files_come(
    folders: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(listed(folders).train) == 12
    assert "listing its images, once" in capsys.readouterr().err
    with monkeypatch.context() as patch:
        patch.setattr(listing.folders, "listed", lambda *_: pytest.fail("listed again"))
        assert len(listed(folders).train) == 12
    assert not capsys.readouterr().err
    content = (folders / "train" / "n01440764" / "n01440764_train_00000.JPEG").read_bytes()
    (folders / "train" / "n01440764" / "more.jpg").write_bytes(content)
    (folders / "train" / "n01440764" / "._more.jpg").write_bytes(b"")
    (folders / "train" / "n01440764" / "notes.txt").write_bytes(b"")
    os.utime(folders / "train" / "n01440764", ns=(1, 1))
    assert len(listed(folders).train) == 13
    for path in (folders.parent / "lists").glob("*.npz"):
        path.write_bytes(b"PK\3\4" + path.read_bytes()[4:40])
    with pytest.raises(ValueError, match=r"is damaged .* Remove it: it is made again"):
        listed(folders)


def test_folders_that_are_not_whole_are_refused(folders: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"has neither folders of classes in .* nor shards for train"):
        listed(folders / "train")
    emptied = folders / "train" / "n01440774"
    for image in emptied.iterdir():
        image.unlink()
    with pytest.raises(ValueError, match=r"n01440774 has no images .* remove the class from both parts"):
        listed(folders)
    emptied.rmdir()
    with pytest.raises(ValueError, match=r"train has no folder n01440774, and the other part has"):
        listed(folders)
    shutil.rmtree(folders / "val")
    with pytest.raises(FileNotFoundError, match="and no folder val or validation"):
        listed(folders)


def packed(path: Path, *members: tuple[str, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([("a.jpg", b"x")], r"more\.tar: has a\.jpg, and no cls of that name"),
        ([("a.cls", b"1")], r"more\.tar: has a\.cls, and no jpg of that name"),
        ([("a.jpg", b"x"), ("a.cls", b"cat")], r"a\.cls must be the number of a class, from 0, and is 'cat'"),
        ([("a.jpg", b"x"), ("a.cls", b"4")], r"shards for train have no images of class 3, and"),
    ],
)
def test_shards_that_are_not_as_they_must_be_are_refused(
    shards: Path, members: list[tuple[str, bytes]], message: str
) -> None:
    packed(shards / "train" / "more.tar", *members)
    with pytest.raises(ValueError, match=message):
        listed(shards)


def test_what_else_a_shard_has_is_not_read(shards: Path) -> None:
    content = [("f/a.json", b"{}"), ("f/a.jpg", b"x"), ("f/a.cls", b"1\n"), ("b.txt", b"")]
    packed(shards / "train" / "more.tar", *content)
    assert listed(shards).train.classes.tolist().count(1) == 5


@pytest.mark.parametrize("keeps", [0, 300, 3000])
def test_a_shard_that_is_cut_short_is_refused(shards: Path, keeps: int) -> None:
    shard = next((shards / "train").iterdir())
    os.truncate(shard, keeps)
    with pytest.raises(ValueError, match=r"000000\.tar is (no whole tar file|damaged, or cut short).* Copy"):
        listed(shards)


@pytest.mark.parametrize("damaged", [False, True])
def test_a_shard_that_ends_between_two_images_is_refused(shards: Path, damaged: bool) -> None:
    shard = next((shards / "train").iterdir())
    with tarfile.open(shard) as whole:
        third = whole.getmembers()[4].offset
    with open(shard, "r+b") as file:
        file.seek(third)
        if damaged:
            file.write(b"\xff" * 512)
        else:
            file.truncate()
    with pytest.raises(ValueError, match=rf"000000\.tar is damaged, .* byte {third}\. Copy or download"):
        listed(shards)


def test_a_shard_that_would_be_of_both_parts_is_refused(shards: Path) -> None:
    for path in (*(shards / "train").iterdir(), *(shards / "val").iterdir()):
        path.rename(shards / f"trainval-{path.name}")
    with pytest.raises(ValueError, match=r"trainval.*\.tar has both train and val in its name"):
        listed(shards)


def test_a_shard_cut_short_after_it_was_listed_is_an_error(shards: Path) -> None:
    found = listed(shards)
    os.truncate(next((shards / "train").iterdir()), 3000)
    with pytest.raises(ValueError, match=r"000000\.tar is cut short, or not what it was"):
        [found.train.read(image) for image in range(12)]


@pytest.mark.parametrize("damage", ["cut", "other", "empty"])
def test_an_image_that_is_damaged_is_an_error_with_its_name(folders: Path, damage: str) -> None:
    path = folders / "train" / "n01440774" / "n01440774_train_00001.JPEG"
    content = path.read_bytes()
    path.write_bytes({"cut": content[: len(content) // 2], "other": b"<html>" * 99, "empty": b""}[damage])
    found = samples(listed(folders))
    assert len([found[index] for index in range(5)]) == 5
    with pytest.raises(ValueError, match=r"n01440774_train_00001\.JPEG is no whole image .* or remove it"):
        found[5]


def test_grey_and_four_coloured_images_become_three_coloured(folders: Path) -> None:
    place = folders / "train" / "n01440764"
    for name, mode in (("a.jpg", "L"), ("b.jpg", "CMYK")):
        Image.new(mode, (30, 20)).save(place / name)
    Image.new("RGBA", (30, 20)).save(place / "c.PNG")
    found = listed(folders).train
    assert {decoded(found.read(image), str).mode for image in range(len(found))} == {"RGB"}


def test_the_middle_is_evaluated() -> None:
    pixels = np.zeros((300, 400, 3), dtype=np.uint8)
    pixels[:, 100:300] = 255
    image = centred(Image.fromarray(pixels), 224, 0.875)
    assert image.size == (224, 224)
    # 300 pixels become 256; of the 341 in the other direction the middle 224 are left, 171 of them white.
    assert np.abs(np.asarray(image)[112, :, 0].astype(int) // 128).sum() == pytest.approx(171, abs=1)
    tall = centred(Image.fromarray(pixels.transpose(1, 0, 2)), 224, 0.875)
    assert np.asarray(tall)[:, 112, 0].tolist() == np.asarray(image)[112, :, 0].tolist()


def test_windows_are_of_the_scale_that_is_asked_for() -> None:
    draw, areas = random.Random(0), []
    y, x = np.mgrid[:96, :128].astype(np.uint8)
    image = Image.fromarray(np.stack([x, y, y * 0], axis=2))
    for _ in range(200):
        found = np.asarray(cropped(image, 32, (0.08, 1.0), draw, Image.Resampling.BILINEAR)).astype(float)
        width, height = np.ptp(found[:, :, 0]), np.ptp(found[:, :, 1])
        areas.append(width * height / (96 * 128))
    assert 0.03 < min(areas) < 0.1 and 0.6 < max(areas) <= 1.0
    # A strip has no window of such sides: its middle.
    strip = cropped(image.crop((0, 0, 128, 9)), 32, (1.0, 1.0), draw, Image.Resampling.BILINEAR)
    assert np.ptp(np.asarray(strip)[:, :, 0].astype(float)) == pytest.approx(11, abs=1)


def test_samples_depend_on_seed_and_epoch_alone(folders: Path) -> None:
    found = listed(folders)
    one, other = samples(found, seed=1), pickle.loads(pickle.dumps(samples(found, seed=1)))
    assert torch.equal(one[3][0], other[3][0])
    other.set_epoch(1)
    assert not torch.equal(one[3][0], other[3][0])
    assert not torch.equal(one[3][0], samples(found, seed=2)[3][0])
    # The same image, at another place of a part of the set, looks the same.
    part = ImageNet(
        found.train, np.array([7, 3]), side=24, augmentation=AUGMENTATIONS["rand-augment"],
        random_interpolation=True, seed=1,
    )  # fmt: skip
    assert torch.equal(part[1][0], one[3][0]) and len(part) == 2


def test_pixels_are_normalised(tmp_path: Path) -> None:
    for part in ("train", "val"):
        (tmp_path / "grey" / part / "a").mkdir(parents=True)
        Image.new("RGB", (40, 40), (255, 0, 255)).save(tmp_path / "grey" / part / "a" / "1.png")
    (image, label) = samples(listed(tmp_path / "grey"), augmentation=None)[0]
    expected = [(one - mean) / deviation for one, mean, deviation in zip((1, 0, 1), MEAN, DEVIATION)]
    assert image.mean(dim=(1, 2)).tolist() == pytest.approx(expected, rel=1e-5)
    assert image.dtype == torch.float32 and label.dtype == torch.int64


def test_more_shards_than_a_process_keeps_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "_MOST_OPEN", 2)
    for part in ("train", "val"):
        (tmp_path / "many" / part).mkdir(parents=True)
        for number in range(5):
            content = str(number).encode()
            packed(
                tmp_path / "many" / part / f"{number}.tar",
                (f"{number}.jpg", content),
                (f"{number}.cls", b"0"),
            )
    files = listed(tmp_path / "many").train
    for order in ([0, 1, 2, 3, 4], [4, 0, 2, 0, 1]):
        assert [files.read(image) for image in order] == [str(image).encode() for image in order]
        assert len(files._opened) == 2


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert imagenet.main(["make-up", str(tmp_path / "data"), "--shards"]) == 0
    assert imagenet.main(["check", str(tmp_path / "data"), "--list", str(tmp_path / "lists")]) == 0
    assert "768 images to train with, 768 to test with, 8 classes" in capsys.readouterr().out
    assert imagenet.main(["make-up", str(tmp_path / "data")]) == 1
    assert imagenet.main(["check", str(tmp_path / "none"), "--list", str(tmp_path / "lists")]) == 1
    assert "is not empty" in (error := capsys.readouterr().err) and "Traceback" not in error
