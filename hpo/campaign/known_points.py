"""Results from elsewhere that a campaign begins with, or is given as it goes on."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from pathlib import Path

from hpo.config import reader as config
from hpo.errors import UsageError, noted
from hpo.islands.resume.known import enter
from hpo.islands.resume.state import ResumeState
from hpo.journal.files import journal_files, journal_name, read_file
from hpo.journal.records import Entered, Known, Record
from hpo.prior_results.points import BY_HAND, KnownPoints, of_entry
from hpo.task.task import Task
from hpo.terminal import one_line, write


def new_points(settings: config.Settings, task: Task, problems: dict[str, None]) -> list[KnownPoints]:
    """The known points of sources that are not on record: of others the source may be gone by now."""
    home = settings.directory
    if not settings.known:
        return []
    recorded: set[str | None] = set()
    if (home / "campaign.json").exists():
        # Rank 0 enters them, and is the first worker of the first island.
        files = [one for one in journal_files(home) if (journal_name(one) or ())[1:3] == (0, 0)]
        recorded = {one.source for path in files for one in read_file(path) if isinstance(one, Entered)}
    found = []
    for entry in settings.known:
        with noted(problems):
            if entry.source is not None and Path(entry.source).resolve() == home.resolve():
                raise UsageError(
                    f"known: {entry.source} is this campaign's own directory, whose results it knows. Remove it"
                )
            if entry.recorded_as not in recorded:
                found.append(of_entry(entry, task))
                found[-1].source = entry.recorded_as or found[-1].source
    return found


def enter_points(
    found: Iterable[KnownPoints], task: Task, earlier: ResumeState, islands: int
) -> list[Record]:
    """Have ``earlier`` know the new known points; what is to go on record."""
    records: list[Record] = []
    for known in found:
        fresh = known.without(earlier.keys, task.space)
        points = [
            Known(
                number=number,
                params=dict(point.params),
                status=point.status,
                objectives=None if point.objectives is None else dict(point.objectives),
                source=known.source,
                origin=point.origin,
                time=time.time(),
            )
            for number, point in enumerate(fresh, start=earlier.known + 1)
        ]
        enter(earlier, points, space=task.space, islands=islands, losses=task.losses)
        records += points
        if known.source != BY_HAND:
            records.append(Entered(source=known.source, told=str(fresh), time=time.time()))
        if points or known.source != BY_HAND:
            write(f"hpo: {one_line(fresh)}", sys.stderr, flush=True)
    return records
