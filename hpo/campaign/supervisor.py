"""Supervision of the launches of a campaign under mpirun: starts them again where ranks died, and judges from the
journal how they ended."""

from __future__ import annotations

import logging
import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType

from hpo.campaign.rank.greeting import greeting_s
from hpo.cluster import hosts, slurm_job
from hpo.cluster import mpirun as processes
from hpo.cluster.hosts import Fleet, Host
from hpo.cluster.mpi_startup import raise_file_limit
from hpo.cluster.mpirun_command import (
    agent_variables,
    command,
    environment,
    keepalive,
    tolerates_faults,
    version_of,
)
from hpo.cluster.signals import PATIENCE, Requests, stop_signals
from hpo.config import process
from hpo.config import reader as config
from hpo.config.layout import Layout
from hpo.errors import EXIT_REFUSED, EXIT_REPORTED, EXIT_RESUMABLE, EXIT_STORAGE, CampaignError
from hpo.islands.end_reasons import LOST
from hpo.islands.storage import PATIENCE_S
from hpo.journal.files import journal_path
from hpo.ledger.alive import STALE_S, last_refresh
from hpo.ledger.entries import Joined, Limits
from hpo.ledger.launches import (
    MOST_IDLE_LAUNCHES,
    is_complete,
    made_progress,
    patiently,
    read_launch,
    read_launch_patiently,
)
from hpo.ledger.opening import FollowedLedger, state_of

_log = logging.getLogger("hpo.campaign")

# Time for an interrupted mpirun to end its ranks: it ends them 0.2 s later, unless it starts too many.
_INTERRUPTED_S = 5.0
# A directory that is gone may come back within this time.
_GONE_S = PATIENCE_S
# Time for mpirun to end after a stopped campaign is on record as ended: a job's time limit may be near.
_LEAVE_S = 30.0
# Before another start, by how many launches in a row got nothing done: what ended them may pass.
_PAUSES_S = (5.0, 60.0)
# How long hosts are asked again of which none answers: it may be the network, and not all of them.
_NETWORK_S = 120.0
# Time for hosts to answer while the first launch begins, which does not wait for them.
_FIRST_PROBE_S = 60.0
# The signals by which a person, or a machine that is short of memory, ends an mpirun; others are its own errors.
_KILLED = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_GO_ON = "Nothing that was recorded is lost: give the same command again to go on."


@dataclass(frozen=True, kw_only=True)
class MpirunSettings:
    """How mpirun is started."""

    mpirun: str
    listed: tuple[Host, ...] | None = None
    """Only hosts to use; None: those that mpirun finds."""
    output: int | None = None
    """File descriptor that mpirun writes to; None: this process's output."""
    inherited: Sequence[int] = ()
    """File descriptors that mpirun keeps open."""
    tied: bool = False
    """Whether the campaign stops where this process dies."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables to add."""
    agent: str | None = None
    """Program that starts mpirun's daemons on other hosts; None: ssh, or what mpirun knows of the job's scheduler."""


class _OwnLaunch:
    """The launch as which the ranks of the supervisor with ``token`` join the campaign in ``directory``, behind launch
    number ``after``. ``layout``: ``Layout.plan`` for its ranks."""

    def __init__(self, directory: Path, token: str, after: int, layout: Callable[..., Layout]) -> None:
        self.after = after
        self._layout = layout
        self._directory = directory
        self._token = token
        self._ledger = FollowedLedger(directory)
        self._joined: Joined | None = None

    def read_number(self) -> int | None:
        """Its number; None where it has not joined. CampaignError where the ledger cannot be read."""
        if self._joined is None:
            joined = self._ledger.state().joined.values()
            own = (one for one in joined if one.launch > self.after and one.supervisor == self._token)
            self._joined = next(own, None)
        return None if self._joined is None else self._joined.launch

    @property
    def number(self) -> int | None:
        """Its number; None where that is not known for now."""
        with suppress(CampaignError):
            return self.read_number()
        return None

    def has_joined(self) -> bool:
        """Whether it has joined. Then all ranks have their signal handlers: it joins after all have said hello. The
        ledger is read apart: a signal handler asks, perhaps while the main thread reads it."""
        return (
            self._joined is not None
            or _OwnLaunch(self._directory, self._token, self.after, self._layout).number is not None
        )

    def journal_size(self) -> int | None:
        """Bytes of rank 0's journal; None where it is not there."""
        if (launch := self.number) is None or self._joined is None:
            return None
        joined = self._joined
        island = self._layout(first_island=joined.first_island).workers[0].island
        path = journal_path(self._directory, launch=launch, island=island, worker=joined.first_worker)
        with suppress(OSError):
            return path.stat().st_size
        return None

    def last_refresh(self) -> int | None:
        """See ``hpo.ledger.alive.last_refresh``."""
        launch = self.number
        return 0 if launch is None else last_refresh(self._directory, launch)


