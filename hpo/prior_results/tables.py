"""Sources of known points: tables, earlier campaigns and Optuna's studies, read as rows.

Nothing that is read is executed or unpickled, and no source is changed: a study is opened read-only, or copied."""

from __future__ import annotations

import csv
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from hpo.errors import UsageError
from hpo.individual import COMPLETED, FAILED, PRUNED, RUNNING
from hpo.spelling import suggestion
from hpo.text import cut, excerpt, without_password

if TYPE_CHECKING:
    import optuna

TABLES = (".csv", ".json", ".parquet")
"""Suffixes of tables that ``hpo export`` writes and this module reads."""
PARAMS, OBJECTIVES, METRICS, VALUE = "params.", "objectives.", "metrics.", "value"
_SAVE_AS = (
    'Save it as UTF-8, with "," between cells and "." as decimal sign (spreadsheets call that "CSV UTF-8", in the '
    "formats of English)."
)
_URL = re.compile(r"\w+(\+\w+)?://")
_SQLITE = b"SQLite format 3\0"
_STATES = {"COMPLETE": COMPLETED, "FAIL": FAILED, "PRUNED": PRUNED}
_OF_EXPORTS = frozenset(
    {"id", "island", "worker", "sequence", "status", "started", "finished", "seconds", "operator"}
    | {"parents", "migrations", "retries", "error"}
)
"""Columns of an export that are neither parameters nor results."""


@dataclass(frozen=True)
class Row:
    """A configuration and its result in a source."""

    origin: str
    """Name of the row in the source, such as an individual's id."""
    cells: Mapping[str, object]
    """Cells by column."""
    status: str | None = None
    """Status of the individual or trial; None where the source has none."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of a source, whose ``name`` messages show."""

    name: str
    rows: list[Row]
    exported: bool
    """Whether columns have the prefixes of ``hpo export``."""
    typed: bool = True
    """Whether a text cell stands for a text, and never for a number."""
    directions: dict[str, str] = field(default_factory=dict)
    """Known directions by column of an objective."""
    ordered: bool = False
    """Whether objectives have no names, and are in the task's order."""

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(name for row in self.rows for name in row.cells))


def read(source: object, study: str | None = None) -> Table:
    """Rows of a table's file, a campaign's directory, the file or URL of an Optuna storage, an Optuna study, or a list
    of dictionaries; ``study``: its name in a storage of several. UsageError where the source cannot be read."""
    if isinstance(source, (str, Path)):
        return _from_path(str(source), study)
    if hasattr(source, "get_trials") and hasattr(source, "directions"):
        given = cast("optuna.Study", source)
        return _from_study(f"study {given.study_name}", given)
    if isinstance(source, Sequence) and all(isinstance(row, Mapping) for row in source):
        return _table("the given points", source)
    raise UsageError(
        f"known points: {type(source).__name__} is no source of them. Name a file ({', '.join(TABLES)}), a campaign's "
        "directory or an Optuna storage, or give a study or a list of dictionaries."
    )


def _from_path(name: str, study: str | None) -> Table:
    if _URL.match(name):
        return _from_storage(name, study)
    path = Path(os.path.expanduser(name))  # Path.expanduser raises for unknown users
    try:
        exists, folder = path.exists(), path.is_dir()
    except (OSError, ValueError):  # a name that is too long, or has a NUL character
        exists = folder = False
    if exists and folder:
        return _from_campaign(name, path)
    if not exists:
        raise UsageError(
            f"known points: {cut(name)} does not exist. Name a table, a campaign's directory (both relative to "
            "where hpo is started) or an Optuna storage."
        )
    suffix = path.suffix.lower()
    try:
        if suffix in TABLES:
            # Only JSON keeps types: csv has none, and a parquet column of several types was written as text.
            return _table(name, _READERS[suffix](path), typed=suffix == ".json")
        with open(path, "rb") as file:
            head = file.read(4096)
    except OSError as error:
        raise UsageError(f"known points: {name} cannot be read ({error.strerror or error}).") from None
    except (ValueError, csv.Error) as error:  # ValueError also for invalid UTF-8, JSON and parquet
        remedy = f". {_SAVE_AS}" if suffix == ".csv" else ""
        raise UsageError(
            f"known points: {name} is no table that its suffix {path.suffix} promises: {error}{remedy}"
        ) from None
    if head.startswith(_SQLITE) or b'"op_code"' in head.split(b"\n", 1)[0]:
        return _from_storage(name, study)
    remedy = (
        _SAVE_AS if head.startswith(b"PK\x03\x04") else "Name another file."
    )  # workbooks are zip archives
    raise UsageError(
        f"known points: {name} is no table ({', '.join(TABLES)}), no SQLite file and no journal of Optuna's. {remedy}"
    )


def _csv(path: Path) -> list[dict[str, object]]:
    with open(path, newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file, strict=True)
        names = reader.fieldnames or ()
        # Other separators, or a workbook with the suffix of a table.
        if len(names) == 1 and not (names[0].isprintable() and {";", "|"}.isdisjoint(names[0])):
            raise ValueError('its cells are not separated by ","')
        rows: list[dict[str, object]] = [{**row} for row in reader]
    for number, row in enumerate(rows, start=2):
        if None in row or None in row.values():
            raise ValueError(
                f"line {number} or a line before it does not have as many cells as the first line has names"
            )
        row.pop("", None)  # the index that pandas writes
    return rows


def _json(path: Path) -> list[dict[str, object]]:
    rows = msgspec.json.decode(path.read_bytes())
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError("a table is a list of objects, one a row.")
    return [_flat(row) for row in rows]


