"""Asynchronous evolutionary search for hyperparameters and architectures of models that need many GPUs each.

Each public name is imported at its first use: ``import hpo`` in an evaluator process, or for ``hpo --help``, does not
load the modules that it does not need."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

_HOME = {
    "Float": "space.space",
    "Int": "space.space",
    "Categorical": "space.space",
    "Ordinal": "space.space",
    "SearchSpace": "space.space",
    "Task": "task.task",
    "Trial": "task.trial",
    "Campaign": "campaign.campaign",
    "Result": "results.result",
    "Search": "search.ask_tell",
    "known_points": "prior_results.points",
    "HpoError": "errors",
    "UsageError": "errors",
    "CampaignError": "errors",
    "JournalDamaged": "errors",
    "SpaceExhausted": "errors",
    "Pruned": "errors",
    "Interrupted": "errors",
}

__all__ = [
    "Campaign",
    "CampaignError",
    "Categorical",
    "Float",
    "HpoError",
    "Int",
    "Interrupted",
    "JournalDamaged",
    "Ordinal",
    "Pruned",
    "Result",
    "Search",
    "SearchSpace",
    "SpaceExhausted",
    "Task",
    "Trial",
    "UsageError",
    "known_points",
]
__version__ = "0.1.0"

if TYPE_CHECKING:
    from hpo.campaign.campaign import Campaign
    from hpo.errors import (
        CampaignError,
        HpoError,
        Interrupted,
        JournalDamaged,
        Pruned,
        SpaceExhausted,
        UsageError,
    )
    from hpo.prior_results.points import known_points
    from hpo.results.result import Result
    from hpo.search.ask_tell import Search
    from hpo.space.space import Categorical, Float, Int, Ordinal, SearchSpace
    from hpo.task.task import Task
    from hpo.task.trial import Trial


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'hpo' has no attribute {name!r}")
    value = getattr(import_module(f"hpo.{_HOME[name]}"), name)
    globals()[name] = value  # the next use finds the name without a call of this function
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
