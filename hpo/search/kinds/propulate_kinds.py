"""Breeders made of Propulate's propagators: genetic, CMA-ES, particle swarm, Nelder-Mead.

This is the only module that imports Propulate, when it is first used. Propulate's package imports GPy at its top (3.3 s
and 170 MB for each process, measured on 1.2.2), which no propagator needs: the submodules are loaded without it (13 ms,
1 MB).

Propulate gets numbers in the unit cube and integer indices, never strings (``Individual.__setitem__`` writes wrong
values for categories that are not the first gene), never NaN or infinity, and a bounded pool."""

from __future__ import annotations

import importlib
import importlib.util
import math
import random
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from hpo.config.search_kinds import KINDS
from hpo.config.settings import SearchSettings
from hpo.errors import UsageError
from hpo.search.kinds.evolution import RandomBreeder, reflect
from hpo.search.population import BEST_KEPT, Member, Population, keep_latest
from hpo.search.protocols import Breeder, Genome, Offspring, SearchContext
from hpo.space.space import SearchSpace

_GENETIC_POOL = 8
_PARTICLES = 5
"""Particles of a worker's swarm."""
_MOST_PENDING = 256
"""Most proposals without a result that a breeder remembers."""
_CMA_GENERATIONS = 2
"""Generations of latest individuals that an update of CMA-ES selects from."""


def breeder(space: SearchSpace, settings: SearchSettings, context: SearchContext) -> Breeder:
    """Breeder of a kind of Propulate's; UsageError where Propulate is not installed, or the space does not suit."""
    if not has_propulate():
        others = ", ".join(f'"{name}"' for name, kind in KINDS.items() if not kind.needs_propulate)
        raise UsageError(
            # Without its dependencies, as propagators import only numpy.
            f'[search] kind = "{settings.kind}" needs propulate, which is not installed. Run pip install --no-deps '
            f"propulate==1.2.2, or choose a kind that does without it: {others}"
        )
    if settings.kind == "genetic":
        return GeneticBreeder(space, settings)
    return {"cmaes": CmaesBreeder, "pso": PsoBreeder, "nelder-mead": NelderMeadBreeder}[settings.kind](space)


def has_propulate() -> bool:
    return importlib.util.find_spec("propulate") is not None


@lru_cache(maxsize=1)
def _propagators() -> Any:
    """Propulate's ``propagators`` subpackage, loaded without running the package's ``__init__``."""
    if "propulate" not in sys.modules:
        spec = importlib.util.find_spec("propulate")
        assert spec is not None and spec.submodule_search_locations is not None
        package = types.ModuleType("propulate")
        package.__path__ = list(spec.submodule_search_locations)
        package.__spec__ = spec
        sys.modules["propulate"] = package
        try:
            importlib.import_module("propulate.propagators")
            importlib.import_module("propulate.population")
        finally:
            # A task that imports propulate itself must get the whole package, which finds these submodules loaded.
            del sys.modules["propulate"]
    return sys.modules["propulate.propagators"]


def make_individual(position: Any, limits: Mapping[str, Any]) -> Any:
    """Propulate's individual at ``position``, genes by name or an array."""
    _propagators()
    return sys.modules["propulate.population"].Individual(position, limits)


