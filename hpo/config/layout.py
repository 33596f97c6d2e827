"""Assignment of ranks to workers and islands, and the topology of migration.

All are pure functions of a few numbers, so that every rank computes the same result without communication.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpo.errors import UsageError
from hpo.spelling import suggestion
from hpo.text import excerpt

Matrix = tuple[tuple[int, ...], ...]
TOPOLOGIES = ("ring", "full")
MOST_RANKS = 1_000_000
"""Most ranks of a campaign, islands or ranks of a worker; beyond the size of any machine."""
_MOST_EMIGRANTS = 2**53
_MOST_IN_EXAMPLE = 6
"""Most islands for which an error shows a whole topology matrix as an example."""


@dataclass(frozen=True, kw_only=True)
class WorkerPlacement:
    """Place of one worker in a campaign."""

    index: int
    """Number of the worker in the campaign, from 0."""
    island: int
    """Number of its island, from 0."""
    worker: int
    """Number of the worker on its island, from 0."""
    ranks: tuple[int, ...]
    """World ranks in order of their worker ranks."""

    @property
    def leader(self) -> int:
        """World rank of the worker's leader, which exchanges messages for the worker."""
        return self.ranks[0]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """All workers of a campaign; workers of an island, and ranks of a worker, have consecutive numbers."""

    islands: int
    """Number of islands."""
    workers: tuple[WorkerPlacement, ...]
    """Workers in order of their numbers in the campaign."""

    @classmethod
    def plan(cls, *, ranks: int, islands: int, ranks_per_worker: int) -> Layout:
        """Layout with workers spread over islands as evenly as possible; the first islands get the remainder.

        Raises:
            UsageError: a worker would lack ranks, or an island workers; the text has the closest numbers of ranks
                that fit.
        """
        fewest = smallest(islands, ranks_per_worker)
        _check_count("ranks", ranks)
        if ranks < fewest or ranks % ranks_per_worker:
            raise UsageError(_misfit(ranks, islands, ranks_per_worker, fewest))
        # Consecutive ranks usually share a host, so the ranks of a worker do, as far as its size allows.
        share, extra = divmod(ranks // ranks_per_worker, islands)
        places: list[WorkerPlacement] = []
        for island in range(islands):
            for worker in range(share + (island < extra)):
                first = len(places) * ranks_per_worker
                members = tuple(range(first, first + ranks_per_worker))
                places.append(WorkerPlacement(index=len(places), island=island, worker=worker, ranks=members))
        return cls(islands=islands, workers=tuple(places))

    @property
    def leaders(self) -> tuple[int, ...]:
        """World ranks of all leaders, in order of their workers."""
        return tuple(place.leader for place in self.workers)

    def of_island(self, island: int) -> tuple[WorkerPlacement, ...]:
        """Workers of one island."""
        return tuple(place for place in self.workers if place.island == island)

    def place_of(self, rank: int) -> tuple[WorkerPlacement, int]:
        """Worker and worker rank of a world rank; IndexError for a rank outside of the layout."""
        ranks_per_worker = len(self.workers[0].ranks)
        if not 0 <= rank < len(self.workers) * ranks_per_worker:
            raise IndexError(
                f"rank {rank} is not one of the {len(self.workers) * ranks_per_worker} of this layout"
            )
        return self.workers[rank // ranks_per_worker], rank % ranks_per_worker


def smallest(islands: int, ranks_per_worker: int) -> int:
    """Fewest ranks that give each island a worker."""
    _check_count("islands", islands)
    _check_count("ranks_per_worker", ranks_per_worker)
    return islands * ranks_per_worker


def topology_matrix(spec: str | Sequence[Sequence[int]], islands: int) -> Matrix:
    """Matrix of the numbers of emigrants that island ``row`` sends to island ``column`` at a migration.

    Args:
        spec (str or sequence of sequences): "ring", "full", or the matrix itself.
        islands (int): number of islands.

    Raises:
        UsageError: the matrix is not square with a row for each island, of whole numbers from 0, with zeros on its
            diagonal.
    """
    _check_count("islands", islands)
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
    if (
        not _is_sequence(spec)
        or len(spec) != islands
        or not all(_is_sequence(row) and len(row) == islands for row in spec)
    ):
        example = range(min(islands, _MOST_IN_EXAMPLE))
        written = (
            f"{[[int(i != j) for j in example] for i in example]} or " if islands <= _MOST_IN_EXAMPLE else ""
        )
        raise UsageError(
            f"topology = {excerpt(spec)}: must have {_counted(islands, 'row')} of {_counted(islands, 'number')}, "
            f'one for each island. Write {written}"ring".'
        )
    for i, row in enumerate(spec):
        for j, emigrants in enumerate(row):
            whole = isinstance(emigrants, int) and not isinstance(emigrants, bool)
            if not whole or not 0 <= emigrants <= _MOST_EMIGRANTS:
                raise UsageError(
                    f"topology, row {i + 1}, column {j + 1} = {excerpt(emigrants)}: must be a whole number from 0 "
                    f"to 2**53, the emigrants that island {i} sends to island {j}."
                )
            if i == j and emigrants:
                raise UsageError(
                    f"topology, row {i + 1}, column {j + 1} = {emigrants!r}: must be 0, "
                    "as no island sends to itself."
                )
    return tuple(tuple(row) for row in spec)


def _is_sequence(value: object) -> bool:
    return isinstance(value, (list, tuple))


def _check_count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_RANKS:
        raise UsageError(f"{name} = {excerpt(value)}: must be a whole number from 1 to {MOST_RANKS}.")


def _misfit(ranks: int, islands: int, ranks_per_worker: int, fewest: int) -> str:
    # The two multiples of ranks_per_worker around ranks; the lower may be too few for all islands.
    below = ranks // ranks_per_worker * ranks_per_worker
    above = max(below + ranks_per_worker, fewest)
    rules = [f"at least {fewest}, a worker for each island" if islands > 1 else f"at least {fewest}"]
    if ranks_per_worker > 1:
        rules.insert(0, f"a multiple of {ranks_per_worker}")
    fits = (
        f"{below} and {above} are the nearest that do"
        if below >= fewest
        else f"{above} is the nearest that does"
    )
    return (
        f"{_counted(ranks, 'rank')} do{'es' * (ranks == 1)} not fit {_counted(islands, 'island')} "
        f"of workers of {_counted(ranks_per_worker, 'rank')}: the number of ranks must be "
        f"{' and '.join(rules)}. {fits}."
    )


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