class Supervisor:
    """Runs a campaign under mpirun, and starts it again where ranks died and ended it: on the hosts that are left,
    where some died. ``rank``: command line of each rank; ``say``: function that shows a sentence to the user.

    mpirun kills its ranks 0.2 s after a SIGTERM or SIGINT but forwards SIGUSR1: so it gets a session of its
    own, where no Ctrl-C reaches it, and has SIGTERM, which Slurm and systemd send to all, blocked; and all become
    SIGUSR1. Its return code says little (0 after the death of a node): the journal counts."""

    def __init__(
        self,
        rank: Sequence[str],
        settings: config.Settings,
        ranks: int,
        started: MpirunSettings,
        *,
        say: Callable[[str], None] = _log.info,
    ) -> None:
        self._settings = settings
        self._directory = settings.directory
        self._started = started
        self._version = version_of(started.mpirun)
        self._live = process.panel_shown()
        self._rank = [*rank]
        self._say = say
        self._tolerant = tolerates_faults(started.mpirun)
        self._environment = environment(
            keepalive(settings.evaluation.hang_timeout_s)
            | agent_variables(started.agent)
            | process.environment()
            | dict(started.variables)
        )
        self._ranks = ranks
        self._fleet = Fleet(ranks, started.listed)
        self._process: subprocess.Popen[bytes] | None = None
        self._own = self._launch_after("", 0)
        self._requests = Requests()
        self._unreachable: frozenset[str] = frozenset()
        """Hosts that do not answer although ranks start there: mpirun reaches them in another way."""
        self._early = False
        self._kill_at: float | None = None

    def _launch_after(self, token: str, number: int) -> _OwnLaunch:
        sizes = self._settings.worker_sizes
        layout = partial(Layout.plan, ranks=self._fleet.ranks, sizes=sizes, joins=True)
        return _OwnLaunch(self._directory, token, number, layout)

    @property
    def launch(self) -> int | None:
        """Number of the last launch that has joined."""
        return self._own.number

    @property
    def _asked(self) -> bool:
        return self._requests.count > 0

    def run(self) -> int:
        """Run until the campaign has ended; returns the exit code of ``hpo run``."""
        # Python allows handlers in the main thread only.
        main = threading.current_thread() is threading.main_thread()
        former = {number: signal.signal(number, self._hear) for number in stop_signals()} if main else {}
        try:
            return self._run_until_over()
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)

    def _run_until_over(self) -> int:
        if clause := self._crowded:
            self._say(f"{clause}: they may take minutes to start, or never do. Ctrl-C ends this.")
        restarts = idle_launches = 0
        most = self._settings.restarts
        first = self._first_probe()
        while True:
            before = patiently(lambda: state_of(self._directory), _GONE_S)
            self._own = self._launch_after(self._environment[process.STARTED_BY], before.launches)
            code, died = self._launch()
            if died and self._own.journal_size() is not None:
                self._unreachable |= first() & {host.name for host in self._fleet.hosts or ()}
            if died and self._asked:
                self._say(_GO_ON)
            if not died or self._asked:
                return code
            self._wait_while(self._is_gone, _GONE_S)
            if self._is_gone():
                self._say(
                    f"{self._directory} is gone, so this is not started again: it would begin in an empty directory. "
                    "Once it is back, give the same command again to go on."
                )
                return EXIT_RESUMABLE
            self._fix_deadline()
            launch = self._own.number
            done = launch is not None and made_progress(self._directory, launch)
            idle_launches = 0 if done else idle_launches + 1
            if restarts >= most or idle_launches >= MOST_IDLE_LAUNCHES:
                why = f"restarts = {most}" if restarts >= most else "nothing gets done"
                self._say(
                    f"ranks died again, and this is not started again by itself any more ({why}). {_GO_ON}"
                )
                return code
            restarts += 1
            if idle_launches:
                self._pause(_PAUSES_S[idle_launches - 1])
            if (final := self._choose_fleet(code)) is not None:
                return final
            fewer = self._fleet.ranks != self._ranks
            where = f" with {self._fleet.ranks} ranks on the hosts that are left" if fewer else ""
            self._say(
                f"ranks died or did not start. Nothing that was recorded is lost: starting again{where} "
                f"({restarts} of at most {most} times)."
            )

    @property
    def _crowded(self) -> str | None:
        room = hosts.cores() if self._started.tied else hosts.room(self._fleet.hosts, self._environment)
        return hosts.crowded(self._fleet.ranks, room)

    def _fix_deadline(self) -> None:
        """Let the deadline count from the first start in the launches that follow; where that came to nothing, from
        now."""
        deadline_s = self._settings.deadline_s
        if deadline_s is None or process.DEADLINE in self._environment:
            return
        launch = self._own.number
        on_record = None if launch is None else read_launch(self._directory, launch)
        began = on_record and on_record.began
        self._environment[process.DEADLINE] = repr((began or time.time()) + deadline_s)

    def _choose_fleet(self, code: int) -> int | None:
        """Choose the hosts of the next launch; the exit code instead where there is to be none. ``code``: of the launch
        that has ended."""
        if patiently(lambda: state_of(self._directory), _GONE_S).keeps_from_joining(process.submitted()):
            self._say("`hpo stop` was given, so this is not started again.")
            return 0
        fleet = self._remaining_fleet()
        if self._asked:  # it takes a while to ask all hosts
            self._say(f"stopped. {_GO_ON}")
            return EXIT_RESUMABLE
        if fleet is None:
            self._say(f"no host is left. {_GO_ON}")
            return code
        self._fleet = fleet
        return None

    def _pause(self, seconds: float) -> None:
        self._say(f"this launch got nothing done, so the next one begins in {seconds:g} s.")
        self._wait_while(lambda: True, seconds)

    def _wait_while(self, condition: Callable[[], bool], seconds: float) -> None:
        """Wait while ``condition`` holds, at most for ``seconds`` or until a signal."""
        end = time.monotonic() + seconds
        while condition() and time.monotonic() < end and not self._asked:
            time.sleep(0.1)

    def _is_gone(self) -> bool:
        # Evaluators that still run may make directories of individuals in place of a campaign that is gone.
        # os.path.exists, as Path.exists raises where storage fails.
        return not os.path.exists(self._directory) or (
            os.path.exists(self._directory / "evaluations")
            and not os.path.exists(self._directory / "campaign.json")
        )

    def _remaining_fleet(self) -> Fleet | None:
        everywhere = self._started.listed
        if everywhere is not None:
            silent = self._silent([host.name for host in everywhere])
        elif (everywhere := slurm_job.allocation(self._environment)) is not None:
            silent = slurm_job.dead_nodes(host.name for host in everywhere)
        if everywhere is None or not silent:
            return Fleet(self._ranks, self._started.listed)
        return hosts.left(everywhere, silent, ranks=self._ranks, sizes=self._settings.worker_sizes)

    def _first_probe(self) -> Callable[[], frozenset[str]]:
        """Ask the hosts of the file in a thread; returns a function to those that did not answer, as far as known."""
        found: list[frozenset[str]] = []
        names = [host.name for host in self._started.listed or ()]

        def ask() -> None:
            found.append(hosts.silent(names, _FIRST_PROBE_S, self._started.agent))

        if hosts.others(names):
            threading.Thread(target=ask, name="hosts", daemon=True).start()
        return lambda: found[0] if found else frozenset()

    def _silent(self, names: list[str]) -> frozenset[str]:
        """Hosts that do not answer. Where, of several, no other answers, they are asked again for two minutes before
        all are given up: the network may have been away."""
        end = time.monotonic() + _NETWORK_S
        others = hosts.others(names)
        while True:
            silent = hosts.silent(names, agent=self._started.agent) - self._unreachable
            nobody_answers = len(silent) == len(others) > 1 or len(silent) == len(names)
            if not nobody_answers or time.monotonic() >= end or self._asked:
                return silent
            time.sleep(0.5)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self._requests.note(number):
            self._forward()

    def _forward(self) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        # Before the launch has joined there is nothing to save, and a SIGUSR1 might find ranks that do not know it.
        self._early |= not self._own.has_joined()
        if self._kill_at is None and (self._early or self._requests.count >= PATIENCE):
            self._kill_at = time.monotonic() + _INTERRUPTED_S
        self._process.send_signal(signal.SIGINT if self._early else signal.SIGUSR1)

    def _start(self) -> None:
        raise_file_limit()  # mpirun and its ranks inherit it
        line = command(
            self._started.mpirun,
            self._version,
            self._fleet.ranks,
            self._rank,
            live=self._live,
            tolerant=self._tolerant,
            fleet=self._fleet.hosts,
            exported=[name for name in process.EXPORTED if name in self._environment],
        )
        # mpirun keeps the mask; its ranks get an empty one from it.
        former = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            self._process = subprocess.Popen(
                [*processes.tied(os.getpid()), *line] if self._started.tied else line,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=self._started.output,
                stderr=self._started.output,
                pass_fds=self._started.inherited,
                start_new_session=True,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, former)

    def _wait(self) -> int | None:
        assert self._process is not None
        evaluation = self._settings.evaluation
        code = processes.wait(
            self._process,
            self._fleet.ranks,
            self._own.journal_size,
            kill_at=lambda: self._kill_at,
            ended=self._is_ended,
            # To connect, and then as long as ranks wait for rank 0, which reads the task and the journals first.
            unseen_s=processes.START_S + 2 * greeting_s(self._settings, self._fleet.ranks),
            refreshed=self._own.last_refresh,
            # Until a rank 0 that lives has given up; then the others miss it, save what they evaluate and leave MPI.
            # Where it evaluates itself, what it evaluates may keep it from showing that it lives.
            silent_s=math.inf
            if evaluation.isolation == "inline"
            else STALE_S + evaluation.hang_timeout_s + evaluation.grace_s + processes.END_S,
        )
        processes.end_rest(self._process.pid)
        return code

    def _is_ended(self) -> bool:
        """Whether the campaign's end is on record, as far as it can be read now. After a stop, mpirun gets less time
        from then on."""
        launch = self._own.number
        try:
            found = None if launch is None else read_launch(self._directory, launch)
        except CampaignError:
            return False
        ended = found is not None and found.end is not None
        if ended and self._asked and self._kill_at is None:
            self._kill_at = time.monotonic() + _LEAVE_S
        return ended

    def _launch(self) -> tuple[int, bool]:
        """One launch: its exit code, and whether it ended because ranks died."""
        self._start()
        if self._asked:
            self._forward()
        code = self._wait()
        reported = None if code is None else code - EXIT_REPORTED
        if reported == EXIT_STORAGE:
            return EXIT_RESUMABLE, False
        if reported in (EXIT_REFUSED + 1, EXIT_REFUSED + 2):
            return reported - EXIT_REFUSED, False
        launch = patiently(lambda: self._own.read_number(), _GONE_S)
        on_record = None if launch is None else read_launch_patiently(self._directory, _GONE_S, launch)
        if reported in (1, 2) and on_record is None:
            return reported, False
        end = None if on_record is None else on_record.end
        if (end is None or end[0] == LOST) and is_complete(self._directory, Limits.of(self._settings)):
            return 0, False
        if self._early and (end is None or end[1] != 0):
            begun, further = ("this launch", "go on") if self._own.after else ("the campaign", "start it")
            self._say(f"stopped before {begun} began. Give the same command again to {further}.")
            return EXIT_RESUMABLE, False
        if end is not None:
            return end[1], end[0] == LOST
        if reported in (1, 2):
            return reported, False
        if reported == EXIT_RESUMABLE:
            # Another start would meet what ended a campaign that had begun, such as another launch at work; and
            # a campaign whose directory is gone must not begin again in an empty directory.
            return EXIT_RESUMABLE, on_record is None and os.path.exists(self._directory / "campaign.json")
        ending = "mpirun was killed" if code is None else f"mpirun returned {code}"
        if on_record is not None:
            self._say(f"the ranks ended ({ending}) before the campaign did.")
            return EXIT_RESUMABLE, True
        if code is not None and -code in _KILLED:
            # The next one would meet the same.
            self._say(
                f"mpirun was killed by signal {-code} before the campaign began, so it is not started again. Give the "
                "same command again to start it."
            )
            return EXIT_RESUMABLE, False
        cause = f". {self._crowded}: start fewer" if self._crowded else ""
        self._say(
            f"not all ranks started in time, so mpirun was ended{cause}."
            if code is None
            else f"the ranks ended ({ending}) before the campaign began: see what they said above{cause}."
        )
        # A rank that cannot go on returns 1; anything else is mpirun's own trouble, which may pass.
        passing = code not in (1, 2)
        return EXIT_RESUMABLE if code is None or (passing and self._own.after) else 1, passing
