"""BigEarthNet's file for training: made from an archive, through any death; read; verified."""

from __future__ import annotations

import errno
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import DataLoader, Subset

pytest.importorskip("rasterio", reason="needs the extra bigearthnet")

import hpo
from search_spaces import bigearthnet, readers
from search_spaces.building_blocks import patch_task
from search_spaces.building_blocks.data_sets.patch_images import Grid, PatchImages
from search_spaces.readers.bigearthnet import load_bigearthnet, main
from search_spaces.readers.bigearthnet_archive import made_up_store, make_archive
from search_spaces.readers.bigearthnet_archive import main as make
from search_spaces.readers.bigearthnet_files import convert as converting
from search_spaces.readers.bigearthnet_files import processes
from search_spaces.readers.bigearthnet_files.convert import convert, verify
from search_spaces.readers.bigearthnet_files.format import BANDS, CLASSES, MEAN_AND_DEVIATION, SIDES, Version
from search_spaces.readers.bigearthnet_files.processes import in_processes
from search_spaces.readers.bigearthnet_files.sources import open_archive
from search_spaces.readers.bigearthnet_files.store import PATCH, Layout
from trainers.data.batches import in_order
from trainers.data.loader import Loader

PATCHES = 24
PATCH_BYTES = 2 * sum(side**2 for side in SIDES.values())


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("archive")
    make_archive(root, patches=PATCHES, processes=1, show=False)
    return root


