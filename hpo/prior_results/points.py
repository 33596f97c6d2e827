"""Known points: configurations whose results are there already, from elsewhere, for a search to start from.

A source may be of a slightly different space. What of it is taken, what is changed and what is left out is counted,
and reported in one line; nothing happens silently."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite, isinf
from typing import TYPE_CHECKING, cast

from hpo.errors import UsageError
from hpo.individual import COMPLETED, FINAL, INVALID, PRUNED
from hpo.prior_results import tables as sources
from hpo.search.models.pareto import dominates
from hpo.space.parameters import Categorical, Float, Int, Parameter
from hpo.space.space import Params, SearchSpace
from hpo.spelling import suggestion
from hpo.task.known_point import Allows, KnownPoint, single_point
from hpo.task.task import losses_of
from hpo.text import excerpt

BY_HAND = "the campaign's own list"
DROP, REFUSE = "drop", "refuse"
_LISTED = 6

if TYPE_CHECKING:
    from hpo.config.settings import KnownSettings
    from hpo.task.task import Task


@dataclass(kw_only=True)
class KnownPoints:
    """What was taken of a source; ``str`` is one line about it. ``left_out``: reasons with counts; ``changed``: what
    was dropped from or added to points, with counts."""

    source: str
    points: list[KnownPoint] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    changed: Counter[str] = field(default_factory=Counter)

    def __iter__(self) -> Iterator[KnownPoint]:
        return iter(self.points)

    def __len__(self) -> int:
        return len(self.points)

    def without(self, keys: Iterable[str], space: SearchSpace) -> KnownPoints:
        """Those whose configurations are none of ``keys``; the others are left out, and counted."""
        taken = set(keys)
        fresh = [one for one in self.points if space.key(one.params) not in taken]
        counts = Counter(self.left_out)
        counts["here already"] += len(self.points) - len(fresh)
        return KnownPoints(source=self.source, points=fresh, left_out=+counts, changed=self.changed)

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
        if any("no parameter" in one for one in self.changed) and any("added" in one for one in self.changed):
            line += '; where these are the same, write columns = { name = "name there" }'
        return line


def of_entry(entry: KnownSettings, task: Task) -> KnownPoints:
    """What an entry of the campaign's key ``known`` stands for; errors as of :func:`known_points`."""
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


def read_points(
    entry: str | Mapping[str, object],
    space: SearchSpace,
    allows: Allows = lambda params: True,
    *,
    label: str = "points",
    number: int | None = None,
) -> list[Params]:
    """The configurations that an entry of the campaign's key ``points``, or ``hpo enqueue``, asks to evaluate: itself,
    or the rows of a table. ``label``, ``number`` (from 1): of the entry, for errors.

    Raises:
        UsageError: the table cannot be read, or a configuration is not allowed; each is there because it is wanted.
    """
    if not isinstance(entry, str):
        return [wanted(label if number is None else f"{label}, number {number}", entry, space, allows)]
    table = sources.read(entry)
    prefix = sources.PARAMS if table.exported else ""
    found = []
    for row in table.rows:
        cells = {name: row.cells.get(prefix + name) for name in space.names}
        given: dict[str, object] = {}
        for name in space.order:
            parameter = space.parameters[name]
            if space.exists(name, given) and not (
                sources.empty(cells[name]) and not _takes_gaps(parameter, cells[name])
            ):
                given[name] = _read(parameter, cells[name])
        found.append(wanted(f"{label}, {entry}, {row.origin}", given, space, allows))
    return found


def wanted(label: str, params: Mapping[str, object], space: SearchSpace, allows: Allows) -> Params:
    """The configuration as ``space`` has it; UsageError, which begins with ``label``, where it is not allowed."""
    try:
        checked = space.validate(params)
    except UsageError as error:
        raise UsageError("\n".join(f"{label}: {line}" for line in str(error).splitlines())) from None
    if not allows(checked):
        raise UsageError(f"{label}: a constraint refuses {checked}. Leave it out.")
    return checked


