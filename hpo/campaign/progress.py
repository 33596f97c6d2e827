"""Progress of a running campaign as one line a minute, where no panel shows it."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from hpo.config import process
from hpo.errors import EXIT_RESUMABLE, HpoError
from hpo.individual import COMPLETED, PRUNED
from hpo.islands.coordinator.health import counted
from hpo.islands.end_reasons import DONE, EARLY, FUTILE, HOURS, NO_GAIN, NOTHING_COMPLETED, REACHED, STOPPED
from hpo.task.limits import without_best
from hpo.terminal import one_line, quoted, write

if TYPE_CHECKING:
    from pathlib import Path

    from hpo.config.reader import Settings
    from hpo.islands.coordinator.coordinator import Coordinator
    from hpo.islands.coordinator.tally import Tally
    from hpo.ledger.entries import Completed
    from hpo.task.task import Task

# A second line soon after the first shows that the campaign works.
_FIRST_LINE_S = 5.0
_LINE_S = 60.0
_LIMITS = {REACHED: "stop_value", NO_GAIN: "stop_gain", HOURS: "rank_hours"}
"""Limit that was met, by reason."""


class Display:
    """Writes to standard error, so that standard output is the task's and the results'. ``done``: number of evaluations
    of earlier launches."""

    def __init__(self, settings: Settings, task: Task, *, workers: int, done: int = 0) -> None:
        self._done = done
        self._directory = settings.directory
        self._objectives, self._limits = task.objectives, task.limits
        self._workers = workers
        self._repeats = any(settings.search_of(one).reevaluate for one in range(settings.layout.islands))
        self._began: float | None = None
        self._next = 0.0
        self._shown: tuple[bool, bool, bool] = (False, False, False)
        self._final_at_start = 0
        self._has_panel = process.panel_shown()

    def update(self, coordinator: Coordinator, now: float) -> None:
        first = self._began is None
        if first:
            self._began = now
            self._final_at_start = coordinator.final
        if self._has_panel:
            return
        # A stop, a pause and storage that fails are shown at once.
        waits = coordinator.waited_for_storage(now) is not None
        shown = (bool(coordinator.stopping), coordinator.paused, waits)
        if first or now >= self._next or shown != self._shown:
            self._shown = shown
            self._next = now + (_FIRST_LINE_S if first else _LINE_S)
            _show(self.line(coordinator, now))

    def line(self, coordinator: Coordinator, now: float, *, ended: bool = False) -> str:
        tally, budget = coordinator.tally, coordinator.evaluations
        final = coordinator.final
        seconds = now - (self._began or now)
        rate = (final - self._final_at_start) / seconds if seconds > 0 else 0.0
        here = "" if coordinator.alone else " here"
        parts = [_evaluated(final, budget), f"best{here} {self._best(tally)}", _rate(rate)]
        ends = coordinator.futile_ends
        failures = f"{tally.worked_and_failed[1] + sum(ends.values())} failed{here}"
        parts.append(f"{failures} ({counted(ends)} in a row)" if ends else failures)
        if pruned := tally.counts.get(PRUNED, 0):
            parts.append(f"{pruned} pruned")
        if not ended:
            parts += [
                f"{coordinator.busy}/{self._workers} workers busy",
                _left(coordinator, final, rate, now),
            ]
            if coordinator.paused:
                parts.append("paused: nothing new starts until `hpo unpause`")
            if (waits := coordinator.waited_for_storage(now)) is not None:
                parts.append(f"storage: {waits[0].rpartition(': ')[2]}, waiting {waits[1]:.0f} s")
            if coordinator.stopping:
                parts.append(_stopping(coordinator, now))
        return "  ".join(part for part in parts if part)

    def _best(self, tally: Tally) -> str:
        best, digits = tally.best, tally.best_digits(least=6)
        if best is None:
            return "none yet"
        values = []
        for loss, count, (name, direction) in zip(best.losses, digits, self._objectives.items()):
            value = f"{-loss if direction == 'maximize' else loss:.{count}g}"
            values.append(value if len(self._objectives) == 1 else f"{one_line(name)} {value}")
        return ", ".join(values) + f" ({best.id})"

    def finish(self, coordinator: Coordinator, reason: str, now: float) -> None:
        """Show the last line: how it stands now, and why it ended."""
        name = "failed" if reason in (FUTILE, NOTHING_COMPLETED) else reason
        text = f"{name}: {self.line(coordinator, now, ended=True)}"
        failed = coordinator.tally.worked_and_failed[1] > 0
        completed = coordinator.tally.counts.get(COMPLETED, 0)
        bestless = coordinator.tally.best is None
        nothing_completed = reason == NOTHING_COMPLETED or (bestless and failed and not completed)
        if nothing_completed or self._repeats:
            from hpo.results.record import load
            from hpo.views import text as texts

            with suppress(HpoError, OSError):
                record = load(self._directory)
                # The best of repeated evaluations in the line above may have been lucky.
                text += f"\n{texts.nothing(record)}" if nothing_completed else texts.steadiest(record)
        if reason == NOTHING_COMPLETED:
            text += (
                "\nThe budget is used up, and no evaluation has completed. Mend what failed; then "
                f"`hpo retry {quoted(self._directory)} --status all` and the same command evaluate them again."
            )
        for remark in without_best(self._limits, completed) if bestless else ():
            text += f"\n{one_line(remark)}."
        if coordinator.ended_early is not None and reason in EARLY:
            text += f"\n{ended_early(self._directory, coordinator.ended_early)}"
        budget, final = coordinator.evaluations, coordinator.final
        if reason == DONE and budget is not None and final == self._done >= budget:
            text += f"\n{used_up(self._directory, final, budget)}."
        if failed and not nothing_completed:
            text += f"\n`hpo status {quoted(self._directory)}` says why some failed."
        if coordinator.end is not None and coordinator.end.exit_code == EXIT_RESUMABLE:
            text += "\nGive the same command again to go on."
        _show(text)


def _show(text: str) -> None:
    # The terminal may be closed, or a pipe's reader have ended: the campaign goes on.
    with suppress(OSError):
        write(text, sys.stderr, flush=True)


def used_up(directory: Path, done: int, budget: int | None, file: Path | None = None) -> str:
    """Reason why a launch evaluates nothing, and how to go on. ``file``: the campaign's, where it is known."""
    have = (
        f"all {done} evaluations of the budget are done"
        if budget == done
        else f"{done} evaluations are done, and the budget is {budget}"
    )
    place = "" if file is None else f" in {file}"
    return (
        f"{have}, so there is nothing to start. To go on, write evaluations = {2 * done}{place}, or give: "
        f"hpo set {quoted(directory)} evaluations={2 * done}"
    )


