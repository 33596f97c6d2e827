"""Optuna's samplers as breeders: each leader has a study in memory with the island's individuals.

Optuna is imported when the first individual is bred, because that takes half a second (with ``gp`` also torch, 200 MB
for each rank)."""

from __future__ import annotations

import importlib.util
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hpo.config.settings import SearchSettings
from hpo.errors import UsageError
from hpo.individual import COMPLETED, PRUNED, Scalar
from hpo.search.kinds.evolution import EvolutionBreeder
from hpo.search.models.pareto import best_first
from hpo.search.population import Member, Population, keep_latest, violation_factor
from hpo.search.protocols import Breeder, Genome, Offspring, SearchContext
from hpo.space.parameters import Categorical, Condition, Ordinal, Parameter
from hpo.space.ranges import Float, Int
from hpo.space.space import SearchSpace

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution

_MOST_TOLD = {"tpe": 400, "gp": 40, "optuna-cmaes": 400}
"""Most observations in a study, the best and the latest, by kind. The Gaussian process is fitted for each proposal,
which takes less than 200 ms with this number; with two objectives a proposal takes 0.5 s, with three 2 s."""
_LATEST = 0.5
"""Share of the latest among the observations of a study."""
_INITIAL = 10
"""Random individuals of the island before the sampler is used."""
_SLACK = 1.2
"""Ratio of the observations at which a study is reduced to its most observations."""
_WIDEST_INT = 100_000
"""Most values of a range for ``gp``, whose sampler lists them all."""
_FINEST = 1e-6
"""Least step, relative to the values: Optuna checks places to eight digits, where rounding counts."""
_MOST_PENDING = 64
_MOST_USED = 20_000
_TRIES = 3
"""Draws from the sampler, and then mutations, to find a configuration that was not used before."""
_LARGEST = 1e100
"""Largest loss in a study; samplers square losses."""
_GENERATION = "cma:generation"
"""Attribute of a trial in which CMA-ES keeps its generation."""


def missing(kind: str) -> list[str]:
    """Packages that ``kind`` needs and that are not installed."""
    needed = {"tpe": ("optuna",), "gp": ("optuna", "torch"), "optuna-cmaes": ("optuna", "cmaes")}[kind]
    return [name for name in needed if importlib.util.find_spec(name) is None]


def breeder(space: SearchSpace, settings: SearchSettings, context: SearchContext) -> Breeder:
    """Breeder of a kind of Optuna's; UsageError where Optuna is not installed, or the space does not suit."""
    return OptunaBreeder(space, settings.kind, reported=context.reported)


