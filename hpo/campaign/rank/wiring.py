"""Parts of a rank in its worker: leader with crew, or evaluator host, and what each of them gets."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from hpo.campaign.definition import CampaignDefinition
from hpo.campaign.rank.evaluators import Jobs, child_factory, curve_file, make_warner
from hpo.cluster.signals import Signals
from hpo.config import process
from hpo.config.layout import Layout, WorkerPlacement, topology_matrix
from hpo.errors import EXIT_RESUMABLE, CampaignError, HpoError, UsageError, describe_os_error
from hpo.evaluation.conversation import pack
from hpo.evaluation.cores import cores_here
from hpo.evaluation.crew import ProcessCrew
from hpo.evaluation.directories import EvaluationDirectories
from hpo.evaluation.evaluator_host import EvaluatorHost
from hpo.evaluation.gpu import OwnDevice, inline_device
from hpo.evaluation.inline import InlineCrew, InlineHost
from hpo.individual import Scalar
from hpo.islands.end_reasons import STORAGE
from hpo.islands.event_loop import RankRoles
from hpo.islands.leader.elites import EliteExchange
from hpo.islands.leader.island import LeaderSettings, OwnWorker
from hpo.islands.leader.leader import Leader
from hpo.islands.leader.migration import MigrationSettings
from hpo.islands.messages import End, Remark, Start, Surroundings, WorkerMessage, encode
from hpo.islands.storage import StorageWait, storage_sentence
from hpo.islands.transport import Transport
from hpo.journal.files import JournalWriter, journal_path
from hpo.journal.records import Header
from hpo.ledger.opening import FollowedLedger
from hpo.search import stopping_rules as pruning
from hpo.search.models.pareto import reference_losses
from hpo.search.phases import searched
from hpo.search.population import OtherTasks
from hpo.search.protocols import SearchContext
from hpo.task.task import MAXIMIZE

# Names that no metric, the usual subject of a remark, can have.
_CONSTRAINTS, _STEPS = "[constraints]", "[steps]"


@dataclass(kw_only=True, eq=False)
class Assembly:
    """Makes the parts of this rank, which ``closing`` ends. ``writer``: journal of the worker that this rank leads,
    which began at ``began`` (Unix seconds)."""

    definition: CampaignDefinition
    transport: Transport
    layout: Layout
    signals: Signals
    closing: ExitStack
    writer: JournalWriter | None = None
    began: float = 0.0
    duties: list[Callable[[float], object]] = field(default_factory=list)
    """Functions to call in each turn of the event loop, with the time in Unix seconds."""

    def __post_init__(self) -> None:
        self.settings = self.definition.settings
        self.task = self.definition.task
        self._remarked: set[str] = set()

    def roles(self, place: WorkerPlacement, start: Start) -> RankRoles:
        """Roles of this rank in the worker at ``place``, from ``start`` on."""
        worker_rank = place.ranks.index(self.transport.rank)
        if worker_rank:
            host = self._evaluator_host(place, worker_rank, start.surroundings)
            self.closing.callback(host.close)
            return RankRoles(
                members=place.ranks,
                leader=None,
                non_leader=host,
                filenos=host.filenos,
                inline=host if isinstance(host, InlineHost) else None,
            )
        header = Header.of_this_process(
            launch=start.launch,
            island=place.island,
            worker=place.worker,
            ranks=len(place.ranks),
            job=str(process.slurm_attempt() or ""),
        )
        path = journal_path(
            self.settings.directory, launch=start.launch, island=place.island, worker=place.worker
        )
        self.writer, self.began = JournalWriter(path, header), header.time
        self.closing.callback(_close, self.writer)
        crew = self._crew(place, start)
        self.closing.callback(crew.close, 10.0)
        leader = self.leader(place, crew, self.writer, start.surroundings, start.tasks)
        leader.begin(start)
        self._exchange_elites(leader, place.island, start.launch)
        return RankRoles(
            members=place.ranks,
            leader=leader,
            non_leader=None,
            filenos=crew.filenos,
            inline=crew if isinstance(crew, InlineCrew) else None,
        )

    def _exchange_elites(self, leader: Leader, island: int, launch: int) -> None:
        """Let the island exchange individuals with other launches, unless their checkpoints, which those may remove,
        would be needed."""
        settings = self.settings
        if settings.search_of(island).traits.needs_checkpoints or settings.inherits(island):
            return
        ledger = FollowedLedger(settings.directory)
        self.duties.append(
            EliteExchange(
                leader,
                settings.directory,
                launch=launch,
                island=island,
                others=lambda: ledger.state().open.keys() - {launch},
                limits=self.task.limits,
            )
        )

    def _evaluator_host(
        self, place: WorkerPlacement, worker_rank: int, surroundings: Surroundings
    ) -> EvaluatorHost | InlineHost:
        def send(content: dict[str, Any]) -> None:
            self.transport.send(place.leader, encode(WorkerMessage(content)))

        if not self._inline:
            return EvaluatorHost(
                worker_rank=worker_rank,
                child_factory=child_factory(self.settings, surroundings, worker_rank, self.definition.source),
                send=lambda epoch, answer: send(pack(epoch, worker_rank, answer)),
                clock=self.transport.now,
            )
        comm = self.transport.communicator(place.ranks)
        if comm is None:
            raise TypeError("a worker of several ranks needs MPI")
        return InlineHost(
            worker_rank=worker_rank,
            local_rank=surroundings.hosts[:worker_rank].count(surroundings.hosts[worker_rank]),
            size=len(place.ranks),
            task=self.task,
            comm=comm,
            send=send,
            device=_inline_device(surroundings, worker_rank, place),
        )

    def _crew(self, place: WorkerPlacement, start: Start) -> ProcessCrew | InlineCrew:
        settings, surroundings = self.settings, start.surroundings
        curve = curve_file(settings, place, start.launch, self.task.objectives)

        def send(worker_rank: int, content: dict[str, Any]) -> None:
            self.transport.send(place.ranks[worker_rank], encode(WorkerMessage(content)))

        if self._inline:
            return InlineCrew(
                task=self.task,
                size=len(place.ranks),
                comm=self.transport.communicator(place.ranks),
                send=send,
                stopping=lambda: self.signals.count > 0,
                on_warning=make_warner(place),
                device=_inline_device(surroundings, 0, place),
                curve=curve,
            )
        crew = ProcessCrew(
            size=len(place.ranks),
            child_factory=child_factory(settings, surroundings, 0, self.definition.source, curve),
            send=send,
            settings=settings.evaluation,
            on_warning=make_warner(place),
            clock=self.transport.now,
        )
        crew.prepare()  # its evaluators start meanwhile
        return crew

    @property
    def _inline(self) -> bool:
        return self.settings.evaluation.isolation == "inline"

    @property
    def hang_timeout_s(self) -> float:
        """After how long without a sign of life a rank is given up; never where evaluations let it show none."""
        evaluation = self.settings.evaluation
        blind = evaluation.isolation == "inline" and not self.transport.any_thread
        return math.inf if blind else evaluation.hang_timeout_s

    def settle(self, end: End) -> End:
        """Write the rest of the journal, for which rank 0 waits if need be. ``end``, or another end of the launch where
        rank 0's journal could not be written."""
        wait, writer = StorageWait(), self.writer
        while writer is not None and (writer.error is not None or writer.pending):
            try:
                writer.commit()
            except OSError as error:
                wait.failed(describe_os_error(error, writer.path), time.monotonic())
                # The coordinator has counted only results that are in the other ranks' journals.
                if wait.over or end.reason == STORAGE or self.transport.rank:
                    writer.discard()
                else:
                    time.sleep(max(0.0, wait.retry_at - time.monotonic()))
        if self.transport.rank == 0 and wait.over and wait.error is not None:
            return End(STORAGE, EXIT_RESUMABLE, storage_sentence(wait.error))
        return end

    def leader(
        self,
        place: WorkerPlacement,
        crew: ProcessCrew | InlineCrew,
        writer: JournalWriter,
        surroundings: Surroundings,
        tasks: OtherTasks = MappingProxyType({}),
    ) -> Leader:
        settings, transport, layout = self.settings, self.transport, self.layout
        groups = [[one.leader for one in layout.of_island(island)] for island in range(layout.islands)]
        search, objectives = settings.search_of(place.island), self.task.objectives
        reported = pruning.reported_objective(search, objectives)
        jobs = Jobs(EvaluationDirectories(settings.directory), settings.seed)
        space, breeder = searched(
            self.task.space,
            settings,
            place.island,
            SearchContext(
                clock=transport.now,
                all_workers=sum(map(len, groups)),
                local_workers=surroundings.local_leaders,
                cores=cores_here(),
                workers=len(groups[place.island]),
                islands=len(groups),
                evaluations=settings.evaluations,
                reported=list(objectives).index(reported),
                inline=settings.evaluation.isolation == "inline",
                allows=self.allows if self.task.constraints else None,
                tasks=tasks,
                offers=jobs.offers,
            ),
        )
        return Leader(
            worker=OwnWorker(
                place=place,
                crew=crew,
                jobs=jobs,
                journal=writer,
                signalled=lambda: self.signals.count > 0,
            ),
            islands=groups,
            transport=transport,
            space=space,
            breeder=breeder,
            settings=LeaderSettings(
                seed=settings.seed,
                losses=self.task.losses,
                limits=self.task.limits,
                allows=self.allows,
                migration=MigrationSettings(
                    # The value of an interval of training says nothing of its parameters where training begins.
                    probability=0.0 if search.traits.needs_checkpoints else search.migration,
                    copy=search.exchange == "pollination",
                    emigrants=topology_matrix(settings.layout.topology, len(groups))[place.island],
                    ring=settings.layout.topology == "ring",
                ),
                retries=settings.evaluation.retries,
                duplicates=settings.search.duplicates,
                durable_starts=settings.evaluation.isolation != "inline",
                grace_s=settings.evaluation.grace_s,
                keep=settings.keep,
                pruning=pruning.of_search(search, self.task.objectives),
                steps=self.steps,
                reported=next(iter(objectives)) if len(objectives) == 1 else None,
                sign=-1.0 if objectives[reported] == MAXIMIZE else 1.0,
                reference=reference_losses(search.reference, objectives),
            ),
        )

    def allows(self, params: dict[str, Scalar]) -> bool:
        """Whether the constraints hold. A configuration for which a constraint raises is refused: it may be one of
        thousands, and would come again in each launch that goes on."""
        try:
            return self.task.allows(params)
        except CampaignError as error:
            self._remark(_CONSTRAINTS, "configurations for which a constraint raises are left out", error)
            return False

    def steps(self, params: dict[str, Scalar]) -> int | None:
        """Steps that a whole run reports; None where the task does not say it, or fails to."""
        try:
            return self.task.steps_of(params)
        except UsageError as error:
            self._remark(_STEPS, "the pruner does not know how long some runs are", error)
            return None

    def _remark(self, name: str, begin: str, error: HpoError) -> None:
        if name not in self._remarked:
            self._remarked.add(name)
            self.transport.send(0, encode(Remark(name, f"{begin}: {str(error).rstrip('.')}")))


def _close(writer: JournalWriter) -> None:
    # After ``settle`` nothing is left to be written; before it, an error is on its way already.
    with suppress(OSError):
        writer.close()


def _inline_device(surroundings: Surroundings, worker_rank: int, place: WorkerPlacement) -> OwnDevice:
    label = f"rank {place.ranks[worker_rank]} on {surroundings.hosts[worker_rank]}"
    return inline_device(process.environment(), surroundings.local_rank, label)
