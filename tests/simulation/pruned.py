"""Simulated campaigns with early stopping, and what has to hold of them."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from hpo.individual import PRUNED
from hpo.islands.end_reasons import DONE
from hpo.islands.resume.fold import fold
from simulation import Curve, Simulation, pruning_settings
from simulation.campaigns import SPACE, check_knowledge, disturb, final, losses, make, records_of


def curve_of(rng_seed: object) -> Callable[[dict[str, Any]], Curve]:
    """Noisy curves of nine steps that come down to the objective; some end in NaN, some tasks cannot save."""

    def curve(params: dict[str, Any]) -> Curve:
        rng = random.Random(f"{rng_seed}/{params}")
        goal = params["x"] ** 2 + params["y"] ** 2
        values = [goal + 30 / step + rng.gauss(0, 1) for step in range(1, 10)]
        if rng.random() < 0.1:
            values[rng.randrange(9)] = math.nan
        return Curve(rng.lognormvariate(-2, 1), values, saves=rng.random() < 0.8)

    return curve


def pruned_campaign(case: int, **changes: Any) -> tuple[Simulation, dict[str, Any]]:
    rng = random.Random(f"pruned/{case}")
    settings = pruning_settings(
        rng.choice(["halving", "halving", "median"]),
        min_steps=rng.randint(1, 2),
        reduction=rng.randint(2, 3),
        patience=rng.choice([0, 0, 1]),
        startup=rng.choice([1, 3]),
        promote=rng.random() < 0.8,
    )
    return make(case, curve=curve_of(case), pruning=settings, **changes)


def check_ends(records: list[dict[str, Any]], budget: int, *, complete: bool) -> Counter[str]:
    """Each individual counts once, by its last evaluation; those that follow a pause are numbered by it."""
    last: dict[str, dict[str, Any]] = {}
    ends = [record for record in records if final(record)]
    for record in ends:
        before = last.get(record.id)
        turns = {one.id: one.resumed_at_step for one in (before, record) if one}
        if before is None or before.resumed_at_step < record.resumed_at_step:
            last[record.id] = record
        if before is not None:
            pair = sorted((before, record), key=lambda one: one.resumed_at_step)
            assert turns and pair[0].resumed_at_step != pair[1].resumed_at_step, "ended twice"
            assert pair[0].status == PRUNED and pair[0].resting, "only what had paused goes on"
    assert len(last) <= budget
    if complete:
        assert len(last) == budget
    assert len({SPACE.key(one.params) for one in last.values()}) == len(last)
    return Counter(one.status for one in last.values())


def check_knowledge_of_pruned(simulation: Simulation) -> None:
    """As ``check_knowledge``, where leaders know pruned ones apart."""
    for leader in simulation.leaders:
        for member in leader.population.pruned:
            leader.population._failures.setdefault(member.id, member)
    check_knowledge(simulation)


def run_disturbed(seed: int) -> None:
    rng = random.Random(f"disturbed/{seed}")
    budget = rng.randint(1, 30)
    records: list[dict[str, Any]] = []
    saved: dict[str, int] = {}
    for launch in range(12):
        workers = rng.randint(1, 8)
        islands = rng.randint(1, min(3, workers))
        earlier = fold(records, space=SPACE, islands=islands, losses=losses)
        counted = dict(earlier.tally.counts)
        simulation, _ = pruned_campaign(
            seed * 12 + launch, workers=workers, islands=islands, evaluations=budget, earlier=earlier
        )
        simulation.saved = saved
        until = disturb(simulation, rng, workers) if launch < 10 else float("inf")
        report = simulation.run(until=until)
        records += records_of(simulation)
        counts = check_ends(records, budget, complete=False)
        assert all(count >= 0 for count in counted.values())
        if report is not None:
            check_knowledge_of_pruned(simulation)
            if simulation.coordinator.end is not None and simulation.coordinator.end.reason == DONE:
                counted_there = {
                    name: count for name, count in simulation.coordinator.tally.counts.items() if count
                }
                counted_there.pop("interrupted", None)
                assert counted_there == dict(counts), (counted_there, counts)
                break
    check_ends(records, budget, complete=True)
