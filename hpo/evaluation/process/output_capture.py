"""Sends all that an evaluation prints to a file of its own, whatever prints it."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hpo.task.trial_directory import make_directory


class OutputCapture:
    """Where descriptors 1 and 2 lead: to the evaluation's file, or back to where they led at the start."""

    def __init__(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
        self._streams = sys.stdout, sys.stderr
        self._between = os.dup(1)
        self._path: Path | None = None
        self._number = -1
        self._flush_native: Callable[[None], int] = ctypes.CDLL(None).fflush

    def open(self, path: Path) -> None:
        """Append what is printed from here on to ``path``."""
        for _ in range(10):
            make_directory(path.parent)
            try:
                self._number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
                break
            except FileNotFoundError:  # a rank that printed nothing has just removed the directory
                continue
        else:
            raise OSError(f"{path.parent} disappears as fast as it is made")
        self._path = path
        self._redirect(self._number)

    def close(self) -> None:
        """End the file. If it is empty it is removed, and the directory with it unless that holds more."""
        if self._path is None:
            return
        path, self._path = self._path, None
        self._flush()
        # A stream that a task put there would write into its files in later evaluations too.
        sys.stdout, sys.stderr = self._streams
        empty = False
        # Errors of its file system, such as a quota on NFS, are reported here, when the evaluation is over as it is.
        with suppress(OSError):
            empty = os.fstat(self._number).st_size == 0  # not of 1, which the task may have led elsewhere
        with suppress(OSError):
            os.close(self._number)
        self._redirect(self._between)
        if empty:
            with suppress(OSError):  # other ranks or the task have left something there
                path.unlink()
                path.parent.rmdir()

    def _redirect(self, number: int) -> None:
        self._flush()
        os.dup2(number, 1)
        os.dup2(number, 2)

    def _flush(self) -> None:
        for stream in (sys.stdout, sys.stderr, *self._streams):
            # A full disk, or a task that closed it, or that put there what has no flush.
            with suppress(Exception):
                stream.flush()
        self._flush_native(None)
