"""A real Slurm of two nodes on this machine: Debian's munged, slurmctld and two slurmd, in a directory of their own, on
free ports and in the foreground, so that they end by their process ids."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from programs import called
from skips import NOT_POSSIBLE
from terminal import Terminal, wait_until

from hpo.ledger.opening import state_of

DONE = ("COMPLETED", "0:0", "0")
"""How a job ends that was never queued again: see ``User.exits``."""
DAEMONS = ("munged", "slurmctld", "slurmd")
_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])

CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=1
KillWait={kill_wait_s}
InactiveLimit=0
SchedulerParameters=sched_interval=2,batch_sched_delay=0,bf_interval=2,sched_min_interval=0
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmctldDebug=debug
SlurmdDebug=debug
GresTypes=gpu
NodeName=n0 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4 Gres=gpu:{gpus}
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4 Gres=gpu:{gpus}
PartitionName=main Nodes=n0,n1 Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""
"""``cred_expire`` is also how long a requeued job waits."""
GPUS = 4
"""Of each node, by number. Slurm looks for their device files, which are links to one that every machine has."""


def missing() -> str:
    """Why there can be no Slurm here; empty where there can."""
    lacking = [name for name in (*DAEMONS, "sbatch") if shutil.which(name, path=_PATH) is None]
    if lacking:
        return f"no {', '.join(lacking)} on this machine (Debian: apt-get install slurm-wlm munge)"
    return "" if os.geteuid() == 0 else f"{NOT_POSSIBLE}slurmctld and slurmd of two nodes are started as root"


def _free_ports(number: int) -> list[int]:
    """Of the operating system's choice, all different: held at once, then let go."""
    holders = [socket.socket() for _ in range(number)]
    try:
        for holder in holders:
            holder.bind(("127.0.0.1", 0))
        return [int(holder.getsockname()[1]) for holder in holders]
    finally:
        for holder in holders:
            holder.close()


