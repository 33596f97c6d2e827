"""A search space of which an island uses some choices only: ``[[island]] only = { optimizer = ["sgd"] }``."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from hpo.errors import UsageError
from hpo.individual import Scalar
from hpo.space.parameters import Categorical, Ordinal
from hpo.space.space import Genome, SearchSpace
from hpo.spelling import suggestion


class RestrictedSpace(SearchSpace):
    """``space``, with genomes that mean the same everywhere; what is bred or drawn here keeps to ``only``.

    Individuals from elsewhere may have other choices: they are decoded as what they are, and may be parents,
    whose children get a choice that is allowed here. UsageError if ``only`` names what the space has not.
    """

    def __init__(self, space: SearchSpace, only: Mapping[str, Sequence[Scalar]]) -> None:
        super().__init__(space.parameters)
        self._allowed: dict[int, tuple[int, ...]] = {}
        self._instead: dict[int, list[int]] = {}
        problems: list[str] = []
        for name, choices in only.items():
            indices = _indices(space, name, choices, problems)
            if not indices:
                continue
            place, parameter = space.names.index(name), space.parameters[name]
            self._allowed[place] = indices
            assert isinstance(parameter, Categorical)
            self._narrowed[name] = {parameter.choices[index] for index in indices}
            self._instead[place] = [
                _instead(index, indices, ordered=isinstance(parameter, Ordinal))
                for index in range(parameter.count or 0)
            ]
        if problems:
            raise UsageError("\n".join(problems))

    def sample(self, rng: random.Random) -> Genome:
        genome = list(super().sample(rng))
        for place, indices in self._allowed.items():
            genome[place] = rng.choice(indices)
        return tuple(genome)

    @property
    def instead(self) -> Mapping[int, Sequence[int]]:
        """By a parameter's place, the choice that stands for each of its choices; where all are allowed, none."""
        return self._instead

    def project_to_allowed(self, genome: Genome) -> Genome:
        """``genome``, with another choice for each that is not allowed; a parameter that does not exist has none."""
        while wrong := self._not_allowed(genome):
            genes = list(genome)
            for place in wrong:
                genes[place] = self._instead[place][int(genes[place])]
            genome = tuple(genes)  # with another choice of one parameter others may begin to exist
        return genome

    def _not_allowed(self, genome: Genome) -> list[int]:
        """The places of the parameters that exist with a choice that is not allowed."""
        wrong = [place for place, indices in self._allowed.items() if int(genome[place]) not in indices]
        exist = self.decode(genome) if wrong else {}
        return [place for place in wrong if self.names[place] in exist]


def restricted(space: SearchSpace, only: Mapping[str, Sequence[Scalar]]) -> SearchSpace:
    """``space`` itself where ``only`` is empty, else a ``RestrictedSpace``."""
    return RestrictedSpace(space, only) if only else space


def _indices(
    space: SearchSpace, name: str, choices: Sequence[Scalar], problems: list[str]
) -> tuple[int, ...]:
    """Those of ``choices``, sorted; what is wrong with them is put with the other ``problems``."""
    if name not in space.parameters:
        problems.append(f"[search] only: {name!r} is no parameter. {suggestion(name, space.names)}")
        return ()
    parameter = space.parameters[name]
    if not isinstance(parameter, Categorical):
        problems.append(
            f"[search] only: {name} is a range, and choices alone can be restricted. Leave it out, or make it an "
            "Ordinal."
        )
        return ()
    if not choices:
        problems.append(
            f"[search] only: {name} = []: at least one choice is needed. Leave {name} out to allow all."
        )
    indices = set()
    for choice in choices:
        try:
            indices.add(parameter.choices.index(parameter.canonical(choice)))
        except ValueError as rule:
            problems.append(f"[search] only: {name} = {choice!r}: must be {rule}")
    return tuple(sorted(indices))


def _instead(index: int, allowed: tuple[int, ...], *, ordered: bool) -> int:
    """The choice that stands for ``index``: where they are ordered the nearest, else to each its share."""
    if index in allowed:
        return index
    return min(allowed, key=lambda one: abs(one - index)) if ordered else allowed[index % len(allowed)]
