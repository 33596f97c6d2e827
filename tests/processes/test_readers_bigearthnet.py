"""BigEarthNet's archives: real patches, made-up ones, and what is wrong with some of them."""

from __future__ import annotations

import json
import shutil
import tarfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rasterio", reason="needs the extra bigearthnet")
pytest.importorskip("lmdb", reason="needs the extra bigearthnet")

import lmdb
import pyarrow
import rasterio
from pyarrow import parquet
from safetensors.numpy import save

from search_spaces.readers.bigearthnet_archive import main as make
from search_spaces.readers.bigearthnet_archive import make_archive
from search_spaces.readers.bigearthnet_files.convert import CLASSLESS, convert
from search_spaces.readers.bigearthnet_files.format import (
    BANDS,
    CLASS_OF_43,
    CLASSES,
    MEAN_AND_DEVIATION,
    SIDES,
    PatchError,
    Sample,
    class_numbers,
)
from search_spaces.readers.bigearthnet_files.lists import CLOUD, SNOW
from search_spaces.readers.bigearthnet_files.lmdb_reader import LmdbReader
from search_spaces.readers.bigearthnet_files.scenes import made_up_patch
from search_spaces.readers.bigearthnet_files.sources import UNLISTED, open_archive
from search_spaces.readers.bigearthnet_files.store import Store

PATCHES = 12


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """v1 and v2 of the same patches."""
    root = tmp_path_factory.mktemp("made")
    for version in ("v1", "v2"):
        make_archive(root / version, patches=PATCHES, version=version, processes=1, show=False)  # type: ignore[arg-type]
    return root


@pytest.fixture
def v1(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "v1", tmp_path / "v1"))


@pytest.fixture
def v2(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "v2", tmp_path / "v2"))


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


def test_a_patch_whose_classes_were_given_up_is_left_out(v1: Path, tmp_path: Path) -> None:
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


def test_the_made_up_archive_refuses_what_it_cannot_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match=r"patches = 3: must be from 4 to 30000\."):
        make_archive(tmp_path / "new", patches=3)
    with pytest.raises(ValueError, match=r"version = 'v3': must be v1 or v2\."):
        make_archive(tmp_path / "new", version="v3")  # type: ignore[arg-type]
    (tmp_path / "mine").write_text("precious")
    assert make([str(tmp_path)]) == 1
    assert f"{tmp_path} is not empty." in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


# --- broken ones --------------------------------------------------------------------------------------------


def write_tiff(path: Path, pixels: np.ndarray) -> None:
    count, height, width = pixels.shape
    with rasterio.open(
        path,
        "w",
        driver="GTiff",
        width=width,
        height=height,
        count=count,
        dtype=pixels.dtype,
        crs="EPSG:32633",
        transform=rasterio.Affine(10, 0, 300_000, 0, -10, 5_400_000),
    ) as file:
        file.write(pixels)


def band(folder: Path, name: str) -> Path:
    return folder / f"{folder.name}_{name}.tif"


def labels(folder: Path) -> Path:
    return folder / f"{folder.name}_labels_metadata.json"


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


TIFF_DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no band": (lambda folder: band(folder, "B05").unlink(), "_B05.tif is missing."),
    "torn": (lambda folder: cut(band(folder, "B02")), "_B02.tif is damaged ("),
    "empty": (lambda folder: band(folder, "B12").write_bytes(b""), "_B12.tif is damaged ("),
    "no TIFF": (lambda folder: band(folder, "B01").write_bytes(b"x" * 999), "_B01.tif is damaged ("),
    "size": (
        lambda folder: write_tiff(band(folder, "B09"), np.zeros((1, 60, 60), np.uint16)),
        "B09 is 60×60 pixels, not 20×20.",
    ),
    "type": (
        lambda folder: write_tiff(band(folder, "B8A"), np.zeros((1, 60, 60), np.float32)),
        "B8A holds float32, not uint16.",
    ),
    "two in one": (
        lambda folder: write_tiff(band(folder, "B11"), np.zeros((2, 60, 60), np.uint16)),
        "_B11.tif holds 2 bands, not one.",
    ),
}
JSON_DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no labels": (lambda folder: labels(folder).unlink(), "_labels_metadata.json is missing."),
    "torn labels": (lambda folder: cut(labels(folder)), "_labels_metadata.json is damaged ("),
    "other content": (lambda folder: labels(folder).write_text("[]"), "_labels_metadata.json is damaged ("),
    "no list": (lambda folder: labels(folder).write_text('{"labels": "Pastures"}'), "labels is no list."),
    "unknown label": (
        lambda folder: labels(folder).write_text('{"labels": ["Pastures", "Lawn"]}'),
        "label 'Lawn' is none of the 43 classes of v1.",
    ),
    "label of 19": (
        lambda folder: labels(folder).write_text('{"labels": ["Arable land"]}'),
        "label 'Arable land' is none of the 43 classes of v1.",
    ),
}


