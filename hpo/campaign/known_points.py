"""Results from elsewhere that a campaign begins with, or is given as it goes on."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from hpo.config import reader as config
from hpo.config.settings import KnownSettings
from hpo.errors import UsageError, noted
from hpo.islands.resume.known import enter
from hpo.islands.resume.state import ResumeState
from hpo.journal.files import journal_files, journal_name, read_file
from hpo.journal.records import Entered, Known, Record, Withdrawn
from hpo.prior_results.points import BY_HAND, KnownPoints, of_entry
from hpo.prior_results.tables import TABLES
from hpo.task.known_point import KnownPoint
from hpo.task.task import Task
from hpo.terminal import one_line, write


def new_points(settings: config.Settings, task: Task, problems: dict[str, None]) -> list[KnownPoints]:
    """The known points of sources that are not on record, that an entry reads otherwise, or whose table has changed. Of
    others the source may be gone by now."""
    home = settings.directory
    if not settings.known:
        return []
    entered: dict[str, Entered] = {}
    standing: dict[int, Known] = {}
    if os.path.exists(home / "campaign.json"):
        # Rank 0 enters them, and is the first worker of the first island.
        for path in journal_files(home):
            for one in read_file(path) if (journal_name(path) or ())[1:3] == (0, 0) else ():
                if isinstance(one, Entered):
                    entered[one.source] = one
                elif isinstance(one, Known):
                    standing[one.number] = one
                elif isinstance(one, Withdrawn):
                    for number in one.numbers:
                        standing.pop(number, None)
    found = []
    for entry in settings.known:
        with noted(problems):
            path = _local(entry)
            if entry.source and all(map(os.path.exists, (path, home))) and os.path.samefile(path, home):
                raise UsageError(
                    f"known: {entry.source} is this campaign's own directory, whose results it knows. Remove it"
                )
            if entry.recorded_as is None or _differs(entry, settings, entered.get(entry.recorded_as)):
                found.append(of_entry(entry, task))
                found[-1].source = entry.recorded_as or found[-1].source
                found[-1].entry, found[-1].content = _reading(entry, settings), _content(entry)
    _replace(found, standing, task)
    return found


def _differs(entry: KnownSettings, settings: config.Settings, before: Entered | None) -> bool:
    if before is None:
        return True
    if "://" not in (entry.source or "") and not os.path.exists(_local(entry)):
        return False  # gone, or out of reach: what is on record is all that is left of it
    content = _content(entry)
    return before.entry != _reading(entry, settings) or bool(
        content and before.content and content != before.content
    )


def _reading(entry: KnownSettings, settings: config.Settings) -> str:
    """How all entries of this source read it; empty where all have the defaults."""
    same = [one for one in settings.known if one.recorded_as == entry.recorded_as]
    ways = [[sorted(one.columns.items()), one.unknown] for one in same if one.columns or one.unknown]
    return json.dumps(ways) if ways else ""


def _local(entry: KnownSettings) -> Path:
    """The path of a source that is no URL."""
    # Path.expanduser raises for users that are not known here.
    return Path(os.path.expanduser(entry.source or ""))


def _content(entry: KnownSettings) -> str:
    """The hash of a table; empty where the source is no table, or cannot be read."""
    path = _local(entry)
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.suffix.lower() in TABLES else ""
    except (OSError, ValueError):
        return ""


def _replace(found: Iterable[KnownPoints], standing: Mapping[int, Known], task: Task) -> None:
    """Note what is on record of these sources and not in them now. A point given by hand replaces its own former result
    alone."""
    key = task.space.key
    now: dict[str, dict[str, KnownPoint]] = {}
    for one in found:
        now.setdefault(one.source, {}).update({key(point.params): point for point in one})
    for number, known in standing.items():
        points = now.get(known.source)
        point = None if points is None else points.get(key(known.params))
        if points is None or (point is None and known.source == BY_HAND):
            continue
        if point is None or (point.status, point.objectives) != (known.status, known.objectives):
            next(one for one in found if one.source == known.source).replaces.add(number)


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
        if known.replaces:
            records.append(Withdrawn(numbers=sorted(known.replaces), source=known.source, time=time.time()))
        enter(earlier, points, space=task.space, islands=islands, losses=task.losses)
        records += points
        if known.source != BY_HAND:
            records.append(
                Entered(
                    source=known.source,
                    told=str(fresh),
                    time=time.time(),
                    entry=known.entry,
                    content=known.content,
                )
            )
        if points or known.source != BY_HAND:
            write(f"hpo: {one_line(fresh)}", sys.stderr, flush=True)
    return records
