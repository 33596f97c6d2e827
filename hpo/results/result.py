"""From journals to tables: what a campaign has found so far, and whether it runs, has ended or was killed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import structs

from hpo.errors import CampaignError, UsageError
from hpo.individual import COMPLETED, STATUSES, Individual, Metric, Scalar
from hpo.journal.directory import read_identity
from hpo.journal.durable import write_atomically
from hpo.journal.records import storable
from hpo.results.analysis.pareto import Hypervolume, best, front, hypervolume, knee, repeated
from hpo.results.analysis.repeated import Repeated
from hpo.results.overview import folded, with_running
from hpo.results.record import CampaignRecord, Launch, load
from hpo.results.running import Tails
from hpo.space.look_alikes import LookAlikes
from hpo.space.space import described_space
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
    """The individual after those from whose checkpoints it went on, the first one first; UsageError where there is no
    such individual."""
    by_id = {one.id: one for one in (*record.known, *record.individuals)}
    if identity not in by_id:
        raise UsageError(
            f"{identity}: there is no such individual in {record.directory}. Name one of its ids."
        )
    line = [by_id[identity]]
    while line[-1].metrics.get("parent_checkpoint") != "gone":
        # An edited journal may lead in a circle; where a journal was removed the line ends.
        parent = by_id.pop(line[-1].inherits, None)
        if parent is None or parent is line[0]:
            break
        line.append(parent)
    return line[::-1]


def changed(line: Sequence[Individual]) -> list[dict[str, Scalar]]:
    """For each individual of a schedule the parameters that are not as before; of the first one all."""
    before: dict[str, Scalar] = {}
    found = []
    for one in line:
        found.append({name: value for name, value in one.params.items() if before.get(name, _NEW) != value})
        before = one.params
    return found


def status(record: CampaignRecord) -> dict[str, object]:
    """What ``hpo status --json`` prints.

    ``evaluations`` counts the individuals by status, those that are running apart (``running``). The budget's
    ``deadline`` is in seconds from the launch. With several objectives, ``best`` is the individual of the
    front that is best in the first one, and its ``value`` holds all of them by name. ``left`` are the workers
    that take no more part in the launch, each with the reason. ``state``: see ``hpo.results.overview.Overview``.
    """
    return with_running(folded(record), Tails(record.directory)).table()


def table_rows(record: CampaignRecord) -> list[Individual]:
    """All that a table of the campaign has a row for: known points, then its evaluations. With several objectives the
    completed ones have a metric "front", whether no other dominates them, unless the task has one of that name."""
    rows = [*record.known, *record.individuals]
    if len(record.objectives) < 2 or any("front" in one.metrics for one in rows):
        return rows
    first = {one.id for one in front(record)}
    return [_with_metric(one, "front", one.id in first) if one.status == COMPLETED else one for one in rows]


def _with_metric(one: Individual, name: str, value: Metric) -> Individual:
    outcome = structs.replace(one.outcome, metrics={**one.metrics, name: value})
    return structs.replace(one, outcome=outcome)


def _columns(individuals: Sequence[Individual], objectives: Sequence[str]) -> dict[str, list[object]]:
    """The exported table by column; None where an individual has no such value.

    ``parents`` are ids separated by spaces, ``migrations`` moves like ``0>1`` (from island 0 to island 1).
    """
    columns: dict[str, list[object]] = {
        "id": [one.id for one in individuals],
        "island": [one.island for one in individuals],
        "worker": [one.worker for one in individuals],
        "sequence": [one.sequence for one in individuals],
        "status": [one.status for one in individuals],
    }
    if len(objectives) > 1:
        for name in objectives:
            columns[f"objectives.{name}"] = [(one.objectives or {}).get(name) for one in individuals]
    else:
        columns["value"] = [one.value for one in individuals]
    columns |= {
        "started": [one.started for one in individuals],
        "finished": [one.finished for one in individuals],
        "seconds": [one.seconds for one in individuals],
        "operator": [one.operator for one in individuals],
        "parents": [" ".join(one.parents) for one in individuals],
        "migrations": [
            " ".join(f"{source}>{target}" for source, target in one.migrations) for one in individuals
        ],
        "retries": [one.retries for one in individuals],
        "error": [one.error for one in individuals],
    }
    for name in dict.fromkeys(name for one in individuals for name in one.params):
        columns[f"params.{name}"] = [one.params.get(name) for one in individuals]
    for name in dict.fromkeys(name for one in individuals for name in one.metrics):
        columns[f"metrics.{name}"] = [one.metrics.get(name) for one in individuals]
    return columns


def _objective_names(individuals: Iterable[Individual]) -> list[str]:
    return list(dict.fromkeys(name for one in individuals for name in one.objectives or {}))


def dataframe(individuals: Sequence[Individual], objectives: Sequence[str] | None = None) -> pandas.DataFrame:
    """The exported columns, one row an individual; ``objectives`` names all there can be (those seen by
    default).

    Integers and truth values with gaps (parameters that not every individual has) stay what they are, in
    pandas' nullable types.
    """
    return _table(_columns(individuals, _objective_names(individuals) if objectives is None else objectives))


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
    # One kind of text: left to pandas, whose versions differ here.
    return None if kinds == {str} else "object"


def export(directory: str | os.PathLike[str], path: str | os.PathLike[str]) -> int:
    """Write the campaign's table to ``path`` as its suffix says (.csv, .parquet, .json); returns its rows.

    JSON is a list of objects, one a row, null where there is no value; numbers that JSON does not have are
    the words "nan", "inf", "-inf". A file that exists is replaced, all at once.

    Raises:
        UsageError: another suffix.
        CampaignError: there is no campaign in ``directory``, ``path`` cannot be written, or pyarrow is
            missing.
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
    columns = _columns(rows, objectives)
    if suffix == ".json":
        data = _json(columns)
    else:
        table = _table(_told_apart(columns, rows, record))
        data = _csv(table) if suffix == ".csv" else _parquet(table)
    try:
        write_atomically(path, data)
    except OSError as error:
        raise CampaignError(
            f"{path} cannot be written ({error.strerror or error}). Name a file in a directory that exists "
            "and that you may write."
        ) from error
    return len(rows)


