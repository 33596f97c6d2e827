"""Deaths of ranks under the simulator: nothing counted is lost or repeated, the living go on and know all."""

from __future__ import annotations

import random

import pytest
from simulation import lonely_coordinator
from simulation.campaigns import SPACE, finished, make, make_repeating, records_of

from hpo.config.layout import WorkerPlacement
from hpo.individual import PRUNED, REEVALUATION, Outcome
from hpo.islands.coordinator.health import Health
from hpo.islands.coordinator.launch import DeadLeaderRecord, LaunchLog
from hpo.islands.coordinator.worker_registry import WorkerRegistry
from hpo.islands.leader.claims import Claims
from hpo.islands.messages import Claim, EvaluationEnd, Records, Want, decode
from hpo.islands.resume.state import ResumeState
from hpo.journal.records import Started
from hpo.search.population import Member, Population
from hpo.search.proposals import key_of


def kill_at_random(simulation, rng, ranks, *, within):
    for rank in ranks:
        when = rng.uniform(0, within)
        simulation.at(when, lambda rank=rank: simulation.kill(rank, told_after=rng.choice([0.0, 0.05, 1.0])))


def check_records(simulation, settings):
    """Exactly the budget, each individual and configuration once, whatever was begun came to its end."""
    records = finished(simulation)
    assert len(records) == settings["evaluations"]
    assert len({record.id for record in records}) == len(records)
    bred = [record for record in records if record.operator != REEVALUATION]
    assert len({SPACE.key(record.params) for record in bred}) == len(bred)
    done = {record.id: record.params for record in records}
    begun = [record for record in records_of(simulation) if isinstance(record, Started)]
    assert all(done[record.id] == record.params for record in begun)
    tally = simulation.coordinator.tally
    assert tally.final == len(records)
    best = min(sum(record.objectives.values()) for record in records)
    assert tally.best[0][0] == best


@pytest.mark.parametrize("seed", range(3))
def test_repetitions_are_handed_on_like_any_other(seed):
    rng = random.Random(seed)
    simulation, settings = make_repeating(seed, 0.5, workers=6, islands=rng.randint(1, 2), evaluations=120)
    kill_at_random(simulation, rng, rng.sample(range(1, 6), 3), within=20.0)
    assert simulation.run() is not None
    check_records(simulation, settings)
    assert sum(record.operator == REEVALUATION for record in finished(simulation)) > 20


@pytest.mark.parametrize("seed", range(3))
def test_an_island_that_dies_out_hands_its_best_on(seed):
    simulation, _ = make(seed, workers=4, islands=2, migration=0.0, evaluations=60)
    for rank in (2, 3):
        simulation.at(6.0 + 2 * rank, lambda rank=rank: simulation.kill(rank))
    simulation.run()
    there = [record for record in finished(simulation) if record.island == 1]
    best = sorted(there, key=lambda record: record.objectives["value"])[:5]
    for leader in simulation.leaders[:2]:
        assert {record.id for record in best} <= {member.id for member in leader.population}


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_migrants_are_not_lost_with_their_gateway(seed, copy):
    rng = random.Random(seed)
    simulation, settings = make(seed, workers=6, islands=3, migration=1.0, copy=copy, evaluations=60)
    kill_at_random(simulation, rng, rng.sample(range(1, 6), 2), within=10.0)
    simulation.run()
    check_records(simulation, settings)
    living = [leader for leader in simulation.leaders if leader.place.leader not in simulation.dead]
    known = {member.id for leader in living for member in leader.population}
    if len({leader.place.island for leader in living}) == 3:
        assert {record.id for record in finished(simulation)} <= known


