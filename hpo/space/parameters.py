"""Parameters: what all kinds have, and choices, with or without an order; ``hpo.space.ranges`` has those of numbers.

A gene is a number in [0, 1] (Float, Int) or the index of a choice (Categorical, Ordinal)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from enum import EnumMeta
from numbers import Real
from typing import ClassVar, get_args

from hpo.arguments import checked_arguments
from hpo.errors import UsageError
from hpo.individual import Scalar
from hpo.space.beliefs import DEVIATIONS, Belief, ChoiceBelief, Confidence, NormalBelief
from hpo.space.choices import changed, copied, plain_number, same, stored
from hpo.spelling import suggestion
from hpo.text import excerpt

Encoder = Callable[[Scalar], float]
Decoder = Callable[[float], Scalar]
When = Mapping[str, tuple[Scalar, ...]]
Condition = Mapping[str, object]

_CONFIDENCES: tuple[Confidence, ...] = get_args(Confidence)
_UNDESCRIBED = ("when", "prior", "prior_confidence", "originals")


@dataclass(frozen=True, init=False)
class Parameter(ABC):
    """One axis of a search space."""

    kind: ClassVar[str]
    """Name of the class in ``campaign.json``."""
    when: When = field(hash=False, repr=False)
    """Values under which this parameter is active, by name of a parent."""
    prior: Scalar = field(repr=False)
    """Value around which good values are believed to lie; counts only with a ``prior_confidence``."""
    prior_confidence: Confidence | None = field(repr=False)
    """Confidence of the belief; None without a belief."""

    @property
    def limits(self) -> tuple[float, float]:
        """Smallest and largest gene in Propulate's form: two floats, or two ints for an index of choices."""
        return 0.0, 1.0

    @property
    def neutral(self) -> float:
        """Gene of this parameter in a configuration where it is inactive."""
        return 0.5

    @property
    @abstractmethod
    def count(self) -> int | None:
        """Number of values; None for a Float without a step that has more than a single value."""

    @abstractmethod
    def values(self) -> Iterator[Scalar]:
        """All values, in order; TypeError where ``count`` is None."""

    @property
    def belief(self) -> Belief | None:
        """Distribution of good genes, as the user believes; None without a belief."""
        if self.prior_confidence is None:
            return None
        return self._belief(self.encoder()(self.prior), self.prior_confidence)

    def _belief(self, gene: float, confidence: Confidence) -> Belief:
        return NormalBelief(gene, DEVIATIONS[confidence])

    @abstractmethod
    def canonical(self, value: object) -> Scalar:
        """``value`` as ``decode`` would return it; ValueError, whose text is the rule, where it is not allowed."""

    @abstractmethod
    def encoder(self) -> Encoder:
        """Function from a canonical value to its gene."""

    @abstractmethod
    def decoder(self) -> Decoder:
        """Function from any gene, clipped to the limits, to a canonical value; ValueError for NaN."""

    def describe(self) -> dict[str, object]:
        """Definition as JSON-able data, without the conditions, and without the belief, which may change when a
        campaign goes on."""
        own = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in _UNDESCRIBED}
        if own.get("step") in (None, 1):  # as campaigns have it that began before there were steps
            own.pop("step", None)
        return {"type": self.kind, **{k: list(v) if isinstance(v, tuple) else v for k, v in own.items()}}

    def _set(self, **attributes: object) -> None:
        # The only way past a frozen dataclass; each class checks its values in an __init__ of its own.
        for name, value in attributes.items():
            object.__setattr__(self, name, value)

    def _believe(self, shown: str, prior: object, confidence: object, *, given: bool) -> None:
        """Check and set the belief, after all else; ``given``: whether ``prior`` is a value."""
        if confidence is not None and confidence not in _CONFIDENCES:
            raise UsageError(
                f'{shown}: prior_confidence must be "low", "medium" or "high", not {excerpt(confidence)}. '
                'Leave it out for "medium".'
            )
        if not given:
            if confidence is not None:
                raise UsageError(
                    f"{shown}: prior_confidence={confidence!r} says how sure a prior is, and there is none. Add "
                    "prior=…, or leave it out."
                )
            self._set(prior=None, prior_confidence=None)
            return
        try:
            value = self.canonical(prior)
        except ValueError as rule:
            raise UsageError(f"{shown}: prior={excerpt(prior)} must be {rule}. Correct it.") from None
        self._set(prior=value, prior_confidence=confidence or "medium")


