"""Where an individual comes from: its parents, theirs, and what each of them changed."""

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
    """One member of a family. ``generation``: 0 for the individual that was asked for, 1 for its parents;
    ``parents``: those of them that are in the family, the nearest first; ``direct``: whether it is in the line of
    nearest parents; ``unseen``: how many of its parents on record are not in the family."""

    individual: Individual
    generation: int
    parents: tuple[str, ...]
    direct: bool
    unseen: int


@dataclass(frozen=True, kw_only=True)
class Family:
    """``members``: parents before children, the individual that was asked for last; ``generations``: in the whole
    line of nearest parents, from it to its founder, of which the family may have only the latest."""

    members: tuple[Ancestor, ...]
    generations: int

    @property
    def last(self) -> Ancestor:
        return self.members[-1]


def family(record: CampaignRecord, identity: str, *, generations: int = 10) -> Family:
    """The latest ``generations`` ancestors of an individual in the line of nearest parents, and each one's other
    parents.

    The nearest parent is the one whose configuration differs in the fewest parameters; of equal ones the first on
    record. Parents that no journal has are left out, and so is what an edited journal has of circles.

    Raises:
        KeyError: there is no such individual.
    """
    by_id = {one.id: one for one in (*record.known, *record.individuals)}
    line, seen = [by_id[identity]], {identity}
    while nearest := next((one for one in _parents(line[-1], by_id) if one.id not in seen), None):
        line.append(nearest)
        seen.add(nearest.id)
    shown = line[: generations + 1]
    levels = {one.id: level for level, one in enumerate(shown)}
    direct = set(levels)
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
    # A parent has ended before its child starts; the generation decides where times are not on record.
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
    """Those on record, the nearest first."""
    found = [by_id[name] for name in dict.fromkeys(one.parents) if name in by_id and name != one.id]
    return sorted(found, key=lambda parent: len(changes(parent.params, one.params)))


def changes(
    before: Mapping[str, Scalar], after: Mapping[str, Scalar]
) -> dict[str, tuple[Scalar | None, Scalar | None]]:
    """The parameters that differ, each with its value before and after; None where it does not exist."""
    names = dict.fromkeys([*after, *before])
    return {
        name: (before.get(name), after.get(name))
        for name in names
        if _differ(before.get(name, _ABSENT), after.get(name, _ABSENT))
    }


def _differ(before: object, after: object) -> bool:
    # True == 1, and both may be choices.
    return before != after or isinstance(before, bool) is not isinstance(after, bool)
