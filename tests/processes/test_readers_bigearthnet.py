"""BigEarthNet's archives: real patches, synthetic patches, and damaged files, each refused by name or skipped."""

from __future__ import annotations

import bz2
import json
import os
import shutil
import signal
import sys
import tarfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from cases import cases

pytest.importorskip("rasterio", reason="needs the extra bigearthnet")
pytest.importorskip("lmdb", reason="needs the extra bigearthnet")

import lmdb
import made_up_v1
import pyarrow
import rasterio
from pyarrow import parquet
from safetensors.numpy import save

from search_spaces.readers.bigearthnet import main
from search_spaces.readers.bigearthnet_archive import main as make
from search_spaces.readers.bigearthnet_archive import make_archive
from search_spaces.readers.bigearthnet_files import convert as converting
from search_spaces.readers.bigearthnet_files import lmdb_reader
from search_spaces.readers.bigearthnet_files.convert import CLASSLESS, convert
from search_spaces.readers.bigearthnet_files.format import (
    BANDS,
    CLASS_OF_43,
    CLASSES,
    MEAN_AND_DEVIATION,
    SIDES,
    Sample,
    Version,
)
from search_spaces.readers.bigearthnet_files.lists import CLOUD, SNOW, Patch
from search_spaces.readers.bigearthnet_files.scenes import made_up_patch
from search_spaces.readers.bigearthnet_files.sources import UNLISTED, open_archive

PATCHES = 12


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """v1 and v2 of the same patches."""
    root = tmp_path_factory.mktemp("made")
    make_archive(root / "v2", patches=PATCHES, processes=1, show=False)
    made_up_v1.write(root / "v2", root / "v1")
    return root


