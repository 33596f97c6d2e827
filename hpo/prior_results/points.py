"""Known points: configurations with results from elsewhere, for a search to start from.

A source may have a slightly different space. The points that are entered, changed and left out are counted and reported
in a line; nothing happens silently."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from math import isfinite, isinf
from typing import TYPE_CHECKING, cast

from hpo.errors import UsageError
from hpo.individual import COMPLETED, FINAL, INVALID, PRUNED
from hpo.prior_results import tables as sources
from hpo.prior_results.cells import (
    ABSENT,
    Ambiguous,
    Cells,
    SeparatedNumber,
    empty,
    number,
    refuse_separators,
)
from hpo.prior_results.configurations import listed
from hpo.search.models.pareto import dominates
from hpo.space.space import Params, SearchSpace
from hpo.spelling import suggestion
from hpo.task.known_point import Allows, KnownPoint, single_point
from hpo.task.task import losses_of
from hpo.text import excerpt

BY_HAND = "the campaign's own list"
DROP, REFUSE = "drop", "refuse"

if TYPE_CHECKING:
    from hpo.config.settings import KnownSettings
    from hpo.task.task import Task


@dataclass(kw_only=True)
class KnownPoints:
    """Points of a source; ``str`` gives a line about them."""

    source: str
    """Name of the source."""
    points: list[KnownPoint] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    """Numbers of rows that were left out, by reason."""
    changed: Counter[str] = field(default_factory=Counter)
    """Numbers of points that were changed, by the parameter that was dropped or added."""
    replaces: set[int] = field(default_factory=set)
    """Numbers of recorded points that this source no longer has, or has with another result."""
    entry: str = ""
    """Field of a campaign's entry, the same as in ``hpo.journal.records.Entered``."""
    content: str = ""
    """Field of a campaign's entry, the same as in ``hpo.journal.records.Entered``."""

    def __iter__(self) -> Iterator[KnownPoint]:
        return iter(self.points)

    def __len__(self) -> int:
        return len(self.points)

    @property
    def changes(self) -> bool:
        """Whether there is a point to enter or to remove."""
        return bool(self.points or self.replaces)

    def without(self, keys: Iterable[str], space: SearchSpace) -> KnownPoints:
        """Points with other configurations than those of ``keys``; the others count as left out."""
        taken = set(keys)
        fresh = [one for one in self.points if space.key(one.params) not in taken]
        counts = Counter(self.left_out)
        counts["here already"] += len(self.points) - len(fresh)
        return replace(self, points=fresh, left_out=+counts)

    def __str__(self) -> str:
        failures = sum(1 for one in self.points if one.status != COMPLETED)
        line = f"known points of {self.source}: {len(self.points)} entered"
        if failures:
            line += f", {failures} of them as failed"
        if self.left_out:
            counts = ", ".join(f"{count} {reason}" for reason, count in self.left_out.most_common())
            line += f"; {self.left_out.total()} left out: {counts}"
        for change, count in self.changed.most_common():
            line += f"; {change} in {count}"
        if self.replaces:
            line += f"; in place of {len(self.replaces)} that were on record"
        return line


def of_entry(entry: KnownSettings, task: Task) -> KnownPoints:
    """Points of an entry of the campaign's key ``known``; raises the errors of :func:`known_points`."""
    if entry.params is None:
        return known_points(
            entry.source,
            task.space,
            task.objectives,
            default=task.default,
            allows=task.allows,
            unknown=entry.unknown,
            columns=entry.columns,
            study=entry.study,
        )
    values = dict(entry.objectives)
    if entry.value is not None:
        values = {next(iter(task.objectives)) if len(task.objectives) == 1 else "value": entry.value}
    point = single_point(entry.params, values, task.space, task.objectives, task.allows)
    return KnownPoints(source=BY_HAND, points=[point])


