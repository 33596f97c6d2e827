"""Names, processes and clocks of the machine that a process runs on, and the clock of its file server."""

from __future__ import annotations

import os
import socket
import time
import uuid
from contextlib import suppress
from pathlib import Path

from hpo.journal.durable import write_atomically


class Machine:
    """This machine; a simulation overrides what it is asked."""

    @property
    def host(self) -> str:
        return socket.gethostname()

    @property
    def identity(self) -> str:
        """Boot and PID namespace: only there can the number of a process be looked up."""
        parts = [self.host]
        with suppress(OSError):
            parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
            parts.append(os.readlink("/proc/self/ns/pid"))
        return " ".join(parts)

    @property
    def pid(self) -> int:
        return os.getpid()

    def process_started(self, pid: int) -> int | None:
        """Clock ticks after boot at which process ``pid`` started; None without such a process or /proc."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return None
        state, *fields = stat.rpartition(")")[2].split()
        # A zombie does nothing any more; only its parent has yet to notice.
        return None if state in "ZX" else int(fields[18])

    def is_running(self, pid: int, started: int | None) -> bool:
        """Whether the process ``pid`` that began at ``started`` clock ticks (None if unknown) runs."""
        if started is not None:
            return self.process_started(pid) == started
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass  # another user's
        return True

    def time(self) -> float:
        """Unix seconds by this machine's clock."""
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def write(self, path: Path, data: bytes, *, durable: bool) -> None:
        """Replace the file at ``path`` (see ``hpo.journal.durable.write_atomically``)."""
        write_atomically(path, data, durable=durable)

    def file_time(self, directory: Path) -> float:
        """Unix seconds by the clock that stamps files in ``directory``, which may be minutes off this machine's. The
        latter where nothing can be written."""
        probe = directory / f".time.{uuid.uuid4().hex}"
        try:
            handle = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except OSError:
            return self.time()
        try:
            return os.fstat(handle).st_mtime
        finally:
            os.close(handle)
            with suppress(OSError):
                probe.unlink()


THIS_MACHINE = Machine()
