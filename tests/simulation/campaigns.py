"""Simulated campaigns for tests: one space, random layouts, disturbances, and what has to hold whatever happens."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence

import hpo
from hpo.individual import COMPLETED, FAILED, FINAL, PRUNED, STATUSES
from hpo.islands.coordinator.tally import order
from hpo.islands.messages import StopRequest, encode
from hpo.islands.resume.fold import fold
from hpo.journal.commands import RETRIED, Drain, Enqueue, Pause, Request, Retry, Set, Stop, Unpause
from hpo.journal.records import Finished, Migrated, Record, Reopened, Started
from hpo.results.record import Fold as ResultsFold
from hpo.search.kinds.evolution import EvolutionBreeder
from hpo.search.kinds.reevaluation import ReevaluatingBreeder
from hpo.search.protocols import Candidate
from hpo.task.outcome import TaskOutcome, summary_line
from simulation import Report, Simulation, losses
from simulation.ledger import ASKED, SimulatedLedger

SPACE = hpo.SearchSpace(x=hpo.Float(-5, 5), y=hpo.Float(-5, 5), kind=hpo.Categorical("a", "b", "c"))


def objective(params):
    return params["x"] ** 2 + params["y"] ** 2 + (params["kind"] != "b")


def make(case, *, space=SPACE, goal=objective, **changes):
    rng = random.Random(case)
    workers = changes.pop("workers", rng.randint(1, 12))
    islands = changes.pop("islands", rng.randint(1, workers))
    draws = [rng.lognormvariate(0, 1) for _ in range(1000)]
    settings = {
        "workers": workers,
        "islands": islands,
        "evaluations": rng.randint(1, 80),
        "duration": lambda index: draws[index % 1000],
        "breeder": lambda rank: EvolutionBreeder(space),
        "migration": 0.5,
        "copy": rng.random() < 0.5,
        "topology": rng.choice(["ring", "full"]),
        "latency_s": rng.choice([0.0005, 0.05, 0.5]),
        "jitter": True,
        "durable_starts": True,
        "seed": case,
        **changes,
    }
    return Simulation(space, goal, **settings), settings


def make_repeating(case, share, **changes):
    """Evaluations that differ by chance, of which a share is to be made again."""
    noise = random.Random(case)
    return make(
        case,
        goal=lambda params: objective(params) + noise.gauss(0, 1),
        breeder=lambda rank: ReevaluatingBreeder(SPACE, EvolutionBreeder(SPACE), share),
        **changes,
    )


def finished(simulation):
    records = itertools.chain.from_iterable(journal.committed for journal in simulation.journals)
    return [record for record in records if isinstance(record, Finished)]


def records_of(simulation):
    return [record for journal in simulation.journals for record in journal.committed]


def check_that_it_completes(records, settings, seed):
    earlier = fold(records, space=SPACE, islands=2, losses=losses)
    simulation, _ = make(seed, workers=4, islands=2, evaluations=settings["evaluations"], earlier=earlier)
    report = simulation.run()
    assert isinstance(report, Report)
    everything = records + records_of(simulation)
    final = [r for r in everything if isinstance(r, Finished) and r.status != "interrupted"]
    assert len(final) == settings["evaluations"]
    assert len({record.id for record in final}) == len(final)
    assert len({SPACE.key(record.params) for record in final}) == len(final)
    # Whatever was started has come to an end under the same id with the same configuration.
    begun = {r.id: r.params for r in everything if isinstance(r, Started)}
    done = {r.id: r.params for r in final}
    assert begun == {identity: done[identity] for identity in begun}


def final(record: dict[str, object]) -> bool:
    return isinstance(record, Finished) and record.status != "interrupted"


def standing(records: Iterable[object]) -> list[Finished]:
    """The final ends among ``records`` that were not reopened."""
    everything = list({id(record): record for record in records}.values())  # some are there twice
    reopened: dict[str, int] = {}
    for record in everything:
        if isinstance(record, Reopened):
            reopened[record.id] = max(record.number, reopened.get(record.id, 0))
        elif isinstance(record, Started):  # where rank 0 died before it could write that it was reopened
            reopened[record.id] = max(record.reopened, reopened.get(record.id, 0))
    return [one for one in everything if final(one) and one.reopened >= reopened.get(one.id, 0)]


def fall_sick(simulation: Simulation, rank: int, when: float) -> None:
    """From then on all that the worker of ``rank`` evaluates fails at once."""
    crew, evaluate, start = simulation.crews[rank], simulation.evaluate, simulation.crews[rank].start

    def begin(candidate: Candidate) -> None:
        start(candidate)
        if simulation.time >= when and crew.busy:
            crew._over = min(crew._over, simulation.time + 0.01)
            simulation.wake(rank, crew._over)

    def judge(candidate: Candidate) -> TaskOutcome:
        if crew._candidate is candidate and simulation.time >= when:
            return TaskOutcome(status=FAILED, error="OSError: no such mount")
        return evaluate(candidate)

    crew.start, simulation.evaluate = begin, judge  # type: ignore[method-assign]


def disturb(simulation: Simulation, rng: random.Random, workers: int) -> float:
    """Deaths, signals and slow ranks; when the whole job is killed, if it is."""
    if rng.random() < 0.6:
        # Now and then all of them, rank 0 included; several at one moment, too.
        victims = rng.sample(range(workers), rng.randint(1, workers))
        if rng.random() < 0.7:
            victims = [rank for rank in victims if rank]
        moment = rng.uniform(0, 8)
        for rank in victims:
            when = moment if rng.random() < 0.3 else rng.uniform(0, 8)
            told_after = rng.choice([0.0, 0.05, 1.0])
            if rank and rng.random() < 0.2:
                simulation.at(when, lambda rank=rank: simulation.cut(rank))
            else:
                simulation.at(
                    when, lambda rank=rank, after=told_after: simulation.kill(rank, told_after=after)
                )
    if rng.random() < 0.3:
        rank, urgent = rng.randrange(workers), rng.random() < 0.3
        request = encode(StopRequest("stopped", urgent))
        simulation.at(
            rng.uniform(0, 10), lambda: rank in simulation.dead or simulation.post(rank, 0, request)
        )
    return rng.expovariate(0.1) if rng.random() < 0.3 else float("inf")


def hang(simulation: Simulation, rng: random.Random, workers: int) -> None:
    """Ranks that hang for a while: some go on before they are given up, some after it."""
    for rank in rng.sample(range(1, workers), rng.randint(0, workers - 1)) if rng.random() < 0.5 else ():
        when = rng.uniform(0, 8)
        simulation.at(when, lambda rank=rank: simulation.hang(rank))
        simulation.at(when + rng.expovariate(0.2), lambda rank=rank: simulation.resume(rank))


def fail_storage(simulation: Simulation, rng: random.Random, workers: int) -> None:
    """Journals that cannot be written for a while, with a part of what was to be written on the disk all the same;
    journals that are slow, and directories that cannot be made."""
    for rank in rng.sample(range(workers), rng.randint(1, workers)) if rng.random() < 0.4 else ():
        begin = rng.uniform(0, 8)
        end = begin + rng.choice([0.5, 5.0, 50.0, 500.0])
        kind = rng.randrange(4)

        def fail(begin: float = begin, end: float = end) -> None:
            if begin <= simulation.time < end:
                raise OSError(28, "No space left on device", "journal")

        def unwritable(begin: float = begin, end: float = end) -> str | None:
            return "evaluations: No space left on device" if begin <= simulation.time < end else None

        journal = simulation.journals[rank]
        if kind == 0:
            journal.disturb, journal.reached = fail, lambda number: rng.randint(0, number)
        elif kind == 1:
            journal.disturb = lambda rank=rank: simulation.stall(rank, rng.expovariate(2.0))
        elif kind == 2:
            simulation.crews[rank].unwritable = unwritable
        else:
            journal.disturb = journal.unreadable = fail
            simulation.crews[rank].unwritable = unwritable


def ask(
    simulation: Simulation,
    rng: random.Random,
    ledger: SimulatedLedger,
    workers: int,
    recorded: Sequence[Record],
) -> None:
    """Commands at random times; in the end the campaign is not paused, and its budget only grows. ``recorded``: what
    earlier launches left."""
    budget = simulation.coordinator.evaluations or 0
    first = simulation.participation.first_worker
    for when in sorted(rng.uniform(0, 12) for _ in range(rng.randint(1, 6) if rng.random() < 0.5 else 0)):
        budget += rng.randint(0, 4)
        requests: list[Request] = [
            Pause(**ASKED),
            Unpause(**ASKED),
            Drain(**ASKED, worker=f"0-{first + rng.randrange(workers)}"),
            Retry(**ASKED, statuses=RETRIED),
            Enqueue(**ASKED, points=[{"x": rng.choice([0.5, rng.uniform(-5, 5)]), "y": 1.0, "kind": "b"}]),
            Set(**ASKED, evaluations=budget),
            Stop(**ASKED),
        ]
        (chosen,) = rng.choices(requests, [2, 4, 1, 2, 2, 2, 1])
        give_at(simulation, ledger, when, chosen, recorded)
    give_at(simulation, ledger, rng.uniform(12, 15), Unpause(**ASKED))


def give_at(
    simulation: Simulation,
    ledger: SimulatedLedger,
    when: float,
    request: Request,
    recorded: Sequence[Record] = (),
) -> None:
    def give() -> None:
        ledger.give(request, [*recorded, *records_of(simulation)])
        if 0 not in simulation.dead:
            simulation.coordinator.look_at_commands()

    simulation.at(when, give)


def slow(rng: random.Random) -> dict[str, object]:
    """Some evaluations take a hundred times as long as others."""
    draws = [rng.lognormvariate(0, rng.choice([0.1, 1.0, 2.0])) for _ in range(100)]
    return {"duration": lambda index: draws[index % 100]}


def check_overview(simulation: Simulation, journals: Iterable[object]) -> None:
    """What the coordinator knows at the end is what is found in the journals, unless it says that it may not be."""
    if not simulation.coordinator.exact:
        return
    folding = ResultsFold()
    folding.add(journals)
    individuals = folding.individuals()
    found = dict.fromkeys(STATUSES, 0)
    for one in individuals:
        found[one.status] += 1
    assert {"running": 0, **simulation.coordinator.standing} == found
    tally = simulation.coordinator.tally
    failures = [
        (one.id, one.status, summary_line(one.error or ""))
        for one in individuals
        if one.status in FINAL - {COMPLETED, PRUNED}
    ]
    ids = sorted(tally.failures, key=lambda one: order(one, tally.failures[one].started))
    assert [(one, *tally.failures[one][:2]) for one in ids] == failures
    completed = [one for one in individuals if one.status == COMPLETED]
    best = min(completed, key=lambda one: one.value, default=None)
    if best is None:
        assert tally.best is None
    else:
        assert tally.best is not None
        assert (tally.best.id, tally.best.params, tally.best.objectives) == (
            best.id,
            best.params,
            best.objectives,
        )


def check_knowledge(simulation: Simulation) -> None:
    """Every living leader knows all that its island finished in this launch and did not send away."""
    # Once the end is decided deaths are not announced any more, and leaders need to know nothing more.
    untold = simulation.dead - simulation.coordinator.dead
    moved = {record.id for record in records_of(simulation) if isinstance(record, Migrated)}
    for leader in simulation.leaders:
        if leader.place.leader in simulation.dead:
            continue
        known = {member.id for member in (*leader.population, *leader.population.failures)}
        for other in simulation.leaders:
            if other.place.island != leader.place.island or other.place.leader in untold:
                continue
            for record in simulation.journals[other.place.leader].committed:
                if final(record) and record.island == leader.place.island and record.id not in moved:
                    assert record.id in known, f"{record.id} is unknown on its island"