class GeneticBreeder(RandomBreeder):
    """Propulate's default propagator: two random parents of the best ``pool`` individuals, uniform crossover, point and
    interval mutation, random restarts.

    It is composed as in ``propulate.utils.get_default_propagator``, whose module needs MPI. As there, offspring are
    random until ``pool`` individuals have completed.
    """

    def __init__(self, space: SearchSpace, settings: SearchSettings) -> None:
        super().__init__(space)
        self._pool = min(settings.pool or _GENETIC_POOL, BEST_KEPT)
        self._settings = settings
        self._rng = random.Random()
        self._limits = _Shared(space.limits)
        self._propagator: Callable[[list[Any]], Any] | None = None
        self._selected: list[Any] = []
        self._known: dict[str, Any] = {}

    def _build(self) -> Callable[[list[Any]], Any]:
        p, rng, limits, settings = _propagators(), self._rng, self._limits, self._settings
        remember = self._selected

        class Select(p.SelectUniform):  # type: ignore[misc, name-defined]
            """Propulate's selection, which also remembers the parents."""

            def __call__(self, inds: list[Any]) -> list[Any]:
                remember[:] = super().__call__(inds)
                return list(remember)

        steps = [
            p.SelectMin(self._pool),
            Select(offspring=2, rng=rng),
            # Share of genes from the first parent, as in Propulate's default. Propulate refuses 0 and 1, so the
            # closest numbers take their place.
            p.CrossoverUniform(
                min(max(settings.crossover, math.ulp(0.0)), math.nextafter(1.0, 0.0)), rng=rng
            ),
            p.PointMutation(limits, probability=settings.mutation, rng=rng),
        ]
        if any(isinstance(low, float) for low, _ in limits.values()):
            steps.append(p.IntervalMutationNormal(limits, sigma_factor=0.05, probability=1.0, rng=rng))
        if not self._space.has_beliefs:  # else ``breed`` draws the random individuals
            steps.append(p.InitUniform(limits, parents=1, probability=settings.random, rng=rng))
        composed: Callable[[list[Any]], Any] = p.Compose(steps)
        return composed

    def breed(self, population: Population, rng: random.Random) -> Offspring:
        immigrates = self._space.has_beliefs and rng.random() < self._settings.random
        if immigrates or len(population.best) < max(2, self._pool):
            return Offspring(self._space.sample(rng), operator="random")
        if self._propagator is None:
            self._propagator = self._build()
        self._rng.seed(rng.getrandbits(64))
        pool = population.best[: self._pool]
        self._known = {member.id: self._known.get(member.id) or self._individual(member) for member in pool}
        for member in pool:
            self._known[member.id].loss = member.rank  # a rank by domination changes with the others
        child = self._propagator(list(self._known.values()))
        parents = tuple(one.hpo_id for one in self._selected)
        return Offspring(tuple(child[name] for name in self._limits), operator="genetic", parents=parents)

    def _individual(self, member: Member) -> Any:
        genes = {
            name: gene if isinstance(low, int) else float(gene)
            for gene, (name, (low, _)) in zip(member.genome, self._limits.items())
        }
        one = make_individual(genes, self._limits)
        one.hpo_id = member.id
        one.types, one.offsets = _Shared(one.types), _Shared(one.offsets)
        return one


class _Shared(dict[str, Any]):
    """Dictionary that deep copies of an individual share: Propulate makes several for an offspring, and breeding is
    three times as fast without copies of the parts that are equal for all individuals."""

    def __deepcopy__(self, memo: object) -> _Shared:
        return self


class _CubeBreeder(RandomBreeder):
    """Base of the breeders with propagators for continuous spaces: each gene is a coordinate of the unit cube.

    Index i of n choices is at the middle of its cell, (i + 1/2)/n; coordinates outside of the cube are reflected at its
    border.
    """

    operator = ""

    def __init__(self, space: SearchSpace) -> None:
        super().__init__(space)
        self._counts = [
            None if isinstance(low, float) else int(high) + 1 for low, high in space.limits.values()
        ]
        self._cube = dict.fromkeys(space.limits, (0.0, 1.0))
        self._rng = random.Random()

    def _point(self, genome: Sequence[float]) -> Any:
        import numpy

        return numpy.array(
            [g if n is None else (g + 0.5) / n for g, n in zip(genome, self._counts)], dtype=float
        )

    def _genome(self, point: Sequence[float]) -> Genome:
        genome: list[float] = []
        for value, count in zip(point, self._counts):
            inside = reflect(float(value))
            genome.append(inside if count is None else min(count - 1, int(inside * count)))
        # Projected here, not only when it is proposed, because results are matched to proposals by their genomes.
        return self._space.project_to_allowed(tuple(genome))

    def _member(self, member: Member, generation: int = -1, rank: int = -1) -> Any:
        one = make_individual(self._point(member.genome), self._cube)
        one.loss, one.generation, one.rank = member.rank, generation, rank
        return one

    def _offspring(self, child: Any, *parents: str) -> Offspring:
        return Offspring(self._genome(child.position), operator=self.operator, parents=tuple(parents))


class CmaesBreeder(_CubeBreeder):
    """Propulate's CMA-ES (``BasicCMA``), updated after each generation of λ individuals from any worker.

    The propagator by itself updates its distribution at every call from the best individuals of all time, and
    collapses: on a sphere in four dimensions, its best of 400 evaluations had a loss of 0.15 (median of nine seeds),
    random search 0.05, this breeder 1e-7. Between updates, the propagator is called without individuals, so that it
    only samples.
    """

    operator = "cmaes"

    def __init__(self, space: SearchSpace) -> None:
        super().__init__(space)
        if len(self._cube) < 2:
            raise UsageError(
                '[search] kind = "cmaes" needs at least two parameters. Choose another kind for this space'
            )
        self._propagator: Any = None
        self._used = 0

    def breed(self, population: Population, rng: random.Random) -> Offspring:
        import numpy

        if self._propagator is None:
            p = _propagators()
            # The propagator decomposes the covariance after a number of evaluations, which it counts by the size of
            # its pool; as the pool here is bounded, that count stands still, so it must decompose at each update.
            self._propagator = p.CMAPropagator(
                p.BasicCMA(),
                self._cube,
                decompose_in_each_generation=True,
                pool_size=_CMA_GENERATIONS,
                rng=random.Random(rng.getrandbits(64)),
            )
            if (centre := self._space.centre) is not None:
                self._propagator.par.mean = self._point(centre)[:, None]
        self._propagator.numpy_rng = numpy.random.default_rng(rng.getrandbits(64))
        self._propagator.select_from_pool.rng = random.Random(rng.getrandbits(64))
        size = self._propagator.par.lambd
        generation: list[Member] = []
        if population.completed >= max(self._used + size, _CMA_GENERATIONS * size):
            generation = population.recent[-_CMA_GENERATIONS * size :]
            if len(generation) < _CMA_GENERATIONS * size:
                generation = []
            self._used = population.completed
        inds = [self._member(member, generation=index) for index, member in enumerate(generation)]
        try:
            child = self._propagator(inds)
        except (ValueError, numpy.linalg.LinAlgError, AssertionError, RecursionError):
            child = None
        if child is None or not numpy.isfinite(child.position).all():
            # The distribution is degenerate, with a whole generation at a single point: begin with another.
            self._propagator = None
            return Offspring(self._space.sample(rng), operator="random")
        return self._offspring(child)


