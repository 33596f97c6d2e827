"""Makes the breeder of a search kind."""

from __future__ import annotations

from importlib import import_module

from hpo.config.settings import SearchSettings
from hpo.search.protocols import Breeder, SearchContext
from hpo.space.space import SearchSpace

_NO_CAMPAIGN = SearchContext()


def make_breeder(
    space: SearchSpace, settings: SearchSettings, context: SearchContext = _NO_CAMPAIGN
) -> Breeder:
    """The breeder of ``settings.kind`` (see ``hpo.config.search_kinds``), with reevaluations and an initial design
    where the settings want them.

    Raises:
        UsageError: the space does not suit the kind, or a library that it needs is not installed.
    """
    module = import_module(f"hpo.search.kinds.{settings.traits.module}")
    breeder: Breeder = module.breeder(space, settings, context)
    if settings.reevaluate:
        from hpo.search.kinds.reevaluation import ReevaluatingBreeder

        breeder = ReevaluatingBreeder(space, breeder, settings.reevaluate)
    if settings.initial != "random":
        from hpo.search.kinds.initial_design import InitialDesign

        breeder = InitialDesign(breeder, space, settings.initial, workers=context.workers)
    return breeder
