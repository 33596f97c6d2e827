"""The search of models as a sampler of Optuna's, for studies of one's own."""

from __future__ import annotations

import math
import pickle
import random
import secrets
import statistics
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from operator import attrgetter
from typing import Any, cast

from hpo.arguments import checked_arguments
from hpo.config.settings import SearchSettings
from hpo.errors import UsageError
from hpo.individual import COMPLETED, FAILED, PRUNED, Params, Scalar
from hpo.search.kinds.optuna_samplers import from_optuna, parameter, to_optuna
from hpo.search.phases import make_breeder
from hpo.search.population import Member, Population
from hpo.search.protocols import Genome, SearchContext
from hpo.space.parameters import Categorical
from hpo.space.ranges import Int
from hpo.space.space import SearchSpace
from hpo.task.limits import MOST_EXCESS
from hpo.text import excerpt

try:
    from optuna.distributions import (
        BaseDistribution,
        FloatDistribution,
        IntDistribution,
        check_distribution_compatibility,
    )
    from optuna.samplers import BaseSampler, RandomSampler
    from optuna.study import Study, StudyDirection
    from optuna.trial import FrozenTrial, TrialState

    if not hasattr(FrozenTrial, "constraints"):  # Optuna 4
        raise ImportError
except ImportError:
    raise UsageError(
        "hpo.OptunaSampler needs Optuna 5. Install the extra `optuna`: bash jobs/setup.sh optuna"
    ) from None

_LAG = 32
"""Reciprocal of the largest share of finished trials, the latest, that models have not seen yet."""
_LATEST = 200
"""Most trials that a parameter drawn alone is bred from."""
_DRAWS = 100
"""Random configurations that are tried in place of a known configuration."""
_REMEMBERED = 8
"""States of studies that are kept, as a Hyperband pruner shows the sampler several."""
_RANGES = 20
"""Latest trials whose ranges of a parameter count, as a range may be edited, or depend on other values."""
_MOST_VALUES = 100
"""Most values of a parameter that others may depend on."""
_MOST_SWITCHES = 2
"""Most places in the order of a whole number's values at which another parameter begins or ceases to exist."""
_LARGEST = 1e300
_STRANGE = (ValueError, OverflowError)
"""Errors for values that a distribution does not have, of trials from other studies."""

_FINISHED = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)

Distributions = dict[str, BaseDistribution]
Conditions = dict[str, tuple[str, tuple[Scalar, ...]]]
"""Another parameter, and the values of it with which a parameter exists, by name of the latter."""


