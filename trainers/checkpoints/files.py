"""Files of a checkpoint, and the file ``latest`` that names them.

``DIRECTORY/step-000000123/`` has ``shared.pt``, written by rank 0, ``rank-N.pt`` of each rank, and ``replica-N.pt`` of
several ranks with the same model and optimizer, the first of which is rank N. ``DIRECTORY/latest`` names the step, with
the CRC-32 of each of these files on a line of its own. It is replaced last, so that it always names existing files. The
number is that of the step, or larger if a run on another number of ranks was resumed at a smaller step. Files are read
with torch's ``weights_only``: tensors and plain data, no code.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import IO, cast

import torch

Content = Mapping[str, object]

NOT_KNOWN = -1
"""Number in place of the checksum of a file that a rank does not write."""


def step_directory(directory: Path, step: int) -> Path:
    return directory / f"step-{step:09d}"


def latest_text(directory: Path) -> str:
    """Text of ``latest``, "" if it is missing; ValueError if it cannot be read or is damaged."""
    latest = directory / "latest"
    try:
        text = latest.read_bytes().decode("ascii")
        _parsed(text)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        raise refused(latest, f"cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise refused(latest, "is damaged: it names no step") from error
    return text


def _parsed(text: str) -> tuple[int, dict[str, int]]:
    """Step in the text of ``latest``, and the checksums of its files by name."""
    first, *lines = text.splitlines() or [""]
    if not first.isdigit():
        raise ValueError(first)
    return int(first), {name: int(checksum, 16) for name, checksum in (line.split() for line in lines)}


class CheckpointFiles:
    """Files in ``directory`` of a whole checkpoint, that of the step in ``latest``, the text of the file of that name.

    Its properties raise ValueError if a file is damaged or missing.
    """

    def __init__(self, directory: Path, latest: str) -> None:
        self.number, self._sums = _parsed(latest)
        self._place = step_directory(directory, self.number)

    @cached_property
    def shared(self) -> Content:
        """Content that all ranks share."""
        return self._read("shared.pt")

    @property
    def ranks(self) -> int:
        """Number of ranks that saved it."""
        ranks = self.shared.get("ranks")
        if not isinstance(ranks, int):
            raise refused(self._place / "shared.pt", "is of something else than a run")
        return ranks

    def of_rank(self, rank: int) -> Content:
        """Content of a rank and of its replica; ValueError if a file is damaged or missing."""
        own = self._read(f"rank-{rank}.pt")
        first = own.get("replica")
        return own if first is None else _joined(self._read(f"replica-{first}.pt"), own)

    def _read(self, name: str) -> Content:
        return _read(self._place / name, self._sums.get(name))


def _joined(content: Content, other: Content) -> Content:
    """Union of two dictionaries, and of dictionaries in them; entries of ``other`` take precedence."""
    joined = {**content, **other}
    for name in content.keys() & other.keys():
        ours, theirs = content[name], other[name]
        if isinstance(ours, dict) and isinstance(theirs, dict):
            joined[name] = _joined(ours, theirs)
    return joined


class _Summing:
    """File that is written from its beginning to its end, with the CRC-32 of its content."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.checksum = 0

    def write(self, content: bytes) -> int:
        self.checksum = zlib.crc32(content, self.checksum)
        return self._file.write(content)

    def flush(self) -> None:
        self._file.flush()


def write(path: Path, fill: Callable[[IO[bytes]], object]) -> int:
    """Replace ``path`` atomically by a file that ``fill`` writes; returns its checksum."""
    partial = path.with_name(path.name + ".partial")
    with open(partial, "wb") as file:
        summing = _Summing(file)
        fill(cast("IO[bytes]", summing))
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    # The new name is durable only when the directory is on the disk too.
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    return summing.checksum


def write_tensors(path: Path, content: object) -> int:
    """Same as ``write`` for a structure of tensors; ValueError for objects that could not be read again."""
    checksum = write(path, lambda file: torch.save(content, file))
    if refused := torch.serialization.get_unsafe_globals_in_checkpoint(path):
        path.unlink()
        raise ValueError(
            f"The optimizer's state, or what a module adds to its own, has objects of {' and '.join(sorted(refused))}, "
            "and of a checkpoint nothing but tensors, numbers, texts, lists and dictionaries would be read again. Use "
            "another optimizer or module, or train without a checkpoint."
        )
    return checksum


def _read(path: Path, checksum: int | None) -> Content:
    try:
        damaged = _checksum(path) != checksum
        content = None if damaged else torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise refused(path, "is missing") from None
    except MemoryError:
        raise
    # torch raises errors of any class for bytes that are no checkpoint, and some advise to run the code in them.
    except Exception as error:
        why = getattr(error, "strerror", None) or type(error).__name__
        raise refused(path, f"cannot be read as tensors and plain data ({why})") from None
    if damaged:
        raise refused(path, "is damaged: its checksum is not that of what was written")
    if not isinstance(content, dict):
        raise refused(path, "is of something else than a run")
    return content


def _checksum(path: Path) -> int:
    found = 0
    with open(path, "rb") as file:
        while block := file.read(2**20):
            found = zlib.crc32(block, found)
    return found


def refused(path: Path, why: str) -> ValueError:
    return ValueError(
        f"The checkpoint's file {path} {why}. Put back a copy of the checkpoint, or remove it, or name another "
        "directory, to start from the beginning."
    )
