"""BigEarthNet's files damaged, half copied or mixed up: one sentence with the file or patch, the rule and the remedy,
from the command, and what can be repaired is.
"""

from __future__ import annotations

import bz2
import errno
import json
import os
import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

pytest.importorskip("rasterio", reason="needs the extra bigearthnet")
pytest.importorskip("lmdb", reason="needs the extra bigearthnet")

import lmdb
import pyarrow
import rasterio
from pyarrow import parquet
from safetensors.numpy import save

from search_spaces.readers.bigearthnet import load_bigearthnet, main
from search_spaces.readers.bigearthnet_archive import main as make
from search_spaces.readers.bigearthnet_archive import make_archive
from search_spaces.readers.bigearthnet_files import convert as converting
from search_spaces.readers.bigearthnet_files.convert import convert, verify
from search_spaces.readers.bigearthnet_files.format import SIDES, SPLITS, Version
from search_spaces.readers.bigearthnet_files.lists import Patch
from search_spaces.readers.bigearthnet_files.sources import open_archive
from search_spaces.readers.bigearthnet_files.store import PATCH

PATCHES = 12


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """v1 and v2 of the same patches, v2's LMDB, and what v2 is converted to."""
    root = tmp_path_factory.mktemp("made")
    for version in ("v1", "v2"):
        make_archive(root / version, patches=PATCHES, version=version, processes=1, show=False)  # type: ignore[arg-type]
    archive = open_archive(root / "v2")
    with (
        lmdb.open(str(root / "rico"), map_size=2**28) as environment,
        environment.begin(write=True) as transaction,
    ):
        for patch in archive.patches:
            transaction.put(patch.name.encode(), save(dict(archive.reader.read(patch).bands)))
    for table in root.glob("v2/*.parquet"):
        shutil.copy(table, root / "rico")
    convert(root / "v2", root / "store", processes=1, show=False)
    return root


@pytest.fixture
def copied(made: Path, tmp_path: Path) -> Callable[[str], Path]:
    return lambda name: Path(shutil.copytree(made / name, tmp_path / name))


Said = Callable[..., tuple[int, str, str]]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    """The command's exit code, what it printed and what it complained of."""

    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


# --- the LMDB -----------------------------------------------------------------------------------------------


def node_of(content: bytes, patch: str) -> list[int]:
    """Where its name lies in the LMDB's leaves: before it the value's length, flags and its own; after it the page."""
    places, place = [], content.find(patch.encode())
    while place >= 0:
        places.append(place)
        place = content.find(patch.encode(), place + 1)
    return places


@pytest.mark.parametrize("left", [900_000, 8192, 5000])
def test_half_an_lmdb_is_refused_before_anything_starts(
    copied: Callable[[str], Path], said: Said, tmp_path: Path, left: int
) -> None:
    root = copied("rico")
    path = root / "data.mdb"
    whole = path.stat().st_size
    os.truncate(path, left)
    code, _, complaint = said(root, tmp_path / "out", "--processes", "1", "--on-error", "skip")
    assert code == 1
    assert f"{path} has {left} bytes, and its first pages name {whole}: it was not copied" in complaint
    assert complaint.endswith("Bring it again, whole.\n")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (
            lambda content, at, end: content.__setitem__(slice(end, end + 8), b"\xff" * 8),
            "is damaged where it",
        ),
        (lambda content, at, end: content.__setitem__(at - 6, 0x11), " bytes, more than 1048576: "),
    ],
    ids=["page", "length"],
)
def test_a_patch_that_lmdb_cannot_find_is_named(
    copied: Callable[[str], Path],
    said: Said,
    tmp_path: Path,
    damage: Callable[[bytearray, int, int], None],
    complaint: str,
) -> None:
    root = copied("rico")
    name = open_archive(root).patches[0].name
    content = bytearray((root / "data.mdb").read_bytes())
    places = node_of(bytes(content), name)
    assert places
    for place in places:
        damage(content, place, place + len(name))
    (root / "data.mdb").write_bytes(content)
    code, _, error = said(root, tmp_path / "out", "--processes", "1")
    assert code == 1
    assert error.startswith(f"Patch {name}: ")
    assert complaint in error
    assert f"{root / 'data.mdb'}" in error
    assert error.endswith("or pass --on-error skip.\n")
    code, printed, _ = said(root, tmp_path / "out", "--processes", "1", "--on-error", "skip")
    assert code == 0
    assert f"skipped: 1, which could not be read; the next run tries them again\n  {name}: " in printed


