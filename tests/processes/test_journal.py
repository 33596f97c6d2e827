"""A journal gives back what was committed, drops a torn end, and never takes damage for data."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import journals
import numpy as np
import pytest
from disks import failing
from hypothesis import given
from hypothesis import strategies as st
from individuals import make_finished

from hpo.errors import CampaignError, JournalDamaged
from hpo.individual import Attempt, Configuration, Outcome
from hpo.journal.files import JournalWriter, journal_part, journal_path, read_file
from hpo.journal.records import Finished, Header, Record, Stopping, encode, flat
from hpo.ledger.journals import last_launch, read_directory, worker_journals


def _finished(sequence: int = 0, **fields: Any) -> Finished:
    params = {"lr": 1e-3 / (sequence + 1), "optimizer": "sgd", "nesterov": True, "depth": sequence}
    whole = {"id": f"0-2-{sequence}", "operator": "random", "started": 1.0, "finished": 2.0, "params": params}
    end = {"objectives": {"value": 0.5 + sequence}, "metrics": {"note": "ünïcode \n", "epochs": 3}}
    return make_finished(status="completed", **{**whole, **end, **fields})


_RECORDS = [_finished(sequence) for sequence in range(3)]

_scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
)
_names = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def _path(directory: Path, launch: int = 1, worker: int = 2) -> Path:
    return journal_path(directory, launch=launch, island=0, worker=worker)


def _header(launch: int = 1, worker: int = 2) -> Header:
    return Header.of_this_process(launch=launch, island=0, worker=worker)


def _write(directory: Path, records: Sequence[Record] = _RECORDS, launch: int = 1, worker: int = 2) -> Path:
    path = _path(directory, launch, worker)
    with JournalWriter(path, _header(launch, worker)) as writer:
        for record in records:
            writer.append(record)
    return path


def _after_header(path: Path, torn: list[Path] | None = None) -> list[Any]:
    return list(read_file(path, torn))[1:]


# Exactness ------------------------------------------------------------------------------------------------


@given(
    params=st.dictionaries(_names, _scalars, max_size=5),
    metrics=st.dictionaries(
        _names, _scalars.filter(lambda value: value not in ("nan", "inf", "-inf")), max_size=5
    ),
    error=st.none() | st.text(st.characters(exclude_categories=["Cs"])),
)
def test_a_record_comes_back_exactly(
    tmp_path_factory: pytest.TempPathFactory,
    params: dict[str, object],
    metrics: dict[str, object],
    error: str | None,
) -> None:
    record = _finished(params=params, metrics=metrics, error=error)
    path = _write(tmp_path_factory.mktemp("exact"), [record])
    (read,) = _after_header(path)
    # repr tells 1 from 1.0 and True, and 0.0 from -0.0; it keeps the order of keys.
    assert repr(read) == repr(record)


def test_all_facts_of_an_individual_are_on_record_but_these() -> None:
    """``Outcome.seconds`` follows from the times; the other two concern the process that evaluates."""
    facts = {name for kind in (Configuration, Attempt, Outcome) for name in kind.__struct_fields__}
    line = {*flat(_finished()).__struct_fields__}
    assert facts - line == {"seconds", "resumed", "contested"}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), np.float32("nan")])
def test_numbers_that_json_lacks_survive_among_metrics(tmp_path: Path, value: float) -> None:
    path = _write(
        tmp_path, [_finished(metrics={"loss": value, "epochs": 3, "curve": [1.0, value]}, error="x")]
    )
    (read,) = _after_header(path)
    assert repr(read.metrics) == repr({"loss": float(value), "epochs": 3, "curve": [1.0, float(value)]})
    assert b"null" not in path.read_bytes()


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (2**70, str(2**70)),
        ("caf\udce9", "caf\\udce9"),
        (np.float64(0.25), 0.25),
        (np.int64(7), 7),
        (Path("/tmp"), "PosixPath('/tmp')"),
    ],
)
def test_strange_values_cost_no_record(tmp_path: Path, value: object, stored: object) -> None:
    path = _write(tmp_path, [_finished(metrics={"strange": value}, error="caf\udce9")])
    (read,) = _after_header(path)
    assert read == _finished(metrics={"strange": stored}, error="caf\\udce9")


# Torn and damaged files -----------------------------------------------------------------------------------


def test_truncated_anywhere_in_its_last_record_it_drops_that_record_alone(tmp_path: Path) -> None:
    path = _write(tmp_path)
    whole = path.read_bytes()
    start = whole.rindex(b"\n", 0, -1) + 1
    for length in range(start, len(whole)):
        path.write_bytes(whole[:length])
        torn: list[Path] = []
        assert _after_header(path, torn) == _RECORDS[:-1]
        assert torn == ([path] if length > start else []), length
    path.write_bytes(whole)
    torn = []
    assert _after_header(path, torn) == _RECORDS
    assert torn == []


def test_truncated_in_its_header_it_holds_nothing(tmp_path: Path) -> None:
    path = _write(tmp_path, [])
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        torn: list[Path] = []
        assert list(read_file(path, torn)) == []
        assert torn == ([path] if length else [])


def test_a_flipped_byte_is_never_taken_for_data(tmp_path: Path) -> None:
    """Before the last line it is damage; the last line may have been cut off while it was written."""
    path = _write(tmp_path)
    whole = path.read_bytes()
    last = whole.rindex(b"\n", 0, -1) + 1
    for position in range(0, len(whole), 2):
        damaged = bytearray(whole)
        damaged[position] ^= (0x01, 0x20, 0xFF)[position % 3]
        path.write_bytes(damaged)
        torn: list[Path] = []
        try:
            read = _after_header(path, torn)
        except JournalDamaged as error:
            assert (error.path, error.line) == (path, whole[:position].count(b"\n") + 1)
        else:
            assert position >= last and read == _RECORDS[:-1] and torn == [path]


@pytest.mark.parametrize(
    "table",
    [
        {"type": 3},
        {"id": "0-0-1"},
        {"type": "migrated", "id": "../../elsewhere"},
        {"type": "reported", "id": "0-0-1", "island": -1, "step": 1, "loss": 0.5, "time": 1.0},
        {"type": "ended", "reason": "done", "exit": "0", "time": 1.0},
    ],
)
def test_a_whole_line_that_is_no_record_is_damage_wherever_it_stands(
    tmp_path: Path, table: dict[str, object]
) -> None:
    path = _write(tmp_path)
    path.write_bytes(path.read_bytes() + journals.line(table))
    with pytest.raises(JournalDamaged) as caught:
        list(read_file(path))
    assert caught.value.line == len(_RECORDS) + 2


def test_a_type_of_a_later_version_is_left_out(tmp_path: Path) -> None:
    path = _write(tmp_path)
    path.write_bytes(path.read_bytes() + journals.line({"type": "news", "id": 3}))
    assert _after_header(path) == _RECORDS


def test_what_is_appended_while_it_is_read_is_not_taken_for_damage(tmp_path: Path) -> None:
    path = _write(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-7])
    torn: list[Path] = []
    reader = read_file(path, torn)
    assert isinstance(next(reader), Header)
    path.write_bytes(whole + journals.line({"type": "news"}))
    assert [*reader] == _RECORDS[:2]
    assert torn == [path]


# Writing --------------------------------------------------------------------------------------------------


def test_a_batch_is_on_disk_after_commit_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs: list[int] = []
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (syncs.append(handle), sync(handle)))
    writer = JournalWriter(_path(tmp_path), _header())
    begun = len(syncs)
    assert begun > 1, "the header, and the name of the file in its directory"
    for record in _RECORDS:
        writer.append(record)
    assert (writer.pending, len(_after_header(writer.path))) == (3, 0)
    writer.commit()
    assert (writer.pending, len(_after_header(writer.path)), len(syncs)) == (0, 3, begun + 1)
    writer.commit()
    assert len(syncs) == begun + 1, "nothing was pending"
    writer.append(_RECORDS[0])
    writer.close()
    writer.close()
    assert len(_after_header(writer.path)) == 4


@contextmanager
def _file_size_limit(size: int) -> Iterator[None]:
    """Writes beyond ``size`` bytes fail with EFBIG after the part that fits, as on a full disk."""
    import signal

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    former = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, former)


def test_a_disk_that_fills_up_leaves_a_torn_end_and_the_journal_goes_on_in_a_new_file(tmp_path: Path) -> None:
    path = _path(tmp_path)
    writer = JournalWriter(path, _header())
    for record in _RECORDS:
        writer.append(record)
    lines = [len(encode(record)) for record in _RECORDS]
    room = path.stat().st_size + lines[0] + lines[1] // 2
    with _file_size_limit(room):
        for _ in range(3):  # also in a part that has room for its header, and for no more
            with pytest.raises(OSError, match="File too large") as caught:
                writer.commit()
            assert writer.error is caught.value
    assert caught.value.filename == str(journal_part(path, 1))
    assert path.stat().st_size == room, "the test is about a batch that was written in part"
    torn: list[Path] = []
    assert _after_header(path, torn) == _RECORDS[:1]
    assert torn == [path]
    assert os.listdir(path.parent) == [path.name], "parts that hold nothing would fill the disk"
    # Room again: but a record behind a torn one would look like damage.
    writer.append(_finished(3))
    writer.commit()
    assert (writer.error, writer.pending) == (None, 0)
    writer.append(_finished(4))
    writer.close()
    assert _after_header(path) == _RECORDS[:1]
    assert _after_header(journal_part(path, 1)) == [*_RECORDS, _finished(3), _finished(4)]
    assert [one.path for one in worker_journals(tmp_path, launch=1, worker=2)] == [
        path,
        journal_part(path, 1),
    ]
    assert [one for one in read_directory(tmp_path) if isinstance(one, Finished)] == [
        _RECORDS[0],
        *_RECORDS,
        _finished(3),
        _finished(4),
    ]


@contextmanager
def _failing(monkeypatch: pytest.MonkeyPatch, *call: Any) -> Iterator[None]:
    """For a while; ``call``: see ``failing``."""
    with monkeypatch.context() as patch:
        failing(patch, *call)
        yield


def test_after_a_failed_sync_all_of_the_batch_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pages may be on disk or not: readers find those records once or twice."""
    writer = JournalWriter(_path(tmp_path), _header())
    writer.append(_RECORDS[0])
    writer.commit()
    writer.append(_RECORDS[1])
    with _failing(monkeypatch, "fsync", errno.EIO), pytest.raises(OSError, match="Input/output"):
        writer.commit()
    assert writer.error is not None and writer.error.filename == str(writer.path)
    assert writer.pending == 1
    # A part that can be made and not be synced does not count, and is in nobody's way.
    with _failing(monkeypatch, "fsync", errno.EIO), pytest.raises(OSError):
        writer.commit()
    writer.append(_RECORDS[2])
    writer.close()
    assert _after_header(writer.path) == _RECORDS[:2]
    assert _after_header(journal_part(writer.path, 1)) == _RECORDS[1:]


