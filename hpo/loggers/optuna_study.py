"""A campaign as an Optuna study: ``NAME.journal`` (JournalStorage) or ``sqlite:///PATH`` (RDBStorage), for
optuna-dashboard, Optuna's plots and its users' own scripts.

The study is named after the campaign's directory and holds a trial for each individual that has ended, in the order of
their ends, and for each known point. Another export adds those that have ended since, so that a dashboard shows them;
where an individual that is in it went on (it was reopened, or paused and resumed), the study is made anew. What else
the storage holds stays."""

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
from hpo.individual import COMPLETED, FINAL, PRUNED, Individual
from hpo.journal.directory import campaign_key
from hpo.results.curves import load as load_curves
from hpo.results.record import CampaignRecord, load
from hpo.search.kinds.optuna_samplers import quiet
from hpo.space.description import described_space
from hpo.space.parameters import Categorical, Float, Int

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.storages.journal import BaseJournalBackend
    from optuna.trial import FrozenTrial

JOURNAL = ".journal"
SQLITE = "sqlite:///"
_KEY = "hpo.campaign"
"""The study's attribute that says of which campaign it is."""
_SHOWN_FROM = 100
"""Trials that are written to a database with a bar of progress."""
_SQLITE_HEAD = b"SQLite format 3\0"


@dataclass(frozen=True, kw_only=True)
class Exported:
    """``trials``: that the study holds now; ``added``: by this export; ``anew``: how many of those that were in it had
    gone on, for which it was made anew."""

    study: str
    trials: int
    added: int
    anew: int

    def __str__(self) -> str:
        anew = f", made anew as {self.anew} had gone on" if self.anew else ""
        return f"study {self.study} of {self.trials} trials, {self.added} of them added{anew}"


def is_storage(target: str) -> bool:
    """Whether ``target`` names an Optuna storage that :func:`export` writes."""
    return target.startswith(SQLITE) or target.lower().endswith(JOURNAL)


def export(directory: Path, target: str) -> Exported:
    """Write the campaign in ``directory`` to the Optuna storage ``target``, which is made or added to.

    Raises:
        UsageError: ``target`` is there and no Optuna storage, or holds a study of that name from elsewhere, or one
            that must be made anew and has trials from elsewhere; or Optuna is missing.
        CampaignError: there is no campaign in ``directory``, or ``target`` cannot be written.
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
                    return _into(record, storage, target, _add_each)
                finally:
                    storage.remove_session()
                    storage.engine.dispose()
            backend = optuna.storages.journal.JournalFileBackend(str(path))
            return _into(
                record, optuna.storages.JournalStorage(backend), target, partial(_add_at_once, backend)
            )
        except OSError as error:
            raise CampaignError(
                f"{target} cannot be written ({error.strerror or error}). Name a file in a directory that exists and "
                "that you may write."
            ) from error
        except (UsageError, CampaignError):
            raise
        except Exception as error:  # SQLAlchemy's, the driver's, Optuna's: there is no end of kinds
            reason = str(error).strip().splitlines()
            raise CampaignError(
                f"{target} cannot be used as an Optuna storage: {reason[0] if reason else type(error).__name__}. Name "
                "another file."
            ) from error


def _checked(target: str) -> Path:
    """The file of the storage; UsageError where something else lies there."""
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
        raise UsageError(f"{target} is there and no {kind}, so it is left as it is. Name another file.")
    return path


def _is_journal(path: Path) -> bool:
    with open(path, "rb") as file:
        head = file.readline(4096)
    return not head or (head.startswith(b"{") and b'"op_code"' in head)


def _holds_studies(path: Path) -> bool:
    with open(path, "rb") as file:
        if file.read(len(_SQLITE_HEAD)) != _SQLITE_HEAD:
            return False
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            names = {
                name for (name,) in database.execute("select name from sqlite_master where type = 'table'")
            }
    except sqlite3.Error:
        return False
    return {"studies", "trials", "version_info"} <= names


# --- the study ----------------------------------------------------------------------------------------------


def _into(record: CampaignRecord, storage: Any, target: str, add: Any) -> Exported:
    """Have ``storage`` hold the campaign's study; ``add(study, trials)`` adds to it."""
    import optuna

    name, key = record.directory.resolve().name or "campaign", campaign_key(record.identity)
    trials = _Trials(record)
    ended = [*record.known, *sorted((one for one in record.individuals if one.status in FINAL), key=_end)]
    now = {one.id: trials.of(one) for one in ended}
    there: dict[str, Any] = {}
    anew = 0
    if name in optuna.get_all_study_names(storage):
        study = optuna.load_study(study_name=name, storage=storage)
        if study.user_attrs.get(_KEY) != key:
            raise UsageError(
                f"{target} holds a study {name!r} that is not of this campaign, so it is left as it is. Name another "
                "file."
            )
        trials_there = study.get_trials(deepcopy=False)
        # Those that were added in Optuna have no id of ours, and are never touched.
        there = {trial.user_attrs["id"]: trial for trial in trials_there if "id" in trial.user_attrs}
        anew = sum(1 for identity, trial in there.items() if _result(trial) != _result(now.get(identity)))
        if anew and len(there) < len(trials_there):
            raise UsageError(
                f"{target}: {anew} of the campaign's trials in the study {name!r} have changed since, so it would have "
                f"to be made anew, without the {len(trials_there) - len(there)} that others added. Name another file."
            )
        if anew:
            optuna.delete_study(study_name=name, storage=storage)
            study, there = _made(record, name, key, storage), {}
    else:
        study = _made(record, name, key, storage)
    fresh = [trial for identity, trial in now.items() if identity not in there]
    add(study, fresh)
    return Exported(study=name, trials=len(now), added=len(fresh), anew=anew)


