"""The panel: state of a campaign in a few lines, which ``hpo run`` and ``hpo status --watch`` show on a terminal and
notebooks in a cell."""

from __future__ import annotations

import time
from pathlib import Path

from rich import get_console
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hpo.individual import FINAL, STATUSES
from hpo.results.overview import Overview, Pace
from hpo.terminal import one_line
from hpo.text import digits, plural
from hpo.views.text import duration, params, running, short, values_of

_LABEL = 11  # characters
_WIDEST_BARS = 100
_MOST_ISLANDS = 64
_CELL_ROWS = 30
_STYLES = {"running": "green", "done": "green", "paused": "yellow", "stopping": "yellow", "stopped": "red"}
_FAINT = "bright_black"


def panel(
    directory: Path,
    overview: Overview | None,
    now: float,
    *,
    columns: int,
    rows: int,
    own: bool = False,
    starting: bool = False,
) -> Group:
    """The panel, to be rendered without wrapping. ``own``: Ctrl-C stops the campaign; ``starting``: ``overview`` is of
    an earlier launch."""
    parts: list[RenderableType] = [_title(columns, directory, overview, starting=starting)]
    if overview is not None:
        parts += _facts(columns, overview, now, own=own)
        room = rows - 1 - sum(fact.row_count if isinstance(fact, Table) else 1 for fact in parts)
        if overview.individuals and room > 1:
            everyone = overview.individuals
            most = room if len(everyone) <= room else room - 1
            hosts = len({one.host for one in everyone}) > 1
            parts += ["", *(Text(f" {line}") for line in running(everyone, now, most, hosts=hosts))]
    return Group(*parts)


def cell(directory: Path, overview: Overview | None) -> Table:
    """The panel for a cell of a notebook."""
    table = Table.grid()
    table.add_column(no_wrap=True, overflow="ellipsis")
    table.add_row(panel(directory, overview, time.time(), columns=get_console().width, rows=_CELL_ROWS))
    return table


def line(overview: Overview, now: float) -> str:
    """State of the campaign in one line, for output that cannot be redrawn."""
    best = f"{values_of(overview.best)} ({overview.best.id})" if overview.best else "none yet"
    parts = [_evaluated(overview), f"best {best}", _rate(overview, now), _counts(overview)]
    if overview.alive:
        parts += [f"{overview.running}/{overview.workers} workers busy", _time_left(overview, now)]
    return f"{overview.state}: {'  '.join(filter(None, parts))}"


def _title(width: int, directory: Path, overview: Overview | None, *, starting: bool) -> Text:
    state = "starting" if starting or overview is None else overview.state
    name = one_line(directory)
    room = max(8, width - len(state) - 12)
    name = name if len(name) <= room else f"…{name[-room + 1 :]}"
    return Text.assemble(
        ("── ", _FAINT),
        (name, "bold"),
        (f" {'─' * (width - len(name) - len(state) - 8)} ", _FAINT),
        (state, _STYLES.get(state, "cyan")),
        (" ──", _FAINT),
    )


def _facts(width: int, overview: Overview, now: float, *, own: bool) -> list[RenderableType]:
    best, pace, evaluated = overview.best, overview.pace, _evaluated(overview)
    bars = _bars(width)
    facts: list[tuple[str, str | Text]] = []
    if overview.budget is not None:
        left = _time_left(overview, now)
        _add_bar(bars, "evaluated", overview.final, overview.budget, evaluated, left)
    else:
        facts.append(("evaluated", evaluated))
    if overview.deadline_s is not None and pace is not None and pace.ends_at is not None:
        spent = min(overview.deadline_s, max(0.0, now - pace.ends_at + overview.deadline_s))
        text = f"{duration(spent)} of {duration(overview.deadline_s)}"
        _add_bar(bars, "deadline", spent, overview.deadline_s, text)
    if (most := overview.rank_hours_limit) is not None:
        text = f"{overview.rank_hours:.3g} of {most:g}"
        _add_bar(bars, "rank-hours", min(overview.rank_hours, most), most, text)
    if best is None:
        facts.append(("best", "none yet"))
    else:
        rest = f" by {best.id}   {params(best.params)}"
        facts.append(("best", Text.assemble((values_of(best), "bold green"), rest)))
    facts.append(("workers", _workers(overview)))
    if pace is not None and overview.islands > 1:
        facts.append(("islands", _islands(overview, pace)))
    facts += [("pace", _rate(overview, now)), ("ended", _counts(overview))]
    for number, error in enumerate(overview.errors):
        facts.append(("", error) if number else ("failures", Text(error, "red")))
    facts.append(("note", Text(_note(overview, now, own=own), "yellow")))
    lines = [_fact(label, Text(text) if isinstance(text, str) else text) for label, text in facts if text]
    return [bars, *lines] if bars.row_count else [*lines]


