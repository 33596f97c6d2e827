"""Which breeder a search kind stands for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, get_args

from hpo.errors import UsageError
from hpo.search.kinds.evolution import (
    INSTALL_PROPULATE,
    PROPULATE_KINDS,
    CmaesBreeder,
    EvolutionBreeder,
    GeneticBreeder,
    NelderMeadBreeder,
    PsoBreeder,
    RandomBreeder,
    has_propulate,
)
from hpo.search.protocols import Breeder
from hpo.space.parameters import Categorical
from hpo.space.space import SearchSpace

if TYPE_CHECKING:
    from hpo.config.reader import SearchSettings


def make_breeder(
    space: SearchSpace,
    settings: SearchSettings,
    *,
    clock: Callable[[], float] | None = None,
    workers: int = 1,
    first: int | None = None,
    background: bool = False,
) -> Breeder:
    """The breeder of ``settings.kind``; raises UsageError for one that the space does not suit.

    ``clock``: seconds, by which the default kind sees how long evaluations take, and whether to think longer than
    evolution does is worth it; without one it does not. ``workers``: of the island, who share the first individuals.
    ``first``, ``background``: as of ``hpo.search.kinds.surrogate.TimeBudgetedSurrogate``; None: its own."""
    thrift = {} if first is None else {"first": first}
    breeder = _breeder_of(space, settings, clock, background=background, **thrift)
    if settings.reevaluate:
        from hpo.search.kinds.reevaluation import ReevaluatingBreeder

        breeder = ReevaluatingBreeder(space, breeder, settings.reevaluate)
    if settings.initial == "random":
        return breeder
    from hpo.search.kinds.designs import Designed

    return Designed(breeder, space, settings.initial, workers=workers)


def _breeder_of(
    space: SearchSpace, settings: SearchSettings, clock: Callable[[], float] | None, **thrift: Any
) -> Breeder:
    kind = settings.kind
    if kind in PROPULATE_KINDS and not has_propulate():
        from hpo.config.settings import Kind

        others = ", ".join(f'"{one}"' for one in get_args(Kind) if one not in PROPULATE_KINDS)
        raise UsageError(
            f'[search] kind = "{kind}" needs propulate, which is not installed. Run {INSTALL_PROPULATE}, or choose a '
            f"kind that does without it: {others}"
        )
    if kind in ("default", "evolution", "surrogate"):
        return _typed(space, settings, clock, **thrift)
    if kind == "portfolio":
        return _portfolio(space, settings)
    if kind == "genetic":
        return GeneticBreeder(
            space,
            pool=settings.pool or 8,
            crossover=settings.crossover,
            mutation=settings.mutation,
            random_rate=settings.random,
        )
    if kind == "cmaes":
        return CmaesBreeder(space)
    if kind == "pso":
        return PsoBreeder(space)
    if kind == "nelder-mead":
        return NelderMeadBreeder(space)
    if kind == "random":
        return RandomBreeder(space)
    if kind == "grid":
        from hpo.search.kinds.designs import GridBreeder

        return GridBreeder(space, settings.grid_points)
    if kind in ("tpe", "gp", "optuna-cmaes"):
        from hpo.search.kinds.optuna_samplers import OptunaBreeder

        return OptunaBreeder(space, kind)
    if kind == "pbt":
        from hpo.search.kinds.pbt import PbtBreeder

        return PbtBreeder(space, pool=settings.pool, perturb=settings.perturb)
    from hpo.config.settings import Kind

    raise UsageError(f"[search] kind = {kind!r}: unknown; the kinds are {', '.join(get_args(Kind))}")


def _portfolio(space: SearchSpace, settings: SearchSettings) -> Breeder:
    """The surrogate and the typed evolution; CMA-ES where all are numbers that always exist and Propulate is installed;
    TPE where Optuna is."""
    from hpo.search.kinds.optuna_samplers import OptunaBreeder, missing
    from hpo.search.kinds.portfolio import PortfolioBreeder

    breeders: dict[str, Breeder] = {
        kind: _typed(space, settings.model_copy(update={"kind": kind}), None)
        for kind in ("surrogate", "evolution")
    }
    numbers = [one for one in space.parameters.values() if not isinstance(one, Categorical) and not one.when]
    if len(numbers) == len(space) > 1 and has_propulate():
        breeders["cmaes"] = CmaesBreeder(space)
    if not missing("tpe"):
        breeders["tpe"] = OptunaBreeder(space, "tpe")
    return PortfolioBreeder(breeders)


def _typed(
    space: SearchSpace, settings: SearchSettings, clock: Callable[[], float] | None, **thrift: Any
) -> Breeder:
    """Late, for its libraries: ``hpo.search.kinds.surrogate``. ``thrift``: what the default kind alone
    takes."""
    from hpo.search.kinds.surrogate import SurrogateBreeder, TimeBudgetedSurrogate

    own: dict[str, Any] = {
        "pool": settings.pool,
        "crossover": settings.crossover,
        "random_rate": settings.random,
    }
    if settings.kind == "surrogate":
        return SurrogateBreeder(space, **own)
    if settings.kind == "default" and clock is not None:
        return TimeBudgetedSurrogate(space, clock=clock, **thrift, **own)
    return EvolutionBreeder(space, **own)