@pytest.mark.parametrize(
    ("version", "damage"),
    [("v2", name) for name in TIFF_DAMAGES] + [("v1", name) for name in ["torn", *JSON_DAMAGES]],
)
def test_a_broken_patch_is_named_and_refused_or_skipped(
    request: pytest.FixtureRequest, tmp_path: Path, version: str, damage: str
) -> None:
    root: Path = request.getfixturevalue(version)
    patch = open_archive(root).patches[4]
    (folder,) = (path for path in root.rglob(patch.name) if path.is_dir())
    break_it, said = (TIFF_DAMAGES | JSON_DAMAGES)[damage]
    break_it(folder)
    with pytest.raises(PatchError) as refused:
        convert(root, tmp_path / "store", processes=1, show=False)
    assert str(refused.value).startswith(f"Patch {patch.name}: ")
    assert said in str(refused.value)
    assert str(refused.value).endswith("Repair it and start again, which goes on; or pass --on-error skip.")
    with pytest.raises(ValueError, match="is not complete"):
        Store(tmp_path / "store")

    summary = convert(root, tmp_path / "store", on_error="skip", processes=1, show=False)
    assert list(summary.skipped) == [patch.name]
    assert said in summary.skipped[patch.name]
    assert sum(summary.stored.values()) == PATCHES - 1
    assert "skipped: 1, which could not be read" in str(summary)
    assert patch.name in str(summary)


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_half_extracted_archive_is_noticed_before_anything_is_read(
    request: pytest.FixtureRequest, tmp_path: Path, version: str
) -> None:
    root: Path = request.getfixturevalue(version)
    lost = [patch.name for patch in open_archive(root).patches[-5:]]
    for name in lost:
        for folder in root.rglob(name):
            shutil.rmtree(folder)
    with pytest.raises(PatchError) as refused:
        convert(root, tmp_path / "store", processes=1, show=False)
    assert refused.value.patch in lost
    assert "is missing, and so are 4 others of the 12 to read" in str(refused.value)
    assert not np.load(tmp_path / "store" / "patches.partial.npy")["labels"].any()
    summary = convert(root, tmp_path / "store", on_error="skip", processes=1, show=False)
    assert set(summary.skipped) == set(lost)
    assert all(
        "is missing: the archive is not completely extracted." in why for why in summary.skipped.values()
    )


def test_an_unknown_label_of_v2(v2: Path, tmp_path: Path) -> None:
    path = v2 / "metadata.parquet"
    rows = parquet.read_table(path).to_pylist()
    rows[2]["labels"] = ["Vineyards"]  # of the 43
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    summary = convert(v2, tmp_path / "store", on_error="skip", processes=1, show=False)
    assert summary.skipped == {rows[2]["patch_id"]: "label 'Vineyards' is none of the 19 classes of v2."}


def test_broken_values_of_an_lmdb(rico: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(rico.parent, tmp_path / "rico")) / rico.name
    gone, torn, bare = (patch.name for patch in open_archive(root).patches[:3])
    with lmdb.open(str(root), map_size=2**28) as environment, environment.begin(write=True) as transaction:
        transaction.delete(gone.encode())
        transaction.put(torn.encode(), transaction.get(torn.encode())[:1000])
        transaction.put(bare.encode(), save({"B02": np.zeros((120, 120), np.uint16)}))
    summary = convert(root, tmp_path / "store", on_error="skip", processes=1, show=False)
    assert list(summary.skipped) == [gone, torn, bare]
    assert summary.skipped[gone] == f"it is not in {root}."
    assert summary.skipped[torn].startswith("its value is no safetensors dictionary of numbers (")
    assert summary.skipped[bare].startswith("B01, B03, B04, ")
    assert summary.skipped[bare].endswith(" is missing in its value.")


