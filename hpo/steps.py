"""Progress bar on a terminal for commands that take seconds; it disappears when the command has ended."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from hpo.terminal import one_line

if TYPE_CHECKING:
    from rich.progress import Progress


class Steps:
    """Shows which of its ``total`` steps a command is at, where standard error is a terminal and with ``shown``."""

    def __init__(self, total: int, *, shown: bool = True) -> None:
        self._bar: Progress | None = None
        self._begun = 0
        if not shown or not sys.stderr.isatty():
            return
        # Imported only where a bar is shown: rich takes longer to import than many a command to run.
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        console = Console(stderr=True)
        if not console.is_dumb_terminal:
            columns = (BarColumn(bar_width=20), TextColumn("{task.description}", markup=False))
            self._bar = Progress(*columns, console=console, transient=True)
            self._bar.add_task("", total=total)

    def begin(self, what: object) -> None:
        """Show that the next step, ``what``, begins; all steps before it are done."""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=self._begun, description=one_line(what))
            self._begun += 1

    def __enter__(self) -> Steps:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()
