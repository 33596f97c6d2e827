"""Panel of a campaign while it runs, drawn by a thread of the process that supervises it: on its terminal, where all
other output comes through a pipe and is printed above the panel, or in the cell of a notebook."""

from __future__ import annotations

import codecs
import contextvars
import fcntl
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from hpo.config import process
from hpo.terminal import visible

if TYPE_CHECKING:
    from rich.text import Text

_DRAW_S = 0.25
# A campaign that is refused within this time is never drawn.
_PATIENCE_S = 0.6
# Wait for the last drawing: a terminal may be held up, and storage may hang.
_FAREWELL_S = 5.0
# Room for what is printed between two drawings. A call that prints more than that, and meanwhile keeps this process's
# other threads from running, would wait for them for ever.
_PIPE_BYTES = 1 << 20
# Characters: a longer line is shown in pieces.
_LONGEST_TAIL = 4096
_KERNEL = "ZMQInteractiveShell"


@contextmanager
def live_panel(directory: Path) -> Iterator[tuple[int, ...]]:
    """Show the campaign in ``directory``: in the cell of a notebook, or on the terminal in whose foreground this
    process is. Yields file descriptors for programs that are to go on where this process is killed: without a reader
    the pipe would break, which ends mpirun with all of its ranks."""
    on_terminal = process.terminal_columns() is not None and _in_foreground(2)
    if process.panel_shown() or not (on_terminal or in_notebook()):
        yield ()
        return
    os.environ[process.PANEL] = str(os.getpid())
    try:
        if in_notebook():
            with _in_cell(directory):
                yield ()
        else:
            with _on_terminal(directory) as source:
                yield (source,)
    finally:
        os.environ.pop(process.PANEL, None)


# --- on a terminal ----------------------------------------------------------------------------------------------------


def _in_foreground(handle: int) -> bool:
    try:
        return os.tcgetpgrp(handle) == os.getpgrp()
    except OSError:  # a terminal that controls no session has no background
        return True


@contextmanager
def _on_terminal(directory: Path) -> Iterator[int]:
    """Lead standard error, and standard output where it is a terminal, through a pipe to the panel; yields its reading
    end."""
    source, pipe = os.pipe()
    with suppress(OSError, AttributeError):  # beyond what the user may have; not Linux
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    streams = [(2, sys.stderr), *([(1, sys.stdout)] if sys.stdout.isatty() else [])]
    kept = [(number, stream, os.dup(number)) for number, stream in streams]
    panel = _TerminalPanel(directory, terminal=os.dup(2), source=source)
    try:
        for number, stream, _ in kept:
            stream.flush()
            os.dup2(pipe, number)
        os.close(pipe)
        yield source
    finally:
        for number, stream, handle in kept:
            with suppress(OSError):
                stream.flush()
            os.dup2(handle, number)
            os.close(handle)
        panel.end()


class _TerminalPanel:
    """Draws the panel on the descriptor ``terminal``, and what arrives at ``source`` above it; closes both."""

    def __init__(self, directory: Path, *, terminal: int, source: int) -> None:
        self._directory = directory
        self._terminal, self._source = terminal, source
        os.set_blocking(source, False)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="panel", daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join(_FAREWELL_S)

    def _run(self) -> None:
        try:
            self._draw_until_ended()
        except Exception as error:
            # The campaign goes on, and has to find a reader of what it writes.
            self._write(f"\r\x1b[Jhpo: the panel ended ({type(error).__name__}: {error}).\n".encode())
            while not self._ended.wait(_DRAW_S):
                self._write(self._read())
            self._write(self._read())
        finally:
            os.close(self._source)
            os.close(self._terminal)

    def _draw_until_ended(self) -> None:
        from rich.console import Group

        from hpo.views.terminal.live import LivePanel, Looker, OverviewSource
        from hpo.views.terminal.panel import panel

        printed = Printed()
        looker = Looker(OverviewSource(self._directory, own=True))
        live = LivePanel(self._terminal)
        began = time.monotonic()
        at_work = False
        drawn: tuple[object, ...] = ()
        live.start()
        try:
            while not self._ended.wait(_DRAW_S):
                printed.add(self._read())
                newest = looker.newest
                at_work = at_work or (newest is not None and newest.alive)
                if time.monotonic() < began + _PATIENCE_S or not _in_foreground(self._terminal):
                    live.draw(None, above=printed.take())
                    drawn = ()
                    continue
                columns, rows = live.size
                above = printed.take()
                # Drawing takes some 20 ms, in which nothing else of this process runs.
                state = (newest, int(time.time()), columns, rows, str(printed.tail))
                if state == drawn and above is None:
                    continue
                drawn = state
                unfinished = [] if printed.tail is None else [printed.tail]
                shown = panel(
                    self._directory,
                    newest,
                    time.time(),
                    columns=columns,
                    rows=rows - len(unfinished),
                    own=True,
                    starting=not at_work,
                )
                live.draw(Group(*unfinished, shown), above=above)
        finally:
            looker.stop()
            printed.add(self._read(), final=True)
            live.draw(None, above=printed.take())
            live.stop()

    def _read(self) -> bytes:
        with suppress(BlockingIOError):
            return os.read(self._source, _PIPE_BYTES)
        return b""

    def _write(self, data: bytes) -> None:
        with suppress(OSError):  # the terminal is gone
            while data:
                data = data[os.write(self._terminal, data) :]


class Printed:
    """Text printed above the panel, made of the bytes that arrive: whole lines with their colours, and without any
    other order to the terminal."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._open = ""
        self._lines: list[str] = []

    @property
    def tail(self) -> Text | None:
        return _as_shown(self._open) if self._open else None

    def add(self, data: bytes, *, final: bool = False) -> None:
        *lines, rest = (self._open + self._decoder.decode(data, final)).split("\n")
        rest = rest[rest.rfind("\r", 0, -1) + 1 :]  # without what was overwritten
        if rest and (final or len(rest) > _LONGEST_TAIL):
            lines, rest = [*lines, rest], ""
        self._lines += lines
        self._open = rest

    def take(self) -> Text | None:
        from rich.text import Text

        lines, self._lines = self._lines, []
        return Text("\n").join(map(_as_shown, lines)) if lines else None


def _as_shown(line: str) -> Text:
    """Visible rest of a line that was overwritten after carriage returns."""
    from rich.text import Text

    # rich ends an operating system command at ST alone, not at BEL.
    last = line.rstrip("\r").rpartition("\r")[2].replace("\x07", "\x1b\\")
    text = Text.from_ansi("\x1b".join(map(visible, last.split("\x1b"))))
    text.plain = text.plain.replace("\x1b", "")  # remains of a broken sequence
    return text


# --- in a notebook ----------------------------------------------------------------------------------------------------


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook, unlike an IPython on a terminal."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return get_ipython is not None and type(get_ipython()).__name__ == _KERNEL


@contextmanager
def _in_cell(directory: Path) -> Iterator[None]:
    """Show the panel in the cell, drawn by a thread: storage may hang, and so may evaluations inside this process."""
    from hpo.errors import HpoError
    from hpo.views.terminal.live import OverviewSource
    from hpo.views.terminal.panel import cell

    source = OverviewSource(directory, own=True)
    handle = import_module("IPython.display").display(cell(directory, None), display_id=True)
    ended = threading.Event()

    def draw() -> None:
        with suppress(HpoError, OSError):  # which may pass
            if (found := source.look()) is not None:
                handle.update(cell(directory, found))

    def run() -> None:
        while not ended.wait(source.pause_s):
            draw()
        draw()

    # The context says to which cell the display belongs.
    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(run,), name="panel", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(_FAREWELL_S)
