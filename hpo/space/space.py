"""Search space: named parameters, conditions between them, and the map from configurations to genomes."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from hashlib import blake2b
from typing import Any

import msgspec

from hpo.arguments import checked_arguments
from hpo.errors import CampaignError, UsageError
from hpo.individual import Scalar
from hpo.space.beliefs import DOUBT
from hpo.space.choices import copied
from hpo.space.parameters import Categorical, Encoder, Ordinal, Parameter, When
from hpo.space.ranges import Float, Int
from hpo.spelling import suggestion
from hpo.text import excerpt

__all__ = ["Categorical", "Float", "Genome", "Int", "Ordinal", "Parameter", "Params", "SearchSpace"]

Genome = tuple[float, ...]
"""A gene for each parameter, inactive parameters included, in the order of declaration."""

Params = dict[str, Scalar]
"""Configuration: value of each active parameter, in the order of declaration."""


_MOST_LISTED = 1_000_000
"""Most configurations of a space that is listed whole where random draws find nothing new."""
_OTHER = "\ud800"
"""Stands for any value that no condition names; choices cannot equal this lone surrogate."""


class SearchSpace:
    """Named parameters: ``SearchSpace(lr=hpo.Float(1e-5, 0.1, log=True), layers=hpo.Int(1, 8))``.

    A parameter is *active* where all its conditions hold and the parents that they name are active; a configuration
    holds active parameters only.

    Args:
        named (dict; default None): parameters by name, for names that cannot be keywords.
        **parameters (Float, Int, Categorical or Ordinal): parameters by name.

    Raises:
        UsageError: a name or a condition is not allowed.
    """

    @checked_arguments()
    def __init__(self, named: Mapping[str, Parameter] | None = None, /, **parameters: Parameter) -> None:
        if named is not None and not isinstance(named, Mapping):
            raise UsageError(
                f"SearchSpace({excerpt(named)}): parameters are keywords or one dictionary. Write SearchSpace(lr=…)."
            )
        if twice := [name for name in parameters if named is not None and name in named]:
            raise UsageError(f"SearchSpace: {twice[0]!r} is in the dictionary and a keyword too. Remove one.")
        self.parameters: dict[str, Parameter] = {**(named or {}), **parameters}
        _check_names(self.parameters)
        self.names: tuple[str, ...] = tuple(self.parameters)
        self.limits: dict[str, tuple[float, float]] = {name: p.limits for name, p in self.parameters.items()}
        self.conditions: dict[str, When] = {name: _checked_when(name, self.parameters) for name in self.names}
        """Canonical values under which each parameter is active, by name of a parent."""
        self.order: tuple[str, ...] = _parents_first(self.conditions)
        """All names, parents before the children with conditions on them."""
        self._conditional = [
            (name, tuple(when.items())) for name in self.order if (when := self.conditions[name])
        ]
        self._narrowed: dict[str, set[Scalar]] = {}
        """Allowed choices of restricted parameters, by name."""
        self._counts = [p.count if isinstance(p, Categorical) else None for p in self.parameters.values()]
        self._originals = {
            name: p.originals
            for name, p in self.parameters.items()
            if isinstance(p, Categorical) and p.originals
        }
        self._beliefs = [p.belief for p in self.parameters.values()]
        self._decoders = [(name, p.decoder()) for name, p in self.parameters.items()]
        self._encoders: list[tuple[str, Encoder, float]] = [
            (name, p.encoder(), p.neutral) for name, p in self.parameters.items()
        ]

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"SearchSpace({', '.join(self.names)})"

    def __reduce__(self) -> tuple[Callable[..., SearchSpace], tuple[dict[str, Parameter]]]:
        return SearchSpace, (self.parameters,)

    def encode(self, params: Mapping[str, Scalar]) -> Genome:
        """Genome of a configuration that ``validate`` or ``decode`` returned; undefined for any other."""
        return tuple(
            [encode(params[name]) if name in params else idle for name, encode, idle in self._encoders]
        )

    def decode(self, genome: Iterable[float]) -> Params:
        """Configuration of a genome of any finite numbers, clipped to the limits.

        Raises:
            ValueError: a gene is NaN, or the number of genes is wrong.
        """
        values = {name: decode(gene) for (name, decode), gene in zip(self._decoders, genome, strict=True)}
        # Parents come first, so that a parameter below an inactive parent is removed after that parent.
        for name, conditions in self._conditional:
            for parent, allowed in conditions:
                if parent not in values or values[parent] not in allowed:
                    del values[name]
                    break
        return values

    @property
    def has_originals(self) -> bool:
        """Whether any choice was given in another form than journals have."""
        return bool(self._originals)

    def as_given(self, params: Mapping[str, Scalar]) -> Params:
        """A canonical configuration with all choices in the form in which the space was given them."""
        given: dict[str, Any] = dict(params)
        for name, originals in self._originals.items():
            if name in given and given[name] in originals:
                given[name] = copied(originals[given[name]])
        return given

    def exists(self, name: str, params: Mapping[str, object]) -> bool:
        """Whether the parameter ``name`` is active, given the values in ``params`` of those before it in ``order``."""
        return _is_active(self.conditions[name], params)

    def validate(self, params: Mapping[str, object]) -> Params:
        """``params`` as ``decode`` would return it.

        Raises:
            UsageError: parameters are unknown, missing, inactive or not allowed; the text names all of them.
        """
        if not isinstance(params, Mapping):
            raise UsageError(
                f"{excerpt(params)} is no configuration: write a dictionary such as {{{self.names[0]!r}: …}}."
            )
        unknown = [name for name in params if name not in self.parameters]
        problems = [f"{excerpt(name)} is no parameter. {suggestion(name, self.names)}" for name in unknown]
        canonical: Params = {}
        rejected: set[str] = set()
        for name in self.order:
            parents = self.conditions[name]
            if rejected.intersection(parents):
                # Whether this parameter is active depends on a value that is already reported as wrong.
                rejected.add(name)
            elif (reason := self._why_inactive(name, canonical)) is not None:
                if name in params:
                    problems.append(f"{name} = {excerpt(params[name])}: {reason}. Leave it out.")
            elif name not in params:
                problems.append(f"{name} is missing. Add it.")
                rejected.add(name)
            else:
                try:
                    canonical[name] = self.parameters[name].canonical(params[name])
                except ValueError as rule:
                    problems.append(f"{name} = {excerpt(params[name])}: must be {_ended(str(rule))}")
                    rejected.add(name)
        if problems:
            raise UsageError("\n".join(problems))
        return {name: canonical[name] for name in self.names if name in canonical}

    def sample(self, rng: random.Random) -> Genome:
        """Random genome: uniform, or where there are beliefs, from these with probability 3/4; with every gene
        independent of the others."""
        if self.has_beliefs and rng.random() >= DOUBT:
            return self.at_quantiles([rng.random() for _ in self._counts])
        return tuple([rng.random() if count is None else rng.randrange(count) for count in self._counts])

    @property
    def has_beliefs(self) -> bool:
        """Whether any parameter has a prior."""
        return any(self._beliefs)

    def at_quantiles(self, shares: Iterable[float]) -> Genome:
        """Genome of the quantiles of all parameters, in [0, 1), of the beliefs where there are any, else uniform."""
        return tuple(
            [
                belief.quantile(share)
                if belief is not None
                else share
                if count is None
                else min(count - 1, int(share * count))
                for share, count, belief in zip(shares, self._counts, self._beliefs, strict=True)
            ]
        )

    @cached_property
    def centre(self) -> Genome | None:
        """Genome at the centres of all beliefs, in the middle of other ranges, with the first of other unordered
        choices; None without beliefs."""
        if not self.has_beliefs:
            return None
        ordered = [not isinstance(p, Categorical) or isinstance(p, Ordinal) for p in self.parameters.values()]
        middle = self.at_quantiles([0.5 if one else 0.0 for one in ordered])
        return tuple(gene if one is None else one.centre for one, gene in zip(self._beliefs, middle))

    def project_to_allowed(self, genome: Genome) -> Genome:
        """``genome`` with allowed choices only; ``hpo.space.restricted`` replaces those that are not."""
        return genome

    def key(self, params: Params) -> str:
        """Hash of a canonical configuration in 32 hexadecimal digits; 1 and True have different hashes."""
        return blake2b(msgspec.json.encode(params, order="sorted"), digest_size=16).hexdigest()

    @cached_property
    def size(self) -> int | None:
        """Number of different configurations; None where a Float without a step makes it infinite."""
        # Children follow their parents closely, so that few parents' values have to be distinguished at a time.
        order: list[str] = []
        for name in self.order:
            parents = [order.index(parent) for parent in self.conditions[name]]
            order.insert(max(parents) + 1 if parents else len(order), name)
        last_use = {parent: place for place, name in enumerate(order) for parent in self.conditions[name]}
        # Numbers of configurations by the values of the parents that later conditions name.
        counts: dict[tuple[tuple[str, Scalar], ...], int] = {(): 1}
        for place, name in enumerate(order):
            narrowed = self._narrowed.get(name)
            choices = self.parameters[name].count if narrowed is None else len(narrowed)
            named = {value for when in self.conditions.values() for value in when.get(name, ())}
            named = named if narrowed is None else named & narrowed
            found: Counter[tuple[tuple[str, Scalar], ...]] = Counter()
            for chosen, count in counts.items():
                active = _is_active(self.conditions[name], dict(chosen))
                if active and choices is None:
                    return None
                kept = tuple(one for one in chosen if last_use[one[0]] > place)
                if not active or name not in last_use:
                    found[kept] += count * choices if active and choices else count
                    continue
                # No condition tells the other values apart.
                others = (choices or 0) - len(named)
                for value, times in (*((value, 1) for value in named), (_OTHER, others)):
                    more = (*kept, (name, value))
                    found[more] += count * times
            counts = +found
        return sum(counts.values())

    def enumerate(self) -> Iterator[Params]:
        """All configurations of a finite space, without constraints; UsageError where ``size`` is None."""
        if self.size is None:
            floats = [name for name, p in self.parameters.items() if p.count is None]
            raise UsageError(
                f"An infinite space cannot be listed: {floats[0]} is a Float. Give it a step, or use Ordinal."
            )
        return self._extensions(0, {})

    def describe(self) -> dict[str, dict[str, object]]:
        """Definition of each parameter by name, as JSON-able data."""
        described = {name: parameter.describe() for name, parameter in self.parameters.items()}
        for name, conditions in self._conditional:
            described[name]["when"] = {
                parent: sorted(allowed, key=repr) for parent, allowed in sorted(conditions)
            }
        return described

    def differences(self, other: Mapping[str, Mapping[str, object]]) -> list[str]:
        """A sentence for each difference from ``other``, an older space's ``describe()``; order does not count."""
        mine = self.describe()
        sentences = [f"{name}: was removed" for name in other if name not in mine]
        for name, now in mine.items():
            if name not in other:
                sentences.append(f"{name}: was added")
                continue
            was = other[name]
            # Where the types differ, all other keys differ as well and need no sentences of their own.
            keys = ["type"] if was.get("type") != now["type"] else list({**was, **now})
            sentences += [
                f"{name}: {key} was {_written(was.get(key))}, is {_written(now.get(key))}"
                for key in keys
                if _written(was.get(key)) != _written(now.get(key))
            ]
        return sentences

    def _why_inactive(self, name: str, canonical: Params) -> str | None:
        for parent, allowed in self.conditions[name].items():
            needed = f"exists only where {parent} is {' or '.join(map(repr, allowed))}"
            if parent not in canonical:
                return f"{needed}, and {parent} does not exist here"
            if canonical[parent] not in allowed:
                return f"{needed}, and {parent} is {canonical[parent]!r}"
        return None

    def _extensions(self, depth: int, chosen: Params) -> Iterator[Params]:
        if depth == len(self.order):
            yield {name: chosen[name] for name in self.names if name in chosen}
            return
        name = self.order[depth]
        if not _is_active(self.conditions[name], chosen):
            yield from self._extensions(depth + 1, chosen)
            return
        narrowed = self._narrowed.get(name)
        for value in self.parameters[name].values():
            if narrowed is None or value in narrowed:
                yield from self._extensions(depth + 1, {**chosen, name: value})


