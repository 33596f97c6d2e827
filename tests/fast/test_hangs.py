"""Ranks that hang: who is given up when, what that costs, and what a rank does that wakes up."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from individuals import make_assignment, make_candidate
from simulation import Report, lonely_coordinator
from simulation.campaigns import finished, make

from hpo.campaign.rank.evaluators import Jobs
from hpo.config.layout import Layout
from hpo.errors import EXIT_RESUMABLE
from hpo.evaluation.directories import EvaluationDirectories
from hpo.islands.coordinator.worker_registry import WorkerRegistry
from hpo.islands.event_loop import EventLoop, RankRoles
from hpo.islands.liveness import Liveness
from hpo.islands.messages import Alive, End, Lost, encode
from hpo.journal.records import Finished


def watch(liveness: Liveness, begin: float, end: float, step: float, *heard: int) -> frozenset[int]:
    """Look until ``end``, with a word of ``heard`` before each look."""
    silent: frozenset[int] = frozenset()
    while begin < end:
        begin += step
        for rank in heard:
            liveness.heard(rank)
        silent |= liveness.look(begin)
    return silent


def test_who_says_nothing_for_long_enough_hangs() -> None:
    liveness = Liveness([1, 2], timeout_s=10, now=0.0)
    assert watch(liveness, 0.0, 9.0, 0.5, 2) == frozenset()
    assert watch(liveness, 9.0, 12.0, 0.5, 2) == {1}
    liveness.forget([1])
    assert watch(liveness, 12.0, 40.0, 0.5, 2) == frozenset()


def test_a_pause_of_the_observer_makes_nobody_hang() -> None:
    liveness = Liveness([1], timeout_s=10, now=0.0)
    for hours in range(1, 4):
        assert liveness.look(3600.0 * hours) == frozenset()
    assert watch(liveness, 10800.0, 10805.0, 0.5) == frozenset()
    assert watch(liveness, 10805.0, 10812.0, 0.5) == {1}


class Clockwork:
    """Rank 1 of 3: time passes with each poll, and ``script`` says what has come from ``source`` by then."""

    rank, size, any_thread = 1, 3, True

    def __init__(self, script: dict[float, bytes], source: int = 0) -> None:
        self._script = script
        self._source = source
        self._time = 0.0
        self._dead: frozenset[int] = frozenset()
        self.sent: Counter[int] = Counter()

    def poll(self) -> list[tuple[int, bytes]]:
        self._time += 0.25
        assert self._time < 200, "it goes on for ever"
        return [(self._source, self._script[self._time])] if self._time in self._script else []

    def send(self, destination: int, data: bytes) -> None:
        self.sent[destination] += data == encode(Alive())

    def failed(self) -> frozenset[int]:
        return self._dead

    def abandon(self, ranks: Iterable[int]) -> None:
        self._dead |= frozenset(ranks) - {self.rank}

    def now(self) -> float:
        return self._time


class Idle:
    """A rank that does not lead its worker, with nothing to do."""

    count, gone = 0, True

    def poll(self) -> bool:
        return False

    def disband(self) -> None:
        pass

    def deadline(self) -> None:
        pass

    def receive(self, content: dict[str, object]) -> None:
        pass


def served(transport: Clockwork, idle: Idle, members: tuple[int, ...]) -> End:
    """The end of the event loop of a rank that does not lead its worker."""
    reader, writer = os.pipe()
    try:
        os.write(writer, b"x")  # so that nothing waits
        return EventLoop(
            transport=transport,  # type: ignore[arg-type]
            roles=RankRoles(members=members, leader=None, non_leader=idle, filenos=lambda: [reader]),
            coordinator=None,
            signals=idle,
            hang_timeout_s=8.0,
        ).run()
    finally:
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize(
    ("script", "end", "dead"),
    [
        ({1.0: encode(Alive()), 6.0: encode(Alive())}, 14.0, {0}),
        ({5.0: encode(Lost([1], [1]))}, 5.0, {0, 2}),
        ({5.0: encode(Lost([2], [2])), 6.0: encode(Lost([1], []))}, 6.0, {0, 2}),
    ],
    ids=["rank 0 hangs", "given up", "given up after another"],
)
def test_a_rank_ends_that_hears_nothing_of_rank_0_or_was_given_up(
    script: dict[float, bytes], end: float, dead: set[int]
) -> None:
    transport, idle = Clockwork(script), Idle()
    found = served(transport, idle, (0, 1))
    assert (found.reason, found.exit_code) == ("lost", EXIT_RESUMABLE)
    assert end <= transport.now() <= end + 2 and transport.failed() == dead
    assert end / 2 - 1 <= transport.sent[0] <= end / 2 + 1 and set(transport.sent) == {0}


@pytest.mark.parametrize(("signs", "end"), [((), 8.0), ((5.0, 11.0, 18.0), 26.0)], ids=str)
def test_without_rank_0_a_rank_ends_when_its_leader_is_silent_too(
    signs: tuple[float, ...], end: float
) -> None:
    """It waits for its leader, which lets what runs save itself; that one may hang as well."""
    transport = Clockwork(dict.fromkeys(signs, encode(Alive())), source=2)
    transport.abandon([0])
    assert served(transport, Idle(), (2, 1)).reason == "lost"
    assert end <= transport.now() <= end + 2 and transport.failed() == {0, 2}


@pytest.mark.parametrize("seed", range(2))
def test_the_others_complete_the_budget_and_a_late_result_does_not_count(seed: int) -> None:
    simulation, settings = make(
        seed, workers=5, islands=2, evaluations=80, hang_timeout=10.0, latency_s=0.001
    )
    simulation.at(2.0, lambda: simulation.hang(3))
    simulation.at(15.0, lambda: simulation.resume(3))
    assert isinstance(simulation.run(), Report) and simulation.coordinator.end is not None
    assert simulation.coordinator.end.exit_code == 0
    records = finished(simulation)
    assert len(records) == len({record.id for record in records}) == settings["evaluations"]
    assert simulation.coordinator.dead == {3} and simulation.coordinator.remarks[0].startswith("rank 3 hangs")
    assert [reason for _, _, reason in simulation.left] == ["hangs"]
    own = [record for record in simulation.journals[3].committed if isinstance(record, Finished)]
    assert all(record.finished < 15 for record in own), "what it ended after it woke up"


@pytest.mark.parametrize("seen_to_have_ended", [set(), {1}, {2}, {1, 2}], ids=str)
def test_what_a_worker_held_is_contested_unless_its_dead_rank_is_seen_to_have_ended(
    seen_to_have_ended: set[int],
) -> None:
    places = Layout.plan(ranks=4, sizes=[2] * 1).workers
    workers = WorkerRegistry(places, ended=seen_to_have_ended.__contains__)
    for broken in [workers.handle_rank_deaths({rank}) and workers._broken[-1] for rank in (1, 2)]:
        broken.held.append(make_assignment(params={}, key="", operator=""))
        broken.open = False
        broken.waiting.clear()
    contested = [one.attempt.contested for one in workers.released()]
    assert contested == [1 not in seen_to_have_ended, 2 not in seen_to_have_ended]


@pytest.mark.parametrize(("hung", "given_up"), [(3, {2, 3}), (2, {2, 3}), (1, {1})])
def test_the_other_ranks_of_a_worker_are_given_up_with_the_one_that_hangs(
    hung: int, given_up: set[int]
) -> None:
    registry = WorkerRegistry(Layout.plan(ranks=6, sizes=[2] * 1).workers)
    coordinator = lonely_coordinator(registry)
    coordinator.handle_hung_ranks([hung])
    assert coordinator.dead == registry.hung == given_up and coordinator.end is None
    assert len(registry.places) == 2 and coordinator.remarks[0].startswith(f"rank {hung} hangs")


def test_a_contested_individual_goes_on_in_a_copy_which_is_its_directory_from_then_on(tmp_path: Path) -> None:
    directories = EvaluationDirectories(tmp_path)
    first = directories.path("0-0-5")
    (first / "weights").mkdir(parents=True)
    (first / "weights" / "0.bin").write_text("3 epochs")
    (first / "output-0.txt").write_text("printed")
    jobs = Jobs(directories, seed=0)
    given = {
        "token": 0,
        "id": "0-0-5",
        "genome": (),
        "key": "",
        "operator": "",
        "resumed": True,
        "contested": True,
    }
    contested = make_candidate(**given)
    job = jobs(contested)
    second = Path(job.directory)
    assert second == directories.path("0-0-5") == first.with_name("0-0-5.attempt-2") and job.resumed
    (first / "weights" / "0.bin").write_text("by the one that hangs")
    assert (second / "weights" / "0.bin").read_text() == "3 epochs" and len(list(second.iterdir())) == 1
    assert jobs(contested).directory == str(second), "a retry goes on there"
    assert jobs(make_candidate(**given)).directory == str(first.with_name("0-0-5.attempt-3"))
    assert directories.present() == {"0-0-5"}
    job = jobs(
        make_candidate(token=0, id="0-0-6", genome=(), key="", operator="", resumed=True, contested=True)
    )
    assert job.directory.endswith("0-0-6.attempt-2") and not job.resumed, (
        "where no copy can be made it begins again"
    )
    directories.forget("0-0-5")
    assert [path.name for path in (tmp_path / "evaluations").glob("*/*")] == ["output-0.txt"]
