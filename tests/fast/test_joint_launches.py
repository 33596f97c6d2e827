"""Launches that are at work at the same time, in virtual time: how they share units, points and what others leave."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from cases import cases
from simulation.joint_campaigns import SimpleLaunches
from simulation.launches import SimulatedLaunch
from simulation.ledger import ASKED

import hpo
from hpo.islands.coordinator.sharing import LINGER_S
from hpo.islands.end_reasons import DONE, HANDED_OVER, INCOMPLETE, LOST
from hpo.journal.commands import Drain, Enqueue
from hpo.journal.records import Started
from hpo.ledger.alive import STALE_S

FINITE = hpo.SearchSpace(x=hpo.Int(-4, 4), y=hpo.Ordinal(-1, 0, 1), kind=hpo.Categorical("a", "b", "c"))
POINTS = [{"x": float(one), "y": 0.5, "kind": "a"} for one in range(5)]


@pytest.fixture
def campaign(tmp_path: Path) -> SimpleLaunches:
    return SimpleLaunches(1, tmp_path, budget=40, mean_s=10.0)


def by_launch(campaign: SimpleLaunches) -> Counter[int]:
    """Numbers of individuals by the launch that bred them."""
    joined = campaign.ledger.state.joined.values()
    workers = [int(one.id.split("-")[1]) for one in campaign.run()]
    return Counter(
        {one.launch: sum(0 <= each - one.first_worker < one.workers for each in workers) for one in joined}
    )


def test_a_launch_that_joins_gets_its_share_of_what_the_first_has_drawn(campaign: SimpleLaunches) -> None:
    campaign.start(2)
    assert campaign.ledger.state.free == 0, "a launch alone draws all"
    campaign.world.sleep(30.0)
    campaign.start(2)
    shares = by_launch(campaign)
    assert shares.total() == 40 and min(shares.values()) > 12
    assert [one.coordinator.end.reason for one in campaign.begun if one.coordinator.end] == [DONE, DONE]
    assert campaign.ledger.state.entries < 60


def test_points_that_a_dead_launch_had_drawn_are_evaluated_by_another(campaign: SimpleLaunches) -> None:
    first = campaign.start(1)
    campaign.ledger.give(Enqueue(**ASKED, points=POINTS))  # type: ignore[arg-type]
    campaign.world.sleep(3.0)
    assert not campaign.ledger.state.waiting
    campaign.start(1)
    campaign.world.sleep(15.0)
    first.kill_all()
    ended = campaign.run()
    assert {one.params["x"] for one in ended} >= {0.0, 1.0, 2.0, 3.0, 4.0} and len(
        {one.id for one in ended}
    ) == 40
    closed = campaign.ledger.state.closed
    assert closed[1].by == 2 and not campaign.ledger.state.waiting


def test_points_are_shared_out_too(tmp_path: Path) -> None:
    campaign = SimpleLaunches(1, tmp_path, budget=5, mean_s=100.0)
    campaign.start(1)
    campaign.ledger.give(Enqueue(**ASKED, points=POINTS))  # type: ignore[arg-type]
    campaign.world.sleep(3.0)
    campaign.start(1)
    shares = by_launch(campaign)
    assert shares.total() == 5 and shares[2] >= 2


def test_a_launch_whose_workers_are_drained_ends_and_the_other_goes_on(campaign: SimpleLaunches) -> None:
    campaign.start(1)
    second = campaign.start(1)
    campaign.world.sleep(20.0)
    campaign.ledger.give(Drain(**ASKED, worker="0-1"))  # type: ignore[arg-type]
    campaign.world.run(lambda: second.settled, campaign.world.time + 60.0)
    assert second.settled, "it does not wait for the other"
    assert len({one.id for one in campaign.run()}) == 40


def test_a_launch_with_nothing_left_waits_and_hands_over(tmp_path: Path) -> None:
    campaign = SimpleLaunches(1, tmp_path, budget=2, mean_s=2000.0)
    campaign.start(1)
    campaign.start(1)
    third = campaign.start(1)
    campaign.world.run(lambda: third.settled)
    assert LINGER_S <= campaign.world.time < LINGER_S + 30 and third.coordinator.end is not None
    assert (third.coordinator.end.reason, third.coordinator.end.exit_code) == (HANDED_OVER, 0)
    assert len({one.id for one in campaign.run()}) == 2


def test_a_launch_with_nothing_left_takes_over_what_another_leaves(tmp_path: Path) -> None:
    campaign = SimpleLaunches(1, tmp_path, budget=2, mean_s=2000.0)
    first = campaign.start(1)
    second = campaign.start(1)
    third = campaign.start(1)
    campaign.world.sleep(60.0)
    first.kill_all()
    second.kill_all()
    ended = campaign.run()
    assert {one.id for one in ended} == {"0-0-0", "0-1-0"} and all(one.resumed for one in ended)
    places = [campaign.world.copies.path(one.id).name for one in ended]
    assert all("attempt" in name for name in places), "in copies: who began them may be at work after all"
    assert third.coordinator.end is not None and third.coordinator.end.reason == DONE
    closed = campaign.ledger.state.closed
    assert [closed[1].by, closed[2].by] == [3, 3] and campaign.world.time > 60 + STALE_S


@pytest.mark.parametrize(("budget", "mean_s", "dies"), [(81, 20.0, 0), (12, 100.0, 1)])
def test_shared_points_are_evaluated_once_whichever_launch_dies(
    tmp_path: Path, budget: int, mean_s: float, dies: int
) -> None:
    points = [{"x": x, "y": 0, "kind": kind} for x in range(-4, 5) for kind in "ab"][: min(18, budget // 2)]
    campaign = SimpleLaunches(1, tmp_path, budget=budget, mean_s=mean_s, space=FINITE)
    campaign.start(1)
    campaign.ledger.give(Enqueue(**ASKED, points=points))  # type: ignore[arg-type]
    campaign.world.sleep(3.0)
    campaign.start(4)
    campaign.world.sleep(60.0 if dies == 0 else 10.0)
    campaign.begun[dies].kill_all()
    keys = Counter(FINITE.key(one.params) for one in campaign.run())
    assert keys.total() == len(keys) == budget and {*map(FINITE.key, points)} <= keys.keys()


def test_launches_end_where_all_configurations_are_used_up(tmp_path: Path) -> None:
    campaign = SimpleLaunches(1, tmp_path, budget=500, mean_s=5.0, space=FINITE)
    campaign.start(2)
    campaign.start(2)
    assert len(campaign.run(until=LINGER_S)) == FINITE.size, "they do not wait for each other's units"
    assert all(one.settled for one in campaign.begun)


@pytest.mark.parametrize("seed", cases(range(8), range(8, 100)))
def test_a_finite_space_is_used_up_once_whatever_happens(tmp_path: Path, seed: int) -> None:
    """Launches come, hang, are closed meanwhile and go on, or die, and points are given."""
    rng = random.Random(seed)
    budget, mean_s = rng.choice([40, 81, 120]), rng.choice([3.0, 20.0, 60.0])
    campaign = SimpleLaunches(seed, tmp_path, budget=budget, mean_s=mean_s, space=FINITE)
    campaign.latency_s = rng.choice([0.0005, 0.5, 2.0])
    for _ in range(rng.randint(3, 7)):
        campaign.start(rng.randint(1, 4))
        campaign.world.sleep(rng.uniform(1.0, 60.0))
        launch, event = rng.choice(campaign.begun), rng.random()
        if event < 0.3:
            launch.kill_all()
        elif event < 0.6:
            points = rng.sample([*FINITE.enumerate()], 6)
            campaign.ledger.give(Enqueue(**ASKED, points=points))  # type: ignore[arg-type]
        else:
            for rank in launch.ranks:
                rank.stop()
                campaign.world.at(campaign.world.time + rng.uniform(20.0, 250.0), rank.go_on)
    campaign.world.sleep(300.0)
    campaign.start(2)
    keys = Counter(FINITE.key(one.params) for one in campaign.run(campaign.world.time + 3000.0))
    assert keys.total() == len(keys) == min(budget, FINITE.size or 0)
    assert all(one.settled for one in campaign.begun) and campaign.ledger.state.entries < 600


def test_a_launch_leaves_units_to_larger_workers_and_does_not_wait_for_ever(tmp_path: Path) -> None:
    campaign = SimpleLaunches(1, tmp_path, budget=6, mean_s=6000.0)
    large = [campaign.start(2, [1, 2], first_island=1) for _ in range(5)]
    campaign.start(1, [1, 2])
    campaign.world.sleep(60.0)
    for one in large[1:]:
        one.kill_all()
    campaign.world.sleep(60.0)
    late = campaign.start(1, [1, 2])
    campaign.world.run(lambda: late.settled, campaign.world.time + LINGER_S + STALE_S + 60.0)
    assert late.settled and late.coordinator.end and late.coordinator.end.reason == HANDED_OVER
    assert any("wait for workers of other sizes" in one for one in late.coordinator.remarks)


@pytest.mark.parametrize("seed", range(4))
def test_what_a_large_worker_began_goes_on_only_on_large_workers(tmp_path: Path, seed: int) -> None:
    """A launch without them leaves units for it, also where nothing else is left, and another launch may come."""
    sizes = [1, 2, 8]
    campaign = SimpleLaunches(seed, tmp_path, budget=60, mean_s=20.0)
    first = campaign.start(27, sizes)
    campaign.world.sleep(5.0)
    second = campaign.start(3, sizes)
    assert {place.island for place in second._layout.workers} == {0, 1}
    campaign.world.sleep(10.0 + 10.0 * seed)
    first.kill_all()
    campaign.world.run(lambda: second.settled)
    left = {*campaign.ledger.state.pool}
    assert left and {int(one[0]) for one in left} == {2} and second.coordinator.end
    assert second.coordinator.end.exit_code == 75 and second.coordinator.end.reason == INCOMPLETE
    assert campaign.ledger.state.final == 60 - len(left)
    campaign.start(8, sizes, first_island=2)
    assert left <= {one.id for one in campaign.run()} and campaign.ledger.state.final == 60
    for launch in campaign.begun:
        for place in launch._layout.workers:
            journal = launch.ranks[place.leader].journal
            began = [one for one in journal.committed if isinstance(one, Started)] if journal else []
            assert all(sizes[int(one.id[0])] == len(place.ranks) for one in began)


def dies(launch: SimulatedLaunch, size: int) -> None:
    """The worker of ``size`` ranks loses a rank."""
    (place,) = (one for one in launch._layout.workers if len(one.ranks) == size)
    launch.kill(place.ranks[-1])


@pytest.mark.parametrize("restarts", [True, False])
def test_a_launch_that_loses_the_last_worker_of_a_size_makes_room_for_the_next(
    tmp_path: Path, restarts: bool
) -> None:
    """Without a supervisor the others go on as long as there is anything for them."""
    campaign = SimpleLaunches(1, tmp_path, budget=60, mean_s=20.0)
    campaign.restarts = restarts
    launch = campaign.start(4, [1, 2])
    campaign.world.sleep(50.0)
    dies(launch, 2)
    ended = len(campaign.run())
    end = launch.coordinator.end
    assert end and (end.reason, end.exit_code) == (LOST, 75) and (ended < 20 if restarts else ended == 59)
    campaign.start(4, [1, 2])
    assert len({one.id for one in campaign.run()}) == 60


def test_a_launch_whose_other_workers_are_drained_ends_as_lost(tmp_path: Path) -> None:
    campaign = SimpleLaunches(1, tmp_path, budget=60, mean_s=20.0)
    launch = campaign.start(3, [1, 2])
    campaign.world.sleep(50.0)
    (small,) = (one for one in launch._layout.workers if len(one.ranks) == 1)
    campaign.ledger.give(Drain(**ASKED, worker=f"{small.island}-{small.worker}"))  # type: ignore[arg-type]
    campaign.world.sleep(100.0)
    dies(launch, 2)
    campaign.run()
    assert launch.coordinator.end and launch.coordinator.end.reason == LOST


def test_the_budget_of_a_joining_file_holds_for_all_and_is_said(campaign: SimpleLaunches) -> None:
    first = campaign.start(1)
    campaign.world.sleep(20.0)
    campaign.ledger.evaluations = 9
    campaign.start(1)
    assert len({one.id for one in campaign.run()}) == 9
    assert [one for one in first.coordinator.remarks if "evaluations = 9 by the campaign file" in one]
    assert [one.coordinator.end.reason for one in campaign.begun if one.coordinator.end] == [DONE, DONE]