def test_a_part_that_can_neither_be_synced_nor_removed_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = JournalWriter(_path(tmp_path), _header())
    writer.append(_RECORDS[0])
    for _ in range(3):
        with (
            _failing(monkeypatch, "fsync", errno.EIO),
            _failing(monkeypatch, "unlink", errno.EIO),
            pytest.raises(OSError, match="Input/output"),
        ):
            writer.commit()
    writer.close()
    assert _after_header(journal_part(writer.path, 3)) == _RECORDS[:1]
    found = [one for one in read_directory(tmp_path) if isinstance(one, Finished)]
    assert found == [_RECORDS[0]] * len(found)
    assert last_launch(tmp_path) == 1


def test_a_journal_that_cannot_be_made_is_made_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with _failing(monkeypatch, "open", errno.ENOSPC, lambda path: str(path).endswith(".jsonl")):
        writer = JournalWriter(_path(tmp_path), _header())
        assert writer.error is not None and writer.error.errno == errno.ENOSPC
        writer.append(_RECORDS[0])
        with pytest.raises(OSError, match="No space"):
            writer.commit()
    writer.commit()
    assert writer.error is None
    assert _after_header(writer.path) == _RECORDS[:1]


def test_a_directory_that_is_gone_for_a_while_is_not_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = JournalWriter(_path(tmp_path / "run"), _header())
    writer.append(_RECORDS[0])
    with _failing(monkeypatch, "fsync", errno.ESTALE), pytest.raises(OSError):
        writer.commit()
    (tmp_path / "run").rename(tmp_path / "gone")
    with pytest.raises(FileNotFoundError):
        writer.commit()
    assert not (tmp_path / "run").exists()
    (tmp_path / "gone").rename(tmp_path / "run")
    writer.close()
    assert _RECORDS[0] in list(read_directory(tmp_path / "run"))


