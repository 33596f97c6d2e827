"""Asynchronous evolutionary search for hyperparameters and architectures of models that need many GPUs each.

Each public name is imported at its first use: ``import hpo`` in an evaluator process, or for ``hpo --help``, does not
load the modules that it does not need."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
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
    "OptunaSampler": "search.optuna_sampler",
    "known_points": "prior_results.points",
    "HpoError": "errors",
    "UsageError": "errors",
    "CampaignError": "errors",
    "JournalDamaged": "errors",
    "SpaceExhausted": "errors",
    "Pruned": "errors",
    "Interrupted": "errors",
}

# A star import must not need Optuna.
__all__ = [name for name in _HOME if name != "OptunaSampler" or find_spec("optuna")]
__version__ = "0.1.0"

if TYPE_CHECKING:
    from hpo.campaign.campaign import Campaign as Campaign
    from hpo.errors import CampaignError as CampaignError
    from hpo.errors import HpoError as HpoError
    from hpo.errors import Interrupted as Interrupted
    from hpo.errors import JournalDamaged as JournalDamaged
    from hpo.errors import Pruned as Pruned
    from hpo.errors import SpaceExhausted as SpaceExhausted
    from hpo.errors import UsageError as UsageError
    from hpo.prior_results.points import known_points as known_points
    from hpo.results.result import Result as Result
    from hpo.search.ask_tell import Search as Search
    from hpo.search.optuna_sampler import OptunaSampler as OptunaSampler
    from hpo.space.space import Categorical as Categorical
    from hpo.space.space import Float as Float
    from hpo.space.space import Int as Int
    from hpo.space.space import Ordinal as Ordinal
    from hpo.space.space import SearchSpace as SearchSpace
    from hpo.task.task import Task as Task
    from hpo.task.trial import Trial as Trial


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'hpo' has no attribute {name!r}")
    value = getattr(import_module(f"hpo.{_HOME[name]}"), name)
    globals()[name] = value  # the next use finds the name without a call of this function
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