@pytest.fixture(scope="module")
def store(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store")
    convert(archive, path, processes=1, show=False)
    return path


@pytest.fixture
def own(store: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(store, tmp_path / "own"))


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(converting, "_CHUNK", 5)


def all_names(path: Path) -> set[str]:
    return {
        name for split in ("train", "validation", "test") for name in load_bigearthnet(path, split).names()
    }


def contents(path: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in path.iterdir()}


# --- what is read -------------------------------------------------------------------------------------------


def reference(
    bands: dict[str, np.ndarray], version: Version, chosen: tuple[str, ...], size: int
) -> np.ndarray:
    """One patch on one grid, the slow way; sizes that divide, or are multiples of, each band's."""
    image = []
    for band in chosen:
        native, side = bands[band].astype(np.float64), SIDES[band]
        if size >= side:
            on_grid = native.repeat(size // side, 0).repeat(size // side, 1)
        else:
            on_grid = native.reshape(size, side // size, size, side // size).mean((1, 3))
        mean, deviation = MEAN_AND_DEVIATION[version][band]
        image.append((on_grid - mean) / deviation)
    return np.array(image)


@pytest.mark.parametrize(
    ("size", "bands"), [(120, None), (60, None), (20, ("B02", "B05", "B01")), (120, ("B8A", "B09"))]
)
def test_items_are_the_archives_patches(
    archive: Path, store: Path, size: int, bands: tuple[str, ...] | None
) -> None:
    opened = open_archive(archive)
    read = load_bigearthnet(store, "validation", bands=bands)
    samples = PatchImages(read, size=size)
    patches = {patch.name: patch for patch in opened.patches if patch.split == "validation"}
    assert read.names() == list(patches)
    assert len(samples) == len(read) == PATCHES // 4
    assert read.bands == (bands or BANDS)
    assert read.classes == CLASSES
    for name, (image, target) in zip(read.names(), samples, strict=True):
        sample = opened.reader.read(patches[name])
        expected = reference(dict(sample.bands), "v2", bands or BANDS, size)
        assert image.dtype == target.dtype == torch.float32
        torch.testing.assert_close(image.double(), torch.from_numpy(expected), rtol=1e-5, atol=1e-4)
        assert target.nonzero().flatten().tolist() == list(sample.classes)


def test_bilinear_upsampling_keeps_a_gradient_straight() -> None:
    """A ramp stays one between the outer pixels' centres; nearest gives steps."""
    ramp = torch.arange(0, 600, 10, dtype=torch.int32).to(torch.uint16).repeat(1, 60)
    layout, (_, deviation) = Layout(version="v2", bands=("B05",)), MEAN_AND_DEVIATION["v2"]["B05"]
    grids = {
        kind: deviation * Grid(layout, ["B05"], upsampling=kind)(ramp)[0, 0, 7]
        for kind in ("nearest", "bilinear")
    }
    assert grids["bilinear"][1:-1].diff().tolist() == pytest.approx([5.0] * 117, rel=1e-3)
    assert grids["nearest"].diff().tolist() == pytest.approx([0.0, 10.0] * 59 + [0.0], rel=1e-3)


def test_the_trainers_get_images_of_what_is_read(store: Path) -> None:
    samples = PatchImages(load_bigearthnet(store, "train", bands=["B04", "B01"]), size=60)
    stored, _ = samples.read_batch([3])
    assert (stored.dtype, stored.shape) == (torch.uint16, (1, 120**2 + 20**2))
    with Loader(Subset(samples, [3, 1, 2]), device=torch.device("cpu"), processes=0) as loader:
        ((images, targets),) = loader.batches(in_order(range(3), batch_size=3))
    expected = samples.images([3, 1, 2])
    assert torch.equal(images, expected[0])  # type: ignore[arg-type]
    assert torch.equal(targets, expected[1])  # type: ignore[arg-type]
    assert np.array_equal(samples.patches.targets()[[3, 1, 2]], targets)


@pytest.mark.parametrize("folds", [0, 2])
def test_training_on_the_file_is_training_on_what_is_in_memory(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folds: int
) -> None:
    params = {**bigearthnet.default_for(), "filters": 2}
    found = []
    for in_memory_bytes in (0, 2**30):
        monkeypatch.setattr(patch_task, "_IN_MEMORY_BYTES", in_memory_bytes)
        patch_task._part.cache_clear()
        task = bigearthnet.make_task(data=str(store), epochs=1, batch_size=6, folds=folds)
        result = task.evaluate(hpo.Trial.alone(params, directory=tmp_path / str(in_memory_bytes)))
        found.append(
            {
                name: value
                for name, value in result.items()
                if not name.removesuffix("_deviation").endswith("_s")
            }
        )
    patch_task._part.cache_clear()
    assert found[0]["train_loss"] > 0
    assert found[0] == found[1]


def test_small_trains_on_small_images_of_made_up_patches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patch_task, "_MADE_UP_PATCHES", 8)
    parts = bigearthnet.Options(small=True, data=str(tmp_path)).parts()
    assert [len(part) for part in (parts.train, parts.validation, parts.test)] == [4, 2, 2]
    assert parts.train[0][0].shape == (12, 32, 32)


def test_splits_and_some_patches_of_them(store: Path) -> None:
    parts = {split: load_bigearthnet(store, split).names() for split in ("train", "validation", "test")}
    assert [len(names) for names in parts.values()] == [12, 6, 6]
    assert len(set().union(*parts.values())) == PATCHES
    few, more = (load_bigearthnet(store, "train", patches=count).names() for count in (4, 9))
    assert len(few) == 4
    assert set(few) < set(more) < set(parts["train"])
    assert few == load_bigearthnet(store, "train", patches=4).names()
    assert few != parts["train"][:4]  # drawn from all of it


def test_it_pickles_without_its_pixels_and_several_processes_read_it(store: Path) -> None:
    samples = PatchImages(load_bigearthnet(store, "train"), size=20)
    alone = samples.images(range(len(samples)))
    assert len(pickle.dumps(samples)) < 10_000
    copied = pickle.loads(pickle.dumps(samples)).images(range(len(samples)))
    loaded = list(DataLoader(samples, batch_size=5, num_workers=2))
    for position in range(2):
        assert torch.equal(alone[position], copied[position])
        assert torch.equal(alone[position], torch.cat([batch[position] for batch in loaded]))


@pytest.mark.parametrize(
    ("split", "options", "value"),
    [
        ("val", {}, "'val'"),
        ("train", {"bands": ["B02", "B10"]}, "B02, B10"),
        ("train", {"bands": ["B02", "B02"]}, "B02, B02"),
        ("train", {"bands": []}, "none"),
        ("test", {"patches": 7}, "7"),
        ("test", {"patches": 0}, "0"),
        ("train", {"size": 0}, "0"),
        ("train", {"size": 240}, "240"),
        ("train", {"upsampling": "cubic"}, "'cubic'"),
    ],
)
def test_wrong_choices_are_refused(store: Path, split: str, options: dict[str, Any], value: str) -> None:
    (option,) = options or ("split",)
    with pytest.raises(ValueError, match=f"{option} = {value}: "):
        if option in ("size", "upsampling"):
            PatchImages(load_bigearthnet(store, split), **options)
        else:
            load_bigearthnet(store, split, **options)


def test_readers_import_no_torch(store: Path) -> None:
    names = [path.stem for path in Path(readers.__path__[0]).glob("*.py")]
    program = (
        "import sys; from importlib import import_module as of\n"
        f"for name in {names}: of('search_spaces.readers.' + name)\n"
        "load = of('search_spaces.readers.bigearthnet').load_bigearthnet\n"
        "assert load(sys.argv[1], 'train', bands=['B05', 'B01']).read([2, 0]).shape == (2, 4000)\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program, store], timeout=60, check=True)


def test_what_the_disk_does_not_give_is_an_error_of_one_sentence(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no signal, which would end the process."""
    samples = load_bigearthnet(own, "train")
    expected = samples.read([0, 1])
    preadv = os.preadv

    def a_part(file: int, buffers: list[memoryview], offset: int, flags: int = 0) -> int:
        if flags and offset % 3:  # not in memory, or no file system that can tell
            raise BlockingIOError
        return preadv(file, [buffers[0][:50_001]], offset)

    monkeypatch.setattr(os, "preadv", a_part)
    assert np.array_equal(samples.read([0, 1]), expected)

    def failing(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "preadv", failing)
    with pytest.raises(OSError, match=r"pixels.npy .* at byte \d+ \(Input/output error\)\. Bring"):
        samples.read([0])
    monkeypatch.setattr(os, "preadv", preadv)
    os.truncate(own / "pixels.npy", 100)
    with pytest.raises(OSError, match=r"ends at byte \d+, .*\. Remove .* begin"):
        samples.read([0])


# --- how it is made -----------------------------------------------------------------------------------------


def test_a_conversion_killed_at_any_point_goes_on(
    archive: Path, store: Path, tmp_path: Path, small_chunks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each of the writes, flushes and renamings, of which some are lost."""

    class Killed(BaseException):
        pass

    out = tmp_path / "out"
    left = 0

    def counted(kept: Any) -> Any:
        def call(*arguments: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:  # nothing is done any more, either
                raise Killed
            return kept(*arguments)

        return call

    monkeypatch.setattr(converting, "_KEPT_EVERY_S", 0.0)
    monkeypatch.setattr(converting, "checksum", counted(converting.checksum))
    for name in ("fsync", "replace"):
        monkeypatch.setattr(os, name, counted(getattr(os, name)))
    deaths = 0
    for allowed in range(100):
        left = allowed
        try:
            convert(archive, out, processes=1, show=False)
        except Killed:
            deaths += 1
            begun = (out / "patches.partial.npy").exists()
            error, told = (ValueError, "not complete") if begun else (FileNotFoundError, "holds no Big")
            with pytest.raises(error, match=told):
                load_bigearthnet(out, "train")
        else:
            break
    assert deaths > 8
    assert contents(out) == contents(store)


def test_a_killed_command_goes_on_and_leaves_no_process(archive: Path, store: Path, tmp_path: Path) -> None:
    archive, out = Path(shutil.copytree(archive, tmp_path / "archive")), tmp_path / "out"
    program = (
        "import sys; from search_spaces.readers import bigearthnet as b\n"
        "from search_spaces.readers.bigearthnet_files import convert as c; c._CHUNK, c._KEPT_EVERY_S = 2, 0.0; "
        "sys.exit(b.main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", program, str(archive), str(out), "--processes", "2"]
    running = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    kept = out / "patches.partial.npy"
    while not (kept.exists() and np.load(kept)["labels"].any()):
        assert running.poll() is None, "it ended before it was killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)
    running.send_signal(signal.SIGSTOP)
    children = psutil.Process(running.pid).children(recursive=True)
    assert len(children) >= 2
    with pytest.raises(ValueError, match="Another process is writing"):
        convert(archive, out, processes=1, show=False)
    running.kill()
    running.wait(10)
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive
    patches = np.load(kept)
    for name in patches["name"][patches["labels"].any(axis=1)].tolist():  # none is read twice
        shutil.rmtree(archive / "BigEarthNet-S2" / name.decode().rsplit("_", 2)[0] / name.decode())
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert f"{out}: 12 train, 6 validation, 6 test patches, 4 MB" in done.stdout
    assert "left out: 1, seasonal snow" in done.stdout
    assert contents(out) == contents(store)


def test_a_patch_that_can_be_read_later_is_added(archive: Path, tmp_path: Path, small_chunks: None) -> None:
    opened = open_archive(archive)
    name = opened.patches[7].name
    (folder,) = (path for path in archive.rglob(name) if path.is_dir())
    path = folder / f"{name}_B03.tif"
    path.rename(folder / "elsewhere")
    try:
        summary = convert(archive, tmp_path / "out", on_error="skip", processes=1, show=False)
    finally:
        (folder / "elsewhere").rename(path)
    assert summary.skipped == {name: f"{name}_B03.tif is missing."}
    assert len(all_names(tmp_path / "out")) == 23
    summary = convert(archive, tmp_path / "out", processes=1, show=False)
    assert not summary.skipped
    assert all_names(tmp_path / "out") == {patch.name for patch in opened.patches}
    assert not verify(tmp_path / "out", show=False)


def test_another_archive_or_other_choices_do_not_go_on(archive: Path, store: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"was begun with the bands B01, .*\. Go on with the same"):
        convert(archive, store, bands=["B02"], processes=1, show=False)
    make_archive(tmp_path / "other", patches=PATCHES, seed=1, processes=1, show=False)
    for other, patches in ((archive, 4), (tmp_path / "other", None)):
        with pytest.raises(ValueError, match=r"holds other patches .*\. Go on with the archive"):
            convert(other, store, patches=patches, processes=1, show=False)
    with pytest.raises(ValueError, match=r"on_error = 'ignore': must be refuse or skip\."):
        convert(archive, store, on_error="ignore")
    assert not verify(store, show=False)


def test_some_bands_and_some_patches(archive: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    summary = convert(archive, out, bands=["B04", "B01"], patches=10, processes=1, show=False)
    assert sum(summary.stored.values()) == 10
    assert summary.left_out["not asked for"] == PATCHES - 10
    assert np.load(out / "pixels.npy").nbytes == 10 * 2 * (120**2 + 20**2)
    samples = load_bigearthnet(out, "train")
    assert samples.bands == ("B04", "B01")
    with pytest.raises(ValueError, match=r"holds the bands B04, B01, not B02\. Ask for those"):
        load_bigearthnet(out, "train", bands=["B02"])
    first = all_names(out)
    more = tmp_path / "more"
    convert(archive, more, bands=["B04", "B01"], patches=15, processes=1, show=False)
    assert first < all_names(more)
    assert len(all_names(more)) == 15


def test_a_disk_that_is_too_small_is_noticed_before(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(OSError, match=r"needs 0\.0 GB, and 0\.0 GB are free\. Make room"):
        convert(archive, tmp_path / "out", processes=1, show=False)
    assert not np.load(tmp_path / "out" / "patches.partial.npy")["labels"].any()


# --- damaged files ------------------------------------------------------------------------------------------


def flip(store: Path, file: str, row: int) -> str:
    """Change a bit of a patch's pixels or labels; returns its name."""
    path = store / file
    name: str = np.load(store / "patches.npy")["name"][row].decode()
    content = bytearray(path.read_bytes())
    if file == "pixels.npy":
        content[-(PATCHES - row) * PATCH_BYTES + 7] ^= 1
    else:
        content[-(PATCHES - row) * PATCH.itemsize + PATCH.fields["labels"][1] + 4] ^= 1  # type: ignore[index]
    path.write_bytes(content)
    return name


def test_damaged_patches_are_found_and_read_again(
    archive: Path, store: Path, own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--verify", str(own)]) == 0
    assert "every patch is whole" in capsys.readouterr().out
    names = {flip(own, "pixels.npy", 2), flip(own, "patches.npy", 5), flip(own, "pixels.npy", PATCHES - 1)}
    assert main(["--verify", str(own)]) == 1
    printed = capsys.readouterr().out
    assert "3 damaged" in printed and all(f"Patch {name}: " in printed for name in names)
    assert set(verify(own, show=False)) == names
    # The archive has lost a damaged patch, too: the others are repaired, and nothing trains with this patch.
    torn, lost = Path(shutil.copytree(archive, tmp_path / "torn")), min(names)
    next(torn.rglob(f"{lost}/*_B02.tif")).write_bytes(b"")
    repair = [str(own), "--processes", "1", "--repair"]
    assert main([str(torn), *repair, "--on-error", "skip"]) == 0
    printed = capsys.readouterr().out
    assert "damaged, and read again: 3" in printed and "skipped: 1," in printed
    assert lost not in all_names(own) and len(all_names(own)) == PATCHES - 1
    assert main([str(archive), *repair]) == 0
    assert "damaged, and read again: 0" in capsys.readouterr().out
    for file in ("pixels.npy", "patches.npy"):
        assert (own / file).read_bytes() == (store / file).read_bytes()
    with pytest.raises(SystemExit):
        main(["--verify", str(own), "--repair"])


HEADER = b"\x93NUMPY\x01\x00v\x00"  # of 118 bytes


def some_bands(path: Path) -> None:
    np.save(path, np.load(path)[["B02", "B03"]])


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("pixels.npy", Path.unlink),
        ("pixels.npy", lambda path: os.truncate(path, 900_000)),
        ("pixels.npy", lambda path: os.truncate(path, path.stat().st_size - 1)),
        ("pixels.npy", some_bands),
        ("patches.npy", lambda path: path.write_bytes(path.read_bytes()[:-1])),
        ("patches.npy", lambda path: path.write_bytes(path.read_bytes() + b" ")),
        ("patches.npy", lambda path: path.write_bytes(path.read_bytes().replace(b"v2", b"v3"))),
        *(
            (file, lambda path, content=content: path.write_bytes(content))
            for file in ("pixels.npy", "patches.npy")
            for content in (
                b"",
                b"my own notes",
                b"\0" * 9999,
                b"\x93NUMPY\x03\x00v\x00" + b" " * 2000,
                HEADER + b" " * 2000,
                HEADER + b"{[".ljust(117) + b"\n",
                HEADER + (b"[" * 117).ljust(2000),
                HEADER + b"{'descr': 7, 'fortran_order': False, 'shape': (3,)}".ljust(2000),
                HEADER + b"{'descr': [(7,)], 'fortran_order': False, 'shape': (3,)}".ljust(2000),
                HEADER + b"{'descr': '|u1', 'fortran_order': False, 'shape': ()}".ljust(2000),
                HEADER + b"{'descr': '|u1', 'fortran_order': False, 'shape': (-3,)}".ljust(2000),
            )
        ),
        # Opening it would run what it says.
        *(
            (file, lambda path: np.save(path, np.array([print] * PATCHES), allow_pickle=True))
            for file in ("pixels.npy", "patches.npy")
        ),
    ],
)
def test_damaged_files_are_refused_and_left_as_they_are(
    archive: Path, own: Path, capsys: pytest.CaptureFixture[str], file: str, damage: Callable[[Path], object]
) -> None:
    damage(own / file)
    before = contents(own)
    for arguments in (["--verify", str(own)], [str(archive), str(own), "--processes", "1"]):
        assert main(arguments) == 1
        error = capsys.readouterr().err
        assert error.startswith(f"{own / file} is damaged: ") and error.endswith(
            f"Remove {own} and begin again.\n"
        )
    with pytest.raises(ValueError, match=f"{file} is damaged"):
        load_bigearthnet(own, "train")
    assert contents(own) == before


def test_pixels_without_names_are_kept(archive: Path, own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (own / "patches.npy").unlink()
    before = contents(own)
    assert main([str(archive), str(own), "--processes", "1"]) == 1
    assert f"{own} has pixels.npy without names" in capsys.readouterr().err
    assert contents(own) == before


def test_a_place_that_cannot_be_written(
    archive: Path,
    store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def error_of(out: Path) -> str:
        assert main([str(archive), str(out), "--processes", "1"]) == 1
        return capsys.readouterr().err

    file = tmp_path / "file"
    file.write_text("mine")
    for out in (file, file / "out"):
        assert f"{out} cannot be made a directory (" in error_of(out)
        assert make([str(out), "--patches", "4"]) == 1
        capsys.readouterr()
    assert file.read_text() == "mine"
    (tmp_path / "out" / "patches.partial.npy").mkdir(parents=True)
    assert error_of(tmp_path / "out").startswith(
        f"{tmp_path / 'out' / 'patches.partial.npy'} cannot be read ("
    )

    sync = os.fsync
    # A full disk at the first two flushes.
    for before, name in enumerate(("patches.partial.npy", "pixels.npy")):
        left = before

        def full(file: int) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            sync(file)

        monkeypatch.setattr(os, "fsync", full)
        path = tmp_path / f"{name}-{before}" / name
        assert f"{path} cannot be written (No space left on device)." in error_of(path.parent)
        monkeypatch.setattr(os, "fsync", sync)
        convert(archive, path.parent, processes=1, show=False)
        assert contents(path.parent) == contents(store)


def test_a_bad_sector_is_damage(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = os.preadv
    place = (own / "pixels.npy").stat().st_size - (PATCHES - 4) * PATCH_BYTES

    def failing(file: int, buffers: list[memoryview], offset: int, flags: int = 0) -> int:
        if offset == place:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(file, buffers, offset, flags)

    monkeypatch.setattr(os, "preadv", failing)
    assert verify(own, show=False) == [np.load(own / "patches.npy")["name"][4].decode()]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["nowhere", "out"], 1, "nowhere is no directory"),
        (["--verify", "nowhere"], 1, "nowhere holds no BigEarthNet"),
        (["only"], 2, "ARCHIVE and OUT"),
        (["a", "b", "--verify"], 2, "ARCHIVE and OUT"),
        (["a", "b", "--processes", "0"], 2, "--processes 0: must be "),
        (["ARCHIVE", "out", "--bands", "B2"], 1, "bands = B2: must be "),
        (["ARCHIVE", "out", "--patches", "0"], 1, "patches = 0: must be "),
        (["ARCHIVE", "out", "--patches", "999"], 1, f"patches = 999: the lists name {PATCHES}"),
        (["ARCHIVE", "ARCHIVE"], 1, "which holds the archive itself"),
        (["ARCHIVE", "ARCHIVE/BigEarthNet-S2"], 1, "which holds the archive itself"),
        (["ARCHIVE", "ARCHIVE/BigEarthNet-S2/.."], 1, "which holds the archive itself"),
    ],
)
def test_wrong_commands_are_refused(
    archive: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(archive.rglob("*"))
    try:
        found = main([argument.replace("ARCHIVE", str(archive)) for argument in arguments])
    except SystemExit as ended:
        found = ended.code  # type: ignore[assignment]
    assert found == code
    assert words in capsys.readouterr().err
    assert sorted(archive.rglob("*")) == before


# --- work shared by processes, and made-up stores -------------------------------------------------------------


def test_progress_is_shown_a_line_a_minute(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr(processes.time, "monotonic", lambda: now)
    for show, expected in ((True, ["4/20", "10/20", "16/20"]), (False, [])):
        with processes.shown("patches", 20, done=2, show=show) as advance:
            for _ in range(9):
                now += 20.0
                advance(2)
        lines = capsys.readouterr().err.splitlines()
        assert [line.split()[2] for line in lines] == expected
        assert all(line.startswith("patches ") for line in lines)


def test_a_process_that_dies_is_an_error() -> None:
    with pytest.raises(ChildProcessError, match="A process that shared the work was killed"):
        list(in_processes(os._exit, [3, 3], processes=2))


def test_those_who_come_at_once_get_one_made_up_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from search_spaces.readers import bigearthnet_archive as module

    made: list[Path] = []
    make = module.make_archive

    def counted(path: Path, **options: Any) -> None:
        made.append(path)
        make(path, **options)

    monkeypatch.setattr(module, "make_archive", counted)
    got: list[Path] = []
    threads = [
        threading.Thread(
            target=lambda: got.append(made_up_store(tmp_path, patches=8, processes=1, show=False))
        )
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(got) == 3
    assert len(set(got)) == len(made) == 1
    assert len(load_bigearthnet(got[0], "train")) == 4
    assert {path.name for path in tmp_path.iterdir()} == {got[0].name, f".{got[0].name}.lock"}
    assert made_up_store(tmp_path, patches=8) == got[0]
    assert len(made) == 1
