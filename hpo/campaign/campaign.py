"""A campaign: wires the parts on each rank, and owns no algorithm.

``run`` is called on every rank. Rank 0 opens the directory, hears from all ranks that they can read the
campaign, and sends each its state; from there on ranks exchange messages and nothing else, without a
barrier."""

from __future__ import annotations

import atexit
import copy
import os
import random
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext, suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from hpo.arguments import checked_arguments
from hpo.campaign import handed_on
from hpo.campaign.cleanup import Cleanup, keep_only_best
from hpo.campaign.greeting import ended_here, greet, greeting_s, own_hello
from hpo.campaign.known_points import enter_points, new_points
from hpo.campaign.progress import Display
from hpo.campaign.wiring import Assembly, Housekeeping
from hpo.cluster.mpi_startup import connect, give_up, leave_without_mpi
from hpo.cluster.signals import PATIENCE, Signals
from hpo.config import reader as config
from hpo.config.layout import Layout
from hpo.config.reader import tolerates_deaths
from hpo.errors import EXIT_RESUMABLE, CampaignError, HpoError, StorageFailed, UsageError, noted
from hpo.evaluation.directories import EvaluationDirectories
from hpo.evaluation.environment import child_environment
from hpo.individual import Scalar
from hpo.islands.coordinator.ending import DEADLINE, FUTILE, LOST, REFUSED, STOPPED, STORAGE, UNFIT
from hpo.islands.event_loop import EventLoop
from hpo.islands.messages import End, Start, decode, encode
from hpo.islands.resume import snapshot
from hpo.islands.resume.fold import fold_directory
from hpo.islands.resume.individuals import located
from hpo.islands.resume.start import start_messages
from hpo.islands.resume.state import ResumeState
from hpo.islands.transport import Transport
from hpo.journal import directory
from hpo.journal.commands import clear_stop, stop_pending
from hpo.journal.files import fence_launch, last_launch
from hpo.journal.lock import Lock, acquire
from hpo.journal.records import Record
from hpo.loggers import registry
from hpo.loggers.processes import SinkProcesses
from hpo.prior_results.points import KnownPoints, read_points
from hpo.results.result import Result
from hpo.search import phases
from hpo.search import stopping_rules as pruning
from hpo.search.kinds import reevaluation
from hpo.search.models.pareto import reference_losses
from hpo.task.code_version import CodeVersion, code_of
from hpo.task.task import Task, TaskSource, load_task
from hpo.terminal import one_line, quoted, write
from hpo.text import excerpt

_DRAWS = 10_000
_DRAWS_OF_ALL = 1_000
"""As many are looked at for one for which a constraint raises, if that takes no longer than the seconds below."""
_SEARCHED_S = 2.0
_DRAWS_FOR_STEPS = 100


class _Opening(NamedTuple):
    """Parts of a launch that rank 0 has opened. ``known``: the records of results that were entered; ``ended``: whether
    the process of a rank is known to have ended."""

    lock: Lock
    earlier: ResumeState
    known: Sequence[Record]
    sinks: SinkProcesses
    ended: Callable[[int], bool]


