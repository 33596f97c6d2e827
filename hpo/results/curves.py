"""Learning curves as tables: one curve for each individual, made of the rows on disk.

An individual whose evaluation had several attempts (see ``hpo.journal.curves``) has the rows of the last attempt. If
that continued from a checkpoint, the rows of the earlier attempt before its first step count, too: what the earlier
attempt did beyond that step was lost, and done again."""

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


def load(directory: Path, identities: Collection[str] | None = None) -> pandas.DataFrame:
    """Curves of the campaign in ``directory``, or of some of its individuals, by their first reports and then by step.

    The columns are ``id``, ``step``, ``value``, ``time`` (Unix seconds), and each metric, NaN or None where it was not
    reported.

    Raises:
        CampaignError: the files cannot be read.
    """
    curves = Curves()
    for place, path in curve_files(directory):
        rows = (row for row in read_rows(path) if isinstance(row, Point))
        curves.add(place.launch, (row for row in rows if identities is None or row.id in identities))
    return curves.frame()


def system(directory: Path) -> pandas.DataFrame:
    """Use of resources on the hosts of evaluations, by time: ``launch``, ``island``, ``worker``, and the fields of
    ``hpo.journal.curves.Sample``.

    Raises:
        CampaignError: the files cannot be read.
    """
    import pandas

    names = ["launch", "island", "worker", *Sample.__struct_fields__]
    rows = [
        (place.launch, place.island, place.worker, *(getattr(row, name) for name in Sample.__struct_fields__))
        for place, path in curve_files(directory)
        for row in read_rows(path)
        if isinstance(row, Sample)
    ]
    return pandas.DataFrame(rows, columns=names).sort_values("time", ignore_index=True, kind="stable")


@dataclass(kw_only=True, slots=True)
class _Attempt:
    number: int
    individual: int
    launch: int
    began: float
    resumed: bool
    first: int  # first step that was reported


class Curves:
    """Table of rows that are added in whatever order the files are read."""

    def __init__(self) -> None:
        # Columns of plain numbers: a campaign may have millions of rows.
        self._individuals: dict[str, int] = {}
        self._attempts: dict[tuple[str, int, float], _Attempt] = {}
        self._attempt = array("q")
        self._step = array("q")
        self._value = array("d")
        self._time = array("d")
        self._metrics: dict[str, tuple[array[int], list[Metric]]] = {}

    def add(self, launch: int, rows: Iterable[Point | Sample]) -> None:
        """Add rows of a file that was written in this launch, in their order there."""
        attempt: _Attempt | None = None
        identity, began = "", math.nan
        for row in rows:
            if not isinstance(row, Point):
                continue
            if attempt is None or row.id != identity or row.began != began:
                identity, began = row.id, row.began
                attempt = self._attempt_of(launch, row)
            for name, value in row.metrics.items():
                if value is not None and name not in CURVE_COLUMNS:
                    numbers, values = self._metrics.setdefault(name, (array("q"), []))
                    numbers.append(len(self._step))
                    values.append(value)
            self._attempt.append(attempt.number)
            self._step.append(row.step)
            self._value.append(row.value)
            self._time.append(row.time)

    def _attempt_of(self, launch: int, row: Point) -> _Attempt:
        key = (row.id, launch, row.began)
        if key not in self._attempts:
            self._attempts[key] = _Attempt(
                number=len(self._attempts),
                individual=self._individuals.setdefault(row.id, len(self._individuals)),
                launch=launch,
                began=row.began,
                resumed=row.resumed,
                first=row.step,
            )
        return self._attempts[key]

    def frame(self) -> pandas.DataFrame:
        """The table of :func:`load`."""
        import numpy
        import pandas

        attempt, step = numpy.array(self._attempt), numpy.array(self._step)
        individual = numpy.array([one.individual for one in self._attempts.values()], dtype="int64")[attempt]
        when = numpy.array(self._time)
        begun = numpy.full(len(self._individuals), math.inf)
        numpy.minimum.at(begun, individual, when)
        order, limits = self._order_and_limits()
        rows = numpy.flatnonzero(step < limits[attempt])
        keys = (rows, order[attempt[rows]], step[rows], individual[rows], begun[individual[rows]])
        rows = rows[numpy.lexsort(keys)]
        # The last report of a step counts, for it may be reported twice.
        again = (individual[rows][1:] == individual[rows][:-1]) & (step[rows][1:] == step[rows][:-1])
        rows = rows[numpy.append(~again, True)] if len(rows) else rows
        names = numpy.array([*self._individuals, ""], dtype=object)
        columns = {
            "id": names[individual[rows]],
            "step": step[rows],
            "value": numpy.array(self._value)[rows],
            "time": when[rows],
        }
        for name, (numbers, values) in self._metrics.items():
            columns[name] = _column(len(step), numbers, values)[rows]
        return pandas.DataFrame(columns)

    def _order_and_limits(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Each attempt's place in time, and the step from which later attempts of the individual replace it."""
        import numpy

        order = numpy.empty(len(self._attempts), dtype="int64")
        limits = numpy.full(len(self._attempts), math.inf)
        by_individual: dict[int, float] = {}
        ordered = sorted(self._attempts.values(), key=lambda one: (one.launch, one.began))
        for place, one in reversed(list(enumerate(ordered))):
            limit = by_individual.get(one.individual, math.inf)
            order[one.number], limits[one.number] = place, limit
            by_individual[one.individual] = min(limit, one.first) if one.resumed else -math.inf
        return order, limits


def _column(count: int, rows: array[int], values: list[Metric]) -> NDArray[Any]:
    import numpy

    if all(type(value) is float or type(value) is int for value in values):
        column = numpy.full(count, math.nan)
        column[rows] = values
        return column
    column = numpy.full(count, None, dtype=object)
    for row, value in zip(rows, values):  # one by one, as numpy would take a list for an array
        column[row] = value
    return column
