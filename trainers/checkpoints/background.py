"""Writing of a rank's part of a checkpoint by a thread, while training continues."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

from trainers.checkpoints.files import NOT_KNOWN, named, step_directory, write, write_tensors

_LOOK_S = 0.2
"""Seconds between two looks of rank 0 for the files of other ranks."""


class Writing:
    """Writes a rank's part of the checkpoint after a step.

    Each rank writes the checksums of its files to ``rank-N.sum`` beside them. When rank 0 finds the checksums of all
    ranks, it names the step in ``latest``, without communication; if a shared file system shows them late, ``name``
    does so.

    Args:
        directory (path): checkpoint directory of the run.
        step (int): number of the step.
        content (dict): "own", on rank 0 also "shared", and on the first rank of a replica also "replica".
        rank (int): this rank.
        ranks (int): number of ranks.
        token (str): token of the run, which distinguishes its files from those of another run.
    """

    def __init__(
        self, directory: Path, step: int, content: dict[str, Any], *, rank: int, ranks: int, token: str
    ) -> None:
        self._directory = directory
        self._place = step_directory(directory, step)
        self._step = step
        self._content = content
        self._rank = rank
        self._ranks = ranks
        self._token = token
        self._sums = dict.fromkeys(_names(rank), NOT_KNOWN)
        self._error: Exception | None = None
        self._written = threading.Event()
        self._given_up = threading.Event()
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
            write(self._sum_of(self._rank), lambda file: file.write(text.encode()))
        except Exception as error:  # raised in the run's thread by its next call
            self._error = error
        finally:
            self._content = {}
            self._written.set()
        if self._rank == 0 and self._error is None:
            try:
                self._name_when_all_have_written()
            except Exception as error:
                self._error = error

    def _name_when_all_have_written(self) -> None:
        while (found := self._found()) is None:
            if self._given_up.wait(_LOOK_S):
                return
        self._name(found)

    def _found(self) -> list[list[int]] | None:
        """``parts`` of all ranks; None before all ranks have written theirs."""
        parts = []
        for rank in range(self._ranks):
            try:
                token, *sums = self._sum_of(rank).read_text("ascii").split()
                parts.append([int(checksum) for checksum in sums])
            except (OSError, ValueError):
                return None
            if token != self._token or len(sums) != len(self._sums):
                return None
        return parts

    def _name(self, parts: list[list[int]]) -> None:
        sums = {
            name: checksum
            for rank, of_rank in enumerate(parts)
            for name, checksum in zip(_names(rank).values(), of_rank, strict=True)
            if checksum != NOT_KNOWN
        }
        text = named(self._step, sums)
        write(self._directory / "latest", lambda file: file.write(text.encode()))
        self._named = True
        # Removed only now, so that there is a whole checkpoint at any time.
        for other in self._directory.glob("step-*"):
            if other != self._place:
                shutil.rmtree(other, ignore_errors=True)
        for rank in range(self._ranks):
            self._sum_of(rank).unlink(missing_ok=True)

    def _sum_of(self, rank: int) -> Path:
        return self._place / f"rank-{rank}.sum"


def _names(rank: int) -> dict[str, str]:
    """Names of the files that a rank writes, or may write, by part."""
    # The file that each rank has is last: if the common parts cannot be saved, it is not written either.
    return {"shared": "shared.pt", "replica": f"replica-{rank}.pt", "own": f"rank-{rank}.pt"}
