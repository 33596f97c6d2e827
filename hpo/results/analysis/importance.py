"""Importance of parameters over a campaign: the functional analysis of variance of a forest.

As in fANOVA (Hutter, Hoos and Leyton-Brown 2014, proceedings.mlr.press/v32/hutter14), a forest predicts the result of a
configuration, and its variance over the whole space is divided among the parameters. The shares are computed by
Jansen's estimators (1999, doi:10.1016/S0010-4655(98)00154-4) on pairs of uniform draws, so that a conditional parameter
counts only where it is active. Constraints are ignored. Among the best, all worse results count as the threshold does,
which caps the response as there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hpo.errors import CampaignError, UsageError
from hpo.space.space import described_space
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
"""Fewest completed evaluations; there must also be at least twice as many as parameters."""
MOST = 1000
"""Most evaluations that forests are fitted on, evenly spread over the campaign."""
_FORESTS = 8
_TREES = 16
_LEAST_LEAF = 2
_PAIRS = 512
"""Most pairs of draws."""
_SHOWN = 8
"""Most parameters in the text."""
_ROWS = 8192
"""Approximate number of predictions of a forest, which limits the pairs with many parameters."""


@dataclass(frozen=True)
class VarianceShare:
    """Share of a parameter in the variance over the space."""

    total: float
    """Part that would vanish with the parameter fixed; interactions count for each of their parameters."""
    alone: float
    """Part without interactions."""
    spread: float
    """Standard deviation of ``total`` between forests."""


@dataclass(frozen=True, kw_only=True)
class Importance:
    """Importance of all parameters for an objective."""

    objective: str
    best: float
    """Share of the best results among which differences count."""
    evaluations: int
    """Number of evaluations that forests were fitted on."""
    completed: int
    """Number of completed evaluations and known points."""
    explained: float
    """Out-of-bag R²: part of the variance of unseen results that forests explain, at most 1; 0 or less: none."""
    shares: dict[str, VarianceShare] = field(default_factory=dict)
    """Shares by parameter, largest first."""
    foretold: dict[str, float] = field(default_factory=dict)
    """Value by id that trees predict which have not seen this evaluation: a result far better may be luck."""

    @property
    def explains(self) -> bool:
        """Whether forests predict unseen results better than the mean does; otherwise the shares are noise."""
        return self.explained > 0

    def nothing_explained(self) -> str:
        """Reason why shares are not shown: a sentence to follow a colon."""
        return (
            f"from {self.evaluations} evaluations a forest explains nothing of {one_line(self.objective)} "
            f"(out-of-bag R² {self.explained:.2f}), so its shares would be those of noise. More evaluations may help."
        )

    def dataframe(self) -> pandas.DataFrame:
        """Table with a row for each parameter: ``parameter``, ``total``, ``alone``, ``spread``."""
        import pandas

        rows = [(name, one.total, one.alone, one.spread) for name, one in self.shares.items()]
        return pandas.DataFrame(rows, columns=["parameter", "total", "alone", "spread"])

    def to_json(self) -> dict[str, object]:
        """Entry of ``hpo best --json``, without parameters if forests explain nothing."""
        return {
            "evaluations": self.evaluations,
            "completed": self.completed,
            "explained": self.explained,
            "parameters": {name: vars(one) for name, one in self.shares.items() if self.explains},
        }

    def __str__(self) -> str:
        if not self.explains:
            return f"importance for {one_line(self.objective)}: {self.nothing_explained()}"
        among = "" if self.best == 1 else f" among the best {self.best:.0%}"
        of = (
            f"{self.evaluations} of {self.completed}"
            if self.evaluations < self.completed
            else str(self.completed)
        )
        lines = [
            f"importance for {one_line(self.objective)}{among}, from {of} evaluations; a forest explains "
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


def importance(record: CampaignRecord, objective: str | None = None, best: float = 1.0) -> Importance:
    """Importance of each parameter for an objective.

    Results count by rank, so that their scale and outliers have no influence. Failed and pruned evaluations are left
    out; known points count. The same journals give the same shares. ``objective`` None: the first. ``best``: share of
    the best results, all worse results counting as equally bad.

    Raises:
        UsageError: there is no such objective, or ``best`` is no share.
        CampaignError: too few evaluations have completed, or all have the same result.
    """
    import numpy

    from hpo.results.analysis.pareto import with_losses
    from hpo.search.models.observations import normal_scores

    names = list(record.objectives)
    if objective is None:
        objective = names[0]
    if not isinstance(objective, str) or objective not in names:
        raise UsageError(
            f"{excerpt(objective)} is no objective of this campaign. {suggestion(objective, names)}"
        )
    if isinstance(best, bool) or not isinstance(best, (int, float)) or not 0 < best <= 1:
        raise UsageError(
            f"importance(best={excerpt(best)}): must be a share, above 0 and at most 1, such as 0.25."
        )
    space = described_space(record.identity.get("space"))
    known = with_losses(record, broken=True)
    needed = max(FEWEST, 2 * len(space))
    if len(known) < needed:
        have = "1 evaluation has" if len(known) == 1 else f"{len(known)} evaluations have"
        raise CampaignError(
            f"importance of parameters: {have} completed, and at least {needed} are needed. Ask again when there are "
            "more."
        )
    chosen, losses = judged_results(record, objective)
    if min(losses) == max(losses):
        raise CampaignError(
            "importance of parameters: all evaluations have the same result, so none matters."
        )
    scores = normal_scores(losses)
    goals = numpy.minimum(scores, numpy.sort(scores)[max(1, round(best * len(scores))) - 1])
    if goals.min() == goals.max():
        raise CampaignError(
            f"importance of parameters: the best {best:.0%} of the evaluations have the same result, so none matters."
        )
    explained, shares, foretold = variance_shares(record, chosen, goals)
    sign = -1.0 if record.objectives[objective] == "maximize" else 1.0
    values = sign * losses_at(foretold, losses)
    return Importance(
        objective=objective,
        best=float(best),
        evaluations=len(chosen),
        completed=len(known),
        explained=explained,
        shares=shares,
        foretold={one.id: float(value) for one, value in zip(chosen, values) if value == value},
    )


def judged_results(record: CampaignRecord, objective: str) -> tuple[list[Individual], list[float]]:
    """At most ``MOST`` completed individuals and known points, evenly spread over the campaign, and their losses in the
    objective."""
    from hpo.results.analysis.pareto import with_losses

    known, place = with_losses(record, broken=True), list(record.objectives).index(objective)
    count = min(MOST, len(known))
    chosen = [known[index * len(known) // count] for index in range(count)]
    return [one for _, one in chosen], [losses[place] for losses, _ in chosen]


def losses_at(scores: Any, losses: Sequence[float]) -> Any:
    """Losses at predicted ``scores``, of which ``normal_scores`` gives those of the known ``losses``."""
    import numpy

    from hpo.search.models.observations import normal_scores

    return numpy.interp(scores, numpy.sort(normal_scores(losses)), numpy.sort(losses))


def rows_of(sampler: VectorisedGenomes, genomes: Sequence[Sequence[float]]) -> Any:
    """Rows of numbers for trees."""
    import numpy

    return sampler.rows(numpy.array(genomes, dtype=float)).astype(numpy.float32)


def variance_shares(
    record: CampaignRecord, individuals: Sequence[Individual], goals: Any
) -> tuple[float, dict[str, VarianceShare], Any]:
    """Out-of-bag R² of forests that predict ``goals`` (n) from the configurations of ``individuals``; the share of each
    parameter in the variance of what they predict, largest first; and what trees that have not seen it predict for each
    individual (n), NaN where all have. CampaignError for a configuration outside the space."""
    import numpy

    from hpo.search.kinds.vectorised import VectorisedGenomes

    space = described_space(record.identity.get("space"))
    sampler = VectorisedGenomes(space)
    rows = rows_of(sampler, genomes_of(record, space, individuals))
    totals, alone, foretold, votes = _judged_by_forests(sampler, len(space), rows, goals)
    heard = votes > 0
    unseen = numpy.where(heard, foretold / numpy.maximum(votes, 1), numpy.nan)
    errors = (goals[heard] - unseen[heard]) ** 2
    # The part alone is at most the total, and that at most 1, but estimates may be larger.
    total, spread = numpy.minimum(totals.mean(axis=0), 1.0), totals.std(axis=0)
    alone = numpy.clip(alone.mean(axis=0), 0.0, total)
    shares = {
        name: VarianceShare(float(total[place]), float(alone[place]), float(spread[place]))
        for place, name in enumerate(space.names)
    }
    shares = dict(sorted(shares.items(), key=lambda entry: -entry[1].total))
    return float(1 - errors.mean() / goals[heard].var()), shares, unseen


def _judged_by_forests(
    sampler: VectorisedGenomes, parameters: int, rows: Any, goals: Any
) -> tuple[Any, Any, Any, Any]:
    """Shares of the variance by forest and parameter, in all and alone; for each evaluation the sum of what trees that
    have not seen it foretell, and their number."""
    import numpy

    # A constant seed, so that the same journals always give the same shares.
    generator = numpy.random.default_rng(0)
    pairs = max(32, min(_PAIRS, _ROWS // (parameters + 2)))
    judged = sampler.rows(_mixed_pairs(sampler, parameters, pairs, generator)).astype(numpy.float32)
    totals, alone = numpy.zeros((_FORESTS, parameters)), numpy.zeros((_FORESTS, parameters))
    foretold, votes = numpy.zeros(len(goals)), numpy.zeros(len(goals))
    for forest in range(_FORESTS):
        # A bootstrap sample; evaluations outside of it measure how much the forest explains.
        sample = generator.integers(len(goals), size=len(goals))
        unseen = numpy.setdiff1d(numpy.arange(len(goals)), sample)
        trees = grown(rows[sample], goals[sample], forest)
        foretold[unseen] += mean_of_trees(trees, rows[unseen])
        votes[unseen] += 1
        one, other, *mixed = mean_of_trees(trees, judged).reshape(parameters + 2, pairs)
        variance = numpy.concatenate([one, other]).var()
        if variance > 0:
            totals[forest] = [((one - changed) ** 2).mean() / (2 * variance) for changed in mixed]
            alone[forest] = [1 - ((other - changed) ** 2).mean() / (2 * variance) for changed in mixed]
    return totals, alone, foretold, votes


def genomes_of(
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


def grown(rows: Any, goals: Any, seed: int) -> list[Any]:
    """Extremely randomised trees (Geurts et al. 2006), each on all ``rows``."""
    import numpy
    import sklearn
    from sklearn.tree import ExtraTreeRegressor

    state = numpy.random.RandomState(seed)
    # scikit-learn's check of a tree's parameters takes twice as long as growing the tree.
    with sklearn.config_context(skip_parameter_validation=True):
        return [
            ExtraTreeRegressor(min_samples_leaf=_LEAST_LEAF, max_features=1.0, random_state=state)
            .fit(rows, goals, check_input=False)
            .tree_
            for _ in range(_TREES)
        ]


def mean_of_trees(trees: list[Any], rows: Any) -> Any:
    return sum(tree.predict(rows)[:, 0] for tree in trees) / len(trees)