def known_points(
    source: object,
    space: SearchSpace,
    objectives: str | Mapping[str, str] = "minimize",
    *,
    default: Mapping[str, object] | None = None,
    allows: Allows = lambda params: True,
    unknown: str = DROP,
    columns: Mapping[str, str] | None = None,
    study: str | None = None,
) -> KnownPoints:
    """Results from elsewhere as points of a space; iterate over what it returns, print it for what became of the
    rest.

    Each point has ``params`` (dict), ``value``, ``objectives`` (dict, None where it failed) and ``status``.

    Args:
        source (path, Optuna study or list of dict): a table (.csv, .json or .parquet, as ``hpo export`` writes it, or
            with plain columns of parameters and objectives), the directory of a campaign, an Optuna storage (file or
            URL), an Optuna study, or dictionaries.
        space (SearchSpace): to which the points are adapted.
        objectives (str or dict; default "minimize"): "minimize", "maximize", or directions by name.
        default (dict; default None): gives the value of a parameter that the source does not have; None: points that
            lack one are left out.
        allows (callable; default lambda params: True): function of the parameters; points for which it is false are
            left out.
        unknown (str; default "drop"): "drop" parameters that ``space`` does not have, or "refuse" the source.
        columns (dict; default None): by parameter or objective, the source's column, where the names differ.
        study (str; default None): the study's name in an Optuna storage that holds several.

    Raises:
        UsageError: the source cannot be read, minimises what is maximised here, or lacks an objective.
        CampaignError: it is a campaign's directory that cannot be read.
    """
    if not isinstance(objectives, Mapping):
        objectives = {"value": objectives}
    for way in objectives.values():
        if not isinstance(way, str) or way not in ("minimize", "maximize"):
            raise UsageError(
                f'objectives = {excerpt(way)}: must be "minimize" or "maximize". '
                f"{suggestion(way, ('minimize', 'maximize'))}"
            )
    if not isinstance(unknown, str) or unknown not in (DROP, REFUSE):
        raise UsageError(f'unknown = {excerpt(unknown)}: must be "{DROP}" or "{REFUSE}"')
    _check_keywords(space, default, allows, columns, study)
    table = sources.read(source, study)
    return _Fitting(table, space, objectives, default or {}, allows, dict(columns or {})).all(
        refuse=unknown == REFUSE
    )


