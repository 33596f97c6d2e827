"""Connects evaluators to the island protocol: what a rank starts for its worker, and how a candidate becomes a job."""

from __future__ import annotations

import hashlib
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from hpo.config import process
from hpo.evaluation.conversation import pack_answer
from hpo.evaluation.crew import ProcessCrew
from hpo.evaluation.devices import inline_device
from hpo.evaluation.directories import EvaluationDirectories
from hpo.evaluation.evaluator_host import EvaluatorHost
from hpo.evaluation.evaluator_process import EvaluatorProcess, RankContext, worker_local_rank
from hpo.evaluation.inline import InlineCrew, InlineHost
from hpo.islands.messages import Surroundings, WorkerMessage, encode
from hpo.islands.transport import Transport
from hpo.journal.curves import CurveFile, curve_path
from hpo.search.protocols import Candidate
from hpo.task.outcome import alike
from hpo.task.task import MAXIMIZE
from hpo.task.trial import Job
from hpo.terminal import write

_log = logging.getLogger("hpo.campaign")

if TYPE_CHECKING:
    from hpo.config.layout import WorkerPlacement
    from hpo.config.reader import Settings
    from hpo.evaluation.cuda import OwnDevice
    from hpo.task.task import Task, TaskSource


_ORPHANS_REPORTED = 3


class Jobs:
    """Makes a candidate the job of evaluators: where they find its directory and that of its parent."""

    def __init__(self, directories: EvaluationDirectories, seed: int) -> None:
        self._directories = directories
        self._seed = seed
        self._orphans: int | None = 0
        """Individuals in a row whose parent had saved nothing; None once one had, or it was said."""
        self._latest: tuple[Candidate | None, Path] = None, Path()
        """The last candidate and its directory: one that is tried again here stays there, also where another launch
        has made a copy meanwhile."""

    def __call__(self, candidate: Candidate) -> Job:
        configuration, attempt = candidate.configuration, candidate.attempt
        if attempt.contested:
            directory, copied = self._directories.copy(candidate.id)
            candidate.attempt = replace(attempt, contested=False)
            attempt = replace(candidate.attempt, resumed=attempt.resumed and copied)
        elif candidate is self._latest[0]:
            directory = self._latest[1]
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
        """Decided here, once for all ranks of the worker."""
        there = self._directories.holds(identity)
        self._count(there)
        return str(self._directories.path(identity).absolute()) if there else ""

    def forget(self, identity: str) -> None:
        """Remove the checkpoints of an individual, which nothing needs any more."""
        self._directories.forget(identity)

    def offers(self, parents: Sequence[str]) -> str:
        """The first of the ``parents`` of a child that is about to be bred that has saved something; empty if none."""
        found = next((one for one in parents if self._directories.may_hold(one)), "")
        if parents:
            self._count(bool(found))
        return found

    def _count(self, there: bool) -> None:
        if there:
            self._orphans = None
        elif self._orphans is not None:
            self._orphans += 1
            if self._orphans == _ORPHANS_REPORTED:
                self._orphans = None
                write(
                    f"hpo: of {_ORPHANS_REPORTED} children in a row no parent had saved anything, and they begin anew. "
                    "Let the task save into trial.directory at its end, and load from trial.parent_checkpoint; or set "
                    "[search] inherit = false, where the kind is not pbt",
                    sys.stderr,
                )


def _warner(place: WorkerPlacement) -> Callable[[str], None]:
    """Prints each warning of evaluators once a launch: the first worker speaks for all, as hosts mostly are alike, and
    a warning that differs by a rank's or a device's number is the same."""
    heard: set[str] = set()

    def warn(text: str) -> None:
        if place.island == place.worker == 0 and alike(text) not in heard:
            heard.add(alike(text))
            _log.info("%s", text)

    return warn


