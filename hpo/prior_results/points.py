"""Known points: configurations with results from elsewhere, for a search to start from.

A source may have a slightly different space. The points that are entered, changed and left out are counted and reported
in a line; nothing happens silently."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from math import isfinite, isinf, isnan
from typing import TYPE_CHECKING

from hpo.errors import UsageError
from hpo.individual import COMPLETED, FINAL, INVALID, PRUNED
from hpo.prior_results import tables as sources
from hpo.prior_results.cells import ABSENT, Ambiguous, Cells, empty, number
from hpo.prior_results.configurations import listed
from hpo.search.models.pareto import dominates
from hpo.space.parameters import Categorical
from hpo.space.space import Params, SearchSpace
from hpo.spelling import suggestion
from hpo.task.known_point import Allows, KnownPoint, single_point
from hpo.task.task import losses_of
from hpo.text import excerpt, toml_key

BY_HAND = "the campaign's own list"
DROP, REFUSE = "drop", "refuse"

if TYPE_CHECKING:
    from hpo.config.settings import KnownSettings
    from hpo.task.task import Task


@dataclass(kw_only=True)
class KnownPoints:
    """Points of a source; ``str`` gives a line about them."""

    source: str
    points: list[KnownPoint] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    """Numbers of rows that were left out, by reason."""
    changed: Counter[str] = field(default_factory=Counter)
    """Numbers of points that were changed, by the parameter that was dropped or added."""
    replaces: set[int] = field(default_factory=set)
    """Numbers of recorded points that this source no longer has, or has with another result; ``entry`` and ``content``:
    as in ``hpo.journal.records.Entered``."""
    entry: str = ""
    content: str = ""
    other_task: bool = False
    """Whether they are results of another task."""

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
        kind = "results of another task in" if self.other_task else "known points of"
        line = f"{kind} {self.source}: {len(self.points)} entered"
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
        other_task = entry.relation == "task"
        limited = [] if other_task else [name for name in task.limits.names if name not in task.objectives]
        found = known_points(
            entry.source,
            task.space,
            task.objectives,
            default=task.default,
            allows=task.allows,
            unknown=entry.unknown,
            columns=entry.columns,
            study=entry.study,
            metrics=limited,
        )
        return replace(found, other_task=other_task)
    values = dict(entry.objectives)
    if entry.value is not None:
        values = {next(iter(task.objectives)) if len(task.objectives) == 1 else "value": entry.value}
    metrics = {
        name: values.pop(name) for name in task.limits.names if name in values.keys() - task.objectives
    }
    point = single_point(entry.params, values, task.space, task.objectives, task.allows)
    point = replace(point, metrics=metrics)
    if point.status == COMPLETED and (missing := task.limits.missing(point.objectives, point.metrics)):
        raise UsageError(
            f"known point {point.params}: the task limits {listed(missing)}. Give its number among the objectives."
        )
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
    metrics: Sequence[str] = (),
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
        metrics (list of str; default ()): metrics that completed points must have, such as a task limits; points have
            them in ``metrics`` (dict).

    Raises:
        UsageError: the source cannot be read, has the opposite direction of an objective, or lacks an objective.
        CampaignError: a campaign's directory cannot be read.
    """
    if not isinstance(objectives, Mapping):
        objectives = {"value": objectives}

    def check(name: str, given: object, fits: bool, rule: str) -> None:
        if not fits:
            raise UsageError(f"known points: {name} = {excerpt(given)}: must {rule}. Correct it.")

    for way in objectives.values():
        known = isinstance(way, str) and way in ("minimize", "maximize")
        check("objectives", way, known, 'be "minimize" or "maximize"')
    check("space", space, isinstance(space, SearchSpace), "be a SearchSpace")
    check("default", default, _is(default, Mapping), "be a configuration, such as {'lr': 0.1}")
    check("allows", allows, allows is None or callable(allows), "be a function of the parameters")
    check("unknown", unknown, _is(unknown, str) and unknown in (None, DROP, REFUSE), 'be "drop" or "refuse"')
    plain = _is(columns, Mapping) and all(isinstance(one, str) for one in (columns or {}).values())
    check("columns", columns, plain, "map names here to names of columns")
    check("study", study, _is(study, str), "be the name of a study")
    table = sources.read(source, study)
    return _Fitting(table, space, objectives, default or {}, allows, columns or {}, metrics).all(unknown)


