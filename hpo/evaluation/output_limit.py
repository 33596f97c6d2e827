"""Bounds the files of what an evaluator prints: the beginning and the end of each stay.

The evaluation writes to the file itself, so nothing that reads it can hold it up, and its last lines are there however
it dies. This process, which is not the evaluator, shortens the file from time to time. Whoever prints appends, child
processes too, and goes on at the new end.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from contextlib import suppress
from pathlib import Path

_SHORTEST_S, _LONGEST_S = 0.25, 2.0
"""Between two looks: the shorter time while something is printed."""
_WATCHED = 16
"""How many files, the latest, are looked at: a process that a completed evaluation left behind goes on printing."""
_CLOSE_S = 1.0
_PIECE = 1 << 20
_LINE_BYTES = 1 << 16
"""A longer line at the end of the beginning is cut."""


class OutputLimit:
    """Keeps the output files of an evaluator below ``most_bytes``, in a thread of its own; what is printed within two
    seconds comes on top."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._paths: deque[Path] = deque(maxlen=_WATCHED)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="output", daemon=True)
        self._thread.start()

    def begin(self, path: Path) -> None:
        """Watch ``path`` from now on."""
        if path not in self._paths:  # an individual may be evaluated again
            self._paths.append(path)

    def close(self) -> None:
        """End the thread, when it has looked once more; what takes longer than a second is not waited for."""
        self._ended.set()
        self._thread.join(_CLOSE_S)

    def _look(self) -> None:
        interval, printed = _SHORTEST_S, 0
        while True:
            ended = self._ended.wait(interval)
            before, printed = printed, sum(shorten(path, self._most) for path in list(self._paths))
            if ended:
                return
            interval = _SHORTEST_S if printed != before else min(2 * interval, _LONGEST_S)


def shorten(path: Path, most_bytes: int) -> int:
    """Leave the first and the last quarter of ``most_bytes`` in a file that is longer, with a line between them; return
    the bytes that it had, 0 where it cannot be read."""
    size = 0
    with suppress(OSError):  # not printed yet, or the storage fails, which the evaluation will say
        size = os.stat(path, follow_symlinks=False).st_size
        if size > most_bytes:
            number = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                _shorten(number, most_bytes)
            finally:
                os.close(number)
    return size


def _shorten(number: int, most_bytes: int) -> None:
    """The end is copied behind the beginning before the file is cut, so that it is there at any moment."""
    notice = (
        b"[hpo: output left out here, as more than %d bytes were printed: [logging] output]\n" % most_bytes
    )
    quarter = most_bytes // 4
    window = min(_LINE_BYTES, quarter)
    text = os.pread(number, window, quarter - window)
    # The beginning ends at the notice of an earlier time, or else after its last line.
    place = text.find(notice)
    end = quarter - window + (place if place >= 0 else text.rfind(b"\n") + 1 or window)
    start = read = os.fstat(number).st_size - quarter
    # Who prints faster than a file can be copied is not waited for.
    while read < start + most_bytes and (text := os.pread(number, min(_PIECE, most_bytes), read)):
        first = read == start
        read += len(text)
        if first:
            text = notice + text[text.find(b"\n") + 1 :]
        if end + len(text) > start:  # it would overwrite what is not yet copied
            break
        end += os.pwrite(number, text, end)
    os.ftruncate(number, end)
