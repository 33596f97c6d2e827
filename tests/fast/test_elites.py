"""Exchange of individuals between launches: what one island knows reaches the same island of the others."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hpo.islands import messages
from hpo.islands.leader import elites
from hpo.islands.leader.elites import EVERY_S, EliteExchange
from hpo.islands.messages import RungReport
from hpo.search.population import BEST_KEPT, Member, Population
from hpo.search.stopping_rules import Report


def member(identity: str, loss: float | None) -> Member:
    losses = None if loss is None else (loss,)
    return Member(identity, (0.5, 1), losses, "failed" if loss is None else "completed", operator="evolution")


@dataclass
class Leader:
    """A leader that keeps what it meets."""

    is_first_of_island: bool = True
    population: Population = field(default_factory=Population)
    met: list[str] = field(default_factory=list)
    known: list[Report] = field(default_factory=list)
    heard: list[RungReport] = field(default_factory=list)

    def reports(self, most: int) -> list[Report]:
        return self.known[:most]

    def meet(self, members: list[Member], reports: Sequence[RungReport]) -> None:
        self.met += sorted(one.id for one in members)
        self.heard += reports
        self.known += messages.reports(reports)
        for one in members:
            self.population.add(one)


class Launches:
    """Launches of one island each, by number from 1, that know each other."""

    def __init__(self, home: Path, number: int) -> None:
        self.leaders = [Leader() for _ in range(number)]
        numbers = set(range(1, number + 1))
        self.exchanges = [
            EliteExchange(leader, home, launch=own, island=0, others=lambda own=own: numbers - {own})  # type: ignore[misc]
            for own, leader in enumerate(self.leaders, start=1)
        ]
        self._now = 0.0

    def round(self) -> None:
        for exchange in self.exchanges:
            exchange(self._now)
        self._now += EVERY_S


def test_the_best_the_latest_and_failures_reach_the_others_once(tmp_path: Path) -> None:
    launches = Launches(tmp_path, 2)
    first, second = launches.leaders
    for number in range(3 * BEST_KEPT):
        first.population.add(member(f"0-0-{number}", float(number)))
    first.population.add(member("0-0-999", None))
    launches.round()
    best_and_latest = {*range(BEST_KEPT), *range(2 * BEST_KEPT, 3 * BEST_KEPT), 999}
    assert second.met == sorted(f"0-0-{one}" for one in best_and_latest)
    assert second.population.best[0].losses == (0.0,) and second.population.best[0].genome == (0.5, 1)
    launches.round()
    assert first.met == [] and len(second.met) == len(best_and_latest), "nothing is sent back, or twice"
    first.population.discard("0-0-999")
    first.population.add(member("0-0-999", -1.0))  # it was evaluated again
    launches.round()
    launches.round()
    assert second.met[-1] == "0-0-999" and second.population.best[0].id == "0-0-999"


def test_reports_at_rungs_reach_the_others_once(tmp_path: Path) -> None:
    launches = Launches(tmp_path, 2)
    first, second = launches.leaders
    first.known = [("0-0-0", 1, 0.5), ("0-0-0", 3, math.inf)]
    launches.round()
    first.known.append(("0-0-1", 1, 0.25))
    launches.round()
    launches.round()
    assert second.heard == [("0-0-0", 1, 0.5), ("0-0-0", 3, None), ("0-0-1", 1, 0.25)] and not first.heard


def test_what_one_launch_finds_reaches_forty(tmp_path: Path) -> None:
    launches = Launches(tmp_path, 40)
    launches.leaders[17].population.add(member("0-17-0", 1.0))
    for _ in range(5):
        launches.round()
    assert all(one.met == ["0-17-0"] for place, one in enumerate(launches.leaders) if place != 17)


def test_one_leader_exchanges_for_its_island_and_alone_it_writes_nothing(tmp_path: Path) -> None:
    launches = Launches(tmp_path, 1)
    launches.leaders[0].population.add(member("0-0-0", 1.0))
    launches.round()
    assert not os.listdir(tmp_path)
    launches = Launches(tmp_path, 2)
    launches.leaders[0].population.add(member("0-0-0", 1.0))
    launches.leaders[0].is_first_of_island = False
    launches.round()
    assert not launches.leaders[1].met


def test_files_are_small_and_what_is_none_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elites, "_MOST_BYTES", 4000)
    launches = Launches(tmp_path, 3)
    for number in range(BEST_KEPT):
        launches.leaders[0].population.add(member(f"0-0-{number}", float(number)))
    launches.round()
    path = tmp_path / "launches" / "0001" / "elite" / "0"
    assert path.stat().st_size <= 4000 and "0-0-0" in launches.leaders[1].met
    for content in b"", b"{}", b'{"version":2,"members":[]}', b"[" * 5000, b"\xff":
        path.write_bytes(content)
        launches.round()
    path.unlink()
    path.symlink_to("/etc/passwd")
    launches.round()
    launches.leaders[2].population.add(member("0-2-0", -9.0))
    launches.round()
    launches.round()
    assert launches.leaders[1].population.best[0].id == "0-2-0"
