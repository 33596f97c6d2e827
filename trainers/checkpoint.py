"""Checkpoints that are whole or not there: what every rank wrote for a step counts once all have written.

``DIRECTORY/step-000000123/`` holds ``shared.pt``, written by rank 0, and a file a rank; ``DIRECTORY/latest``
names the step and is replaced last. Files are read with torch's ``weights_only``: tensors and plain data, no
code.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import torch

from trainers.communication import Communicator

Content = Mapping[str, object]


class Checkpoint:
    """The checkpoint directory of one run. All methods are collective; the directory is one that all ranks
    see.
    """

    def __init__(self, directory: str | Path, communicator: Communicator) -> None:
        self._directory = Path(directory)
        self._communicator = communicator
        self._saved_step: int | None = None

    def save(self, step: int, *, shared: Content, own: Content) -> None:
        """Keep ``shared`` (rank 0's counts) and every rank's ``own``; earlier steps are removed. OSError as
        the disk says.
        """
        if step == self._saved_step:
            return
        communicator, place = self._communicator, _step_directory(self._directory, step)
        place.mkdir(parents=True, exist_ok=True)
        if communicator.rank == 0:
            _write(place / "shared.pt", lambda file: torch.save({"ranks": communicator.size, **shared}, file))
        _write(place / f"rank-{communicator.rank}.pt", lambda file: torch.save(dict(own), file))
        communicator.service.barrier(communicator.device)
        if communicator.rank == 0:
            _write(self._directory / "latest", lambda file: file.write(str(step).encode()))
            for other in self._directory.glob("step-*"):
                if other != place:
                    shutil.rmtree(other, ignore_errors=True)
        # Where a method lets ranks run ahead, one could be writing the next step while others are removed.
        communicator.service.barrier(communicator.device)
        self._saved_step = step

    def load(self) -> tuple[Content, Content] | None:
        """(shared, own) of the last step that was saved; None if there is none. ValueError if other ranks
        wrote it, or another rank could not read it.
        """
        communicator = self._communicator
        latest = self._directory / "latest"
        with self._by_all("latest"):
            # Rank 0 decides: another rank may see the directory a moment earlier or later.
            known = int(latest.read_text()) if communicator.rank == 0 and latest.exists() else -1
        told = torch.tensor([known], device=communicator.device)
        step = int(communicator.service.broadcast(told).wait().item())
        if step < 0:
            return None
        place = _step_directory(self._directory, step)
        with self._by_all("shared.pt"):
            shared = _read(place / "shared.pt")
        if shared["ranks"] != communicator.size:
            raise ValueError(
                f"{place} was written by {shared['ranks']} ranks and is read by {communicator.size}. "
                "Use as many ranks, or name another checkpoint directory to start anew."
            )
        with self._by_all("rank-N.pt"):
            own = _read(place / f"rank-{communicator.rank}.pt")
        self._saved_step = step
        return shared, own

    @contextmanager
    def _by_all(self, what: str) -> Iterator[None]:
        """Inside, each rank reads ``what``. Where one cannot, it raises why, and the others that it could not:
        else they would wait for it.
        """
        try:
            yield
        except Exception:
            self._failed(failed=True)
            raise
        ranks = self._failed(failed=False)
        if ranks:
            raise ValueError(
                f"Rank {', '.join(map(str, ranks))} could not read its {what} of the checkpoint in "
                f"{self._directory}. See what it printed; all ranks must see the same directory."
            )

    def _failed(self, *, failed: bool) -> list[int]:
        """The ranks that say so."""
        mine = torch.tensor([int(failed)], device=self._communicator.device)
        said = self._communicator.service.all_gather(mine)
        return [rank for rank, flag in enumerate(said) if flag.item()]

    def __str__(self) -> str:
        return str(self._directory)


def read_alone(directory: str | Path) -> Content:
    """All that rank 0 and the ranks together saved last in ``directory``, read by one process that belongs to no
    run. FileNotFoundError if nothing is there.
    """
    directory = Path(directory)
    latest = directory / "latest"
    if not latest.exists():
        raise FileNotFoundError(f"{directory} holds no checkpoint. Name the directory that the run saved in.")
    place = _step_directory(directory, int(latest.read_text()))
    return {**_read(place / "shared.pt"), **_read(place / "rank-0.pt")}


def _step_directory(directory: Path, step: int) -> Path:
    return directory / f"step-{step:09d}"


def _write(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Have ``write`` fill a new file, and put it in place of ``path`` once it is on the disk."""
    partial = path.with_name(path.name + ".partial")
    with open(partial, "wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _read(path: Path) -> Content:
    content = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(content, dict):
        raise ValueError(f"{path} is no checkpoint of this package. Name another checkpoint directory.")
    return content
