"""Search space restricted to some choices on an island: ``[[island]] only = { optimizer = ["sgd"] }``."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from hpo.errors import UsageError
from hpo.space.parameters import Categorical, Ordinal
from hpo.space.space import Genome, SearchSpace
from hpo.spelling import suggestion


class RestrictedSpace(SearchSpace):
    """``space`` whose new individuals take the choices in ``only``; genomes mean the same as in ``space``.

    Individuals from other islands may have other choices: they are decoded unchanged, and may be parents, whose
    children get an allowed choice.

    Args:
        space (SearchSpace): the whole space.
        only (dict): allowed choices, by name of a Categorical or Ordinal.

    Raises:
        UsageError: ``only`` names a parameter or choice that the space does not have.
    """

    def __init__(self, space: SearchSpace, only: Mapping[str, Sequence[object]]) -> None:
        super().__init__(space.parameters)
        self._allowed: dict[int, tuple[int, ...]] = {}
        self._replacements: dict[int, list[int]] = {}
        problems: list[str] = []
        for name, choices in only.items():
            indices = _indices(space, name, choices, problems)
            if not indices:
                continue
            place, parameter = space.names.index(name), space.parameters[name]
            self._allowed[place] = indices
            assert isinstance(parameter, Categorical)
            self._narrowed[name] = {parameter.choices[index] for index in indices}
            self._replacements[place] = [
                _replacement(index, indices, ordered=isinstance(parameter, Ordinal))
                for index in range(parameter.count or 0)
            ]
        if problems:
            raise UsageError("\n".join(problems))

    def sample(self, rng: random.Random) -> Genome:
        genome = list(super().sample(rng))
        for place, indices in self._allowed.items():
            if self._beliefs[place] is None or genome[place] not in indices:
                genome[place] = rng.choice(indices)
        return tuple(genome)

    @property
    def replacement_choices(self) -> Mapping[int, Sequence[int]]:
        """Allowed index for each index of a restricted parameter's choices, by the parameter's place in the genome."""
        return self._replacements

    def project_to_allowed(self, genome: Genome) -> Genome:
        """``genome`` with an allowed choice for each active parameter; inactive parameters keep their genes."""
        # Repeated, because a replaced choice may activate another parameter whose choice is not allowed.
        while wrong := self._not_allowed(genome):
            genes = list(genome)
            for place in wrong:
                genes[place] = self._replacements[place][int(genes[place])]
            genome = tuple(genes)
        return genome

    def _not_allowed(self, genome: Genome) -> list[int]:
        """Places of the active parameters whose choice is not allowed."""
        wrong = [place for place, indices in self._allowed.items() if int(genome[place]) not in indices]
        active = self.decode(genome) if wrong else {}
        return [place for place in wrong if self.names[place] in active]


def restricted(space: SearchSpace, only: Mapping[str, Sequence[object]]) -> SearchSpace:
    """``space`` restricted to the choices in ``only``; ``space`` itself where ``only`` is empty."""
    return RestrictedSpace(space, only) if only else space


def _indices(
    space: SearchSpace, name: str, choices: Sequence[object], problems: list[str]
) -> tuple[int, ...]:
    """Sorted indices of ``choices``; mistakes are appended to ``problems``."""
    if name not in space.parameters:
        problems.append(f"[search] only: {name!r} is no parameter. {suggestion(name, space.names)}")
        return ()
    parameter = space.parameters[name]
    if not isinstance(parameter, Categorical):
        problems.append(
            f"[search] only: {name} is a range, and only choices can be restricted. Leave it out, or make it an "
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


def _replacement(index: int, allowed: tuple[int, ...], *, ordered: bool) -> int:
    """Allowed choice in place of ``index``: the closest of an Ordinal; of a Categorical they take turns."""
    if index in allowed:
        return index
    # The remainder gives each allowed choice an equal share of those that are not allowed.
    return min(allowed, key=lambda other: abs(other - index)) if ordered else allowed[index % len(allowed)]
