"""The files of a checkpoint, and what ``latest`` says of them.

``DIRECTORY/step-000000123/`` holds ``shared.pt``, written by rank 0, and a file a rank; ``DIRECTORY/latest``
names the step, with the CRC-32 of each of these files on a line of its own, and is replaced last: at every
moment it is of files that are there. Without checksums, as it once was, nothing is compared. Files are read with
torch's ``weights_only``: tensors and plain data, no code.
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
"""In the place of a step that is not there, or of a checksum that was not kept."""


def read_alone(directory: str | Path) -> Content:
    """All that rank 0 and the ranks together saved last in ``directory``, read by one process that belongs to no
    run. FileNotFoundError if nothing is there, ValueError if it is damaged.
    """
    directory = Path(directory)
    latest = known(directory, 1)
    if latest is None:
        raise FileNotFoundError(f"{directory} holds no checkpoint. Name the directory that the run saved in.")
    step, shared_sum, own_sum = latest
    place = step_directory(directory, step)
    return {**read(place / "shared.pt", shared_sum), **read(place / "rank-0.pt", own_sum)}


def step_directory(directory: Path, step: int) -> Path:
    return directory / f"step-{step:09d}"


def named(step: int, shared_sum: int, own_sums: list[int]) -> str:
    """What ``latest`` says."""
    sums = zip(_files(len(own_sums)), [shared_sum, *own_sums], strict=True)
    return "".join([f"{step}\n", *(f"{name} {checksum:08x}\n" for name, checksum in sums)])


def known(directory: Path, ranks: int) -> list[int] | None:
    """What ``latest`` says: the step, and the checksums of ``shared.pt`` and of each rank's file. None if
    it is not there.
    """
    latest = directory / "latest"
    try:
        first, *lines = latest.read_bytes().decode("ascii").splitlines()
        sums = {name: int(checksum, 16) for name, checksum in (line.split() for line in lines)}
        if not first.isdigit():
            raise ValueError(first)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise refused(latest, f"cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise refused(latest, "is damaged: it names no step") from error
    return [int(first), *(sums.get(name, NOT_KNOWN) for name in _files(ranks))]


def _files(ranks: int) -> list[str]:
    return ["shared.pt", *(f"rank-{rank}.pt" for rank in range(ranks))]


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
