"""Checkpoints that are whole or not there: what every rank wrote for a step counts once all have written.

The files are written in the background, from a copy in the host's memory, while training goes on. A later ``save``, or
``finish``, has all ranks agree that the one before is whole; usually rank 0 has seen that in the directory long before.
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
    """What was saved last."""

    files: Files
    shared: Content
    ranks: int
    """That saved it."""

    def own(self, rank: int) -> Content:
        """What this one of them kept, but for what all did. ValueError if that is damaged or missing."""
        return self.files.of_rank(rank)


class Checkpoint:
    """The checkpoint directory of one run. All methods are collective; the directory is one that all ranks
    see.
    """

    def __init__(self, directory: str | Path, communicator: Communicator) -> None:
        self._directory = Path(directory)
        self._communicator = communicator
        self._saved_step: int | None = None
        self._number = -1
        """Of the directory in which ``latest`` has what was saved last."""
        self._writing: Writing | None = None
        self._memory = HostCopy()
        self._token = ""

    @property
    def rank(self) -> int:
        """This rank."""
        return self._communicator.rank

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

    def save(
        self, step: int, *, shared: Content, own: Content, replica: Content | None = None, wait: bool
    ) -> None:
        """Keep ``shared`` (rank 0's counts), every rank's ``own``, and ``replica`` of those that give one; "replica" in
        the ``own`` of the ranks that it is of is the one that gives it. Earlier steps are removed. What is given may be
        changed afterwards. The first time, and with ``wait``, this returns when all is on the disk.

        Raises:
            OSError: the disk refuses this checkpoint, or the one before.
            ValueError: that of another rank does.
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
            # Never where the files are that count until these do.
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
            # What is wrong with the directory, or the state, shows at once.
            wait = wait or first
        if wait:
            self.finish()

    def finish(self) -> None:
        """Return when the checkpoint that was begun last is whole; errors as of ``save``."""
        writing, self._writing = self._writing, None
        if writing is None:
            return
        try:
            with self.by_all("write its part of"):
                sums = writing.parts()
            of_all = self._of_all(sums)
            # Where a method lets ranks run ahead, one could be writing the next step while others are removed.
            with self.by_all("name the last step of"):
                if self._communicator.rank == 0:
                    writing.name(of_all)
            _log.debug("checkpoint of step %d is whole in %s", self._saved_step, self._directory)
        finally:
            writing.close()

    def close(self) -> None:
        """The run is over, maybe by an error: what is being written is written to its end, by this rank alone."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.close()

    def text_of_first(self, text: str) -> str:
        """Rank 0's ``text``, on every rank."""
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
        """By which the files of this run are known from those that another left; rank 0's."""
        mine = torch.tensor([secrets.randbits(62)], device="cpu")
        return f"{int(self._communicator.service.broadcast(mine).wait().item()):016x}"

    def load(self) -> Found | None:
        """What was saved last, None if there is nothing. ValueError if a file is damaged or missing, or another rank
        could not read it.
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
        """What was loaded is what would be saved after ``step``: then it is not written again."""
        self._saved_step = step

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
        mine = torch.tensor(numbers, device="cpu")
        return [part.tolist() for part in self._communicator.service.all_gather(mine)]

    def __str__(self) -> str:
        return str(self._directory)
