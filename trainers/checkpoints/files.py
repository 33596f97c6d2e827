"""The files of a checkpoint, and what ``latest`` says of them.

``DIRECTORY/step-000000123/`` holds ``shared.pt``, written by rank 0, ``rank-N.pt`` of each rank, and ``replica-N.pt``
of several ranks with the same model and optimizer, the first of which is rank N. ``DIRECTORY/latest`` names the step,
with the CRC-32 of each of these files on a line of its own, and is replaced last: at every moment it is of files that
are there. Without checksums, as it once was, nothing is compared; earlier versions also kept in each ``rank-N.pt`` what
``replica-N.pt`` has. Files are read with torch's ``weights_only``: tensors and plain data, no code. The number is that
of the step, or larger, where a run on another number of ranks went on at a smaller one.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, cast

import torch

Content = Mapping[str, object]

NOT_KNOWN = -1
"""In the place of a checksum that was not kept, or of a file that a rank does not write."""


def read_alone(directory: str | Path) -> Content:
    """All that rank 0 and the ranks together saved last in ``directory``, read by one process that belongs to no
    run. FileNotFoundError if nothing is there, ValueError if it is damaged.
    """
    directory = Path(directory)
    latest = latest_text(directory)
    if not latest:
        raise FileNotFoundError(f"{directory} holds no checkpoint. Name the directory that the run saved in.")
    files = Files(directory, latest)
    return {**files.read("shared.pt"), **files.of_rank(0)}


def step_directory(directory: Path, step: int) -> Path:
    return directory / f"step-{step:09d}"


def named(step: int, sums: Mapping[str, int]) -> str:
    """What ``latest`` says; ``sums`` are the checksums of the step's files by name."""
    return "".join([f"{step}\n", *(f"{name} {checksum:08x}\n" for name, checksum in sums.items())])


def latest_text(directory: Path) -> str:
    """What ``latest`` says, empty if it is not there. ValueError if it cannot be read, or is damaged."""
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
    """The step that ``latest`` names, and the checksums of its files."""
    first, *lines = text.splitlines() or [""]
    if not first.isdigit():
        raise ValueError(first)
    return int(first), {name: int(checksum, 16) for name, checksum in (line.split() for line in lines)}


class Files:
    """The files of the step that ``latest``, whose text is given, names in ``directory``."""

    def __init__(self, directory: Path, latest: str) -> None:
        self.number, self._sums = _parsed(latest)
        self.place = step_directory(directory, self.number)

    def read(self, name: str) -> Content:
        """What the file of this name holds. ValueError if it is damaged or missing."""
        return read(self.place / name, self._sums.get(name, NOT_KNOWN))

    def of_rank(self, rank: int) -> Content:
        """What this rank kept, for itself or together with others. ValueError if a file of it is damaged or missing."""
        own = self.read(f"rank-{rank}.pt")
        first = own.get("replica")
        return own if first is None else _joined(self.read(f"replica-{first}.pt"), own)


def _joined(content: Content, other: Content) -> Content:
    """Both, where they are dictionaries their entries, too; the ``other`` counts."""
    joined = {**content, **other}
    for name in content.keys() & other.keys():
        ours, theirs = content[name], other[name]
        if isinstance(ours, dict) and isinstance(theirs, dict):
            joined[name] = _joined(ours, theirs)
    return joined


class _Summing:
    """A file that is written from its beginning to its end, and the CRC-32 of what was."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.checksum = 0

    def write(self, content: bytes) -> int:
        self.checksum = zlib.crc32(content, self.checksum)
        return self._file.write(content)

    def flush(self) -> None:
        self._file.flush()


def write(path: Path, fill: Callable[[IO[bytes]], object]) -> int:
    """Have ``fill`` fill a new file, and put it in place of ``path`` once it is on the disk; its checksum."""
    partial = path.with_name(path.name + ".partial")
    with open(partial, "wb") as file:
        summing = _Summing(file)
        fill(cast("IO[bytes]", summing))
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    return summing.checksum


def write_tensors(path: Path, content: object) -> int:
    """As ``write``. ValueError if there is more in ``content`` than ``read`` takes."""
    checksum = write(path, lambda file: torch.save(content, file))
    if refused := torch.serialization.get_unsafe_globals_in_checkpoint(path):
        path.unlink()
        raise ValueError(
            f"The optimizer's state, or what a module adds to its own, has objects of {' and '.join(sorted(refused))}, "
            "and of a checkpoint nothing but tensors, numbers, texts, lists and dictionaries would be read again. Use "
            "another optimizer or module, or train without a checkpoint."
        )
    return checksum


def read(path: Path, checksum: int) -> Content:
    """What ``path`` holds, if its bytes have this ``checksum`` or there is none to compare."""
    try:
        damaged = checksum != NOT_KNOWN and _checksum(path) != checksum
        content = None if damaged else torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise refused(path, "is missing") from None
    except MemoryError:
        raise
    # Of bytes that are no checkpoint torch raises errors of any kind, and some advise to run the code in them.
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
        "directory, to start anew."
    )
