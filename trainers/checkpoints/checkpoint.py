"""Checkpoints of a run, each of which counts only when all ranks have written their parts.

Files are written in the background, from a copy in the host's memory, while training continues. At the next ``save``,
or ``finish``, all ranks agree that the checkpoint before is whole; usually, rank 0 has seen that in the directory long
before.
"""

from __future__ import annotations

import logging
import secrets
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from trainers.checkpoints.files import (
    NOT_KNOWN,
    CheckpointFiles,
    Content,
    latest_text,
    step_directory,
    write,
    write_tensors,
)
from trainers.checkpoints.host_copy import HostCopy
from trainers.communication.communicator import Communicator

_log = logging.getLogger("trainers.checkpoints")
_POLL_S = 0.2
"""Seconds between two looks of rank 0 for the files of other ranks."""


class Checkpoint:
    """Checkpoint directory of a run, which all ranks must see. All methods are collective but ``close``."""

    def __init__(self, directory: str | Path, communicator: Communicator) -> None:
        self._directory = Path(directory)
        self._communicator = communicator
        self._rank = communicator.rank
        self._saved_step: int | None = None
        self._number = -1
        """Number in the name of the last directory, see ``trainers.checkpoints.files``."""
        self._writing: _Writing | None = None
        self._memory = HostCopy()
        self._token = ""

    def try_writing(self) -> None:
        """Raise ValueError if a rank cannot write to the directory, before there are results that could be lost."""
        with self.by_all("write to"):
            trial = self._directory / f"rank-{self._rank}.trial"
            try:
                self._directory.mkdir(parents=True, exist_ok=True)
                trial.write_bytes(b"\n")
                trial.unlink()
            except OSError as error:
                raise ValueError(
                    f"checkpoint = {str(self._directory)!r}: rank {self._rank} on {socket.gethostname()} cannot write "
                    f"there ({error.strerror}). Name a directory that all ranks see and may write to."
                ) from error

    def save(
        self, step: int, *, shared: Content, own: Content, replica: Content | None = None, wait: bool
    ) -> None:
        """Save a copy of the state after a step, and remove earlier checkpoints once it is whole.

        OSError if this rank, ValueError if another cannot write its part of this checkpoint, or of that before.

        Args:
            step (int): number of steps so far.
            shared (dict): content that all ranks share, of which rank 0's is saved.
            own (dict): content of each rank. Ranks of a replica have the rank that saves it under "replica".
            replica (dict; default None): content that several ranks share, on the rank that saves it.
            wait (bool): whether to return only when all files are on the disk, as always at the first call.
        """
        if step != self._saved_step:
            # One checkpoint at a time is written, as the memory of the copy is used again.
            self.finish()
            content: dict[str, object] = {"own": dict(own)}
            if self._rank == 0:
                content["shared"] = {"ranks": self._communicator.size, **shared}
            if replica is not None:
                content["replica"] = dict(replica)
            first = self._token == ""
            if first:
                self._token = self.text_of_first(secrets.token_hex(8))
            # Never the directory of the last whole checkpoint, whose files count until these do.
            self._number = step if step > self._number else self._number + 1
            self._writing = _Writing(
                self._directory,
                self._number,
                self._memory.of(content),
                rank=self._rank,
                ranks=self._communicator.size,
                token=self._token,
            )
            self._saved_step = step
            # A mistake in the directory or the state shows at the first checkpoint.
            wait = wait or first
        if wait:
            self.finish()

    def finish(self) -> None:
        """Wait until the last checkpoint is whole; raises the same errors as ``save``."""
        writing, self._writing = self._writing, None
        if writing is None:
            return
        try:
            with self.by_all("write its part of"):
                sums = writing.parts()
            of_all = self._of_all(sums)
            # All ranks wait for this: a rank that runs ahead could otherwise write the next step while rank 0 removes
            # the directories of other steps.
            with self.by_all("name the last step of"):
                if self._rank == 0:
                    writing.name(of_all)
            _log.debug("checkpoint of step %d is whole in %s", self._saved_step, self._directory)
        finally:
            writing.close()

    def close(self) -> None:
        """Wait until this rank has written its files, at the end of a run or after an error."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.close()

    def load(self) -> CheckpointFiles | None:
        """Last whole checkpoint, None without any; ValueError if a rank cannot read it."""
        with self.by_all("read its latest of"):
            # Rank 0 decides: another rank may see the directory a moment earlier or later.
            latest = latest_text(self._directory) if self._rank == 0 else ""
        latest = self.text_of_first(latest)
        if not latest:
            return None
        files = CheckpointFiles(self._directory, latest)
        self._number = files.number
        with self.by_all("read its shared.pt of"):
            _ = files.ranks  # reads the file
        return files

    def is_saved(self, step: int) -> None:
        """Remember that the loaded checkpoint has the state after ``step``, so that it is not written again."""
        self._saved_step = step

    def text_of_first(self, text: str) -> str:
        """``text`` of rank 0, on all ranks."""
        content = bytearray(text.encode())
        channel = self._communicator.service
        length = int(channel.broadcast(torch.tensor([len(content)], device="cpu")).wait().item())
        if not length:
            return ""
        mine = torch.zeros(length, dtype=torch.uint8, device="cpu")
        if self._rank == 0:
            mine = torch.frombuffer(content, dtype=torch.uint8)
        return bytes(channel.broadcast(mine).wait().tolist()).decode()

    @contextmanager
    def by_all(self, what: str) -> Iterator[None]:
        """Context in which each rank does ``what`` to the checkpoint by itself; after an error, all ranks raise.

        The rank with the error raises it, and the other ranks, which would otherwise wait for it, raise ValueError.
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
        """Integers ``numbers`` of each rank, in order of rank."""
        mine = torch.tensor(numbers, device="cpu")
        return [part.tolist() for part in self._communicator.service.all_gather(mine)]

    def __str__(self) -> str:
        return str(self._directory)


