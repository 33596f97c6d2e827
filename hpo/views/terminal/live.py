"""State of a campaign, read and shown again and again: the panel on a terminal, and ``hpo status --watch``."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderableType, RenderResult
from rich.live import Live
from rich.segment import ControlType, Segment
from rich.text import Text

from hpo.config import process
from hpo.errors import CampaignError
from hpo.islands.end_reasons import LOST
from hpo.ledger.alive import living
from hpo.results import overview as overviews
from hpo.results.follow import Follower
from hpo.results.overview import Overview
from hpo.results.running import Tails
from hpo.terminal import visible, write
from hpo.views import text
from hpo.views.terminal import panel

LOOK_S = 1.0
_SHARE = 0.05  # largest share of time for looking: looks are further apart with slow storage or long journals
_LONGEST_S = 60.0
_PATIENCE_S = (
    5.0  # rank 0 gets this time to write its first status.json, before the journals are folded instead
)
_LINE_S = 60.0
_RESTART_S = 60.0  # `hpo run` starts a launch that was cut off again within this time


class OverviewSource:
    """Overviews of the campaign in ``directory``. ``own``: whether this process starts the campaign, so that its
    journals are not worth folding before it is at work."""

    def __init__(self, directory: Path, *, own: bool = False) -> None:
        self._directory = directory
        self._own = own
        self._tails = Tails(directory)
        self._follower: Follower | None = None
        self._alive_since: float | None = None
        self.pause_s = LOOK_S
        """Seconds to wait before the next look."""

    def look(self) -> Overview | None:
        """The present overview; None if it is not known yet.

        Raises:
            CampaignError: there is no campaign, or it cannot be read.
        """
        begun = time.monotonic()
        try:
            found = overviews.read(self._directory)
            if found is None and self._may_fold(begun):
                found = self._folded()
            return None if found is None else overviews.with_running(found, self._tails)
        finally:
            self.pause_s = min(max(LOOK_S, (time.monotonic() - begun) / _SHARE), _LONGEST_S)

    def _folded(self) -> Overview:
        self._follower = self._follower or Follower(self._directory)
        while self._follower.poll().more:
            pass
        return overviews.folded(self._follower.record())

    def _may_fold(self, now: float) -> bool:
        if not living(self._directory):
            self._alive_since = None
            return not self._own
        if self._alive_since is None:
            self._alive_since = now
        return now - self._alive_since >= _PATIENCE_S


class Looker:
    """Looks in a thread of its own, which may hang with the storage."""

    def __init__(self, source: OverviewSource) -> None:
        self._source = source
        self._stop = threading.Event()
        self.newest: Overview | None = None
        threading.Thread(target=self._run, name="looker", daemon=True).start()

    def _run(self) -> None:
        while not self._stop.is_set():
            with suppress(CampaignError, OSError):  # such faults may pass
                self.newest = self._source.look() or self.newest
            self._stop.wait(self._source.pause_s)

    def stop(self) -> None:
        self._stop.set()


class LivePanel(Live):
    """The panel at the end of the output to the terminal ``handle``, with printed text scrolling by above it.

    rich's ``Live`` hides the cursor, leaves it below the panel, and moves up by as many lines as it drew. A killed
    process would leave a terminal without a cursor, and a narrower terminal, which wraps the panel's lines, would keep
    their beginnings. Here the cursor stays visible at the panel's begin, and each drawing erases the rest."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._is_drawn = False
        # Standard streams may be redirected while the panel is shown, so the panel has a descriptor of its own.
        file = open(os.dup(handle), "w", encoding="utf-8", errors="replace")  # noqa: SIM115
        console = Console(
            file=file, force_terminal=True, highlight=False, emoji=False, markup=False, legacy_windows=False
        )
        super().__init__(
            console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        )

    @property
    def size(self) -> os.terminal_size:
        """Columns and rows for the panel: one less of each than the terminal has, for the cursor."""
        columns, rows = 0, 0
        with suppress(OSError):  # the terminal is gone
            columns, rows = os.get_terminal_size(self._handle)
        return os.terminal_size((max(1, (columns or 80) - 1), max(1, (rows or 24) - 1)))

    def start(self, refresh: bool = False) -> None:
        with suppress(OSError):
            super().start(refresh)
            self.console.show_cursor(True)

    def draw(self, content: RenderableType | None, above: Text | None = None) -> None:
        """Replace the panel by ``content``; ``above`` is written before it and stays."""
        self.console.size = self.size
        self.update(content or "")
        with suppress(OSError):
            if above is None:
                self.refresh()
            else:
                self.console.print(above, soft_wrap=True)

    def stop(self) -> None:
        self.draw(None)
        with suppress(OSError):
            super().stop()
        with suppress(OSError):
            self.console.file.close()

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        content = self.get_renderable()
        erased, self._is_drawn = self._is_drawn, bool(content)
        return [
            *([_Order("\r\x1b[J")] if erased else []),
            *renderables,
            *([Below(content)] if content else []),
        ]


@dataclass(frozen=True)
class _Order:
    """Escape sequence."""

    sequence: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Segment(self.sequence, None, [(ControlType.CARRIAGE_RETURN,)])


@dataclass(frozen=True)
class Below:
    """The panel's lines, after which the cursor returns to the first of them."""

    content: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        fitting = options.update(no_wrap=True, overflow="ellipsis")
        lines = console.render_lines(self.content, fitting, pad=False)[: options.size.height]
        # The terminal may have become narrower since, and must not wrap the lines.
        yield _Order("\x1b[?7l")
        for line in lines:
            yield from line
            yield Segment.line()
        yield _Order(f"\x1b[?7h\r\x1b[{len(lines)}A")


def watch(directory: Path) -> int:
    """Show the state of the campaign in ``directory`` until it ends, or until Ctrl-C; returns the exit code.

    Raises:
        CampaignError: there is no campaign, or it cannot be read.
    """
    with suppress(KeyboardInterrupt):
        found = overviews.of(directory)
        if found.alive:
            found = _until_the_end(directory, found)
        write(text.status(directory, found), flush=True)
    return 0


def _until_the_end(directory: Path, found: Overview) -> Overview:
    """The last overview; a campaign that is started again meanwhile has not ended."""
    looker = Looker(OverviewSource(directory))
    show, close = _display(directory)
    cut_off: float | None = None
    try:
        while True:
            show(found)
            time.sleep(LOOK_S)
            found = looker.newest or found
            if found.alive:
                cut_off = None
            elif found.ended is not None and found.ended[0] != LOST:
                return found
            elif cut_off is None:
                cut_off = time.monotonic()
            elif time.monotonic() - cut_off > _RESTART_S:
                return found
    except KeyboardInterrupt:
        return found
    finally:
        looker.stop()
        close()


def _display(directory: Path) -> tuple[Callable[[Overview], None], Callable[[], None]]:
    if not sys.stdout.isatty() or process.terminal_columns(sys.stdout) is None:
        return _line_writer(), lambda: None
    live = LivePanel(sys.stdout.fileno())
    live.start()

    def draw(found: Overview) -> None:
        columns, rows = live.size
        live.draw(panel.panel(directory, found, time.time(), columns=columns, rows=rows))

    return draw, live.stop


def _line_writer() -> Callable[[Overview], None]:
    due, state = 0.0, ""

    def show(found: Overview) -> None:
        nonlocal due, state
        if time.monotonic() >= due or found.state != state:
            due, state = time.monotonic() + _LINE_S, found.state
            write(visible(panel.line(found, time.time())), flush=True)

    return show
