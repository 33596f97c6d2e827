"""Choice of a breeder's offspring that is worth evaluating: allowed by the constraints, and new."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from hpo.individual import REEVALUATION, Configuration, Scalar, birthplace
from hpo.search.population import Member, Population
from hpo.search.protocols import Breeder, Candidate, Codec, Genome, Offspring

STUCK = 200
"""Attempts after which only known configurations can be expected from breeding and from chance alike."""
MOST_DRAWS = 200_000
"""Random configurations after which constraints that refuse all count as impossible."""
_BRED = 50
"""Attempts by breeding, before random configurations are tried."""
BESIDE = "beside"
"""The operator of an individual that is drawn close to others, as constraints refuse nearly all of the space."""
_FEW = 10
_RARE, _RARELY = 1_000, 8_000
"""Draws after which every other draw is close to an individual, which the constraints have allowed; the second while
fewer than ten have completed."""
# Most draws for which the constraints allow nothing: in all, and then for each further claim of the candidate.
_MOST, _FURTHER = 10_000, 500


def key_of(space: Codec, configuration: Configuration) -> str:
    """Key that no two individuals share: the parameters, and whose checkpoint they go on from, if from any. Each
    repetition has a key of its own."""
    key = space.key(configuration.params)
    if configuration.operator == REEVALUATION:
        return f"{key}#{configuration.id}"
    return f"{key}<{configuration.inherits}" if configuration.inherits else key


class Proposals:
    """Gives candidates their configurations. ``known``: keys of those that need not be proposed again.

    Random numbers come from (seed, id of the candidate, draws), never from a state: a resumed campaign draws the same
    as an undisturbed campaign."""

    def __init__(
        self,
        space: Codec,
        breeder: Breeder,
        *,
        seed: int,
        allows: Callable[[dict[str, Scalar]], bool] = lambda params: True,
        duplicates: bool,
    ) -> None:
        self._space = space
        self._breeder = breeder
        self._seed = seed
        self._allows = allows
        self._duplicates = duplicates
        self._rng = random.Random()
        self.known: set[str] = set()
        self.earlier = 0
        """Number of individuals that the worker's island has begun in earlier launches, by worker."""

    def fill(self, candidate: Candidate, population: Population) -> None:
        """Give ``candidate`` an allowed configuration that is new as far as known here.

        The caller must look further after ``STUCK`` attempts, where the configuration may be known, and after many
        more, where the key is empty: then the constraints allow nothing that was drawn. ``candidate.refused`` counts
        the draws that they refused."""
        rng, breeder = self._rng, self._breeder
        breeder.begin_proposal(self.earlier + birthplace(candidate.id)[2])
        rng.seed(f"{self._seed}/{candidate.id}/{candidate.draws}")
        most, candidate.refused = max(_MOST, candidate.draws + _FURTHER), 0
        first = None
        if not candidate.draws:
            first = breeder.propose_first(candidate.id, self._seed, population, rng)
        # A breeder that has converged repeats itself; chance finds the few new configurations of a small space.
        bred = _BRED + breeder.further_attempts(candidate.draws)
        while True:
            candidate.draws += 1
            if first is not None:
                child, first = first, None
            elif candidate.draws <= bred:
                child = breeder.breed(population, rng)
            elif candidate.draws % 2 and (beyond := self._beyond(candidate, population)) >= 0:
                members = list(population)
                parent = rng.choice(members)
                # From far to near, so that the first that are allowed are not all alike.
                genome = beside(self._space, parent, members, rng, min(4.0, 1.0 + beyond / 500))
                child = Offspring(genome, operator=BESIDE, parents=(parent.id,))
            else:
                child = Offspring(self._space.sample(rng), operator="random")
            # Parents from other islands may have choices that this island or phase does not allow.
            if (genome := self._space.project_to_allowed(child.genome)) is not child.genome:
                child = replace(child, genome=genome)
            params = self._space.decode(child.genome)
            configuration = Configuration.of(child, id=candidate.id, params=params)
            # Without a bound, constraints that allow nothing would keep the leader from its messages.
            if not self._allows(params):
                candidate.refused += 1
                if candidate.draws < most:
                    continue
                key = ""
                break
            key = key_of(self._space, configuration)
            # Close to known configurations a known one says nothing of what is left.
            stuck = candidate.draws >= bred + STUCK - _BRED and (
                child.operator != BESIDE or candidate.draws >= most
            )
            if stuck or self._duplicates or key not in self.known:
                break
        candidate.configuration, candidate.genome, candidate.key = configuration, child.genome, key

    @staticmethod
    def _beyond(candidate: Candidate, population: Population) -> int:
        """Number of draws since those close to individuals began, negative before. The first individuals are to be
        independent of one another."""
        few = population.completed < _FEW
        return candidate.draws - (_RARELY if few else _RARE) if len(population.best) else -1


def beside(
    space: Codec, parent: Member, others: Sequence[Member], rng: random.Random, decades: float = 4.0
) -> Genome:
    """Genome close to that of ``parent``, all genes moved together, as they must where constraints tie parameters:
    along the difference of two ``others`` (Storn and Price 1997), or by a share from 10^-``decades`` of the way to a
    random genome."""
    share = 10.0 ** -rng.uniform(0.0, decades)
    start, end = parent.genome, space.sample(rng)
    if len(others) > 1 and rng.random() < 0.5:
        share, start, end = rng.random(), *(one.genome for one in rng.sample(others, 2))
    moved = [
        min(1.0, max(0.0, gene + share * (last - first)))
        if isinstance(gene, float)
        else last
        if rng.random() < min(share, 0.5)
        else gene
        for gene, first, last in zip(parent.genome, start, end)
    ]
    return space.project_to_allowed(tuple(moved))