def known_points(
    source: object,
    space: SearchSpace,
    objectives: str | Mapping[str, str] = "minimize",
    *,
    default: Mapping[str, object] | None = None,
    allows: Allows | None = None,
    unknown: str | None = None,
    columns: Mapping[str, str] | None = None,
    study: str | None = None,
) -> KnownPoints:
    """Results from elsewhere as points of a space.

    Iterate over the result for its points; print it for the numbers of points that were entered and left out. Each
    point has ``params`` (dict), ``value``, ``objectives`` (dict, None where it failed) and ``status``.

    Args:
        source (path, Optuna study or list of dict): a table (.csv, .json or .parquet, as ``hpo export`` writes it, or
            with plain columns of parameters and objectives), the directory of a campaign, an Optuna storage (file or
            URL), an Optuna study, or dictionaries.
        space (SearchSpace): space that the points are adapted to.
        objectives (str or dict; default "minimize"): "minimize", "maximize", or directions by name.
        default (dict; default None): configuration with the values of parameters that the source does not have; None:
            points without such a parameter are left out.
        allows (callable; default None): function of the parameters; points for which it is false are left out. None:
            all are allowed.
        unknown (str; default None): "drop" parameters that ``space`` does not have, or "refuse" the source; None:
            drop them, but refuse the source if such a parameter may be a renamed parameter of ``space``.
        columns (dict; default None): the source's column by parameter or objective, where the names differ. Rows with
            an empty cell there use the column with the parameter's own name.
        study (str; default None): name of the study in an Optuna storage with several studies.

    Raises:
        UsageError: the source cannot be read, has the opposite direction of an objective, or lacks an objective.
        CampaignError: a campaign's directory cannot be read.
    """
    if not isinstance(objectives, Mapping):
        objectives = {"value": objectives}
    for way in objectives.values():
        if not isinstance(way, str) or way not in ("minimize", "maximize"):
            raise UsageError(
                f'objectives = {excerpt(way)}: must be "minimize" or "maximize". '
                f"{suggestion(way, ('minimize', 'maximize'))}"
            )
    if unknown is not None and (not isinstance(unknown, str) or unknown not in (DROP, REFUSE)):
        raise UsageError(f'unknown = {excerpt(unknown)}: must be "{DROP}" or "{REFUSE}"')
    _check_keywords(space, default, allows, columns, study)
    table = sources.read(source, study)
    return _Fitting(table, space, objectives, default or {}, allows, dict(columns or {})).all(unknown)


def _check_keywords(space: object, default: object, allows: object, columns: object, study: object) -> None:
    if not isinstance(space, SearchSpace):
        raise UsageError(f"known points: space = {excerpt(space)}: must be a SearchSpace")
    if default is not None and not isinstance(default, Mapping):
        raise UsageError(
            f"known points: default = {excerpt(default)}: must be a configuration, such as {{'lr': 0.1}}"
        )
    if allows is not None and not callable(allows):
        raise UsageError(f"known points: allows = {excerpt(allows)}: must be a function of the parameters")
    if columns is not None and (
        not isinstance(columns, Mapping) or not all(isinstance(one, str) for one in columns.values())
    ):
        raise UsageError(
            f"known points: columns = {excerpt(columns)}: must map names here to names of columns"
        )
    if study is not None and not isinstance(study, str):
        raise UsageError(f"known points: study = {excerpt(study)}: must be the name of a study")


