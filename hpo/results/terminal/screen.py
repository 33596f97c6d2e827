"""Draws lines at the end of what a terminal shows, over and over, with text scrolling by above them.

After each drawing the cursor rests at the beginning of the first line. So whatever becomes of the lines when a terminal
changes its size, wrapped anew or cut off, they are erased from there to the end of the screen. Each drawing is one
write that hides the cursor first and shows it last: a process that is killed leaves a terminal whose cursor is visible
and whose long lines wrap."""

from __future__ import annotations

import os
import select
from contextlib import suppress

_ERASE, _REST_OF_LINE = "\r\x1b[J", "\x1b[K"
_HIDE, _SHOW = "\x1b[?25l", "\x1b[?25h"
_NO_WRAP, _WRAP = "\x1b[?7l", "\x1b[?7h"
_FALLBACK = os.terminal_size((80, 24))


class Screen:
    """The terminal that the file descriptor ``handle`` is. One that is gone is written to no more."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._shown: list[str] = []
        self._size = self.size
        self.gone = False

    @property
    def size(self) -> os.terminal_size:
        """Columns and lines, now."""
        with suppress(OSError):
            found = os.get_terminal_size(self._handle)
            return found if found.columns > 0 and found.lines > 0 else _FALLBACK
        return _FALLBACK

    def draw(self, lines: list[str], text: str = "") -> None:
        """Show ``lines``, each narrower than the terminal, below ``text``, which stays and ends in a newline. Nothing
        is written where nothing has changed."""
        lines = lines[: max(0, self.size.lines - 1)]
        size, self._size = self._size, self.size
        if not text and lines == self._shown and size == self._size:
            return
        if text or size != self._size or len(lines) != len(self._shown):
            self._write(self._from_scratch(lines, text))
        else:
            self._write(self._changes(lines))
        self._shown = lines

    def clear(self, text: str = "") -> None:
        """Leave nothing but ``text``."""
        self.draw([], text)

    def forget(self) -> None:
        """What was drawn may not be there any more."""
        self._shown = []

    def _from_scratch(self, lines: list[str], text: str) -> str:
        parts = [_ERASE if self._shown else "", text.replace("\n", "\r\n")]
        if not lines:
            return "".join(parts)
        up = f"\x1b[{len(lines) - 1}A" if len(lines) > 1 else ""
        return "".join([_HIDE, *parts, _NO_WRAP, "\r\n".join(lines), _WRAP, "\r", up, _SHOW])

    def _changes(self, lines: list[str]) -> str:
        parts, at = [_HIDE, _NO_WRAP], 0
        for number, (before, line) in enumerate(zip(self._shown, lines)):
            if line != before:
                down = f"\x1b[{number - at}B" if number > at else ""
                parts.append(f"{down}{line}{_REST_OF_LINE}\r")
                at = number
        return "".join([*parts, _WRAP, f"\x1b[{at}A" if at else "", _SHOW])

    def _write(self, text: str) -> None:
        data = text.encode("utf-8", "replace")
        while data and not self.gone:
            try:
                data = data[os.write(self._handle, data) :]
            except BlockingIOError:  # another process has made it so
                select.select([], [self._handle], [], 1.0)
            except OSError:
                self.gone = True
