"""Definition of a campaign: its settings and its task, and what is checked before anything starts."""

from __future__ import annotations

import copy
import os
import random
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

from hpo.campaign.known_points import new_points
from hpo.config import process
from hpo.config import reader as config
from hpo.errors import CampaignError, UsageError, noted
from hpo.individual import DEFAULT, GIVEN, Scalar
from hpo.journal import directory
from hpo.journal.commands import asked
from hpo.ledger.alive import living
from hpo.ledger.entries import Commanded, Go
from hpo.ledger.joining import Newcomer
from hpo.ledger.ledger import Ledger
from hpo.ledger.opening import state_of
from hpo.loggers import registry
from hpo.prior_results.configurations import read_points
from hpo.prior_results.points import KnownPoints
from hpo.search import campaign_end, phases
from hpo.search import stopping_rules as pruning
from hpo.search.kinds import reevaluation
from hpo.search.models.pareto import reference_losses
from hpo.search.proposals import MOST_DRAWS
from hpo.task.code_version import CodeVersion, code_of
from hpo.task.schedule import scheduled
from hpo.task.task import Task, TaskSource, load_task
from hpo.terminal import quoted
from hpo.text import excerpt

# Random configurations until the constraints count as impossible; beyond these only within ``_SEARCHED_S`` seconds.
_DRAWS = 10_000
# Random configurations to look for a constraint that raises, at most for ``_SEARCHED_S`` seconds.
_DRAWS_THAT_RAISE = 1_000
_SEARCHED_S = 2.0
_DRAWS_FOR_STEPS = 100


@dataclass(frozen=True, kw_only=True)
class StartingPoints:
    """Configurations to evaluate first, results from elsewhere that are not on record yet, and a line for each table
    with rows that hold no configuration."""

    points: list[dict[str, Scalar]]
    known: list[KnownPoints]
    left_out: list[str]


def first_points(task: Task, points: Iterable[Mapping[str, Scalar]]) -> list[tuple[dict[str, Scalar], str]]:
    """The first point of ``task``, its points and the ``points`` of a campaign file, each with its operator."""
    first = [] if task.first is None else [(dict(task.first), DEFAULT)]
    return [*first, *((dict(point), GIVEN) for point in (*task.points, *points))]


