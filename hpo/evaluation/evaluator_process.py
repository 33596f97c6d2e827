"""One evaluator process as its control rank sees it: started, spoken to, ended with all it started, without waiting."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from hpo.evaluation.conversation import (
    Answer,
    CrewOrder,
    Evaluate,
    EvaluatorHello,
    RankContext,
    answer_of,
    to_line,
)
from hpo.evaluation.cores import evaluator_share, read_host, running_on
from hpo.evaluation.devices import bind_device, restricted, visible_devices
from hpo.evaluation.environment import child_environment, sharing
from hpo.evaluation.output_limit import OutputLimit
from hpo.evaluation.process_tree import FLAGS, descendants, kill_all, stat_of
from hpo.task.trial_directory import OUTPUT

_READ_BYTES = 1 << 16
_TAIL_CHARACTERS = 2_000
_TAIL_BYTES = 64_000
_MODULES = re.compile(r"^Extension modules: .*\n?", re.MULTILINE)
"""faulthandler's last line lists every one of them, kilobytes, and comes after the stack."""
_PF_EXITING = 4
"""Flag of the kernel for a process that ends; a zombie has it too."""
_HINTS = {
    signal.SIGKILL: "most likely by the out-of-memory killer: use less memory, or fewer ranks on the host",
    signal.SIGSEGV: "a segmentation fault in native code; the stack is in the output",
    signal.SIGABRT: "native code gave up; its reason is in the output",
    signal.SIGBUS: "often a full /dev/shm",
}


