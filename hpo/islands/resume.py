"""What a new launch must know of the earlier ones: a fold over their journals, of bounded size.

RetentionPolicy are the keys of all configurations (so that none is evaluated twice), the unfinished individuals, the
first free sequence numbers, and of each island what its leaders would know; not the records themselves, so
that a launch after 100 000 evaluations needs no more memory than one after a hundred."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hpo.config.layout import Layout
from hpo.errors import CampaignError, UsageError
from hpo.individual import COMPLETED, FINAL, INTERRUPTED, PRUNED, Scalar, is_known, known_id
from hpo.islands.assignment import Assignment
from hpo.islands.coordinator.tally import Tally
from hpo.islands.messages import Evaluated, Start, rung_reports
from hpo.journal import records as journal
from hpo.search.population import Member, Population
from hpo.search.proposals import key_of
from hpo.search.protocols import Codec

_KEPT = 256
"""Of each birthplace; more than an island breeds from, since some of them have emigrated."""
_MOST_KNOWN = 256
"""Known points that each island is told of: half of them the best, the others from all over the rest."""
_LATEST = 64
"""Completed ones of each birthplace that finished last, for islands whose individuals go on from each other."""
_REPORTS = 4096
"""Intermediate results of an island, the latest."""


class Unfit(CampaignError):
    """A record, which has these ``fields``, holds parameters that are no configuration of the space: somebody has
    edited it, for a campaign goes on in the space that it began in."""

    def __init__(self, fields: Mapping[str, object], reason: str) -> None:
        super().__init__(reason)
        self.fields = fields


@contextmanager
def located(directory: Path) -> Iterator[None]:
    """Raise JournalDamaged, with file and line in ``directory``, where what is folded is ``Unfit``."""
    try:
        yield
    except Unfit as error:
        raise journal.damaged(directory, error.fields, str(error)) from None


def _validated(space: Codec, fields: Mapping[str, Any]) -> dict[str, Scalar]:
    """``fields["params"]`` as the space has them; what a journal says reaches neither task nor model unchecked."""
    try:
        return space.validate(fields["params"])
    except UsageError as error:
        name = fields["id"] if "id" in fields else known_id(fields["number"])
        rules = "; ".join(str(error).splitlines())
        raise Unfit(fields, f"the parameters of {name} do not fit the search space ({rules})") from None


@dataclass
class ResumeState:
    """``sequences``: first free number by (island, worker); ``populations``: by island, as of the end of the
    last launch; ``reports``: by island the latest intermediate results at rungs; ``resting``: pruned ones that have
    saved themselves and may go on; ``continued``: those whose lineages went on; ``known``: how many known points
    there are; ``saves``: whether one that was asked to has ever saved itself."""

    keys: set[str] = field(default_factory=set)
    tally: Tally = field(default_factory=Tally)
    pending: list[Assignment] = field(default_factory=list)
    sequences: dict[tuple[int, int], int] = field(default_factory=dict)
    populations: dict[int, Population] = field(default_factory=dict)
    reports: dict[int, deque[tuple[str, int, float]]] = field(default_factory=dict)
    resting: set[str] = field(default_factory=set)
    continued: set[str] = field(default_factory=set)
    known: int = 0
    saves: bool = False

    def sequence(self, island: int, worker: int) -> int:
        return self.sequences.get((island, worker), 0)

    def avoid(self, taken: Mapping[tuple[int, int], int]) -> None:
        """Number new individuals from ``taken`` on, by (island, worker), where that is further."""
        for (island, worker), first in taken.items():
            self.sequences[island, worker] = max(first, self.sequence(island, worker))


def fold(
    records: Iterable[Mapping[str, Any]],
    *,
    space: Codec,
    islands: int,
    losses: Callable[[dict[str, float]], tuple[float, ...]],
) -> ResumeState:
    """State of the campaign after ``records``; individuals of islands that no longer exist go to island
    number modulo ``islands``. Raises ``Unfit``."""
    earlier = ResumeState()
    final: dict[str, int] = {}
    open_: dict[str, Mapping[str, Any]] = {}
    moves: dict[str, dict[tuple[int, int, int], tuple[int, int, bool]]] = {}
    # By birthplace until all moves are known; the configurations of those kept, by id.
    born: dict[int, Population] = {}
    configurations: dict[str, dict[str, Scalar]] = {}
    # Of each birthplace a heap of when they finished.
    latest: dict[int, list[tuple[float, str, Member]]] = {}
    given: dict[int, Mapping[str, Any]] = {}
    for record in records:
        kind = record["type"]
        if kind == "known":
            given.setdefault(record["number"], record)
        if kind == "migrated":
            moves.setdefault(record["id"], {})[record["hop"], record["source"], record["target"]] = (
                record["source"],
                record["target"],
                record["copy"],
            )
            continue
        if kind == "reported":
            reports = earlier.reports.setdefault(record["island"] % islands, deque(maxlen=_REPORTS))
            reports.append((record["id"], record["step"], _worst(record["loss"])))
            continue
        if kind not in ("started", "finished"):
            continue
        identity, params = record["id"], record["params"]
        place = (record["island"], record["worker"])
        earlier.sequences[place] = max(earlier.sequences.get(place, 0), record["sequence"] + 1)
        # What was killed after its grace has an error.
        saved = kind == "finished" and record["status"] == INTERRUPTED and record["error"] is None
        earlier.saves |= saved or bool(record.get("resting"))
        if record.get("inherits"):
            # Whose turn it was, though one that had fallen behind goes on from another's checkpoint.
            earlier.continued.update(record["parents"][-1:])
        turn = _turn(record)
        if identity in final:
            if turn <= final[identity]:
                continue
            # It was promoted after that end.
            del final[identity]
            earlier.tally.reopen()
            earlier.resting.discard(identity)
        if identity in open_ and turn < _turn(open_[identity]):
            continue
        if kind == "started" or record["status"] not in FINAL:
            # One that was handed on after a death was begun twice, and the files are in no order of time.
            known = open_.get(identity)
            if known is None or (turn, record["retries"]) >= (_turn(known), known["retries"]):
                open_[identity] = record
            continue
        final[identity] = turn
        open_.pop(identity, None)
        earlier.keys.add(key_of(space, params, record.get("inherits", ""), record["operator"], identity))
        if record.get("resting"):
            earlier.resting.add(identity)
        complete = record["status"] == COMPLETED and record["objectives"] is not None
        loss = losses(record["objectives"]) if complete else None
        seconds = record["finished"] - record["started"]
        earlier.tally.add(identity, record["status"], None if loss is None else list(loss), seconds)
        population = born.setdefault(record["island"], Population(best=_KEPT))
        progress, operator = _progress(record, losses), record["operator"]
        member = Member(identity, (), loss, record["status"], (), progress, operator)
        population.add(member)
        if complete:
            newest = latest.setdefault(record["island"], [])
            heapq.heappush(newest, (record["finished"], identity, member))
            if len(newest) > _LATEST:
                heapq.heappop(newest)
        configurations[identity] = params
        if len(configurations) > 4096 + 2 * (_KEPT + _LATEST) * len(born):
            kept = {one.id for place in born for one in _in_order(born[place], latest.get(place, []))}
            configurations = {one: configurations[one] for one in kept}
    for birthplace in sorted(born):
        for member in _in_order(born[birthplace], latest.get(birthplace, [])):
            hops = moves.get(member.id, {})
            genome = space.encode(_validated(space, {"id": member.id, "params": configurations[member.id]}))
            history = tuple(hops[hop][0] for hop in sorted(hops))
            for island in sorted(_homes(birthplace, hops, islands)):
                population = earlier.populations.setdefault(island, Population())
                carried = (member.progress, member.operator)
                population.add(Member(member.id, genome, member.losses, member.status, history, *carried))
    for record in open_.values():
        # That the whole launch was killed is no fault of the individual's, and no try of it.
        assignment = _unfinished(record, space=space, deaths=0)
        earlier.keys.add(assignment.key)
        earlier.pending.append(assignment)
    enter(earlier, given.values(), space=space, islands=islands, losses=losses)
    return earlier


def enter(
    earlier: ResumeState,
    known: Iterable[Mapping[str, Any]],
    *,
    space: Codec,
    islands: int,
    losses: Callable[[dict[str, float]], tuple[float, ...]],
) -> None:
    """Have each island know the results in ``known``, records of that type. They are no individuals of this campaign:
    they are in no tally, nobody evaluates them again, and as they are everywhere, they do not migrate."""
    completed: list[Member] = []
    failed: list[Member] = []
    for record in known:
        earlier.known = max(earlier.known, record["number"])
        earlier.keys.add(space.key(record["params"]))
        complete = record["status"] == COMPLETED and record["objectives"] is not None
        loss = losses(record["objectives"]) if complete else None
        params = _validated(space, {"number": record["number"], "params": record["params"]})
        member = Member(known_id(record["number"]), space.encode(params), loss, record["status"])
        member.history = tuple(range(islands))
        (failed if loss is None else completed).append(member)
        if loss is not None and (earlier.tally.best is None or loss[0] < earlier.tally.best[0][0]):
            earlier.tally.best = (loss, member.id)
    completed.sort(key=lambda member: member.losses or ())
    if len(completed) > _MOST_KNOWN:
        best, rest = completed[: _MOST_KNOWN // 2], completed[_MOST_KNOWN // 2 :]
        left = _MOST_KNOWN - len(best)
        completed = best + [rest[index * len(rest) // left] for index in range(left)]
    for island in range(islands) if completed or failed else ():
        population = earlier.populations.setdefault(island, Population())
        for member in (*failed, *reversed(completed)):
            population.enter(replace(member))


@dataclass
class DeadLeaderRecord:
    """What the journal of a leader that died says of its last launch.

    ``finished``: (key, id, status, losses, seconds) in the order in which they were told to the coordinator;
    ``begun``: what it was evaluating; ``populations``: by island, whom it has put there."""

    finished: list[tuple[str, str, str, list[float] | None, float]] = field(default_factory=list)
    begun: list[Assignment] = field(default_factory=list)
    populations: dict[int, Population] = field(default_factory=dict)


def dead_leader_record(
    records: Sequence[Mapping[str, Any]],
    *,
    space: Codec,
    islands: int,
    losses: Callable[[dict[str, float]], tuple[float, ...]],
) -> DeadLeaderRecord:
    """``records``: of one journal, whose writer writes no more."""
    found = DeadLeaderRecord()
    open_: dict[str, Mapping[str, Any]] = {}
    for record in records:
        if record["type"] == "started":
            open_[record["id"]] = record
        elif record["type"] == "finished":
            open_.pop(record["id"], None)
            complete = record["status"] == COMPLETED and record["objectives"] is not None
            found.finished.append(
                (
                    key_of(
                        space, record["params"], record.get("inherits", ""), record["operator"], record["id"]
                    ),
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
    inherits = record.get("inherits", "")
    params = _validated(space, {"id": record["id"], "params": record["params"]})
    return Assignment(
        id=record["id"],
        params=params,
        key=key_of(space, params, inherits, record["operator"], record["id"]),
        operator=record["operator"],
        parents=tuple(record["parents"]),
        retries=record["retries"] + deaths,
        resumed=True,
        admitted=True,
        resumed_at_step=_turn(record),
        inherits=inherits,
    )


def _turn(record: Mapping[str, Any]) -> int:
    """Which of an individual's evaluations a record is of: those that follow a pause are numbered by its steps."""
    return int(record.get("promoted", 0))


