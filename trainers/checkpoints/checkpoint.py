"""Checkpoints that are whole or not there: what every rank wrote for a step counts once all have written.

The files are written in the background, from a copy in the host's memory, while training goes on. A later ``save``, or
``finish``, has all ranks agree that the one before is whole; usually rank 0 has seen that in the directory long before.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from trainers.checkpoints.background import Writing
from trainers.checkpoints.files import NOT_KNOWN, Content, known, read, refused, step_directory
from trainers.checkpoints.host_copy import HostCopy
from trainers.communication.communicator import Communicator


class Checkpoint:
    """The checkpoint directory of one run. All methods are collective; the directory is one that all ranks
    see.
    """

    def __init__(self, directory: str | Path, communicator: Communicator) -> None:
        self._directory = Path(directory)
        self._communicator = communicator
        self._saved_step: int | None = None
        self._writing: Writing | None = None
        self._memory = HostCopy()
        self._token = ""

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

    def save(self, step: int, *, shared: Content, own: Content, wait: bool) -> None:
        """Keep ``shared`` (rank 0's counts) and every rank's ``own``; earlier steps are removed. What is given may be
        changed afterwards. The first time, and with ``wait``, this returns when all is on the disk.

        Raises:
            OSError: the disk refuses this checkpoint, or the one before.
            ValueError: that of another rank does.
        """
        if step != self._saved_step:
            self.finish()
            communicator = self._communicator
            content = {"own": dict(own)}
            if communicator.rank == 0:
                content["shared"] = {"ranks": communicator.size, **shared}
            first = self._token == ""
            if first:
                self._token = self._agreed_token()
            self._writing = Writing(
                self._directory,
                step,
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
                    writing.name(of_all[0][0], [own_sum for _, own_sum in of_all])
        finally:
            writing.close()

    def close(self) -> None:
        """The run is over, maybe by an error: what is being written is written to its end, by this rank alone."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.close()

    def _agreed_token(self) -> str:
        """By which the files of this run are known from those that another left; rank 0's."""
        mine = torch.tensor([secrets.randbits(62)], device=self._communicator.device)
        return f"{int(self._communicator.service.broadcast(mine).wait().item()):016x}"

    def load(self) -> tuple[Content, Content] | None:
        """(shared, own) of the last step that was saved; None if there is none. ValueError if a file is damaged
        or missing, other ranks wrote it, or another rank could not read it.
        """
        communicator = self._communicator
        with self.by_all("read its latest of"):
            # Rank 0 decides: another rank may see the directory a moment earlier or later.
            latest = known(self._directory, communicator.size) if communicator.rank == 0 else None
        sent = torch.tensor(latest or [NOT_KNOWN] * (2 + communicator.size), device=communicator.device)
        step, shared_sum, *own_sums = communicator.service.broadcast(sent).wait().tolist()
        if step == NOT_KNOWN:
            return None
        place = step_directory(self._directory, step)
        with self.by_all("read its shared.pt of"):
            shared = read(place / "shared.pt", shared_sum)
            ranks = shared.get("ranks")
            if not isinstance(ranks, int):
                raise refused(place / "shared.pt", "is of something else than a run")
            if ranks != communicator.size:
                raise ValueError(
                    f"{place} was written by {ranks} ranks and is read by {communicator.size}. "
                    "Use as many ranks, or name another checkpoint directory to start anew."
                )
        with self.by_all("read its rank-N.pt of"):
            own = read(place / f"rank-{communicator.rank}.pt", own_sums[communicator.rank])
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
