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
    """Writes ``content`` ("own", and on rank 0 "shared") of one step of a run, which has this ``token``.

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
        self._sums = [NOT_KNOWN, NOT_KNOWN]
        self._error: Exception | None = None
        self._written = threading.Event()
        self._given_up = threading.Event()
        self._named = False
        self._thread = threading.Thread(target=self._run, name="checkpoint", daemon=True)
        self._thread.start()

    def parts(self) -> list[int]:
        """The checksums of ``shared.pt``, if it is this rank's, and of its own file, once they are on the disk."""
        # As long as the disk takes: ranks that wait for this one have their own time-outs.
        self._written.wait()
        if self._error is not None:
            raise self._error
        return self._sums

    def name(self, shared_sum: int, own_sums: list[int]) -> None:
        """Have ``latest`` name the step, if it does not yet; on rank 0, when all ranks have written."""
        self.close()
        if self._error is not None:
            raise self._error
        if not self._named:
            self._name(shared_sum, own_sums)

    def close(self) -> None:
        """Return when this rank's files are written; look for those of others no more."""
        self._given_up.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._place.mkdir(parents=True, exist_ok=True)
            if self._rank == 0:
                self._sums[0] = write_tensors(self._place / "shared.pt", self._content["shared"])
            self._sums[1] = write_tensors(self._place / f"rank-{self._rank}.pt", self._content["own"])
            text = f"{self._token} {self._sums[0]} {self._sums[1]}\n"
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
        self._name(self._sums[0], found)

    def _found(self) -> list[int] | None:
        """The checksums of all ranks' own files, None before the last has left its."""
        sums = []
        for rank in range(self._ranks):
            try:
                token, _, own = self._sum_of(rank).read_text("ascii").split()
            except (OSError, ValueError):
                return None
            if token != self._token or not own.isdigit():
                return None
            sums.append(int(own))
        return sums

    def _name(self, shared_sum: int, own_sums: list[int]) -> None:
        sums = {f"rank-{rank}.pt": own_sum for rank, own_sum in enumerate(own_sums)}
        text = named(self._step, {"shared.pt": shared_sum, **sums})
        write(self._directory / "latest", lambda file: file.write(text.encode()))
        self._named = True
        for other in self._directory.glob("step-*"):
            if other != self._place:
                shutil.rmtree(other, ignore_errors=True)
        for rank in range(self._ranks):
            self._sum_of(rank).unlink(missing_ok=True)

    def _sum_of(self, rank: int) -> Path:
        return self._place / f"rank-{rank}.sum"
