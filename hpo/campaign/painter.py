"""The panel of ``hpo run``: a process that owns the terminal while the campaign is at work.

What the campaign's processes write to the terminal (mpirun and its ranks, what is evaluated inline, C libraries) comes
through a pipe, is written above the panel, and stays there. As it is a process of its own, the panel goes on whatever
the campaign's process does, and when that dies, the terminal is left in order. Signals it leaves to the campaign."""

from __future__ import annotations

import codecs
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from hpo.config import process as this_process
from hpo.terminal import visible

_DRAW_S = 0.25
_PATIENCE_S = 0.6
"""A campaign that is refused within this time is never drawn."""
_FAREWELL_S = 3.0
_MOST_BYTES = 1 << 16
_LONGEST_TAIL = 4096
"""Characters: a line that goes on beyond that is shown in pieces."""
_SEQUENCE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*(?P<final>[@-~])|\][^\x07\x1b]*(?:\x07|\x1b\\)|[PX^_][^\x1b]*\x1b\\|[ -/]*[0-~])"
)
"""An order to a terminal, as of ECMA-48."""
_UNFINISHED = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|\][^\x07\x1b]*\x1b?|[PX^_][^\x1b]*\x1b?|[ -/]*)\Z")
_COLOUR = "m"
_PLAIN = "\x1b[0m"
_IN_ORDER = b"."
_WHOLE = b"\r\x1b[J\x1b[?25h\x1b[?7h"
"""Leaves a terminal without the panel, and as it was."""


# --- in the process of ``hpo run`` ------------------------------------------------------------------------------------


@contextmanager
def painted(directory: Path) -> Iterator[None]:
    """Where standard error is a terminal that can be drawn on, and this process is in its foreground: show there how
    the campaign in ``directory`` goes, and let all that writes to standard error, and to standard output where that is
    a terminal, write above it. Leaves the terminal as it was."""
    if this_process.terminal_columns() is None or not _in_foreground(2):
        yield
        return
    reading, writing = os.pipe()
    control, mine = os.pipe()
    # It inherits the mask: signals that reach the whole foreground are for the campaign.
    former = signal.pthread_sigmask(signal.SIG_BLOCK, _FOR_THE_CAMPAIGN)
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "hpo.campaign.painter", os.fspath(directory), str(control)],
            stdin=reading,
            stdout=subprocess.DEVNULL,
            pass_fds=[control],
        )
        streams = [(2, sys.stderr), *([(1, sys.stdout)] if sys.stdout.isatty() else [])]
        kept = [(number, stream, os.dup(number)) for number, stream in streams]
        fallback = _Fallback(process, reading, kept[0][2])
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)
        os.close(control)
    try:
        os.environ[this_process.PANEL] = str(os.getpid())
        for number, stream, _ in kept:
            stream.flush()
            os.dup2(writing, number)
        os.close(writing)
        yield
    finally:
        os.environ.pop(this_process.PANEL, None)
        for number, stream, handle in kept:
            with suppress(OSError):
                stream.flush()
            os.dup2(handle, number)
            os.close(handle)
        fallback.release()
        _dismiss(process, mine)
        fallback.join()


def _in_foreground(handle: int) -> bool:
    try:
        return os.tcgetpgrp(handle) == os.getpgrp()
    except OSError:  # of a terminal that controls no session there is no background
        return True


_FOR_THE_CAMPAIGN = {
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
}