class _Writing:
    """Writes a rank's part of the checkpoint after a step by a thread, while training continues.

    Each rank writes the checksums of its files to ``rank-N.sum`` beside them. When rank 0 finds the checksums of all
    ranks, it names the step in ``latest``, without communication; if a shared file system shows them late, ``name``
    does so. ``token`` distinguishes the run's files from those of another run.
    """

    def __init__(
        self, directory: Path, step: int, content: dict[str, Any], *, rank: int, ranks: int, token: str
    ) -> None:
        self._directory = directory
        self._place = step_directory(directory, step)
        self._step = step
        self._content = content
        self._rank, self._ranks = rank, ranks
        self._token = token
        self._sums = dict.fromkeys(_names(rank), NOT_KNOWN)
        self._error: Exception | None = None
        self._written, self._given_up = threading.Event(), threading.Event()
        self._named = False
        self._thread = threading.Thread(target=self._run, name="checkpoint", daemon=True)
        self._thread.start()

    def parts(self) -> list[int]:
        """Wait until this rank's files are on the disk; returns their checksums in the order of ``_names``.

        The checksum of a file that this rank does not write is NOT_KNOWN.
        """
        # Without a time-out, as the ranks that wait for this rank have theirs.
        self._written.wait()
        if self._error is not None:
            raise self._error
        return list(self._sums.values())

    def name(self, parts: list[list[int]]) -> None:
        """Name the step in ``latest`` unless it is there, on rank 0, with the ``parts`` of all ranks."""
        self.close()
        if self._error is not None:
            raise self._error
        if not self._named:
            self._name(parts)

    def close(self) -> None:
        """Wait until this rank's files are written, and stop looking for those of others."""
        self._given_up.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._place.mkdir(parents=True, exist_ok=True)
            for part, name in _names(self._rank).items():
                if part in self._content:
                    self._sums[part] = write_tensors(self._place / name, self._content[part])
            text = f"{self._token} {' '.join(map(str, self._sums.values()))}\n"
            write(self._sum_file(self._rank), lambda file: file.write(text.encode()))
        except Exception as error:  # raised in the run's thread by its next call
            self._error = error
        finally:
            self._content = {}
            self._written.set()
        if self._rank == 0 and self._error is None:
            try:
                while (found := self._parts_of_all()) is None:
                    if self._given_up.wait(_POLL_S):
                        return
                self._name(found)
            except Exception as error:
                self._error = error

    def _parts_of_all(self) -> list[list[int]] | None:
        """``parts`` of all ranks; None before all ranks have written theirs."""
        parts = []
        for rank in range(self._ranks):
            try:
                token, *sums = self._sum_file(rank).read_text("ascii").split()
                parts.append([int(checksum) for checksum in sums])
            except (OSError, ValueError):
                return None
            if token != self._token or len(sums) != len(self._sums):
                return None
        return parts

    def _name(self, parts: list[list[int]]) -> None:
        sums = [
            f"{name} {checksum:08x}\n"
            for rank, of_rank in enumerate(parts)
            for name, checksum in zip(_names(rank).values(), of_rank, strict=True)
            if checksum != NOT_KNOWN
        ]
        text = f"{self._step}\n{''.join(sums)}"
        write(self._directory / "latest", lambda file: file.write(text.encode()))
        self._named = True
        # Removed only now, so that there is a whole checkpoint at any time.
        for other in self._directory.glob("step-*"):
            if other != self._place:
                shutil.rmtree(other, ignore_errors=True)
        for rank in range(self._ranks):
            self._sum_file(rank).unlink(missing_ok=True)

    def _sum_file(self, rank: int) -> Path:
        return self._place / f"rank-{rank}.sum"


def _names(rank: int) -> dict[str, str]:
    """Names of the files that a rank writes, or may write, by part."""
    # The file that each rank has is last: if the common parts cannot be saved, it is not written either.
    return {"shared": "shared.pt", "replica": f"replica-{rank}.pt", "own": f"rank-{rank}.pt"}