class OptunaBreeder(EvolutionBreeder):
    """Proposes individuals from a sampler of Optuna's: ``tpe`` (multivariate, Watanabe 2023, arXiv:2304.11127), ``gp``
    (Matérn 5/2, log expected improvement, of the hypervolume with several objectives) or ``optuna-cmaes`` (Hansen's
    CMA-ES for numbers without conditions, TPE for the other parameters; with several objectives, it proposes as
    ``EvolutionBreeder`` does).

    Every member of the population is an observation, wherever it was bred. Failed members count as the worst loss so
    far in each objective; pruned members as their last report in the objective number ``reported``, but no better than
    the median, and as the median in the others. Proposals of this leader without a result are pending trials of the
    study, which TPE and GP avoid. A new sampler is made from ``rng`` for each proposal, so that a proposal depends on
    the observations and the random numbers only. Configurations that were evaluated or proposed before are mutated.
    """

    def __init__(self, space: SearchSpace, kind: str, *, reported: int = 0) -> None:
        super().__init__(space)
        if lacking := missing(kind):
            raise UsageError(
                f'[search] kind = "{kind}" needs {" and ".join(lacking)}. Run bash jobs/setup.sh optuna, or choose '
                'another kind, such as "default".'
            )
        numbers = [p for p in space.parameters.values() if not isinstance(p, Categorical) and p.count != 1]
        if kind == "optuna-cmaes" and sum(not p.when for p in numbers) < 2:
            raise UsageError(
                '[search] kind = "optuna-cmaes" needs at least two Float or Int parameters that always exist. '
                "Choose another kind for this space."
            )
        for name, p in space.parameters.items():
            if kind == "gp" and isinstance(p, (Float, Int)) and (p.count or 0) > _WIDEST_INT:
                raise UsageError(
                    f'[search] kind = "gp": {name} has {p.count} values, all of which Optuna\'s GPSampler lists, and '
                    f"{_WIDEST_INT} are the limit. Make it a Float without a step, narrow it, or choose another kind."
                )
        self.operator = kind
        self._reported = reported
        self._most = _MOST_TOLD[kind]
        self._distributions: dict[str, Any] = {}
        self._study: Any = None
        self._told: dict[str, tuple[Any, tuple[float, ...]]] = {}
        """Trial and losses of each observation by id, in order of arrival."""
        self._seen: dict[str, None] = {}
        """Ids and statuses of observed members; the oldest are forgotten."""
        self._pending: dict[Genome, Any] = {}
        """Trials of proposals without a result."""
        self._used: dict[Genome, None] = {}
        """Genomes that were proposed or observed; the oldest are forgotten."""
        self._generation = 0

    def breed(self, population: Population, rng: random.Random) -> Offspring:
        best = population.best
        if self.operator == "optuna-cmaes" and len(best) > 0 and len(best[0].losses or ()) > 1:
            return super().breed(population, rng)
        if population.judged < _INITIAL or not best:
            return Offspring(self._space.sample(rng), operator="random")
        with quiet():
            self._observe(population)
            for _ in range(_TRIES):
                genome = self._asked(rng)
                if genome not in self._used:
                    break
        for _ in range(_TRIES):
            if genome not in self._used:
                break
            genome = self._child([Member("", genome, (0.0,), COMPLETED)], rng).genome
        self._use(genome)
        return Offspring(genome, operator=self.operator)

    def _observe(self, population: Population) -> None:
        # The status is included, as a pruned individual may have been resumed since it was observed.
        fresh = [one for one in population.everyone if f"{one.id} {one.status}" not in self._seen]
        fresh.sort(key=lambda one: one.age)
        if self._study is None:
            self._study = self._new_study(len(population.best[0].losses or ()))
        if self.operator == "optuna-cmaes" and not self._told:
            # CMA-ES makes its first generation from the first observations: these should be the best.
            fresh.sort(key=lambda one: one.rank)
        # Members with losses come first, because failed members count as the worst loss.
        for member in sorted(fresh, key=lambda one: one.losses is None):
            self._tell(member)
        if len(self._told) > _SLACK * self._most:
            self._begin_anew()

    def _tell(self, member: Member) -> None:
        from optuna.trial import TrialState, create_trial

        self._seen[f"{member.id} {member.status}"] = None
        keep_latest(self._seen, _MOST_USED)
        params = self._space.decode(member.genome)
        genome = self._space.encode(params)
        self._use(genome)
        values = {name: self._value(name, value) for name, value in params.items()}
        losses, excess = self._losses(member)
        attributes: dict[str, Any] = {}
        asked = self._pending.pop(genome, None)
        if asked is not None:
            # The result becomes a trial of its own, as for all members, with the state that CMA-ES keeps in the
            # attributes of the trial that it proposed.
            attributes = dict(self._study._storage.get_trial(asked._trial_id).system_attrs)
            self._study.tell(asked, state=TrialState.FAIL)
        if self.operator == "optuna-cmaes":
            attributes[_GENERATION] = self._generation
        trial = create_trial(
            params=values,
            distributions={name: self._distributions[name] for name in values},
            values=losses,
            system_attrs=attributes,
            constraints={str(place): one for place, one in enumerate(excess)},
        )
        self._told[member.id] = (trial, losses)
        self._study.add_trial(trial)

    def _losses(self, member: Member) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Finite losses of an observation, and excesses over limits. The first observations must have completed."""
        if member.status == COMPLETED and member.losses is not None:
            losses = tuple(min(_LARGEST, max(-_LARGEST, loss)) for loss in member.losses)
            if self.operator == "optuna-cmaes" and (violation := member.violation):
                losses = (_LARGEST * violation_factor(violation),)  # it knows no limits
            return losses, member.excess
        known = [sorted(losses) for losses in zip(*(losses for _, losses in self._told.values()))]
        limits = [sorted(own) for own in zip(*(one.constraints.values() for one, _ in self._told.values()))]
        if member.status != PRUNED or member.progress is None:
            return tuple(losses[-1] for losses in known), tuple(own[-1] for own in limits)
        middle = [losses[len(losses) // 2] for losses in known]
        index = self._reported
        middle[index] = min(known[index][-1], max(member.progress[1], middle[index]))
        return tuple(middle), tuple(own[len(own) // 2] for own in limits)

    def _begin_anew(self) -> None:
        """Replace the study by another with the best and the latest observations."""
        entries = list(self._told.items())
        latest = int(_LATEST * self._most)
        order = best_first([losses for _, (_, losses) in entries[:-latest]])
        order.sort(key=lambda place: max(entries[place][1][0].constraints.values(), default=0.0) > 0.0)
        kept = {entries[place][0] for place in order[: self._most - latest]}
        kept.update(identity for identity, _ in entries[-latest:])
        # CMA-ES continues from the state in the last trial that has it.
        carriers = [one for one, (trial, _) in entries if "cma:optimizer:0" in trial.system_attrs]
        kept.update(carriers[-1:])
        self._told = {identity: entry for identity, entry in entries if identity in kept}
        self._study = self._new_study(len(entries[0][1][1]))
        self._pending.clear()
        for trial, _ in self._told.values():
            self._study.add_trial(trial)

    def _new_study(self, objectives: int) -> optuna.Study:
        import optuna

        if not self._distributions:
            for name, parameter in self._space.parameters.items():
                self._distributions[name] = distribution(parameter)
        return optuna.create_study(directions=["minimize"] * objectives)

    def _asked(self, rng: random.Random) -> Genome:
        from optuna.trial import TrialState

        self._study.sampler = self._sampler(rng.getrandbits(30))
        trial = self._study.ask()
        params: dict[str, Scalar] = {}
        for name in self._space.order:
            if self._space.exists(name, params):
                params[name] = self._suggested(trial, name)
        proposed = self._space.encode(self._space.validate(params))
        if self.operator == "optuna-cmaes":
            attributes = self._study._storage.get_trial(trial._trial_id).system_attrs
            self._generation = int(attributes.get(_GENERATION, self._generation))
        genome = self._space.project_to_allowed(proposed)
        if genome != proposed or genome in self._used:
            self._study.tell(trial, state=TrialState.FAIL)
        else:
            self._pending[genome] = trial
            if len(self._pending) > _MOST_PENDING:
                self._study.tell(self._pending.pop(next(iter(self._pending))), state=TrialState.FAIL)
        return genome

    def _sampler(self, seed: int) -> Any:
        from optuna import samplers

        if self.operator == "tpe":
            return samplers.TPESampler(seed=seed, n_startup_trials=0, constant_liar=True)
        independent = samplers.TPESampler(seed=seed, n_startup_trials=0, multivariate=False)
        sampler = samplers.GPSampler if self.operator == "gp" else samplers.CmaEsSampler
        return sampler(
            seed=seed, n_startup_trials=0, independent_sampler=independent, warn_independent_sampling=False
        )

    def _suggested(self, trial: Any, name: str) -> Scalar:
        parameter, distribution = self._space.parameters[name], self._distributions[name]
        if isinstance(parameter, Ordinal):
            return parameter.choices[int(trial.suggest_int(name, 0, distribution.high))]
        if isinstance(parameter, Categorical):
            return parameter.choices[int(trial.suggest_categorical(name, distribution.choices))]
        suggest = trial.suggest_float if isinstance(parameter, Float) else trial.suggest_int
        value = suggest(
            name, distribution.low, distribution.high, step=distribution.step, log=distribution.log
        )
        value = min(distribution.high, max(distribution.low, value))
        return parameter.decoder()(parameter.encoder()(value))

    def _value(self, name: str, value: Scalar) -> Any:
        parameter = self._space.parameters[name]
        if isinstance(parameter, Categorical):
            return parameter.choices.index(value)
        return within(self._distributions[name], value)

    def _use(self, genome: Genome) -> None:
        self._used[genome] = None
        keep_latest(self._used, _MOST_USED)


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress Optuna's log lines and warnings about experimental and deprecated features."""
    import optuna

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        optuna.logging.set_verbosity(verbosity)