class Slurm:
    """Daemons in ``folder``; commands talk to them with ``environment``."""

    def __init__(self, folder: Path, *, kill_wait_s: int = 10) -> None:
        self.folder = folder
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        for name in ("state", "spool-n0", "spool-n1"):
            (folder / name).mkdir()
        user = pwd.getpwuid(os.geteuid()).pw_name
        places = {"host": socket.gethostname(), "ports": _free_ports(3), "user": user, "folder": folder}
        text = CONF.format(**places, kill_wait_s=kill_wait_s, gpus=GPUS)
        for number in range(GPUS):
            (folder / f"gpu{number}").symlink_to("/dev/null")
        (folder / "gres.conf").write_text(f"AutoDetect=off\nName=gpu File={folder}/gpu[0-{GPUS - 1}]\n")
        self.conf = folder / "slurm.conf"
        self.conf.write_text(text)
        self.environment = {"SLURM_CONF": str(self.conf), "PATH": _PATH}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    # --- daemons --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Returns once both nodes are idle; AssertionError with the logs when that does not come."""
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        munge = [f"--{name}-file={self.folder}/munge.{name}" for name in ("key", "log", "pid", "seed")]
        self._start("munged", "--foreground", "--force", f"--socket={self.folder}/munge.socket", *munge)
        wait_until((self.folder / "munge.socket").exists, "munged's socket", seconds=20)
        self._start("slurmctld", "-D", "-i")
        for node in ("n0", "n1"):
            self.start_node(node)
        try:
            wait_until(lambda: self.states() == {"n0": "idle", "n1": "idle"}, "two idle nodes", seconds=40)
        except AssertionError as error:
            logs = "\n".join(path.read_text()[-3000:] for path in self.folder.glob("*.log"))
            raise AssertionError(f"{error}\n{logs}") from None

    def start_node(self, node: str) -> None:
        self._start("slurmd", "-D", "-N", node, name=f"slurmd {node}")

    def _start(self, program: str, *arguments: str, name: str = "") -> None:
        with (self.folder / "daemons.txt").open("ab") as told:
            self._daemons[name or program] = subprocess.Popen(
                [str(shutil.which(program, path=_PATH)), *arguments],
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=told,
                stderr=told,
                start_new_session=True,
            )

    def stop(self) -> None:
        """All jobs and daemons end, the ones that will not by SIGKILL."""
        self.cancel_all("--full", "--signal=KILL")
        self.cancel_all()
        end = time.monotonic() + 20
        while self.jobs() and time.monotonic() < end:
            time.sleep(0.1)
        for name in sorted(self._daemons, key=("slurmd n1", "slurmd n0", "slurmctld", "munged").index):
            daemon = self._daemons[name]
            daemon.terminate()
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait(10)

    def lose(self, node: str) -> None:
        """Slurm takes the node for dead until ``regain``."""
        self.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")

    def regain(self, node: str) -> None:
        """Once its slurmd has ended the steps of the jobs that lost it: at a node that comes back with some, Slurm ends
        all steps of that job, and among these may be the first ones of its next start."""
        spool = self.folder / f"spool-{node}"  # with a socket for each step
        wait_until(lambda: not [*spool.glob(f"{node}_*")], f"the end of all steps on {node}", seconds=30)
        self.run("scontrol", "update", f"NodeName={node}", "State=RESUME")
        wait_until(lambda: self.states()[node] == "idle", f"an idle {node}", seconds=40, pause_s=0.2)

    # --- commands -------------------------------------------------------------------------------------------------

    def run(self, *line: str, check: bool = True, cwd: Path | None = None) -> str:
        environment = {**os.environ, **self.environment}
        return called(*line, returns=0 if check else None, timeout=60, env=environment, cwd=cwd).stdout

    def states(self) -> dict[str, str]:
        told = self.run("sinfo", "-h", "-N", "-o", "%N %t", check=False)
        return dict(line.split() for line in told.splitlines())

    def jobs(self) -> dict[str, str]:
        """States of all that are in the queue, by job id."""
        told = self.run("squeue", "-h", "-t", "all", "-o", "%i %T", check=False)
        jobs = dict(line.split() for line in told.splitlines())
        over = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        return {job: state for job, state in jobs.items() if state not in over}

    def cancel_all(self, *options: str) -> None:
        self.run("scancel", *options, "--user", pwd.getpwuid(os.geteuid()).pw_name, check=False)

    def job(self, job: str) -> dict[str, str]:
        """What scontrol shows of a job, or of "JOB_TASK" of an array."""
        told = self.run("scontrol", "show", "job", job, "-o", check=False)
        return dict(word.split("=", 1) for word in told.split() if "=" in word)