def test_overwritten_pages_of_an_lmdb(copied: Callable[[str], Path], said: Said, tmp_path: Path) -> None:
    root = copied("rico")
    path = root / "data.mdb"
    content = bytearray(path.read_bytes())
    for start in range(8192, len(content), 4096):
        if content[start + 10] in (1, 2):  # branches and leaves
            content[start + 10 : start + 4096] = b"\xa5" * 4086
    path.write_bytes(content)
    first = open_archive(root).patches[0].name
    code, _, error = said(root, tmp_path / "out", "--processes", "1")
    assert code == 1
    assert error.startswith(f"Patch {first}: {path} is damaged where it is kept (")


def test_numbers_of_a_type_that_numpy_lacks(copied: Callable[[str], Path], tmp_path: Path) -> None:
    root = copied("rico")
    name = open_archive(root).patches[0].name
    header = json.dumps({"B02": {"dtype": "F8_E4M3", "shape": [2], "data_offsets": [0, 2]}}).encode()
    with lmdb.open(str(root), map_size=2**28) as environment, environment.begin(write=True) as transaction:
        transaction.put(name.encode(), len(header).to_bytes(8, "little") + header + b"\0\0")
    summary = convert(root, tmp_path / "out", on_error="skip", processes=1, show=False)
    assert "its value is no safetensors dictionary of numbers (" in summary.skipped[name]


@dataclass(frozen=True)
class Dying:
    """As a reader is whose memory map ends early."""

    version: Version = "v2"
    mapped: ClassVar[bool] = True

    def read(self, patch: Patch, bands: Sequence[str] = ()) -> Any:
        signal.raise_signal(signal.SIGBUS)

    def present(self) -> set[str] | None:
        return None


def test_a_map_that_kills_ends_a_process_of_its_own(
    made: Path, said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = replace(open_archive(made / "v2"), reader=Dying())
    monkeypatch.setattr(converting, "open_archive", lambda path, lists: opened)
    code, _, error = said(made / "v2", tmp_path / "out", "--processes", "1")
    assert code == 1
    assert error.startswith(
        f"{made / 'v2'}: A process that shared the work was killed: there was too little memory, or the file"
    )
    assert error.endswith("Start again, with fewer --processes or with the file brought again, whole.\n")


# --- a patch's own files ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"labels": [["Foo"]]}', "label ['Foo'] is none of the 43 classes of v1."),
        ('{"labels": [7]}', "label 7 is none of the 43 classes of v1."),
        ("[" * 100_000, "_labels_metadata.json is damaged (RecursionError("),
    ],
)
def test_labels_that_are_none(
    copied: Callable[[str], Path], said: Said, tmp_path: Path, content: str, reason: str
) -> None:
    root = copied("v1")
    name = open_archive(root).patches[2].name
    (root / name / f"{name}_labels_metadata.json").write_text(content)
    code, _, error = said(root, tmp_path / "out", "--processes", "1")
    assert code == 1
    assert error.startswith(f"Patch {name}: ")
    assert reason in error
    code, printed, _ = said(root, tmp_path / "out", "--processes", "1", "--on-error", "skip")
    assert code == 0
    assert reason in printed


def test_a_tiff_whose_size_no_memory_holds(copied: Callable[[str], Path], tmp_path: Path) -> None:
    root = copied("v2")
    name = open_archive(root).patches[0].name
    (path,) = root.rglob(f"{name}_B01.tif")
    with rasterio.open(
        path, "w", driver="GTiff", width=900_000, height=900_000, count=1, dtype="uint16", SPARSE_OK=True,
        tiled=True, blockxsize=4096, blockysize=4096, BIGTIFF="YES",
        transform=rasterio.Affine(60, 0, 300_000, 0, -60, 5_400_000),
    ):  # fmt: skip
        pass
    summary = convert(root, tmp_path / "out", on_error="skip", processes=1, show=False)
    assert summary.skipped == {name: "B01 is 900000×900000 pixels, not 20×20."}