def _told_apart(
    columns: dict[str, list[object]], rows: Sequence[Individual], record: CampaignRecord
) -> dict[str, list[object]]:
    """The columns with cells from which a table without types has each choice (see ``hpo.space.look_alikes``)."""
    try:
        parameters = described_space(record.identity.get("space")).parameters
    except CampaignError:  # a space of a later version: its evaluations can be exported all the same
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
        if any(isinstance(value, list) for value in values):
            table[name] = [_list_as_text(value) for value in values]
    if sys.version_info < (3, 11):
        for name in table.columns:
            if table[name].dtype == object:
                table[name] = [_nul_as_text(value) for value in table[name]]
        table.columns = [_nul_as_text(name) for name in table.columns]
    columns = [name for name in table.columns if table[name].dtype.kind == "O"]
    texts = (*table.columns, *(value for name in columns for value in table[name]))
    # Before Python 3.13 csv quotes of "\r" and "\n" only what is in the line's end.
    end = "\r\n" if any(isinstance(text, str) and "\r" in text for text in texts) else "\n"
    text: str = table.to_csv(index=False, lineterminator=end)
    return text.encode()


def _nul_as_text(value: Any) -> Any:
    """A text without the character NUL, which Python 3.10 cannot write into a csv; anything else as it is."""
    return value.replace("\0", "\\0") if isinstance(value, str) else value


def _list_as_text(value: object) -> object:
    """A list as JSON, with the words of ``_json`` for numbers that JSON does not have; else ``value``."""
    if not isinstance(value, list):
        return value
    return msgspec.json.encode(storable(value)).decode()


