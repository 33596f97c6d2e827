"""Checkpoints that are whole or not there: what every rank wrote for a step counts once all have written.

``DIRECTORY/step-000000123/`` holds ``shared.pt``, written by rank 0, and a file a rank; ``DIRECTORY/latest``
names the step, with the CRC-32 of each of these files on a line of its own, and is replaced last: at every
moment it is of files that are there. Without checksums, as it once was, nothing is compared. Files are read with
torch's ``weights_only``: tensors and plain data, no code.
"""

from __future__ import annotations

import os
import shutil
import socket
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

import numpy as np
import torch

from trainers.communication.communicator import Communicator

Content = Mapping[str, object]

_NOT_KNOWN = -1
"""In the place of a step that is not there, or of a checksum that was not kept."""


class Checkpoint:
    """The checkpoint directory of one run. All methods are collective; the directory is one that all ranks
    see.
    """

    def __init__(self, directory: str | Path, communicator: Communicator) -> None:
        self._directory = Path(directory)
        self._communicator = communicator
        self._saved_step: int | None = None

    def try_writing(self) -> None:
        """ValueError if a rank cannot write there: better now than when there is something to lose."""
        with self.by_all("write to"):
            trial = self._directory / f"rank-{self._communicator.rank}.trial"
            try:
                self._directory.mkdir(parents=True, exist_ok=True)
                trial.write_bytes(b"\n")
                trial.unlink()
            except OSError as error:
                raise ValueError(
                    f"checkpoint = {str(self._directory)!r}: rank {self._communicator.rank} on "
                    f"{socket.gethostname()} cannot write there ({error.strerror}). Name a directory that all ranks "
                    "see and may write to."
                ) from error

    def save(self, step: int, *, shared: Content, own: Content) -> None:
        """Keep ``shared`` (rank 0's counts) and every rank's ``own``; earlier steps are removed. OSError as
        the disk says; ValueError where that is another rank's.
        """
        if step == self._saved_step:
            return
        communicator, place = self._communicator, _step_directory(self._directory, step)
        mine = [_NOT_KNOWN, _NOT_KNOWN]
        with self.by_all("write its part of"):
            place.mkdir(parents=True, exist_ok=True)
            if communicator.rank == 0:
                content = _plain({"ranks": communicator.size, **shared})
                mine[0] = _write_tensors(place / "shared.pt", content)
            mine[1] = _write_tensors(place / f"rank-{communicator.rank}.pt", _plain(dict(own)))
        sums = self._of_all(mine)
        # Where a method lets ranks run ahead, one could be writing the next step while others are removed.
        with self.by_all("name the last step of"):
            if communicator.rank == 0:
                text = _named(step, sums[0][0], [own_sum for _, own_sum in sums])
                _write(self._directory / "latest", lambda file: file.write(text.encode()))
                for other in self._directory.glob("step-*"):
                    if other != place:
                        shutil.rmtree(other, ignore_errors=True)
        self._saved_step = step

    def load(self) -> tuple[Content, Content] | None:
        """(shared, own) of the last step that was saved; None if there is none. ValueError if a file is damaged
        or missing, other ranks wrote it, or another rank could not read it.
        """
        communicator = self._communicator
        with self.by_all("read its latest of"):
            # Rank 0 decides: another rank may see the directory a moment earlier or later.
            known = _known(self._directory, communicator.size) if communicator.rank == 0 else None
        sent = torch.tensor(known or [_NOT_KNOWN] * (2 + communicator.size), device=communicator.device)
        step, shared_sum, *own_sums = communicator.service.broadcast(sent).wait().tolist()
        if step == _NOT_KNOWN:
            return None
        place = _step_directory(self._directory, step)
        with self.by_all("read its shared.pt of"):
            shared = _read(place / "shared.pt", shared_sum)
            ranks = shared.get("ranks")
            if not isinstance(ranks, int):
                raise _refused(place / "shared.pt", "is of something else than a run")
            if ranks != communicator.size:
                raise ValueError(
                    f"{place} was written by {ranks} ranks and is read by {communicator.size}. "
                    "Use as many ranks, or name another checkpoint directory to start anew."
                )
        with self.by_all("read its rank-N.pt of"):
            own = _read(place / f"rank-{communicator.rank}.pt", own_sums[communicator.rank])
        self._saved_step = step
        return shared, own

    @contextmanager
    def by_all(self, what: str) -> Iterator[None]:
        """Inside, each rank does ``what`` to the checkpoint, without the others. Where one cannot, it raises why,
        and the others a ValueError that it could not: else they would wait for it.
        """
        try:
            yield
        except Exception:
            self._of_all([1])
            raise
        ranks = [rank for rank, (failed,) in enumerate(self._of_all([0])) if failed]
        if ranks:
            raise ValueError(
                f"Rank {', '.join(map(str, ranks))} could not {what} the checkpoint in "
                f"{self._directory}. See what it printed; all ranks must see the same directory."
            )

    def _of_all(self, numbers: list[int]) -> list[list[int]]:
        """The whole ``numbers`` of each rank, once all are here."""
        mine = torch.tensor(numbers, device=self._communicator.device)
        return [part.tolist() for part in self._communicator.service.all_gather(mine)]

    def __str__(self) -> str:
        return str(self._directory)