def test_no_lmdb(tmp_path: Path) -> None:
    (tmp_path / "data.mdb").write_bytes(b"x" * 8192)
    with pytest.raises(ValueError, match=f"{tmp_path} is no LMDB"):
        LmdbReader(tmp_path).check()


# --- broken lists -------------------------------------------------------------------------------------------


def test_lists_that_cannot_be(v1: Path, v2: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere is no directory\."):
        open_archive(tmp_path / "nowhere")
    first = (v1 / "train.csv").read_text().splitlines()[0]
    with open(v1 / "val.csv", "a") as file:
        file.write(f"{first}\n")
    with pytest.raises(ValueError, match=f"{first} is in train too"):
        open_archive(v1)
    (v1 / "val.csv").write_text(f"{first}\nsomething\n")
    with pytest.raises(ValueError, match=r"val.csv, line 2: 'something' is no patch's name\."):
        open_archive(v1)
    (v1 / "val.csv").unlink()
    with pytest.raises(FileNotFoundError, match=r"val.csv is not in .* or say with --lists where they are\."):
        open_archive(v1)

    table = parquet.read_table(v2 / "metadata.parquet")
    parquet.write_table(table.drop_columns(["split"]), v2 / "metadata.parquet")
    with pytest.raises(ValueError, match=r"metadata.parquet lacks the column split\."):
        open_archive(v2)
    rows = table.to_pylist()
    rows[0]["split"] = "training"
    parquet.write_table(pyarrow.Table.from_pylist(rows), v2 / "metadata.parquet")
    with pytest.raises(
        ValueError, match=f"{rows[0]['patch_id']} has split 'training': must be train, validation, test"
    ):
        open_archive(v2)
    (v2 / "metadata.parquet").write_bytes(b"PAR1 it is not")
    with pytest.raises(ValueError, match=r"metadata.parquet is no parquet file"):
        open_archive(v2)


def test_rows_with_flags_are_left_out_wherever_they_are(v2: Path) -> None:
    """v2's first release had all patches in one table."""
    tables = [parquet.read_table(path) for path in v2.glob("*.parquet")]
    for path in v2.glob("*.parquet"):
        path.unlink()
    parquet.write_table(pyarrow.concat_tables(tables), v2 / "metadata.parquet")
    archive = open_archive(v2)
    assert len(archive.patches) == PATCHES
    assert archive.left_out == {SNOW: 1, CLOUD: 1}


def test_labels_convert_to_classes() -> None:
    assert class_numbers("p", ["Vineyards", "Olive groves", "Airports", "Pastures"], "v1") == (15, 16)
    assert class_numbers("p", ["Airports"], "v1") == ()
    with pytest.raises(PatchError, match=r"^Patch p: label 'Vineyards' is none of the 19 classes of v2\.$"):
        class_numbers("p", ["Vineyards"], "v2")


@pytest.mark.parametrize(
    ("package", "version"), [("rasterio", "v1"), ("rasterio", "v2"), ("pyarrow", "v2"), ("lmdb", "rico")]
)
def test_a_package_that_lacks_is_named_with_the_remedy(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, made: Path, package: str, version: str
) -> None:
    root: Path = request.getfixturevalue("rico") if version == "rico" else made / version
    archive = open_archive(root)
    monkeypatch.setitem(__import__("sys").modules, package, None)
    from search_spaces.readers.bigearthnet_files import lmdb_reader

    lmdb_reader._opened_here.clear()
    with pytest.raises(
        ModuleNotFoundError, match=rf"package {package}\. Run: bash jobs/setup.sh bigearthnet"
    ):
        open_archive(root).reader.read(archive.patches[0])