def _check_keywords(space: object, default: object, allows: object, columns: object, study: object) -> None:
    if not isinstance(space, SearchSpace):
        raise UsageError(f"known points: space = {excerpt(space)}: must be a SearchSpace")
    if default is not None and not isinstance(default, Mapping):
        raise UsageError(
            f"known points: default = {excerpt(default)}: must be a configuration, such as {{'lr': 0.1}}"
        )
    if not callable(allows):
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
    """Makes a table's rows points of a space."""

    def __init__(
        self,
        table: sources.Table,
        space: SearchSpace,
        objectives: Mapping[str, str],
        default: Mapping[str, object],
        allows: Allows,
        columns: Mapping[str, str],
    ) -> None:
        self._table, self._space, self._objectives = table, space, objectives
        self._default, self._allows = default, allows
        self._found = KnownPoints(source=table.name)
        self._changes: list[str] = []
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
        self._check_directions()

    def _column(self, given: str | None, there: set[str], prefix: str, name: str) -> str:
        if given is not None:
            for column in (given, prefix + given):
                if column in there:
                    return column
            raise UsageError(
                f"known points of {self._table.name}: there is no column {excerpt(given)}. "
                f"{suggestion(given, sorted(there))}"
            )
        return prefix + name if self._table.exported else name

    def _objective(self, name: str, place: int, given: str | None, there: set[str]) -> str:
        """The column of an objective. One that has no name there, or none here, is any only one."""
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

    def all(self, *, refuse: bool) -> KnownPoints:
        used = {*self._of_parameter.values(), *self._of_objective.values()}
        strange = [
            column for column in self._table.columns if self._is_strange(column) and column not in used
        ]
        if strange and refuse:
            raise UsageError(
                f"known points of {self._table.name}: {_listed(strange)} is no parameter here. Leave this source out, "
                f'name its parameter in columns, or write unknown = "{DROP}".'
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
                for column in strange
                if not sources.empty(row.cells.get(column))
            )
        return self._found

    def _losses(self, point: KnownPoint) -> tuple[float, ...] | None:
        """None where it did not complete."""
        return None if point.objectives is None else losses_of(point.objectives, self._objectives)

    def _is_strange(self, column: str) -> bool:
        """Whether a column would be a parameter of this space, and is none."""
        return column.startswith(sources.PARAMS) or not self._table.exported

    def _point(self, row: sources.Row) -> KnownPoint | str:
        """The point, or why it is left out."""
        status = row.status or COMPLETED
        if status == PRUNED:
            return "pruned there"
        if status not in FINAL:
            return "not finished there"
        objectives = {
            name: sources.number(row.cells.get(column)) for name, column in self._of_objective.items()
        }
        if status == COMPLETED:
            if any(value is None for value in objectives.values()):
                return "without a value"
            if not all(isfinite(cast(float, value)) for value in objectives.values()):
                if row.status is None and not any(isinf(cast(float, value)) for value in objectives.values()):
                    return "without a value"  # a gap in a table is NaN too
                status = INVALID
        params = self._params(row)
        if isinstance(params, str):
            return params
        if not self._allows(params):
            return "refused by a constraint"
        known = cast("dict[str, float]", objectives) if status == COMPLETED else None
        return KnownPoint(params=params, objectives=known, status=status, origin=row.origin)

    def _params(self, row: sources.Row) -> Params | str:
        chosen: Params = {}
        self._changes = changes = []
        for name in self._space.order:
            parameter, cell = self._space.parameters[name], row.cells.get(self._of_parameter[name])
            if not self._space.exists(name, chosen):
                if not sources.empty(cell):
                    changes.append(f"{name} dropped, which does not exist with their other values,")
                continue
            if sources.empty(cell) and not _takes_gaps(parameter, cell):
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
                chosen[name] = parameter.canonical(_read(parameter, cell))
            except ValueError:
                return f"with a {name} that is not allowed here"
        return {name: chosen[name] for name in self._space.names if name in chosen}


def _takes_gaps(parameter: Parameter, cell: object) -> bool:
    """Whether an empty cell is one of the parameter's choices: a table writes None as a gap."""
    return isinstance(parameter, Categorical) and any(
        choice is None or (choice == "" and cell == "") for choice in parameter.choices
    )


def _read(parameter: Parameter, cell: object) -> object:
    """``cell``, which tables give as text or as another type of number, as the parameter's type."""
    if isinstance(parameter, Categorical):
        return _choice(parameter, cell)
    value = sources.number(cell)
    if value is None:
        return cell
    if isinstance(parameter, Int):
        if isinstance(cell, int):
            return cell
        return int(value) if isfinite(value) and value == int(value) else value
    return value if isinstance(parameter, Float) else cell


def _choice(parameter: Categorical, cell: object) -> object:
    if isinstance(cell, (list, tuple, dict)) or bool(getattr(cell, "ndim", False)):
        return cell  # which compares with no choice
    if not isinstance(cell, str):
        if sources.empty(cell) and None in parameter.choices:
            return None
        for choice in parameter.choices:
            if isinstance(choice, bool) is isinstance(cell, bool) and choice == cell:
                return choice
        return str(cell) if str(cell) in parameter.choices else cell
    if cell in parameter.choices:
        return cell
    if cell == "" and None in parameter.choices:
        return None
    for choice in parameter.choices:
        if not isinstance(choice, str) and str(choice).casefold() == cell.casefold():
            return choice
    value = sources.number(cell)
    for choice in parameter.choices:
        if isinstance(choice, (int, float)) and not isinstance(choice, bool) and choice == value:
            return choice
    return cell


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(name.removeprefix(sources.PARAMS) for name in names[:_LISTED]) + more