def read_alone(directory: str | Path) -> Content:
    """All that rank 0 and the ranks together saved last in ``directory``, read by one process that belongs to no
    run. FileNotFoundError if nothing is there, ValueError if it is damaged.
    """
    directory = Path(directory)
    known = _known(directory, 1)
    if known is None:
        raise FileNotFoundError(f"{directory} holds no checkpoint. Name the directory that the run saved in.")
    step, shared_sum, own_sum = known
    place = _step_directory(directory, step)
    return {**_read(place / "shared.pt", shared_sum), **_read(place / "rank-0.pt", own_sum)}


def _plain(value: object) -> object:
    """``value`` with numpy's numbers in it, of an optimizer's settings maybe, as Python's: others cannot be read."""
    if isinstance(value, np.generic):
        return value.item()
    # Not their subclasses, which other things may make of their parts.
    if type(value) is dict:
        return {name: _plain(part) for name, part in value.items()}
    if type(value) is list or type(value) is tuple:
        return type(value)(map(_plain, value))
    return value


def _step_directory(directory: Path, step: int) -> Path:
    return directory / f"step-{step:09d}"


def _named(step: int, shared_sum: int, own_sums: list[int]) -> str:
    """What ``latest`` says."""
    sums = zip(_files(len(own_sums)), [shared_sum, *own_sums], strict=True)
    return "".join([f"{step}\n", *(f"{name} {checksum:08x}\n" for name, checksum in sums)])


def _known(directory: Path, ranks: int) -> list[int] | None:
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
        raise _refused(latest, f"cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise _refused(latest, "is damaged: it names no step") from error
    return [int(first), *(sums.get(name, _NOT_KNOWN) for name in _files(ranks))]


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


def _write(path: Path, write: Callable[[IO[bytes]], object]) -> int:
    """Have ``write`` fill a new file, and put it in place of ``path`` once it is on the disk; its checksum."""
    partial = path.with_name(path.name + ".partial")
    with open(partial, "wb") as file:
        summing = _Summing(file)
        write(cast("IO[bytes]", summing))
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    return summing.checksum


def _write_tensors(path: Path, content: object) -> int:
    """As ``_write``. ValueError if there is more in ``content`` than ``_read`` takes."""
    checksum = _write(path, lambda file: torch.save(content, file))
    if refused := torch.serialization.get_unsafe_globals_in_checkpoint(path):
        path.unlink()
        raise ValueError(
            f"The optimizer's state, or what a module adds to its own, has objects of {' and '.join(sorted(refused))}, "
            "and of a checkpoint nothing but tensors, numbers, texts, lists and dictionaries would be read again. Use "
            "another optimizer or module, or train without a checkpoint."
        )
    return checksum


def _read(path: Path, checksum: int) -> Content:
    """What ``path`` holds, if its bytes have this ``checksum`` or there is none to compare."""
    try:
        damaged = checksum != _NOT_KNOWN and _checksum(path) != checksum
        content = None if damaged else torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise _refused(path, "is missing") from None
    except MemoryError:
        raise
    # Of bytes that are no checkpoint torch raises errors of any kind, and some advise to run the code in them.
    except Exception as error:
        why = getattr(error, "strerror", None) or type(error).__name__
        raise _refused(path, f"cannot be read as tensors and plain data ({why})") from None
    if damaged:
        raise _refused(path, "is damaged: its checksum is not that of what was written")
    if not isinstance(content, dict):
        raise _refused(path, "is of something else than a run")
    return content


def _checksum(path: Path) -> int:
    found = 0
    with open(path, "rb") as file:
        while block := file.read(2**20):
            found = zlib.crc32(block, found)
    return found


def _refused(path: Path, why: str) -> ValueError:
    return ValueError(
        f"The checkpoint's file {path} {why}. Put back a copy of the checkpoint, or remove it, or name another "
        "directory, to start anew."
    )
