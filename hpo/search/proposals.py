"""Choice of a breeder's offspring that is worth evaluating: allowed by the constraints, and new."""

from __future__ import annotations

import random
from collections.abc import Callable

from msgspec.structs import replace

from hpo.individual import REEVALUATION, Configuration, Scalar, birthplace
from hpo.search.population import Population
from hpo.search.protocols import Breeder, Candidate, Codec, Offspring

STUCK = 200
"""Attempts after which only known configurations can be expected from breeding and from chance alike."""
_BRED = 50
"""Attempts by breeding, before random configurations are tried."""
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
            if candidate.draws >= bred + STUCK - _BRED or self._duplicates or key not in self.known:
                break
        candidate.configuration, candidate.genome, candidate.key = configuration, child.genome, key
