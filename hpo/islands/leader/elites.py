"""Exchange of individuals between launches that are at work on a campaign at the same time.

For each of its islands a launch keeps a file with the best and the latest individuals that the island knows, and
intermediate results for early stopping. The launches read each other's files, and breed from what they find there as
from individuals of their own; only the launch that evaluated an individual lets it migrate. The files are no record:
nothing is lost with one."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from hpo.errors import CampaignError
from hpo.islands.messages import RungReport
from hpo.journal.directory import launch_folder
from hpo.journal.durable import read_bounded, write_atomically
from hpo.search.population import Member, Population, keep_latest
from hpo.search.stopping_rules import Report
from hpo.task.limits import UNLIMITED, OutcomeLimits

EVERY_S = 15.0
_LAUNCHES = 8
"""Launches whose files are read at a time."""
_FAILURES = 16
_REPORTS = 2048
_MOST_BYTES = 1 << 18
_REMEMBERED = 1 << 16


class _Elite(msgspec.Struct, frozen=True, kw_only=True):
    """Content of a file."""

    members: list[Member]
    reports: list[RungReport] = []
    limits: OutcomeLimits = UNLIMITED
    """Limits of outcomes by which the members are judged."""
    version: Literal[1] = 1


_decoder = msgspec.json.Decoder(_Elite)


def _end(member: Member) -> str:
    """Text that differs where the individual was evaluated again."""
    return f"{member.id} {member.status}"


def _rung(report: RungReport) -> str:
    """Text that no other report has."""
    return f"{report[0]} {report[1]}"


class IslandLeader(Protocol):
    """Leader as this exchange needs it (see ``hpo.islands.leader.leader``)."""

    @property
    def population(self) -> Population: ...
    @property
    def is_first_of_island(self) -> bool: ...
    def reports(self, most: int) -> list[Report]: ...
    def meet(self, members: list[Member], reports: Sequence[RungReport]) -> None: ...


class EliteExchange:
    """Exchange of ``island`` with other launches, called again and again by each of its leaders: the first that lives
    does it for all.

    Args:
        leader: leader that calls.
        directory: the campaign's.
        launch: number of the launch.
        others: returns the numbers of the other open launches; it may raise OSError and CampaignError.
        limits: limits of outcomes; members of launches with others are left out.
    """

    def __init__(
        self,
        leader: IslandLeader,
        directory: Path,
        *,
        launch: int,
        island: int,
        others: Callable[[], Collection[int]],
        limits: OutcomeLimits = UNLIMITED,
    ) -> None:
        self._leader = leader
        self._directory = directory
        self._launch = launch
        self._island = island
        self._others = others
        self._limits = limits
        self._next = 0.0
        self._turn = 0
        self._written = b""
        self._known: dict[str, None] = {}
        """Individuals and reports that the island knows of, or that were read."""

    def __call__(self, now: float) -> None:
        """Write the own file and read those of others, if it is time to. ``now``: Unix seconds."""
        if now < self._next or not self._leader.is_first_of_island:
            return
        self._next = now + EVERY_S
        with suppress(OSError, CampaignError):  # it may work the next time
            others = sorted(self._others())
            if others:
                self._write()
                first = self._turn % len(others)
                self._turn += _LAUNCHES
                self._read((others[first:] + others[:first])[:_LAUNCHES])

    def _path(self, launch: int) -> Path:
        return launch_folder(self._directory, launch) / "elite" / str(self._island)

    def _write(self) -> None:
        population = self._leader.population
        members = list({one.id: one for one in (*population, *population.failures[-_FAILURES:])}.values())
        reports: list[RungReport] = [
            (identity, step, loss if loss < math.inf else None)
            for identity, step, loss in self._leader.reports(_REPORTS)
        ]
        data = msgspec.json.encode(_Elite(members=members, reports=reports, limits=self._limits))
        while len(data) > _MOST_BYTES:  # the best come first
            members, reports = members[: len(members) // 2], reports[::2]
            data = msgspec.json.encode(_Elite(members=members, reports=reports, limits=self._limits))
        # The others send them back.
        self._known.update(dict.fromkeys([*map(_end, members), *map(_rung, reports)]))
        if data == self._written:
            return
        path = self._path(self._launch)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, data, durable=False)
        self._written = data

    def _read(self, launches: Collection[int]) -> None:
        members: dict[str, Member] = {}
        reports: dict[str, RungReport] = {}
        for launch in launches:
            with suppress(OSError, ValueError):  # it has none yet, or a person has put something there
                elite = _decoder.decode(read_bounded(self._path(launch), _MOST_BYTES)[0])
                if elite.limits == self._limits:
                    members.update((_end(one), one) for one in elite.members)
                reports.update((_rung(one), one) for one in elite.reports)
        new = [one for end, one in members.items() if end not in self._known]
        further = [one for rung, one in reports.items() if rung not in self._known]
        self._known.update(dict.fromkeys([*members, *reports]))
        keep_latest(self._known, _REMEMBERED)
        if new or further:
            self._leader.meet(new, further)
