"""What a rank is made of: which leader, evaluator host and coordinator it has, and what each is given."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from hpo.campaign.cleanup import Cleanup
from hpo.campaign.evaluators import (
    Jobs,
    make_crew,
    make_evaluator_host,
    make_inline_crew,
    make_inline_host,
)
from hpo.campaign.progress import Display
from hpo.campaign.status import LaunchLog, Status
from hpo.cluster import slurm
from hpo.cluster.signals import Signals
from hpo.config import reader as config
from hpo.config.layout import Layout, WorkerPlacement, topology_matrix
from hpo.errors import EXIT_RESUMABLE, CampaignError, HpoError, UsageError, describe_os_error
from hpo.evaluation.cores import cores_here
from hpo.evaluation.crew import ProcessCrew
from hpo.evaluation.directories import EvaluationDirectories
from hpo.evaluation.evaluator_host import EvaluatorHost
from hpo.evaluation.inline import InlineCrew, InlineHost
from hpo.individual import Configuration, Scalar
from hpo.islands.assignment import Assignment
from hpo.islands.coordinator.commands import Commands
from hpo.islands.coordinator.coordinator import Coordinator
from hpo.islands.coordinator.deaths import DeadLeaderRecord
from hpo.islands.coordinator.ending import STORAGE
from hpo.islands.coordinator.health import Health
from hpo.islands.coordinator.unseen import UnseenConfigurations
from hpo.islands.coordinator.worker_registry import WorkerRegistry
from hpo.islands.event_loop import RankRoles
from hpo.islands.leader.leader import Leader, LeaderSettings
from hpo.islands.leader.migration import MigrationSettings
from hpo.islands.leader.storage import StorageWait, storage_sentence
from hpo.islands.messages import End, Remark, Start, Surroundings, encode
from hpo.islands.resume.dead_leader import dead_leader_record
from hpo.islands.resume.fold import fold_directory
from hpo.islands.resume.individuals import failures, located
from hpo.islands.resume.state import ResumeState
from hpo.islands.transport import Transport
from hpo.journal.code_copies import change, keep_copy
from hpo.journal.commands import Inbox
from hpo.journal.files import JournalWriter, at_work, journal_path, read_directory, worker_records
from hpo.journal.lock import Lock
from hpo.journal.records import Ended, Header, Launched, Left, Record, Reopened, Stopping, Storage
from hpo.loggers.processes import SinkProcesses
from hpo.prior_results.points import wanted
from hpo.search import stopping_rules as pruning
from hpo.search.models.pareto import reference_losses
from hpo.search.phases import Phases, searched
from hpo.search.protocols import SearchContext
from hpo.space.restricted import restricted
from hpo.space.space import SearchSpace, listable
from hpo.task.code_version import CodeVersion, code_of
from hpo.task.known_point import Allows
from hpo.task.task import MAXIMIZE, Task, TaskSource, listed
from hpo.terminal import one_line, write

_CONSTRAINTS, _STEPS = "[constraints]", "[steps]"
"""No names of metrics, as remarks have."""


def _unseen(
    whole: SearchSpace, allows: Allows, only: Sequence[Mapping[str, Sequence[Scalar]]]
) -> list[UnseenConfigurations]:
    """What islands that keep to ``only`` can evaluate, by island."""

    parts = [part for place, part in enumerate(only) if part not in only[:place]]
    spaces = [restricted(whole, part) for part in parts]
    unseen = [
        UnseenConfigurations(partial(listed, space, allows) if listable(space) else None) for space in spaces
    ]
    return [unseen[parts.index(part)] for part in only]


@dataclass(kw_only=True)
class Assembly:
    """Makes the parts of this rank. ``source``: how evaluators get the task, None where they are inside the ranks;
    ``closing``: ends what is made here; ``code``: of the task, None where it is that which this process sees;
    ``writer``: the journal of the worker that this rank leads; ``log``: of rank 0."""

    settings: config.Settings
    task: Task
    source: TaskSource | None
    transport: Transport
    layout: Layout
    signals: Signals
    closing: ExitStack
    code: CodeVersion | None = None
    writer: JournalWriter | None = None
    log: LaunchLog | None = None
    _remarked: set[str] = field(default_factory=set)

    def roles(self, place: WorkerPlacement, groups: list[list[int]], start: Start) -> RankRoles:
        """What this rank is in the worker at ``place``, from ``start`` on. ``groups``: the leaders of each island."""
        settings, transport, signals, closing = self.settings, self.transport, self.signals, self.closing
        inline = settings.evaluation.isolation == "inline"
        worker_rank = place.ranks.index(transport.rank)
        if worker_rank:
            evaluator_host: EvaluatorHost | InlineHost
            if inline:
                evaluator_host = make_inline_host(
                    transport=transport,
                    place=place,
                    worker_rank=worker_rank,
                    surroundings=start.surroundings,
                    task=self.task,
                )
            else:
                evaluator_host = make_evaluator_host(
                    settings,
                    transport=transport,
                    place=place,
                    worker_rank=worker_rank,
                    surroundings=start.surroundings,
                    source=self._source,
                )
            closing.callback(evaluator_host.close)
            return RankRoles(
                members=place.ranks,
                leader=None,
                non_leader=evaluator_host,
                filenos=evaluator_host.filenos,
                inline=evaluator_host if isinstance(evaluator_host, InlineHost) else None,
            )
        header = Header.of_this_process(
            launch=start.launch,
            island=place.island,
            worker=place.worker,
            job=str(config.slurm_attempt() or ""),
        )
        writer = JournalWriter(self._journal_of(place, start.launch), header)
        self.writer = writer
        self.log = LaunchLog(number=start.launch, began=header.time)
        closing.callback(_close, writer)
        crew: ProcessCrew | InlineCrew
        if inline:
            crew = make_inline_crew(
                settings,
                transport=transport,
                place=place,
                launch=start.launch,
                surroundings=start.surroundings,
                task=self.task,
                stopping=lambda: signals.count > 0,
            )
        else:
            crew = make_crew(
                settings,
                transport=transport,
                place=place,
                launch=start.launch,
                surroundings=start.surroundings,
                source=self._source,
                objectives=self.task.objectives,
            )
        closing.callback(crew.close, 10.0)
        leader = self.leader(place, groups, crew, writer, start.surroundings)
        leader.begin(start)
        return RankRoles(
            members=place.ranks,
            leader=leader,
            non_leader=None,
            filenos=crew.filenos,
            inline=crew if isinstance(crew, InlineCrew) else None,
        )

    def coordinator(
        self,
        start: Start,
        earlier: ResumeState,
        points: Sequence[Mapping[str, Scalar]],
        known: Sequence[Record],
        ended: Callable[[int], bool],
    ) -> Coordinator:
        """The coordinator, on rank 0, once that has its parts. ``points``: to be evaluated first; ``known``: the
        records of results that were entered; ``ended``: whether the process of a rank is known to have ended."""
        settings, space, layout = self.settings, self.task.space, self.layout
        transport, signals = self.transport, self.signals
        assert self.writer is not None and self.log is not None  # rank 0 leads the first worker
        writer, log = self.writer, self.log
        code = self.code or code_of(self.task)
        keep_copy(settings.directory, code)
        if sentence := change(settings.directory, earlier.code, code.hash):
            write(f"hpo: {sentence}", sys.stderr, flush=True)
        # On record before anything is evaluated, in a file of its own place.
        for record in known:
            writer.append(record)
        standing = earlier.commands
        evaluations = standing.evaluations(settings.evaluations)
        deadline_s = standing.deadline_s(settings.deadline_s)
        pruners = (settings.search_of(island).pruner for island in range(layout.islands))
        launched = Launched(
            evaluations=evaluations,
            deadline_s=deadline_s,
            islands=layout.islands,
            workers=len(layout.workers),
            ranks_per_worker=settings.layout.ranks_per_worker,
            time=time.time(),
            reference=dict(settings.search.reference) if settings.search.reference else None,
            code=code.hash,
            contested=earlier.contested,
            pruner=next((one for one in pruners if one != "none"), "none"),
        )
        writer.append(launched)
        log.launched = launched
        standing.launched(launched)

        def commit() -> None:
            # What cannot be written now is tried again by rank 0's leader, whose journal it is, and in the end by
            # ``settle``.
            with suppress(OSError):
                writer.commit()

        commit()

        def stopping(reason: str) -> None:
            writer.append(Stopping(reason=reason, time=time.time()))
            commit()

        def storage_changed(error: str | None) -> None:
            writer.append(Storage(error=error, time=time.time()))
            commit()

        def ended_by(end: End) -> None:
            log.ended = Ended(reason=end.reason, exit=end.exit_code, time=time.time())
            writer.append(log.ended)
            commit()

        def reopened(again: list[Assignment], reason: str) -> None:
            for one in again:
                writer.append(Reopened(id=one.id, number=one.reopened, reason=reason, time=time.time()))
            commit()

        def worker_left(place: WorkerPlacement, reason: str) -> None:
            left = Left(
                island=place.island,
                worker=place.worker,
                reason=reason,
                time=time.time(),
                may_run=registry.may_run(place.ranks),
            )
            log.left.append(left)
            writer.append(left)
            commit()

        registry = WorkerRegistry(layout.workers, ended=ended)

        def read_dead_leader(place: WorkerPlacement) -> DeadLeaderRecord:
            records = worker_records(
                settings.directory,
                launch=start.launch,
                island=place.island,
                worker=place.worker,
                given_up=registry.may_run([place.leader]),
            )
            with located(settings.directory):
                return dead_leader_record(
                    records, space=space, islands=layout.islands, losses=self.task.losses
                )

        def read_failures() -> list[tuple[str, Assignment]]:
            with at_work(settings.directory):
                return failures(read_directory(settings.directory), space=space)

        def journal_totals() -> ResumeState:
            with at_work(settings.directory), located(settings.directory):
                found = fold_directory(
                    settings.directory, space=space, islands=layout.islands, losses=self.task.losses
                )
            found.avoid(EvaluationDirectories(settings.directory).taken())
            return found

        checkpoints = settings.evaluation.checkpoints
        first = [] if self.task.default is None else [(self.task.default, "default")]
        first += [(dict(point), "given") for point in (*self.task.points, *points)]
        limits = slurm.job()
        job = None if limits is None else slurm.JobEnd(limits, settings.evaluation.grace_s)
        began = config.deadline_from(settings, transport.now())

        def validated(label: str, params: Mapping[str, object]) -> dict[str, Scalar]:
            return wanted(label, params, space, self.task.allows)

        coordinator = Coordinator(
            transport=transport,
            registry=registry,
            everyone=range(transport.size),
            dead_leader_record=read_dead_leader,
            journal_totals=journal_totals,
            evaluations=evaluations,
            deadline=None if deadline_s is None else began + deadline_s,
            known=earlier.keys,
            assignments=[
                *earlier.pending,
                *(
                    Assignment(
                        configuration=Configuration(id="", params=dict(params), operator=name),
                        key=space.key(params),
                    )
                    for params, name in first
                ),
            ],
            tally=earlier.tally,
            duplicates=settings.search.duplicates,
            phases=Phases([phase.until for phase in settings.phase]),
            unseen=_unseen(
                space, self.allows, [settings.search_of(island).only for island in range(layout.islands)]
            ),
            grace_s=settings.evaluation.grace_s,
            commands=Commands(
                inbox=Inbox(settings.directory, applied=standing.applied),
                standing=standing,
                journal=writer,
                in_file={"evaluations": settings.evaluations, "deadline_s": settings.deadline_s},
                began=began,
                validated=validated,
                key=space.key,
                failures=read_failures,
                now=time.time,
            ),
            checkpoints=earlier.saves if checkpoints is None else checkpoints,
            must_end=None if job is None else lambda: job.must_end(signals.requests.terminated),
            stop_begun=stopping,
            storage_changed=storage_changed,
            ended=ended_by,
            health=Health(
                settings.evaluation.first_failures,
                printed=EvaluationDirectories(settings.directory).printed,
                patience_s=settings.evaluation.start_timeout_s,
                leaders=[place.leader for place in layout.workers],
                earlier=earlier.tally.worked_and_failed,
            ),
            timed=settings.evaluation.timeout_s is not None,
            reopened=reopened,
            worker_left=worker_left,
        )
        if len(self.task.objectives) > 1:
            searches = (settings.search_of(island) for island in range(layout.islands))
            for kind in dict.fromkeys(one.kind for one in searches if one.traits.one_objective):
                coordinator.remarks.append(
                    f'kind = "{kind}" models one objective: with {len(self.task.objectives)} it proposes as '
                    '"evolution" does'
                )
        if standing.paused:
            coordinator.paused = True
            coordinator.remarks.append("paused: nothing new starts until `hpo unpause`")
        coordinator.enqueue(earlier.enqueued)
        coordinator.look_at_commands()  # those given between launches hold before anything is granted
        return coordinator

    @property
    def hang_timeout_s(self) -> float:
        """After how long without a sign of life a rank is given up; never where evaluations let it show none."""
        evaluation = self.settings.evaluation
        blind = evaluation.isolation == "inline" and not self.transport.any_thread
        return math.inf if blind else evaluation.hang_timeout_s

    def status(self, lock: Lock, coordinator: Coordinator, earlier: ResumeState) -> Status:
        """What rank 0 keeps for ``hpo status``."""
        settings, standing = self.settings, earlier.commands
        assert self.log is not None
        return Status(
            settings.directory,
            lock,
            earlier=earlier,
            log=self.log,
            limits=lambda: (coordinator.evaluations, standing.deadline_s(settings.deadline_s)),
            objectives=self.task.objectives,
            watched=config.panel_shown(),
            repeats=any(settings.search_of(one).reevaluate for one in range(settings.layout.islands)),
        )

    def settle(self, end: End) -> End:
        """Put on disk what is not there yet, as the launch ended by ``end``; rank 0 waits for the storage if need be.
        How the launch has ended: for want of its storage where rank 0's journal could not be written."""
        wait, writer = StorageWait(), self.writer
        while writer is not None and (writer.error is not None or writer.pending):
            try:
                writer.commit()
            except OSError as error:
                wait.failed(describe_os_error(error, writer.path), time.monotonic())
                # Of others no result is missing that the coordinator has counted.
                if wait.over or end.reason == STORAGE or self.transport.rank:
                    writer.discard()
                else:
                    time.sleep(max(0.0, wait.retry_at - time.monotonic()))
        if self.transport.rank == 0 and wait.over and wait.error is not None:
            return End(STORAGE, EXIT_RESUMABLE, storage_sentence(wait.error))
        return end

    def _journal_of(self, place: WorkerPlacement, launch: int) -> Path:
        return journal_path(self.settings.directory, launch=launch, island=place.island, worker=place.worker)

    def leader(
        self,
        place: WorkerPlacement,
        groups: list[list[int]],
        crew: ProcessCrew | InlineCrew,
        writer: JournalWriter,
        surroundings: Surroundings,
    ) -> Leader:
        """The leader of the worker at ``place``, not begun."""
        settings, transport = self.settings, self.transport
        search = settings.search_of(place.island)
        objectives = self.task.objectives
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
                objectives=len(objectives),
                inline=settings.evaluation.isolation == "inline",
                allows=self.allows if self.task.constraints else None,
                offers=jobs.offers,
            ),
        )
        return Leader(
            place=place,
            peers=groups[place.island],
            islands=groups,
            coordinator=0,
            transport=transport,
            space=space,
            breeder=breeder,
            crew=crew,
            job_of=jobs,
            journal=writer,
            settings=LeaderSettings(
                seed=settings.seed,
                losses=self.task.losses,
                allows=self.allows,
                migration=MigrationSettings(
                    # What an interval of training reached says nothing of its parameters where training begins.
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
                sign=-1.0 if objectives[pruning.reported_objective(search, objectives)] == MAXIMIZE else 1.0,
                reference=reference_losses(search.reference, objectives),
            ),
            forget=EvaluationDirectories(settings.directory).forget,
            signalled=lambda: self.signals.count > 0,
        )

    def allows(self, params: dict[str, Scalar]) -> bool:
        """Whether the constraints hold. While the campaign runs, a configuration for which one raises is refused: it
        may be one of thousands, and would come again in each launch that goes on."""
        try:
            return self.task.allows(params)
        except CampaignError as error:
            self._remark(_CONSTRAINTS, "configurations for which a constraint raises are left out", error)
            return False

    def steps(self, params: dict[str, Scalar]) -> int | None:
        """How many steps a whole run reports; None where the task does not say it, or fails to."""
        try:
            return self.task.steps_of(params)
        except UsageError as error:
            self._remark(_STEPS, "the pruner does not know how long some runs are", error)
            return None

    def _remark(self, name: str, begin: str, error: HpoError) -> None:
        if name not in self._remarked:
            self._remarked.add(name)
            self.transport.send(0, encode(Remark(name, f"{begin}: {str(error).rstrip('.')}")))

    @property
    def _source(self) -> TaskSource:
        assert self.source is not None
        return self.source


def _close(writer: JournalWriter) -> None:
    # After ``settle`` nothing is left to be written; before it, an error is on its way already.
    with suppress(OSError):
        writer.close()


class Housekeeping:
    """What rank 0 does beside the protocol, now and then: end where the lock is lost, show how it goes, remove
    what nothing needs."""

    def __init__(
        self,
        lock: Lock,
        coordinator: Coordinator,
        display: Display,
        status: Status,
        cleanup: Cleanup | None,
        sinks: SinkProcesses | None,
    ) -> None:
        self._lock = lock
        self._cleanup = cleanup
        self._coordinator = coordinator
        self._display = display
        self._status = status
        self._sinks = sinks
        self._said: set[str] = set()

    def __call__(self, now: float) -> None:
        self._lock.check()
        if not self._said and (remarks := self._status.remarks(self._coordinator)):
            self._said.update(remarks)
            self._coordinator.remarks.extend(remarks)
        while self._coordinator.remarks:
            with suppress(OSError):  # its reader may be gone
                write(f"hpo: {one_line(self._coordinator.remarks.popleft())}.", sys.stderr, flush=True)
        self._display.update(self._coordinator, now)
        self._status.update(self._coordinator, now)
        if self._cleanup is not None:
            self._cleanup.step(now, self._coordinator.reopened_ids)
        if self._sinks is not None:
            with suppress(OSError):  # the reader of what is said may be gone
                self._sinks.look()
