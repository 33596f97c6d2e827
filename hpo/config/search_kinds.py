"""The kinds of search: where the code of each is, and what each cannot be combined with.

To add a kind, write its module in ``hpo/search/kinds`` and its row here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class SearchKind:
    """``module``: of ``hpo.search.kinds``; its function ``breeder`` makes the kind's breeder. It is imported when the
    kind is used, because some modules need libraries that take long to import."""

    module: str
    needs_propulate: bool = False
    needs_checkpoints: bool = False
    """Its individuals go on training from checkpoints of others: their fitness says nothing about their parameters
    alone, and they live as long as the task's checkpoints."""
    one_objective: bool = False
    """Whether the kind proposes as ``evolution`` does where there are several objectives."""
    no_reevaluation: str = ""
    """Why known configurations cannot be evaluated again, as a relative clause; empty where they can."""
    without_clock: str = ""
    """The kind that proposes in its place where proposals must not depend on a clock; empty where its own do not."""


_INHERITS = "whose individuals go on from checkpoints of others and so are never the same again"

KINDS: dict[str, SearchKind] = {
    "default": SearchKind(module="surrogate", without_clock="surrogate"),
    "surrogate": SearchKind(module="surrogate", one_objective=True),
    "evolution": SearchKind(module="evolution"),
    "portfolio": SearchKind(module="portfolio"),
    "tpe": SearchKind(module="optuna_samplers", one_objective=True),
    "gp": SearchKind(module="optuna_samplers", one_objective=True),
    "optuna-cmaes": SearchKind(module="optuna_samplers", one_objective=True),
    "genetic": SearchKind(module="propulate_kinds", needs_propulate=True),
    "cmaes": SearchKind(module="propulate_kinds", needs_propulate=True),
    "pso": SearchKind(module="propulate_kinds", needs_propulate=True),
    "nelder-mead": SearchKind(module="propulate_kinds", needs_propulate=True),
    "grid": SearchKind(module="grid", no_reevaluation="which evaluates each of its points once"),
    "random": SearchKind(module="evolution"),
    "pbt": SearchKind(module="pbt", needs_checkpoints=True, no_reevaluation=_INHERITS),
}