def distribution(parameter: Parameter) -> Any:
    """Optuna's distribution of a parameter; choices are given by their indices."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(parameter, Ordinal):
        return IntDistribution(0, parameter.count - 1)
    if isinstance(parameter, Categorical):
        # Indices of choices, because Optuna compares choices by other rules than this package.
        return CategoricalDistribution(tuple(range(parameter.count)))
    if isinstance(parameter, Float):
        step = parameter.step
        if step is not None and step < _FINEST * max(abs(parameter.low), abs(parameter.high)):
            step = None
        # Optuna counts steps in decimals, of which 1.0 has two of 1/3 and a rest: a little more holds the third.
        with quiet():
            high = parameter.high + (step or 0.0) / 4
            return FloatDistribution(parameter.low, high, log=parameter.log, step=step)
    assert isinstance(parameter, Int)
    return IntDistribution(parameter.low, parameter.high, log=parameter.log, step=parameter.step)


def parameter(distribution: BaseDistribution, when: Condition | None = None) -> Parameter | None:
    """Parameter of one of Optuna's distributions, with choices as their indices; None for ranges that are too wide or
    too narrow for a parameter. ``from_optuna`` and ``to_optuna`` convert its values."""
    d: Any = distribution
    try:
        if hasattr(d, "choices"):
            # Optuna takes equal choices, such as 1 and True, for the first of them.
            return Categorical(*sorted({int(d.to_internal_repr(one)) for one in d.choices}), when=when)
        kind = Float if isinstance(d.low, float) else Int
        return kind(d.low, d.high, log=d.log, step=d.step, when=when)
    except UsageError:
        return None


def from_optuna(distribution: BaseDistribution, value: Any) -> Scalar:
    """Value of ``parameter(distribution)`` for a value of Optuna's, which may be out of its range."""
    d: Any = distribution
    number = d.to_internal_repr(value)
    return int(number) if hasattr(d, "choices") or isinstance(d.low, int) else number


def to_optuna(distribution: BaseDistribution, value: Any) -> Any:
    """Optuna's value for a value of ``parameter(distribution)``."""
    return distribution.choices[value] if hasattr(distribution, "choices") else within(distribution, value)


def within(distribution: Any, value: Scalar) -> Scalar:
    """``value`` of a Float or Int as ``distribution`` has it, whose steps may lie beside by the last digits."""
    if not isinstance(value, float) or distribution.step is None:
        return value
    exact = distribution.low + round((value - distribution.low) / distribution.step) * distribution.step
    near = abs(value - exact) < 1e-9 * distribution.step
    return min(value if near else exact, float(distribution.high))
