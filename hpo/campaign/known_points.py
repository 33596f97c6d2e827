"""Results from elsewhere that a campaign begins with, or is given as it goes on."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hpo.config import reader as config
from hpo.config.settings import KnownSettings
from hpo.errors import UsageError, noted
from hpo.individual import Scalar
from hpo.islands.resume.known import bounded, enter
from hpo.islands.resume.state import ResumeState
from hpo.journal.files import read_file
from hpo.journal.records import Entered, Known, Record, Withdrawn
from hpo.ledger.journals import journal_files
from hpo.prior_results.points import BY_HAND, KnownPoints, of_entry
from hpo.prior_results.tables import TABLES
from hpo.search.models.transfer import first_points
from hpo.task.known_point import KnownPoint
from hpo.task.task import Task
from hpo.terminal import one_line

_log = logging.getLogger("hpo.campaign")


def new_points(settings: config.Settings, task: Task, problems: dict[str, None]) -> list[KnownPoints]:
    """Known points of sources that are not on record, that an entry reads otherwise, or whose table has changed.
    Sources of other points may be gone by now."""
    if not settings.known:
        return []
    home = settings.directory
    entered, standing = _on_record(home)
    readings = _readings(settings.known, task.limits.names)
    found = []
    for entry in settings.known:
        with noted(problems):
            path = _local(entry)
            if entry.source and all(map(os.path.exists, (path, home))) and os.path.samefile(path, home):
                raise UsageError(
                    f"known: {entry.source} is this campaign's own directory, whose results it knows. Remove it"
                )
            name = entry.recorded_as
            if name is None:
                found.append(of_entry(entry, task))
                continue
            reading = readings.get(name, "")
            content = _new_content(entry, reading, entered.get(name))
            if content is not None:
                found.append(replace(of_entry(entry, task), source=name, entry=reading, content=content))
    _replace(found, standing, task)
    replaced = {number for one in found for number in one.replaces}
    key = task.space.key
    kept = {
        key(known.params)
        for number, known in standing.items()
        if number not in replaced and not known.other_task
    }
    return [
        one
        for one in found
        if one.source != BY_HAND or one.replaces or not all(key(point.params) in kept for point in one)
    ]


def _on_record(home: Path) -> tuple[dict[str, Entered], dict[int, Known]]:
    """Latest entry of each source in the journals, and the known points that count, by number."""
    entered: dict[str, Entered] = {}
    standing: dict[int, Known] = {}
    if os.path.exists(home / "campaign.json"):
        # Rank 0 enters them, which leads the first worker of a launch.
        leads: dict[int, int] = {}
        for journal in journal_files(home):
            first = leads.setdefault(journal.name.launch, journal.name.worker) == journal.name.worker
            for one in read_file(journal.path, end=journal.end) if first else ():
                if isinstance(one, Entered):
                    entered[one.source] = one
                elif isinstance(one, Known):
                    standing[one.number] = one
                elif isinstance(one, Withdrawn):
                    for number in one.numbers:
                        standing.pop(number, None)
    return entered, standing


def _readings(entries: Iterable[KnownSettings], limited: Sequence[str]) -> dict[str, str]:
    """Columns, treatment of unknown parameters, relation and ``limited`` metrics of all entries of a source, by source,
    unless all are the defaults."""
    ways: dict[str, list[object]] = {}
    for one in entries:
        if one.recorded_as is not None and (one.columns or one.unknown or limited or one.relation):
            options: list[object] = [sorted(one.columns.items()), one.unknown, *limited]
            if one.relation:
                options.append({"as": one.relation})
            ways.setdefault(one.recorded_as, []).append(options)
    return {name: json.dumps(found) for name, found in ways.items()}


def _local(entry: KnownSettings) -> Path:
    # Path.expanduser raises for users that are not known here.
    return Path(os.path.expanduser(entry.source or ""))


def _new_content(entry: KnownSettings, reading: str, before: Entered | None) -> str | None:
    """Hash of the entry's table, empty for a source that is no table; None where the record has the same content."""
    path = _local(entry)
    if before is not None and "://" not in (entry.source or "") and not os.path.exists(path):
        return None  # the source is gone, or out of reach
    try:
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.suffix.lower() in TABLES else ""
    except (OSError, ValueError):
        content = ""
    if before is None or before.entry != reading:
        return content
    return content if content and before.content and content != before.content else None


