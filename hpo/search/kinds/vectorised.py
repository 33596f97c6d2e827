"""Evolution on arrays: the operators of ``EvolutionBreeder`` for hundreds of children at once, for models."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any, cast

from hpo.space.parameters import Categorical, Ordinal
from hpo.space.ranges import Float, Int
from hpo.space.restricted import RestrictedSpace
from hpo.space.space import SearchSpace

_LARGEST_ONE_HOT = 32
"""Most choices of an unordered parameter that get a column each."""
_MUTATED = 1.2
"""Mean number of parameters that mutate in a child."""


class VectorisedGenomes:
    """Draws and breeds arrays of genomes, a row each, and converts them to rows of numbers for models. Each
    ``generator`` is a ``numpy.random.Generator``."""

    def __init__(self, space: SearchSpace) -> None:
        import numpy

        self._space = space
        parameters = list(space.parameters.values())
        self._counts = [p.count if isinstance(p, Categorical) else None for p in parameters]
        self._choices = numpy.array([count or 0 for count in self._counts])
        self._numbers = numpy.array([count is None for count in self._counts])
        self._ordered = numpy.array([isinstance(p, Ordinal) for p in parameters])
        self._open = numpy.array([p.count != 1 for p in parameters])
        # Steps of less than half an integer's cell would mostly give the same integer.
        self._stepped = [
            (i, p) for i, p in enumerate(parameters) if isinstance(p, (Float, Int)) and p.count is not None
        ]
        self._least_step = numpy.zeros(len(parameters))
        for column, parameter in self._stepped:
            self._least_step[column] = 0.5 / (parameter.count or 1)
        self._conditions = self._indexed_conditions()
        allowed = space.replacement_choices if isinstance(space, RestrictedSpace) else {}
        self._instead = {column: numpy.array(choices) for column, choices in allowed.items()}
        """Allowed choice for each choice of a restricted parameter, by column."""
        self.unordered = [
            i
            for i, p in enumerate(parameters)
            if isinstance(p, Categorical) and p.count > 1 and not isinstance(p, Ordinal)
        ]
        """Columns of parameters whose choices have no order."""
        self.columns: list[tuple[int, int]] = []
        """First column and number of columns of each parameter in a row of numbers."""
        start = 0
        for count, ordered in zip(self._counts, self._ordered):
            one_hot = count is not None and not ordered and 2 < count <= _LARGEST_ONE_HOT
            self.columns.append((start, count if one_hot and count else 1))
            start += self.columns[-1][1]
        self.width = start

    def _indexed_conditions(self) -> list[tuple[int, list[tuple[int, list[float]]]]]:
        """Columns of conditional parameters, parents first, with the columns of their parents and the places of the
        allowed values among all."""
        names, found = self._space.names, []
        for name in self._space.order:
            parents = []
            for parent, allowed in self._space.conditions[name].items():
                p = self._space.parameters[parent]
                if isinstance(p, Categorical):
                    values = [float(p.choices.index(one)) for one in allowed]
                else:
                    assert isinstance(p, (Float, Int)) and p.step is not None
                    values = [round((cast(float, one) - p.low) / p.step) for one in allowed]
                parents.append((names.index(parent), values))
            if parents:
                found.append((names.index(name), parents))
        return found

    def drawn(self, count: int, generator: Any, belief: float = 0.0) -> Any:
        """``count`` random genomes with allowed choices, the share ``belief`` of them, at most 1, as
        ``SearchSpace.sample`` draws them, and the others uniform."""
        import numpy

        if believed := int(count * min(1.0, belief)):
            rng = random.Random(int(generator.integers(2**63)))
            first = numpy.array([self._space.sample(rng) for _ in range(believed)], dtype=float)
            return numpy.concatenate([first, self.drawn(count - believed, generator)])
        genomes = generator.random((count, len(self._counts)))
        return self._confined(numpy.where(self._numbers, genomes, numpy.floor(genomes * self._choices)))

    def uniform(self, rng: random.Random) -> tuple[float, ...]:
        """A genome as of ``drawn``, in the form of breeders."""
        import numpy

        return self.genome(self.drawn(1, numpy.random.default_rng(rng.getrandbits(64)))[0].tolist())

    def _confined(self, genomes: Any) -> Any:
        for column, instead in self._instead.items():
            genomes[:, column] = instead[genomes[:, column].astype(int)]
        return genomes

    def active(self, genomes: Any) -> Any:
        """Whether each parameter is active in each genome's configuration, as an array of the shape of ``genomes``."""
        import numpy

        exists = numpy.ones(genomes.shape, dtype=bool)
        if not self._conditions:
            return exists
        values = genomes.copy()
        for column, parameter in self._stepped:
            values[:, column] = _place(parameter, genomes[:, column])
        for column, parents in self._conditions:
            for parent, allowed in parents:
                exists[:, column] &= exists[:, parent] & numpy.isin(values[:, parent], allowed)
        return exists

    def rows(self, genomes: Any) -> Any:
        """Configurations as rows of numbers from 0 to 1, with -1 for inactive parameters; equal configurations have
        equal rows. Unordered parameters have a column for each choice, and all others a column each."""
        import numpy

        exists = self.active(genomes)
        canonical = genomes.copy()
        for column, parameter in self._stepped:
            canonical[:, column] = _middle(parameter, _place(parameter, genomes[:, column]))
        rows = numpy.empty((len(genomes), self.width))
        for column, (start, width) in enumerate(self.columns):
            gene = canonical[:, column]
            if width > 1:
                rows[:, start : start + width] = gene[:, None] == numpy.arange(width)
            else:
                count = self._counts[column]
                rows[:, start] = gene if count is None else gene / max(1, count - 1)
            rows[~exists[:, column], start : start + width] = -1.0
        return rows

    def children(
        self, parents: Any, count: int, generator: Any, crossover: float, steps: tuple[float, float]
    ) -> tuple[Any, Any]:
        """Children of ``parents``, which have the best first, bred with the operators of ``EvolutionBreeder``, and the
        places of both parents of each child (count × 2). ``steps``: least and largest width of mutations of numbers."""
        import numpy

        picked = generator.integers(len(parents), size=(2, 2, count)).min(axis=0)
        first, second = parents[picked[0]], parents[picked[1]]
        crossed = generator.random(count) < crossover
        take = (generator.random(first.shape) < 0.5) & crossed[:, None]
        genomes = numpy.where(take, second, first)
        open_ = self.active(genomes) & self._open
        chance = generator.random(genomes.shape)
        mutated = open_ & (chance < _MUTATED / numpy.maximum(1, open_.sum(axis=1))[:, None])
        clones = (genomes == first).all(axis=1) | (genomes == second).all(axis=1)
        lonely = clones & ~mutated.any(axis=1) & open_.any(axis=1)
        mutated[lonely, numpy.where(open_, chance, 2.0).argmin(axis=1)[lonely]] = True
        genomes = numpy.where(mutated, self._mutated(genomes, generator, steps), genomes)
        picked[1] = numpy.where(crossed, picked[1], picked[0])
        return self._confined(genomes), picked.T

    def _mutated(self, genomes: Any, generator: Any, steps: tuple[float, float]) -> Any:
        """``genomes`` with every gene mutated; the caller chooses which genes to use."""
        import numpy

        shape = genomes.shape
        width = numpy.exp(generator.uniform(math.log(steps[0]), math.log(steps[1]), shape))
        moved = genomes + generator.standard_normal(shape) * numpy.maximum(width, self._least_step)
        moved = numpy.fmod(numpy.abs(moved), 2.0)
        moved = numpy.where(moved > 1.0, 2.0 - moved, moved)
        if self._numbers.all():
            return moved
        step = 1 + generator.exponential(1 / 1.5, shape).astype(int)
        step = numpy.where(generator.random(shape) < 0.5, step, -step)
        there = genomes + step
        outside = (there < 0) | (there >= self._choices)
        neighbour = numpy.clip(
            numpy.where(outside, genomes - step, there), 0, numpy.maximum(0, self._choices - 1)
        )
        other = generator.random(shape) * (self._choices - 1)
        count = numpy.maximum(1, self._choices)
        other = (genomes + 1 + numpy.floor(numpy.maximum(0.0, other))) % count
        return numpy.where(self._numbers, moved, numpy.where(self._ordered, neighbour, other))

    def genome(self, row: Sequence[float]) -> tuple[float, ...]:
        """Genome of a row, in the form of breeders, with indices of choices as ints."""
        return tuple(float(gene) if number else int(gene) for gene, number in zip(row, self._numbers))


def _place(parameter: Float | Int, genes: Any) -> Any:
    """Place among all values of that of each gene, as the parameter's decoder gives it."""
    import numpy

    count = parameter.count or 1
    if not parameter.log or count == 1:
        return numpy.clip(numpy.floor(genes * count), 0, count - 1)
    start = math.log(parameter.low - 0.5)
    width = math.log(parameter.high + 0.5) - start
    return numpy.clip(numpy.floor(numpy.exp(start + genes * width) + 0.5) - parameter.low, 0, count - 1)


def _middle(parameter: Float | Int, places: Any) -> Any:
    """Gene at the middle of the cell of each value."""
    import numpy

    if not parameter.log or parameter.count == 1:
        return (places + 0.5) / (parameter.count or 1)
    values, start = places + parameter.low, math.log(parameter.low - 0.5)
    twice = 2 * (math.log(parameter.high + 0.5) - start)
    return (numpy.log(values - 0.5) + numpy.log(values + 0.5) - 2 * start) / twice
