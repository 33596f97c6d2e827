"""Results of a campaign for scripts and notebooks, and their export as a table."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import structs

from hpo.errors import CampaignError, UsageError
from hpo.individual import COMPLETED, STATUSES, Individual, Scalar
from hpo.journal.directory import read_identity
from hpo.journal.durable import write_atomically
from hpo.journal.records import storable
from hpo.results.analysis.pareto import Hypervolume, best, front, hypervolume, knee, repeated
from hpo.results.analysis.repeated import Repeated
from hpo.results.launch import Launch
from hpo.results.overview import folded, with_running
from hpo.results.record import CampaignRecord, load
from hpo.results.running import Tails
from hpo.space.choices import as_text
from hpo.space.look_alikes import LookAlikes
from hpo.space.space import SearchSpace, described_space
from hpo.task.limits import without_best
from hpo.text import excerpt

if TYPE_CHECKING:
    import pandas

    from hpo.results.analysis.importance import Importance
    from hpo.views.figures.plots import Plots

__all__ = [
    "CampaignRecord",
    "Launch",
    "Result",
    "best",
    "dataframe",
    "export",
    "front",
    "load",
    "status",
]

_NEW = object()
_SUFFIXES = (".csv", ".parquet", ".json")


def schedule(record: CampaignRecord, identity: str) -> list[Individual]:
    """The individual behind those from whose checkpoints it continued, first ancestor first; UsageError if there is no
    such individual."""
    by_id = {one.id: one for one in (*record.known, *record.individuals)}
    if identity not in by_id:
        raise UsageError(
            f"{identity}: there is no such individual in {record.directory}. Name one of its ids."
        )
    line = [by_id[identity]]
    while line[-1].metrics.get("parent_checkpoint") != "gone":
        # An edited journal may lead in a circle, and a removed journal ends the line.
        parent = by_id.pop(line[-1].inherits, None)
        if parent is None or parent is line[0]:
            break
        line.append(parent)
    return line[::-1]


def changed(line: Sequence[Individual]) -> list[dict[str, Scalar]]:
    """Parameters of each individual of a schedule that differ from the previous; all of the first."""
    before: dict[str, Scalar] = {}
    found = []
    for one in line:
        found.append({name: value for name, value in one.params.items() if before.get(name, _NEW) != value})
        before = one.params
    return found


def status(record: CampaignRecord) -> dict[str, object]:
    """The object that ``hpo status --json`` prints (see hpo/views/README.md)."""
    return with_running(folded(record), Tails(record.directory)).table()


def table_rows(record: CampaignRecord) -> list[Individual]:
    """Individuals of the exported table: known points, then evaluations. With several objectives, completed individuals
    get the metric "front" (whether no other dominates them), unless the task has a metric of that name."""
    rows = [*record.known, *record.individuals]
    if len(record.objectives) < 2 or any("front" in one.metrics for one in rows):
        return rows
    first = {one.id for one in front(record)}
    for place, one in enumerate(rows):
        if one.status == COMPLETED:
            outcome = structs.replace(one.outcome, metrics={**one.metrics, "front": one.id in first})
            rows[place] = structs.replace(one, outcome=outcome)
    return rows


def _columns(
    individuals: Sequence[Individual], objectives: Sequence[str], *, limited: bool = False
) -> dict[str, list[object]]:
    columns: dict[str, list[object]] = {
        name: [getattr(one, name) for one in individuals]
        for name in ("id", "island", "worker", "sequence", "status")
    }
    if len(objectives) > 1:
        for name in objectives:
            columns[f"objectives.{name}"] = [(one.objectives or {}).get(name) for one in individuals]
    else:
        columns["value"] = [one.value for one in individuals]
    for name in ("started", "finished", "seconds", "operator"):
        columns[name] = [getattr(one, name) for one in individuals]
    columns["parents"] = [" ".join(one.parents) for one in individuals]
    moves = [[f"{source}>{target}" for source, target in one.migrations] for one in individuals]
    columns["migrations"] = [" ".join(own) for own in moves]
    columns["retries"] = [one.retries for one in individuals]
    columns["error"] = [one.error for one in individuals]
    if limited:
        columns["breaks"] = [", ".join(one.breaks) for one in individuals]
    for name in dict.fromkeys(name for one in individuals for name in one.params):
        columns[f"params.{name}"] = [one.params.get(name) for one in individuals]
    for name in dict.fromkeys(name for one in individuals for name in one.metrics):
        columns[f"metrics.{name}"] = [one.metrics.get(name) for one in individuals]
    return columns


def dataframe(individuals: Sequence[Individual], objectives: Sequence[str] | None = None) -> pandas.DataFrame:
    """The exported columns with a row for each individual.

    Integers and truth values with gaps (parameters that not every individual has) have pandas' nullable types.
    ``objectives``: names of the objectives (default: those that individuals have).
    """
    if objectives is None:
        objectives = list(dict.fromkeys(name for one in individuals for name in one.objectives or {}))
    limited = any(one.breaks for one in individuals)
    return _table(_columns(individuals, objectives, limited=limited))


def _table(columns: Mapping[str, Sequence[object]]) -> pandas.DataFrame:
    import pandas

    return pandas.DataFrame(
        {name: pandas.Series(values, dtype=_dtype(values)) for name, values in columns.items()}
    )


def _dtype(values: Sequence[object]) -> str | None:
    kinds = {type(value) for value in values}
    gaps = type(None) in kinds
    kinds.discard(type(None))
    if kinds == {bool}:
        return "boolean" if gaps else "bool"
    if kinds == {int} and all(-(2**63) <= value < 2**63 for value in values if isinstance(value, int)):
        return "Int64" if gaps else "int64"
    if kinds and kinds <= {int, float}:
        return "float64"
    # Versions of pandas differ in their type of text.
    return None if kinds == {str} else "object"


def export(directory: str | os.PathLike[str], path: str | os.PathLike[str]) -> int:
    """Write the campaign's table to ``path`` as its suffix says (.csv, .parquet, .json); returns its rows.

    JSON is a list of objects, with null where there is no value, and the words "nan", "inf", "-inf" for numbers that
    JSON does not have. An existing file is replaced as a whole.

    Raises:
        UsageError: another suffix.
        CampaignError: there is no campaign in ``directory``, ``path`` cannot be written, or pyarrow is missing.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in _SUFFIXES:
        raise UsageError(
            f"{path}: the suffix {suffix!r} is none that hpo can write. Name a file that ends in "
            f"{', '.join(_SUFFIXES[:-1])} or {_SUFFIXES[-1]}; or of an Optuna study NAME.journal or sqlite:///FILE."
        )
    record = load(directory)
    objectives = list(record.objectives)
    rows = table_rows(record)
    columns = _columns(rows, objectives, limited=bool(record.limits))
    if suffix == ".json":
        data = _json(columns)
    else:
        table = _table(_with_distinct_choices(columns, rows, record))
        data = _csv(table) if suffix == ".csv" else _parquet(table)
    try:
        write_atomically(path, data)
    except OSError as error:
        raise CampaignError(
            f"{path} cannot be written ({error.strerror or error}). Name a file in a directory that exists "
            "and that you may write."
        ) from error
    return len(rows)