@dataclass(frozen=True, init=False)
class Categorical(Parameter):
    """One of several choices without an order.

    Journals and tables have tuples as lists, and members of enumerations by name, or by value where that is a text or
    a number itself (``class Color(str, Enum)``). The task gets each choice as it was given here.

    Args:
        *choices (str, int, float, bool, None, member of an enumeration, or tuple or list of these): at least one, all
            different under ==.
        prior (a choice; default None): the choice that is believed to be good. None: no belief,
            or, with a ``prior_confidence``, the choice None.
        prior_confidence (str; default None): probability of ``prior``: "low" 1/2, "medium" 3/4, "high" 7/8; the
            other choices share the rest. None: "medium" where there is a prior.
        when (dict; default None): value, or tuple of values, under which this parameter exists, by name of another
            parameter; None: always.

    Raises:
        UsageError: the choices or the condition are not allowed.
    """

    kind = "categorical"
    choices: tuple[Scalar, ...]
    """Choices in their stored form (see ``hpo.space.choices``)."""
    originals: Mapping[Scalar, object] = field(hash=False, compare=False, repr=False)
    """Choices that the task gets in another form, by their stored form."""

    @checked_arguments()
    def __init__(
        self,
        *choices: object,
        prior: object = None,
        prior_confidence: Confidence | None = None,
        when: Condition | None = None,
    ) -> None:
        name = type(self).__name__
        if not choices:
            raise UsageError(f'{name}(): at least one choice is needed. Write {name}("a", "b").')
        if len(choices) == 1 and isinstance(choices[0], (list, tuple, set, frozenset, dict, EnumMeta)):
            raise UsageError(
                f"{name}({excerpt(choices[0])}): choices are separate arguments. Write {name}(*choices)."
            )
        found: dict[Scalar, object] = {}
        for choice in choices:
            try:
                kept = stored(choice)
            except ValueError as rule:
                raise UsageError(
                    f"{name}(...): a choice must be {rule}, not {excerpt(choice)}. Choose by a name and look it up "
                    "in the task."
                ) from None
            if kept in found:
                raise UsageError(
                    f"{name}(...): choices must differ under ==, and {excerpt(choice)} equals "
                    f"{excerpt(found[kept])} as the journal has them. Remove one, or write them as strings."
                )
            found[kept] = choice
        originals = {kept: copied(choice) for kept, choice in found.items() if changed(choice)}
        self._set(choices=tuple(found), originals=originals, when=conditions(f"{name}(...)", when))
        given = prior is not None or (prior_confidence is not None and None in found)
        self._believe(f"{name}(...)", prior, prior_confidence, given=given)

    @property
    def limits(self) -> tuple[float, float]:
        return 0, len(self.choices) - 1

    @property
    def count(self) -> int:
        return len(self.choices)

    @property
    def neutral(self) -> float:
        return 0

    def _belief(self, gene: float, confidence: Confidence) -> Belief:
        return ChoiceBelief.unordered(int(gene), self.count, confidence)

    def values(self) -> Iterator[Scalar]:
        return iter(self.choices)

    def canonical(self, value: object) -> Scalar:
        with suppress(ValueError):
            given = stored(value)
            for choice in self.choices:
                if same(choice, given):
                    return choice
        rule = "one of " + ", ".join(map(repr, self.choices))
        if isinstance(value, str):
            raise ValueError(f"{rule}. {suggestion(value, (c for c in self.choices if isinstance(c, str)))}")
        raise ValueError(rule)

    def encoder(self) -> Encoder:
        return {choice: index for index, choice in enumerate(self.choices)}.__getitem__

    def decoder(self) -> Decoder:
        choices, top = self.choices, len(self.choices) - 1

        def decode(gene: float) -> Scalar:
            return choices[min(max(round(gene), 0), top)]

        return decode


@dataclass(frozen=True, init=False)
class Ordinal(Categorical):
    """One of several choices in order, such as 32, 64, 128, 256: neighbours count as similar.

    Args:
        *choices (as of ``Categorical``): at least one, all different under ==; numbers ascend or descend.
        prior (a choice; default None): the choice that is believed to be good. None: no belief,
            or, with a ``prior_confidence``, the choice None.
        prior_confidence (str; default None): standard deviation of a truncated normal distribution over the ranks:
            "low" a half of all ranks, "medium" a quarter, "high" an eighth. None: "medium" where there is a prior.
        when (dict; default None): value, or tuple of values, under which this parameter exists, by name of another
            parameter; None: always.

    Raises:
        UsageError: the choices or the condition are not allowed.
    """

    kind = "ordinal"

    @checked_arguments()
    def __init__(
        self,
        *choices: object,
        prior: object = None,
        prior_confidence: Confidence | None = None,
        when: Condition | None = None,
    ) -> None:
        super().__init__(*choices, prior=prior, prior_confidence=prior_confidence, when=when)
        numbers = [number for choice in self.choices if (number := plain_number(choice, Real)) is not None]
        ascending = sorted(numbers)
        if len(numbers) == len(self.choices) and numbers not in (ascending, ascending[::-1]):
            shown = ", ".join(map(repr, ascending))
            raise UsageError(
                f"Ordinal({', '.join(map(repr, numbers))}): numbers must ascend or descend, as neighbours count as "
                f"alike. Write Ordinal({shown}), or Categorical if they have no order."
            )

    def _belief(self, gene: float, confidence: Confidence) -> Belief:
        return ChoiceBelief.ordered(int(gene), self.count, confidence)


def conditions(shown: str, when: object) -> When:
    if when is None:
        return {}
    if not isinstance(when, Mapping) or not when or not all(isinstance(parent, str) for parent in when):
        raise UsageError(
            f"{shown}: when={excerpt(when)} must map the name of another parameter to the value or values that it "
            'needs. Write when={"optimizer": "sgd"} or when={"optimizer": ("sgd", "rmsprop")}.'
        )
    conditions = {}
    for parent, allowed in when.items():
        values = tuple(allowed) if isinstance(allowed, (tuple, list)) else (allowed,)
        if not values:
            raise UsageError(f"{shown}: when names no value of {parent!r}. Name one or drop the condition.")
        conditions[parent] = values
    return conditions
