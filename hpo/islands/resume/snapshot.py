"""Cache of what the journals of closed launches hold, so that a launch need not read them all again.

The file ``DIR/launches/closed`` holds two digests and a ``Snapshot`` in MessagePack. Readers leave it out where it does
not fit the ledger, and a launch that had to read many records makes it again."""

from __future__ import annotations

import logging
import zlib
from functools import lru_cache
from pathlib import Path

import msgspec

from hpo.individual import Scalar
from hpo.islands.resume.state import ResumeState
from hpo.journal.durable import read_bounded, write_atomically
from hpo.journal.evaluations import CurrentEvaluations
from hpo.journal.records import Known, Migrated
from hpo.ledger.fold import LedgerState
from hpo.ledger.journals import snapshot_path
from hpo.search.population import Member
from hpo.task.limits import OutcomeLimits

_log = logging.getLogger("hpo.islands")

_VERSION = 1
"""Raise it where other facts are folded into the same types."""
_MOST_BYTES = 1 << 30
_HEAD = 8
"""Bytes of the digests of types and content."""


Lengths = dict[int, dict[int, tuple[int, ...]]]
"""Bytes that count of each part of each worker's journal, by launch."""


class Folded(msgspec.Struct, kw_only=True):
    """Facts in journals of which a ``ResumeState`` is made."""

    state: ResumeState = msgspec.field(default_factory=ResumeState)
    evaluations: CurrentEvaluations = msgspec.field(default_factory=CurrentEvaluations)
    moves: dict[str, dict[tuple[int, int, int], Migrated]] = {}
    """Moves by individual, then by hop, source and target."""
    latest: dict[int, list[tuple[float, str, Member]]] = {}
    """Heap of the members that finished last, with times and ids, by birthplace."""
    configurations: dict[str, dict[str, Scalar]] = {}
    """Parameters of kept members."""
    known: dict[int, Known] = {}
    withdrawn: set[int] = set()
    """Numbers of known points that do not count any more."""
    begun: dict[tuple[int, int], int] = {}
    """Number of individuals by island and worker where they were bred."""


class Snapshot(msgspec.Struct, kw_only=True):
    """Facts in the journals of the launches that were ``closed``, or came before the ledger."""

    closed: Lengths
    """``lengths_of`` the ledger then."""
    islands: int
    limits: OutcomeLimits
    """Limits of outcomes by which members are judged."""
    folded: Folded
    members: dict[int, tuple[list[Member], list[Member], list[Member], list[Member]]]
    """The best, the most recent, the pruned and the failed members, by birthplace."""


def lengths_of(state: LedgerState) -> Lengths:
    """Lengths of the launches that take no more part; of launches before the ledger all counts, and nothing is
    named."""
    older = 0 if state.opened is None else state.opened.launches
    closed = {launch: dict(one.lengths) for launch, one in state.closed.items()}
    return {launch: {} for launch in range(1, older + 1)} | closed


@lru_cache(maxsize=1)
def _types() -> bytes:
    """Digest of the version and of all fields and their types: other code may have written the file."""
    return zlib.crc32(f"{_VERSION} {msgspec.inspect.type_info(Snapshot)}".encode()).to_bytes(4, "big")


def _head(body: bytes | memoryview) -> bytes:
    return _types() + zlib.crc32(body).to_bytes(4, "big")


def read(directory: Path, lengths: Lengths, islands: int, limits: OutcomeLimits) -> Snapshot | None:
    """The snapshot in the campaign's ``directory``; None where there is none that fits this version of hpo, the number
    of ``islands``, the ``limits`` of outcomes and the present ``lengths``."""
    try:
        data, _ = read_bounded(snapshot_path(directory), _MOST_BYTES)
        body = memoryview(data)[_HEAD:]
        if data[:_HEAD] != _head(body):
            raise ValueError("it is damaged, or of another version")
        found = msgspec.msgpack.decode(body, type=Snapshot)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        _log.debug("%s is left out: %s", snapshot_path(directory), error)
        return None
    holds = all(lengths.get(launch) == own for launch, own in found.closed.items())
    return found if (found.islands, found.limits) == (islands, limits) and holds else None


def write(directory: Path, snapshot: Snapshot) -> None:
    """Keep ``snapshot`` for later launches, if that is possible."""
    path = snapshot_path(directory)
    try:
        data = msgspec.msgpack.encode(snapshot)
        for partial in path.parent.glob(f".{path.name}.*"):  # of a launch that was killed as it wrote
            partial.unlink()
        write_atomically(path, _head(data) + data, durable=False)
    except (OSError, ValueError, OverflowError, msgspec.EncodeError) as error:
        _log.debug("%s is not written: %s", path, error)