def _progress(
    record: Mapping[str, Any], losses: Callable[[dict[str, float]], tuple[float, ...]]
) -> tuple[int, float] | None:
    """Steps and loss of the last report of an individual that was pruned or completed."""
    if record["status"] not in (PRUNED, COMPLETED):
        return None
    step = record["metrics"].get("pruned_step") if record["status"] == PRUNED else record.get("steps")
    if not isinstance(step, int):
        return None
    known = record["objectives"]
    return step, losses(known)[0] if known else math.inf


def _worst(loss: float | None) -> float:
    return math.inf if loss is None else loss


def _in_order(population: Population, latest: list[tuple[float, str, Member]]) -> list[Member]:
    """All; last the ``latest``, in the order in which they finished: journals are in no order of time."""
    newest = {identity: member for _, identity, member in sorted(latest, key=lambda entry: entry[:2])}
    others = [*population, *population.pruned, *population.failures]
    return [*(one for one in others if one.id not in newest), *newest.values()]


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


def start_messages(
    layout: Layout,
    earlier: ResumeState,
    leg: int,
    hosts: list[str],
    *,
    lineages: Container[int] = (),
    holds: Callable[[str], bool] = lambda identity: True,
) -> list[Start]:
    """What to tell each rank; only leaders get a population. ``lineages``: islands whose individuals go on from each
    other; ``holds``: whether what an individual saved is still there, without which none goes on."""
    starts = [Start(leg, hosts, 0, [], [], []) for _ in hosts]
    for island in range(layout.islands):
        places = layout.of_island(island)
        population = earlier.populations.get(island)
        members: list[Evaluated] = []
        owned: dict[int, list[str]] = {}
        if population is not None:
            leaders = [place.leader for place in places]
            paused = [one.id for one in population.pruned if one.id in earlier.resting and holds(one.id)]
            resting = share(paused, leaders)
            completed = list(reversed(list(population)))  # worst first: what comes last counts as most recent
            if island in lineages:
                recent = population.recent
                completed = [one for one in completed if one not in recent] + recent
                ends = [one.id for one in recent if not one.history and one.id not in earlier.continued]
                owned = share([identity for identity in ends if holds(identity)], leaders)
            else:
                owned = share([one.id for one in population.best if not is_known(one.id)], leaders)
            owned = {leader: owned[leader] + resting[leader] for leader in leaders}
            everyone = (*population.failures, *population.pruned, *completed)
            members += [Evaluated.of(one) for one in everyone]
        reports = rung_reports(earlier.reports.get(island, ()))
        for place in places:
            starts[place.leader] = Start(
                leg,
                hosts,
                earlier.sequence(place.island, place.worker),
                members,
                owned.get(place.leader, []),
                reports,
            )
    return starts


def share(identities: Sequence[str], leaders: Sequence[int]) -> dict[int, list[str]]:
    """Who owns which of an island's individuals from now on: dealt to its leaders in turn."""
    owned: dict[int, list[str]] = {leader: [] for leader in leaders}
    for index, identity in enumerate(identities):
        owned[leaders[index % len(leaders)]].append(identity)
    return owned
