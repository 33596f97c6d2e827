"""Campaigns that an earlier version of this package began, without a ledger: their first entry follows from their
journals, and from the commands in ``DIR/commands/`` that no launch has applied."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Union

import msgspec
from msgspec.structs import replace

from hpo.errors import CampaignError
from hpo.individual import ENQUEUED
from hpo.journal.commands import Enqueue, Pause, Request, Retry, Set, Stop, Unpause
from hpo.journal.evaluations import CurrentEvaluations
from hpo.journal.files import listed, read_file
from hpo.journal.machine import Machine
from hpo.journal.records import Command, Finished, Launched, Reopened, Started
from hpo.ledger.entries import Commanded, Limits, Opened

_REQUEST: Any = Union[tuple(Request.__subclasses__())]  # noqa: UP007
_NAME = re.compile(r"([0-9]{20}-[0-9a-f]{16})\.json")
_MOST_BYTES = 1 << 20
_LOCK_S = 30.0


def first_entry(directory: Path, seed: int) -> tuple[Opened, list[Commanded]]:
    """First entry of the ledger of a campaign that has none, and the commands that wait.

    Raises:
        JournalDamaged, CampaignError: see ``hpo.journal.files.read_file``.
    """
    evaluations, resting = CurrentEvaluations(), dict[str, None]()
    launches = workers = islands = 0
    rank_s = 0.0
    limits, in_file, paused, code = Limits(), Limits(), False, ""
    applied: set[str] = set()
    points: list[dict[str, Any]] = []
    begun: dict[str, dict[str, Any]] = {}
    for name, path in listed(directory):
        launches, workers = max(launches, name.launch), max(workers, name.worker + 1)
        islands = max(islands, name.island + 1)
        for record in read_file(path):
            change = evaluations.take(record)
            rank_s += record.outcome.seconds if isinstance(record, Finished) else 0.0
            if isinstance(record, (Started, Finished, Reopened)) and change is not None and change.counts:
                if change.ends and isinstance(record, Finished) and record.resting:
                    resting[record.id] = None
                else:
                    resting.pop(record.id, None)
            if isinstance(record, (Started, Finished)) and record.operator == ENQUEUED:
                begun[record.id] = record.params
            elif isinstance(record, Launched):
                # Numbers of workers were by island then.
                workers = max(workers, record.workers)
                islands, code = record.islands, record.code or code
                for key, value in (("evaluations", record.evaluations), ("deadline_s", record.deadline_s)):
                    if value != getattr(limits, key):  # the campaign file has changed
                        limits, in_file = replace(limits, **{key: value}), replace(in_file, **{key: value})
            elif isinstance(record, Command) and record.id not in applied:
                applied.add(record.id)
                request = _request_of(record)
                if isinstance(request, (Pause, Unpause)):
                    paused = isinstance(request, Pause)
                elif isinstance(request, Enqueue):
                    points += request.points
                elif isinstance(request, Set):
                    in_file = replace(in_file, **(record.in_file or {}))
                    limits = replace(limits, **request.values)
    ended = evaluations.ended_ids
    for params in begun.values():
        if params in points:
            points.remove(params)
    opened = Opened(
        limits=limits,
        in_file=in_file,
        islands=max(islands, 1),
        seed=seed,
        points=tuple(points),
        code=code,
        launches=launches,
        workers=workers,
        rank_s=rank_s,
        final=len(ended),
        pool=tuple(one.record.id for one in evaluations.open),
        resting=tuple(one for one in resting if one in ended),
        paused=paused,
    )
    failed = [
        (one.record.status, one.record.id) for one in evaluations.failures if isinstance(one.record, Finished)
    ]
    return opened, list(_waiting(directory, applied, failed))


def refuse_while_locked(directory: Path, machine: Machine) -> None:
    """Raise CampaignError where an earlier version, which knows no ledger, may be at work: it refreshes its lock every
    five seconds."""
    with suppress(FileNotFoundError):
        silent_s = machine.file_time(directory) - (directory / "lock").stat().st_mtime
        if silent_s < _LOCK_S:
            raise CampaignError(
                f"{directory} was in use by an earlier version of hpo {max(0.0, silent_s):.0f} s ago. Let it finish, "
                f"or, where it has died, try again in {_LOCK_S:.0f} s."
            )


def _request_of(record: Command) -> Request | None:
    """The request that was applied; None where it was refused, or this version does not know it."""
    if record.refused is not None:
        return None
    with suppress(msgspec.ValidationError):
        request: Request = msgspec.convert(
            {**record.arguments, "name": record.name, "time": record.given, "by": record.by}, _REQUEST
        )
        return request
    return None


def _waiting(directory: Path, applied: set[str], failed: list[tuple[str, str]]) -> Iterator[Commanded]:
    """Commands that were given and not applied; what is no command is left where it lies. ``failed``: status and id of
    failures."""
    folder = directory / "commands"
    names = sorted(os.listdir(folder)) if folder.is_dir() and not folder.is_symlink() else []
    for name in names:
        match = _NAME.fullmatch(name)
        path = folder / name
        if match is None or match[1] in applied or path.is_symlink() or not path.is_file():
            continue
        with suppress(OSError, ValueError, RecursionError), open(path, "rb") as file:
            request: Request = msgspec.json.decode(file.read(_MOST_BYTES), type=_REQUEST)
            again = [
                one for status, one in failed if isinstance(request, Retry) and status in request.statuses
            ]
            failed = [one for one in failed if one[1] not in again]
            yield Commanded(request=request, pool=tuple(again))
    if os.path.lexists(directory / "stop"):
        yield Commanded(request=Stop(time=0.0, by="an earlier version"))
