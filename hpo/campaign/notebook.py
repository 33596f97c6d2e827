"""How a campaign shows itself in the cell of a notebook that runs it: a bar and a line, anew each second."""

from __future__ import annotations

import contextvars
import html
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Protocol

from hpo.config import process
from hpo.errors import HpoError

_KERNEL = "ZMQInteractiveShell"
_FAREWELL_S = 5.0


class _Shown(Protocol):
    """IPython's DisplayHandle."""

    def update(self, bundle: dict[str, str], *, raw: bool) -> None: ...


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook. An IPython on a terminal is none."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return get_ipython is not None and type(get_ipython()).__name__ == _KERNEL


@contextmanager
def progress(directory: Path) -> Iterator[None]:
    """In a notebook: show in the cell how the campaign in ``directory`` goes. Nothing anywhere else."""
    if not in_notebook():
        yield
        return
    bar = _Bar(directory)
    os.environ[process.PANEL] = str(os.getpid())
    try:
        yield
    finally:
        os.environ.pop(process.PANEL, None)
        bar.close()


class _Bar:
    """Drawn by a thread of its own, whatever the campaign does: storage may hang, and so may what is evaluated."""

    def __init__(self, directory: Path) -> None:
        from hpo.results.terminal.live import Source

        self._source = Source(directory, own=True)
        self._last = ""
        self._shown: _Shown = import_module("IPython.display").display(
            _bundle("starting", 0, None), raw=True, display_id=True
        )
        self._stop = threading.Event()
        # In the context of the cell, to which what is displayed belongs.
        context = contextvars.copy_context()
        self._thread = threading.Thread(
            target=context.run, args=(self._run,), name="hpo-notebook", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Show how it stands at the end."""
        self._stop.set()
        self._thread.join(_FAREWELL_S)

    def _run(self) -> None:
        while not self._stop.wait(self._source.pause_s):
            self._draw()
        self._draw()

    def _draw(self) -> None:
        from hpo.results.terminal import panel

        with suppress(HpoError, OSError):  # which may pass
            found = self._source.look()
            if found is None:
                return
            line = panel.line(found, time.time())
            if line != self._last:
                self._last = line
                self._shown.update(_bundle(line, found.final, found.budget), raw=True)


def _bundle(line: str, done: int, whole: int | None) -> dict[str, str]:
    """By type, for a front end to choose from."""
    # Without a value a browser draws a bar that only moves.
    given = "" if whole is None else f' value="{min(done, whole)}" max="{max(whole, 1)}"'
    bar = f'<progress{given} style="width: 20em; max-width: 100%; vertical-align: middle"></progress>'
    return {"text/plain": line, "text/html": f"<div>{bar} {html.escape(line)}</div>"}
