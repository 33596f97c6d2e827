"""Division of the ranks of a campaign into islands and workers, and the topology matrix of migration.

Pure functions of a few numbers, so that every rank computes the same result without communication."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hpo.errors import UsageError
from hpo.spelling import suggestion
from hpo.text import excerpt

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

    @classmethod
    def plan(cls, *, ranks: int, islands: int, ranks_per_worker: int, joins: bool = False) -> Layout:
        """Layout with workers spread over islands as evenly as possible; the first islands get the remainder.
        UsageError, with the closest numbers of ranks that fit, where a worker would lack ranks, or an island
        workers. ``joins``: other launches have workers for the islands that get none."""
        fewest = smallest(1 if joins else islands, ranks_per_worker)
        _check_count("ranks", ranks)
        if ranks < fewest or ranks % ranks_per_worker:
            raise UsageError(_misfit(ranks, islands, ranks_per_worker, fewest))
        # Consecutive ranks usually share a host, so the ranks of a worker do, as far as its size allows.
        share, extra = divmod(ranks // ranks_per_worker, islands)
        places: list[WorkerPlacement] = []
        for island in range(islands):
            for index in range(len(places), len(places) + share + (island < extra)):
                members = tuple(range(index * ranks_per_worker, (index + 1) * ranks_per_worker))
                places.append(WorkerPlacement(index=index, island=island, worker=index, ranks=members))
        return cls(islands=islands, workers=tuple(places))

    def numbered_from(self, first_worker: int, first_island: int = 0) -> Layout:
        """The same layout, with its workers numbered from ``first_worker``, and the islands that get workers first
        counted from ``first_island``."""
        workers = (
            replace(
                place, worker=first_worker + place.index, island=(first_island + place.island) % self.islands
            )
            for place in self.workers
        )
        return replace(self, workers=tuple(workers))

    def of_island(self, island: int) -> tuple[WorkerPlacement, ...]:
        return tuple(place for place in self.workers if place.island == island)

    def place_of(self, rank: int) -> tuple[WorkerPlacement, int]:
        worker, worker_rank = divmod(rank, len(self.workers[0].ranks))
        return self.workers[worker], worker_rank


def smallest(islands: int, ranks_per_worker: int) -> int:
    """Fewest ranks that give each island a worker."""
    _check_count("islands", islands)
    _check_count("ranks_per_worker", ranks_per_worker)
    return islands * ranks_per_worker


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
            f"topology = {excerpt(spec)}: must have {_counted(islands, 'row')} of {_counted(islands, 'number')}, "
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


def _misfit(ranks: int, islands: int, ranks_per_worker: int, fewest: int) -> str:
    # The two multiples of ranks_per_worker around ranks; the lower may be too few for all islands.
    below = ranks // ranks_per_worker * ranks_per_worker
    above = max(below + ranks_per_worker, fewest)
    fits = (
        f"{below} and {above} are the nearest that do"
        if below >= fewest
        else f"{above} is the nearest that does"
    )
    return (
        f"{_counted(ranks, 'rank')} do{'es' * (ranks == 1)} not fit {_counted(islands, 'island')} of workers of "
        f"{_counted(ranks_per_worker, 'rank')}: the number of ranks must be a multiple of {ranks_per_worker} and at "
        f"least {fewest}, a worker for each island. {fits}."
    )


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