def trial_seed(seed: int, identity: str) -> int:
    """The same for an individual however often and wherever it is evaluated; 31 bits, as every library
    takes."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{identity}".encode(), digest_size=4).digest(), "big") >> 1


def curve_file(
    settings: Settings, place: WorkerPlacement, launch: int, objectives: Mapping[str, str]
) -> CurveFile | None:
    """Where the worker at ``place`` keeps what its evaluations report of the first of the ``objectives`` (direction by
    name) in this launch; None where nothing is kept."""
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


def make_crew(
    settings: Settings,
    *,
    transport: Transport,
    place: WorkerPlacement,
    launch: int,
    surroundings: Surroundings,
    source: TaskSource,
    objectives: Mapping[str, str],
) -> ProcessCrew:
    """The crew of the worker at ``place``; its evaluators are being started when this returns. ``objectives``:
    direction by name."""

    def send(worker_rank: int, content: dict[str, Any]) -> None:
        transport.send(place.ranks[worker_rank], encode(WorkerMessage(content)))

    curve = curve_file(settings, place, launch, objectives)
    crew = ProcessCrew(
        size=len(place.ranks),
        child_factory=child_factory(settings, surroundings, 0, source, curve),
        send=send,
        settings=settings.evaluation,
        on_warning=_warner(place),
        clock=transport.now,
    )
    crew.prepare()
    return crew


def make_evaluator_host(
    settings: Settings,
    *,
    transport: Transport,
    place: WorkerPlacement,
    worker_rank: int,
    surroundings: Surroundings,
    source: TaskSource,
) -> EvaluatorHost:
    """What rank ``worker_rank`` of the worker at ``place`` does: keep its evaluator, and speak with its
    leader."""
    return EvaluatorHost(
        worker_rank=worker_rank,
        child_factory=child_factory(settings, surroundings, worker_rank, source),
        send=lambda epoch, answer: transport.send(
            place.leader, encode(WorkerMessage(pack_answer(epoch, worker_rank, answer)))
        ),
        clock=transport.now,
    )


def make_inline_crew(
    settings: Settings,
    *,
    transport: Transport,
    place: WorkerPlacement,
    launch: int,
    surroundings: Surroundings,
    task: Task,
    stopping: Callable[[], bool],
) -> InlineCrew:
    """Like ``make_crew``, for evaluations inside the ranks; collective over the worker where it has
    several."""

    def send(worker_rank: int, content: dict[str, Any]) -> None:
        transport.send(place.ranks[worker_rank], encode(WorkerMessage(content)))

    return InlineCrew(
        task=task,
        size=len(place.ranks),
        comm=transport.communicator(place.ranks),
        send=send,
        stopping=stopping,
        on_warning=_warner(place),
        device=_inline_device(surroundings, 0, place),
        curve=curve_file(settings, place, launch, task.objectives),
    )


def make_inline_host(
    *, transport: Transport, place: WorkerPlacement, worker_rank: int, surroundings: Surroundings, task: Task
) -> InlineHost:
    """Like ``make_evaluator_host``, for evaluations inside the ranks; collective over the worker."""
    comm = transport.communicator(place.ranks)
    if comm is None:
        raise TypeError("a worker of several ranks needs MPI")
    return InlineHost(
        worker_rank=worker_rank,
        local_rank=worker_local_rank(surroundings.hosts, worker_rank),
        size=len(place.ranks),
        task=task,
        comm=comm,
        send=lambda content: transport.send(place.leader, encode(WorkerMessage(content))),
        device=_inline_device(surroundings, worker_rank, place),
    )


def _inline_device(surroundings: Surroundings, worker_rank: int, place: WorkerPlacement) -> OwnDevice:
    label = f"rank {place.ranks[worker_rank]} on {surroundings.hosts[worker_rank]}"
    return inline_device(process.environment(), surroundings.local_rank, label)


def child_factory(
    settings: Settings,
    surroundings: Surroundings,
    worker_rank: int,
    source: TaskSource,
    curve: CurveFile | None = None,
) -> Callable[[], EvaluatorProcess]:
    """Starts the evaluator of worker rank ``worker_rank``, which runs in ``surroundings``."""
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
