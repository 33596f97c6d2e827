"""Ancestry of an individual: its parents and their parents, and the parameters that each changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpo.individual import Scalar

if TYPE_CHECKING:
    from hpo.individual import Individual
    from hpo.results.record import CampaignRecord

_ABSENT = object()


@dataclass(frozen=True, kw_only=True)
class Ancestor:
    """Member of a family."""

    individual: Individual
    generation: int  # generations before the individual whose family it is: 0 for itself, 1 for its parents
    parents: tuple[str, ...]  # ids of its parents in the family, nearest first
    direct: bool  # whether it is in the line of nearest parents
    unseen: int  # number of its recorded parents that are not in the family


@dataclass(frozen=True, kw_only=True)
class Family:
    """Latest ancestors of an individual."""

    members: tuple[Ancestor, ...]  # the individual and its ancestors, parents before children
    generations: int
    """Generations in the whole line of nearest parents, of which the family may have only the latest."""

    @property
    def last(self) -> Ancestor:
        return self.members[-1]


def family(record: CampaignRecord, identity: str, *, generations: int = 10) -> Family:
    """Latest ancestors of an individual in the line of nearest parents, with the other parents of each.

    The nearest parent has the configuration that differs in the fewest parameters, and is the first recorded of several
    such parents. Parents without a record are left out, as are circles, which only an edited journal can have.

    Raises:
        KeyError: there is no such individual.
    """
    by_id = {one.id: one for one in (*record.known, *record.individuals)}
    line, seen = [by_id[identity]], {identity}
    # A parent that was met already ends the line, which otherwise would go round in a circle forever.
    while nearest := next((one for one in _parents(line[-1], by_id) if one.id not in seen), None):
        line.append(nearest)
        seen.add(nearest.id)
    shown = line[: generations + 1]
    levels = {one.id: level for level, one in enumerate(shown)}
    direct = set(levels)
    # A parent of several members has the generation of the first of them, closest to the individual.
    for level, one in enumerate(shown[:generations]):
        for parent in _parents(one, by_id):
            levels.setdefault(parent.id, level + 1)
    members = [
        Ancestor(
            individual=by_id[name],
            generation=level,
            parents=tuple(one.id for one in parents if one.id in levels),
            direct=name in direct,
            unseen=sum(one.id not in levels for one in parents),
        )
        for name, level in levels.items()
        for parents in [_parents(by_id[name], by_id)]
    ]
    # Sorted by start, as a parent has ended before its child starts; by generation where times are not recorded.
    members.sort(
        key=lambda one: (
            one.generation == 0,
            one.individual.started or 0.0,
            -one.generation,
            one.individual.id,
        )
    )
    return Family(members=tuple(members), generations=len(line) - 1)


def _parents(one: Individual, by_id: Mapping[str, Individual]) -> list[Individual]:
    """Recorded parents of an individual, nearest first."""
    found = [by_id[name] for name in dict.fromkeys(one.parents) if name in by_id and name != one.id]
    return sorted(found, key=lambda parent: len(changes(parent.params, one.params)))


def changes(
    before: Mapping[str, Scalar], after: Mapping[str, Scalar]
) -> dict[str, tuple[Scalar | None, Scalar | None]]:
    """Values before and after of each parameter that differs; None where the parameter is inactive."""
    names = dict.fromkeys([*after, *before])
    return {
        name: (before.get(name), after.get(name))
        for name in names
        if _differ(before.get(name, _ABSENT), after.get(name, _ABSENT))
    }


def _differ(before: object, after: object) -> bool:
    # True == 1 in Python, but both may be choices of a parameter.
    return before != after or isinstance(before, bool) is not isinstance(after, bool)