def ended_early(directory: Path, ended: Completed) -> str:
    """Why the campaign has ended before its budget was used up, and how to go on."""
    change = f"{_LIMITS[ended.name]}=…" if ended.name in _LIMITS else "…"
    return f"{ended.reason}. To go on, change it in the campaign file, or give: hpo set {quoted(directory)} {change}"


def _evaluated(final: int, budget: int | None) -> str:
    if budget is None:
        return f"{final} evaluated"
    # The budget may have been made smaller than the number of evaluations.
    return f"{final}/{budget} evaluated" if final <= budget else f"{final} evaluated (budget {budget})"


def _left(coordinator: Coordinator, final: int, rate: float, now: float) -> str:
    left = [] if coordinator.deadline is None else [coordinator.deadline - now]
    if coordinator.evaluations is not None and rate > 0:
        left.append((coordinator.evaluations - final) / rate)
    if not left:
        return ""
    # timedelta has no room for budgets without end.
    minutes, seconds = divmod(round(max(0.0, min(left))), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d} left"


def _stopping(coordinator: Coordinator, now: float) -> str:
    """Why it is stopping, what it still waits for, and how to wait no longer."""
    why = "stopping" if coordinator.stopping == STOPPED else f"stopping ({coordinator.stopping})"
    running, left_s = coordinator.busy, coordinator.grace_left(now)
    if not running:
        return why
    them = f"{running} running evaluation{'s' if running > 1 else ''}"
    if not left_s:
        return f"{why}: ending {them}"
    return f"{why}: {them} may save or finish for {left_s:.0f} s more; a second Ctrl-C ends them at once"


def _rate(rate: float) -> str:
    number, unit = next(
        ((rate * s, unit) for s, unit in ((1, "s"), (60, "min")) if rate * s >= 1), (rate * 3600, "h")
    )
    return f"{number:.1f}/{unit}" if rate > 0 else ""