@pytest.mark.parametrize(("lost", "more"), [(1, ""), (2, ", and so is 1 other of the 12 to read")])
def test_folders_that_are_missing_are_counted(
    copied: Callable[[str], Path], said: Said, tmp_path: Path, lost: int, more: str
) -> None:
    root = copied("v1")
    names = [patch.name for patch in open_archive(root).patches[:lost]]
    for name in names:
        shutil.rmtree(root / name)
    code, _, error = said(root, tmp_path / "out", "--processes", "1")
    assert code == 1
    assert error.startswith(f"Patch {names[0]}: its folder is missing{more}: the archive is not completely")


# --- lists --------------------------------------------------------------------------------------------------

EXAMPLE = "S2A_MSIL2A_20170613T101031_87_48"


@pytest.mark.parametrize(
    ("file", "content", "complaint"),
    [
        (
            "train.csv",
            b"",
            "names no patch for train: each of its lines must begin with a name such as " + EXAMPLE,
        ),
        ("train.csv", b"\xef\xbb\xbf\r\n", "names no patch for train: "),
        ("train.csv", b"garbage\n", "names no patch for train: "),
        ("test.csv", b"patch,split\n", "names no patch for test: "),
        (
            "val.csv",
            b"S2 is a satellite\n",
            "val.csv, line 1: 'S2 is a satellite' is no patch's name. Correct",
        ),
        (
            "val.csv",
            EXAMPLE.encode() + b"\n<html>\n",
            "val.csv, line 2: '<html>' is no patch's name. Correct",
        ),
        (
            "train.csv",
            b"\x1f\x8b\x08\xff\xfe",
            "train.csv is no text in UTF-8 (invalid start byte at byte 1)",
        ),
        ("train.csv.bz2", b"BZh9garbage", "train.csv.bz2 is no whole bz2 file (Invalid data stream). Bring"),
        ("train.csv.bz2", bz2.compress(b"x" * 99)[:-9], "train.csv.bz2 is no whole bz2 file (Compressed"),
        ("patches_with_seasonal_snow.csv", b"\xff\xfe", "patches_with_seasonal_snow.csv is no text in UTF-8"),
    ],
)
def test_lists_that_list_nothing_or_are_damaged(
    copied: Callable[[str], Path], said: Said, tmp_path: Path, file: str, content: bytes, complaint: str
) -> None:
    root = copied("v1")
    (root / file.removesuffix(".bz2")).unlink()
    (root / file).write_bytes(content)
    code, _, error = said(root, tmp_path / "out", "--processes", "1", "--on-error", "skip")
    assert code == 1
    assert error.startswith(f"{root / file}")
    assert complaint in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_byte_order_mark_costs_no_patch(copied: Callable[[str], Path]) -> None:
    root = copied("v1")
    path = root / "train.csv"
    before = open_archive(root).patches
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert open_archive(root).patches == before


def test_a_split_of_which_nothing_is_there_is_warned_of(
    copied: Callable[[str], Path], said: Said, tmp_path: Path
) -> None:
    root = copied("v1")
    (root / "train.csv").write_text("S2A_MSIL2A_20170613T101031_200_2\nS2A_MSIL2A_20170613T101031_200_3\n")
    code, printed, _ = said(root, tmp_path / "out", "--processes", "1", "--on-error", "skip")
    assert code == 0
    assert ": 0 train, 3 validation, 3 test patches" in printed
    assert (
        "warning: nothing for train: of 2 patches that the lists name for it none is stored. Check" in printed
    )
    assert "nothing for test" not in printed


def with_rows(path: Path, change: Callable[[list[dict[str, Any]]], object], schema: Any = None) -> None:
    rows = parquet.read_table(path).to_pylist()
    change(rows)
    parquet.write_table(pyarrow.Table.from_pylist(rows, schema=schema), path)