def listable(space: SearchSpace) -> bool:
    """Whether ``space`` is finite and small enough to be listed whole where random draws find nothing new."""
    return space.size is not None and space.size <= _MOST_LISTED


def _check_names(parameters: Mapping[str, Parameter]) -> None:
    if not parameters:
        raise UsageError(
            "SearchSpace(): at least one parameter is needed. Write SearchSpace(lr=Float(1e-5, 0.1))."
        )
    for name, parameter in parameters.items():
        if not isinstance(name, str) or not name or not name.isprintable():
            raise UsageError(f"SearchSpace: a name must be a printable string, not {excerpt(name)}.")
        if name.startswith("_"):
            raise UsageError(
                f'SearchSpace: {name!r}: a name must not begin with "_". Write {name.lstrip("_")!r}.'
            )
        if not isinstance(parameter, Parameter):
            raise UsageError(
                f"SearchSpace: {name} = {excerpt(parameter)} is no parameter. "
                "Use Float(low, high), Int(low, high), Categorical(a, b) or Ordinal(a, b)."
            )


def _checked_when(name: str, parameters: Mapping[str, Parameter]) -> When:
    """Conditions of a parameter, with the values in the canonical form of the parents."""
    checked = {}
    for parent, allowed in parameters[name].when.items():
        if parent not in parameters:
            others = [other for other in parameters if other != name]
            raise UsageError(
                f"{name}: when names {parent!r}, no other parameter. {suggestion(parent, others)}"
            )
        if isinstance(other := parameters[parent], Float) and other.step is None:
            raise UsageError(
                f"{name}: when names {parent!r}, a Float, whose single values are hardly ever met. "
                f"Make {parent} an Ordinal or an Int, give it a step, or drop the condition."
            )
        values = []
        for value in _several(parameters[parent], allowed):
            try:
                values.append(parameters[parent].canonical(value))
            except ValueError as rule:
                raise UsageError(
                    f"{name}: when needs {parent} = {excerpt(value)}, and {parent} must be {_ended(str(rule))}"
                ) from None
        checked[parent] = tuple(dict.fromkeys(values))
    return checked


