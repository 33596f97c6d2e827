"""``DIR/journal/snapshot``: the folded journals of earlier launches, so that the next launch reads later journals
alone.

It is a cache, and the journals are the truth. It names the journals that it was folded from, with their sizes and times
of change, and counts where these are the first of all journals and unchanged, and campaign, islands and hpo's own code
are the same. Anything else in its place is ignored."""

from __future__ import annotations

import hashlib
import math
import os
import stat
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import msgspec
from msgspec import field

from hpo.individual import Scalar
from hpo.islands.resume.state import Folded
from hpo.journal.durable import write_atomically
from hpo.journal.evaluations import EvaluationsState
from hpo.journal.records import Id, Known, Migrated
from hpo.search.population import Member, PopulationState

_NAME = "journal/snapshot"
# Bytes of new journals for which a snapshot is due, as fewer are read in a fraction of a second, and for
# this share of the bytes that the last snapshot covers.
_LEAST_BYTES = 1 << 20
_LEAST_SHARE = 0.1
_FAREWELL_S = 5.0
_DIGEST = 32

Stamp = tuple[str, int, int]
"""Name, bytes, and time of change in ns of a journal."""


class FoldState(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """State of ``hpo.islands.resume.fold`` after the campaign's first ``journals`` (a number)."""

    journals: int = 0
    folded: Folded = field(default_factory=Folded)
    launch: int = 0
    updated: float = -math.inf
    """Time of the last record of the launch that is read."""
    torn: list[str] = []
    contested: int = 0
    """Last launch that began while earlier launches may still have run."""
    evaluations: EvaluationsState | None = None
    reports: dict[int, list[tuple[str, int, float]]] = {}
    moves: dict[str, dict[tuple[int, int, int], Migrated]] = {}
    born: dict[int, PopulationState] = {}
    """Members by birthplace."""
    latest: dict[int, list[tuple[float, str, Member]]] = {}
    """Heap of the members that finished last, by birthplace."""
    configurations: dict[Id, dict[str, Scalar]] = {}
    """Parameters of kept members."""
    known: dict[int, Known] = {}
    enqueued: dict[str, dict[str, Scalar]] = {}
    """Parameters of individuals that were enqueued, by id."""


class _File(msgspec.Struct):
    context: bytes
    """Digest of all else that the state depends on."""
    journals: list[Stamp]
    state: msgspec.Raw


_encoder = msgspec.msgpack.Encoder()
_file_decoder = msgspec.msgpack.Decoder(_File)
_state_decoder = msgspec.msgpack.Decoder(FoldState)


def stamps(files: Sequence[Path]) -> list[Stamp]:
    """Stamps of the journals in ``files``; none where one is no plain file. Take them before the journals are read, so
    that they do not fit journals that change meanwhile."""
    found = []
    for path in files:
        try:
            # Attributes after the file was opened: those of an NFS client may be a minute old otherwise, and
            # later records would be left out.
            with open(_opened(path), "rb") as file:
                status = os.fstat(file.fileno())
        except OSError:  # the reader of the journal will raise it
            return []
        if not stat.S_ISREG(status.st_mode):
            return []
        found.append((path.name, status.st_size, status.st_mtime_ns))
    return found


def read(directory: Path, journals: list[Stamp], islands: int) -> FoldState | None:
    """The state after the first of ``journals``; None where no snapshot fits them."""
    try:
        found = _file_decoder.decode(_content(directory / _NAME, limit=_bytes(journals)))
        covered = len(found.journals)
        fits = covered and found.journals == journals[:covered]
        if not fits or found.context != _context(directory, islands):
            return None
        state = _state_decoder.decode(found.state)
        members = [one for born in state.born.values() for kind in born[:4] for one in kind]
        members += [one for latest in state.latest.values() for _, _, one in latest]
        if not all(one.id in state.configurations for one in members):
            return None
    except (OSError, ValueError, RecursionError):
        return None
    state.journals = covered
    return state


def is_due(journals: list[Stamp], covered: int) -> bool:
    """Whether to take a snapshot of ``journals``, of which the last covers the first ``covered``."""
    further = _bytes(journals[covered:])
    return further >= max(_LEAST_BYTES, _LEAST_SHARE * _bytes(journals[:covered]))


def encode(directory: Path, journals: list[Stamp], islands: int, state: FoldState) -> bytes:
    """Data for ``write_beside``; empty where ``state`` cannot be kept."""
    try:
        file = _File(_context(directory, islands), journals, msgspec.Raw(_encoder.encode(state)))
    except (OSError, ValueError, OverflowError, TypeError):
        return b""
    data = bytearray(_DIGEST)
    _encoder.encode_into(file, data, _DIGEST)
    data[:_DIGEST] = _digest(memoryview(data)[_DIGEST:])
    return bytes(data) if len(data) <= _bytes(journals) else b""


def write_beside(directory: Path, data: bytes) -> Callable[[], None]:
    """Write the snapshot ``data`` in a thread of its own, while the campaign's lock is held. Call the returned function
    to wait for it, for a few seconds: without it the next launch reads more."""

    def write() -> None:
        path = directory / _NAME
        with suppress(OSError):
            # Remains of a process that was killed while it wrote.
            for left in path.parent.glob(f".{path.name}.{'[0-9a-f]' * 32}"):
                left.unlink()
            write_atomically(path, data)

    thread = threading.Thread(target=write, name="snapshot", daemon=True)
    thread.start()
    return lambda: thread.join(_FAREWELL_S)


def _opened(path: Path) -> int:
    # Neither waits for whoever might write into a pipe, nor follows a link out of the directory.
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)


def _content(path: Path, limit: int) -> memoryview:
    handle = _opened(path)
    with open(handle, "rb") as file:
        found = os.fstat(handle)
        # It is never larger than the journals.
        if not stat.S_ISREG(found.st_mode) or found.st_size > limit:
            raise ValueError(f"{path} is no file of ours")
        data = memoryview(file.read(found.st_size))
    if _digest(data[_DIGEST:]) != data[:_DIGEST]:
        raise ValueError(f"{path} is damaged")
    return data[_DIGEST:]


def _digest(data: memoryview) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST).digest()


def _bytes(journals: Sequence[Stamp]) -> int:
    return sum(size for _, size, _ in journals)


def _context(directory: Path, islands: int) -> bytes:
    digest = hashlib.blake2b(_code() + b"%d\n" % islands, digest_size=_DIGEST)
    digest.update((directory / "campaign.json").read_bytes())
    return digest.digest()


@cache
def _code() -> bytes:
    """Digest of all modules of hpo: other code may fold the same journals to another state."""
    digest = hashlib.blake2b(digest_size=_DIGEST)
    for path in sorted(Path(__file__).parents[2].rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.digest()
