"""Results from elsewhere, which the islands know from the beginning."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from msgspec.structs import replace

from hpo.individual import known_id
from hpo.islands.coordinator.tally import BestSoFar
from hpo.islands.resume.individuals import loss_of, validated
from hpo.islands.resume.state import ResumeState
from hpo.journal.records import Known
from hpo.search.population import Member, Population, TaskResult
from hpo.search.protocols import Codec
from hpo.task.limits import UNLIMITED, OutcomeLimits

WITHDRAWN = "withdrawn"
"""Status of a known point that does not count any more."""
_Item = TypeVar("_Item")
_MOST_KNOWN = 256
"""Known points that each island gets: half of them the best, the others from all over the rest."""


def enter(
    state: ResumeState,
    known: Iterable[Known],
    *,
    space: Codec,
    islands: int,
    losses: Callable[[dict[str, float]], tuple[float, ...]],
    limits: OutcomeLimits = UNLIMITED,
) -> None:
    """Have each island know the results in ``known``, but for those that say nothing of a limited metric. They are not
    counted or evaluated again, and do not migrate."""
    completed: list[Member] = []
    failed: list[Member] = []
    for record in known:
        identity = known_id(record.number)
        state.known = max(state.known, record.number)  # no number is used twice
        if record.status == WITHDRAWN:
            continue
        state.sources[record.source] = state.sources.get(record.source, 0) + 1
        loss = loss_of(record, losses)
        if record.other_task:
            results = state.tasks.setdefault(record.source, {})
            if loss is not None:
                genome = space.encode(validated(space, identity, record.params))
                results[space.key(record.params)] = genome, loss
            continue
        state.keys.add(space.key(record.params))
        excess = () if loss is None else limits.excess(record.objectives, record.metrics)
        if excess is None:
            continue
        params = validated(space, identity, record.params)
        member = Member(identity, space.encode(params), loss, record.status, excess=excess)
        member.history = tuple(range(islands))
        (failed if loss is None else completed).append(member)
        if loss is not None and not member.violation:
            state.tally.enter(BestSoFar(loss, identity, 0.0, params, dict(record.objectives or {})))
    completed.sort(key=lambda member: (member.violation, member.losses or ()))
    completed = bounded(completed)
    for island in range(islands) if completed or failed else ():
        population = state.populations.setdefault(island, Population())
        for member in (*failed, *reversed(completed)):
            population.enter(replace(member))


def other_tasks(state: ResumeState) -> dict[str, list[TaskResult]]:
    """Results of other tasks, as many of each as islands get known points."""
    return {
        source: bounded(sorted(results.values(), key=lambda result: result[1]))
        for source, results in state.tasks.items()
        if results
    }


def bounded(best_first: list[_Item]) -> list[_Item]:
    """At most ``_MOST_KNOWN`` of them: half of these the best, the others evenly from the rest."""
    best, rest = best_first[: _MOST_KNOWN // 2], best_first[_MOST_KNOWN // 2 :]
    left = min(_MOST_KNOWN - len(best), len(rest))
    return best + [rest[index * len(rest) // left] for index in range(left)]