def _with_distinct_choices(
    columns: dict[str, list[object]], rows: Sequence[Individual], record: CampaignRecord
) -> dict[str, list[object]]:
    """Columns whose choices stay distinct in a table without types (see ``hpo.space.look_alikes``)."""
    try:
        parameters = described_space(record.identity.get("space")).parameters
    except CampaignError:  # a space of a later version does not keep its evaluations from being exported
        return columns
    for name, parameter in parameters.items():
        alike, column = LookAlikes(parameter), f"params.{name}"
        if alike and column in columns:
            columns[column] = [
                alike.cells.get(one.params[name], one.params[name]) if name in one.params else None
                for one in rows
            ]
    return columns


def _json(columns: Mapping[str, Sequence[object]]) -> bytes:
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return msgspec.json.format(msgspec.json.encode(storable(rows)), indent=2) + b"\n"


def _csv(table: pandas.DataFrame) -> bytes:
    for name in table.columns:
        values = list(table[name])
        if any(isinstance(value, (list, tuple)) for value in values):
            table[name] = [_list_as_text(value) for value in values]
    if sys.version_info < (3, 11):  # whose csv cannot write the character NUL
        table = table.rename(columns=_nul_as_text)
        for name in table.columns:
            if table[name].dtype == object:
                table[name] = table[name].map(_nul_as_text)
    columns = [name for name in table.columns if table[name].dtype.kind == "O"]
    texts = (*table.columns, *(value for name in columns for value in table[name]))
    # Before Python 3.13, csv quotes a "\r" only if the line's end has one.
    end = "\r\n" if any(isinstance(text, str) and "\r" in text for text in texts) else "\n"
    text: str = table.to_csv(index=False, lineterminator=end)
    return text.encode()