def _several(parent: Parameter, allowed: tuple[object, ...]) -> tuple[object, ...]:
    """Values that a condition names: those in ``allowed``, or ``allowed`` itself where only this is a choice."""
    for values in allowed, (allowed,):
        with suppress(ValueError):
            return tuple(map(parent.canonical, values))
    return allowed


def _parents_first(when: Mapping[str, When]) -> tuple[str, ...]:
    """All names, each after its parents; UsageError for a circle of conditions."""
    placed: dict[str, None] = {}
    left = list(when)
    while left:
        ready = [name for name in left if all(parent in placed for parent in when[name])]
        if not ready:
            raise UsageError(f"SearchSpace: conditions go in a circle: {_circle(when, placed)}. Remove one.")
        placed.update(dict.fromkeys(ready))
        left = [name for name in left if name not in placed]
    return tuple(placed)


def _circle(when: Mapping[str, When], placed: Mapping[str, None]) -> str:
    path = [next(name for name in when if name not in placed)]
    while path[-1] not in path[:-1]:
        path.append(next(parent for parent in when[path[-1]] if parent not in placed))
    return " needs ".join(path[path.index(path[-1]) :])


def _is_active(when: When, chosen: Mapping[str, object]) -> bool:
    return all(parent in chosen and chosen[parent] in allowed for parent, allowed in when.items())


def _ended(sentence: str) -> str:
    return sentence if sentence.endswith(("?", ".")) else f"{sentence}."


def _written(value: object) -> str:
    return "not set" if value is None else json.dumps(value)


def described_space(description: object) -> SearchSpace:
    """Search space from its ``describe()`` in ``campaign.json``; CampaignError where it is none."""
    kinds = {"float": Float, "int": Int, "categorical": Categorical, "ordinal": Ordinal}
    try:
        if not isinstance(description, Mapping):
            raise TypeError("no table of parameters")
        parameters: dict[str, Parameter] = {}
        for name, rule in description.items():
            when = {parent: tuple(allowed) for parent, allowed in (rule.get("when") or {}).items()} or None
            # Choices are positional; all other keys are the keywords of the parameter's class.
            own = {key: value for key, value in rule.items() if key not in ("type", "when", "choices")}
            parameters[name] = kinds[rule["type"]](*rule.get("choices", ()), **own, when=when)
        return SearchSpace(parameters)
    except (KeyError, TypeError, AttributeError, UsageError) as error:
        raise CampaignError(
            f"campaign.json describes no search space that this hpo knows ({error}). It is written once and never "
            "edited: restore it."
        ) from None