class EvaluatorProcess:
    """A running evaluator. The kernel ends it when the thread that made it ends, so make it in the main one.

    Raises OSError when no process can be started.
    """

    def __init__(self, context: RankContext, environment: Mapping[str, str]) -> None:
        self.context = context
        self.label = context.label
        visible = visible_devices(environment)
        devices, index = bind_device(
            visible,
            local_rank=context.local_rank,
            worker_local_rank=context.worker_local_rank,
            worker_local_size=context.worker_local_size,
        )
        share = evaluator_share(
            read_host(environment),
            environment,
            local_rank=context.local_rank,
            local_size=context.local_size,
            agreed=context.cores_agreed,
        )
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)
        # For what is printed outside evaluations, above all while importing: the error of a failed start shows it.
        self._spool = tempfile.TemporaryFile()  # noqa: SIM115 (closed in release)
        # The evaluator's CPUs are set before it begins, so that all that it starts or imports has them from the start.
        with theirs, running_on(share.cpus):
            self._process = subprocess.Popen(
                [sys.executable, "-m", "hpo.evaluation.process.evaluator", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=self._spool,
                stderr=self._spool,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env=child_environment(
                    restricted(environment, devices) | sharing(context.local_size, len(visible)),
                    threads=share.threads,
                ),
            )
        self.pid = self._process.pid
        self.has_device = index is not None
        self._pidfd = _open_pidfd(self.pid)
        self._limit = None if context.output_bytes is None else OutputLimit(context.output_bytes)
        self._incoming = b""
        self._outgoing = b""
        self._connected = True
        self.send(EvaluatorHello(context, index))

    def filenos(self) -> list[int]:
        """Descriptors that become readable when the child says something or ends."""
        numbers = [self._socket.fileno()] if self._connected else []
        return numbers if self._pidfd is None else [*numbers, self._pidfd]

    @property
    def must_be_polled(self) -> bool:
        """Whether ``filenos`` are not enough: a message waits, or the kernel has no process descriptors."""
        return bool(self._outgoing) or self._pidfd is None

    def send(self, order: CrewOrder) -> None:
        """Queue an order and send what the socket takes; ``flush`` sends the rest."""
        if isinstance(order, Evaluate) and self._limit is not None:
            self._limit.begin(Path(order.job.directory, f"{OUTPUT}{self.context.worker_rank}.txt"))
        self._outgoing += to_line(order)
        self.flush()

    def flush(self) -> None:
        """Send what is queued as far as the socket takes it."""
        while self._outgoing:
            try:
                sent = self._socket.send(self._outgoing)
            except BlockingIOError:
                return
            except OSError:  # it has ended, which its exit status will say better
                self._outgoing = b""
                return
            self._outgoing = self._outgoing[sent:]

    def receive(self) -> list[Answer]:
        """The answers that have arrived."""
        while self._connected:
            try:
                chunk = self._socket.recv(_READ_BYTES)
            except BlockingIOError:
                break
            except OSError:
                chunk = b""
            self._connected = bool(chunk)
            self._incoming += chunk
        *lines, self._incoming = self._incoming.split(b"\n")
        return [answer_of(line) for line in lines]

    def ended(self) -> str | None:
        """How the child ended, as a clause; None while it runs. What it left running in its group is killed, though not
        what had a session of its own."""
        if self._process.returncode is None:
            try:
                if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                    return None
                # Until it is waited for, its number belongs to no other process: none can be hit.
                _kill_group(self.pid)
            except ChildProcessError:  # other code in this process has waited for it
                pass
            self._process.wait()
        return _describe_exit(self._process.returncode)

    @property
    def ending(self) -> bool:
        """Whether the child has ended or is about to: its connections may be closed long before all of it is gone."""
        fields = stat_of(self.pid)
        return bool(int(fields[FLAGS]) & _PF_EXITING) if fields else self.ended() is not None

    def kill(self) -> None:
        """Kill the child and all that it started; does not wait. ``ended`` says when it is gone."""
        if self._process.returncode is None:
            started = descendants(self.pid)  # asked now: those that left the group lose their parent
            _kill_group(self.pid)
            kill_all(started)

    def release(self) -> None:
        """Close what this process holds of a child that has ended."""
        if self._limit is not None:
            self._limit.close()
        self._socket.close()
        self._spool.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        self._connected = False

    def spooled(self) -> str:
        """The end of what was printed outside evaluations."""
        size = os.fstat(self._spool.fileno()).st_size
        return _readable(os.pread(self._spool.fileno(), _TAIL_BYTES, max(0, size - _TAIL_BYTES)))


class EvaluatorGuard:
    """A shell that kills this process's evaluators, and what they started in their sessions, should this process be
    killed.

    The kernel ends the evaluators themselves then, but not what they started. The shell reads from a pipe of
    which only this process has the other end, so it learns of this process's death however that comes.
    """

    _SCRIPT = (
        'trap "" HUP INT TERM USR1 USR2; while read -r line; do groups=$line; done; '
        'for group in $groups; do kill -s KILL -- "-$group"; done'
    )

    def __init__(self) -> None:
        self._shell: subprocess.Popen[bytes] | None = None

    def watch(self, pids: Iterable[int]) -> None:
        """From now on these, and no others, are to be killed."""
        line = " ".join(map(str, pids)).encode() + b"\n"
        try:
            if self._shell is None:
                self._shell = subprocess.Popen(
                    ["/bin/sh", "-c", self._SCRIPT],
                    bufsize=0,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                    env={},
                )
            if self._shell.stdin is not None:
                self._shell.stdin.write(line)
        except OSError:  # no shell, or it was killed: what evaluators started may then outlive this process
            self._shell = None

    def close(self) -> None:
        """End the shell; it kills what it was last given to watch."""
        if self._shell is not None and self._shell.stdin is not None:
            self._shell.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                self._shell.wait(5.0)
        self._shell = None


def _describe_exit(code: int) -> str:
    """A clause for a process's exit code as ``subprocess`` gives it."""
    if code >= 0:
        return f"exited {f'with code {code} ' if code else ''}in the middle of its work"
    try:
        number = signal.Signals(-code)
    except ValueError:
        return f"was killed by signal {-code}"
    hint = _HINTS.get(number)
    return f"was killed by {number.name}" + (f", {hint}" if hint else "")


def tail(path: Path, start: int) -> str:
    """The end of what stands in a text file from byte ``start`` on; empty when it cannot be read."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            # A file that is shorter by now has been shortened: its end is from the last evaluation.
            file.seek(max(start if start <= size else 0, size - _TAIL_BYTES))
            return _readable(file.read(_TAIL_BYTES))
    except OSError:
        return ""


def wait_readable(numbers: Iterable[int], seconds: float) -> None:
    """Sleep until one of these descriptors is readable, at most so long."""
    poller = select.poll()
    for number in numbers:
        poller.register(number, select.POLLIN)
    poller.poll(max(0.0, seconds) * 1000)


def _readable(data: bytes) -> str:
    return _MODULES.sub("", data.decode("utf-8", "replace")).strip()[-_TAIL_CHARACTERS:]


def _open_pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):  # kernels before 5.3, and Pythons built on them
        return None


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
