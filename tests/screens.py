"""A terminal's screen, as a person sees it."""

from __future__ import annotations

import os
import struct
import termios
from fcntl import ioctl

import pyte


def set_size(handle: int, columns: int, rows: int) -> None:
    ioctl(handle, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


class Screen:
    """What is shown of all that arrives at ``master``, the other end of a pseudo-terminal."""

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
