"""Rebuilds the search space that ``campaign.json`` describes."""

from __future__ import annotations

from collections.abc import Mapping

from hpo.errors import CampaignError, UsageError
from hpo.space.parameters import Categorical, Float, Int, Ordinal, Parameter
from hpo.space.space import SearchSpace


def described_space(description: object) -> SearchSpace:
    """Search space from its ``describe()``.

    Raises:
        CampaignError: ``description`` describes no search space.
    """
    kinds = {"float": Float, "int": Int, "categorical": Categorical, "ordinal": Ordinal}
    try:
        if not isinstance(description, Mapping):
            raise TypeError("no table of parameters")
        parameters: dict[str, Parameter] = {}
        for name, rule in description.items():
            when = {parent: tuple(allowed) for parent, allowed in (rule.get("when") or {}).items()} or None
            # Choices are positional; all other keys are the keywords of the parameter's class.
            own = {key: value for key, value in rule.items() if key not in ("type", "when", "choices")}
            parameters[name] = kinds[rule["type"]](*rule.get("choices", ()), **own, when=when)
        return SearchSpace(parameters)
    except (KeyError, TypeError, AttributeError, UsageError) as error:
        raise CampaignError(
            f"campaign.json describes no search space that this hpo knows ({error}). It is written once and never "
            "edited: restore it."
        ) from None