def test_an_individual_that_kills_its_ranks_is_given_up_and_the_campaign_ends():
    simulation, _ = make(3, workers=12, islands=2, evaluations=40, latency_s=0.0005)
    start = type(simulation.crews[0]).start
    poisoned = []

    def deadly(crew, candidate):
        start(crew, candidate)
        if not poisoned and crew._rank:
            poisoned.append(candidate.id)
        if candidate.id in poisoned:
            rank = crew._rank
            simulation.at(simulation.time + 0.1, lambda: simulation.kill(rank))

    for crew in simulation.crews:
        crew.start = lambda candidate, crew=crew: deadly(crew, candidate)
    # Rank 0, whose death is another matter, is kept busy by evaluations of its own.
    simulation.crews[0].start = lambda candidate: start(simulation.crews[0], candidate)
    assert simulation.run() is not None
    records = {record.id: record for record in finished(simulation)}
    assert len(records) == 40
    assert len(simulation.dead) == 4
    assert records[poisoned[0]].status == "crashed"
    assert "died 4 times" in records[poisoned[0]].error


END = EvaluationEnd(token=0, id="0-1-0", outcome=Outcome(status="pruned", seconds=1.0), losses=None)


def coordinator_of(dead):
    """Of two workers of a rank each, with nobody to talk to; ``dead``: what the journal of one that dies says."""

    class OneDead(LaunchLog):
        def dead_leader_record(self, place, *, may_run):
            return dead

        def journal_totals(self):
            return ResumeState()

    places = [WorkerPlacement(index=rank, island=0, worker=rank, ranks=(rank,)) for rank in range(2)]
    return lonely_coordinator(WorkerRegistry(places), OneDead())


def test_a_worker_that_is_suspected_goes_on_with_nothing_that_paused(monkeypatch):
    coordinator = coordinator_of(DeadLeaderRecord())
    suspected = [1]
    monkeypatch.setattr(Health, "holds", lambda self, leader: leader in suspected)
    coordinator.receive(1, Claim([Want(0, "key", "0-1-0")], False))
    assert coordinator.running == 0
    suspected.clear()
    coordinator._something_changed()
    assert coordinator.running == 1


def test_who_paused_untold_and_asked_to_go_on_counts_once():
    """Its leader has died between the claim and the news of the pause, which are told in this order."""
    coordinator = coordinator_of(DeadLeaderRecord(finished=[("key", END)]))
    coordinator.receive(1, Claim([Want(0, "key")], False))
    coordinator.receive(1, Claim([Want(1, "key", "0-1-0")], False))
    coordinator.handle_rank_deaths([1])
    assert (coordinator.tally.counts["pruned"], coordinator.running, coordinator.budget.remaining) == (
        1,
        0,
        1,
    )


def test_what_a_dead_leader_knew_comes_with_the_best_last(monkeypatch):
    """Receivers take the last for the most recent."""
    population, sent = Population(), []
    for number in (2, 3, 1):
        population.add(Member(f"0-1-{number}", (), (float(number),), "completed"))
    coordinator = coordinator_of(DeadLeaderRecord(populations={0: population}))
    monkeypatch.setattr(coordinator._transport, "send", lambda rank, data: sent.append(decode(data)))
    coordinator.handle_rank_deaths([1])
    (records,) = (one for one in sent if isinstance(one, Records))
    assert [one.id for one in records.evaluated] == ["0-1-3", "0-1-2", "0-1-1"]


def test_one_that_paused_before_has_the_key_that_is_on_record():
    """Else its end is not found there once its leader has died."""
    claims = Claims.__new__(Claims)
    claims._space = SPACE
    params = {"x": 0.5, "y": 1.0, "kind": "b"}
    member = Member("0-1-2", SPACE.encode(params), (1.0,), PRUNED, operator="evolution")
    for parent in ("", "0-0-1"):
        candidate = claims.paused_before(member, 0, parent)
        assert (candidate.id, candidate.operator, candidate.inherits) == ("0-1-2", "evolution", parent)
        assert candidate.key == key_of(SPACE, candidate.configuration)
        assert ("<0-0-1" in candidate.key) == bool(parent)