def _made(record: CampaignRecord, name: str, key: str, storage: Any) -> optuna.Study:
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
    """Add ``trials`` to a database, which takes dozens of statements for each: 10 000 take minutes."""
    if len(trials) < _SHOWN_FROM or terminal_columns() is None:
        study.add_trials(trials)
        return
    from rich.console import Console
    from rich.progress import track

    study.add_trials(track(trials, "writing trials", console=Console(stderr=True), transient=True))


def _add_at_once(backend: BaseJournalBackend, study: optuna.Study, trials: Sequence[FrozenTrial]) -> None:
    """Add ``trials`` to the journal by one write, where Optuna would sync each."""
    import optuna
    from optuna.storages.journal import BaseJournalBackend as Base

    class Collected(Base):
        def __init__(self) -> None:
            self.logs = list(backend.read_logs(0))
            self.there = len(self.logs)

        def read_logs(self, log_number_from: int) -> Iterable[dict[str, Any]]:
            return self.logs[log_number_from:]

        def append_logs(self, logs: list[dict[str, Any]]) -> None:
            self.logs += logs

    if not trials:
        return
    collected = Collected()
    storage = optuna.storages.JournalStorage(collected)
    optuna.load_study(study_name=study.study_name, storage=storage).add_trials(trials)
    backend.append_logs(collected.logs[collected.there :])


# --- trials -------------------------------------------------------------------------------------------------


class _Trials:
    """Makes trials of individuals."""

    def __init__(self, record: CampaignRecord) -> None:
        space = described_space(record.identity.get("space"))
        self._distributions = {name: _distribution(one) for name, one in space.parameters.items()}
        self._objectives = tuple(record.objectives)
        self._created = float(record.identity.get("created") or 0.0)
        self._curves: dict[str, dict[int, float]] = {}
        curves = load_curves(record.directory)
        for identity, step, value in zip(curves["id"], curves["step"], curves["value"]):
            self._curves.setdefault(identity, {})[int(step)] = float(value)

    def of(self, one: Individual) -> FrozenTrial:
        from optuna.trial import FrozenTrial, TrialState

        state = {COMPLETED: TrialState.COMPLETE, PRUNED: TrialState.PRUNED}.get(one.status, TrialState.FAIL)
        started = self._created if one.started is None else one.started
        finished = max(started, started if one.finished is None else one.finished)
        return FrozenTrial(
            number=-1,
            trial_id=-1,
            state=state,
            value=None,
            values=None if state == TrialState.FAIL else self._values(one.objectives),
            datetime_start=self._local(started),
            datetime_complete=self._local(finished),
            params=one.params,
            distributions={name: self._distributions[name] for name in one.params},
            user_attrs=_attributes(one),
            system_attrs={},
            intermediate_values=self._curves.get(one.id, {}),
        )

    def _local(self, at: float) -> datetime:
        """The local time, as Optuna has it, without the changes of the clock since the campaign began: no trial ends
        before it began, and each is as long as it was."""
        began = self._created or at
        return datetime.fromtimestamp(began) + timedelta(seconds=at - began)

    def _values(self, objectives: Mapping[str, float] | None) -> list[float] | None:
        """In the task's order; None where not all are there, as of one that was pruned."""
        values = [(objectives or {}).get(name) for name in self._objectives]
        found = [float(value) for value in values if value is not None and not isnan(value)]
        return found if len(found) == len(values) else None


def _distribution(parameter: object) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(parameter, Categorical):
        return CategoricalDistribution(parameter.choices)
    if isinstance(parameter, Float):
        return FloatDistribution(parameter.low, parameter.high, log=parameter.log)
    if isinstance(parameter, Int):
        return IntDistribution(parameter.low, parameter.high, log=parameter.log)
    raise TypeError(f"{parameter!r} is no parameter")


def _attributes(one: Individual) -> dict[str, Any]:
    """The columns of the exported table that Optuna has no field for."""
    found: dict[str, Any] = {
        "id": one.id,
        "status": one.status,
        "island": one.island,
        "worker": one.worker,
        "operator": one.operator,
        "parents": list(one.parents),
    }
    if one.migrations:
        found["migrations"] = " ".join(f"{source}>{target}" for source, target in one.migrations)
    if one.retries:
        found["retries"] = one.retries
    if one.error:
        found["error"] = one.error
    return found | {f"metrics.{name}": value for name, value in one.metrics.items()}


def _result(trial: FrozenTrial | None) -> object:
    """What of a trial is not the same where its individual goes on after an end."""
    if trial is None:
        return None
    step = trial.user_attrs.get("metrics.pruned_step")
    return trial.user_attrs.get("status"), trial.values, step


def _end(one: Individual) -> float:
    return one.finished or one.started or 0.0
