"""Sinks of a running campaign: each has a process beside rank 0, and delays nothing before the campaign has ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hpo.loggers.companion import ALIVE, SENTENCE
from hpo.loggers.log import sink_folder

_LOOK_S = 1.0
_SILENT_S = 120.0
"""Seconds without a sign of life after which a sink is reported as hanging."""
# Slurm kills a job half a minute after it has asked it to end; closing the sinks has to fit in.
_FAREWELL_S = 15.0
"""Seconds that a sink gets to write the rest after the end of the campaign, counted from its last sign of life."""
_LEAST_S = 5.0
"""Least seconds that any sink gets, however long it has been silent."""
_MOST_BYTES = 1 << 16


@dataclass(kw_only=True)
class _Companion:
    """Process of a sink."""

    name: str
    process: subprocess.Popen[bytes]
    alive_at: float
    """Monotonic time of the last sign of life, or of the start."""
    silent: bool = False
    """Whether it was reported as hanging since."""
    partial: bytes = b""
    """Beginning of the sink's next line."""
    last: str = ""
    """Last message of the sink for the user."""


class SinkProcesses:
    """Context manager with a process for each sink, which ends when it is left.

    ``base``: directory of the sinks' files, None for the campaign's ``directory``; ``environment``: variables of the
    processes; ``say``: shows a message to the user; ``writes``: whether this launch writes to the sinks, asked until it
    does."""

    def __init__(
        self,
        directory: Path,
        names: Sequence[str],
        base: Path | None,
        environment: Mapping[str, str],
        say: Callable[[str], None],
        writes: Callable[[], bool],
    ) -> None:
        self._directory = directory
        self._names = names
        self._base = base
        self._environment = dict(environment)
        self._say = say
        self._writes = writes
        self._started = False
        self._companions: list[_Companion] = []
        self._look_at = 0.0

    def __enter__(self) -> SinkProcesses:
        return self

    def _start(self) -> None:
        self._started = True
        for name in self._names:
            folder = sink_folder(self._directory, self._base, name)
            line = [sys.executable, "-m", "hpo.loggers.companion", str(self._directory), name, str(folder)]
            try:
                process = subprocess.Popen(
                    line,
                    env=self._environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    # mpirun waits for every process that has a rank's standard error open.
                    stderr=subprocess.DEVNULL,
                    # A session of its own keeps Ctrl-C from it, and lets close() kill all that the sink started.
                    start_new_session=True,
                )
            except OSError as error:
                self._gone(name, f"it could not be started ({error.strerror or error})")
                continue
            assert process.stdout is not None
            os.set_blocking(process.stdout.fileno(), False)
            self._companions.append(_Companion(name=name, process=process, alive_at=time.monotonic()))

    def __exit__(self, *error: object) -> None:
        self.close()

    def look(self) -> None:
        """Start the processes where it is time to, and report those that have ended or hang; returns at once, and does
        nothing if called again within a second."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + _LOOK_S
        if not self._started and self._writes():
            self._start()
        for companion in list(self._companions):
            code = companion.process.poll()
            self._hear(companion, now)
            if code is not None:
                self._companions.remove(companion)
                _close_pipes(companion)
                self._gone(companion.name, _ending(companion))
            elif now - companion.alive_at >= _SILENT_S and not companion.silent:
                companion.silent = True
                self._say(
                    f"the sink {companion.name} has shown no life for {_SILENT_S:.0f} s. The campaign continues "
                    "without it"
                )

    def close(self) -> None:
        """Let the sinks write the rest for some seconds, and kill those that take longer."""
        if not self._started and self._writes():  # the launch that wrote to them has just ended
            self._start()
        # All inputs are closed first, so that the sinks write at the same time.
        for companion in self._companions:
            assert companion.process.stdin is not None
            with suppress(OSError):
                companion.process.stdin.close()
        closed = time.monotonic()
        for companion in self._companions:
            self._hear(companion, closed)
            end = max(closed + _LEAST_S, companion.alive_at + _FAREWELL_S)
            try:
                code = companion.process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(companion.process.pid, signal.SIGKILL)
                with suppress(subprocess.TimeoutExpired):  # a process that waits for a disk survives SIGKILL
                    companion.process.wait(1.0)
                self._gone(companion.name, "it did not write the rest in time, and was ended")
            else:
                self._hear(companion, time.monotonic())
                if code:
                    self._gone(companion.name, _ending(companion))
            _close_pipes(companion)
        self._companions.clear()

    def _hear(self, companion: _Companion, now: float) -> None:
        """Read the lines that a sink has written since the last call."""
        assert companion.process.stdout is not None
        try:
            data = os.read(companion.process.stdout.fileno(), _MOST_BYTES)
        except OSError:  # the pipe does not block, and is empty
            return
        *lines, companion.partial = (companion.partial + data).split(b"\n")
        companion.partial = companion.partial[-_MOST_BYTES:]
        for line in lines:
            text = line.decode(errors="replace")
            if text == ALIVE:
                companion.alive_at, companion.silent = now, False
            elif text.startswith(SENTENCE):
                companion.last = text.removeprefix(SENTENCE)
                if companion.process.poll() is None:
                    self._say(companion.last)

    def _gone(self, name: str, reason: str) -> None:
        option = "" if self._base is None else f" --directory {self._base}"
        self._say(
            f"the sink {name}: {reason}. The campaign is as it would be without it; what is missing there is "
            f"written by `hpo log {self._directory} --to {name}{option}`"
        )


def _close_pipes(companion: _Companion) -> None:
    for pipe in (companion.process.stdin, companion.process.stdout):
        assert pipe is not None
        with suppress(OSError):
            pipe.close()


def _ending(companion: _Companion) -> str:
    code = companion.process.returncode
    how = f"was killed by signal {-code}" if code < 0 else f"returned {code}"
    return companion.last or f"its process {how}"
