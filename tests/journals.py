"""Journal lines and records for tests: raw lines, whatever they hold, and records as the tables that lines hold."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

import hpo
from hpo.journal.directory import write_identity
from hpo.journal.files import journal_path
from hpo.journal.records import Record, decode, flat

T = 1.7e9
"""Unix seconds at which made-up launches begin."""


def line(table: Mapping[str, object]) -> bytes:
    """A line with a fitting checksum, by the format's description alone."""
    body = json.dumps(_spelt(table), separators=(",", ":"), ensure_ascii=False).encode()[:-1]
    return body + b',"crc":"%08x"}\n' % zlib.crc32(body)


def _spelt(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _spelt(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_spelt(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def record(table: Mapping[str, object]) -> Record:
    """The record that the line of ``table`` holds."""
    read = decode(line(table))
    assert read is not None, f"{table['type']} is no type of record"
    return read


def fields(record: Record) -> dict[str, Any]:
    """``record`` as the table that its line holds."""
    table: dict[str, Any] = msgspec.to_builtins(flat(record))
    return table


def header(launch: int = 1, worker: int = 0, time: float = 1.0) -> dict[str, object]:
    place = {"leg": launch, "island": 0, "worker": worker}
    return {"type": "header", "version": 1, **place, "host": "node", "pid": 1, "time": time}


def finished(
    identity: str, objectives: Mapping[str, float] | float | None = None, **fields: object
) -> dict[str, Any]:
    """The table of an end of ``identity``, which started as many seconds after ``T`` as its sequence number."""
    island, worker, sequence = map(int, identity.split("-"))
    values = objectives if isinstance(objectives, Mapping) or objectives is None else {"value": objectives}
    place = {"id": identity, "island": island, "worker": worker, "sequence": sequence}
    origin = {"params": {"lr": 0.1}, "operator": "random", "parents": [], "retries": 0}
    status = "failed" if objectives is None else "completed"
    end = {"started": T + sequence, "finished": T + sequence + 0.5, "status": status, "objectives": values}
    return {"type": "finished", **place, **origin, **end, "metrics": {}, "error": None, **fields}


def campaign(
    directory: Path,
    *workers: Iterable[Mapping[str, object]],
    objectives: Mapping[str, str] | None = None,
    space: hpo.SearchSpace | None = None,
    time: float = 1.0,
) -> Path:
    """A campaign in ``directory`` whose ``workers`` wrote these tables in its first launch."""
    identity = {"task": "x:y", "objectives": objectives or {"value": "minimize"}, "seed": 0}
    write_identity(directory, identity if space is None else {**identity, "space": space.describe()})
    for worker, tables in enumerate(workers):
        write(directory, tables, 1, worker, time)
    return directory


def launched(**fields: object) -> dict[str, Any]:
    asked = {"evaluations": 8, "deadline_s": None, "islands": 1, "workers": 1, "ranks_per_worker": 1}
    return {"type": "launched", **asked, "time": T, **fields}


def write(
    directory: Path,
    tables: Iterable[Mapping[str, object]],
    launch: int = 1,
    worker: int = 0,
    time: float = 1.0,
    job: str = "",
) -> Path:
    """The journal of ``worker`` of the first island in ``launch``, with a header that was written at ``time``, in the
    attempt ``job`` at a Slurm job."""
    path = journal_path(directory, launch=launch, island=0, worker=worker)
    path.parent.mkdir(parents=True, exist_ok=True)
    first = {**header(launch, worker, time), **({"job": job} if job else {})}
    path.write_bytes(b"".join(map(line, [first, *tables])))
    return path