def _dismiss(process: subprocess.Popen[bytes], control: int) -> None:
    """Have it write what is left, and clear the panel."""
    with suppress(OSError):
        os.write(control, _IN_ORDER)
    os.close(control)
    try:
        process.wait(_FAREWELL_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.returncode < 0:
        with suppress(OSError):
            os.write(2, _WHOLE)


class _Fallback:
    """Where ``process`` dies before its time, killed for memory maybe: writes what comes through the pipe ``reading``
    to ``handle``. Without a reader the pipe would break, and end mpirun with all of its ranks."""

    def __init__(self, process: subprocess.Popen[bytes], reading: int, handle: int) -> None:
        self._process = process
        self._reading, self._handle = reading, os.dup(handle)
        self._released = threading.Event()
        self._thread = threading.Thread(target=self._run, name="panel", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """``process`` may end, and nothing that matters comes any more."""
        self._released.set()

    def join(self) -> None:
        """Return when what has come is written, or soon: a terminal may be held up."""
        self._thread.join(_FAREWELL_S)

    def _run(self) -> None:
        code = self._process.wait()
        if not self._released.is_set():
            self._write(_WHOLE + b"hpo: the panel has ended (%d). The campaign goes on.\r\n" % code)
        while True:
            ready, _, _ = select.select([self._reading], [], [], 0.0 if self._released.is_set() else _DRAW_S)
            data = os.read(self._reading, _MOST_BYTES) if ready else b""
            self._write(data)
            if not data and (ready or self._released.is_set()):
                break
        os.close(self._reading)
        os.close(self._handle)

    def _write(self, data: bytes) -> None:
        with suppress(OSError):  # the terminal is gone
            while data:
                data = data[os.write(self._handle, data) :]


# --- in the process that draws ----------------------------------------------------------------------------------------


class Above:
    """What is written above the panel, made of the bytes that arrive: whole lines, with colours and without any other
    order to the terminal. ``tail``: a line without an end as it stands, a bar of progress for example."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._open = ""
        self.lines: list[str] = []

    @property
    def tail(self) -> str:
        return _as_shown(self._open)

    def add(self, data: bytes, *, final: bool = False) -> None:
        """Take ``data``; ``final``: nothing follows."""
        text = self._open + self._decoder.decode(data, final)
        *whole, self._open = text.split("\n")
        if final and self._open:
            whole, self._open = [*whole, self._open], ""
        if len(self._open) > _LONGEST_TAIL:  # without what was overwritten
            self._open = self._open[self._open.rfind("\r", 0, -1) + 1 :]
        while len(self._open) > _LONGEST_TAIL:
            whole.append(self._open[:_LONGEST_TAIL])
            self._open = self._open[_LONGEST_TAIL:]
        self.lines += map(_as_shown, whole)

    def take(self) -> str:
        """The lines since the last time."""
        lines, self.lines = self.lines, []
        return "".join(f"{line}{_PLAIN if _has_colour(line) else ''}\n" for line in lines)


def _has_colour(line: str) -> bool:
    return "\x1b" in line


def _as_shown(line: str) -> str:
    """What is left to see of a line that was overwritten by carriage returns."""
    segments = [segment for segment in _UNFINISHED.sub("", line).split("\r") if segment]
    if not segments:
        return ""
    parts, end = [], 0
    last = segments[-1]
    for found in _SEQUENCE.finditer(last):
        parts.append(visible(last[end : found.start()].replace("\x1b", "")))
        parts.append(found[0] if found["final"] == _COLOUR else "")
        end = found.end()
    return "".join([*parts, visible(last[end:].replace("\x1b", ""))])


class Painter:
    """Draws the panel on the terminal ``handle``, and what arrives at ``source`` above it, until ``control`` says that
    the campaign's process has put its own standard streams in order again, or that it has died."""

    def __init__(self, directory: Path, *, handle: int, source: int, control: int) -> None:
        from hpo.results.terminal.live import Looker, Source
        from hpo.results.terminal.screen import Screen

        self._directory = directory
        self._handle, self._source, self._control = handle, source, control
        self._screen = Screen(handle)
        self._above = Above()
        self._looker = Looker(Source(directory, own=True))
        self._begin = time.monotonic() + _PATIENCE_S
        self._next = 0.0
        self._began = False
        self._continued = False
        os.set_blocking(source, False)
        signal.signal(signal.SIGTSTP, self._suspend)

    def run(self) -> None:
        watched = [self._source, self._control]
        while self._control in watched:
            ready, _, _ = select.select(watched, [], [], _DRAW_S)
            if self._control in ready:
                watched.remove(self._control)
            elif self._source in ready and not self._read():
                watched.remove(self._source)
            if time.monotonic() >= self._next:
                self._draw()
                self._next = time.monotonic() + _DRAW_S
            elif ready == [self._source]:  # more of it may come: all together is drawn once
                time.sleep(max(0.0, min(self._next - time.monotonic(), 0.02)))
        self._finish(in_order=os.read(self._control, 1) == _IN_ORDER)

    def _read(self) -> bool:
        """Take what has arrived; False at its end."""
        try:
            data = os.read(self._source, _MOST_BYTES)
        except BlockingIOError:
            return True
        self._above.add(data)
        return bool(data)

    def _draw(self) -> None:
        if self._continued:
            self._continued = False
            self._screen.forget()
        text = self._above.take()
        if time.monotonic() < self._begin or not _in_foreground(self._handle):
            self._screen.clear(text)
            return
        from hpo.results.terminal import panel

        size = self._screen.size
        tail = self._above.tail
        made = panel.console(size.columns - 1)
        rows = max(1, size.lines - 2 - bool(tail))
        newest = self._looker.newest
        self._began = self._began or (newest is not None and newest.alive)
        lines = panel.lines(
            made, self._directory, newest, rows, time.time(), own=True, starting=not self._began
        )
        self._screen.draw([*([panel.cropped(made, tail)] if tail else []), *lines], text)

    def _finish(self, *, in_order: bool) -> None:
        """Clear the panel, and write what is left; where the campaign's process has died, also what those that it
        started still write."""
        os.set_blocking(self._source, not in_order)
        self._looker.stop()
        if not in_order:
            self._screen.clear(self._above.take())
        while True:
            try:
                data = os.read(self._source, _MOST_BYTES)
            except BlockingIOError:
                data = b""
            self._above.add(data, final=not data)
            if not data or not in_order:
                self._screen.clear(self._above.take())
            if not data:
                return

    def _suspend(self, number: int, frame: FrameType | None) -> None:
        self._screen.clear()
        self._continued = True
        os.kill(os.getpid(), signal.SIGSTOP)


def main() -> None:
    directory, control = Path(sys.argv[1]), int(sys.argv[2])
    try:
        Painter(directory, handle=2, source=0, control=control).run()
    except Exception as error:
        # The campaign goes on: it must not find its standard streams closed.
        with suppress(OSError):
            os.write(
                2,
                _WHOLE
                + f"hpo: the panel ended ({type(error).__name__}: {error}).\n".encode("utf-8", "replace"),
            )
        os.set_blocking(0, True)
        while data := os.read(0, _MOST_BYTES):
            with suppress(OSError):
                os.write(2, data)
    # At once: a thread that looks may hang with the storage.
    os._exit(0)


if __name__ == "__main__":
    main()