class CampaignDefinition:
    """Settings and task of a campaign. ``reference``: the task's name in a campaign file, None for its own; ``source``:
    how evaluators get the task, None by pickling it; ``code``: version of the task, None as this process sees it;
    ``join``: see ``hpo.ledger.joining.Newcomer``."""

    def __init__(
        self,
        settings: config.Settings,
        task: Task,
        *,
        reference: str | None = None,
        source: TaskSource | None = None,
        code: CodeVersion | None = None,
        join: bool | None = None,
    ) -> None:
        self.settings = settings
        self.task = scheduled(task, settings.schedule)
        self.code = code
        self.join = join
        self._reference = reference
        self._source = source

    @classmethod
    def from_file(cls, path: str | Path, *, join: bool | None = None) -> CampaignDefinition:
        """Definition in a campaign file. Raises as ``Campaign.from_file``."""
        if not isinstance(path, (str, os.PathLike)):
            raise UsageError(f"Campaign.from_file({excerpt(path)}): must be the path of a campaign file")
        settings = config.read_file(Path(path))
        if settings.task is None:
            raise UsageError(
                f'{path}: no task is named. Add task = "package.module:name" or "file.py:name" at its top'
            )
        base = Path(path).resolve().parent
        task = load_task(settings.task, base=base, options=settings.task_options)
        source = TaskSource(
            reference=settings.task,
            base=str(base),
            options=settings.task_options,
            schedule=tuple(settings.schedule),
        )
        return cls(settings, task, reference=settings.task, source=source, join=join)

    @property
    def source(self) -> TaskSource:
        if self._source is None:
            self._source = TaskSource.of(self.task)
        return self._source

    def __getstate__(self) -> dict[str, object]:
        """State for a rank that this process starts, with the code of the task as it is seen here."""
        code = self.code or code_of(self.task)
        return {
            "settings": self.settings,
            "reference": self._reference,
            "source": self.source,
            "code": code,
            "join": self.join,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.settings, self.code, self.join = state["settings"], state["code"], state["join"]
        self._reference, self._source = state["reference"], state["source"]
        self.task = state["source"].load()

    @property
    def identity(self) -> dict[str, object]:
        """Properties that must stay the same when the campaign goes on in its directory."""
        task, options = self._reference or self.task.name, dict(self.settings.task_options)
        schedule = {"schedule": list(self.settings.schedule)} if self.settings.schedule else {}
        return {"task": task, "options": options, **schedule, **self.task.describe()}

    def bound_to_directory(self) -> CampaignDefinition:
        """The same campaign with an absolute directory, where the task may change the working directory of this
        process, and with the objectives in the order on record: the first decides which of the front is the best, and
        losses are kept in this order."""
        settings = self.settings
        if settings.evaluation.isolation == "inline":
            settings = settings.model_copy(update={"directory": settings.directory.absolute()})
        return CampaignDefinition(
            settings,
            self._task_as_recorded(),
            reference=self._reference,
            source=self._source,
            code=self.code,
            join=self.join,
        )

    def may_lack_islands(self) -> bool:
        """Whether a launch may have fewer workers than there are islands, as others have workers for the rest."""
        if self.join is not None:
            return self.join
        home = self.settings.directory
        return os.path.exists(home / "campaign.json") and bool(living(home))

    def newcomer(self) -> Newcomer:
        """The launch of this process, as it joins."""
        islands = range(self.settings.layout.islands)
        return Newcomer(
            join=self.join,
            kinds=tuple(self.settings.search_of(island).kind for island in islands),
            supervisor=process.launcher().supervisor or "",
            job=str(process.slurm_attempt() or ""),
            submitted=process.submitted(),
        )

    def _task_as_recorded(self) -> Task:
        try:
            recorded = directory.read_identity(self.settings.directory).get("objectives")
        except CampaignError:
            return self.task
        own = self.task.objectives
        if not isinstance(recorded, dict) or recorded.keys() != own.keys() or [*recorded] == [*own]:
            return self.task
        task = copy.copy(self.task)
        task.objectives = {name: own[name] for name in recorded}
        return task

    # --- checks ---------------------------------------------------------------------------------------------

    def check(self) -> StartingPoints:
        problems: dict[str, None] = {}  # in order; what all islands share is reported once
        with noted(problems):
            self._check_constraints()
        with noted(problems):
            self._check_steps()
        with noted(problems):
            reference_losses(self.settings.search.reference, self.task.objectives)
        with noted(problems):
            campaign_end.check(self.settings.stop.value, self.settings.stop.gain, self.task.objectives)
        own_tables = len(self.settings.island)
        shared = self._problems_of(own_tables)
        if own_tables < self.settings.layout.islands:
            problems.update(shared)
        for island in range(own_tables):  # the others have what is shared
            for problem in self._problems_of(island):
                own = problem.replace("[search]", f"[[island]] number {island + 1},")
                problems[problem if problem in shared else own] = None
        self.recorded_identity()
        points: list[dict[str, Scalar]] = []
        left_out: list[str] = []
        for number, entry in enumerate(self.settings.points, start=1):
            with noted(problems):
                points += read_points(
                    entry, self.task.space, self.task.allows, number=number, left_out=left_out
                )
        known = new_points(self.settings, self.task, problems)
        missing = registry.missing(self.settings.logging.sinks)
        problems.update(dict.fromkeys(f"{one}, or remove it from [logging] sinks." for one in missing))
        if problems:
            raise UsageError("\n".join(problems))
        return StartingPoints(points=points, known=known, left_out=left_out)

    def recorded_identity(self) -> dict[str, object] | None:
        """Identity of the campaign in the directory; None without a campaign. CampaignError for another campaign's."""
        return directory.check_identity(self.settings.directory, self.identity, compare=self._differences)

    def _problems_of(self, island: int) -> dict[str, None]:
        """Problems of an island's settings with the task, as keys in order."""
        search = self.settings.search_of(island)
        found = dict.fromkeys(phases.problems(self.task.space, self.settings, island))
        with noted(found):
            pruning.of_search(search, self.task.objectives)
        with noted(found):
            reevaluation.check(search.reevaluate, search.kind, self.task.objectives)
        if self.settings.schedule and (search.traits.needs_checkpoints or self.settings.inherits(island)):
            found[
                'schedule: its intervals begin from one another, and with kind = "pbt", phases or inherit individuals '
                "begin from others. Remove one of them"
            ] = None
        return found

    def _differences(self, recorded: dict[str, object], given: dict[str, object]) -> list[str]:
        found = directory.differences(
            {key: value for key, value in recorded.items() if key != "space"},
            {key: value for key, value in given.items() if key != "space"},
        )
        space = recorded.get("space")
        return found + (self.task.space.differences(space) if isinstance(space, dict) else [])

    def _check_constraints(self) -> None:
        rng = random.Random(0)
        space, task = self.task.space, self.task
        if not task.constraints:
            return
        drawn = (space.decode(space.sample(rng)) for _ in range(MOST_DRAWS))
        # Further than to the first allowed: a constraint that raises for some is to be found before anything starts.
        until, found = time.monotonic() + _SEARCHED_S, False
        for params in islice(drawn, _DRAWS_THAT_RAISE):
            found |= task.allows(params)
            if found and time.monotonic() > until:
                break
        # The search goes on from a given point, too.
        if found or task.default is not None or task.points or any(map(task.allows, islice(drawn, _DRAWS))):
            return
        until = time.monotonic() + _SEARCHED_S
        if any(map(task.allows, takewhile(lambda params: time.monotonic() < until, drawn))):
            return
        # Rare configurations are found where the space can be listed.
        if not task.listable or not any(True for _ in task.configurations()):
            raise UsageError(
                f"none of over {_DRAWS} random configurations meets the constraints, and a search would find none "
                "either. Give the task a default that meets them, loosen the constraints, or narrow the ranges to "
                "where they hold"
            )

    def _check_steps(self) -> None:
        rng = random.Random(0)
        space, task = self.task.space, self.task
        drawn = (
            space.decode(space.sample(rng)) for _ in range(_DRAWS_FOR_STEPS if callable(task.steps) else 0)
        )
        given = (params for params, _ in first_points(task, ()))
        for params in (*given, *filter(task.allows, drawn)):
            task.steps_of(params)


def blocked_by_stop(campaign_directory: Path) -> str | None:
    """Sentence where ``hpo stop`` holds for this job, which Slurm and no person has started; None where it may begin.
    Raises the errors of ``state_of``."""
    by_person = not process.requeued() and process.submitted() is None
    if by_person or not state_of(campaign_directory).keeps_from_joining(process.submitted()):
        return None
    return (
        f"nothing is started: `hpo stop {quoted(campaign_directory)}` was given since this job was submitted. "
        "`hpo run`, given by a person, goes on."
    )


def end_stop(ledger: Ledger) -> None:
    """End an earlier ``hpo stop``, as a person starts the campaign. Errors as of ``Ledger.append``."""
    if not process.requeued() and process.submitted() is None:
        ledger.append(lambda state: Commanded(request=Go(**asked())) if state.stop_pending else None)
