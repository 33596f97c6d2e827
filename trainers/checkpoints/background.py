"""One rank's part in writing a checkpoint, by a thread, while training goes on."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

from trainers.checkpoints.files import NOT_KNOWN, named, step_directory, write, write_tensors

_LOOK_S = 0.2
"""How often rank 0 looks whether the others have written."""


class Writing:
    """Writes ``content`` ("own", on rank 0 "shared", and on the first rank of a replica "replica") of one step of a
    run, which has this ``token``.

    Each rank leaves the checksums of its files in ``rank-N.sum`` beside them. When rank 0 finds those of all it names
    the step in ``latest``, without any communication; where a shared file system shows them late, ``name`` does so.
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
        """The checksums of this rank's files, in the order of ``_names``, once they are on the disk; NOT_KNOWN
        for those that it does not write.
        """
        # As long as the disk takes: ranks that wait for this one have their own time-outs.
        self._written.wait()
        if self._error is not None:
            raise self._error
        return list(self._sums.values())

    def name(self, parts: list[list[int]]) -> None:
        """Have ``latest`` name the step, if it does not yet; on rank 0, with the ``parts`` of all ranks."""
        self.close()
        if self._error is not None:
            raise self._error
        if not self._named:
            self._name(parts)

    def close(self) -> None:
        """Return when this rank's files are written; look for those of others no more."""
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
        except Exception as error:  # raised where the run next looks
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
        """The ``parts`` of all ranks, None before the last has left its."""
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
        for other in self._directory.glob("step-*"):
            if other != self._place:
                shutil.rmtree(other, ignore_errors=True)
        for rank in range(self._ranks):
            self._sum_of(rank).unlink(missing_ok=True)

    def _sum_of(self, rank: int) -> Path:
        return self._place / f"rank-{rank}.sum"


def _names(rank: int) -> dict[str, str]:
    """Of the files that this rank writes, or may write. Last is the one that each rank has: where what is common cannot
    be saved, nothing is left.
    """
    return {"shared": "shared.pt", "replica": f"replica-{rank}.pt", "own": f"rank-{rank}.pt"}
