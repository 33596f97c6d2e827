"""Export of a campaign as an Optuna study, for optuna-dashboard, Optuna's plots and scripts.

The study is named after the campaign's directory and holds a trial for each known point, and for each individual that
has ended, in the order of their ends. A later export adds what has ended since; where an exported individual has
changed, because it was reopened or resumed, the study is rebuilt. Other studies of the storage stay.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpo.config.process import terminal_columns
from hpo.errors import CampaignError, UsageError
from hpo.individual import COMPLETED, FINAL, PRUNED, Individual, Scalar
from hpo.journal.directory import campaign_key
from hpo.results.curves import load as load_curves
from hpo.results.record import CampaignRecord, load
from hpo.search.kinds.optuna_samplers import distribution, quiet, within
from hpo.space.look_alikes import LookAlikes
from hpo.space.parameters import Categorical
from hpo.space.space import described_space

if TYPE_CHECKING:
    import optuna
    from optuna.storages.journal import BaseJournalBackend
    from optuna.trial import FrozenTrial

JOURNAL = ".journal"
SQLITE = "sqlite:///"
_KEY = "hpo.campaign"
"""Attribute of the study with the key of its campaign."""


@dataclass(frozen=True, kw_only=True)
class Exported:
    """Result of an export: name of the study, numbers of the campaign's trials in it and of those that were added, and
    of those that had changed since an earlier export, for which the study was rebuilt."""

    study: str
    trials: int
    added: int
    changed: int

    def __str__(self) -> str:
        rebuilt = f", rebuilt as {self.changed} had changed" if self.changed else ""
        return f"study {self.study} of {self.trials} trials, {self.added} of them added{rebuilt}"


def is_storage(target: str) -> bool:
    """Whether ``target`` names an Optuna storage that :func:`export` can write."""
    return target.startswith(SQLITE) or target.lower().endswith(JOURNAL)


def export(directory: Path, target: str) -> Exported:
    """Write the campaign in ``directory`` to the Optuna storage ``target``, made if it is missing.

    UsageError where that would change what is not the campaign's, or Optuna is not installed; CampaignError where there
    is no campaign, or ``target`` cannot be written.
    """
    try:
        import optuna
    except ImportError:
        raise UsageError(f"{target} needs Optuna. Run `bash jobs/setup.sh optuna`.") from None
    record = load(directory)
    path = _checked(target)
    with quiet():
        try:
            if target.startswith(SQLITE):
                storage = optuna.storages.RDBStorage(f"{SQLITE}{path}")
                try:
                    return _write_study(record, storage, target, _add_each)
                finally:
                    storage.remove_session()
                    storage.engine.dispose()
            backend = optuna.storages.journal.JournalFileBackend(str(path))
            return _write_study(
                record, optuna.storages.JournalStorage(backend), target, partial(_add_at_once, backend)
            )
        except OSError as error:
            raise CampaignError(
                f"{target} cannot be written ({error.strerror or error}). Name a file in a directory that exists and "
                "that you may write."
            ) from error
        except (UsageError, CampaignError):
            raise
        except Exception as error:  # SQLAlchemy, drivers and Optuna raise exceptions of unrelated classes
            reason = str(error).strip().splitlines()
            raise CampaignError(
                f"{target} cannot be used as an Optuna storage: {reason[0] if reason else type(error).__name__}. Name "
                "another file."
            ) from error


def _checked(target: str) -> Path:
    """File of the storage; UsageError where the path has another kind of file."""
    database = target.startswith(SQLITE)
    path = Path(os.path.expanduser(target.removeprefix(SQLITE)))
    if not path.name or "?" in path.name or "\0" in target:
        raise UsageError(f"{target}: must be {SQLITE} and the path of a file, such as {SQLITE}study.db")
    if not os.path.isdir(path.parent):
        raise CampaignError(
            f"{target} cannot be written (there is no directory {path.parent}). Name a file in a directory that exists "
            "and that you may write."
        )
    if not os.path.exists(path):
        return path
    if not path.is_file() or not (_holds_studies(path) if database else _is_journal(path)):
        kind = "SQLite database of Optuna's" if database else "journal of Optuna's"
        raise UsageError(f"{target} exists and is no {kind}, so it is left as it is. Name another file.")
    return path


def _is_journal(path: Path) -> bool:
    with open(path, "rb") as file:
        head = file.readline(4096)
    return not head or (head.startswith(b"{") and b'"op_code"' in head)


def _holds_studies(path: Path) -> bool:
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            tables = database.execute("select name from sqlite_master where type = 'table'").fetchall()
    except sqlite3.Error:  # no database
        return False
    return {("studies",), ("trials",), ("version_info",)} <= {*tables}


def _write_study(record: CampaignRecord, storage: Any, target: str, add: Any) -> Exported:
    """Create or complete the campaign's study in ``storage``; ``add(study, trials)`` adds trials to a study."""
    import optuna

    name, key = record.directory.resolve().name or "campaign", campaign_key(record.identity)
    trials = _Trials(record)
    final = [individual for individual in record.individuals if individual.status in FINAL]
    ended = [*record.known, *sorted(final, key=_end)]
    current = {individual.id: trials.of(individual) for individual in ended}
    existing: dict[str, Any] = {}
    changed = 0
    if name in optuna.get_all_study_names(storage):
        study = optuna.load_study(study_name=name, storage=storage)
        if study.user_attrs.get(_KEY) != key:
            raise UsageError(
                f"{target} holds a study {name!r} that is not of this campaign, so it is left as it is. Name another "
                "file."
            )
        all_trials = study.get_trials(deepcopy=False)
        # Trials that users added with Optuna have no id of an individual; they must never be lost.
        existing = {trial.user_attrs["id"]: trial for trial in all_trials if "id" in trial.user_attrs}
        changed = sum(
            1 for identity, trial in existing.items() if _result(trial) != _result(current.get(identity))
        )
        if changed and len(existing) < len(all_trials):
            raise UsageError(
                f"{target}: {changed} of the campaign's trials in the study {name!r} have changed since, so it would "
                f"have to be rebuilt, without the {len(all_trials) - len(existing)} that others added. Name another "
                "file."
            )
        # Optuna cannot change a trial that has ended.
        if changed:
            optuna.delete_study(study_name=name, storage=storage)
            study, existing = _create_study(record, name, key, storage), {}
    else:
        study = _create_study(record, name, key, storage)
    fresh = [trial for identity, trial in current.items() if identity not in existing]
    add(study, fresh)
    return Exported(study=name, trials=len(current), added=len(fresh), changed=changed)


