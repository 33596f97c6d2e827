"""A terminal's screen, as a person sees it."""

from __future__ import annotations

import os
import pty
import struct
import termios
from fcntl import ioctl
from pathlib import Path

import pyte
from terminal import wait_until


def set_size(handle: int, columns: int, rows: int) -> None:
    ioctl(handle, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


class Screen:
    """Screen that shows all that arrives at ``master``, the other end of a pseudo-terminal."""

    def __init__(self, master: int, columns: int, rows: int) -> None:
        self.master = master
        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        os.set_blocking(master, False)

    @property
    def rows(self) -> list[str]:
        """The lines on the screen by now, to the last that is not empty."""
        try:
            while data := os.read(self.master, 1 << 16):
                self._stream.feed(data)
        except OSError:  # nothing there; or, as a pseudo-terminal puts it, nobody there
            pass
        rows = [row.rstrip() for row in self.screen.display]
        while rows and not rows[-1]:
            rows.pop()
        return rows


class Person(Screen):
    """Sits at a terminal, on which the command ``line`` runs in ``place``."""

    def __init__(self, place: Path, line: list[str], environment: dict[str, str], columns: int = 80) -> None:
        self.pid, master = pty.fork()
        if self.pid == 0:
            os.chdir(place)
            set_size(1, columns, 30)
            os.execve(line[0], line, {**environment, "TERM": "xterm-256color"})
        super().__init__(master, columns, 30)

    def sees(self, words: str) -> None:
        wait_until(lambda: any(words in row for row in self.rows), words, pause_s=0.02)

    def end(self) -> int:
        """How the command ended."""
        status: int | None = None

        def ended() -> bool:
            nonlocal status
            _ = self.rows
            gone, status = os.waitpid(self.pid, os.WNOHANG)
            return bool(gone)

        wait_until(ended, "the end of the command")
        assert status is not None
        return os.waitstatus_to_exitcode(status)