@pytest.fixture(scope="module")
def rico(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """v2 as rico-hdl writes it, with another sensor's patches in between."""
    root = tmp_path_factory.mktemp("rico") / "BigEarthNet-V2-LMDB"
    archive = open_archive(made / "v2")
    with lmdb.open(str(root), map_size=2**28) as environment, environment.begin(write=True) as transaction:
        for patch in archive.patches:
            transaction.put(patch.name.encode(), save(dict(archive.reader.read(patch).bands)))
            radar = {"VV": np.zeros((120, 120), np.float32)}
            transaction.put(patch.name.replace("S2", "S1").encode(), save(radar))
    for table in made.glob("v2/*.parquet"):
        shutil.copy(table, root.parent)
    return root


@pytest.fixture
def copied(made: Path, rico: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Copy of an archive, "v1", "v2" or "rico"."""

    def copy(form: str) -> Path:
        if form == "rico":
            return Path(shutil.copytree(rico.parent, tmp_path / "rico")) / rico.name
        return Path(shutil.copytree(made / form, tmp_path / form))

    return copy


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Exit code of the command with its output, or its error."""

    def run(*arguments: object) -> tuple[int, str]:
        code = main([str(argument) for argument in (*arguments, "--processes", 1)])
        printed = capsys.readouterr()
        return code, printed.err if code else printed.out

    return run


Command = Callable[..., tuple[int, str]]


# --- the real ones ------------------------------------------------------------------------------------------


def test_classes_are_the_published_ones() -> None:
    constants = pytest.importorskip("bigearthnet_common.constants")
    assert dict(CLASS_OF_43) == constants.OLD2NEW_LABELS_DICT
    assert list(CLASSES) == list(constants.NEW_LABELS)
    for band, statistics in MEAN_AND_DEVIATION["v1"].items():
        published = constants.BAND_STATS_S2
        assert statistics == pytest.approx((published["mean"][band], published["std"][band]), abs=0.06)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six patches of v1 as they are on disk."""
    package = Path(pytest.importorskip("bigearthnet_common").__file__).parent
    root = tmp_path_factory.mktemp("real")
    with tarfile.open(package / "BigEarthNet-S2-Example.tar.bz2") as file:
        # Pythons before 3.10.12 and 3.11.4 have no filter and need none: it is the package's own archive.
        file.extractall(root, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return root / "BigEarthNet-S2-Example"


# Looked up in their files by hand: 43-class labels, converted; means of some bands.
REAL = {
    "S2A_MSIL2A_20170613T101031_87_48": (
        ("Arable land", CLASSES[10]),
        {"B01": 535.34, "B02": 619.556667, "B08": 3623.964167, "B09": 3742.0475, "B12": 1603.925556},
    ),
    "S2A_MSIL2A_20170617T113321_4_55": (("Pastures",), {}),
    "S2B_MSIL2A_20170924T93020_69_24": (
        ("Coniferous forest", "Inland waters", "Inland wetlands", "Mixed forest", CLASSES[17]),
        {},
    ),
}


def test_real_patches_of_v1(real: Path, tmp_path: Path) -> None:
    names = sorted(path.name for path in real.iterdir() if path.is_dir())
    for split, part in {"train": names[:3], "val": names[3:4], "test": names[4:]}.items():
        (tmp_path / f"{split}.txt").write_text("\n".join(part))
    archive = open_archive(real, lists=tmp_path)
    assert Counter(patch.split for patch in archive.patches) == {"train": 3, "validation": 1, "test": 2}
    assert not archive.missing
    assert not archive.left_out
    for patch in archive.patches:
        sample = archive.reader.read(patch)
        assert {band: pixels.shape for band, pixels in sample.bands.items()} == {
            band: (side, side) for band, side in SIDES.items()
        }
        labels, means = REAL.get(patch.name, (None, {}))
        if labels is not None:
            assert [CLASSES[i] for i in sample.classes] == sorted(labels)
        for band, mean in means.items():
            assert sample.bands[band].mean() == pytest.approx(mean)


def test_the_official_lists_of_v1(real: Path) -> None:
    """As bigearthnet-common ships them: compressed, a patch a line. Few of those patches are here."""
    package = Path(pytest.importorskip("bigearthnet_common").__file__).parent
    archive = open_archive(real, lists=package)
    assert Counter(patch.split for patch in archive.patches) == {
        "train": 269_695,
        "validation": 123_723,
        "test": 125_866,
    }
    assert archive.left_out == {SNOW: 61_707, CLOUD: 9_280}
    here = {path.name for path in real.iterdir()}
    listed = {patch.name for patch in archive.patches}
    assert set(archive.missing) == listed - here
    assert listed & here


# --- the made-up ones ---------------------------------------------------------------------------------------


def read_all(root: Path, lists: Path | None = None) -> dict[str, Sample]:
    archive = open_archive(root, lists=lists)
    return {patch.name: archive.reader.read(patch) for patch in archive.patches}


def same(a: Sample, b: Sample) -> bool:
    return a.classes == b.classes and all(np.array_equal(a.bands[band], b.bands[band]) for band in BANDS)


def test_all_forms_hold_the_same_patches(made: Path, rico: Path) -> None:
    v1, v2, packed = read_all(made / "v1"), read_all(made / "v2"), read_all(rico)
    rows = parquet.read_table(made / "v2" / "metadata.parquet").to_pylist()
    assert len(v1) == len(v2) == len(packed) == len(rows) == PATCHES
    for number, row in enumerate(rows):
        classes, bands = made_up_patch(number, seed=0, veiled=False)
        expected = Sample(bands=bands, classes=classes)
        assert same(expected, v2[row["patch_id"]])
        assert same(expected, packed[row["patch_id"]])
        assert same(expected, v1[row["s2v1_name"]])


def test_made_up_files_are_like_the_real_ones(made: Path, real: Path) -> None:
    def described(folder: Path) -> tuple[Any, ...]:
        files = {}
        for path in folder.glob("*.tif"):
            with rasterio.open(path) as file:
                assert file.crs.is_projected
                profile = {key: file.profile[key] for key in ("driver", "dtype", "width", "height", "count")}
                files[path.stem.removeprefix(folder.name)] = profile, file.res, file.transform.f % 20
        content = json.loads((folder / f"{folder.name}_labels_metadata.json").read_text())
        return files, {key: type(value) for key, value in content.items()}, sorted(content["coordinates"])

    ours = next(path for path in (made / "v1").iterdir() if path.is_dir())
    theirs = next(path for path in real.iterdir() if path.is_dir())
    assert described(ours) == described(theirs)


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_what_the_lists_leave_out_is_counted(made: Path, version: str) -> None:
    archive = open_archive(made / version)
    assert Counter(patch.split for patch in archive.patches) == {"train": 6, "validation": 3, "test": 3}
    expected = {SNOW: 1, CLOUD: 1}
    assert archive.left_out == (expected | {UNLISTED: 1} if version == "v1" else expected)


def test_a_patch_without_any_of_the_19_classes_is_left_out(
    copied: Callable[[str], Path], tmp_path: Path
) -> None:
    v1 = copied("v1")
    archive = open_archive(v1)
    listed = {patch.name for patch in archive.patches}
    # The one folder of no list; the official lists leave such ones out, a user's own may not.
    lists = "".join(path.read_text() for path in v1.glob("*.csv"))
    (name,) = (path.name for path in v1.iterdir() if path.is_dir() and path.name not in lists)
    assert name not in listed
    with open(v1 / "train.csv", "a") as file:
        file.write(f"{name}\n")
    summary = convert(v1, tmp_path / "store", processes=1, show=False)
    assert summary.left_out == {SNOW: 1, CLOUD: 1, CLASSLESS: 1}
    assert not summary.skipped
    assert sum(summary.stored.values()) == PATCHES


@pytest.mark.parametrize(("option", "value"), [("patches", 3), ("patches", 30_001), ("directory", None)])
def test_the_synthetic_archive_refuses_what_it_cannot_be(tmp_path: Path, option: str, value: object) -> None:
    (tmp_path / "mine").write_text("precious")
    directory = tmp_path if option == "directory" else tmp_path / "new"
    options: dict[str, Any] = {} if option == "directory" else {option: value}
    with pytest.raises((ValueError, FileExistsError)) as refused:
        make_archive(directory, **options)
    assert (str(directory) if value is None else f"{option} = {value!r}: must be ") in str(refused.value)
    assert make([str(tmp_path)]) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


# --- damaged patches ----------------------------------------------------------------------------------------


def write_tiff(path: Path, pixels: np.ndarray) -> None:
    count, height, width = pixels.shape
    with rasterio.open(
        path, "w", driver="GTiff", width=width, height=height, count=count, dtype=pixels.dtype, crs="EPSG:32633",
        transform=rasterio.Affine(10, 0, 300_000, 0, -10, 5_400_000),
    ) as file:  # fmt: skip
        file.write(pixels)


def write_tiff_that_fits_no_memory(path: Path) -> None:
    with rasterio.open(
        path, "w", driver="GTiff", width=900_000, height=900_000, count=1, dtype="uint16", SPARSE_OK=True,
        tiled=True, blockxsize=4096, blockysize=4096, BIGTIFF="YES",
        transform=rasterio.Affine(60, 0, 300_000, 0, -60, 5_400_000),
    ):  # fmt: skip
        pass


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


# Form, file of the patch, its damage, and words of the reason beside the file or band.
FileDamage = tuple[str, str, Callable[[Path], object], str]
LABELS = "labels_metadata.json"
FILE_DAMAGES: list[FileDamage] = cases(
    [
        ("v2", "B05.tif", Path.unlink, "is missing"),
        ("v2", "B02.tif", cut, "is damaged"),
        ("v2", "B09.tif", lambda path: write_tiff(path, np.zeros((1, 60, 60), np.uint16)), "60×60"),
        ("v2", "B11.tif", lambda path: write_tiff(path, np.zeros((2, 60, 60), np.uint16)), "2 bands"),
        ("v2", "B01.tif", write_tiff_that_fits_no_memory, "900000×900000"),
        ("v1", LABELS, cut, "is damaged"),
        ("v1", LABELS, lambda path: path.write_text('{"labels": [7]}'), "label 7"),
        ("v1", LABELS, lambda path: path.write_text('{"labels": ["Pastures", "Lawn"]}'), "'Lawn'"),
    ],
    nightly=[
        ("v2", "B12.tif", lambda path: path.write_bytes(b""), "is damaged"),
        ("v1", "B01.tif", lambda path: path.write_bytes(b"x" * 999), "is damaged"),
        ("v2", "B8A.tif", lambda path: write_tiff(path, np.zeros((1, 60, 60), np.float32)), "float32"),
        ("v1", LABELS, Path.unlink, "is missing"),
        *(
            ("v1", LABELS, lambda path, content=content: path.write_text(content), words)
            for content, words in (
                ("[]", "is damaged"),
                ("[" * 100_000, "is damaged"),
                ('{"labels": "Pastures"}', "no list"),
                ('{"labels": ["Arable land"]}', "'Arable land'"),
                ('{"labels": [["Foo"]]}', "['Foo']"),
            )
        ),
    ],
)


@pytest.mark.parametrize(("form", "file", "damage", "words"), FILE_DAMAGES)
def test_a_damaged_patch_is_named_and_refused_or_skipped(
    copied: Callable[[str], Path],
    command: Command,
    tmp_path: Path,
    form: str,
    file: str,
    damage: Callable[[Path], object],
    words: str,
) -> None:
    root, out = copied(form), tmp_path / "store"
    name = open_archive(root).patches[4].name
    (path,) = root.rglob(f"{name}_{file}")
    damage(path)
    code, error = command(root, out)
    assert code == 1 and error.startswith(f"Patch {name}: ") and words in error
    assert error.endswith("or pass --on-error skip.\n")
    assert not (out / "patches.npy").exists()
    code, printed = command(root, out, "--on-error", "skip")
    assert code == 0 and "skipped: 1," in printed and f"{name}: " in printed and words in printed
    assert np.load(out / "patches.npy")["labels"].any(axis=1).sum() == PATCHES - 1


@pytest.mark.parametrize("lost", [1, 2, 5])
@pytest.mark.parametrize("form", ["v1", "v2"])
def test_a_half_extracted_archive_is_noticed_before_anything_is_read(
    copied: Callable[[str], Path], command: Command, tmp_path: Path, form: str, lost: int
) -> None:
    root = copied(form)
    names = [patch.name for patch in open_archive(root).patches[:lost]]
    for name in names:
        for folder in root.rglob(name):
            shutil.rmtree(folder)
    code, error = command(root, tmp_path / "store")
    assert code == 1 and error.startswith(f"Patch {names[0]}: its folder is missing")
    assert lost == 1 or f"{lost - 1} other" in error
    assert not np.load(tmp_path / "store" / "patches.partial.npy")["labels"].any()
    assert set(convert(root, tmp_path / "store", on_error="skip", processes=1, show=False).skipped) == set(
        names
    )


# --- rico-hdl's LMDB ----------------------------------------------------------------------------------------


def number_that_numpy_lacks() -> bytes:
    header = json.dumps({"B02": {"dtype": "F8_E4M3", "shape": [2], "data_offsets": [0, 2]}}).encode()
    return len(header).to_bytes(8, "little") + header + b"\0\0"


def test_damaged_values_of_an_lmdb_are_skipped(copied: Callable[[str], Path], tmp_path: Path) -> None:
    root = copied("rico")
    gone, torn, bare, other = (patch.name for patch in open_archive(root).patches[:4])
    with lmdb.open(str(root), map_size=2**28) as environment, environment.begin(write=True) as transaction:
        transaction.delete(gone.encode())
        transaction.put(torn.encode(), transaction.get(torn.encode())[:1000])
        transaction.put(bare.encode(), save({"B02": np.zeros((120, 120), np.uint16)}))
        transaction.put(other.encode(), number_that_numpy_lacks())
    skipped = convert(root, tmp_path / "store", on_error="skip", processes=1, show=False).skipped
    for name, words in ((gone, "not in"), (torn, "safetensors"), (bare, "B01, B03"), (other, "safetensors")):
        assert words in skipped.pop(name)
    assert not skipped


@pytest.mark.parametrize("damage", ["page", "length", "all pages"])
def test_a_patch_that_lmdb_cannot_find_is_named(
    copied: Callable[[str], Path], command: Command, tmp_path: Path, damage: str
) -> None:
    root = copied("rico")
    path, name = root / "data.mdb", open_archive(root).patches[0].name.encode()
    content = bytearray(path.read_bytes())
    # In a leaf, the name lies between the length of the value and the number of its page.
    at = content.find(name)
    assert at >= 0
    while at >= 0:
        if damage == "page":
            content[at + len(name) : at + len(name) + 8] = b"\xff" * 8
        elif damage == "length":
            content[at - 6] = 0x11
        at = content.find(name, at + 1)
    for start in range(8192, len(content), 4096) if damage == "all pages" else ():
        if content[start + 10] in (1, 2):  # branches and leaves
            content[start + 10 : start + 4096] = b"\xa5" * 4086
    path.write_bytes(content)
    code, error = command(root, tmp_path / "out")
    assert code == 1 and error.startswith(f"Patch {name.decode()}: ") and str(path) in error
    if damage != "all pages":
        code, printed = command(root, tmp_path / "out", "--on-error", "skip")
        assert code == 0 and "skipped: 1," in printed


@pytest.mark.parametrize("left", [900_000, 8192, 5000, None])
def test_a_file_that_is_no_whole_lmdb_is_refused_before_anything_starts(
    copied: Callable[[str], Path], command: Command, tmp_path: Path, left: int | None
) -> None:
    root = copied("rico")
    path = root / "data.mdb"
    if left is None:
        path.write_bytes(b"x" * 8192)
    else:
        os.truncate(path, left)
    code, error = command(root, tmp_path / "out", "--on-error", "skip")
    assert code == 1 and str(root) in error and error.endswith("Bring it again, whole.\n")
    assert left is None or f"has {left} bytes" in error
    assert not (tmp_path / "out").exists()


@dataclass(frozen=True)
class Dying:
    """Reader whose memory map ends early."""

    version: Version = "v2"
    mapped: ClassVar[bool] = True

    def read(self, patch: Patch, bands: Sequence[str] = ()) -> Any:
        signal.raise_signal(signal.SIGBUS)

    def present(self) -> set[str] | None:
        return None


def test_a_memory_map_kills_no_more_than_a_process_of_its_own(
    made: Path, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = replace(open_archive(made / "v2"), reader=Dying())
    monkeypatch.setattr(converting, "open_archive", lambda path, lists: opened)
    code, error = command(made / "v2", tmp_path / "out")
    assert code == 1 and error.startswith(f"{made / 'v2'}: A process that shared the work was killed")


# --- damaged lists ------------------------------------------------------------------------------------------

EXAMPLE = b"S2A_MSIL2A_20170613T101031_87_48"


def rows_changed(path: Path, change: Callable[[list[dict[str, Any]]], object]) -> None:
    rows = parquet.read_table(path).to_pylist()
    change(rows)
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def damaged_inside(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:4] + b"\xff" * 2000 + content[2004:])


def numbers_for_labels(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        row["labels"] = 7


# List, its content or damage (None: it is missing), and words of the error beside its name.
LIST_DAMAGES: list[tuple[str, bytes | Callable[[Path], object] | None, str]] = [
    ("train.csv", b"", "for train"),
    ("train.csv", b"\xef\xbb\xbf\r\n", "for train"),
    ("test.csv", b"patch,split\n", "for test"),
    ("val.csv", b"S2 is a satellite\n", "line 1: 'S2 is a satellite'"),
    ("val.csv", EXAMPLE + b"\n<html>\n", "line 2: '<html>'"),
    ("val.csv", EXAMPLE + b"\n" + EXAMPLE + b"\n", "line 2"),
    ("val.csv", lambda path: shutil.copy(path.with_name("train.csv"), path), "in train too"),
    ("val.csv", None, "is not in"),
    ("train.csv", b"\x1f\x8b\x08\xff\xfe", "UTF-8"),
    ("train.csv.bz2", b"BZh9garbage", "bz2"),
    ("train.csv.bz2", bz2.compress(b"x" * 99)[:-9], "bz2"),
    ("patches_with_seasonal_snow.csv", b"\xff\xfe", "UTF-8"),
    ("metadata.parquet", None, "is not in"),
    ("metadata.parquet", b"PAR1 it is not", "no parquet file"),
    ("metadata.parquet", damaged_inside, "damaged"),
    *(
        ("metadata.parquet", lambda path, change=change: change(path), words)
        for change, words in (
            (lambda path: parquet.write_table(parquet.read_table(path).slice(0, 0), path), "no patch"),
            (
                lambda path: parquet.write_table(parquet.read_table(path).drop_columns(["split"]), path),
                "split",
            ),
            (lambda path: rows_changed(path, lambda rows: rows.append(rows[0])), "listed twice"),
            (lambda path: rows_changed(path, lambda rows: rows[4].update(patch_id=None)), "row 5 of 12"),
            (lambda path: rows_changed(path, lambda rows: rows[4].update(patch_id="")), "row 5 of 12"),
            (lambda path: rows_changed(path, numbers_for_labels), "labels 7"),
            (lambda path: rows_changed(path, lambda rows: rows[0].update(split="training")), "'training'"),
            (lambda path: rows_changed(path, lambda rows: rows[0].update(split=None)), "None"),
        )
    ),
]


@pytest.mark.parametrize(("file", "damage", "words"), LIST_DAMAGES)
def test_a_damaged_list_is_refused(
    copied: Callable[[str], Path],
    command: Command,
    tmp_path: Path,
    file: str,
    damage: bytes | Callable[[Path], object] | None,
    words: str,
) -> None:
    root = copied("v2" if file.endswith("parquet") else "v1")
    path = root / file
    if callable(damage):
        damage(path)
    else:
        (root / file.removesuffix(".bz2")).unlink()
        if damage is not None:
            path.write_bytes(damage)
    code, error = command(root, tmp_path / "out", "--on-error", "skip")
    assert code == 1 and file in error and words in error
    assert not (tmp_path / "out").exists()


def test_a_byte_order_mark_costs_no_patch(copied: Callable[[str], Path]) -> None:
    root = copied("v1")
    path = root / "train.csv"
    before = open_archive(root).patches
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert open_archive(root).patches == before


def test_a_split_without_any_patch_is_warned_of(
    copied: Callable[[str], Path], command: Command, tmp_path: Path
) -> None:
    root = copied("v1")
    (root / "train.csv").write_text("S2A_MSIL2A_20170613T101031_200_2\nS2A_MSIL2A_20170613T101031_200_3\n")
    code, printed = command(root, tmp_path / "out", "--on-error", "skip")
    assert code == 0 and ": 0 train, 3 validation, 3 test patches" in printed
    assert "nothing for train: of 2 patches" in printed and "nothing for test" not in printed


def test_an_unknown_label_of_v2(copied: Callable[[str], Path], tmp_path: Path) -> None:
    root = copied("v2")
    rows_changed(root / "metadata.parquet", lambda rows: rows[2].update(labels=["Vineyards"]))  # of the 43
    (reason,) = convert(root, tmp_path / "store", on_error="skip", processes=1, show=False).skipped.values()
    assert "'Vineyards'" in reason and "v2" in reason


def test_rows_with_flags_are_left_out_wherever_they_are(copied: Callable[[str], Path]) -> None:
    """v2's first release had all patches in one table."""
    root = copied("v2")
    tables = [parquet.read_table(path) for path in root.glob("*.parquet")]
    for path in root.glob("*.parquet"):
        path.unlink()
    parquet.write_table(pyarrow.concat_tables(tables), root / "metadata.parquet")
    archive = open_archive(root)
    assert len(archive.patches) == PATCHES
    assert archive.left_out == {SNOW: 1, CLOUD: 1}


def test_a_name_that_is_too_long_is_refused(copied: Callable[[str], Path], tmp_path: Path) -> None:
    """It would be cut."""
    root = copied("v1")
    (root / "train.csv").write_text(f"S2A_{'1' * 60}_1_2\n")
    with pytest.raises(ValueError, match=r"'S2A_1+_1_2' has more than 64 bytes"):
        convert(root, tmp_path / "out", processes=1, show=False)


@pytest.mark.parametrize(
    ("package", "form"), [("rasterio", "v1"), ("rasterio", "v2"), ("pyarrow", "v2"), ("lmdb", "rico")]
)
def test_a_missing_package_is_named_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, made: Path, rico: Path, package: str, form: str
) -> None:
    root = rico if form == "rico" else made / form
    archive = open_archive(root)
    monkeypatch.setitem(sys.modules, package, None)
    lmdb_reader._opened_here.clear()
    with pytest.raises(ModuleNotFoundError, match=rf"{package}\. Run: bash jobs/setup.sh bigearthnet"):
        open_archive(root).reader.read(archive.patches[0])