class PsoBreeder(_CubeBreeder):
    """Propulate's particle swarm (``VelocityClampingPSO`` with Clerc's constriction values).

    Each worker has five particles. Propulate has a single particle for each worker, which is no swarm on an island of
    one or two workers.
    """

    operator = "pso"

    def __init__(self, space: SearchSpace) -> None:
        super().__init__(space)
        self._propagator: Any = None
        self._turn = 0
        self._flying: dict[Genome, tuple[int, Any]] = {}
        """Particle and velocity of each proposal without a result."""
        self._last: dict[int, Any] = {}
        """Last individual of each particle."""
        self._best: dict[int, Any] = {}
        """Best individual of each particle."""

    def learn(self, member: Member) -> None:
        particle, velocity = self._flying.pop(member.genome, (None, None))
        if particle is None or member.losses is None:
            return
        one = self._member(member, generation=1, rank=0)
        one.velocity, one.hpo_id = velocity, member.id
        self._last[particle] = one
        if particle not in self._best or one.loss <= self._best[particle].loss:
            self._best[particle] = one

    def breed(self, population: Population, rng: random.Random) -> Offspring:
        import numpy

        if self._propagator is None:
            p = _propagators()
            self._propagator = p.VelocityClampingPSO(0.7298, 1.4962, 1.4962, 0, self._cube, self._rng, 0.5)
        particle, self._turn = self._turn, (self._turn + 1) % _PARTICLES
        last = self._last.get(particle)
        if last is None:
            genome = self._space.sample(rng)
            self._fly(genome, particle, numpy.array([rng.uniform(-0.25, 0.25) for _ in genome]))
            return Offspring(genome, operator="random")
        best = self._best[particle]
        leader = self._member(population.best[0]) if population.best else best
        self._rng.seed(rng.getrandbits(64))
        # The propagator takes the individual of the highest generation as the particle, and the better of the
        # particle's own individuals as its best.
        best.generation, last.generation = 0, 1
        child = self._propagator([last, best, leader])
        offspring = self._offspring(child, last.hpo_id, best.hpo_id)
        self._fly(offspring.genome, particle, child.velocity)
        return offspring

    def _fly(self, genome: Genome, particle: int, velocity: Any) -> None:
        self._flying[genome] = (particle, velocity)
        keep_latest(self._flying, _MOST_PENDING)


class NelderMeadBreeder(_CubeBreeder):
    """Propulate's parallel Nelder–Mead method; the first simplex is around the best known configuration.

    The propagator decides between expansion, contraction and shrinking by the rank of this worker's last point, which
    it recognizes by its generation. The generations of proposals are kept here, by genome.
    """

    operator = "nelder-mead"

    def __init__(self, space: SearchSpace) -> None:
        super().__init__(space)
        self._propagator: Any = None
        self._generations: dict[Genome, int] = {}

    def breed(self, population: Population, rng: random.Random) -> Offspring:
        import numpy

        if self._propagator is None:
            p = _propagators()
            genome = population.best[0].genome if population.best else self._space.sample(rng)
            start = self._point(genome)
            self._propagator = p.ParallelNelderMead(self._cube, self._rng, start, scale=0.2)
        self._rng.seed(rng.getrandbits(64))
        self._propagator.init.rng = numpy.random.default_rng(rng.getrandbits(64))
        inds = [self._member(one, self._generations.get(one.genome, -1)) for one in population.best]
        child = self._propagator(inds)
        offspring = self._offspring(child)
        self._generations[offspring.genome] = self._propagator.generation
        keep_latest(self._generations, _MOST_PENDING)
        return offspring
