"""What a new launch must know of the earlier ones: a fold over their journals, of bounded size.

Kept are the keys of all configurations (so that none is evaluated twice), the unfinished individuals, the
first free sequence numbers, and of each island what its leaders would know; not the records themselves, so
that a launch after 100 000 evaluations needs no more memory than one after a hundred."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpo.coordinator import Assignment, Tally
from hpo.individual import COMPLETED, FINAL, Scalar
from hpo.layout import Layout
from hpo.messages import Start
from hpo.population import Member, Population
from hpo.seams import Codec

_KEPT = 256
"""Of each birthplace; more than an island breeds from, since some of them have emigrated."""


@dataclass
class Earlier:
    """``sequences``: first free number by (island, worker); ``populations``: by island, as of the end of the
    last launch."""

    keys: set[str] = field(default_factory=set)
    tally: Tally = field(default_factory=Tally)
    pending: list[Assignment] = field(default_factory=list)
    sequences: dict[tuple[int, int], int] = field(default_factory=dict)
    populations: dict[int, Population] = field(default_factory=dict)

    def sequence(self, island: int, worker: int) -> int:
        return self.sequences.get((island, worker), 0)


def fold(
    records: Iterable[Mapping[str, Any]],
    *,
    space: Codec,
    islands: int,
    losses: Callable[[dict[str, float]], tuple[float, ...]],
) -> Earlier:
    """State of the campaign after ``records``; individuals of islands that no longer exist go to island
    number modulo ``islands``."""
    earlier = Earlier()
    final: set[str] = set()
    open_: dict[str, Mapping[str, Any]] = {}
    moves: dict[str, dict[tuple[int, int, int], tuple[int, int, bool]]] = {}
    # By birthplace until all moves are known; the configurations of those kept, by id.
    born: dict[int, Population] = {}
    configurations: dict[str, dict[str, Scalar]] = {}
    for record in records:
        kind = record["type"]
        if kind == "migrated":
            moves.setdefault(record["id"], {})[record["hop"], record["source"], record["target"]] = (
                record["source"],
                record["target"],
                record["copy"],
            )
            continue
        if kind not in ("started", "finished"):
            continue
        identity, params = record["id"], record["params"]
        place = (record["island"], record["worker"])
        earlier.sequences[place] = max(earlier.sequences.get(place, 0), record["sequence"] + 1)
        if identity in final:
            continue
        if kind == "started" or record["status"] not in FINAL:
            # One that was handed on after a death was begun twice, and the files are in no order of time.
            if identity not in open_ or record["retries"] >= open_[identity]["retries"]:
                open_[identity] = record
            continue
        final.add(identity)
        open_.pop(identity, None)
        earlier.keys.add(space.key(params))
        complete = record["status"] == COMPLETED and record["objectives"] is not None
        loss = losses(record["objectives"]) if complete else None
        seconds = record["finished"] - record["started"]
        earlier.tally.add(identity, record["status"], None if loss is None else list(loss), seconds)
        population = born.setdefault(record["island"], Population(best=_KEPT))
        population.add(Member(identity, (), loss, record["status"]))
        configurations[identity] = params
        if len(configurations) > 4096 + 2 * _KEPT * len(born):
            configurations = {one.id: configurations[one.id] for kept in born.values() for one in _all(kept)}
    for birthplace in sorted(born):
        for member in _all(born[birthplace]):
            hops = moves.get(member.id, {})
            genome = space.encode(configurations[member.id])
            history = tuple(hops[hop][0] for hop in sorted(hops))
            for island in sorted(_homes(birthplace, hops, islands)):
                population = earlier.populations.setdefault(island, Population())
                population.add(Member(member.id, genome, member.losses, member.status, history))
    for record in open_.values():
        # That the whole launch was killed is no fault of the individual's, and no try of it.
        assignment = _unfinished(record, space=space, deaths=0)
        earlier.keys.add(assignment.key)
        earlier.pending.append(assignment)
    return earlier


@dataclass
class Autopsy:
    """What the journal of a leader that died says of its last launch.

    ``finished``: (key, id, status, losses, seconds) in the order in which they were told to the coordinator;
    ``begun``: what it was evaluating; ``populations``: by island, whom it has put there."""

    finished: list[tuple[str, str, str, list[float] | None, float]] = field(default_factory=list)
    begun: list[Assignment] = field(default_factory=list)
    populations: dict[int, Population] = field(default_factory=dict)


def autopsy(
    records: Sequence[Mapping[str, Any]],
    *,
    space: Codec,
    islands: int,
    losses: Callable[[dict[str, float]], tuple[float, ...]],
) -> Autopsy:
    """``records``: of one journal, whose writer writes no more."""
    found = Autopsy()
    open_: dict[str, Mapping[str, Any]] = {}
    for record in records:
        if record["type"] == "started":
            open_[record["id"]] = record
        elif record["type"] == "finished":
            open_.pop(record["id"], None)
            complete = record["status"] == COMPLETED and record["objectives"] is not None
            found.finished.append(
                (
                    space.key(record["params"]),
                    record["id"],
                    record["status"],
                    list(losses(record["objectives"])) if complete else None,
                    record["finished"] - record["started"],
                )
            )
    found.begun = [_unfinished(record, space=space, deaths=1) for record in open_.values()]
    found.populations = fold(records, space=space, islands=islands, losses=losses).populations
    return found


def _unfinished(record: Mapping[str, Any], *, space: Codec, deaths: int) -> Assignment:
    """An individual that was begun, to be evaluated again under its id; it may find its own checkpoint."""
    return Assignment(
        id=record["id"],
        params=dict(record["params"]),
        key=space.key(record["params"]),
        operator=record["operator"],
        parents=tuple(record["parents"]),
        retries=record["retries"] + deaths,
        resumed=True,
        admitted=True,
    )


def _all(population: Population) -> list[Member]:
    return [*population, *population.failures]


def _homes(
    birthplace: int, hops: Mapping[tuple[int, int, int], tuple[int, int, bool]], islands: int
) -> set[int]:
    """The islands on which an individual lives after its moves: where the last one took it, and where a copy
    stayed."""
    # It may have been evaluated elsewhere than where it was bred.
    first = hops[min(hops)][0] if hops else birthplace
    homes = {first % islands}
    for hop in sorted(hops):
        source, target, copy = hops[hop]
        if not copy:
            homes.discard(source % islands)
        homes.add(target % islands)
    return homes


def start_messages(layout: Layout, earlier: Earlier, leg: int, hosts: list[str]) -> list[Start]:
    """What to tell each rank; only leaders get a population."""
    starts = [Start(leg, hosts, 0, [], []) for _ in hosts]
    for island in range(layout.islands):
        places = layout.of_island(island)
        population = earlier.populations.get(island)
        members: list[list[object]] = []
        owned: dict[int, list[str]] = {}
        if population is not None:
            owned = share(population, [place.leader for place in places])
            # Worst first: what comes last counts as most recent.
            members += [one.to_wire() for one in (*population.failures, *reversed(list(population)))]
        for place in places:
            starts[place.leader] = Start(
                leg, hosts, earlier.sequence(place.island, place.worker), members, owned.get(place.leader, [])
            )
    return starts


def share(population: Population, leaders: Sequence[int]) -> dict[int, list[str]]:
    """Who owns which of an island's individuals from now on: dealt to its leaders in turn."""
    owned: dict[int, list[str]] = {leader: [] for leader in leaders}
    for index, member in enumerate(population.best):
        owned[leaders[index % len(leaders)]].append(member.id)
    return owned
