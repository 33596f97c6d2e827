"""Gain of each change from one configuration to another: an ablation path.

From the first configuration, the change that promises most is made first, and so on to the last (Fawcett and Hoos 2016,
doi:10.1007/s10732-014-9275-9). What the configurations between promise is what forests predict that know all results
of the campaign (Biedenkapp et al. 2017, AAAI). Constraints are ignored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpo.results.analysis.ancestry import changes
from hpo.results.analysis.importance import (
    genomes_of,
    grown,
    judged_results,
    losses_at,
    mean_of_trees,
    rows_of,
)
from hpo.space.space import described_space

if TYPE_CHECKING:
    from hpo.individual import Individual, Scalar
    from hpo.results.record import CampaignRecord
    from hpo.space.space import SearchSpace

_FORESTS = 8


@dataclass(frozen=True, kw_only=True)
class AblationStep:
    """One change on the path."""

    values: Mapping[str, tuple[Scalar | None, Scalar | None]]
    """Values before and after by parameter, None where it does not exist: a parameter, and those that exist by its
    value."""
    before: float
    """Predicted value of the objective."""
    after: float


def ablation_path(
    record: CampaignRecord, start: Individual, end: Individual, objective: str
) -> list[AblationStep]:
    """Changes from ``start`` to ``end`` in the order of the path; empty for the same configuration.

    Raises:
        CampaignError: a configuration on record is none of the space.
    """
    from hpo.search.kinds.vectorised import VectorisedGenomes
    from hpo.search.models.observations import normal_scores

    space = described_space(record.identity.get("space"))
    sampler = VectorisedGenomes(space)
    chosen, losses = judged_results(record, objective)
    first, last, *others = genomes_of(record, space, [start, end, *chosen])
    rows, scores = rows_of(sampler, others), normal_scores(losses)
    trees = [tree for seed in range(_FORESTS) for tree in grown(rows, scores, seed)]
    sign = 1.0 if record.objectives[objective] == "minimize" else -1.0

    def predicted(genomes: Sequence[Sequence[float]]) -> Any:
        """Losses that the forests predict."""
        return losses_at(mean_of_trees(trees, rows_of(sampler, genomes)), losses)

    groups = _groups(space, changes(start.params, end.params))
    columns = {name: column for column, name in enumerate(space.names)}
    path, genome, before = [], [*first], float(predicted([first])[0])
    while groups:
        tried = []
        for group in groups:
            changed = [*genome]
            for name in group:
                changed[columns[name]] = last[columns[name]]
            tried.append(changed)
        found = predicted(tried)
        best = int(found.argmin())
        genome, after = tried[best], float(found[best])
        path.append(AblationStep(values=groups.pop(best), before=sign * before, after=sign * after))
        before = after
    return path


def _groups(
    space: SearchSpace, found: Mapping[str, tuple[Scalar | None, Scalar | None]]
) -> list[dict[str, tuple[Scalar | None, Scalar | None]]]:
    """Changes to be made together: those of a parameter, and of parameters that exist by its value."""
    groups: dict[str, dict[str, tuple[Scalar | None, Scalar | None]]] = {}
    for name in (one for one in space.order if one in found):
        merged = {name: found[name]}
        for parent in space.conditions[name]:
            merged = {**groups.get(parent, {}), **merged}
        groups.update(dict.fromkeys(merged, merged))
    return list({id(one): one for one in groups.values()}.values())
