"""Learning curves as tables: of the rows on disk, those that make one curve for each individual.

An individual whose evaluation had several attempts (see ``hpo.journal.curves``) has the rows of the last one. Where
that went on from what an earlier one had saved, it also has the earlier one's rows before its own first step: what the
earlier one did beyond that step was lost, and done again."""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpo.individual import CURVE_COLUMNS, Metric
from hpo.journal.curves import Point, Sample, curve_files, read_rows

if TYPE_CHECKING:
    import pandas
    from numpy.typing import NDArray


def load(directory: Path) -> pandas.DataFrame:
    """The curves of the campaign in ``directory``: ``id``, ``step``, ``value``, ``time`` (Unix seconds) and one column
    for each metric, NaN or None where it was not reported; individuals in the order of their first report, each by
    step. Without any, the four columns.

    Raises:
        CampaignError: they cannot be read.
    """
    curves = Curves()
    for place, path in curve_files(directory):
        curves.add(place.launch, read_rows(path))
    return curves.frame()


def of_individuals(directory: Path, identities: Collection[str]) -> pandas.DataFrame:
    """Of the table of :func:`load` the rows of these individuals; errors as there."""
    curves = Curves()
    for place, path in curve_files(directory):
        of_them = (row for row in read_rows(path) if isinstance(row, Point) and row.id in identities)
        curves.add(place.launch, of_them)
    return curves.frame()


def system(directory: Path) -> pandas.DataFrame:
    """What the hosts of evaluations did, by time: ``launch``, ``island``, ``worker``, and the fields of
    ``hpo.journal.curves.Sample``.

    Raises:
        CampaignError: see :func:`load`.
    """
    import pandas

    rows = [
        {"launch": place.launch, "island": place.island, "worker": place.worker, **_fields(row)}
        for place, path in curve_files(directory)
        for row in read_rows(path)
        if isinstance(row, Sample)
    ]
    names = ["launch", "island", "worker", *Sample.__struct_fields__]
    return pandas.DataFrame(rows, columns=names).sort_values("time", ignore_index=True, kind="stable")


def _fields(sample: Sample) -> dict[str, float | str | None]:
    return {name: getattr(sample, name) for name in Sample.__struct_fields__}


@dataclass(kw_only=True, slots=True)
class _Attempt:
    """``individual``: its number among all; ``first``: the first step that it reported."""

    number: int
    individual: int
    launch: int
    began: float
    resumed: bool
    first: int


class _Metric:
    """One metric by row: numbers apart, as most are, and what is none."""

    def __init__(self) -> None:
        self.numbers = array("d")
        self.others: dict[int, Metric] = {}

    def put(self, row: int, value: Metric) -> None:
        """The value in ``row``, the last so far."""
        if type(value) is float and len(self.numbers) == row:
            self.numbers.append(value)
            return
        self.extend(row + 1)
        if type(value) is float or type(value) is int:
            self.numbers[row] = value
        elif value is not None:
            self.others[row] = value

    def extend(self, rows: int) -> None:
        missing = rows - len(self.numbers)
        if missing > 0:
            self.numbers.extend((math.nan,) * missing)


class Curves:
    """Collects rows, in whatever order the files are read, and makes the table of them at any time."""

    def __init__(self) -> None:
        self._individuals: dict[str, int] = {}
        self._attempts: dict[tuple[str, int, float], _Attempt] = {}
        self._attempt = array("q")
        self._step = array("q")
        self._value = array("d")
        self._time = array("d")
        self._metrics: dict[str, _Metric] = {}

    def add(self, launch: int, rows: Iterable[Point | Sample]) -> None:
        """Take the next rows of a file that was written in this launch, in their order there."""
        attempt: _Attempt | None = None
        identity, began = "", math.nan
        for row in rows:
            if not isinstance(row, Point):
                continue
            if attempt is None or row.id != identity or row.began != began:
                identity, began = row.id, row.began
                attempt = self._attempt_of(launch, row)
            number = len(self._step)
            self._attempt.append(attempt.number)
            self._step.append(row.step)
            self._value.append(row.value)
            self._time.append(row.time)
            for name, value in row.metrics.items():
                metric = self._metrics.get(name)
                if metric is not None:
                    metric.put(number, value)
                elif name not in CURVE_COLUMNS:
                    metric = self._metrics[name] = _Metric()
                    metric.put(number, value)

    def _attempt_of(self, launch: int, row: Point) -> _Attempt:
        key = (row.id, launch, row.began)
        attempt = self._attempts.get(key)
        if attempt is None:
            individual = self._individuals.setdefault(row.id, len(self._individuals))
            attempt = self._attempts[key] = _Attempt(
                number=len(self._attempts),
                individual=individual,
                launch=launch,
                began=row.began,
                resumed=row.resumed,
                first=row.step,
            )
        return attempt

    def __len__(self) -> int:
        """How many rows there are, also of what later attempts have replaced."""
        return len(self._step)

    def frame(self) -> pandas.DataFrame:
        """The table of :func:`load`."""
        import numpy
        import pandas

        attempts = list(self._attempts.values())
        attempt, step = numpy.array(self._attempt), numpy.array(self._step)
        individual = numpy.array([one.individual for one in attempts], dtype="int64")[attempt]
        when = numpy.array(self._time)
        begun = numpy.full(len(self._individuals), math.inf)
        numpy.minimum.at(begun, individual, when)
        order = self._order(attempts)
        rows = numpy.flatnonzero(step < self._limits(attempts)[attempt])
        keys = (rows, order[attempt[rows]], step[rows], individual[rows], begun[individual[rows]])
        rows = rows[numpy.lexsort(keys)]
        # Of a step that was reported twice the last report counts.
        again = (individual[rows][1:] == individual[rows][:-1]) & (step[rows][1:] == step[rows][:-1])
        rows = rows[numpy.append(~again, True)] if len(rows) else rows
        names = numpy.array([*self._individuals, ""], dtype=object)
        columns = {
            "id": names[individual[rows]],
            "step": step[rows],
            "value": numpy.array(self._value)[rows],
            "time": when[rows],
        }
        for name, metric in self._metrics.items():
            metric.extend(len(step))
            column = numpy.array(metric.numbers)[rows]
            columns[name] = _with(column, metric.others, rows) if metric.others else column
        return pandas.DataFrame(columns)

    @staticmethod
    def _order(attempts: list[_Attempt]) -> NDArray[Any]:
        """The place of each attempt in time."""
        import numpy

        found = numpy.empty(len(attempts), dtype="int64")
        ordered = sorted(attempts, key=lambda one: (one.launch, one.began))
        found[[one.number for one in ordered]] = numpy.arange(len(attempts))
        return found

    @staticmethod
    def _limits(attempts: list[_Attempt]) -> NDArray[Any]:
        """By attempt the step from which on later ones of the individual have replaced it."""
        import numpy

        found = numpy.full(len(attempts), math.inf)
        limits: dict[int, float] = {}
        for one in sorted(attempts, key=lambda one: (one.launch, one.began), reverse=True):
            limit = limits.get(one.individual, math.inf)
            found[one.number] = limit
            limits[one.individual] = min(limit, one.first) if one.resumed else -math.inf
        return found


def _with(numbers: NDArray[Any], others: dict[int, Metric], rows: NDArray[Any]) -> list[Metric]:
    """The column of a metric that is not always a number; None where it was not reported."""
    return [
        others.get(row, None if math.isnan(number) else number)
        for row, number in zip(rows.tolist(), numbers.tolist(), strict=True)
    ]
