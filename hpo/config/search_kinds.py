"""Kinds of search. To add a kind, write its module in ``hpo/search/kinds`` and its row here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class SearchKind:
    """Module and restrictions of one kind of search."""

    # A name, imported when the kind is used, because some modules need libraries that take long to import.
    module: str
    """Module in ``hpo.search.kinds`` whose function ``breeder`` makes the kind's breeder."""
    needs_propulate: bool = False
    """Whether the package propulate must be installed."""
    needs_checkpoints: bool = False
    """Whether individuals continue training from checkpoints of others.

    The fitness of such an individual depends on more than its parameters, and it can be a parent only as long as the
    task keeps its checkpoint."""
    one_objective: bool = False
    """Whether the kind handles a single objective only; with several, it proposes as ``evolution`` does."""
    no_reevaluation: str = ""
    """Reason, as a relative clause, why configurations cannot be evaluated again; empty where they can."""
    without_clock: str = ""
    """Kind used in its place where proposals must not depend on time; empty where they never do."""


_INHERITS = "whose individuals continue from checkpoints of others and so are never the same again"

KINDS: dict[str, SearchKind] = {
    "default": SearchKind(module="surrogate", without_clock="surrogate"),
    "surrogate": SearchKind(module="surrogate"),
    "evolution": SearchKind(module="evolution"),
    "portfolio": SearchKind(module="portfolio"),
    "tpe": SearchKind(module="optuna_samplers"),
    "gp": SearchKind(module="optuna_samplers"),
    "optuna-cmaes": SearchKind(module="optuna_samplers", one_objective=True),
    "genetic": SearchKind(module="propulate_kinds", needs_propulate=True),
    "cmaes": SearchKind(module="propulate_kinds", needs_propulate=True),
    "pso": SearchKind(module="propulate_kinds", needs_propulate=True),
    "nelder-mead": SearchKind(module="propulate_kinds", needs_propulate=True),
    "grid": SearchKind(module="grid", no_reevaluation="which evaluates each of its points once"),
    "random": SearchKind(module="evolution"),
    "pbt": SearchKind(module="pbt", needs_checkpoints=True, no_reevaluation=_INHERITS),
}