class Campaign:
    """An asynchronous evolutionary search over a task's space, by islands of workers.

        result = hpo.Campaign(task, directory="runs/x", evaluations=200, timeout="10min").run()

    Keywords are the keys of a campaign file without its sections; ``evaluations`` or ``deadline`` is required. A
    duration is a number of seconds or a string such as "90s", "30min", "1h30m" or "2d", at most ten years.

    Args:
        task (Task): what is searched and how a configuration is evaluated.
        directory (path): where the campaign lies; one that holds a campaign of the same task continues.
        evaluations (int, from 1; default None): the number of individuals over all launches.
        deadline (duration; default None): of each launch.
        seed (int, from 0; default 0): of all random numbers. The same seed does not repeat an asynchronous run.
        keep (int, from 0; default 3): checkpoints of this many best individuals are kept.
        known (list; default ()): results to start from: paths of tables, campaigns and Optuna storages, tables such
            as {"source": "study.db", "study": "first"}, points such as {"params": {…}, "value": 0.9}, what
            ``hpo.known_points`` returned.
        points (list; default ()): configurations to evaluate first, as dictionaries or paths of tables.
        restarts (int, from 0; default 10): how often ``hpo run`` starts mpirun again after ranks died.
        islands (int, from 1; default 1): each has at least one worker.
        ranks_per_worker (int, from 1; default 1): ranks that train one individual together. The number of ranks must
            be a multiple of it.
        topology ("ring", "full" or matrix; default "ring"): where migrants go. Row i, column j of a matrix is how
            many individuals island i sends to island j at a time.
        island (list of dict; default ()): for island 0, 1, …: its own values of the search keywords below, except
            ``duplicates`` and ``reference``.
        phase (list of dict; default ()): one after the other, what is open until how many individuals have begun, such
            as {"until": 100, "only": {"depth": [1, 2]}}; afterwards the whole space.
        kind (str; default "default"): the search kind: "default", "surrogate", "evolution", "portfolio", "tpe", "gp",
            "optuna-cmaes", "genetic", "cmaes", "pso", "nelder-mead", "pbt", "grid" or "random".
        initial (str; default "random"): how the first individuals are drawn: "random", "sobol" or "latin-hypercube".
        grid_points (int, 2 to 100000; default 5): with "grid", values of each Float, and of an Int that has more.
        crossover (float, 0 to 1; default 0.7): probability of two parents ("evolution", "surrogate"); "genetic": share
            of the first parent's genes, as in Propulate.
        mutation (float, 0 to 1; default 0.4): probability of a point mutation ("genetic").
        random (float, 0 to 1; default 0.1): probability of a random individual; "surrogate": four times this share of
            the candidates among which it chooses is random.
        migration (float, 0 to 1; default 0.9): probability, after each evaluation, that individuals leave the island.
        exchange (str; default "migration"): "migration" moves individuals, "pollination" copies them.
        pool (int, from 2; default None): number of parents, at most 64; None: a fifth of the completed, at least 5
            ("genetic": 8; "pbt": 10 lineages).
        duplicates (bool; default False): whether a configuration may be evaluated more than once.
        reevaluate (float, 0 to 0.5; default 0.0): share of the individuals that repeat the best configurations.
        pruner (str; default "none"): early stopping by ``trial.report``: "none", "halving" or "median".
        min_steps (int, from 1; default 1): steps before the first comparison.
        reduction (int, from 2; default 3): "halving": the best 1/reduction continue, reduction times as far.
        patience (int, from 0; default 0): comparisons in a row that may fail before an individual is stopped.
        startup (int, from 1; default None): individuals to compare with before any is stopped; None: 1 for "halving",
            5 for "median".
        promote (bool; default True): "halving": individuals that fall behind are paused and may continue later.
        reported (str; default None): the objective that ``trial.report`` reports, where there are several.
        perturb (list of str; default None): "pbt": parameters that may change during training; None: all Float and
            Int.
        reference (dict; default {}): several objectives: a number by name; individuals worse than it in any objective
            rank last.
        only (dict; default {}): allowed choices by parameter, such as {"optimizer": ["SGD"]}.
        inherit (bool; default None): whether children find their parent's checkpoint at ``trial.parent_checkpoint``;
            None: where there are phases.
        isolation (str; default "warm"): "warm" evaluator processes persist, "fresh" ones serve one evaluation;
            "inline" evaluates inside the rank, for functions of microseconds, without time-out and protection.
        timeout (duration; default None): an evaluation that takes longer is killed; None: never.
        retries (int, from 0; default 1): how often an individual whose process died is evaluated again.
        grace (duration or 0; default 60.0): how long evaluations may save when the campaign stops.
        start_timeout (duration; default 300.0): how long evaluators may take to start; and ranks, to which a launch
            gives at least 120 s, and 0.05 s more for each.
        hang_timeout (duration, from 1 s; default 120.0): a rank that shows no life for so long is given up, and what it
            evaluates runs elsewhere.
        first_failures (int, from 1, or "off"; default 30): failures in a row, of all workers, that end a launch; a
            third where nothing has worked and all errors are the same. They are evaluated again later.
        checkpoints (bool; default None): whether the task saves when asked to; None: seen from what it did.
        interface (str; default None): network interface between the hosts of a worker; None: found.
        log_curves (bool; default True): whether what trials report is kept, for ``Result.curves()``.
        log_every (duration or 0; default 1.0): of a trial's reports at most one in this time is kept, besides the first
            and the last; 0: each.
        log_sinks (list of str; default []): "tensorboard", "mlflow", "wandb", "trackio".
        log_directory (path; default None): where sinks write; None: ``logs`` in ``directory``.
        log_system (duration, from 1 s, or "off"; default None): how often use of processor, memory and GPU is kept.
        log_output (size in bytes or such as "64kB", the least, or "off"; default 10_000_000): how much is kept of what
            an evaluation prints on each rank: its beginning and its end.

    Raises:
        UsageError: a keyword is unknown or its value is not allowed; all such mistakes together.
    """

    _source: TaskSource | None

    @checked_arguments()
    def __init__(self, task: Task, *, directory: str | Path, **keywords: object) -> None:
        if not isinstance(task, Task):
            raise UsageError(
                f"Campaign takes an hpo.Task, not {type(task).__name__}: write hpo.Task(space, evaluate)"
            )
        self.task = task
        self._describe(config.from_keywords(directory=directory, **keywords))

    @classmethod
    def from_file(cls, path: str | Path) -> Campaign:
        """The campaign that a campaign file describes.

        Args:
            path (path): of the TOML file.

        Raises:
            UsageError: the file cannot be read, or a key or value in it is not allowed.
            CampaignError: the task that it names cannot be imported.
        """
        if not isinstance(path, (str, os.PathLike)):
            raise UsageError(f"Campaign.from_file({excerpt(path)}): must be the path of a campaign file")
        settings = config.read_file(Path(path))
        if settings.task is None:
            raise UsageError(
                f'{path}: no task is named. Add task = "package.module:name" or "file.py:name" at its top'
            )
        base = Path(path).resolve().parent
        campaign = cls.__new__(cls)
        campaign.task = load_task(settings.task, base=base, options=settings.task_options)
        source = TaskSource(reference=settings.task, base=str(base), options=settings.task_options)
        campaign._describe(settings, settings.task, source)
        return campaign

    @property
    def source(self) -> TaskSource:
        """How evaluators get the task; raises CampaignError where they cannot."""
        if self._source is None:
            self._source = TaskSource.of(self.task)
        return self._source

    def __getstate__(self) -> dict[str, object]:
        """For a rank that this process starts; with the code of the task as it is seen here."""
        code = self._code or code_of(self.task)
        return {"settings": self.settings, "reference": self._reference, "source": self.source, "code": code}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.task = state["source"].load()
        self._describe(state["settings"], state["reference"], state["source"], state["code"])

    def _describe(
        self,
        settings: config.Settings,
        reference: str | None = None,
        source: TaskSource | None = None,
        code: CodeVersion | None = None,
    ) -> None:
        """``reference``: of the task in a campaign file; ``code``: of the task, None where it is as seen from here."""
        self.settings = settings
        self.exit_code = 0
        self.process_code = 0
        """What the process of this rank returns where it cannot end MPI."""
        self._reference = reference
        self._source = source
        self._code = code
        self._serving = False
        self._points: list[dict[str, Scalar]] = []
        self._known: list[KnownPoints] = []
        self._left_out: list[str] = []

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
        problems: dict[str, None] = {}  # in order; what all islands share is reported once
        with noted(problems):
            self._check_constraints()
        with noted(problems):
            self._check_steps()
        with noted(problems):
            reference_losses(self.settings.search.reference, self.task.objectives)
        own_tables = len(self.settings.island)
        shared = self._problems_of(own_tables)
        if own_tables < self.settings.layout.islands:
            problems.update(shared)
        for island in range(own_tables):  # the others have what is shared
            for problem in self._problems_of(island):
                own = problem.replace("[search]", f"[[island]] number {island + 1},")
                problems[problem if problem in shared else own] = None
        directory.check_identity(self.settings.directory, self.identity, compare=self._differences)
        self._points, self._left_out = [], []
        for number, entry in enumerate(self.settings.points, start=1):
            with noted(problems):
                self._points += read_points(
                    entry, self.task.space, self.task.allows, number=number, left_out=self._left_out
                )
        self._known = new_points(self.settings, self.task, problems)
        missing = registry.missing(self.settings.logging.sinks)
        problems.update(dict.fromkeys(f"{one}, or remove it from [logging] sinks." for one in missing))
        if problems:
            raise UsageError("\n".join(problems))

    def _problems_of(self, island: int) -> dict[str, None]:
        """What does not suit the task in the settings of an island."""
        search = self.settings.search_of(island)
        found = dict.fromkeys(phases.problems(self.task.space, self.settings, island))
        with noted(found):
            pruning.of_search(search, self.task.objectives)
        with noted(found):
            reevaluation.check(search.reevaluate, search.kind, self.task.objectives)
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
        drawn = (space.decode(space.sample(rng)) for _ in range(_DRAWS))
        # Not only until one is allowed: a constraint that raises for some is to be found before anything starts.
        until, found = time.monotonic() + _SEARCHED_S, False
        for params in islice(drawn, _DRAWS_OF_ALL):
            found |= task.allows(params)
            if found and time.monotonic() > until:
                break
        if found or any(map(task.allows, drawn)):
            return
        # Rare ones are found where the space can be gone through.
        if not task.listable or not any(True for _ in task.configurations()):
            raise UsageError(
                f"none of {_DRAWS} random configurations meets the constraints, and a search would find none either. "
                "Loosen the constraints, or narrow the ranges to where they hold"
            )

    def _check_steps(self) -> None:
        rng = random.Random(0)
        space, task = self.task.space, self.task
        drawn = (
            space.decode(space.sample(rng)) for _ in range(_DRAWS_FOR_STEPS if callable(task.steps) else 0)
        )
        given = [*task.points] if task.default is None else [task.default, *task.points]
        for params in (*given, *filter(task.allows, drawn)):
            task.steps_of(params)

    # --- running --------------------------------------------------------------------------------------------

    @checked_arguments(**dict.fromkeys(("n_jobs", "n_workers", "num_workers", "workers"), "Write ranks=N."))
    def run(
        self,
        ranks: int | None = None,
        *,
        transport: Transport | None = None,
        signals: Signals | None = None,
    ) -> Result:
        """Run the campaign or go on with it; returns when the budget is used up, or the campaign was stopped or ran out
        of time (``Result.reason`` says which). Under mpirun or srun call it on every rank; it returns on every rank.
        SIGINT, SIGTERM and SIGUSR1 stop it in good order. A panel on a terminal or in a notebook shows how it goes.

        Args:
            ranks (int, from 1; default None): start as many by mpirun, on this host, from a script or a notebook; the
                task may be defined there. They do not run the script: they get the task as it is in memory, and
                import the modules that it uses. When this process dies, the campaign stops in good order. Under
                mpirun or srun, which have started the ranks: their number. None: those of mpirun or srun, else 1.
            transport (Transport; default None): the connection between the ranks, where the caller has made it; None:
                MPI under a launcher, else one rank.
            signals (Signals; default None): signal handlers that the caller has installed already; None: installs
                them.

        Raises:
            UsageError: ``ranks`` does not fit the layout, or the ranks that mpirun has started.
            HpoError: it could not begin: the layout, the directory, the task or MPI do not allow it.
            CampaignError: it could not go on: no worker starts evaluators, the first evaluations all failed (see
                ``hpo.islands.coordinator.health``), constraints refused all proposals for minutes, the storage did
                not work for minutes (then its ``exit_code`` is 75), or ``ranks`` were started and died again and
                again. What was recorded stays.
        """
        handed_on.refuse_while_loading()
        launcher = config.launcher()
        if ranks is not None and (isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1):
            raise UsageError(f"run(ranks={excerpt(ranks)}): must be a whole number from 1.")
        if transport is None and launcher.rank is None:
            from hpo.campaign import start_ranks
            from hpo.campaign.live_panel import live_panel

            if ranks is not None and ranks > 1:
                return start_ranks.run(self, ranks)
            with live_panel(self.settings.directory):
                return self._run(connect(), signals)
        there = launcher.size if transport is None else transport.size
        if ranks is not None and there not in (None, ranks):
            raise UsageError(
                f"run(ranks={ranks}): this launch has {there} ranks already. Leave ranks out under mpirun or srun, or "
                "start Python without them"
            )
        return self._run(transport or connect(), signals)

    def _run(self, transport: Transport, signals: Signals | None) -> Result:
        settings = self.settings
        try:
            layout = Layout.plan(
                ranks=transport.size,
                islands=settings.layout.islands,
                ranks_per_worker=settings.layout.ranks_per_worker,
            )
        except UsageError as error:
            if transport.size > 1:
                raise
            raise UsageError(
                f"{error} This process was started as one rank: start as many by run(ranks=N), mpirun -n N python …, "
                "or by `hpo run`."
            ) from None
        if settings.evaluation.isolation != "inline":
            _ = self.source  # an unpicklable function is reported before anything starts
        with nullcontext(signals) if signals else Signals() as signals:
            try:
                run = self._run_first if transport.rank == 0 else self._run_other
                end = run(transport, layout, signals)
            except (Exception, KeyboardInterrupt) as error:
                expected = isinstance(error, HpoError) and not self._serving
                if transport.size > 1 and not expected:
                    give_up(transport, error)
                raise
        self.exit_code = end.exit_code
        left = transport.leave(60.0)
        # One of which is not yet known that it died would hold the others in MPI's own end, too.
        if transport.failed() or (not left and tolerates_deaths()):
            atexit.register(lambda: leave_without_mpi(self.process_code))
        if end.reason == UNFIT:
            raise CampaignError(
                "no worker could start its evaluators, so nothing can be evaluated. What was recorded stays; mend "
                f"this and give the same command again: {end.error}"
            )
        if end.reason == STORAGE:
            raise StorageFailed(end.error or "the storage did not work")
        if end.reason == REFUSED:
            raise CampaignError(end.error or "the constraints refused all proposals")
        if end.reason == FUTILE:
            raise CampaignError(end.error or "the first evaluations all failed")
        return Result(settings.directory, end.reason)

    def _run_first(self, transport: Transport, layout: Layout, signals: Signals) -> End:
        """Rank 0: open the campaign, serve as coordinator and as the first leader."""
        others = range(1, transport.size)
        held = ExitStack()
        try:
            try:
                self.check()
                settings = self._bind_directory()
                lock = held.enter_context(
                    acquire(
                        settings.directory,
                        supervisor=config.launcher().supervisor,
                        waiting=lambda sentence: write(f"hpo: {sentence}", sys.stderr, flush=True),
                    )
                )
                if (
                    directory.check_identity(settings.directory, self.identity, compare=self._differences)
                    is None
                ):
                    directory.write_identity(settings.directory, {**self.identity, "seed": settings.seed})
                if not config.launcher().started_by_hpo and held_back(settings.directory):
                    end = End(STOPPED, 0, None)
                    for rank in others:
                        transport.send(rank, encode(end))
                    transport.flush(10.0)
                    return end
                if owner := directory.foreign_owner(settings.directory):
                    write(
                        f"hpo: {one_line(settings.directory)} belongs to {one_line(owner)}, who can read and remove "
                        "what this campaign writes there.",
                        sys.stderr,
                        flush=True,
                    )
                launch = last_launch(settings.directory) + 1
                if lock.contested:
                    self._fence(launch - 1)
                with located(settings.directory):
                    earlier = fold_directory(
                        settings.directory,
                        space=self.task.space,
                        islands=layout.islands,
                        losses=self.task.losses,
                        take_snapshot=True,
                        withdrawn={number for one in self._known for number in one.replaces},
                    )
                if lock.contested:
                    earlier.contest()
                earlier.avoid(EvaluationDirectories(settings.directory).taken())
                for line in self._left_out:
                    write(f"hpo: {one_line(line)}", sys.stderr, flush=True)
                known = enter_points(self._known, self.task, earlier, layout.islands, settings.known)
                hellos = greet(
                    transport, own_hello(settings, self.identity), greeting_s(settings, transport.size)
                )
                lock.name_ranks((hello.machine, hello.pid) for hello in hellos[1:])
            except HpoError as error:
                for rank in others:
                    transport.send(rank, encode(End("refused", error.exit_code, str(error))))
                transport.flush(10.0)
                raise
            starts = start_messages(
                layout,
                earlier,
                launch,
                [hello.host for hello in hellos],
                cores=[hello.cores for hello in hellos],
                lineages={
                    one for one in range(layout.islands) if settings.search_of(one).traits.needs_checkpoints
                },
                holds=EvaluationDirectories(settings.directory).may_hold,
            )
            for rank in others:
                transport.send(rank, encode(starts[rank]))
            if earlier.snapshot:
                held.callback(snapshot.write_beside(settings.directory, earlier.snapshot))
                earlier.snapshot = b""
            sinks = held.enter_context(self._sinks())
            opening = _Opening(lock, earlier, known, sinks, ended_here(hellos))
            return self._serve(transport, layout, signals, starts[0], opening)
        finally:
            held.close()

    def _bind_directory(self) -> config.Settings:
        """The settings, whose directory no longer depends on the working directory, where the task may change that
        of this process. From now on the objectives are in the order of the campaign there, if one has begun."""
        if self.settings.evaluation.isolation == "inline":
            update = {"directory": self.settings.directory.absolute()}
            self.settings = self.settings.model_copy(update=update)
        self._order_objectives()
        return self.settings

    def _order_objectives(self) -> None:
        """As on record: the first of several says which of the front is the best, and losses are kept in this order."""
        try:
            recorded = directory.read_identity(self.settings.directory).get("objectives")
        except CampaignError:
            return
        own = self.task.objectives
        if isinstance(recorded, dict) and recorded.keys() == own.keys() and [*recorded] != [*own]:
            self.task = copy.copy(self.task)
            self.task.objectives = {name: own[name] for name in recorded}

    def _fence(self, launch: int) -> None:
        """The lock was that of ``launch``, of which ranks may go on: what these still write does not count.
        CampaignError where that cannot be made sure."""
        try:
            fence_launch(self.settings.directory, launch)
        except OSError as error:
            raise directory.unwritable(self.settings.directory, error) from error

    def _run_other(self, transport: Transport, layout: Layout, signals: Signals) -> End:
        transport.send(0, encode(own_hello(self._bind_directory(), self.identity)))
        early: list[tuple[int, bytes]] = []
        waits_s = 2 * greeting_s(self.settings, transport.size)
        deadline = time.monotonic() + waits_s
        while time.monotonic() < deadline:
            if 0 in transport.failed():
                return End(LOST, EXIT_RESUMABLE, None)
            arrived = transport.poll()
            for position, (source, data) in enumerate(arrived, start=1):
                message = decode(data)
                if isinstance(message, End) and message.exit_code == 0:
                    return message
                if isinstance(message, End):
                    raise _refusal(message)
                if isinstance(message, Start):
                    # A quick leader's first words may have overtaken rank 0's, or come in together with them.
                    transport.put_back([*early, *arrived[position:]])
                    return self._serve(transport, layout, signals, message, None)
                early.append((source, data))
            time.sleep(0.002)
        raise CampaignError(
            f"rank {transport.rank} on {socket.gethostname()} heard nothing from rank 0 for {waits_s:.0f} s. "
            "Look for rank 0's own message; if there is none, its node may be down or the network between the nodes "
            "blocked"
        )

    def _serve(
        self,
        transport: Transport,
        layout: Layout,
        signals: Signals,
        start: Start,
        opening: _Opening | None,
    ) -> End:
        """``opening``: on rank 0."""
        place, _ = layout.place_of(transport.rank)
        self._serving = True
        signals.patience = PATIENCE
        settings = self.settings
        with ExitStack() as closing:
            assembly = Assembly(
                settings=settings,
                task=self.task,
                source=None if settings.evaluation.isolation == "inline" else self.source,
                transport=transport,
                layout=layout,
                signals=signals,
                closing=closing,
                code=self._code,
            )

            coordinator = display = status = housekeeping = None
            groups = [[one.leader for one in layout.of_island(island)] for island in range(layout.islands)]
            mine = assembly.roles(place, groups, start)
            if opening is not None:
                lock, earlier = opening.lock, opening.earlier
                coordinator = assembly.coordinator(start, earlier, self._points, opening.known, opening.ended)
                if assembly.writer is not None and not assembly.writer.pending:
                    lock.settle()
                done = coordinator.tally.final
                display = Display(settings, self.task, workers=len(layout.workers), done=done)
                status = assembly.status(lock, coordinator, earlier)
                cleanup = self._cleanup(layout, start, earlier)
                housekeeping = Housekeeping(lock, coordinator, display, status, cleanup, opening.sinks)
            node = EventLoop(
                transport=transport,
                roles=mine,
                coordinator_rank=0,
                coordinator=coordinator,
                signals=signals,
                hang_timeout_s=assembly.hang_timeout_s,
                housekeeping=housekeeping or (lambda now: None),
                failed=lambda error: give_up(transport, error) if transport.size > 1 else None,
            )
            end = node.run()
            if node.given_up and assembly.writer is not None:
                assembly.writer.discard()  # it would go on in a file that is read
            end = assembly.settle(end)
            if coordinator is not None and opening is not None:
                opening.lock.all_ended = coordinator.all_ended
            if display is not None and coordinator is not None:
                display.finish(coordinator, end.reason, transport.now())
        if status is not None and coordinator is not None and end == coordinator.end:
            status.finish(coordinator, transport.now())
        # After a deadline the next launch goes on from what paused, and from lineages.
        if coordinator is not None and end.exit_code == 0 and end.reason != DEADLINE:
            with suppress(OSError):  # it is only space
                keep_only_best(settings.directory, settings.keep)
        return end

    def _sinks(self) -> SinkProcesses:
        """The processes that write to loggers: beside rank 0, from what it and the others leave in files."""
        settings = self.settings
        return SinkProcesses(
            settings.directory,
            settings.logging.sinks,
            settings.logging.directory,
            child_environment(
                config.environment(), threads=1, devices=(), package_root=Path(__file__).resolve().parents[2]
            ),
            lambda sentence: write(f"hpo: {one_line(sentence)}.", sys.stderr, flush=True),
        )

    def _cleanup(self, layout: Layout, start: Start, earlier: ResumeState) -> Cleanup | None:
        """What lets go of what the leaders of earlier launches kept; None where there is nothing, or no more."""
        settings = self.settings
        inherits = any(
            settings.search_of(one).traits.needs_checkpoints or settings.inherits(one)
            for one in range(layout.islands)
        )
        # Lineages may go on from any of the latest; a front keeps all until the end.
        cleanup = None
        if start.launch > 1 and not inherits and len(self.task.objectives) == 1:
            if Cleanup.possible(settings.keep, earlier):
                cleanup = Cleanup(settings.directory, settings.keep, earlier)
            else:
                keep_only_best(settings.directory, settings.keep, needed=earlier.resting)
        earlier.ended = ()  # may be millions
        return cleanup


def _refusal(end: End) -> HpoError:
    """The error that rank 0 met, for the other ranks to raise."""
    kind = UsageError if end.exit_code == UsageError.exit_code else CampaignError
    return kind(end.error or f"the campaign ended before it began ({end.reason})")


def held_back(campaign_directory: Path) -> bool:
    """Whether this launch is not to be, because ``hpo stop`` was given and no person has started it since: Slurm has.
    A person's own start ends that stop."""
    if not config.requeued():
        clear_stop(campaign_directory)
        return False
    if not stop_pending(campaign_directory):
        return False
    write(
        f"hpo: nothing is started: `hpo stop {quoted(campaign_directory)}` was given, and Slurm has started this job "
        "again. `hpo run`, given by a person, goes on.",
        sys.stderr,
        flush=True,
    )
    return True