def test_what_is_discarded_is_never_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = JournalWriter(_path(tmp_path), _header())
    writer.append(_RECORDS[0])
    with _failing(monkeypatch, "write", errno.EIO), pytest.raises(OSError):
        writer.commit()
    writer.discard()
    writer.commit()
    writer.close()
    assert list(read_directory(tmp_path)) == [*read_file(writer.path)] and not _after_header(writer.path)


def test_a_journal_is_never_written_twice(tmp_path: Path) -> None:
    path = _write(tmp_path)
    before = path.read_bytes()
    with pytest.raises(CampaignError, match="exists already, and a journal is never rewritten"):
        _write(tmp_path)
    assert path.read_bytes() == before


# Directories ----------------------------------------------------------------------------------------------


def _mark(name: str) -> Stopping:
    return Stopping(reason=name, time=1.0)


def test_directories_are_read_by_launch_and_worker_and_other_files_left_alone(tmp_path: Path) -> None:
    assert last_launch(tmp_path) == 0
    assert list(read_directory(tmp_path)) == []
    for launch, worker in ((10, 0), (2, 10_000), (2, 1), (10_000, 0)):
        _write(tmp_path, [_mark(f"{launch}/{worker}")], launch, worker)
    folder = tmp_path / "launches" / "0002" / "journal"
    (folder / "0002-i000-w0000.jsonl~").write_text("an editor's copy")
    (folder / ".nfs0001").write_text("left by a network file system")
    (folder / "0003-i000-w0000.jsonl").write_text("a copy of another launch's file")
    folder.parents[1].joinpath("0004").symlink_to(folder.parent)
    folder.parents[1].joinpath("0005").write_text("no folder")
    records = list(read_directory(tmp_path))
    assert [one.reason for one in records if isinstance(one, Stopping)] == [
        "2/1",
        "2/10000",
        "10/0",
        "10000/0",
    ]
    assert [one.launch for one in records if isinstance(one, Header)] == [2, 2, 10, 10_000]
    assert last_launch(tmp_path) == 10_000
