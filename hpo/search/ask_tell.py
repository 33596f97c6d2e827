"""Search of a single island, without MPI and without evaluating: ask for a configuration, tell its value."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import isfinite

from msgspec.structs import replace

from hpo import aliases
from hpo.arguments import checked_arguments
from hpo.config import reader as config
from hpo.config.settings import SearchSettings
from hpo.errors import SpaceExhausted, UsageError
from hpo.individual import COMPLETED, DEFAULT, FAILED, Configuration, Params, Scalar, known_id, make_id
from hpo.search.kinds import reevaluation
from hpo.search.models.pareto import Front, reference_losses
from hpo.search.models.transfer import first_points
from hpo.search.phases import make_breeder
from hpo.search.population import Member, Population
from hpo.search.proposals import MOST_DRAWS, STUCK, Proposals
from hpo.search.protocols import Candidate, Genome, SearchContext
from hpo.space.restricted import restricted
from hpo.space.space import SearchSpace, listable
from hpo.spelling import suggestion
from hpo.task.known_point import single_point
from hpo.task.limits import UNLIMITED, OutcomeLimits, checked_limits
from hpo.task.metrics import as_number
from hpo.task.task import MINIMIZE, checked_constraints, checked_objectives, losses_of
from hpo.text import excerpt


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """A configuration with its value: a number, or with ``objectives`` a dictionary by name."""

    id: str
    params: Params
    value: float | dict[str, float]


class Search:
    """Proposes configurations for a loop of your own: what one island does, without processes.

        search = hpo.Search(space, "maximize")
        candidate = search.ask()
        search.tell(candidate, evaluate(candidate.params))
        search.best.params, search.best.value

    Any number of candidates may be pending. The same seed and the same calls in the same
    order give the same proposals.

    Args:
        space (SearchSpace): the parameters.
        direction (str; default "minimize"): "minimize" or "maximize".
        seed (int, from 0; default 0): of all random numbers.
        kind (str; default "default"): see ``hpo.Campaign``; not "pbt". "default" is "surrogate" here, because a
            rule that depends on the clock would not be repeatable; take "evolution" where the ten milliseconds of a
            proposal are too many.
        objectives (dict; default None): directions by name, such as {"f1": "maximize", "seconds": "minimize"}, in place
            of ``direction``. Values are then dictionaries, too.
        at_most, at_least (dict; default None): bounds of metrics or objectives by name, as of ``hpo.Task``: ``tell``
            then gets a dictionary that has the limited metrics, too.
        constraints (iterable of callables; default ()): functions of the parameters that are true where allowed.
        **settings (see ``hpo.Campaign``): further search keywords: ``crossover``, ``pool``, ``only``, ….

    Raises:
        UsageError: a keyword is not allowed, or the kind does not suit the space.
    """

    @checked_arguments()
    def __init__(
        self,
        space: SearchSpace,
        direction: str = "minimize",
        seed: int = 0,
        kind: str = "default",
        *,
        objectives: Mapping[str, str] | None = None,
        at_most: Mapping[str, float] | None = None,
        at_least: Mapping[str, float] | None = None,
        constraints: Iterable[Callable[[dict[str, Scalar]], object]] = (),
        **settings: object,
    ) -> None:
        if not isinstance(space, SearchSpace):
            raise UsageError(f"Search: space = {excerpt(space)}: must be a SearchSpace")
        # The default cannot be distinguished from what was given.
        given_direction = None if objectives is not None and direction == MINIMIZE else direction
        self._objectives = checked_objectives(given_direction, objectives, "Search")
        self._named = objectives is not None
        self._limits = checked_limits(at_most, at_least, "Search")
        for name in settings:
            if name not in SearchSettings.model_fields:
                meant = aliases.SETTINGS.get(aliases.folded(name), name)
                remedy = suggestion(meant, ["direction", "seed", "objectives", *SearchSettings.model_fields])
                if meant in config.KEYWORDS and meant not in SearchSettings.model_fields:
                    remedy = f"hpo.Campaign has {meant}; of a search, your own loop decides that."
                raise UsageError(f"{name}: Search has no such keyword. {remedy}")
        # Checked as a campaign's keywords are; the directory is not used.
        given = config.from_keywords(directory=".", evaluations=1, seed=seed, kind=kind, **settings)
        checked = given.search
        self._space = restricted(space, checked.only)
        self._constraints = checked_constraints(constraints)
        self._tasks: dict[str, list[tuple[Genome, tuple[float, ...]]]] = {}
        self._first: list[Genome] = []
        self._population = Population(reference=reference_losses(checked.reference, self._objectives))
        self._front: Front[Evaluated] = Front()
        if checked.traits.needs_checkpoints or checked.inherit:
            given_as = f'kind="{kind}"' if checked.traits.needs_checkpoints else "inherit=True"
            raise UsageError(
                f"Search({given_as}): its individuals continue from checkpoints of others, which a search that only "
                "asks for configurations does not have. Use hpo.Campaign, or leave it out"
            )
        # A rule that depends on the time would not propose the same for the same calls.
        if checked.traits.without_clock:
            checked = checked.model_copy(update={"kind": checked.traits.without_clock})
        reevaluation.check(checked.reevaluate, checked.kind, self._objectives)
        allows = self._allows if self._constraints else None
        context = SearchContext(allows=allows, tasks=self._tasks)
        self._breeder = make_breeder(self._space, checked, context)
        self._duplicates = checked.duplicates
        self._proposals = Proposals(
            self._space, self._breeder, seed=given.seed, allows=self._allows, duplicates=self._duplicates
        )
        self._asked = self._entered = 0
        self._pending: dict[str, Candidate] = {}
        self._rest: Iterator[dict[str, Scalar]] | None = None

    def ask(self) -> Configuration:
        """A configuration that was not asked for before; or, for the share ``reevaluate``, one whose value is known.
        Returns an object with ``id``, ``params`` (dict), ``operator`` (str) and ``parents`` (ids).

        Raises:
            SpaceExhausted: there is none left.
        """
        number = self._asked
        candidate = Candidate(number, Configuration(id=make_id(0, 0, number), params={}))
        if not number:
            self._first = [
                *[one for one in [self._space.centre] if one is not None],
                *first_points(self._space, self._tasks),
            ]
        while self._first and not candidate.key:
            self._take(candidate, self._first.pop(0))
        if not candidate.key:
            self._proposals.fill(candidate, self._population)
        while not candidate.key and candidate.draws < MOST_DRAWS and not listable(self._space):
            self._proposals.fill(candidate, self._population)
        # Proposals gives up after a limited number of draws, and leaves a configuration that may be known.
        stuck = candidate.draws >= STUCK and not self._duplicates
        if not candidate.key or (stuck and candidate.key in self._proposals.known):
            params, operator = self._last_resort(candidate)
            candidate.configuration = Configuration(id=candidate.id, params=params, operator=operator)
            candidate.key = self._space.key(params)
        self._asked += 1
        self._proposals.known.add(candidate.key)
        self._pending[candidate.id] = candidate
        asked = candidate.configuration
        return replace(asked, params=self._space.as_given(asked.params))

    def tell(self, suggestion: Configuration, value: float | Mapping[str, float] | None) -> None:
        """Give the value of a configuration, once.

        Args:
            suggestion (Configuration): what ``ask`` returned.
            value (float): the objective, or with ``objectives`` or limited metrics a dictionary that has each by name
                ("value" without ``objectives``); None, or a number that is not finite: the evaluation failed.

        Raises:
            UsageError: it was not asked for here, its value is known already, or ``value`` is no number, or lacks
                an objective.
        """
        if not isinstance(suggestion, Configuration):
            raise UsageError(f"tell({excerpt(suggestion)}, …): must be what ask() returned")
        numbers, excess = self._numbers(value, "tell", "the evaluation failed", self._limits)
        candidate = self._pending.pop(suggestion.id, None)
        if candidate is None:
            raise UsageError(
                f"{suggestion.id}: was not asked for, or has its value already. Tell each suggestion once"
            )
        asked = candidate.configuration
        losses = self._keep(asked.id, asked.params, numbers, excess)
        status = FAILED if losses is None else COMPLETED
        member = Member(asked.id, candidate.genome, losses, status, operator=asked.operator, excess=excess)
        self._population.add(member)
        self._breeder.learn(member)

    def enter(
        self,
        params: Mapping[str, object],
        value: float | Mapping[str, float] | None,
        task: str | None = None,
    ) -> None:
        """Give a result from elsewhere, such as ``hpo.known_points`` reads. It is not asked for afterwards; further
        results of the same configuration are ignored.

        Args:
            params (dict): a configuration.
            value (float): the result, as for ``tell``.
            task (str; default None): name of another task that the result is from, such as a smaller model or other
                data. Only the order of a task's values counts, and the configuration may be asked for. Such results
                come before the first ``ask``.

        Raises:
            UsageError: ``params`` is no configuration of the space, or one that a constraint refuses; or a result of
                another task comes too late.
        """
        if not isinstance(task, str | None):
            raise UsageError(f"enter(…, task={excerpt(task)}): must be the other task's name, a text")
        if task is not None and self._asked:
            raise UsageError(
                f"enter(…, task={excerpt(task)}): results of other tasks must come before the first ask(). Enter them "
                "earlier, or begin another Search"
            )
        limits = self._limits if task is None else UNLIMITED
        numbers, excess = self._numbers(value, "enter", "it failed", limits)
        point = single_point(params, numbers, self._space, self._objectives, self._allows)
        if task is not None:
            if numbers:  # a failure there says nothing of this task
                result = self._space.encode(point.params), losses_of(numbers, self._objectives)
                self._tasks.setdefault(task, []).append(result)
            return
        key = self._space.key(point.params)
        # A table may have several results of a configuration, and the search may have asked for it.
        if key in self._proposals.known:
            return
        self._proposals.known.add(key)
        self._entered += 1
        identity = known_id(self._entered)
        losses = self._keep(identity, point.params, numbers, excess)
        genome = self._space.encode(point.params)
        self._population.enter(Member(identity, genome, losses, point.status, (0,), excess=excess))

    @property
    def best(self) -> Evaluated:
        """The best configuration so far: an object with ``id``, ``params`` (dict) and ``value``; the first of equals.
        With several objectives, the front's best in the first objective. With ``reevaluate`` a single value counts,
        however lucky.

        Raises:
            UsageError: none has a value, or none keeps the limits.
        """
        if not (front := self.front):
            lacks = "keeps the limits" if self._population.completed else "has a value"
            raise UsageError(f"best: no configuration {lacks} yet. Tell more")
        return front[0]

    @property
    def front(self) -> list[Evaluated]:
        """Pareto front: the configurations that no other dominates, those best in the first objective first. With one
        objective, those of the best value.
        """
        return self._front.items

    def _numbers(
        self, value: object, method: str, failed: str, limits: OutcomeLimits
    ) -> tuple[dict[str, float], tuple[float, ...]]:
        """Numbers of ``value`` by objective, and its excess over each limit; empty where the evaluation failed."""
        if value is None:
            return {}, ()
        names = tuple(dict.fromkeys((*self._objectives, *limits.names)))
        several = self._named or len(names) > 1
        given = value if several else {"value": value}
        found = {name: as_number(given.get(name)) for name in names} if isinstance(given, Mapping) else {}
        numbers = {name: number for name, number in found.items() if number is not None}
        if len(numbers) < len(names):
            rule = f"a dictionary with a number for each of {', '.join(names)}" if several else "one number"
            raise UsageError(f"{method}(…, {excerpt(value)}): must be {rule}, or None where {failed}")
        objectives = {name: numbers[name] for name in self._objectives}
        excess = limits.excess(objectives, numbers)
        if excess is None or not all(map(isfinite, objectives.values())):
            return {}, ()
        return objectives, excess

    def _keep(
        self,
        identity: str,
        params: dict[str, Scalar],
        numbers: dict[str, float],
        excess: tuple[float, ...],
    ) -> tuple[float, ...] | None:
        """Add a result to the front if it keeps all limits; returns its losses, None where it failed."""
        if not numbers:
            return None
        losses = losses_of(numbers, self._objectives)
        value = numbers if self._named else numbers["value"]
        if max(excess, default=0.0) <= 0.0:
            own = self._space.as_given(params)
            self._front.add(losses, Evaluated(id=identity, params=own, value=value))
        return losses

    def _allows(self, params: Mapping[str, Scalar]) -> bool:
        return all(constraint(self._space.as_given(params)) for constraint in self._constraints)

    def _take(self, candidate: Candidate, genome: Genome) -> None:
        """Give ``candidate`` the point ``genome`` if it is allowed and not known."""
        genome = self._space.project_to_allowed(genome)
        params = self._space.decode(genome)
        key = self._space.key(params)
        if key not in self._proposals.known and self._allows(params):
            candidate.configuration = Configuration(id=candidate.id, params=params, operator=DEFAULT)
            candidate.genome, candidate.key = genome, key

    def _last_resort(self, candidate: Candidate) -> tuple[dict[str, Scalar], str]:
        """Parameters and operator of a proposal where breeding and chance find only known configurations, or none that
        is allowed: the next in a list of the space. With duplicates, a known configuration is asked for again."""
        members = list(self._population) if self._duplicates else []
        if members:
            candidate.genome = random.Random(candidate.id).choice(members).genome
            return self._space.decode(candidate.genome), "again"
        if self._rest is None:
            if not listable(self._space):
                raise SpaceExhausted(
                    f"nothing new was found in {candidate.draws} draws. Loosen the constraints, or widen the space"
                )
            rest = [params for params in self._space.enumerate() if self._allows(params)]
            # Shuffled, because a budget may end before the list does.
            random.Random(len(rest)).shuffle(rest)
            self._rest = iter(rest)
        for params in self._rest:
            if self._space.key(params) not in self._proposals.known:
                candidate.genome = self._space.encode(params)
                return params, "last"
        raise SpaceExhausted(
            f"all {len(self._proposals.known)} configurations that the space and its constraints allow have been "
            "asked for"
        )