def _flat(row: dict[str, object]) -> dict[str, object]:
    """Row of ``hpo best --json``, where parameters and objectives are objects, with the columns of ``hpo export``."""
    if not isinstance(row.get("params"), dict):
        return row
    flat = {name: row[name] for name in ("id", VALUE) if row.get(name) is not None}
    for prefix, cells in ((PARAMS, row["params"]), (OBJECTIVES, row.get("objectives"))):
        if isinstance(cells, dict) and (prefix == PARAMS or VALUE not in flat):
            flat.update({f"{prefix}{name}": value for name, value in cells.items()})
    return flat


def _parquet(path: Path) -> list[dict[str, object]]:
    try:
        from pyarrow import parquet
    except ImportError:
        raise UsageError(
            f"known points: {path} needs pyarrow. Run `bash jobs/setup.sh parquet`, or use .csv."
        ) from None
    rows: list[dict[str, object]] = parquet.read_table(path).to_pylist()
    return rows


_READERS = {".csv": _csv, ".json": _json, ".parquet": _parquet}


def _table(name: str, rows: Iterable[Mapping[str, object]], *, typed: bool = True) -> Table:
    found = list(rows)
    columns = {column for row in found for column in row}
    if strange := [column for column in columns if not isinstance(column, str)]:
        raise UsageError(f"known points: the name of a column is {excerpt(strange[0])}, and must be text.")
    exported = any(column.startswith(PARAMS) for column in columns)
    skipped = _OF_EXPORTS if exported else frozenset()
    return Table(
        name=name,
        exported=exported,
        typed=typed,
        rows=[
            Row(
                str(row["id"]) if exported and row.get("id") else f"row {number}",
                {key: value for key, value in row.items() if key not in skipped},
                str(row["status"]) if exported and row.get("status") else None,
            )
            for number, row in enumerate(found, start=1)
        ],
    )


def _from_campaign(name: str, directory: Path) -> Table:
    from hpo.results.record import load

    record = load(directory)
    return Table(
        name=name,
        exported=True,
        directions={OBJECTIVES + objective: way for objective, way in record.objectives.items()},
        rows=[
            Row(
                individual.id,
                {
                    **{PARAMS + key: value for key, value in individual.params.items()},
                    **{OBJECTIVES + key: value for key, value in (individual.objectives or {}).items()},
                    **{METRICS + key: value for key, value in individual.metrics.items()},
                },
                individual.status,
            )
            for individual in (*record.known, *record.individuals)
        ],
    )


def _from_storage(url: str, study: str | None) -> Table:
    name = without_password(url)
    try:
        import optuna
    except ImportError:
        raise UsageError(f"known points: {name} needs Optuna. Run `bash jobs/setup.sh optuna`.") from None
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings(), ExitStack() as closing:
        warnings.simplefilter("ignore")
        try:
            storage = _storage(url, Path(scratch))
            if isinstance(storage, optuna.storages.RDBStorage):
                # Closed here, because its connection would stay open until the storage is garbage-collected.
                closing.callback(storage.engine.dispose)
                closing.callback(storage.remove_session)
            names = optuna.get_all_study_names(storage)
            if study is None and len(names) != 1:
                raise UsageError(
                    f"known points: {name} holds {len(names)} studies. Name one: study = … "
                    f"({', '.join(sorted(names)[:8]) or 'there is none'})"
                )
            if study is not None and study not in names:
                raise UsageError(f"known points: {name} has no study {study!r}. {suggestion(study, names)}")
            return _from_study(name, optuna.load_study(study_name=study or names[0], storage=storage))
        except UsageError:
            raise
        except Exception as error:  # SQLAlchemy, drivers and Optuna raise exceptions of unrelated classes
            reason = str(error).strip().splitlines()
            raise UsageError(
                f"known points: {name} cannot be read as an Optuna storage: {reason[0] if reason else type(error)}"
            ) from error


def _storage(name: str, scratch: Path) -> Any:
    import optuna
    from optuna.storages.journal import JournalFileBackend

    # The path alone, so that the file is opened read-only below.
    if name.startswith("sqlite:///") and "?" not in name:
        name = name.removeprefix("sqlite:///")
    if _URL.match(name):
        return optuna.storages.RDBStorage(name)
    path = Path(os.path.expanduser(name))
    with open(path, "rb") as file:
        if file.read(len(_SQLITE)) == _SQLITE:
            from sqlalchemy import URL

            # Read-only, because Optuna creates its tables in any database that it opens.
            read_only = URL.create(
                "sqlite", database=path.resolve().as_uri(), query={"mode": "ro", "uri": "true"}
            )
            return optuna.storages.RDBStorage(read_only.render_as_string())
    # A copy, because Optuna opens a journal for appending, which may not be permitted.
    copy = scratch / "journal"
    shutil.copyfile(path, copy)
    return optuna.storages.JournalStorage(JournalFileBackend(str(copy)))


def _from_study(name: str, study: optuna.Study) -> Table:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna warns that metric names are experimental
        names = study.metric_names
    count = len(study.directions)
    columns = [OBJECTIVES + name for name in names or ([VALUE] if count == 1 else map(str, range(count)))]
    rows = []
    for trial in study.get_trials(deepcopy=False):
        cells: dict[str, object] = {PARAMS + key: value for key, value in trial.params.items()}
        cells |= dict(zip(columns, trial.values or ()))
        cells |= {METRICS + key: value for key, value in trial.user_attrs.items()}
        rows.append(Row(f"trial {trial.number}", cells, _STATES.get(trial.state.name, RUNNING)))
    return Table(
        name=name,
        rows=rows,
        exported=True,
        directions={column: way.name.lower() for column, way in zip(columns, study.directions)},
        ordered=names is None,
    )
