"""A user at a terminal: writes a task and a campaign file, types ``hpo`` commands, presses Ctrl-C, kills processes. All
processes that come of a command bear a mark in their environment, by which orphans are found and no others touched."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from journals import fields
from places import ROOT

from hpo.cluster.mpirun_command import find_mpirun
from hpo.ledger.journals import read_directory

HPO = [sys.executable, "-m", "hpo"]
_MARK = "HPO_TEST_MARK"

TASK = """
import os, time
import hpo

SIDE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "side.txt")


def note(*words):
    '''One write a line, so that lines of several processes do not mix.'''
    handle = os.open(SIDE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(handle, (" ".join(map(str, words)) + "\\n").encode())
    os.close(handle)


def evaluate(trial):
    time.sleep(SECONDS)
    value = (trial.params["x"] - 1.0) ** 2
    note(trial.id, value, os.getpid())
    return value


task = hpo.Task(hpo.SearchSpace(x=hpo.Float(-5.0, 5.0), n=hpo.Int(1, 8)), evaluate, default={"x": 0.0, "n": 2})
"""
"""Evaluations of SECONDS; each that ends leaves a line in side.txt, whatever becomes of its record."""


SAVING = """
import time
from pathlib import Path
import hpo
from task import note

HELD = Path(__file__).with_name("held")


def evaluate(trial):
    state = trial.directory / "state"
    step = int(state.read_text()) if state.exists() else 0
    note(trial.id, "began", step)
    while step < STEPS:
        time.sleep(0.05)
        if step < STEPS / 2 or not HELD.exists():
            step += 1
            note(trial.id, "did", step)
        if trial.should_checkpoint():
            state.write_text(str(step))
            raise hpo.Interrupted
    note(trial.id, "ended", step)
    return 0.0


task = hpo.Task(hpo.SearchSpace(x=hpo.Float(0.0, 1.0)), evaluate)
"""
"""Evaluations of STEPS steps of 50 ms that save what they have reached, half of them while there is ``held``."""


def wait_until(
    condition: Callable[[], object], what: str, *, seconds: float = 45.0, pause_s: float = 0.03
) -> None:
    """Return once ``condition`` holds; AssertionError after ``seconds``."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen within {seconds:g} s"
        time.sleep(pause_s)


class Command:
    """A command that runs."""

    def __init__(self, terminal: Terminal, line: list[str], environment: dict[str, str]) -> None:
        self._terminal = terminal
        self.process = subprocess.Popen(
            line,
            cwd=terminal.directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def minds_signals(self) -> bool:
        """Whether Python has started, and hpo in it has set its handlers."""
        try:
            status = Path(f"/proc/{self.process.pid}/status").read_text()
        except OSError:
            return False
        mask = next(line for line in status.splitlines() if line.startswith("SigCgt"))
        return bool(int(mask.split()[1], 16) >> (signal.SIGTERM - 1) & 1)

    def wait(self, seconds: float = 60.0, *, returns: int | None = None) -> subprocess.CompletedProcess[str]:
        """The command's end; it and all that it started are killed after ``seconds``. Another exit code than
        ``returns`` is an AssertionError with what it said."""
        try:
            out, err = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            told = [" ".join(process.cmdline()) for process in self._terminal.processes()]
            self._terminal.kill()
            out, err = self.process.communicate(timeout=10)
            raise AssertionError(
                f"not over after {seconds:g} s; these ran:\n{told}\nstdout:\n{out}\nstderr:\n{err}"
            ) from None
        assert returns is None or self.process.returncode == returns, err
        return subprocess.CompletedProcess(self.process.args, self.process.returncode, out, err)


class Terminal:
    """Commands in one working directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._mark = uuid.uuid4().hex
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "OMP_NUM_THREADS": "1",
            _MARK: self._mark,
        }
        if os.geteuid() == 0:
            self.environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

    # --- files ----------------------------------------------------------------------------------------------------

    def write(self, name: str, text: str) -> Path:
        path = self.directory / name
        path.write_text(text)
        return path

    def task(self, seconds: float = 0.03, name: str = "task.py") -> None:
        self.write(name, TASK.replace("SECONDS", repr(seconds)))

    def saving_task(self, steps: int) -> None:
        """Write saving.py, whose evaluations have so many steps, and what it imports."""
        self.task()
        self.write("saving.py", SAVING.replace("STEPS", str(steps)))

    def campaign(
        self,
        text: str = "",
        *,
        evaluations: int | None = 60,
        task: str = "task.py:task",
        kind: str | None = "random",
    ) -> None:
        """Write c.toml for a campaign in run/, with ``text``. ``kind``: None where ``text`` says it; with ``default``
        each rank imports scikit-learn, which takes most of the processor time of a short campaign."""
        lines = [f'task = "{task}"', 'directory = "run"']
        if evaluations is not None:
            lines.append(f"evaluations = {evaluations}")
        if kind is not None:
            lines.append(f'search.kind = "{kind}"')
        self.write("c.toml", "\n".join([*lines, text, ""]))

    # --- commands -------------------------------------------------------------------------------------------------

    def start(self, *arguments: object, environment: dict[str, str] | None = None) -> Command:
        line = [*HPO, *map(str, arguments)]
        return Command(self, line, {**self.environment, **(environment or {})})

    def hpo(
        self, *arguments: object, seconds: float = 60.0, returns: int | None = None
    ) -> subprocess.CompletedProcess[str]:
        return self.start(*arguments).wait(seconds, returns=returns)

    def python(self, *arguments: object) -> Command:
        """``python …``, a script of the user's own."""
        return Command(self, [sys.executable, *map(str, arguments)], self.environment)

    def start_mpirun(self, ranks: int, *arguments: object) -> Command:
        """``mpirun -n RANKS hpo …``, as on a cluster."""
        line = [find_mpirun(), "-n", str(ranks), "--map-by", ":OVERSUBSCRIBE", *HPO, *map(str, arguments)]
        return Command(self, line, self.environment)

    def mpirun(self, ranks: int, *arguments: object) -> subprocess.CompletedProcess[str]:
        return self.start_mpirun(ranks, *arguments).wait()

    def status(self) -> dict[str, object]:
        return json.loads(self.hpo("status", "run", "--json", returns=0).stdout)

    # --- what is there --------------------------------------------------------------------------------------------

    def side(self, word: str | None = None) -> list[str]:
        """Ids of the evaluations that have ended, whether recorded or not; or of those that noted ``word``."""
        path = self.directory / "side.txt"
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [line[0] for line in lines if word is None or line[1] == word]

    def records(self, kind: str) -> list[dict[str, Any]]:
        """The records of one type, as the tables that the journals hold."""
        tables = map(fields, read_directory(self.directory / "run", []))
        return [table for table in tables if table["type"] == kind]

    def launch_begun(self, launch: int) -> bool:
        return any((self.directory / "run" / "launches").glob(f"{launch:04d}/journal/*.jsonl"))

    def processes(self) -> list[psutil.Process]:
        """All that came of the commands, wherever they hang in the tree of processes by now."""
        needle = f"{_MARK}={self._mark}".encode()
        found = []
        for process in psutil.process_iter():
            try:
                if needle in Path(f"/proc/{process.pid}/environ").read_bytes():
                    found.append(process)
            except OSError:  # it ended meanwhile
                continue
        return found

    def evaluators(self) -> list[psutil.Process]:
        return [one for one in self.processes() if "hpo.evaluation.process.evaluator" in _line(one)]

    def ranks(self) -> dict[int, psutil.Process]:
        """Under mpirun: the processes of the ranks that live, by number."""
        found = [(variable(one, "OMPI_COMM_WORLD_RANK"), one) for one in self.processes()]
        return {int(number): one for number, one in reversed(found) if number is not None}

    def rank(self, number: int) -> psutil.Process:
        return self.ranks()[number]

    def kill(self) -> None:
        """SIGKILL to all that came of the commands, until there is none."""
        end = time.monotonic() + 10.0
        while (left := self.processes()) and time.monotonic() < end:
            for process in left:
                try:
                    process.kill()
                except psutil.NoSuchProcess:
                    pass
            psutil.wait_procs(left, timeout=1.0)


def _line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def variable(process: psutil.Process, name: str) -> str | None:
    """Of the environment that ``process`` was started with."""
    try:
        return process.environ().get(name)
    except psutil.Error:
        return None
