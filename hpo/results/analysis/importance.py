"""How much each parameter matters over a campaign: the functional analysis of variance of a forest.

After Hutter, Hoos and Leyton-Brown 2014 (fANOVA, proceedings.mlr.press/v32/hutter14): a forest learns the result from
the configuration, and its variance over the whole space is shared out to the parameters. Here by Jansen's estimators
(1999, doi:10.1016/S0010-4655(98)00154-4) on pairs of uniform draws, which need no boxes of trees: so a parameter that
exists only sometimes matters only where it does. Constraints are not asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hpo.errors import CampaignError, UsageError
from hpo.space.description import described_space
from hpo.spelling import suggestion
from hpo.terminal import one_line, quoted
from hpo.text import excerpt

if TYPE_CHECKING:
    import pandas

    from hpo.individual import Individual
    from hpo.results.record import CampaignRecord
    from hpo.search.kinds.vectorised import VectorisedGenomes
    from hpo.space.space import SearchSpace

FEWEST = 20
"""Completed evaluations, and twice as many as there are parameters: fewer show nothing."""
MOST = 1000
"""The forests learn from at most this many evaluations, evenly spread over the campaign."""
_FORESTS = 8
_TREES = 16
_LEAST_LEAF = 2
_PAIRS = 512
_SHOWN = 8
_ROWS = 8192
"""Configurations to be judged, about; with many parameters there are fewer pairs."""


@dataclass(frozen=True)
class Share:
    """``total``: of the variance over the space, the part that would be gone if this parameter were fixed, interactions
    included (those count for each that takes part); ``alone``: the part without interactions; ``spread``: the standard
    deviation of ``total`` between forests."""

    total: float
    alone: float
    spread: float


@dataclass(frozen=True, kw_only=True)
class Importance:
    """Shares by parameter, the largest first. ``evaluations``: how many were learnt from, of all ``completed`` or
    known; ``explained``: the part of the variance of what a forest had not seen that it explains (out-of-bag R²), at
    most 1, and at most 0 where it explains nothing."""

    objective: str
    evaluations: int
    completed: int
    explained: float
    shares: dict[str, Share] = field(default_factory=dict)

    @property
    def explains(self) -> bool:
        """Whether a forest foretells unseen results better than their mean does; else its shares are of noise."""
        return self.explained > 0

    def nothing_explained(self) -> str:
        """Why the shares are not shown: a sentence without a capital letter, which follows a colon."""
        return (
            f"from {self.evaluations} evaluations a forest explains nothing of {one_line(self.objective)} "
            f"(out-of-bag R² {self.explained:.2f}), so its shares would be those of noise. More evaluations may help."
        )

    def dataframe(self) -> pandas.DataFrame:
        """A row a parameter: ``parameter``, ``total``, ``alone``, ``spread``."""
        import pandas

        rows = [(name, one.total, one.alone, one.spread) for name, one in self.shares.items()]
        return pandas.DataFrame(rows, columns=["parameter", "total", "alone", "spread"])

    def to_json(self) -> dict[str, object]:
        """The entry of ``hpo best --json``; no parameters where a forest explains nothing."""
        return {
            "evaluations": self.evaluations,
            "completed": self.completed,
            "explained": self.explained,
            "parameters": {
                name: {"total": one.total, "alone": one.alone, "spread": one.spread}
                for name, one in self.shares.items()
                if self.explains
            },
        }

    def __str__(self) -> str:
        if not self.explains:
            return f"importance for {one_line(self.objective)}: {self.nothing_explained()}"
        of = (
            f"{self.evaluations} of {self.completed}"
            if self.evaluations < self.completed
            else str(self.completed)
        )
        lines = [
            f"importance for {one_line(self.objective)}, from {of} evaluations; a forest explains "
            f"{self.explained:.0%}:"
        ]
        shown = {one_line(name): one for name, one in list(self.shares.items())[:_SHOWN]}
        width = max(map(len, shown))
        lines += [
            f"    {name:<{width}}  {one.total:.2f} ± {one.spread:.2f}  alone {one.alone:.2f}"
            for name, one in shown.items()
        ]
        if rest := list(self.shares.values())[_SHOWN:]:
            lines.append(f"    and {len(rest)} of at most {rest[0].total:.2f}")
        if self.explained < 0.2:
            lines.append("    It explains too little for these to mean much.")
        return "\n".join(lines)


def importance(record: CampaignRecord, objective: str | None = None) -> Importance:
    """Of each parameter for ``objective`` (default: the first). Results count by rank, so that scale and outliers do
    not matter; failed and pruned evaluations are left out; known points count. The same journals give the same shares.

    Raises:
        UsageError: there is no such objective.
        CampaignError: too few evaluations have completed, or all have the same result.
    """
    import numpy

    from hpo.results.analysis.pareto import with_losses
    from hpo.search.kinds.vectorised import VectorisedGenomes
    from hpo.search.models.observations import normal_scores

    names = list(record.objectives)
    objective = _objective(names, objective)
    space = described_space(record.identity.get("space"))
    known = with_losses(record)
    needed = max(FEWEST, 2 * len(space))
    if len(known) < needed:
        have = "1 evaluation has" if len(known) == 1 else f"{len(known)} evaluations have"
        raise CampaignError(
            f"importance of parameters: {have} completed, and at least {needed} are needed. Ask again when there are "
            "more."
        )
    chosen = [known[index * len(known) // min(MOST, len(known))] for index in range(min(MOST, len(known)))]
    losses = [losses[names.index(objective)] for losses, _ in chosen]
    if min(losses) == max(losses):
        raise CampaignError(
            "importance of parameters: all evaluations have the same result, so none matters."
        )
    sampler = VectorisedGenomes(space)
    genomes = _genomes(record, space, [one for _, one in chosen])
    rows = sampler.rows(numpy.array(genomes, dtype=float))
    rows, goals = rows.astype(numpy.float32), normal_scores(losses)
    generator = numpy.random.default_rng(0)
    pairs = max(32, min(_PAIRS, _ROWS // (len(space) + 2)))
    judged = sampler.rows(_mixed_pairs(sampler, len(space), pairs, generator)).astype(numpy.float32)
    totals, alone = numpy.zeros((_FORESTS, len(space))), numpy.zeros((_FORESTS, len(space)))
    foretold, votes = numpy.zeros(len(goals)), numpy.zeros(len(goals))
    for forest in range(_FORESTS):
        sample = generator.integers(len(goals), size=len(goals))
        unseen = numpy.setdiff1d(numpy.arange(len(goals)), sample)
        trees = _grown(rows[sample], goals[sample], forest)
        foretold[unseen] += _mean(trees, rows[unseen])
        votes[unseen] += 1
        one, other, *mixed = _mean(trees, judged).reshape(len(space) + 2, pairs)
        variance = numpy.concatenate([one, other]).var()
        if variance > 0:
            totals[forest] = [((one - changed) ** 2).mean() / (2 * variance) for changed in mixed]
            alone[forest] = [1 - ((other - changed) ** 2).mean() / (2 * variance) for changed in mixed]
    heard = votes > 0
    errors = (goals[heard] - foretold[heard] / votes[heard]) ** 2
    # What is alone is part of the total, and that of the whole; estimates need not know that.
    total, spread = numpy.minimum(totals.mean(axis=0), 1.0), totals.std(axis=0)
    alone = numpy.clip(alone.mean(axis=0), 0.0, total)
    shares = {
        name: Share(float(total[place]), float(alone[place]), float(spread[place]))
        for place, name in enumerate(space.names)
    }
    return Importance(
        objective=objective,
        evaluations=len(chosen),
        completed=len(known),
        explained=float(1 - errors.mean() / goals[heard].var()),
        shares=dict(sorted(shares.items(), key=lambda entry: -entry[1].total)),
    )


def _objective(names: list[str], chosen: str | None) -> str:
    """The chosen objective, None for the first; UsageError where there is no such."""
    if chosen is None:
        return names[0]
    if not isinstance(chosen, str) or chosen not in names:
        raise UsageError(f"{excerpt(chosen)} is no objective of this campaign. {suggestion(chosen, names)}")
    return chosen


def _genomes(
    record: CampaignRecord, space: SearchSpace, individuals: Sequence[Individual]
) -> list[tuple[float, ...]]:
    try:
        return [space.encode(space.validate(one.params)) for one in individuals]
    except UsageError as error:
        raise CampaignError(
            f"importance of parameters: the journal has a configuration that is none of campaign.json's space: {error} "
            f"`hpo check {quoted(record.directory)}` says what is whole."
        ) from None


def _mixed_pairs(sampler: VectorisedGenomes, parameters: int, pairs: int, generator: Any) -> Any:
    """Genomes for the estimate of Sobol indices: first and second of ``pairs`` random pairs, and for each parameter the
    first with that parameter of the second; one after the other."""
    import numpy

    first, second = sampler.drawn(pairs, generator), sampler.drawn(pairs, generator)
    drawn = [first, second]
    for place in range(parameters):
        mixed = first.copy()
        mixed[:, place] = second[:, place]
        drawn.append(mixed)
    return numpy.concatenate(drawn)


def _grown(rows: Any, goals: Any, seed: int) -> list[Any]:
    """Extremely randomised trees (Geurts et al. 2006), each on all ``rows``."""
    import numpy
    import sklearn
    from sklearn.tree import ExtraTreeRegressor

    state = numpy.random.RandomState(seed)
    # Checking a tree's parameters costs twice what growing it does.
    with sklearn.config_context(skip_parameter_validation=True):
        return [
            ExtraTreeRegressor(min_samples_leaf=_LEAST_LEAF, max_features=1.0, random_state=state)
            .fit(rows, goals, check_input=False)
            .tree_
            for _ in range(_TREES)
        ]


def _mean(trees: list[Any], rows: Any) -> Any:
    return sum(tree.predict(rows)[:, 0] for tree in trees) / len(trees)
