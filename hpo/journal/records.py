"""The append-only journal: a file a worker and leg, a checked line a record, synced before a result counts.

A *leg* is one launch of a campaign. ``DIR/journal/0001-i000-w0003.jsonl`` is what worker 3 of island 0 wrote
in the first leg; nobody else writes it and it is never rewritten, so no file locks are needed on NFS, Lustre
or GPFS. The last key of each line, ``crc``, is the CRC-32 (eight hexadecimal digits) of the line's bytes
before ``,"crc":``.

Records by ``type``:

========  =================================================================================================
header    ``version, leg, island, worker, host, pid, time``: the first line of each file
launched  ``evaluations, deadline_s, islands, workers, ranks_per_worker, time``: what this leg was asked for; and
          ``reference``, a number an objective, where one was given
started   ``id, island, worker, sequence, params, operator, parents, retries, time``; ``promoted`` where it goes on
          after it was paused at so many steps, ``inherits`` where it goes on from another's checkpoint
finished  ``id`` to ``retries`` as in ``started`` (which need not exist), then ``started, finished, status,
          objectives, metrics, error``; ``resting`` where it was pruned and may go on
reported  ``id, island, step, loss, time``: an intermediate result at a rung, on the island of that number; the
          loss, to be minimised, is null where it was not finite
migrated  ``id, source, target, hop, copy, time``: source and target are islands
known     ``number, params, status, objectives, source, origin, time``: a result from elsewhere; ``number``
          from 1, ``origin`` is its name in the source
entered   ``source, told, time``: all known points of a source are on record; ``told`` is what was said of them
stopping  ``reason, time``: the leg begins nothing more, and what runs may save itself
ended     ``reason, exit, time``: the leg stopped by itself
========  =================================================================================================

Other types are for readers to skip. All times are Unix seconds.
"""

from __future__ import annotations

import os
import re
import socket
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from math import isfinite
from pathlib import Path
from types import TracebackType
from typing import Any

import orjson

from hpo.errors import CampaignError, JournalDamaged

VERSION = 1

Record = dict[str, Any]

_NAME = re.compile(r"(\d{4,})-i(\d{3,})-w(\d{4,})\.jsonl")
_CRC = b',"crc":"'
_TAIL = len(_CRC) + 8 + len(b'"}\n')
_NONFINITE = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}
_ID = re.compile(r"[0-9]{1,9}-[0-9]{1,9}-[0-9]{1,18}")
_LONGEST = 1 << 26
"""Bytes of the longest line: a file of nothing but zeros, which costs no disk, must not fill the memory."""


def journal_path(directory: Path, *, leg: int, island: int, worker: int) -> Path:
    """The file that the given worker writes in the given leg of the campaign in ``directory``."""
    return directory / "journal" / f"{leg:04d}-i{island:03d}-w{worker:04d}.jsonl"


def journal_place(path: Path) -> tuple[int, int, int] | None:
    """Leg, island and worker in a journal's name; None for another file."""
    match = _NAME.fullmatch(path.name)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def journal_files(directory: Path) -> list[Path]:
    """The journals of the campaign in ``directory`` by leg, island and worker; other files are left out.

    Raises:
        CampaignError: they cannot be listed.
    """
    found = []
    try:
        names = os.listdir(directory / "journal")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CampaignError(
            f"{directory / 'journal'} cannot be read ({error.strerror or error}). Give read access, or name another "
            "directory."
        ) from error
    for name in names:
        path = directory / "journal" / name
        place = journal_place(path)
        if place is not None:
            found.append((place, path))
    return [path for _, path in sorted(found)]


def next_leg(directory: Path) -> int:
    """The number of the leg to be started: one more than the last that left a journal, 1 at first."""
    return 1 + max((int(path.name.split("-")[0]) for path in journal_files(directory)), default=0)


def header(*, leg: int, island: int, worker: int) -> Record:
    """The header of the calling process's journal."""
    return {
        "leg": leg,
        "island": island,
        "worker": worker,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "time": time.time(),
    }


def launched(
    *,
    evaluations: int | None,
    deadline_s: float | None,
    islands: int,
    workers: int,
    ranks_per_worker: int,
    reference: Mapping[str, float] | None = None,
) -> Record:
    """What this leg was asked for; ``workers`` are those of all islands together, ``reference``: by objective."""
    asked: Record = {
        "type": "launched",
        "evaluations": evaluations,
        "deadline_s": deadline_s,
        "islands": islands,
        "workers": workers,
        "ranks_per_worker": ranks_per_worker,
        "time": time.time(),
    }
    return {**asked, "reference": dict(reference)} if reference else asked