def _fact(label: str, content: Text) -> Text:
    return Text.assemble((f" {label:<{_LABEL}}", _FAINT), content)


def _bars(width: int) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0), expand=True)
    table.width = min(width, _WIDEST_BARS)
    table.add_column(width=_LABEL - 1)
    table.add_column(ratio=1)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, justify="right")
    return table


def _add_bar(bars: Table, label: str, done: float, whole: float, text: str, aside: str = "") -> None:
    bar = ProgressBar(total=max(whole, 1e-9), completed=min(done, whole), complete_style="cyan")
    bars.add_row(Text(f" {label}", _FAINT), bar, Text(text), Text(aside))


def _evaluated(overview: Overview) -> str:
    if overview.budget is None:
        return f"{overview.final} evaluated"
    return f"{overview.final} of {overview.budget}"


def _workers(overview: Overview) -> Text:
    left, waiting = len(overview.left), overview.pace.waiting if overview.pace else 0
    idle = max(0, overview.workers - left - waiting - overview.running)
    text = Text(f"{overview.running} busy")
    if overview.launches > 1:
        text.append(f" in {overview.launches} launches")
    for number, what in (idle, "idle"), (waiting, "waiting for storage"), (left, "left"):
        if number:
            text.append(f", {number} {what}", "yellow" if what != "idle" else "")
    if left:
        text.append(
            f" ({'; '.join(f'{worker}: {one_line(reason)}' for worker, reason in overview.left)})", "yellow"
        )
    return text


def _islands(overview: Overview, pace: Pace) -> str:
    count = digits(island.best for island in pace.islands.values())
    parts = []
    for number in range(min(overview.islands, _MOST_ISLANDS)):
        found = pace.islands.get(number)
        if found is None or found.best is None:
            parts.append(f"{number}: none yet")
        else:
            parts.append(f"{number}: {short(found.best, count)} of {found.completed}")
    return "   ".join(parts)


def _counts(overview: Overview) -> str:
    counts = {name: overview.evaluations.get(name, 0) for name in STATUSES if name in FINAL}
    parts = [f"{count} {name}" for name, count in counts.items() if count]
    return ", ".join(parts) if len(parts) > 1 or not counts["completed"] else ""


def _rate(overview: Overview, now: float) -> str:
    rate = overview.pace.per_hour(now) if overview.pace else None
    return "" if not rate else f"{rate:.0f} an hour" if rate >= 10 else f"{rate:.1f} an hour"


def _time_left(overview: Overview, now: float) -> str:
    pace = overview.pace
    if pace is None or overview.state not in ("running", "paused"):
        return ""
    left = [] if pace.ends_at is None else [pace.ends_at - now]
    rate = pace.per_hour(now)
    if overview.budget is not None and rate:
        left.append((overview.budget - overview.final) * 3600 / rate)
    return f"{duration(max(0.0, min(left)))} left" if left else ""


def _note(overview: Overview, now: float, *, own: bool) -> str:
    if overview.state == "stopping":
        until = overview.pace.grace_until if overview.pace else None
        if not overview.running or until is None or until <= now:
            return f"stopping ({overview.stopping or 'stopped'})"
        them = plural(overview.running, "running evaluation")
        at_once = "; a second Ctrl-C ends them at once" if own else ""
        return f"{them} may save or finish for {duration(until - now)} more{at_once}"
    if overview.storage is not None:
        error, since = overview.storage
        return f"storage: {one_line(error)}, waiting {duration(now - since)}"
    if overview.state == "paused":
        return "nothing new starts until `hpo unpause`"
    return f"{overview.waiting} commands not applied yet" if overview.waiting else ""
