"""One rank of a launch, from its first message to the launch's end.

Every rank runs this. Rank 0 opens the directory, hears from all ranks that they can read the campaign, and sends each
its state; from there on ranks exchange messages and nothing else, without a barrier."""

from __future__ import annotations

import atexit
import logging
import shutil
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from functools import partial

from hpo import logs
from hpo.campaign.definition import (
    CampaignDefinition,
    StartingPoints,
    blocked_by_stop,
    end_stop,
    first_points,
)
from hpo.campaign.known_points import enter_points, good_elsewhere
from hpo.campaign.rank.cleanup import keep_only_best
from hpo.campaign.rank.coordinating import Opening, begin_launch
from hpo.campaign.rank.greeting import ended_here, greet, greeting_s, own_hello
from hpo.campaign.rank.wiring import Assembly
from hpo.cluster.mpi_startup import give_up, leave_without_mpi
from hpo.cluster.signals import PATIENCE, Signals
from hpo.config import process
from hpo.config import reader as config
from hpo.config.layout import Layout
from hpo.config.process import tolerates_deaths
from hpo.errors import EXIT_RESUMABLE, CampaignError, HpoError, StorageFailed, UsageError
from hpo.evaluation.devices import described
from hpo.evaluation.directories import EvaluationDirectories
from hpo.evaluation.environment import child_environment
from hpo.individual import birthplace
from hpo.islands.end_reasons import DEADLINE, EARLY, FUTILE, LOST, REFUSED, STOPPED, STORAGE, UNFIT
from hpo.islands.event_loop import EventLoop
from hpo.islands.messages import End, Hello, Start, decode, encode
from hpo.islands.resume.fold import fold_directory
from hpo.islands.resume.individuals import located
from hpo.islands.resume.start import start_messages
from hpo.islands.resume.state import ResumeState
from hpo.islands.transport import Transport
from hpo.journal import directory
from hpo.ledger.alive import SignOfLife
from hpo.ledger.closing import closing, key_or_text
from hpo.ledger.entries import Limits, Opened
from hpo.ledger.fold import LedgerState
from hpo.ledger.joining import beside
from hpo.ledger.ledger import Ledger
from hpo.ledger.opening import open_ledger
from hpo.ledger.participation import Participation, join
from hpo.ledger.reservations import FOLDER as RESERVATIONS
from hpo.loggers.processes import SinkProcesses
from hpo.results.result import Result
from hpo.terminal import one_line

_log = logging.getLogger("hpo.campaign")
_SLOW_TO_READ = 100_000
"""Evaluations whose journals may take ten seconds to read: a line says so."""