def _is(given: object, kind: type) -> bool:
    return given is None or isinstance(given, kind)


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
        metrics: Sequence[str],
    ) -> None:
        self._table, self._space, self._objectives = table, space, objectives
        self._default, self._allows, self._metrics = default, allows, metrics
        self._where = f"known points of {table.name}"
        self._found = KnownPoints(source=table.name)
        self._cells = Cells(space.parameters, typed=table.typed)
        self._changes: list[str] = []
        self._missing: dict[str, Counter[str]] = {}
        """Numbers of rows by column of no parameter, for each parameter, whose cells could be its missing values."""
        for name in columns:
            if name not in space.parameters and name not in objectives:
                raise UsageError(
                    f"{self._where}: columns names {name!r}, which is neither a parameter nor an objective here. "
                    f"{suggestion(name, [*space.names, *objectives])}"
                )
        prefix = sources.PARAMS if table.exported else ""
        existing = {*table.columns, *table.directions}
        self._of_parameter = {name: prefix + name for name in space.names}
        # A study in which a parameter was renamed has columns of both names.
        own = dict(self._of_parameter)
        self._of_objective: dict[str, str] = {}
        for name, column in columns.items():
            given = self._given(
                column, sources.OBJECTIVES if name in objectives else sources.PARAMS, existing
            )
            (self._of_objective if name in objectives else self._of_parameter)[name] = given
        for place, name in enumerate(objectives):
            if name not in self._of_objective:
                self._of_objective[name] = self._objective(name, place, existing)
            self._check_direction(name)
        used = {*self._of_parameter.values(), *self._of_objective.values(), *metrics}
        self._own = {name: column for name, column in own.items() if column not in used}
        self._strange = [
            column
            for column in table.columns
            if column.startswith(prefix) and column not in used and column not in self._own.values()
        ]

    def _given(self, column: str, prefix: str, existing: set[str]) -> str:
        """Column that the user named, with or without its prefix in exports."""
        for name in (column, prefix + column):
            if name in existing or not self._table.rows:
                return name
        raise UsageError(
            f"{self._where}: there is no column {excerpt(column)}. {suggestion(column, sorted(existing))}"
        )

    def _objective(self, name: str, place: int, existing: set[str]) -> str:
        """Column of an objective; a single objective without a name, there or here, fits any single objective."""
        table, single = self._table, len(self._objectives) == 1
        if table.ordered and len(table.directions) == len(self._objectives):
            return list(table.directions)[place]
        candidates = [sources.OBJECTIVES + name] if table.exported else [name]
        if single:
            candidates += [sources.VALUE, sources.OBJECTIVES + sources.VALUE]
            if name == sources.VALUE and len(table.directions) == 1:
                candidates += table.directions
        for candidate in candidates:
            if candidate in existing or not table.rows:
                return candidate
        if not single and (len(table.directions) == 1 or sources.VALUE in existing):
            raise UsageError(
                f"{self._where}: there is one objective there, and {len(self._objectives)} here "
                f"({', '.join(self._objectives)}). Give its configurations as points, which are evaluated first."
            )
        others = [column for column in table.columns if not column.startswith(sources.PARAMS)]
        raise UsageError(
            f"{self._where}: there is no column for the objective {name!r}. If it has another name there, say so: "
            f'columns = {{ {name} = "…" }}. {suggestion(name, others)}'
        )

    def _check_direction(self, name: str) -> None:
        column, here = self._of_objective[name], self._objectives[name]
        way = self._table.directions.get(column, here)
        if way != here:
            raise UsageError(
                f"{self._where}: {column.removeprefix(sources.OBJECTIVES)} is to {way} there, and {name} is to {here} "
                "here. Leave this source out, or export it and turn the sign."
            )

    def all(self, unknown: str | None) -> KnownPoints:
        if self._strange and unknown == REFUSE:
            raise UsageError(
                f"{self._where}: {listed(self._strange)} is no parameter here. Leave this source out, name its "
                f'parameter in columns, or write unknown = "{DROP}".'
            )
        seen: dict[str, int] = {}
        for row in self._table.rows:
            point = self._point(row)
            if isinstance(point, str):
                self._found.left_out[point] += 1
                continue
            key = self._space.key(point.params)
            if key in seen:
                # The better of two results of a configuration is kept: a search looks for the best that is possible.
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
                # The column that fits most rows, and of equals the most similar name.
                ranked = [
                    (count, SequenceMatcher(None, name, column.removeprefix(sources.PARAMS)).ratio(), column)
                    for column, count in fits.items()
                ]
                likely[name] = max(ranked)[2]
        if not likely:
            return
        there = [column.removeprefix(sources.PARAMS) for column in likely.values()]
        line = ", ".join(
            f"{toml_key(name)} = {json.dumps(column, ensure_ascii=False)}"
            for name, column in zip(likely, there)
        )
        raise UsageError(
            f"{self._where}: rows without {listed(list(likely))} have {listed(there)}, which is no parameter here. "
            f'Where these are the same, write columns = {{ {line} }}; else write unknown = "{DROP}" to enter these '
            "rows with the default."
        )

    def _losses(self, point: KnownPoint) -> tuple[float, ...] | None:
        return None if point.objectives is None else losses_of(point.objectives, self._objectives)

    def _point(self, row: sources.Row) -> KnownPoint | str:
        """Point of a row, or the reason why it is left out."""
        status = row.status or COMPLETED
        if status == PRUNED:
            return "pruned there"
        if status not in FINAL:
            return "not finished there"
        known: dict[str, float] = {}
        for name, column in self._of_objective.items() if status == COMPLETED else ():
            cell = row.cells.get(column)
            value = number(cell)
            if value is None:
                return "without a value" if empty(cell) else f"whose {name} is no number with a decimal point"
            known[name] = value
        if not all(map(isfinite, known.values())):
            if row.status is None and not any(map(isinf, known.values())):
                return "without a value"  # pandas writes an empty cell as NaN
            status = INVALID
        params = self._params(row)
        if isinstance(params, str):
            return params
        if self._allows is not None and not self._allows(params):
            return "refused by a constraint"
        objectives = known if status == COMPLETED else None
        metrics: dict[str, float] = {}
        for name in self._metrics if status == COMPLETED else ():
            cell = row.cells.get((sources.METRICS if self._table.exported else "") + name)
            if (value := number(cell)) is None or isnan(value):
                return f"without {name}, which is limited here"
            metrics[name] = value
        return KnownPoint(
            params=params, objectives=objectives, status=status, metrics=metrics, origin=row.origin
        )

    def _params(self, row: sources.Row) -> Params | str:
        chosen: Params = {}
        self._changes = changes = []
        for name in self._space.order:
            parameter = self._space.parameters[name]
            cell = row.cells.get(self._of_parameter[name], ABSENT)
            # Trials from before a parameter was renamed have their value in the other column.
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
                chosen[name] = parameter.canonical(self._cells.value(name, cell))
            except Ambiguous as error:
                return f"whose {name} = {error}"
            except ValueError:
                # Spreadsheets of many languages write 0,5 and 1.000,5.
                text = (
                    isinstance(cell, str) and not isinstance(parameter, Categorical) and number(cell) is None
                )
                return f"whose {name} is {'no number with a decimal point' if text else 'not allowed here'}"
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
