"""Configurations that a launch has taken, so that launches which are at work together evaluate none twice."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

FOLDER = "claims"


class Reservations:
    """Reservations by ``launch`` in the campaign's ``directory``.

    Each is a symbolic link that leads nowhere: its target is the number of the launch, so that the file system makes it
    whole or not at all. They serve spaces of few configurations only, as each costs a call to the file system.

    Args:
        over: numbers of closed launches whose journals were read: of these, what no journal has is free.
    """

    def __init__(self, directory: Path, launch: int, over: Iterable[int] = ()) -> None:
        self._folder = directory / FOLDER
        self._launch = str(launch)
        self.over = {*over}

    def take(self, key: str) -> int | None:
        """Reserve a configuration; the number of the launch that has it instead, None where this launch has it."""
        path = self._path(key)
        # Storage that fails refuses nothing: to evaluate a configuration twice costs less than to stand still.
        with suppress(OSError, ValueError):
            path.parent.mkdir(parents=True, exist_ok=True)
            turn = 0
            while (holder := self._link(f"{path}.{turn}")) in self.over:
                turn += 1
            return None if holder == int(self._launch) else holder
        return None

    def release(self, key: str) -> None:
        """Let other launches take a configuration that this launch has reserved and not begun."""
        path = self._path(key)
        with suppress(OSError, ValueError):
            turn = 0
            while (holder := os.readlink(f"{path}.{turn}")) != self._launch:
                if int(holder) not in self.over:
                    return
                turn += 1
            os.unlink(f"{path}.{turn}")

    def _path(self, key: str) -> Path:
        name = blake2b(key.encode(errors="surrogatepass"), digest_size=16).hexdigest()
        return self._folder / name[:2] / name[2:]

    def _link(self, path: str) -> int:
        """Make the link ``path``, unless it is there; number of the launch that has made it."""
        try:
            os.symlink(self._launch, path)
        except FileExistsError:  # perhaps by this very call, whose first reply a file server has lost
            return int(os.readlink(path))
        return int(self._launch)
