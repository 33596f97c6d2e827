"""Checkpoints of a run, each of which counts only when all ranks have written their parts.

Files are written in the background, from a copy in the host's memory, while training continues. At the next ``save``,
or ``finish``, all ranks agree that the checkpoint before is whole; usually, rank 0 has seen that in the directory long
before.
"""

from __future__ import annotations

import logging
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from trainers.checkpoints.background import Writing
from trainers.checkpoints.files import Content, Files, latest_text, refused
from trainers.checkpoints.host_copy import HostCopy
from trainers.communication.communicator import Communicator

_log = logging.getLogger("trainers.checkpoints")


@dataclass(frozen=True)
class Found:
    """The last whole checkpoint."""

    files: Files
    shared: Content
    """Content that all ranks share."""
    ranks: int
    """Number of ranks that saved it."""

    def own(self, rank: int) -> Content:
        """Content of one of these ranks without the shared content; ValueError if it is damaged or missing."""
        return self.files.of_rank(rank)


class Checkpoint:
    """Checkpoint directory of a run, which all ranks must see. All methods are collective."""

    def __init__(self, directory: str | Path, communicator: Communicator) -> None:
        self._directory = Path(directory)
        self._communicator = communicator
        self._saved_step: int | None = None
        self._number = -1
        """Number in the name of the last directory, see ``trainers.checkpoints.files``."""
        self._writing: Writing | None = None
        self._memory = HostCopy()
        self._token = ""

    @property
    def rank(self) -> int:
        """Rank of this process in the run."""
        return self._communicator.rank

    def try_writing(self) -> None:
        """Raise ValueError if a rank cannot write to the directory, before there are results that could be lost."""
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

    def save(
        self, step: int, *, shared: Content, own: Content, replica: Content | None = None, wait: bool
    ) -> None:
        """Save the state after a step, and remove earlier checkpoints once it is whole.

        The state is copied, so that it may be changed afterwards.

        Args:
            step (int): number of steps so far.
            shared (dict): content that all ranks share, of which rank 0's is saved.
            own (dict): content of each rank. Ranks of a replica have the rank that saves it under "replica".
            replica (dict; default None): content that several ranks share, on the rank that saves it.
            wait (bool): whether to return only when all files are on the disk, as always at the first call.

        Raises:
            OSError: this checkpoint, or the checkpoint before, cannot be written by this rank.
            ValueError: another rank cannot write its part.
        """
        if step != self._saved_step:
            self.finish()
            communicator = self._communicator
            content: dict[str, object] = {"own": dict(own)}
            if communicator.rank == 0:
                content["shared"] = {"ranks": communicator.size, **shared}
            if replica is not None:
                content["replica"] = dict(replica)
            first = self._token == ""
            if first:
                self._token = self._agreed_token()
            # Never the directory of the last whole checkpoint, whose files count until these do.
            self._number = step if step > self._number else self._number + 1
            self._writing = Writing(
                self._directory,
                self._number,
                self._memory.of(content),
                rank=communicator.rank,
                ranks=communicator.size,
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
                if self._communicator.rank == 0:
                    writing.name(of_all)
            _log.debug("checkpoint of step %d is whole in %s", self._saved_step, self._directory)
        finally:
            writing.close()

    def close(self) -> None:
        """Wait until this rank has written its files, at the end of a run or after an error. Not collective."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.close()

    def text_of_first(self, text: str) -> str:
        """``text`` of rank 0, on all ranks."""
        content = bytearray(text.encode())
        channel = self._communicator.service
        length = int(channel.broadcast(torch.tensor([len(content)], device="cpu")).wait().item())
        if not length:
            return ""
        mine = torch.zeros(length, dtype=torch.uint8, device="cpu")
        if self._communicator.rank == 0:
            mine = torch.frombuffer(content, dtype=torch.uint8)
        return bytes(channel.broadcast(mine).wait().tolist()).decode()

    def _agreed_token(self) -> str:
        """Random token of rank 0, which distinguishes the files of this run from those that another run left."""
        mine = torch.tensor([secrets.randbits(62)], device="cpu")
        return f"{int(self._communicator.service.broadcast(mine).wait().item()):016x}"

    def load(self) -> Found | None:
        """Last whole checkpoint; None without any.

        Raises:
            ValueError: a file is damaged or missing, or another rank could not read it.
        """
        with self.by_all("read its latest of"):
            # Rank 0 decides: another rank may see the directory a moment earlier or later.
            latest = latest_text(self._directory) if self._communicator.rank == 0 else ""
        latest = self.text_of_first(latest)
        if not latest:
            return None
        files = Files(self._directory, latest)
        self._number = files.number
        with self.by_all("read its shared.pt of"):
            shared = files.read("shared.pt")
            ranks = shared.get("ranks")
            if not isinstance(ranks, int):
                raise refused(files.place / "shared.pt", "is of something else than a run")
        self._number = files.number
        return Found(files, shared, ranks)

    def is_saved(self, step: int) -> None:
        """Remember that the loaded checkpoint has the state after ``step``, so that it is not written again."""
        self._saved_step = step

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