def numbers_for_labels(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        row["labels"] = 7


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (
            lambda rows: rows[4].update(patch_id=None),
            "row 5 of 12 has patch_id None, and must have a patch's name.",
        ),
        (
            lambda rows: rows[4].update(patch_id=""),
            "row 5 of 12 has patch_id '', and must have a patch's name.",
        ),
        (numbers_for_labels, " has labels 7: must be a list of names. Bring the published file."),
        (lambda rows: rows[0].update(split=None), " has split None: must be train, validation, test. Bring"),
    ],
)
def test_tables_with_other_values(
    copied: Callable[[str], Path],
    said: Said,
    tmp_path: Path,
    change: Callable[[list[dict[str, Any]]], object],
    complaint: str,
) -> None:
    root = copied("v2")
    with_rows(root / "metadata.parquet", change)
    code, _, error = said(root, tmp_path / "out", "--processes", "1", "--on-error", "skip")
    assert code == 1
    assert error.startswith(f"{root / 'metadata.parquet'}: ")
    assert complaint in error


def test_a_table_without_rows_and_one_damaged_inside(copied: Callable[[str], Path]) -> None:
    root = copied("v2")
    path = root / "metadata.parquet"
    content = path.read_bytes()
    parquet.write_table(parquet.read_table(path).slice(0, 0), path)
    with pytest.raises(ValueError, match=r"metadata.parquet names no patch\. Bring the published file\."):
        open_archive(root)
    path.write_bytes(content[:4] + b"\xff" * 2000 + content[2004:])
    with pytest.raises(ValueError, match=r"metadata.parquet is no parquet file, or a damaged one \("):
        open_archive(root)


# --- what is made of it -------------------------------------------------------------------------------------


def flip(store: Path, row: int) -> str:
    """Changes a bit of a patch's pixels; its name."""
    pixels = np.load(store / "pixels.npy")
    pixels["B01"][row, 0, 7] ^= 1
    np.save(store / "pixels.npy", pixels)
    name: str = np.load(store / "patches.npy")["name"][row].decode()
    return name


def contents(store: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in store.iterdir()}


def test_what_verify_finds_is_read_again(made: Path, copied: Callable[[str], Path], said: Said) -> None:
    store = copied("store")
    names = {flip(store, 2), flip(store, PATCHES - 1)}
    code, printed, _ = said("--verify", store)
    assert code == 1
    assert set(verify(store, show=False)) == names
    assert f"{store}: 2 damaged. Read them again: python -m" in printed
    # Where the archive has lost one of them, too, the other is mended, and nothing trains with this one.
    archive, lost = copied("v2"), min(names)
    next(archive.rglob(f"{lost}/*_B02.tif")).write_bytes(b"")
    code, printed, _ = said(archive, store, "--processes", "1", "--repair", "--on-error", "skip")
    assert code == 0
    assert "damaged, and read again: 2" in printed and "skipped: 1," in printed
    left = {name for split in SPLITS for name in load_bigearthnet(store, split).names()}
    assert lost not in left and len(left) == PATCHES - 1
    code, printed, _ = said(made / "v2", store, "--processes", "1", "--repair")
    assert code == 0
    assert "damaged, and read again: 0" in printed
    for name in ("pixels.npy", "patches.npy"):
        assert contents(store)[name] == contents(made / "store")[name]


def test_a_label_that_changed_is_read_again(made: Path, copied: Callable[[str], Path], said: Said) -> None:
    store = copied("store")
    content = bytearray((store / "patches.npy").read_bytes())
    content[-3 * PATCH.itemsize + PATCH.fields["labels"][1] + 4] ^= 1  # type: ignore[index]
    (store / "patches.npy").write_bytes(content)
    code, printed, _ = said(made / "v2", store, "--processes", "1", "--repair")
    assert code == 0
    assert "damaged, and read again: 1" in printed
    assert contents(store)["patches.npy"] == contents(made / "store")["patches.npy"]
    with pytest.raises(SystemExit):
        said("--verify", store, "--repair")