def _nul_as_text(value: Any) -> Any:
    return value.replace("\0", "\\0") if isinstance(value, str) else value


def _list_as_text(value: object) -> object:
    if isinstance(value, tuple):
        return as_text(value)
    if not isinstance(value, list):
        return value
    return msgspec.json.encode(storable(value)).decode()


def _parquet(table: pandas.DataFrame) -> bytes:
    # A parquet column has one type: a Categorical of "auto" and 3 becomes text.
    for name in table.columns:
        values = table[name]
        if values.dtype != object:
            continue
        kinds = {type(value) for value in values if value is not None}
        if kinds == {list}:
            number = int if all(type(one) is int for value in values for one in value or ()) else float
            table[name] = [None if value is None else list(map(number, value)) for value in values]
        elif len(kinds) > 1 or kinds == {tuple}:
            table[name] = [None if value is None else str(_list_as_text(value)) for value in values]
    try:
        data: bytes = table.to_parquet(index=False)
    except ImportError as error:
        raise CampaignError(
            "parquet needs pyarrow, which is not installed. Run `bash jobs/setup.sh parquet`, "
            "or export to .csv or .json."
        ) from error
    return data


class Result:
    """Results of a campaign, which may still run. The directory is read when first needed, and then kept.

    Args:
        directory (path): directory of the campaign.
        reason (str; default None): reason why ``run`` returned; None: the reason in the journal.
        space (SearchSpace; default None): the task's space, which gives ``params`` their lists and members of
            enumerations back. None: they are tuples and names. ``run`` gives it.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        reason: str | None = None,
        space: SearchSpace | None = None,
    ) -> None:
        if not isinstance(directory, (str, os.PathLike)):
            raise UsageError(
                f"Result: directory = {excerpt(directory)}: must be the path of a campaign's directory"
            )
        self.directory = Path(directory)
        self._reason = reason
        self._space = space if space is not None and space.has_originals else None

    @cached_property
    def record(self) -> CampaignRecord:
        """Contents of the journals: launches, individuals, known points."""
        return load(self.directory)

    @property
    def reason(self) -> str:
        """Reason of the campaign's end, in a few words; empty if it has not ended, or was killed."""
        if self._reason is not None:
            return self._reason
        return self.record.ended[0] if self.record.ended else ""

    @property
    def individuals(self) -> list[Individual]:
        """All individuals, in the order in which they started, with the columns of the export as attributes: ``id``,
        ``params``, ``status``, ``value``, ``objectives``, ``metrics``, ``error`` and so on."""
        return self._as_given(self.record.individuals)

    def _as_given(self, individuals: list[Individual]) -> list[Individual]:
        if self._space is None:
            return individuals
        return [
            structs.replace(
                one,
                configuration=structs.replace(one.configuration, params=self._space.as_given(one.params)),
            )
            for one in individuals
        ]

    @property
    def best(self) -> Individual:
        """The best completed individual; with several objectives, the member of the front that is best in the first.

        With ``reevaluate``, the best evaluation of the configuration with the best estimated mean (see ``repeated``).

        Raises:
            CampaignError: no individual has completed, or none keeps the task's limits.
        """
        found = best(self.record, 1)
        completed = sum(one.status == COMPLETED for one in self.record.individuals)
        for remark in () if found else without_best(self.record.limits, completed):
            raise CampaignError(f"{self.directory}: {remark}.")
        if not found:
            raise CampaignError(
                f"{self.directory}: no evaluation has completed, so there is no best one ({self._counts()}). "
                "`hpo export` writes the error of each."
            )
        return self._as_given(found)[0]

    def schedule(self, id: str | None = None) -> list[Individual]:
        """Intervals of training that led to an individual, first interval first, with kind "pbt"; each continued from
        the previous checkpoint. With other kinds the individual alone.

        Args:
            id (str; default None): id of the individual; None: that of ``best``.

        Raises:
            UsageError: there is no such individual.
            CampaignError: ``id`` is None, and no individual has completed.
        """
        return self._as_given(schedule(self.record, self.best.id if id is None else id))

    @property
    def repeated(self) -> list[Repeated]:
        """Evaluations of each configuration, their mean and its standard error, best first; empty without
        ``reevaluate``."""
        return repeated(self.record)

    def _counts(self) -> str:
        statuses = [one.status for one in self.record.individuals]
        counts = [f"{statuses.count(name)} {name}" for name in STATUSES if name in statuses]
        return ", ".join(counts) or "none has started"

    @property
    def front(self) -> list[Individual]:
        """The Pareto front: completed individuals that no other dominates. With a single objective, those of the best
        value."""
        return self._as_given(front(self.record))

    @property
    def knee(self) -> Individual | None:
        """Member of the front closest to the best value of each objective; None for an empty front."""
        return knee(self.front, self.record.objectives)

    def hypervolume(self, reference: Mapping[str, float] | None = None) -> Hypervolume:
        """Volume that the front dominates, over the campaign's time, with ``last``, ``reference`` and ``dataframe()``.

        Args:
            reference (dict; default None): value by objective beyond which individuals do not count; None: the
                campaign's ``reference``, or else the worst value of each objective.

        Raises:
            UsageError: there is a single objective.
        """
        return hypervolume(self.record, reference)

    def importance(self, objective: str | None = None, best: float = 1.0) -> Importance:
        """Importance of each parameter (fANOVA): an object with ``dataframe()``, printed as by ``hpo best``.

        Args:
            objective (str; default None): name of the objective; None: the first.
            best (float, above 0, at most 1; default 1.0): share of the best results among which differences count, such
                as 0.25; all worse results count as equally bad.

        Raises:
            UsageError: there is no such objective, or ``best`` is no share.
            CampaignError: too few evaluations have completed, or all have the same result.
        """
        from hpo.results.analysis.importance import importance

        return importance(self.record, objective, best)

    def dataframe(self) -> pandas.DataFrame:
        """Table of ``hpo export`` as a pandas DataFrame."""
        limited = bool(self.record.limits)
        return _table(_columns(table_rows(self.record), list(self.record.objectives), limited=limited))

    def curves(self) -> pandas.DataFrame:
        """Reports of trials, read again at each call: a pandas DataFrame with one row per individual and step, and the
        columns ``id``, ``step``, ``value``, ``time`` (Unix seconds) and each metric.

        Raises:
            CampaignError: there is no campaign in the directory, or the curves cannot be read.
        """
        from hpo.results import curves

        read_identity(self.directory)
        return curves.load(self.directory)

    @property
    def plot(self) -> Plots:
        """Figures of plotly: ``plot.history()``, ``.hours()``, ``.curves()``, ``.timeline()``, ``.importance()``,
        ``.parallel()``, ``.slices()``, ``.ablation()``, ``.failures()``, ``.islands()``, ``.family()``, ``.budget()``,
        ``.noise()``, ``.front()`` and ``.hypervolume()``. They raise UsageError with the reason if the campaign lacks
        the data."""
        from hpo.views.figures.plots import Plots

        return Plots(self.record)

    @property
    def status(self) -> dict[str, object]:
        """The object that ``hpo status --json`` prints."""
        return status(self.record)

    def __repr__(self) -> str:
        return f"Result({str(self.directory)!r})"

    def _repr_html_(self) -> str:
        """HTML for notebooks: the campaign in words, and its best as a table."""
        from hpo.views.report.summary import as_html

        return as_html(self.record)