class _Fitting:
    """Conversion of a table's rows to points of a space."""

    def __init__(
        self,
        table: sources.Table,
        space: SearchSpace,
        objectives: Mapping[str, str],
        default: Mapping[str, object],
        allows: Allows | None,
        columns: Mapping[str, str],
    ) -> None:
        self._table, self._space, self._objectives = table, space, objectives
        self._default, self._allows = default, allows
        self._found = KnownPoints(source=table.name)
        self._cells = Cells(space.parameters, typed=table.typed)
        self._changes: list[str] = []
        self._missing: dict[str, Counter[str]] = {}
        """Numbers of rows by column of no parameter, for each parameter, whose cells could be its missing values."""
        for name in columns:
            if name not in space.parameters and name not in objectives:
                valid = [*space.names, *objectives]
                raise UsageError(
                    f"known points of {table.name}: columns names {name!r}, which is neither a parameter nor an "
                    f"objective here. {suggestion(name, valid)}"
                )
        there = set(table.columns) | set(table.directions)
        self._of_parameter = {
            name: self._column(columns.get(name), there, sources.PARAMS, name) for name in space.names
        }
        self._of_objective = {
            name: self._objective(name, place, columns.get(name), there)
            for place, name in enumerate(objectives)
        }
        used = {*self._of_parameter.values(), *self._of_objective.values()}
        # A study in which a parameter was renamed has columns of both names.
        own = {name: self._column(None, there, sources.PARAMS, name) for name in space.names}
        self._own = {name: column for name, column in own.items() if column not in used}
        self._strange = [
            column
            for column in table.columns
            if self._is_strange(column) and column not in used and column not in self._own.values()
        ]
        self._check_directions()

    def _column(self, given: str | None, there: set[str], prefix: str, name: str) -> str:
        if given is not None:
            for column in (given, prefix + given):
                if column in there or not self._table.rows:
                    return column
            raise UsageError(
                f"known points of {self._table.name}: there is no column {excerpt(given)}. "
                f"{suggestion(given, sorted(there))}"
            )
        return prefix + name if self._table.exported else name

    def _objective(self, name: str, place: int, given: str | None, there: set[str]) -> str:
        """Column of an objective; a single objective without a name, there or here, fits any single objective."""
        table, single = self._table, len(self._objectives) == 1
        if given is not None:
            return self._column(given, there, sources.OBJECTIVES, name)
        if table.ordered and len(table.directions) == len(self._objectives):
            return list(table.directions)[place]
        candidates = [sources.OBJECTIVES + name] if table.exported else [name]
        if single:
            candidates += [sources.VALUE, sources.OBJECTIVES + sources.VALUE]
            if name == sources.VALUE and len(table.directions) == 1:
                candidates += table.directions
        for candidate in candidates:
            if candidate in there:
                return candidate
        if not table.rows:
            return candidates[0]
        others = [column for column in table.columns if not column.startswith(sources.PARAMS)]
        if not single and (len(table.directions) == 1 or sources.VALUE in there):
            raise UsageError(
                f"known points of {table.name}: there is one objective there, and {len(self._objectives)} here "
                f"({', '.join(self._objectives)}). Give its configurations as points, which are evaluated first."
            )
        raise UsageError(
            f"known points of {table.name}: there is no column for the objective {name!r}. If it has another name "
            f'there, say so: columns = {{ {name} = "…" }}. {suggestion(name, others)}'
        )

    def _check_directions(self) -> None:
        for name, column in self._of_objective.items():
            way = self._table.directions.get(column)
            if way is not None and way != self._objectives[name]:
                raise UsageError(
                    f"known points of {self._table.name}: {column.removeprefix(sources.OBJECTIVES)} is to "
                    f"{way} there, and {name} is to {self._objectives[name]} here. Leave this source out, or export "
                    "it and turn the sign."
                )

    # --- rows -----------------------------------------------------------------------------------------------

    def all(self, unknown: str | None) -> KnownPoints:
        if self._strange and unknown == REFUSE:
            raise UsageError(
                f"known points of {self._table.name}: {listed(self._strange)} is no parameter here. Leave this source "
                f'out, name its parameter in columns, or write unknown = "{DROP}".'
            )
        seen: dict[str, int] = {}
        for row in self._table.rows:
            point = self._point(row)
            if isinstance(point, str):
                self._found.left_out[point] += 1
                continue
            key = self._space.key(point.params)
            if key in seen:
                self._found.left_out["the same configuration again"] += 1
                if dominates(self._losses(point), self._losses(self._found.points[seen[key]])):
                    self._found.points[seen[key]] = point
                continue
            seen[key] = len(seen)
            self._found.points.append(point)
            self._found.changed.update(self._changes)
            self._found.changed.update(
                f"{column.removeprefix(sources.PARAMS)} dropped, which is no parameter here,"
                for column in self._strange
                if not empty(row.cells.get(column))
            )
        if unknown is None:
            self._refuse_renamed()
        return self._found

    def _refuse_renamed(self) -> None:
        """Raise UsageError if a parameter without values in some rows may have another name in the source."""
        # Its default would otherwise be entered in place of the value that was evaluated.
        likely: dict[str, str] = {}
        for name, columns in self._missing.items():
            fits = {column: count for column, count in columns.items() if column not in likely.values()}
            if fits:
                likely[name] = max(fits, key=lambda column: (fits[column], _similarity(name, column)))
        if not likely:
            return
        there = [column.removeprefix(sources.PARAMS) for column in likely.values()]
        line = ", ".join(
            f"{_key(name)} = {json.dumps(column, ensure_ascii=False)}" for name, column in zip(likely, there)
        )
        raise UsageError(
            f"known points of {self._table.name}: rows without {listed(list(likely))} have {listed(there)}, which is "
            f"no parameter here. Where these are the same, write columns = {{ {line} }}; else write unknown = "
            f'"{DROP}" to enter these rows with the default.'
        )

    def _losses(self, point: KnownPoint) -> tuple[float, ...] | None:
        """Losses of a point; None if it did not complete."""
        return None if point.objectives is None else losses_of(point.objectives, self._objectives)

    def _is_strange(self, column: str) -> bool:
        """Whether a column may be a parameter, by its name."""
        return column.startswith(sources.PARAMS) or not self._table.exported

    def _point(self, row: sources.Row) -> KnownPoint | str:
        """Point of a row, or the reason why it is left out."""
        status = row.status or COMPLETED
        if status == PRUNED:
            return "pruned there"
        if status not in FINAL:
            return "not finished there"
        objectives = {name: number(row.cells.get(column)) for name, column in self._of_objective.items()}
        if status == COMPLETED:
            for name, column in self._of_objective.items():
                with self._located(row, name):
                    refuse_separators(row.cells.get(column))
            for name, value in objectives.items():
                if value is None:
                    cell = row.cells.get(self._of_objective[name])
                    return "without a value" if empty(cell) else f"whose {name} is no number"
            if not all(isfinite(cast(float, value)) for value in objectives.values()):
                if row.status is None and not any(isinf(cast(float, value)) for value in objectives.values()):
                    return "without a value"  # pandas writes an empty cell as NaN
                status = INVALID
        params = self._params(row)
        if isinstance(params, str):
            return params
        if self._allows is not None and not self._allows(params):
            return "refused by a constraint"
        known = cast("dict[str, float]", objectives) if status == COMPLETED else None
        return KnownPoint(params=params, objectives=known, status=status, origin=row.origin)

    def _params(self, row: sources.Row) -> Params | str:
        chosen: Params = {}
        self._changes = changes = []
        for name in self._space.order:
            parameter = self._space.parameters[name]
            cell = row.cells.get(self._of_parameter[name], ABSENT)
            if name in self._own and self._cells.missing(name, cell):
                cell = row.cells.get(self._own[name], ABSENT)
            if not self._space.exists(name, chosen):
                if not empty(cell):
                    changes.append(f"{name} dropped, which does not exist with their other values,")
                continue
            if self._cells.missing(name, cell):
                self._note_missing(name, row)
                if name not in self._default:
                    return f"without {name}, which has no default"
                try:
                    chosen[name] = parameter.canonical(self._default[name])
                except ValueError as rule:
                    raise UsageError(
                        f"known points: default: {name} = {excerpt(self._default[name])}: must be {rule}"
                    ) from None
                changes.append(f"{name} = {chosen[name]!r}, the default, added")
                continue
            try:
                with self._located(row, name):
                    value = self._cells.value(name, cell)
            except Ambiguous as error:
                return f"whose {name} = {error}"
            try:
                chosen[name] = parameter.canonical(value)
            except ValueError:
                return f"whose {name} is not allowed here"
        return {name: chosen[name] for name in self._space.names if name in chosen}

    def _note_missing(self, name: str, row: sources.Row) -> None:
        """Count the columns of no parameter whose cells in ``row`` would be allowed for ``name``."""
        found = self._missing.setdefault(name, Counter())
        for column in self._strange:
            cell = row.cells.get(column)
            if not empty(cell):
                with suppress(ValueError):
                    self._space.parameters[name].canonical(self._cells.value(name, cell))
                    found[column] += 1

    @contextmanager
    def _located(self, row: sources.Row, name: str) -> Iterator[None]:
        """Context that raises UsageError, with the cell's place, for a number with separators."""
        # A whole table is refused, because none of its numbers could be read reliably.
        try:
            yield
        except SeparatedNumber as error:
            raise UsageError(f"known points of {self._table.name}, {row.origin}: {name} = {error}.") from None


def _similarity(name: str, column: str) -> float:
    return SequenceMatcher(None, name, column.removeprefix(sources.PARAMS)).ratio()


def _key(name: str) -> str:
    """``name`` as a key in TOML, quoted if necessary."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)
