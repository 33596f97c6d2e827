"""Division of the ranks of a campaign into islands and workers, and the topology matrix of migration.

Pure functions of a few numbers, so that every rank computes the same result without communication."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heappop, heappush

from hpo.errors import UsageError
from hpo.spelling import suggestion
from hpo.text import excerpt, plural

Matrix = tuple[tuple[int, ...], ...]
TOPOLOGIES = ("ring", "full")
MOST_RANKS = 1_000_000
"""Most ranks of a campaign, islands or ranks of a worker; beyond the size of any machine."""
_MOST_EMIGRANTS = 2**53


@dataclass(frozen=True, kw_only=True)
class WorkerPlacement:
    """Place of one worker."""

    index: int
    """Number of the worker in its launch, from 0."""
    island: int
    worker: int
    """Number of the worker in the campaign: no worker of another launch has it."""
    ranks: tuple[int, ...]
    """World ranks of the worker."""

    @property
    def leader(self) -> int:
        """World rank that exchanges messages for the worker."""
        return self.ranks[0]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """All workers of a launch; workers of an island, and ranks of a worker, have consecutive numbers."""

    islands: int
    workers: tuple[WorkerPlacement, ...]
    first_island: int = 0
    """Island that gets a worker first."""
    sizes: tuple[int, ...] = (1,)
    """Ranks of each worker, by island."""

    @classmethod
    def plan(cls, *, ranks: int, sizes: Sequence[int], joins: bool = False, first_island: int = 0) -> Layout:
        """Layout with ranks spread over islands as evenly as workers allow; islands get the remainder in turn.

        Args:
            sizes: ranks of each worker, by island: multiples of the least.
            joins: other launches have workers for the islands that get none.
            first_island: the island that gets a worker first.

        Raises:
            UsageError: a worker would lack ranks, or an island workers; it names the nearest numbers of ranks that fit.
        """
        _check_count("ranks", ranks)
        least = min(sizes)
        fewest = least if joins else sum(sizes)
        if ranks < fewest or ranks % least:
            raise UsageError(_misfit(ranks, sizes, fewest))
        islands, left = len(sizes), ranks
        workers = [0] * islands
        # Ranks that an island has got, and its turn.
        waiting = [(0, turn) for turn in range(islands)]
        while left:
            own, turn = heappop(waiting)
            island = (first_island + turn) % islands
            if sizes[island] <= left:
                workers[island] += 1
                left -= sizes[island]
                heappush(waiting, (own + sizes[island], turn))
        # Consecutive ranks usually share a host, so the ranks of a worker do, as far as its size allows: the largest
        # begin where hosts do.
        turns = [(first_island + turn) % islands for turn in range(islands)]
        places: list[WorkerPlacement] = []
        for island in sorted(turns, key=lambda one: -sizes[one]):
            for index in range(len(places), len(places) + workers[island]):
                members = tuple(range(left, left + sizes[island]))
                places.append(WorkerPlacement(index=index, island=island, worker=index, ranks=members))
                left += sizes[island]
        return cls(islands=islands, workers=tuple(places), first_island=first_island, sizes=tuple(sizes))

    def numbered_from(self, first_worker: int) -> Layout:
        """The same layout, with its workers numbered from ``first_worker``."""
        workers = (replace(place, worker=first_worker + place.index) for place in self.workers)
        return replace(self, workers=tuple(workers))

    def of_island(self, island: int) -> tuple[WorkerPlacement, ...]:
        return tuple(place for place in self.workers if place.island == island)

    @cached_property
    def _leaders(self) -> list[int]:
        return [place.leader for place in self.workers]

    def place_of(self, rank: int) -> tuple[WorkerPlacement, int]:
        """Worker of a rank, and the number of the rank there."""
        place = self.workers[bisect_right(self._leaders, rank) - 1]
        return place, rank - place.leader


def topology_matrix(spec: str | Sequence[Sequence[int]], islands: int) -> Matrix:
    """Numbers of emigrants that island ``row`` sends to island ``column`` at a migration. ``spec``: "ring", "full", or
    the matrix itself. UsageError where that is not square with a row for each island, of whole numbers from 0, with
    zeros on its diagonal."""
    everyone = range(islands)
    if isinstance(spec, str):
        if spec not in TOPOLOGIES:
            raise UsageError(
                f'topology = {excerpt(spec)}: must be "ring", "full" or a matrix. {suggestion(spec, TOPOLOGIES)}'
            )
        full = spec == "full"
        # A single island has no neighbour but itself, and i != j leaves it without any.
        return tuple(
            tuple(int(i != j and (full or j == (i + 1) % islands)) for j in everyone) for i in everyone
        )
    rows = [row for row in spec if isinstance(row, (list, tuple))] if isinstance(spec, (list, tuple)) else []
    if [len(row) for row in rows] != [islands] * islands or len(spec) != islands:
        raise UsageError(
            f"topology = {excerpt(spec)}: must have {plural(islands, 'row')} of {plural(islands, 'number')}, "
            'one for each island. Correct it, or write "ring".'
        )
    for i, row in enumerate(rows):
        for j, emigrants in enumerate(row):
            most = 0 if i == j else _MOST_EMIGRANTS
            if type(emigrants) is not int or not 0 <= emigrants <= most:
                rule = "0, as no island sends to itself" if i == j else "a whole number from 0 to 2**53"
                raise UsageError(
                    f"topology, row {i + 1}, column {j + 1} = {excerpt(emigrants)}: must be {rule}. Correct it."
                )
    return tuple(tuple(row) for row in rows)


def _check_count(name: str, value: object) -> None:
    if type(value) is not int or not 1 <= value <= MOST_RANKS:
        raise UsageError(f"{name} = {excerpt(value)}: must be a whole number from 1 to {MOST_RANKS}.")


def _misfit(ranks: int, sizes: Sequence[int], fewest: int) -> str:
    least = min(sizes)
    # The two multiples around ranks; the lower may be too few for all islands.
    below = ranks // least * least
    above = max(below + least, fewest)
    fits = (
        f"{below} and {above} are the nearest that do"
        if below >= fewest
        else f"{above} is the nearest that does"
    )
    several = f"{', '.join(map(str, sizes[:-1]))} and {sizes[-1]} ranks"
    of = plural(least, "rank") if len({*sizes}) == 1 else several
    return (
        f"{plural(ranks, 'rank')} do{'es' * (ranks == 1)} not fit {plural(len(sizes), 'island')} of workers of "
        f"{of}: the number of ranks must be a multiple of {least} and at least {fewest}, a worker for each island. "
        f"{fits}."
    )