class Rank:
    """One rank of a launch of the campaign ``definition``. ``signals``: None to install handlers while it runs."""

    def __init__(
        self, definition: CampaignDefinition, transport: Transport, signals: Signals | None = None
    ) -> None:
        self._definition = definition
        self._transport = transport
        self._given_signals = signals
        self._serving = False
        self.exit_code = 0
        """Exit code of the campaign; the same on all ranks."""
        self.process_code = 0
        """Exit code of this process where it cannot end MPI."""

    @property
    def _settings(self) -> config.Settings:
        return self._definition.settings

    def run(self) -> Result:
        """Serve until the launch ends. Raises the errors of ``Campaign.run``."""
        settings, transport = self._settings, self._transport
        try:
            self._layout(joins=transport.rank > 0 or self._definition.may_lack_islands())
        except HpoError as error:
            if transport.rank == 0:
                self._send_all(End("refused", error.exit_code, str(error)))
            raise
        if settings.evaluation.isolation != "inline":
            _ = self._definition.source  # an unpicklable function is reported before anything starts
        with nullcontext(self._given_signals) if self._given_signals else Signals() as signals:
            try:
                run = self._run_first if transport.rank == 0 else self._run_other
                end = run(signals)
            except (Exception, KeyboardInterrupt) as error:
                expected = isinstance(error, HpoError) and not self._serving
                if transport.size > 1 and not expected:
                    give_up(transport, error)
                raise
        self.exit_code = end.exit_code
        left = transport.leave(60.0)
        # A rank whose death is not known yet would hold the others in MPI's own end, too.
        if transport.failed() or (not left and tolerates_deaths()):
            atexit.register(lambda: leave_without_mpi(self.process_code))
        _raise_failure(end)
        return Result(settings.directory, end.reason, self._definition.task.space)

    def _layout(self, first_island: int = 0, *, joins: bool = True) -> Layout:
        """Layout of the launch; arguments as of ``Layout.plan``."""
        try:
            return Layout.plan(
                ranks=self._transport.size,
                sizes=self._settings.worker_sizes,
                joins=joins,
                first_island=first_island,
            )
        except UsageError as error:
            if self._transport.size > 1:
                raise
            raise UsageError(
                f"{error} This process was started as one rank: start as many by run(ranks=N), mpirun -n N python …, "
                "or by `hpo run`."
            ) from None

    # --- rank 0 ---------------------------------------------------------------------------------------------

    def _run_first(self, signals: Signals) -> End:
        """Open the campaign, serve as coordinator and as the first leader."""
        participation: Participation | None = None
        with ExitStack() as held:
            try:
                starting = self._definition.check()
                self._definition = self._definition.bound_to_directory()
                if (end := self._claim_directory()) is not None:
                    self._send_all(end)
                    return end
                settings = self._settings
                hello = own_hello(settings, self._definition.identity)
                hellos = greet(self._transport, hello, greeting_s(settings, self._transport.size))
                points = [*starting.points, *good_elsewhere(starting.known, self._definition.task)]
                starting = replace(starting, points=points)
                participation, sign = self._join(starting, hellos)
                held.enter_context(sign)
                joined = participation.own.joined
                layout = self._layout(joined.first_island).numbered_from(joined.first_worker)
                earlier = self._read_earlier(layout, participation, starting)
                task, entries = self._definition.task, self._settings.known
                known = enter_points(starting.known, task, earlier, layout.islands, entries)
            except HpoError as error:
                self._send_all(End("refused", error.exit_code, str(error)))
                if participation is not None:
                    with suppress(OSError, CampaignError):
                        participation.close("refused", error.exit_code, at_rest=True)
                raise
            start = self._send_starts(layout, earlier, participation, hellos)
            sinks = held.enter_context(self._sinks(participation))
            opening = Opening(sign, participation, earlier, starting, known, sinks, ended_here(hellos))
            return self._serve(signals, start, opening)

    def _send_all(self, end: End) -> None:
        for rank in range(1, self._transport.size):
            self._transport.send(rank, encode(end))
        self._transport.flush(10.0)

    def _claim_directory(self) -> End | None:
        """Make the directory this campaign's; End where ``hpo stop`` keeps the campaign from beginning."""
        definition = self._definition
        home = self._settings.directory
        if definition.recorded_identity() is None:
            directory.write_identity(home, {**definition.identity, "seed": self._settings.seed})
            definition.recorded_identity()  # another campaign may have been quicker
        if not process.launcher().started_by_hpo and (sentence := blocked_by_stop(home)) is not None:
            _log.info(sentence)
            return End(STOPPED, 0, None)
        if owner := directory.foreign_owner(home):
            _log.info(
                f"{one_line(home)} belongs to {one_line(owner)}, who can read and remove what this campaign writes "
                "there."
            )
        return None

    def _join(self, starting: StartingPoints, hellos: Sequence[Hello]) -> tuple[Participation, SignOfLife]:
        """Join the campaign, show that this launch lives, and close the launches that have died."""
        settings, definition = self._settings, self._definition
        limits = Limits.of(settings, definition.task.limits)
        opened = Opened(limits=limits, in_file=limits, islands=settings.layout.islands, seed=settings.seed)
        key = partial(key_or_text, definition.task.space)
        newcomer = definition.newcomer()
        participation = None
        try:
            ledger = open_ledger(settings.directory, opened)
            while participation is None:
                state, at_work = beside(settings.directory, partial(_read_on, ledger), newcomer)
                before = [*state.open]  # ``state`` goes on, and has launches that join from here on
                if not process.launcher().started_by_hpo:
                    end_stop(ledger)
                participation = join(
                    ledger,
                    partial(closing, settings.directory, key),
                    newcomer,
                    key=key,
                    points=[params for params, _ in first_points(definition.task, starting.points)],
                    layout=self._layout,
                    in_file=limits,
                    machines={hello.machine: hello.host for hello in hellos},
                    devices=described(process.environment()),
                    among=before,
                )
            sign = SignOfLife(settings.directory, participation.number)
            dead = [launch for launch in before if launch not in at_work]
            participation.close_others("it was at work no more", dead)
        except (OSError, HpoError) as error:
            if participation is not None:
                with suppress(OSError, CampaignError):
                    participation.close("refused", 1, at_rest=True)
            if isinstance(error, HpoError):
                raise
            raise directory.unwritable(settings.directory, error) from error
        if at_work:
            state, others = participation.state, [one for one in at_work.values() if one is not None]
            budget = state.limits.evaluations
            done = f"{state.final + sum(one.ended for one in others)}{'' if budget is None else f' of {budget}'} done"
            plural = "s" * (len(at_work) > 1)
            _log.info(
                f"joins {one_line(settings.directory)} as launch {participation.number}: {len(at_work)} other{plural} "
                f"at work, {done}."
            )
        return participation, sign

    def _read_earlier(
        self, layout: Layout, participation: Participation, starting: StartingPoints
    ) -> ResumeState:
        definition = self._definition
        home = self._settings.directory
        entries = participation.state.entries
        participation.begin_reading()
        if participation.state.final >= _SLOW_TO_READ:
            _log.info(f"{one_line(home)}: reads the results of {participation.state.final} evaluations.")
        with located(home):
            earlier = fold_directory(
                home,
                space=definition.task.space,
                islands=layout.islands,
                losses=definition.task.losses,
                limits=definition.task.limits,
                withdrawn={number for one in starting.known for number in one.replaces},
            )
        retried = [one for one in participation.state.pool if one in earlier.failed]
        pool = [*(one.id for one in earlier.pending), *retried]
        try:
            if participation.recount(entries, earlier.tally.final - len(retried), pool, earlier.resting):
                _log.info(
                    f"{one_line(home)}: what is left of the budget was counted again from the journals."
                )
            if not participation.read_alone:
                # Paused individuals of launches at work are theirs, and others may draw the rest.
                islands = {place.island for place in layout.workers}
                resting = [one for one in participation.state.resting if birthplace(one)[0] in islands]
                participation.draw(resting, most=0)
                rested = participation.own.rested
                earlier.resting = {one: it for one, it in earlier.resting.items() if one in rested}
        except OSError as error:
            raise directory.unwritable(home, error) from error
        for line in starting.left_out:
            _log.info(one_line(line))
        return earlier

    def _send_starts(
        self, layout: Layout, earlier: ResumeState, participation: Participation, hellos: Sequence[Hello]
    ) -> Start:
        """Send each rank its part of ``earlier``, and return this rank's part."""
        settings = self._settings
        starts = start_messages(
            layout,
            earlier,
            participation.number,
            [hello.host for hello in hellos],
            cores=[hello.cores for hello in hellos],
            lineages={
                one for one in range(layout.islands) if settings.search_of(one).traits.needs_checkpoints
            },
            holds=EvaluationDirectories(settings.directory).may_hold,
            elsewhere=participation.is_evaluated_elsewhere,
        )
        for rank in range(1, self._transport.size):
            self._transport.send(rank, encode(starts[rank]))
        return starts[0]

    def _sinks(self, participation: Participation) -> SinkProcesses:
        """Processes that write to the sinks: the first of the open launches writes for all."""
        settings = self._settings
        return SinkProcesses(
            settings.directory,
            settings.logging.sinks,
            settings.logging.directory,
            child_environment(process.environment(), threads=1),
            lambda sentence: _log.info(f"{one_line(sentence)}."),
            writes=lambda: (
                min(participation.state.open, default=participation.number) == participation.number
            ),
        )

    # --- the other ranks ------------------------------------------------------------------------------------

    def _run_other(self, signals: Signals) -> End:
        self._definition = self._definition.bound_to_directory()
        transport, settings = self._transport, self._settings
        transport.send(0, encode(own_hello(settings, self._definition.identity)))
        early: list[tuple[int, bytes]] = []
        waits_s = 2 * greeting_s(settings, transport.size)
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
                    kind = UsageError if message.exit_code == UsageError.exit_code else CampaignError
                    raise kind(message.error or f"the campaign ended before it began ({message.reason})")
                if isinstance(message, Start):
                    # A quick leader's first words may have overtaken rank 0's, or come in together with them.
                    transport.put_back([*early, *arrived[position:]])
                    return self._serve(signals, message, None)
                early.append((source, data))
            time.sleep(0.002)
        raise CampaignError(
            f"rank {transport.rank} on {socket.gethostname()} heard nothing from rank 0 for {waits_s:.0f} s. "
            "Look for rank 0's own message; if there is none, its node may be down or the network between the nodes "
            "blocked"
        )

    # --- all ranks ------------------------------------------------------------------------------------------

    def _serve(self, signals: Signals, start: Start, opening: Opening | None) -> End:
        """Take part in the launch. ``opening``: None but on rank 0."""
        logs.open_debug_file(self._settings.directory, self._transport.rank)
        transport, definition = self._transport, self._definition
        layout = self._layout(start.first_island).numbered_from(start.first_worker)
        place, _ = layout.place_of(transport.rank)
        self._serving = True
        signals.patience = PATIENCE
        with ExitStack() as closing:
            assembly = Assembly(
                definition=definition, transport=transport, layout=layout, signals=signals, closing=closing
            )
            roles = assembly.roles(place, start)
            housekeeping = None if opening is None else begin_launch(assembly, opening)
            if housekeeping is not None:
                assembly.duties.insert(0, housekeeping)
            node = EventLoop(
                transport=transport,
                roles=roles,
                coordinator=None if housekeeping is None else housekeeping.coordinator,
                signals=signals,
                hang_timeout_s=assembly.hang_timeout_s,
                housekeeping=partial(_call_all, assembly.duties),
                failed=lambda error: give_up(transport, error) if transport.size > 1 else None,
            )
            end = node.run()
            if node.given_up and assembly.writer is not None:
                assembly.writer.discard()  # it would go on in a file that is read
            end = assembly.settle(end)
            if housekeeping is not None:
                housekeeping.leave(end, transport.now())
        if housekeeping is not None:
            if end == housekeeping.coordinator.end:
                housekeeping.status.finish(housekeeping.coordinator)
            # After a deadline, or an early end, the next launch goes on from paused individuals and lineages.
            over = end.exit_code == 0 and end.reason not in (DEADLINE, *EARLY)
            if over and not housekeeping.participation.state.open:
                with suppress(OSError):  # it is only space
                    keep_only_best(self._settings.directory, self._settings.keep)
                    shutil.rmtree(
                        self._settings.directory / RESERVATIONS
                    )  # the journals have all configurations
        return end


def _call_all(duties: Sequence[Callable[[float], object]], now: float) -> None:
    for duty in duties:
        duty(now)


def _read_on(ledger: Ledger) -> LedgerState:
    ledger.read_on()
    return ledger.state


def _raise_failure(end: End) -> None:
    if end.reason == UNFIT:
        raise CampaignError(
            "no worker could start its evaluators, so nothing can be evaluated. What was recorded stays; mend "
            f"this and give the same command again: {end.error}"
        )
    if end.reason in (STORAGE, REFUSED, FUTILE):
        raise (StorageFailed if end.reason == STORAGE else CampaignError)(end.error or end.reason)
