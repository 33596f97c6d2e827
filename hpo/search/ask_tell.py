"""What one island does, without MPI and without evaluating: ask for a configuration, tell its value."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import isfinite

from hpo import aliases
from hpo.arguments import checked_arguments
from hpo.config import reader as config
from hpo.config.settings import SearchSettings
from hpo.errors import SpaceExhausted, UsageError
from hpo.individual import COMPLETED, FAILED, Configuration, Params, Scalar, known_id, make_id
from hpo.search.kinds import reevaluation
from hpo.search.models.pareto import Front, reference_losses
from hpo.search.population import Member, Population
from hpo.search.proposals import STUCK, Proposals
from hpo.search.protocols import Candidate, SearchContext
from hpo.search.registry import make_breeder
from hpo.space.restricted import restricted
from hpo.space.space import SearchSpace, listable
from hpo.spelling import suggestion
from hpo.task.known_point import single_point
from hpo.task.metrics import as_number
from hpo.task.task import MINIMIZE, checked_constraints, checked_objectives, losses_of
from hpo.text import excerpt


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """A configuration whose value is known. ``value``: with ``objectives`` a dictionary by name, else a number."""

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
            of ``direction``. Values are then dictionaries, too. Kinds that search by models take one objective; with
            several "default" and "surrogate" do as "evolution" does.
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
        constraints: Iterable[Callable[[dict[str, Scalar]], object]] = (),
        **settings: object,
    ) -> None:
        if not isinstance(space, SearchSpace):
            raise UsageError(f"Search: space = {excerpt(space)}: must be a SearchSpace")
        # The default cannot be distinguished from what was given.
        given_direction = None if objectives is not None and direction == MINIMIZE else direction
        self._objectives = checked_objectives(given_direction, objectives, "Search")
        self._named = objectives is not None
        for name in settings:
            if name not in SearchSettings.model_fields:
                meant = aliases.SETTINGS.get(aliases.folded(name), name)
                remedy = suggestion(meant, SearchSettings.model_fields)
                if meant in config.KEYWORDS and meant not in SearchSettings.model_fields:
                    remedy = f"hpo.Campaign has {meant}; of a search, your own loop decides that."
                raise UsageError(f"{name}: Search has no such keyword. {remedy}")
        # Checked as a campaign's keywords are; the directory is none that is used.
        given = config.from_keywords(directory=".", evaluations=1, seed=seed, kind=kind, **settings)
        seed, checked = given.seed, given.search
        space = restricted(space, checked.only)
        self._space = space
        self._constraints = checked_constraints(constraints)
        self._population = Population(reference=reference_losses(checked.reference, self._objectives))
        self._front: Front[Evaluated] = Front()
        if checked.traits.needs_checkpoints or checked.inherit:
            given_as = f'kind="{kind}"' if checked.traits.needs_checkpoints else "inherit=True"
            raise UsageError(
                f"Search({given_as}): its individuals go on from checkpoints of others, which a search that only "
                "asks for configurations does not have. Use hpo.Campaign, or leave it out"
            )
        if checked.traits.without_clock:
            checked = checked.model_copy(update={"kind": checked.traits.without_clock})
        reevaluation.check(checked.reevaluate, checked.kind, self._objectives)
        self._breeder = make_breeder(
            space,
            checked,
            SearchContext(
                objectives=len(self._objectives), allows=self._allows if self._constraints else None
            ),
        )
        self._duplicates = checked.duplicates
        self._proposals = Proposals(
            space, self._breeder, seed=seed, allows=self._allows, duplicates=checked.duplicates
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
        self._proposals.fill(candidate, self._population)
        stuck = candidate.draws >= STUCK and not self._duplicates
        if not candidate.key or (stuck and candidate.key in self._proposals.known):
            self._look_further(candidate)
        self._asked += 1
        self._proposals.known.add(candidate.key)
        self._pending[candidate.id] = candidate
        return candidate.configuration

    def tell(self, suggestion: Configuration, value: float | Mapping[str, float] | None) -> None:
        """Give the value of a configuration, once.

        Args:
            suggestion (Configuration): what ``ask`` returned.
            value (float): the objective, or with ``objectives`` a dictionary that has each by name; None, or a number
                that is not finite: the evaluation failed.

        Raises:
            UsageError: it was not asked for here, its value is known already, or ``value`` is no number, or lacks
                an objective.
        """
        if not isinstance(suggestion, Configuration):
            raise UsageError(f"tell({excerpt(suggestion)}, …): must be what ask() returned")
        numbers = self._numbers(value, "tell", "the evaluation failed")
        candidate = self._pending.pop(suggestion.id, None)
        if candidate is None:
            raise UsageError(
                f"{suggestion.id}: was not asked for, or was told already. Tell each suggestion once"
            )
        losses = self._losses(numbers)
        status = FAILED if losses is None else COMPLETED
        asked = candidate.configuration
        member = Member(asked.id, candidate.genome, losses, status, operator=asked.operator)
        self._keep(asked.id, asked.params, numbers)
        self._population.add(member)
        self._breeder.learn(member)

    def enter(self, params: Mapping[str, object], value: float | Mapping[str, float] | None) -> None:
        """Give a result from elsewhere, such as ``hpo.known_points`` reads. It is not asked for afterwards; further
        results of the same configuration are ignored.

        Args:
            params (dict): a configuration.
            value (float): the result, as for ``tell``.

        Raises:
            UsageError: ``params`` is no configuration of the space, or one that a constraint refuses.
        """
        numbers = self._numbers(value, "enter", "it failed")
        point = single_point(params, numbers, self._space, self._objectives, self._allows)
        key = self._space.key(point.params)
        if key in self._proposals.known:
            return
        self._proposals.known.add(key)
        self._entered += 1
        identity = known_id(self._entered)
        genome = self._space.encode(point.params)
        self._population.enter(Member(identity, genome, self._losses(numbers), point.status, (0,)))
        self._keep(identity, point.params, numbers)

    @property
    def best(self) -> Evaluated:
        """The best configuration that was told or entered: an object with ``id``, ``params`` (dict) and ``value``; of
        equals the first. With several objectives, that of the front which is best in the first. With ``reevaluate`` a
        single value counts, however lucky.

        Raises:
            UsageError: none has a value.
        """
        if not (front := self.front):
            raise UsageError("best: no configuration has a value yet. Tell one first")
        return front[0]

    @property
    def front(self) -> list[Evaluated]:
        """The configurations that no other dominates, those best in the first objective first: the Pareto front. With
        one objective, those of the best value.
        """
        return self._front.items

    def _numbers(self, value: object, method: str, failed: str) -> dict[str, float]:
        """By objective; none where it failed."""
        if value is None:
            return {}
        if self._named:
            names = ", ".join(self._objectives)
            of = (
                {name: as_number(value.get(name)) for name in self._objectives}
                if isinstance(value, Mapping)
                else {}
            )
            numbers = {name: number for name, number in of.items() if number is not None}
            if len(numbers) < len(self._objectives):
                raise UsageError(
                    f"{method}(…, {excerpt(value)}): must be a dictionary with a number for each of {names}, or None "
                    f"where {failed}"
                )
        elif (number := as_number(value)) is not None:
            numbers = {"value": number}
        else:
            raise UsageError(f"{method}(…, {excerpt(value)}): must be one number, or None where {failed}")
        return numbers if all(map(isfinite, numbers.values())) else {}

    def _losses(self, numbers: Mapping[str, float]) -> tuple[float, ...] | None:
        return losses_of(numbers, self._objectives) if numbers else None

    def _keep(self, identity: str, params: dict[str, Scalar], numbers: dict[str, float]) -> None:
        losses = self._losses(numbers)
        if losses is not None:
            value = numbers if self._named else numbers["value"]
            self._front.add(losses, Evaluated(id=identity, params=params, value=value))

    def _allows(self, params: Mapping[str, Scalar]) -> bool:
        return all(constraint(dict(params)) for constraint in self._constraints)

    def _look_further(self, candidate: Candidate) -> None:
        """Breeding and chance find only what is known, or nothing that is allowed: go through what is left of the
        space. Where the same may come again, one that is known to be allowed does."""
        told = list(self._population) if self._duplicates else []
        if told:
            again = random.Random(candidate.id).choice(told).genome
            self._take(candidate, self._space.decode(again), "again")
            candidate.genome = again  # its own, which the encoding of what it decodes to may not be
            return
        if self._rest is None:
            if not listable(self._space):
                raise SpaceExhausted(
                    f"nothing new was found in {candidate.draws} draws. Loosen the constraints, or widen the space"
                )
            rest = [params for params in self._space.enumerate() if self._allows(params)]
            random.Random(len(rest)).shuffle(rest)
            self._rest = iter(rest)
        for params in self._rest:
            if self._space.key(params) not in self._proposals.known:
                self._take(candidate, params, "last")
                return
        raise SpaceExhausted(
            f"all {len(self._proposals.known)} configurations that the space and its constraints allow have been "
            "asked for"
        )

    def _take(self, candidate: Candidate, params: dict[str, Scalar], operator: str) -> None:
        candidate.configuration = Configuration(id=candidate.id, params=params, operator=operator)
        candidate.key, candidate.genome = self._space.key(params), self._space.encode(params)