@pytest.mark.parametrize(
    ("left", "found"),
    [
        (None, "there is no such file"),
        (900_000, "it has 900000 bytes, and must have 19"),
        (0, "EOF: reading magic"),
    ],
)
def test_pixels_that_are_missing_are_refused(
    made: Path, copied: Callable[[str], Path], said: Said, left: int | None, found: str
) -> None:
    store = copied("store")
    path = store / "pixels.npy"
    path.unlink() if left is None else os.truncate(path, left)
    for arguments in (["--verify", store], [made / "v2", store, "--processes", "1"]):
        code, _, error = said(*arguments)
        assert code == 1
        assert error.startswith(f"{path} is damaged: {found}")
        assert error.endswith(f". Remove {store} and begin anew.\n")


HEADER = b"\x93NUMPY\x01\x00v\x00"  # of 118 bytes


@pytest.mark.parametrize(
    "content",
    [
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
    ],
    ids=range(11),
)
@pytest.mark.parametrize("file", ["pixels.npy", "patches.npy"])
def test_files_that_are_none_of_numpys(
    made: Path, copied: Callable[[str], Path], said: Said, file: str, content: bytes
) -> None:
    """And what lies there is left as it is."""
    store = copied("store")
    (store / file).write_bytes(content)
    before = contents(store)
    for arguments in (["--verify", store], [made / "v2", store, "--processes", "1"]):
        code, _, error = said(*arguments)
        assert code == 1
        assert error.startswith(f"{store / file} is damaged: ")
        assert error.count("\n") == 1
        assert contents(store) == before


def test_lost_names_do_not_cost_the_pixels(made: Path, copied: Callable[[str], Path], said: Said) -> None:
    store = copied("store")
    (store / "patches.npy").unlink()
    before = contents(store)
    code, _, error = said(made / "v2", store, "--processes", "1")
    assert code == 1
    assert error == (
        f"{store} has pixels.npy without names: it is unknown of what. Remove {store} and begin anew.\n"
    )
    assert contents(store) == before


def test_a_place_that_cannot_be_written(
    made: Path, said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    for out, why in ((file, "File exists"), (file / "out", "Not a directory")):
        code, _, error = said(made / "v2", out, "--processes", "1")
        assert code == 1
        assert error == (
            f"{out} cannot be made a directory ({why}). There is a file where a directory must be: name another "
            "place.\n"
        )
        assert make([str(out), "--patches", "4"]) == 1
    assert file.read_text() == "mine"
    (tmp_path / "out" / "patches.partial.npy").mkdir(parents=True)
    code, _, error = said(made / "v2", tmp_path / "out", "--processes", "1")
    assert code == 1
    assert error.startswith(
        f"{tmp_path / 'out' / 'patches.partial.npy'} cannot be read (Is a directory). Name a file,"
    )

    sync = os.fsync
    for name, before in (
        ("patches.partial.npy", 0),
        ("pixels.npy", 1),
        ("pixels.npy", 2),
        ("patches.partial.npy", 3),
    ):
        left = before

        def full(file: int) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            sync(file)

        monkeypatch.setattr(os, "fsync", full)
        code, _, error = said(made / "v2", tmp_path / f"{name}-{before}", "--processes", "1")
        assert code == 1
        path = tmp_path / f"{name}-{before}" / name
        assert error == f"{path} cannot be written (No space left on device). Make room, and start again.\n"
        monkeypatch.setattr(os, "fsync", sync)
        assert said(made / "v2", path.parent, "--processes", "1")[0] == 0
        assert contents(path.parent) == contents(made / "store")


def test_a_disk_that_does_not_give_pixels_back_has_damaged_them(
    copied: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = copied("store")
    name = flip(store, 4)
    flip(store, 4)
    read = os.preadv
    size = 2 * sum(side**2 for side in SIDES.values())

    begin = (store / "pixels.npy").stat().st_size - PATCHES * size

    def failing(file: int, buffers: list[memoryview], place: int, flags: int = 0) -> int:
        if place == begin + 4 * size:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(file, buffers, place, flags)

    monkeypatch.setattr(os, "preadv", failing)
    assert verify(store, show=False) == [name]
