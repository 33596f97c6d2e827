"""Configurations that a launch has taken, so that launches which are at work together evaluate none twice."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

FOLDER = "claims"


class Reservations:
    """Reservations by ``launch`` in the campaign's ``directory``.

    Each is a symbolic link that leads nowhere: its target is the number of the launch, so that the file system makes it
    whole or not at all.

    Args:
        closed: launches whose journals were read after they were closed: of these, what no journal has is free.
        needed: whether other launches may take the same configurations; else nothing is reserved.
    """

    def __init__(
        self,
        directory: Path,
        launch: int,
        closed: Iterable[int] = (),
        needed: Callable[[], bool] = lambda: True,
    ) -> None:
        self._folder = directory / FOLDER
        self._launch = str(launch)
        self._closed = {*closed}
        self._needed = needed

    def learn_closed(self, launch: int) -> None:
        """Note that a launch is closed, and its journals are read."""
        self._closed.add(launch)

    def check(self) -> None:
        """Try whether reservations can be made; OSError where not."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"try-{self._launch}"
        with suppress(FileExistsError):
            path.symlink_to(self._launch)
        path.unlink()

    def take(self, key: str) -> int | None:
        """Reserve a configuration; the number of the launch that has it instead, None where this launch has it."""
        if not self._needed():
            return None
        path = self._path(key)
        # Storage that fails refuses nothing: to evaluate a configuration twice costs less than to stand still.
        with suppress(OSError, ValueError):
            turn = 0
            while (holder := self._link(path, turn)) in self._closed:
                turn += 1
            return None if holder == int(self._launch) else holder
        return None

    def release(self, key: str) -> None:
        """Let other launches take a configuration that this launch has reserved and not begun."""
        path = self._path(key)
        with suppress(OSError, ValueError):
            turn = 0
            while (holder := os.readlink(f"{path}.{turn}")) != self._launch:
                if int(holder) not in self._closed:
                    return
                turn += 1
            # Where this launch was closed while it hung, another has taken the configuration after it.
            if not os.path.lexists(f"{path}.{turn + 1}"):
                os.unlink(f"{path}.{turn}")

    def _path(self, key: str) -> Path:
        name = blake2b(key.encode(errors="surrogatepass"), digest_size=16).hexdigest()
        return self._folder / name[:2] / name[2:]

    def _link(self, path: Path, turn: int) -> int:
        """Make the link of that turn, unless it is there; number of the launch that has made it."""
        for _ in range(3):
            try:
                os.symlink(self._launch, f"{path}.{turn}")
            except FileExistsError:  # perhaps by this very call, whose first reply a file server has lost
                with suppress(FileNotFoundError):  # it was released meanwhile
                    return int(os.readlink(f"{path}.{turn}"))
            except FileNotFoundError:
                path.parent.mkdir(parents=True, exist_ok=True)
            else:
                return int(self._launch)
        raise OSError(f"{path} cannot be reserved")