def known(
    *,
    number: int,
    params: Mapping[str, object],
    status: str,
    objectives: Mapping[str, float] | None,
    source: str,
    origin: str,
) -> Record:
    """A result from elsewhere, of which this campaign knows; see ``hpo.prior_results.points``."""
    return {
        "type": "known",
        "number": number,
        "params": dict(params),
        "status": status,
        "objectives": None if objectives is None else dict(objectives),
        "source": source,
        "origin": origin,
        "time": time.time(),
    }


def entered(*, source: str, told: str) -> Record:
    """All known points of ``source`` are on record."""
    return {"type": "entered", "source": source, "told": told, "time": time.time()}


def stopping(*, reason: str) -> Record:
    """The leg begins nothing more, and waits for what runs."""
    return {"type": "stopping", "reason": reason, "time": time.time()}


def ended(*, reason: str, exit: int) -> Record:
    """The leg stopped by itself: why, and the exit code it returned."""
    return {"type": "ended", "reason": reason, "exit": exit, "time": time.time()}


def storable(value: object) -> object:
    """``value`` in what JSON can hold: text with lone surrogates, huge integers and numpy scalars too."""
    if isinstance(value, Mapping):
        return {str(storable(str(key))): storable(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [storable(entry) for entry in value]
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if -(2**63) <= value < 2**64 else str(value)
    if isinstance(value, float):
        return float(value) if isfinite(value) else _spelt(value)
    item = getattr(value, "item", None)
    return repr(value) if item is None else storable(item())


def _spelt(value: float) -> str:
    return "nan" if value != value else "inf" if value > 0 else "-inf"


def encode(record: Mapping[str, object]) -> bytes:
    """``record`` as one line of the journal, newline included.

    Non-finite numbers among the metrics and objectives become the words "nan", "inf" and "-inf" (JSON has
    none, and orjson would write null). What JSON cannot hold otherwise (text that is not Unicode, integers
    beyond 64 bits, objects of other types) is stored as text, because a strange metric must not cost the
    result it came with.
    """
    for name in ("metrics", "objectives"):
        values = record.get(name)
        if isinstance(values, dict):
            for value in values.values():
                if _has_nonfinite(value):
                    record = {**record, name: storable(values)}
                    break
    try:
        body = orjson.dumps(record)[:-1]
    except orjson.JSONEncodeError:
        body = orjson.dumps(storable(record))[:-1]
    return b'%b,"crc":"%08x"}\n' % (body, zlib.crc32(body))


def _has_nonfinite(value: object) -> bool:
    if isinstance(value, list):
        return any(map(_has_nonfinite, value))
    return isinstance(value, float) and not isfinite(value)


def decode(line: bytes) -> Record:
    """The record in ``line``, without its checksum; ValueError says what is wrong with the line.

    A checksum tells damage from data, and not who wrote it: ids become the names of directories, so none may
    be anything else than an id.
    """
    if line[-3:] != b'"}\n' or line[-_TAIL : 8 - _TAIL] != _CRC:
        raise ValueError("this is not a whole record")
    if line[-11:-3] != b"%08x" % zlib.crc32(line[:-_TAIL]):
        raise ValueError("the checksum does not fit")
    record: Record = orjson.loads(line)
    del record["crc"]
    if record.get("type").__class__ is not str:
        raise ValueError("the record has no type")
    identity = record.get("id")
    if identity is not None and not (identity.__class__ is str and _ID.fullmatch(identity)):
        raise ValueError(f"{str(identity)[:80]!r} is no individual's id")
    for name in ("metrics", "objectives"):
        values = record.get(name)
        if values:
            if values.__class__ is not dict:
                raise ValueError(f"{name} is no table of names and values")
            for key, value in values.items():
                if value.__class__ is str and value in _NONFINITE:
                    values[key] = _NONFINITE[value]
                elif value.__class__ is list:
                    values[key] = [_NONFINITE.get(one, one) if one.__class__ is str else one for one in value]
    return record


_WHOLE, _NUMBER, _TEXT, _TABLE, _LIST = (int,), (int, float), (str,), (dict,), (list,)
_MAYBE_NUMBER, _MAYBE_TEXT, _MAYBE_TABLE = (*_NUMBER, type(None)), (*_TEXT, type(None)), (*_TABLE, type(None))
_INDIVIDUAL = {
    "id": _TEXT,
    "island": _WHOLE,
    "worker": _WHOLE,
    "sequence": _WHOLE,
    "params": _TABLE,
    "operator": _TEXT,
    "parents": _LIST,
    "retries": _WHOLE,
}
_FIELDS: dict[str, dict[str, tuple[type, ...]]] = {
    "header": {"version": _WHOLE, "leg": _WHOLE, "island": _WHOLE, "worker": _WHOLE, "time": _NUMBER},
    "launched": {
        "evaluations": _MAYBE_NUMBER,
        "deadline_s": _MAYBE_NUMBER,
        "islands": _WHOLE,
        "workers": _WHOLE,
        "time": _NUMBER,
    },
    "started": {**_INDIVIDUAL, "time": _NUMBER},
    "finished": {
        **_INDIVIDUAL,
        "started": _MAYBE_NUMBER,
        "finished": _NUMBER,
        "status": _TEXT,
        "objectives": _MAYBE_TABLE,
        "metrics": _TABLE,
        "error": _MAYBE_TEXT,
    },
    "reported": {"id": _TEXT, "island": _WHOLE, "step": _WHOLE, "loss": _MAYBE_NUMBER, "time": _NUMBER},
    "migrated": {
        "id": _TEXT,
        "source": _WHOLE,
        "target": _WHOLE,
        "hop": _WHOLE,
        "copy": (bool,),
        "time": _NUMBER,
    },
    "known": {
        "number": _WHOLE,
        "params": _TABLE,
        "status": _TEXT,
        "objectives": _MAYBE_TABLE,
        "source": _TEXT,
        "origin": _TEXT,
        "time": _NUMBER,
    },
    "entered": {"source": _TEXT, "told": _TEXT, "time": _NUMBER},
    "stopping": {"reason": _TEXT, "time": _NUMBER},
    "ended": {"reason": _TEXT, "exit": _WHOLE, "time": _NUMBER},
}


def flaw(record: Record) -> str | None:
    """What a record that fits its checksum lacks of what its type has; None if nothing."""
    for name, kinds in _FIELDS.get(record["type"], {}).items():
        if name not in record:
            return f"{name} is missing"
        if type(record[name]) not in kinds:
            return f"{name} is {str(record[name])[:80]!r}"
    if record["type"] == "header" and not (record["leg"] > 0 <= min(record["island"], record["worker"])):
        return "leg, island and worker are no places"
    if record["type"] == "launched":
        reference = record.get("reference") or {}
        if type(reference) is not dict or any(type(value) not in _NUMBER for value in reference.values()):
            return "the reference is no point"
    if record["type"] == "known":
        if record["number"] < 1:
            return f"number is {record['number']}"
        if any(type(value) not in _NUMBER for value in (record["objectives"] or {}).values()):
            return "an objective is no number"
        if any(isinstance(value, (dict, list)) for value in record["params"].values()):
            return "a parameter is no single value"
    if record["type"] in ("started", "finished"):
        if record["id"] != "{island}-{worker}-{sequence}".format_map(record):
            return f"the id {record['id']} does not fit island, worker and sequence"
        if type(record.get("promoted", 0)) is not int or type(record.get("inherits", "")) is not str:
            return "what it goes on from is no number of steps or no id"
        if type(record.get("steps", 0)) is not int:
            return "how far it came is no number of steps"
        for value in (record.get("objectives") or {}).values():
            if type(value) not in _NUMBER:
                return f"an objective is {str(value)[:80]!r}"
        for name, value in (record.get("metrics") or {}).items():
            if isinstance(value, dict) or (
                isinstance(value, list) and not all(type(one) in _NUMBER for one in value)
            ):
                return f"the metric {name[:80]!r} is no single value and no list of numbers"
        for value in (*record["params"].values(), *record["parents"]):
            if isinstance(value, (dict, list)):
                return "a parameter or a parent is no single value"
    return None


def _begins_whole(line: bytes) -> bool:
    """Whether ``line`` begins with a whole record that is followed by something other than its newline."""
    end = line.find(_CRC)
    while end >= 0:
        stop = end + _TAIL - 1
        if line[end + 8 : stop] == b'%08x"}' % zlib.crc32(line[:end]):
            return len(line) > stop
        end = line.find(_CRC, end + 1)
    return False


class JournalWriter:
    """Writes one worker's journal of one leg: ``append`` collects records, ``commit`` puts them on disk.

    Args:
        path: from :func:`journal_path`; the file must not exist, its directories are made.
        header: from :func:`header`; it is on disk when the constructor returns.

    Raises:
        CampaignError: the file exists already or cannot be written; also by ``commit`` and ``close``. After
            that the writer takes no more: what was written of the last batch counts as far as its records are
            whole, and the torn tail is dropped by the reader.
    """

    def __init__(self, path: Path, header: Mapping[str, object]) -> None:
        self.path = path
        self._batch: list[bytes] = []
        self._file: int | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._failed(error) from error
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666)
        except FileExistsError:
            raise CampaignError(
                f"{path} exists already, and a journal is never rewritten. Another launch of the same "
                "campaign is at work in this directory: let it finish, or stop it with `hpo stop`."
            ) from None
        except OSError as error:
            raise self._failed(error) from error
        self.append({"type": "header", "version": VERSION, **header})
        self.commit()
        sync_directory(path.parent)

    @property
    def pending(self) -> int:
        """How many records have been appended and are not yet on disk."""
        return len(self._batch)

    def append(self, record: Mapping[str, object]) -> None:
        """Take ``record`` for the next ``commit``."""
        self._batch.append(encode(record))

    def commit(self) -> None:
        """Return when all appended records are on disk: one write and one sync however many there are."""
        if not self._batch:
            return
        if self._file is None:
            raise CampaignError(
                f"{self.path} takes no more records: it was closed, or an earlier write to it failed."
            )
        data = b"".join(self._batch)
        try:
            written = os.write(self._file, data)
            while written < len(data):
                written += os.write(self._file, memoryview(data)[written:])
            os.fsync(self._file)
        except OSError as error:
            # Whether the pages reach the disk after a failed sync is unknown, and a record after a torn one
            # would look like damage: so nothing may follow in this file.
            os.close(self._file)
            self._file = None
            raise self._failed(error) from error
        self._batch.clear()

    def close(self) -> None:
        """Commit what is pending and close the file; a second call does nothing."""
        if self._file is None:
            return
        self.commit()
        os.close(self._file)
        self._file = None

    def _failed(self, error: OSError) -> CampaignError:
        return CampaignError(
            f"{self.path} cannot be written ({error.strerror or error}), and no result counts before it is "
            "on disk. Make room or give write access there, then start the same campaign again: it goes on "
            "where it stopped."
        )

    def __enter__(self) -> JournalWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def sync_directory(directory: Path) -> None:
    """Put the names in ``directory`` on disk: a power cut may else take a new file, synced as it is."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        # Some network file systems cannot sync a directory; there the names are safe once the server has
        # answered.
        with suppress(OSError):
            os.fsync(handle)
    finally:
        os.close(handle)


def read_file(path: Path, torn: list[Path] | None = None) -> Iterator[Record]:
    """The records of one journal as they were written, header first, without their checksums.

    A journal that is being written may be read: only what it held when it was opened is looked at.

    Args:
        torn: gets ``path`` if the last line is torn; that line is left out. It was being written when the
            writer died (or is being written now), so nobody counted it.

    Raises:
        JournalDamaged: a line other than the last does not fit its checksum, or the header is missing.
        CampaignError: the journal was written by another version, or cannot be read.
    """
    try:
        # Read ahead in large pieces: a read costs a round trip on a network file system.
        with open(path, "rb", buffering=1 << 20) as file:
            left = os.fstat(file.fileno()).st_size
            number = 0
            while left > 0:
                line = file.readline(min(left, _LONGEST))
                left = left - len(line) if line else 0
                number += 1
                try:
                    record = decode(line)
                except ValueError as error:
                    # A torn write never leaves a whole record with anything but a newline behind it.
                    if left > 0 or _begins_whole(line):
                        raise JournalDamaged(path, number, str(error)) from error
                    if torn is not None:
                        torn.append(path)
                    return
                if number == 1:
                    _check_header(path, record)
                yield record
    except OSError as error:
        raise CampaignError(
            f"{path} cannot be read ({error.strerror or error}). Give read access, or name another directory."
        ) from error


def _check_header(path: Path, record: Record) -> None:
    if record.get("type") != "header":
        raise JournalDamaged(path, 1, f"the first record is {record.get('type')!r} where a header belongs")
    if record.get("version") != VERSION:
        raise CampaignError(
            f"{path} has version {record.get('version')!r} of the journal's format; this hpo reads version "
            f"{VERSION}. Use the hpo that wrote it, or start a campaign in a new directory."
        )


def damaged(directory: Path, fields: Mapping[str, object], reason: str) -> JournalDamaged:
    """The error for the first record of the campaign in ``directory`` that has these ``fields``."""
    for path in journal_files(directory):
        for number, record in enumerate(read_file(path), start=1):
            if all(record.get(name) == value for name, value in fields.items()):
                return JournalDamaged(path, number, reason)
    return JournalDamaged(directory / "journal", 1, reason)


def read_directory(directory: Path, torn: list[Path] | None = None) -> Iterator[Record]:
    """The records of all journals of the campaign in ``directory``, by leg, island and worker.

    Each file's header comes before its other records, which tells to which leg they belong. For ``torn`` and
    errors see :func:`read_file`.
    """
    for path in journal_files(directory):
        for number, record in enumerate(read_file(path, torn), start=1):
            lacking = flaw(record)
            if lacking is not None:
                raise JournalDamaged(path, number, lacking)
            yield record
