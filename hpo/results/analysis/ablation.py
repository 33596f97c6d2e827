"""Gain of each change from one configuration to another: an ablation path.

From the first configuration, the change that promises most is made first, and so on to the last (Fawcett and Hoos 2016,
doi:10.1007/s10732-014-9275-9). What the configurations between promise is what forests predict that know all results
of the campaign (Biedenkapp et al. 2017, AAAI). Constraints are ignored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpo.results.analysis.ancestry import changes
from hpo.results.analysis.importance import MOST, genomes_of, grown, mean_of_trees
from hpo.results.analysis.pareto import with_losses
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
    import numpy

    from hpo.search.kinds.vectorised import VectorisedGenomes
    from hpo.search.models.observations import normal_scores

    space = described_space(record.identity.get("space"))
    place = list(record.objectives).index(objective)
    sign = 1.0 if record.objectives[objective] == "minimize" else -1.0
    known = with_losses(record)
    chosen = [known[index * len(known) // min(MOST, len(known))] for index in range(min(MOST, len(known)))]
    losses = [losses[place] for losses, _ in chosen]
    sampler = VectorisedGenomes(space)

    def rows(genomes: Any) -> Any:
        return sampler.rows(numpy.array(genomes, dtype=float)).astype(numpy.float32)

    first, last, *others = genomes_of(record, space, [start, end, *(one for _, one in chosen)])
    learnt, scores = rows(others), normal_scores(losses)
    trees = [tree for seed in range(_FORESTS) for tree in grown(learnt, scores, seed)]
    by_score = numpy.sort(scores), numpy.sort(losses)

    def predicted(genomes: Any) -> Any:
        """Losses whose normal scores the forests predict."""
        return numpy.interp(mean_of_trees(trees, rows(genomes)), *by_score)

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
        for parent in space.parameters[name].when:
            merged = {**groups.get(parent, {}), **merged}
        groups.update(dict.fromkeys(merged, merged))
    return list({id(one): one for one in groups.values()}.values())