def _create_study(record: CampaignRecord, name: str, key: str, storage: Any) -> optuna.Study:
    import optuna

    objectives = record.objectives
    directions = [optuna.study.StudyDirection[way.upper()] for way in objectives.values()]
    study = optuna.create_study(study_name=name, storage=storage, directions=directions)
    study.set_user_attr(_KEY, key)
    study.set_user_attr("hpo.task", str(record.identity.get("task", "")))
    if list(objectives) != ["value"]:
        study.set_metric_names(list(objectives))
    return study


def _add_each(study: optuna.Study, trials: Sequence[FrozenTrial]) -> None:
    """Add ``trials`` to a database, with a progress bar on a terminal."""
    # Each trial takes dozens of statements: 10 000 trials take minutes.
    if terminal_columns() is None:
        study.add_trials(trials)
        return
    from rich.console import Console
    from rich.progress import track

    study.add_trials(track(trials, "writing trials", console=Console(stderr=True), transient=True))


def _add_at_once(backend: BaseJournalBackend, study: optuna.Study, trials: Sequence[FrozenTrial]) -> None:
    """Add ``trials`` to the journal with a single write, as Optuna would sync the file for each operation."""
    import optuna
    from optuna.storages.journal import BaseJournalBackend as Base

    # A storage in memory that begins with the journal's operations, and whose new operations are then appended.
    class Collected(Base):
        def __init__(self) -> None:
            self.logs = list(backend.read_logs(0))
            self.existing = len(self.logs)

        def read_logs(self, log_number_from: int) -> Iterable[dict[str, Any]]:
            return self.logs[log_number_from:]

        def append_logs(self, logs: list[dict[str, Any]]) -> None:
            self.logs += logs

    if not trials:
        return
    collected = Collected()
    storage = optuna.storages.JournalStorage(collected)
    optuna.load_study(study_name=study.study_name, storage=storage).add_trials(trials)
    backend.append_logs(collected.logs[collected.existing :])


