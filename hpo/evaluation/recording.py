"""What the evaluator of worker rank 0, or the rank itself where it evaluates, keeps of evaluations while they run."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from hpo.evaluation.cuda import used
from hpo.evaluation.process_tree import Use, use
from hpo.journal.curves import CurveFile, CurveWriter, Sample
from hpo.task.outcome import TaskOutcome
from hpo.task.trial import Curve, Job

_REMARK = "DIR/curves"
"""No name of a metric, as remarks have."""


class Recording:
    """Learning curves of one evaluation after the other, and samples of what they use if these are wanted. ``file``:
    None where nothing is kept; ``device``: the number by which torch knows this process's GPU."""

    def __init__(self, file: CurveFile | None, device: int = 0) -> None:
        self._writer = (
            None
            if file is None
            else CurveWriter(Path(file.path), file.every_s or 0.0, maximize=file.maximize)
        )
        self.curve: Curve | None = None if file is None or file.every_s is None else self._writer
        """For the trials."""
        self._sampler: Sampler | None = None
        if file is not None and self._writer is not None and file.system_s is not None:
            writer = self._writer
            self._sampler = Sampler(
                file.system_s, identity=lambda: writer.id, write=writer.write, device=device
            )
            self._sampler.start()

    def begin(self, job: Job) -> None:
        """The evaluation of ``job`` begins."""
        if self._writer is not None:
            self._writer.begin(job.id, resumed=job.resumed)

    def finish(self, outcome: TaskOutcome) -> TaskOutcome:
        """It has ended: its last report is written. ``outcome``, with a remark where reports could not be kept."""
        error = None if self._writer is None else self._writer.finish()
        if error is None:
            return outcome
        remark = f"learning curves have gaps, as they could not be written ({error}); evaluations go on"
        return replace(outcome, remarks={**outcome.remarks, _REMARK: remark})

    def close(self) -> None:
        """Nothing is kept any more."""
        if self._sampler is not None:
            self._sampler.stop()
        if self._writer is not None:
            self._writer.close()


class Sampler:
    """Writes a sample every ``interval_s`` seconds from ``start`` to ``stop``. ``identity``: of the individual under
    evaluation; ``device``: the number by which torch knows the process's GPU."""

    def __init__(
        self,
        interval_s: float,
        *,
        identity: Callable[[], str],
        write: Callable[[Sample], None],
        device: int,
    ) -> None:
        self._interval_s = interval_s
        self._identity = identity
        self._write = write
        self._device = device
        self._before = time.monotonic(), use(os.getpid())
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hpo-samples", daemon=True)

    def start(self) -> None:
        """Begin, in a daemon thread."""
        self._thread.start()

    def stop(self) -> None:
        """Write no more; waits for a sample that is being written, a second at most."""
        self._stop.set()
        self._thread.join(1.0)

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            self._write(self.sample())

    def sample(self) -> Sample:
        """What is used now; of the processor, in the mean since the last sample."""
        (since, before), now = self._before, (time.monotonic(), use(os.getpid()))
        self._before = now
        busy, reserved, total = _gpu(self._device)
        return Sample(
            time=time.time(),
            host=socket.gethostname(),
            id=self._identity(),
            cpu=_cores(now[1], before, now[0] - since),
            memory=now[1].memory,
            gpu=busy,
            gpu_memory=reserved,
            gpu_memory_total=total,
        )


def _cores(now: Use, before: Use, seconds: float) -> float | None:
    # Less than before where a process was killed whose time nobody has taken over.
    return max(0.0, now.cpu_s - before.cpu_s) / seconds if seconds > 0 else None


def _gpu(device: int) -> tuple[float | None, int | None, int | None]:
    """Busy share, bytes that torch holds and bytes that there are, as far as they can be known. Nothing here calls
    CUDA, which another thread may be using in a way that allows no other calls."""
    if not used():
        return None, None, None
    torch = sys.modules["torch"]
    busy: float | None
    try:
        busy = torch.cuda.utilization(device) / 100
    except (
        Exception
    ):  # without NVML or its Python package, on MIG: their errors have no narrower class in common
        busy = None
    try:
        reserved = int(torch.cuda.memory_reserved(device))
        total = int(torch.cuda.get_device_properties(device).total_memory)
    except (RuntimeError, AssertionError):  # a poisoned context
        return busy, None, None
    return busy, reserved, total
