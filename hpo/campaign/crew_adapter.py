"""Puts evaluators behind the protocol: which processes a rank starts, and how a candidate becomes their
job."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from hpo.config import reader as config
from hpo.evaluation.conversation import pack_answer
from hpo.evaluation.crew import Crew
from hpo.evaluation.cuda import OwnDevice
from hpo.evaluation.devices import own_device
from hpo.evaluation.directories import EvaluationDirectories
from hpo.evaluation.evaluator_host import EvaluatorHost
from hpo.evaluation.evaluator_process import EvaluatorProcess, RankContext
from hpo.evaluation.inline import InlineCrew, InlineHost
from hpo.islands.messages import WorkerMessage, encode
from hpo.islands.transport import MpiTransport, Transport
from hpo.search.protocols import Candidate, ReportHandler
from hpo.task.trial import Job

if TYPE_CHECKING:
    from hpo.config.layout import WorkerPlacement
    from hpo.config.reader import Settings
    from hpo.task.outcome import Outcome
    from hpo.task.task import Task, TaskSource


_ORPHANS_TOLD = 3


class CrewAdapter:
    """The crew of one worker, as its leader sees it: takes candidates, gives outcomes."""

    def __init__(self, crew: Crew | InlineCrew, rooms: EvaluationDirectories, seed: int) -> None:
        self._crew = crew
        self._rooms = rooms
        self._seed = seed
        self._orphans: int | None = 0
        """Individuals in a row whose parent had saved nothing; None once one had, or it was said."""

    @property
    def busy(self) -> bool:
        return self._crew.busy

    @property
    def failed_starts(self) -> int:
        return self._crew.failed_starts

    @property
    def ready(self) -> bool:
        return self._crew.ready

    def start(self, candidate: Candidate) -> None:
        self._crew.start(
            Job(
                id=candidate.id,
                params=candidate.params,
                seed=trial_seed(self._seed, candidate.id),
                directory=str(self._rooms.path(candidate.id)),
                resumed=candidate.resumed,
                parent=self._parent(candidate.inherits) if candidate.inherits else None,
            )
        )

    def _parent(self, identity: str) -> str:
        """Decided here, once for all ranks of the worker."""
        if self._rooms.holds(identity):
            self._orphans = None
            return str(self._rooms.path(identity))
        if self._orphans is not None:
            self._orphans += 1
            if self._orphans == _ORPHANS_TOLD:
                self._orphans = None
                sys.stderr.write(
                    f'hpo: kind = "pbt": {_ORPHANS_TOLD} individuals in a row found nothing of their parents, and '
                    "began anew. Let the task save into trial.directory at its end, and load from "
                    "trial.parent_checkpoint\n"
                )
        return ""

    def poll(self) -> Sequence[Outcome]:
        return self._crew.poll()

    def receive(self, content: dict[str, Any]) -> None:
        self._crew.receive(content)

    def listen(self, on_report: ReportHandler) -> None:
        self._crew.listen(on_report)

    def request_checkpoint(self) -> None:
        self._crew.request_checkpoint()

    def kill(self, status: str) -> None:
        self._crew.kill(status)

    def disband(self) -> None:
        self._crew.disband()

    @property
    def gone(self) -> bool:
        return self._crew.gone

    def deadline(self) -> float | None:
        return self._crew.deadline()

    def filenos(self) -> list[int]:
        return self._crew.filenos()

    def close(self, timeout_s: float) -> None:
        self._crew.close(timeout_s)


def _warner(place: WorkerPlacement) -> Callable[[str], None]:
    """Prints what evaluators warn of, once a launch: the first worker speaks for all, as hosts mostly are alike."""
    heard: list[str] = []

    def warn(text: str) -> None:
        heard.append(text)
        if place.island == place.worker == 0 and len(heard) == 1:
            sys.stderr.write(f"hpo: {text}\n")

    return warn


def trial_seed(seed: int, identity: str) -> int:
    """The same for an individual however often and wherever it is evaluated; 31 bits, as every library
    takes."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{identity}".encode(), digest_size=4).digest(), "big") >> 1