class _Trials:
    """Conversion of a campaign's individuals to Optuna's trials."""

    def __init__(self, record: CampaignRecord) -> None:
        from optuna.distributions import CategoricalDistribution

        space = described_space(record.identity.get("space"))
        # Optuna's storages keep no tuples: these are texts there.
        self._texts: dict[str, dict[Scalar, Any]] = {
            name: {
                one: LookAlikes(parameter).text(one) for one in parameter.choices if isinstance(one, tuple)
            }
            for name, parameter in space.parameters.items()
            if isinstance(parameter, Categorical)
        }
        self._distributions = {
            name: CategoricalDistribution([self._texts[name].get(choice, choice) for choice in one.choices])
            if isinstance(one, Categorical)
            else distribution(one)
            for name, one in space.parameters.items()
        }
        self._objectives = tuple(record.objectives)
        self._limits = record.limits
        self._created = float(record.identity.get("created") or 0.0)
        self._curves: dict[str, dict[int, float]] = {}
        curves = load_curves(record.directory)
        for identity, step, value in zip(curves["id"], curves["step"], curves["value"]):
            self._curves.setdefault(identity, {})[int(step)] = float(value)

    def of(self, individual: Individual) -> FrozenTrial:
        from optuna.trial import FrozenTrial, TrialState

        states = {COMPLETED: TrialState.COMPLETE, PRUNED: TrialState.PRUNED}
        state = states.get(individual.status, TrialState.FAIL)
        started = self._created if individual.started is None else individual.started
        finished = max(started, individual.finished or started)
        return FrozenTrial(
            # The storage assigns both numbers.
            number=-1,
            trial_id=-1,
            state=state,
            value=None,
            values=None if state == TrialState.FAIL else self._values(individual.objectives),
            datetime_start=self._local(started),
            datetime_complete=self._local(finished),
            params={
                name: within(self._distributions[name], self._texts.get(name, {}).get(value, value))
                for name, value in individual.params.items()
            },
            distributions={name: self._distributions[name] for name in individual.params},
            user_attrs=_attributes(individual),
            system_attrs=self._constraints(individual),
            intermediate_values=self._curves.get(individual.id, {}),
        )

    def _constraints(self, individual: Individual) -> dict[str, Any]:
        """Excess over each limit, as Optuna keeps constraints: above 0 for what breaks it."""
        if individual.status != COMPLETED or not self._limits:
            return {}
        # 1 where it says nothing of a limited metric.
        excess = self._limits.excess(individual.objectives, individual.metrics) or (1.0,)
        return {f"constraints:{place}": one for place, one in enumerate(excess)}

    def _local(self, at: float) -> datetime:
        """Local time, which Optuna uses, of a time ``at`` in Unix seconds."""
        # The offset of the campaign's beginning is kept: at a change to winter time, trials would end before they
        # begin.
        return datetime.fromtimestamp(self._created) + timedelta(seconds=at - self._created)

    def _values(self, objectives: Mapping[str, float] | None) -> list[float] | None:
        """Values in the task's order of objectives; None where some are missing, as after pruning."""
        values = [(objectives or {}).get(name) for name in self._objectives]
        found = [float(value) for value in values if value is not None and not isnan(value)]
        return found if len(found) == len(values) else None


def _attributes(individual: Individual) -> dict[str, Any]:
    """Columns of the exported table that have no field in Optuna's trials."""
    found: dict[str, Any] = {
        "id": individual.id,
        "status": individual.status,
        "island": individual.island,
        "worker": individual.worker,
        "operator": individual.operator,
        "parents": list(individual.parents),
    }
    if individual.migrations:
        found["migrations"] = " ".join(f"{source}>{target}" for source, target in individual.migrations)
    if individual.retries:
        found["retries"] = individual.retries
    if individual.error:
        found["error"] = individual.error
    return found | {f"metrics.{name}": value for name, value in individual.metrics.items()}


def _result(trial: FrozenTrial | None) -> object:
    """Values of a trial that change when its individual continues after an end."""
    if trial is None:
        return None
    step = trial.user_attrs.get("metrics.pruned_step")
    return trial.user_attrs.get("status"), trial.values, step


def _end(individual: Individual) -> float:
    return individual.finished or individual.started or 0.0
