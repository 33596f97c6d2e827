"""Evaluators and jobs: how an evaluator of a worker starts, and how a candidate becomes a job."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from hpo.config import process
from hpo.evaluation.conversation import RankContext
from hpo.evaluation.directories import EvaluationDirectories
from hpo.evaluation.evaluator_process import EvaluatorProcess
from hpo.individual import FIRST_ATTEMPT
from hpo.islands.messages import Surroundings
from hpo.journal.curves import CurveFile, curve_path
from hpo.search.protocols import Candidate
from hpo.task.outcome import alike
from hpo.task.task import MAXIMIZE
from hpo.task.trial import Job

_log = logging.getLogger("hpo.campaign")

if TYPE_CHECKING:
    from hpo.config.layout import WorkerPlacement
    from hpo.config.reader import Settings
    from hpo.task.task import TaskSource

_ORPHANS_REPORTED = 3


class Jobs:
    """Makes a candidate a job: a seed, and the directories of the individual and of its parent."""

    def __init__(self, directories: EvaluationDirectories, seed: int) -> None:
        self._directories = directories
        self._seed = seed
        self._orphans: int | None = 0
        """Individuals in a row whose parent had saved nothing; None once one had, or it was said."""
        # A candidate that is tried again here stays in its directory, also where another launch made a copy meanwhile.
        self._latest: tuple[Candidate | None, Path] = None, Path()

    def __call__(self, candidate: Candidate) -> Job:
        configuration, attempt = candidate.configuration, candidate.attempt
        if attempt.contested:
            directory, copied = self._directories.copy(candidate.id)
            candidate.attempt = replace(attempt, contested=False)
            attempt = replace(candidate.attempt, resumed=attempt.resumed and copied)
        elif candidate is self._latest[0]:
            directory = self._latest[1]
        elif attempt == FIRST_ATTEMPT:
            # A copy is another launch's, which has closed this launch while it hung, before it came to this.
            directory = self._directories.first(candidate.id)
        else:
            directory = self._directories.path(candidate.id)
        self._latest = candidate, directory
        return Job(
            configuration=configuration,
            attempt=attempt,
            seed=trial_seed(self._seed, candidate.id),
            directory=str(directory.absolute()),  # a task may change the working directory
            parent=self._parent(configuration.inherits) if configuration.inherits else None,
        )

    def _parent(self, identity: str) -> str:
        # Decided here, once for all ranks of the worker.
        holds = self._directories.holds(identity)
        self._count(holds)
        return str(self._directories.path(identity).absolute()) if holds else ""

    def forget(self, identity: str) -> None:
        self._directories.forget(identity)

    def offers(self, parents: Sequence[str]) -> str:
        """First of the ``parents`` of a child that has saved something; empty if none has."""
        found = next((one for one in parents if self._directories.may_hold(one)), "")
        if parents:
            self._count(bool(found))
        return found

    def _count(self, saved: bool) -> None:
        if saved:
            self._orphans = None
        elif self._orphans is not None:
            self._orphans += 1
            if self._orphans == _ORPHANS_REPORTED:
                self._orphans = None
                _log.info(
                    f"parents of {_ORPHANS_REPORTED} children in a row had saved nothing, so the children begin "
                    "without a checkpoint. Let the task save into trial.directory at its end, and load from "
                    "trial.parent_checkpoint; or set [search] inherit = false, where the kind is not pbt"
                )


def make_warner(place: WorkerPlacement) -> Callable[[str], None]:
    """Function that prints each warning of evaluators once a launch: the first worker speaks for all, and warnings that
    differ by the number of a rank or a device are the same."""
    heard: set[str] = set()

    def warn(text: str) -> None:
        if place.index == 0 and alike(text) not in heard:
            heard.add(alike(text))
            _log.info("%s", text)

    return warn


def trial_seed(seed: int, identity: str) -> int:
    """Seed of an individual, the same wherever it is evaluated; 31 bits, as every library takes."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{identity}".encode(), digest_size=4).digest(), "big") >> 1


def curve_file(
    settings: Settings, place: WorkerPlacement, launch: int, objectives: Mapping[str, str]
) -> CurveFile | None:
    """File for the reports of the first objective at the worker at ``place`` in this launch; None where nothing is
    kept. ``objectives``: direction by name."""
    logging = settings.logging
    if not logging.curves and logging.system_s is None:
        return None
    path = curve_path(settings.directory, launch=launch, island=place.island, worker=place.worker)
    return CurveFile(
        path=str(path.absolute()),
        every_s=logging.every_s if logging.curves else None,
        maximize=next(iter(objectives.values())) == MAXIMIZE,
        system_s=logging.system_s,
    )


def child_factory(
    settings: Settings,
    surroundings: Surroundings,
    worker_rank: int,
    source: TaskSource,
    curve: CurveFile | None = None,
) -> Callable[[], EvaluatorProcess]:
    """Function that starts the evaluator of worker rank ``worker_rank``, which runs in ``surroundings``."""
    context = RankContext(
        worker_rank=worker_rank,
        size=len(surroundings.hosts),
        local_rank=surroundings.local_rank,
        local_size=surroundings.local_size,
        cores_agreed=surroundings.cores_agreed,
        hosts=surroundings.hosts,
        source=source,
        interface=settings.evaluation.interface,
        curve=curve,
        output_bytes=settings.logging.output_bytes,
    )
    return lambda: EvaluatorProcess(context, process.environment())