class OptunaSampler(BaseSampler):
    """Search of ``hpo.Search``, kind "surrogate", as the sampler of an Optuna study.

        study = optuna.create_study(sampler=hpo.OptunaSampler(seed=0))

    It proposes from the study's trials alone, whoever ran, enqueued or loaded them: any number of threads and processes
    may share a storage. A proposal depends on the seed, the trial's number and the trials, not on earlier calls.
    Running trials are not proposed again; failed trials show regions to avoid. Where constraints hold is learnt from
    their values; trials that break one come after all others.
    Parameters that exist only with some value of another, as seen in the trials, are conditional; those not seen yet
    are drawn alone.

    Args:
        seed (int, from 0; default None): of all random numbers; None: a random seed.

    Raises:
        UsageError: Optuna is not installed, or ``seed`` is not allowed.
    """

    @checked_arguments(
        constraints_func='Call trial.set_constraint("name", value) in the objective; above 0 it is broken.'
    )
    def __init__(self, seed: int | None = None) -> None:
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or seed < 0):
            raise UsageError(f"OptunaSampler: seed = {excerpt(seed)}: must be a whole number from 0, or None")
        self._seed = seed
        self._stream = secrets.token_hex(8) if seed is None else str(seed)
        # The cache spares time only: a state is found by the trials that it was made from.
        self._states: list[_State] = []
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type, tuple[int | None]]:
        return type(self), (self._seed,)

    def reseed_rng(self) -> None:
        self._seed, self._stream = None, secrets.token_hex(8)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> Distributions:
        fixed = trial.system_attrs.get("fixed_params", {})
        found = self._state(study)[0].distributions
        return {name: one for name, one in found.items() if name not in fixed}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: Distributions
    ) -> dict[str, Any]:
        if not search_space:
            return {}
        state, others = self._state(study)
        with self._lock:
            search = state.search(search_space)
        rng = random.Random(f"{self._stream}/{trial.number}")
        return search.propose(rng, [one for one in others if one.number != trial.number])

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        rng = random.Random(f"{self._stream}/{trial.number}/{param_name}")
        if parameter(param_distribution) is None:
            chance = RandomSampler(rng.getrandbits(32))
            return chance.sample_independent(study, trial, param_name, param_distribution)
        trials = [one for one in study.get_trials(deepcopy=False) if one.state in _FINISHED]
        here = {param_name: param_distribution}
        search = _Search(trials[-_LATEST:], study.directions, here, {}, "evolution")
        return search.propose(rng)[param_name]

    def _state(self, study: Study) -> tuple[_State, list[FrozenTrial]]:
        """State of the search after most finished trials, and all other trials."""
        trials = study.get_trials(deepcopy=False)
        finished = [one for one in trials if one.state in _FINISHED]
        finished.sort(key=attrgetter("datetime_complete"))
        count = len(finished)
        count -= count % max(1, count // _LAG)
        others = finished[count:] + [one for one in trials if one.state not in _FINISHED]
        del finished[count:]
        with self._lock:
            for state in reversed(self._states):
                if state.trials == finished and state.directions == study.directions:
                    return state, others
            state = _State(finished, study.directions)
            self._states = [*self._states[1 - _REMEMBERED :], state]
        return state, others


class _State:
    """Search space that finished ``trials`` share, and the search in it."""

    def __init__(self, trials: list[FrozenTrial], directions: list[StudyDirection]) -> None:
        self.trials, self.directions = trials, directions
        # A trial may be pruned before it has asked for all its parameters.
        whole = [one for one in trials if one.state == TrialState.COMPLETE]
        whole = whole or [one for one in trials if one.state == TrialState.PRUNED]
        self.distributions = _shared(whole)
        self._conditions = _conditions(whole, self.distributions)
        self._search: _Search | None = None

    def search(self, distributions: Distributions) -> _Search:
        if self._search is None or self._search.distributions != distributions:
            self._search = _Search(self.trials, self.directions, distributions, self._conditions)
        return self._search


def _shared(trials: Iterable[FrozenTrial]) -> Distributions:
    """Distribution of each parameter that can be searched, by name: of different ranges that cover the latest."""
    seen: dict[str, list[BaseDistribution]] = {}
    for trial in trials:
        for name, one in trial.distributions.items():
            seen.setdefault(name, []).append(one)
    found = {name: _covering(seen[name][-_RANGES:]) for name in sorted(seen)}
    return {name: one for name, one in found.items() if one and not one.single() and parameter(one)}


def _covering(ranges: Sequence[Any]) -> BaseDistribution | None:
    """Smallest distribution that covers ``ranges``; None for ranges of different kinds."""
    latest = ranges[-1]
    try:
        for one in ranges:
            check_distribution_compatibility(latest, one)
    except ValueError:
        return None
    if all(one == latest for one in ranges):
        return cast("BaseDistribution", latest)
    low, high = min(one.low for one in ranges), max(one.high for one in ranges)
    if latest.log or isinstance(latest, FloatDistribution):
        return cast("BaseDistribution", type(latest)(low, high, latest.log))
    steps = [number for one in ranges for number in (one.step, one.low - low)]
    return IntDistribution(low, high, step=math.gcd(*steps))


def _conditions(trials: Iterable[FrozenTrial], distributions: Distributions) -> Conditions:
    """Conditions of parameters that some trials lack, where another parameter distinguishes these from the rest."""
    made = {name: parameter(one) for name, one in distributions.items()}
    deciding = {
        name: one
        for name, one in made.items()
        if isinstance(one, (Categorical, Int)) and one.count <= _MOST_VALUES
    }
    shapes: dict[frozenset[str], dict[str, set[Scalar]]] = {}
    trials_with: Counter[str] = Counter()
    for trial in trials:
        trials_with.update(trial.params.keys())
        values = shapes.setdefault(frozenset(trial.params), {})
        for parent in deciding.keys() & trial.params.keys():
            with suppress(*_STRANGE):
                value = from_optuna(distributions[parent], trial.params[parent])
                values.setdefault(parent, set()).add(value)
    found: Conditions = {}
    for name in distributions:
        most = 0.0
        for parent, one in deciding.items():
            there: set[Any] = set()
            absent: set[Any] = set()
            for shape, values in shapes.items():
                (there if name in shape else absent).update(values.get(parent, ()))
            alone = any(name in shape and parent not in shape for shape in shapes)
            # The more trials have each value, the less likely is it that values tell the trials apart by chance.
            evidence = trials_with[parent] / max(1, len(there | absent))
            if alone or not absent or there & absent or evidence <= most:
                continue
            if allowed := _allowed(one, there, absent):
                most, found[name] = evidence, (parent, allowed)
    return found


def _allowed(parent: Categorical | Int, there: set[Any], absent: set[Any]) -> tuple[Scalar, ...]:
    """Values of ``parent`` with which a parameter exists that trials with the values ``there`` have, and others lack; a
    whole number that no trial has is as its nearest. Empty where whole numbers are mixed."""
    values: list[Any] = list(parent.values())
    if isinstance(parent, Int):
        seen = sorted(there | absent)
        if sum((one in there) != (other in there) for one, other in pairwise(seen)) > _MOST_SWITCHES:
            return ()
        nearest = {one: min((abs(other - one), other in absent) for other in seen) for one in values}
        return tuple(one for one, (_, lacks) in nearest.items() if not lacks)
    return tuple(one for one in values if one in there)


class _Untaken:
    """Constraint that allows configurations that no trial has."""

    def __init__(self) -> None:
        self.known: set[object] = set()
        self.pending: set[object] = set()

    def __call__(self, params: Mapping[str, Scalar]) -> bool:
        key = tuple(params.items())
        return key not in self.known and key not in self.pending


class _Search:
    """Breeder that has learned from finished ``trials``."""

    def __init__(
        self,
        trials: Sequence[FrozenTrial],
        directions: Sequence[StudyDirection],
        distributions: Distributions,
        conditions: Conditions,
        kind: str = "surrogate",
    ) -> None:
        self.distributions = distributions
        # Names of Optuna's parameters may be any texts.
        self._names = {name: f"p{place}" for place, name in enumerate(distributions)}
        parameters = {}
        for name, one in distributions.items():
            parent, values = conditions.get(name, (None, ()))
            when = {self._names[parent]: values} if parent in distributions else None
            if (made := parameter(one, when)) is not None:
                parameters[self._names[name]] = made
        self._space = SearchSpace(parameters)
        self._known: set[object] = set()
        self._population = Population()
        for member in self._members(trials, directions):
            self._population.enter(member)
        settings = SearchSettings.model_validate({"kind": kind})
        untaken = _Untaken()
        context = SearchContext(allows=untaken)
        breeder = make_breeder(self._space, settings, context)
        # Fits the models, with random numbers that do not depend on who asks.
        breeder.breed(self._population, random.Random(len(trials)))
        # A breeder remembers its proposals, so that each is made by a copy. Pickle copies twice as fast as deepcopy.
        self._breeder = pickle.dumps((breeder, untaken))

    def propose(self, rng: random.Random, others: Iterable[FrozenTrial] = ()) -> dict[str, Any]:
        """Optuna's values of a configuration that no trial has, ``others`` included, if there is any left."""
        breeder, untaken = pickle.loads(self._breeder)
        untaken.known = self._known
        for trial in others:
            if (genome := self._genome(trial)) is not None:
                untaken.pending.add(self._key(genome))
        bred = params = self._space.decode(breeder.breed(self._population, rng).genome)
        for _ in range(_DRAWS):
            if untaken(params):
                break
            params = self._space.decode(self._space.sample(rng))
        else:
            params = bred
        return {
            name: to_optuna(one, params[self._names[name]])
            for name, one in self.distributions.items()
            if self._names[name] in params
        }

    def _genome(self, trial: FrozenTrial) -> Genome | None:
        """Genome of a trial; None without any of these parameters, or with a value out of its range."""
        given = trial.params or trial.system_attrs.get("fixed_params", {})
        params: Params = {}
        try:
            for name, one in self.distributions.items():
                if name in given and (own := self._names[name]) in self._space.parameters:
                    params[own] = self._space.parameters[own].canonical(from_optuna(one, given[name]))
        except _STRANGE:
            return None
        # A failed trial that did not get as far as its last parameter says nothing of their values.
        genome = self._space.encode(params)
        lacks = trial.state == TrialState.FAIL and self._space.decode(genome).keys() - params.keys()
        return genome if params and not lacks else None

    def _key(self, genome: Genome) -> object:
        return tuple(self._space.decode(genome).items())

    def _members(
        self, trials: Sequence[FrozenTrial], directions: Sequence[StudyDirection]
    ) -> Iterator[Member]:
        """Finished trials as individuals."""
        genomes = {one.number: genome for one in trials if (genome := self._genome(one)) is not None}
        keys = {number: self._key(genome) for number, genome in genomes.items()}
        self._known = {*keys.values()}
        complete = [one for one in trials if one.state == TrialState.COMPLETE]
        retried = {keys.get(one.number) for one in complete}
        excesses = _excesses(trials)
        signs = [-1.0 if way == StudyDirection.MAXIMIZE else 1.0 for way in directions]
        # Losses of a trial that ended because it breaks a constraint are not known.
        middle = [
            sign * statistics.median(own) for sign, own in zip(signs, zip(*(one.values for one in complete)))
        ]
        for trial in trials:
            number = trial.number
            if number not in genomes or (trial.state == TrialState.FAIL and keys[number] in retried):
                continue
            member = Member(str(number), genomes[number], None, FAILED, excess=excesses[number])
            losses = [sign * value for sign, value in zip(signs, trial.values or ())]
            if trial.state != TrialState.COMPLETE and member.violation:
                losses = middle or [0.0] * len(signs)
            elif trial.state == TrialState.PRUNED and trial.last_step is not None:
                loss = signs[0] * trial.intermediate_values[trial.last_step]
                member.status = PRUNED
                member.progress = trial.last_step, math.inf if math.isnan(loss) else loss
                losses = []
            if losses and max(losses) < math.inf:
                member.status, member.losses = COMPLETED, tuple(max(-_LARGEST, one) for one in losses)
            yield member


def _excesses(trials: Sequence[FrozenTrial]) -> dict[int, tuple[float, ...]]:
    """Constraints of each trial by its number, relative to their median sizes; 0, which keeps it, where a trial has no
    value, and the largest excess for NaN."""
    held = {one.number: one.constraints for one in trials}
    found: dict[int, list[float]] = {number: [] for number in held}
    for name in sorted({name for own in held.values() for name in own}):
        sizes = [abs(own[name]) for own in held.values() if 0.0 < abs(own.get(name, 0.0)) < math.inf]
        unit = statistics.median_low(sizes) if sizes else 1.0
        for number, own in held.items():
            excess = own.get(name, 0.0) / unit
            found[number].append(
                MOST_EXCESS if math.isnan(excess) else max(-MOST_EXCESS, min(excess, MOST_EXCESS))
            )
    return {number: tuple(own) for number, own in found.items()}
