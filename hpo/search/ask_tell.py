"""What one island does, without MPI and without evaluating: ask for a configuration, tell its value."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite

from hpo.arguments import checked_arguments
from hpo.config import reader as config
from hpo.config.settings import SearchSettings
from hpo.errors import SpaceExhausted, UsageError
from hpo.individual import COMPLETED, FAILED, Scalar, known_id, make_id
from hpo.search.kinds import reevaluation
from hpo.search.population import Member, Population
from hpo.search.proposals import STUCK, Proposals
from hpo.search.protocols import Candidate
from hpo.search.registry import make_breeder
from hpo.space.restricted import restricted
from hpo.space.space import SearchSpace
from hpo.spelling import suggestion
from hpo.task.known_point import single_point
from hpo.task.metrics import as_number
from hpo.task.task import checked_constraints
from hpo.text import excerpt

_MOST_LISTED = 1_000_000


@dataclass(frozen=True)
class Suggestion:
    """A configuration to evaluate; give it back to ``tell`` with its value."""

    id: str
    params: dict[str, Scalar]
    operator: str
    parents: tuple[str, ...] = ()
    genome: tuple[float, ...] = field(default=(), repr=False)


class Search:
    """Proposes configurations for a loop of your own: what one island does, without processes, for one objective.

        search = hpo.Search(space, "maximize")
        candidate = search.ask()
        search.tell(candidate, evaluate(candidate.params))

    Any number of candidates may be pending. The same seed and the same calls in the same
    order give the same proposals.

    Args:
        space (SearchSpace): the parameters.
        direction (str; default "minimize"): "minimize" or "maximize".
        seed (int, from 0; default 0): of all random numbers.
        kind (str; default "default"): as of ``hpo.Campaign``, except "pbt". "default" is "surrogate" here, because a
            rule that depends on the clock would not be repeatable; take "evolution" where the ten milliseconds of a
            proposal are too many.
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
        constraints: Iterable[Callable[[dict[str, Scalar]], object]] = (),
        **settings: object,
    ) -> None:
        if not isinstance(space, SearchSpace):
            raise UsageError(f"Search: space = {excerpt(space)}: must be a SearchSpace")
        if not isinstance(direction, str) or direction not in ("minimize", "maximize"):
            raise UsageError(f'direction = {excerpt(direction)}: must be "minimize" or "maximize"')
        for name in settings:
            if name not in SearchSettings.model_fields:
                raise UsageError(
                    f"{name}: Search has no such keyword. {suggestion(name, SearchSettings.model_fields)}"
                )
        # Checked as a campaign's keywords are; the directory is none that is used.
        given = config.from_keywords(directory=".", evaluations=1, seed=seed, kind=kind, **settings)
        seed, checked = given.seed, given.search
        space = restricted(space, checked.only)
        self._space = space
        self._sign = -1.0 if direction == "maximize" else 1.0
        self._constraints = checked_constraints(constraints)
        self._population = Population()
        if checked.traits.needs_checkpoints:
            raise UsageError(
                f'Search(kind="{kind}"): its individuals go on from checkpoints of others, which a search that only '
                "asks for configurations does not have. Use hpo.Campaign, or another kind"
            )
        if checked.traits.without_clock:
            checked = checked.model_copy(update={"kind": checked.traits.without_clock})
        reevaluation.check(checked.reevaluate, checked.kind, ["value"])
        self._breeder = make_breeder(space, checked)
        self._duplicates = checked.duplicates
        self._proposals = Proposals(
            space, self._breeder, seed=seed, allows=self._allows, duplicates=checked.duplicates
        )
        self._asked = self._entered = 0
        self._pending: dict[str, Suggestion] = {}
        self._rest: Iterator[dict[str, Scalar]] | None = None

    def ask(self) -> Suggestion:
        """A configuration that was not asked for before; or, for the share ``reevaluate``, one whose value is known.
        Returns an object with ``id``, ``params`` (dict), ``operator`` (str) and ``parents`` (ids).

        Raises:
            SpaceExhausted: there is none left.
        """
        number = self._asked
        candidate = Candidate(
            token=number,
            id=make_id(0, 0, number),
            sequence=number,
            genome=(),
            params={},
            key="",
            operator="",
        )
        self._proposals.fill(candidate, self._population)
        stuck = candidate.attempts >= STUCK and not self._duplicates
        if not candidate.key or (stuck and candidate.key in self._proposals.known):
            self._look_further(candidate)
        self._asked += 1
        self._proposals.known.add(candidate.key)
        asked = Suggestion(
            candidate.id, candidate.params, candidate.operator, candidate.parents, tuple(candidate.genome)
        )
        self._pending[asked.id] = asked
        return asked

    def tell(self, suggestion: Suggestion, value: float | None) -> None:
        """Give the value of a configuration, once.

        Args:
            suggestion (Suggestion): what ``ask`` returned.
            value (float): the objective; None, or a number that is not finite: the evaluation failed.

        Raises:
            UsageError: it was not asked for here, its value is known already, or ``value`` is no number.
        """
        if not isinstance(suggestion, Suggestion):
            raise UsageError(f"tell({excerpt(suggestion)}, …): must be what ask() returned")
        number = None if value is None else as_number(value)
        if value is not None and number is None:
            raise UsageError(
                f"tell(…, {excerpt(value)}): must be one number, or None where the evaluation failed"
            )
        if self._pending.pop(suggestion.id, None) is None:
            raise UsageError(
                f"{suggestion.id}: was not asked for, or was told already. Tell each suggestion once"
            )
        losses = (self._sign * number,) if number is not None and isfinite(number) else None
        status = FAILED if losses is None else COMPLETED
        member = Member(suggestion.id, suggestion.genome, losses, status, operator=suggestion.operator)
        self._population.add(member)
        self._breeder.learn(member)

    def enter(self, params: Mapping[str, object], value: float | None) -> None:
        """Give a result from elsewhere, such as ``hpo.known_points`` reads. It is not asked for afterwards; further
        results of the same configuration are ignored.

        Args:
            params (dict): a configuration.
            value (float): the objective; None: it failed.

        Raises:
            UsageError: ``params`` is no configuration of the space, or one that a constraint refuses.
        """
        number = None if value is None else as_number(value)
        if value is not None and number is None:
            raise UsageError(f"enter(…, {excerpt(value)}): must be one number, or None where it failed")
        given = {} if number is None or not isfinite(number) else {"value": number}
        point = single_point(params, given, self._space, {"value": "minimize"}, self._allows)
        key = self._space.key(point.params)
        if key in self._proposals.known:
            return
        self._proposals.known.add(key)
        self._entered += 1
        losses = (self._sign * given["value"],) if given else None
        member = Member(known_id(self._entered), self._space.encode(point.params), losses, point.status, (0,))
        self._population.enter(member)

    def _allows(self, params: Mapping[str, Scalar]) -> bool:
        return all(constraint(dict(params)) for constraint in self._constraints)

    def _look_further(self, candidate: Candidate) -> None:
        """Breeding and chance find only what is known, or nothing that is allowed: go through what is left of the
        space. Where the same may come again, one that is known to be allowed does."""
        told = list(self._population) if self._duplicates else []
        if told:
            candidate.genome = random.Random(candidate.id).choice(told).genome
            candidate.params = self._space.decode(candidate.genome)
            candidate.key, candidate.operator = self._space.key(candidate.params), "again"
            candidate.parents = ()
            return
        if self._rest is None:
            size = self._space.size
            if size is None or size > _MOST_LISTED:
                raise SpaceExhausted(
                    "nothing new that the constraints allow was found in 10 000 draws. Loosen the constraints"
                )
            rest = [params for params in self._space.enumerate() if self._allows(params)]
            random.Random(len(rest)).shuffle(rest)
            self._rest = iter(rest)
        for params in self._rest:
            key = self._space.key(params)
            if key not in self._proposals.known:
                candidate.params, candidate.key, candidate.operator = params, key, "last"
                candidate.genome, candidate.parents = self._space.encode(params), ()
                return
        raise SpaceExhausted(
            f"all {len(self._proposals.known)} configurations that the space and its constraints allow have been "
            "asked for"
        )
