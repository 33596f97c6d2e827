"""Configurations that a campaign is asked to evaluate, as its key ``points`` and ``hpo enqueue`` name them."""

from __future__ import annotations

from collections.abc import Mapping

from hpo.errors import UsageError
from hpo.individual import COMPLETED
from hpo.prior_results import tables as sources
from hpo.prior_results.cells import ABSENT, Ambiguous, Cells
from hpo.space.space import Params, SearchSpace
from hpo.task.known_point import Allows, wanted

__all__ = ["listed", "read_points", "wanted"]

_LISTED = 6
"""Most names in a sentence."""


def read_points(
    entry: str | Mapping[str, object],
    space: SearchSpace,
    allows: Allows = lambda params: True,
    *,
    label: str = "points",
    number: int | None = None,
    left_out: list[str] | None = None,
) -> list[Params]:
    """Configurations of an entry of the campaign's key ``points``, or of ``hpo enqueue``: the entry itself, or the rows
    of the table that it names.

    ``label`` and ``number`` name the entry in errors; ``left_out`` gets a line about rows that hold no configuration.
    UsageError where the table cannot be read or holds no configuration, or one is not allowed: each is wanted.
    """
    if not isinstance(entry, str):
        return [wanted(label if number is None else f"{label}, number {number}", entry, space, allows)]
    table = sources.read(entry)
    cells = Cells(space.parameters, typed=table.typed)
    found = []
    for row in table.rows:
        where = f"{label}, {table.name}, {row.origin}"
        if given := _configuration(row, table, space, cells, where):
            found.append(wanted(where, given, space, allows))
    empty_rows = len(table.rows) - len(found)
    if empty_rows and not found:
        raise UsageError(
            f"{label}, {table.name}: no row has values of the parameters {listed(list(space.names))}. Name a table "
            "with a column for each."
        )
    if empty_rows and left_out is not None:
        rows = "1 row" if empty_rows == 1 else f"{empty_rows} rows"
        left_out.append(f"{label}, {table.name}: {rows} without a configuration left out")
    return found


def _configuration(
    row: sources.Row, table: sources.Table, space: SearchSpace, cells: Cells, where: str
) -> dict[str, object]:
    """Values of a row; none where a trial that did not complete lacks some."""
    prefix = sources.PARAMS if table.exported else ""
    given: dict[str, object] = {}
    for name in space.order:
        if not space.exists(name, given):
            continue
        cell = row.cells.get(prefix + name, ABSENT)
        if not cells.missing(name, cell):
            try:
                given[name] = cells.value(name, cell)
            except Ambiguous as error:
                raise UsageError(f"{where}: {name} = {error}.") from None
        # A trial may have been killed before all its parameters were suggested.
        elif row.status not in (None, COMPLETED):
            return {}
    return given


def listed(names: list[str]) -> str:
    """The first of the columns ``names``, for a sentence."""
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(name.removeprefix(sources.PARAMS) for name in names[:_LISTED]) + more
