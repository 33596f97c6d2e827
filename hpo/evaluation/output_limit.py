"""Bounds the file of what an evaluation prints: its beginning and its end stay.

The evaluation writes to the file itself, so nothing that reads it can hold it up, and its last lines are there however
it dies. This process, which is not the evaluator, shortens the file from time to time. Whoever prints appends, child
processes too, and goes on at the new end.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

_INTERVAL_S = 0.25
_ROUNDS = 8
"""How often to look for what was printed meanwhile: who prints faster than a file can be copied is not waited for."""


class OutputLimit:
    """Keeps files of output below ``most_bytes``, one after the other, in a thread of its own; what is printed within a
    quarter of a second comes on top."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._path: Path | None = None
        self._lock = threading.Lock()
        self._ended = threading.Event()
        threading.Thread(target=self._look, name="output", daemon=True).start()

    def begin(self, path: Path) -> None:
        """Watch ``path`` from now on."""
        with self._lock:
            self._path = path

    def finish(self) -> None:
        """The evaluation is over: its file is shortened once more where it is too long."""
        with self._lock:
            path, self._path = self._path, None
            if path is not None:
                shorten(path, self._most)

    def close(self) -> None:
        """End the thread."""
        self._ended.set()

    def _look(self) -> None:
        while not self._ended.wait(_INTERVAL_S):
            with self._lock:
                if self._path is not None:
                    shorten(self._path, self._most)


def shorten(path: Path, most_bytes: int) -> None:
    """Leave the first and the last quarter of ``most_bytes`` in a file that is longer, with a line between them.

    The end is copied behind the beginning before the file is cut, so that it is there at any moment.
    """
    with suppress(OSError):  # not printed yet, or the storage fails, which the evaluation will say
        if os.stat(path, follow_symlinks=False).st_size <= most_bytes:
            return
        number = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            _shorten(number, most_bytes)
        finally:
            os.close(number)


def _shorten(number: int, most_bytes: int) -> None:
    quarter = most_bytes // 4
    head = os.pread(number, quarter, 0)
    keep = head.rfind(b"\n") + 1 or len(head)
    notice = (
        b"[hpo: output left out here, as more than %d bytes were printed: [logging] output]\n" % most_bytes
    )
    if notice in head:
        keep = head.index(notice)
    start = os.fstat(number).st_size - quarter
    read, end = start, keep
    for turn in range(_ROUNDS):
        text = os.pread(number, min(most_bytes, os.fstat(number).st_size - read), read)
        if not text:
            break
        read += len(text)
        if turn == 0:
            text = notice + text[text.find(b"\n") + 1 :]
        if end + len(text) > start:  # it would overwrite what is not yet copied
            break
        end += os.pwrite(number, text, end)
    os.ftruncate(number, end)