class User:
    """Submits a campaign of c.toml from a terminal's directory, and looks at what becomes of it."""

    def __init__(self, cluster: Slurm, terminal: Terminal) -> None:
        self.cluster = cluster
        self.terminal = terminal
        terminal.environment |= cluster.environment
        self.job = ""

    def write(self, *, evaluations: int, steps: int, grace_s: float = 5.0, islands: int = 2) -> None:
        self.terminal.saving_task(steps)
        self.terminal.campaign(
            f"[layout]\nislands = {islands}\n[evaluation]\ngrace = {grace_s}\n",
            evaluations=evaluations,
            task="saving.py:task",
        )

    def submit(self, *options: str, nodes: int = 2, ranks: int | None = 2) -> None:
        """``ranks``: of a node; None where ``options`` say it."""
        size = [f"--nodes={nodes}", *([] if ranks is None else [f"--ntasks-per-node={ranks}"])]
        done = self.terminal.hpo("slurm", "c.toml", *size, *options)
        assert done.returncode == 0, done.stderr
        found = re.match(r"job (\d+) is in the queue", done.stdout)
        assert found and f"tail -F slurm-{found[1]}.out" in done.stdout, done.stdout
        self.job = found[1]

    def submit_several(self, *options: str, number: int) -> list[str]:
        """Submit ``number`` jobs, or tasks of an array, of one rank each, and return their names."""
        done = self.terminal.hpo("slurm", "c.toml", "--nodes=1", *options, returns=0)
        found = re.match(r"jobs? ([\d,]+) in the queue, to work on the campaign together", done.stdout)
        assert found, done.stdout
        jobs = found[1].split(",")
        return jobs if len(jobs) > 1 else [f"{jobs[0]}_{task}" for task in range(number)]

    def exits(self, jobs: Sequence[str]) -> list[tuple[str, str, str]]:
        """State, exit code and number of restarts of each job."""
        shown = map(self.cluster.job, jobs)
        return [(one["JobState"], one["ExitCode"], one["Restarts"]) for one in shown]

    def wait_for_launches(self, number: int) -> None:
        """Until so many launches are at work, and evaluations have ended in each."""
        run = self.terminal.directory / "run"

        def ended() -> bool:
            workers = {name.split("-")[1] for name in self.terminal.side("ended")}
            return bool(workers) and len(state_of(run).open) == number == len(workers)

        wait_until(ended, "evaluations of each launch", seconds=60, pause_s=0.1)

    def wait_for_all(self, seconds: float = 90.0) -> None:
        wait_until(lambda: not self.cluster.jobs(), "the end of all jobs", seconds=seconds, pause_s=0.2)

    def outputs(self) -> str:
        files = sorted(self.terminal.directory.glob("slurm-*.out"))
        return "\n".join(f"{path.name}:\n{path.read_text()}" for path in files)

    def budget_is_met(self, evaluations: int, *, killed: int = 0) -> None:
        """Exactly; and nothing was evaluated twice but what ``killed`` workers had begun."""
        said = self.outputs()
        finished = self.terminal.records("finished")
        ids = [record["id"] for record in finished if record["status"] == "completed"]
        state = state_of(self.terminal.directory / "run")
        assert len(ids) == len({*ids}) == evaluations == state.final and not state.open, said
        ended = Counter(self.terminal.side("ended"))
        assert {*ids} <= {*ended} and (ended - Counter(ids)).total() <= killed, said
        assert killed or self.steps_repeated() == 0, said
        self.terminal.hpo("check", "run", returns=0)
        self.nothing_is_left()

    def state(self) -> str:
        return self.cluster.jobs().get(self.job, "over")

    def output(self) -> str:
        path = self.terminal.directory / f"slurm-{self.job}.out"
        return path.read_text() if path.exists() else ""

    def wait_for_work(self) -> None:
        """Until each worker has begun something, and some have ended something, in this launch."""
        before = len(self.terminal.side("ended"))
        ended = lambda: len(self.terminal.side("ended")) >= before + 4  # noqa: E731
        wait_until(ended, "evaluations that end", seconds=60, pause_s=0.1)

    def wait_for_end(self, seconds: float) -> None:
        try:
            wait_until(lambda: self.state() == "over", "the job's end", seconds=seconds, pause_s=0.2)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.cluster.job(self.job)}\n{self.output()}") from None

    def nothing_is_left(self) -> None:
        wait_until(lambda: not self.terminal.processes(), "the end of all processes", seconds=30, pause_s=0.1)

    def all_is_there_once(self, evaluations: int) -> None:
        """The budget is met exactly; nothing ended twice, and no step was repeated."""
        finished = [record for record in self.terminal.records("finished") if record["status"] == "completed"]
        assert len({record["id"] for record in finished}) == len(finished) == evaluations
        assert Counter(self.terminal.side("ended")) == Counter(record["id"] for record in finished)
        assert self.terminal.records("ended")[-1]["exit"] == 0

    def steps_repeated(self) -> int:
        lines = (self.terminal.directory / "side.txt").read_text().splitlines()
        did = Counter(line for line in lines if line.split()[1] == "did")
        return sum(did.values()) - len(did)