def make_crew(
    settings: Settings,
    *,
    transport: Transport,
    place: WorkerPlacement,
    hosts: Sequence[str],
    source: TaskSource,
    objectives: tuple[str, ...],
    epoch: int = 0,
) -> Crew:
    """The crew of the worker at ``place``; its evaluators are being started when this returns."""

    def send(worker_rank: int, content: dict[str, Any]) -> None:
        transport.send(place.ranks[worker_rank], encode(WorkerMessage(content)))

    crew = Crew(
        size=len(place.ranks),
        child_factory=child_factory(settings, place.ranks, 0, hosts, source),
        send=send,
        objectives=objectives,
        settings=settings.evaluation,
        on_warning=_warner(place),
        clock=transport.now,
        epoch=epoch,
    )
    crew.prepare()
    return crew


def make_follower(
    settings: Settings,
    *,
    transport: Transport,
    place: WorkerPlacement,
    worker_rank: int,
    hosts: Sequence[str],
    source: TaskSource,
) -> EvaluatorHost:
    """What rank ``worker_rank`` of the worker at ``place`` does: keep its evaluator, and speak with its
    leader."""
    return EvaluatorHost(
        worker_rank=worker_rank,
        child_factory=child_factory(settings, place.ranks, worker_rank, hosts, source),
        send=lambda epoch, answer: transport.send(
            place.leader, encode(WorkerMessage(pack_answer(epoch, worker_rank, answer)))
        ),
        clock=transport.now,
    )


def make_inline_crew(
    *,
    transport: Transport,
    place: WorkerPlacement,
    hosts: Sequence[str],
    task: Task,
    stopping: Callable[[], bool],
) -> InlineCrew:
    """Like ``make_crew``, for evaluations inside the ranks; collective over the worker where it has
    several."""

    def send(worker_rank: int, content: dict[str, Any]) -> None:
        transport.send(place.ranks[worker_rank], encode(WorkerMessage(content)))

    return InlineCrew(
        evaluate=task.evaluate,
        objectives=tuple(task.objectives),
        size=len(place.ranks),
        comm=transport.communicator(place.ranks) if isinstance(transport, MpiTransport) else None,
        send=send,
        stopping=stopping,
        on_warning=_warner(place),
        device=inline_device(hosts, place.leader),
    )


def make_inline_follower(
    *, transport: Transport, place: WorkerPlacement, worker_rank: int, hosts: Sequence[str], task: Task
) -> InlineHost:
    """Like ``make_follower``, for evaluations inside the ranks; collective over the worker."""
    if not isinstance(transport, MpiTransport):
        raise TypeError("a worker of several ranks needs MPI")
    return InlineHost(
        worker_rank=worker_rank,
        size=len(place.ranks),
        evaluate=task.evaluate,
        objectives=tuple(task.objectives),
        comm=transport.communicator(place.ranks),
        send=lambda content: transport.send(place.leader, encode(WorkerMessage(content))),
        device=inline_device(hosts, place.ranks[worker_rank]),
    )


def inline_device(hosts: Sequence[str], rank: int) -> OwnDevice:
    """The device of a rank that evaluates in its own process. ``hosts``: by world rank."""
    environment = config.environment()
    return OwnDevice(
        own_device(environment, list(hosts[:rank]).count(hosts[rank])),
        label=f"rank {rank} on {hosts[rank]}",
        visible=environment.get("CUDA_VISIBLE_DEVICES"),
    )


def child_factory(
    settings: Settings, ranks: Sequence[int], worker_rank: int, hosts: Sequence[str], source: TaskSource
) -> Callable[[], EvaluatorProcess]:
    """Starts the evaluator of worker rank ``worker_rank``. ``ranks``: the worker's, ``hosts``: by world
    rank."""
    mine = hosts[ranks[worker_rank]]
    context = RankContext(
        worker_rank=worker_rank,
        size=len(ranks),
        local_rank=list(hosts[: ranks[worker_rank]]).count(mine),
        local_size=list(hosts).count(mine),
        hosts=tuple(hosts[rank] for rank in ranks),
        source=source,
        interface=settings.evaluation.interface,
    )
    return lambda: EvaluatorProcess(context, config.environment())