def _parquet(table: pandas.DataFrame) -> bytes:
    # A parquet column has one type; a Categorical of, say, "auto" and 3 becomes text.
    for name in table.columns:
        values = table[name]
        if values.dtype != object:
            continue
        kinds = {type(value) for value in values if value is not None}
        if kinds == {list}:
            number = int if all(type(one) is int for value in values for one in value or ()) else float
            table[name] = [None if value is None else list(map(number, value)) for value in values]
        elif len(kinds) > 1:
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
    """What a campaign has found. It is read from the directory when first needed, and then kept; works while the
    campaign runs.

    Args:
        directory (path): of the campaign.
        reason (str; default None): why ``run`` returned; None: taken from the journal.
    """

    def __init__(self, directory: str | os.PathLike[str], reason: str | None = None) -> None:
        if not isinstance(directory, (str, os.PathLike)):
            raise UsageError(
                f"Result: directory = {excerpt(directory)}: must be the path of a campaign's directory"
            )
        self.directory = Path(directory)
        self._reason = reason

    @cached_property
    def record(self) -> CampaignRecord:
        """All that the journals hold: launches, individuals, known points."""
        return load(self.directory)

    @property
    def reason(self) -> str:
        """Why the campaign ended, in a few words; empty if it has not, or was killed."""
        if self._reason is not None:
            return self._reason
        return self.record.ended[0] if self.record.ended else ""

    @property
    def individuals(self) -> list[Individual]:
        """All individuals, in the order in which they started. Each has ``id``, ``params``, ``status``, ``value``,
        ``objectives``, ``metrics``, ``seconds``, ``operator``, ``parents``, ``error`` and the other columns of the
        export.
        """
        return self.record.individuals

    @property
    def best(self) -> Individual:
        """The best completed individual; with several objectives, that of the front which is best in the first. With
        ``reevaluate`` the configuration with the best estimated mean counts, and of its evaluations the best
        (``repeated`` has the others).

        Raises:
            CampaignError: none has completed.
        """
        found = best(self.record, 1)
        if not found:
            raise CampaignError(
                f"{self.directory}: no evaluation has completed, so there is no best one ({self._counts()}). "
                "`hpo export` writes the error of each."
            )
        return found[0]

    def schedule(self, id: str | None = None) -> list[Individual]:
        """With kind "pbt", the intervals of training that led to an individual, the first one first; each continued
        from the checkpoint of the one before. With other kinds that individual alone.

        Args:
            id (str; default None): of the individual; None: that of ``best``.

        Raises:
            UsageError: there is no such individual.
            CampaignError: ``id`` is None, and none has completed.
        """
        return schedule(self.record, self.best.id if id is None else id)

    @property
    def repeated(self) -> list[Repeated]:
        """With ``reevaluate``, each configuration's evaluations, their mean and its standard error, best first; else
        empty.
        """
        return repeated(self.record)

    def _counts(self) -> str:
        statuses = [one.status for one in self.individuals]
        counts = [f"{statuses.count(name)} {name}" for name in STATUSES if name in statuses]
        return ", ".join(counts) or "none has started"

    @property
    def front(self) -> list[Individual]:
        """The completed individuals that no other dominates: the Pareto front. With one objective, those of the best
        value, which with ``reevaluate`` need not be ``best``.
        """
        return front(self.record)

    @property
    def knee(self) -> Individual | None:
        """The individual of the front that is nearest to the best value of each objective; None where none has
        completed.
        """
        return knee(self.front, self.record.objectives)

    def hypervolume(self, reference: Mapping[str, float] | None = None) -> Hypervolume:
        """The volume that the front dominates, over the campaign's time: an object with ``last`` (the volume now),
        ``reference`` and ``dataframe()``.

        Args:
            reference (dict; default None): by objective, the value beyond which nothing counts; None: the campaign's
                ``reference``, else the worst value of each.

        Raises:
            UsageError: there is one objective.
        """
        return hypervolume(self.record, reference)

    def importance(self, objective: str | None = None) -> Importance:
        """How much each parameter matters (fANOVA): an object with ``dataframe()``, whose text is what ``hpo best``
        prints.

        Args:
            objective (str; default None): its name; None: the first.

        Raises:
            UsageError: there is no such objective.
            CampaignError: too few evaluations have completed, or all have the same result.
        """
        from hpo.results.analysis.importance import importance

        return importance(self.record, objective)

    def dataframe(self) -> pandas.DataFrame:
        """A pandas DataFrame with one row per individual, known points first, and the columns that ``hpo export``
        writes.
        """
        return dataframe(table_rows(self.record), list(self.record.objectives))

    def curves(self) -> pandas.DataFrame:
        """A pandas DataFrame with what trials reported, read anew at each call: one row per individual and step, with
        the columns ``id``, ``step``, ``value``, ``time`` (Unix seconds), and one for each metric.

        Raises:
            CampaignError: there is no campaign in the directory, or the curves cannot be read.
        """
        from hpo.results import curves

        read_identity(self.directory)
        return curves.load(self.directory)

    @property
    def plot(self) -> Plots:
        """Figures, as plotly has them: ``plot.history()``, ``.hours()``, ``.curves()``, ``.timeline()``,
        ``.importance()``, ``.parallel()``, ``.slices()``, ``.islands()``, ``.family()``, ``.budget()``, ``.noise()``,
        ``.front()`` and ``.hypervolume()``. What the data do not fill raises UsageError with the reason.
        """
        from hpo.views.figures.plots import Plots

        return Plots(self.record)

    @property
    def status(self) -> dict[str, object]:
        """What ``hpo status --json`` prints, as a dictionary."""
        return status(self.record)

    def __repr__(self) -> str:
        return f"Result({str(self.directory)!r})"

    def _repr_html_(self) -> str:
        """What a notebook shows: the campaign in words, and its best as a table."""
        from hpo.views.report.notebook import shown

        return shown(self.record)