def _replace(found: Iterable[KnownPoints], standing: Mapping[int, Known], task: Task) -> None:
    """Note points on record that these sources no longer have. A point given by hand replaces its own former result
    alone."""
    key = task.space.key
    now: dict[str, dict[str, KnownPoint]] = {}
    others = {one.source: one.other_task for one in found}
    for one in found:
        now.setdefault(one.source, {}).update({key(point.params): point for point in one})
    for number, known in standing.items():
        points = now.get(known.source)
        point = None if points is None else points.get(key(known.params))
        if points is None or (point is None and known.source == BY_HAND):
            continue
        changed = point is None or _result(point) != _result(known)
        if changed or known.other_task != others[known.source]:
            next(one for one in found if one.source == known.source).replaces.add(number)


def enter_points(
    found: Iterable[KnownPoints],
    task: Task,
    earlier: ResumeState,
    islands: int,
    entries: Collection[KnownSettings],
) -> list[Record]:
    """Enter the new known points into ``earlier``, and return their records. ``entries``: the campaign's key
    ``known``."""
    for line in _unnamed(earlier.sources, entries):
        _log.info("%s", one_line(line))
    records: list[Record] = []
    for known in found:
        # A configuration with a result of another task is as new here as any.
        keys = earlier.tasks.get(known.source, ()) if known.other_task else earlier.keys
        fresh = known.without(keys, task.space)
        points = [
            Known(
                number=number,
                params=dict(point.params),
                status=point.status,
                objectives=None if point.objectives is None else dict(point.objectives),
                metrics=dict(point.metrics),
                source=known.source,
                origin=point.origin,
                other_task=known.other_task,
                time=time.time(),
            )
            for number, point in enumerate(fresh, start=earlier.known + 1)
        ]
        if known.replaces:
            records.append(Withdrawn(numbers=sorted(known.replaces), source=known.source, time=time.time()))
        enter(earlier, points, space=task.space, islands=islands, losses=task.losses, limits=task.limits)
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
            _log.info("%s", one_line(fresh))
    return records


def good_elsewhere(found: Iterable[KnownPoints], task: Task) -> list[dict[str, Scalar]]:
    """Configurations to evaluate first because of new results of other tasks."""
    tasks = {}
    for known in (one for one in found if one.other_task):
        completed = [(one.params, one.objectives) for one in known if one.objectives is not None]
        results = [(task.space.encode(params), task.losses(values)) for params, values in completed]
        # A large table would take minutes.
        tasks[known.source] = bounded(sorted(results, key=lambda result: result[1]))
    return [task.space.decode(genome) for genome in first_points(task.space, tasks)]


def _unnamed(sources: Mapping[str, int], entries: Collection[KnownSettings]) -> Iterator[str]:
    """Sentence for each source of known points on record that ``entries`` do not name any more. ``sources``: numbers of
    their points."""
    by_hand = sum(one.recorded_as is None for one in entries)
    named = {one.recorded_as for one in entries}
    for source, count in sources.items():
        left = count - by_hand if source == BY_HAND else 0 if source in named else count
        if left > 0:
            points = "1 known point" if left == 1 else f"{left} known points"
            line = (
                f"{points} of {source} that `known` does not list any more {'stays' if left == 1 else 'stay'}"
            )
            if Path(source).suffix.lower() in TABLES:
                line += "; list it again with an empty table to take them back"
            yield line


def _result(one: KnownPoint | Known) -> tuple[object, ...]:
    return one.status, one.objectives, one.metrics
