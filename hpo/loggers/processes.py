"""The sinks of a running campaign: a process each beside rank 0, which nothing waits for before the campaign has
ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from hpo.loggers.companion import ALIVE, SENTENCE
from hpo.loggers.log import sink_folder

_LOOK_S = 1.0
_SILENT_S = 120.0
"""After how long without a sign of life it is said that a sink hangs."""
_FAREWELL_S, _LEAST_S = 15.0, 5.0
"""What sinks get to write the rest when the campaign has ended: all of it those that showed life just then, or have
just been started and import their library; the least those that were silent for longer. Slurm kills half a minute after
it has asked a job to end."""
_MOST_BYTES = 1 << 16


@dataclass(kw_only=True)
class _Companion:
    name: str
    process: subprocess.Popen[bytes]
    alive_at: float
    silent: bool = False
    partial: bytes = b""
    last: str = field(default="")
    """The last sentence that it said."""


class SinkProcesses:
    """Starts a process for each sink when it is entered, and ends them when it is left.

    Args:
        directory: of the campaign.
        names: of the sinks.
        base: below which their files lie, None for the campaign's directory.
        environment: for them.
        say: shows the user a sentence.
    """

    def __init__(
        self,
        directory: Path,
        names: Sequence[str],
        base: Path | None,
        environment: Mapping[str, str],
        say: Callable[[str], None],
    ) -> None:
        self._directory = directory
        self._names = names
        self._base = base
        self._environment = dict(environment)
        self._say = say
        self._companions: list[_Companion] = []
        self._look_at = 0.0

    def __enter__(self) -> SinkProcesses:
        for name in self._names:
            folder = sink_folder(self._directory, self._base, name)
            line = [sys.executable, "-m", "hpo.loggers.companion", str(self._directory), name, str(folder)]
            try:
                process = subprocess.Popen(
                    line,
                    env=self._environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    # mpirun waits for all that holds a rank's standard error.
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            except OSError as error:
                self._gone(name, f"it could not be started ({error.strerror or error})")
                continue
            assert process.stdout is not None
            os.set_blocking(process.stdout.fileno(), False)
            self._companions.append(_Companion(name=name, process=process, alive_at=time.monotonic()))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def look(self) -> None:
        """Say what became of them; cheap, and waits for nothing."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + _LOOK_S
        for one in list(self._companions):
            code = one.process.poll()
            self._hear(one, now)
            if code is not None:
                self._companions.remove(one)
                _release(one.process)
                self._gone(one.name, one.last or f"its process {_ending(code)}")
            elif now - one.alive_at >= _SILENT_S and not one.silent:
                one.silent = True
                self._say(
                    f"the sink {one.name} has shown no life for {_SILENT_S:.0f} s. The campaign goes on without it"
                )

    def close(self) -> None:
        """Let them write the rest, for some seconds, and end those that have not by then."""
        for one in self._companions:
            if one.process.stdin is not None:
                with suppress(OSError):
                    one.process.stdin.close()
        closed = time.monotonic()
        for one in self._companions:
            self._hear(one, closed)
            end = max(closed + _LEAST_S, one.alive_at + _FAREWELL_S)
            try:
                code = one.process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(one.process.pid, signal.SIGKILL)
                with suppress(subprocess.TimeoutExpired):  # not even that ends it: it waits for a disk
                    one.process.wait(1.0)
                self._gone(one.name, "it did not write the rest in time, and was ended")
            else:
                self._hear(one, time.monotonic())
                if code:
                    self._gone(one.name, one.last or f"its process {_ending(code)}")
            _release(one.process)
        self._companions.clear()

    def _hear(self, one: _Companion, now: float) -> None:
        """Read what it said since the last time."""
        assert one.process.stdout is not None
        try:
            data = os.read(one.process.stdout.fileno(), _MOST_BYTES)
        except OSError:  # nothing
            return
        *lines, one.partial = (one.partial + data).split(b"\n")
        one.partial = one.partial[-_MOST_BYTES:]
        for line in lines:
            text = line.decode(errors="replace")
            if text == ALIVE:
                one.alive_at, one.silent = now, False
            elif text.startswith(SENTENCE):
                one.last = text.removeprefix(SENTENCE)
                if one.process.poll() is None:
                    self._say(one.last)

    def _gone(self, name: str, reason: str) -> None:
        self._say(
            f"the sink {name}: {reason}. The campaign is as it would be without it; what is missing there is "
            f"written by `hpo log {self._directory} --to {name}{self._option}`"
        )

    @property
    def _option(self) -> str:
        return "" if self._base is None else f" --directory {self._base}"


def _release(process: subprocess.Popen[bytes]) -> None:
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(OSError):
                stream.close()


def _ending(code: int) -> str:
    return f"was killed by signal {-code}" if code < 0 else f"returned {code}"
