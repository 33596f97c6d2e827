"""Learning curves, and samples of what evaluations use, kept by the process of worker rank 0 that evaluates."""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path

from msgspec.structs import replace

from hpo.evaluation.gpu import in_use
from hpo.evaluation.process_tree import resource_use
from hpo.journal.curves import CurveFile, CurveWriter, Sample
from hpo.task.outcome import TaskOutcome
from hpo.task.trial import Curve, Job

_REMARK = "DIR/curves"
"""No name of a metric, as remarks have."""


class Recording:
    """Learning curves of one evaluation after the other, and samples of what they use if these are wanted. ``file``:
    None where nothing is kept; ``device``: the number by which torch knows this process's GPU."""

    def __init__(self, file: CurveFile | None, device: int = 0) -> None:
        self.curve: Curve | None = None
        """Takes the reports of trials."""
        self._writer: CurveWriter | None = None
        self._closed = threading.Event()
        self._sampler: threading.Thread | None = None
        self._device = device
        if file is not None:
            self._writer = CurveWriter(Path(file.path), file.every_s or 0.0, maximize=file.maximize)
            self.curve = None if file.every_s is None else self._writer
            if file.system_s is not None:
                self._sampler = threading.Thread(
                    target=self._sample, args=(self._writer, file.system_s), name="hpo-samples", daemon=True
                )
                self._sampler.start()

    def begin(self, job: Job) -> None:
        """The evaluation of ``job`` begins."""
        if self._writer is not None:
            self._writer.begin(job.id, resumed=job.resumed)

    def finish(self, outcome: TaskOutcome) -> TaskOutcome:
        """Write the last report; ``outcome``, with a remark where reports could not be kept."""
        error = None if self._writer is None else self._writer.finish()
        if error is None:
            return outcome
        remark = f"learning curves have gaps, as they could not be written ({error}); evaluations go on"
        return replace(outcome, remarks={**outcome.remarks, _REMARK: remark})

    def close(self) -> None:
        """Keep nothing any more; waits for a sample that is being written, a second at most."""
        self._closed.set()
        if self._sampler is not None:
            self._sampler.join(1.0)
        if self._writer is not None:
            self._writer.close()

    def _sample(self, writer: CurveWriter, interval_s: float) -> None:
        since, before = time.monotonic(), resource_use(os.getpid())
        while not self._closed.wait(interval_s):
            now, current = time.monotonic(), resource_use(os.getpid())
            busy, reserved, total = _gpu_use(self._device)
            sample = Sample(
                time=time.time(),
                host=socket.gethostname(),
                id=writer.id,
                # Less than before where a process was killed whose time nobody has taken over.
                cpu=max(0.0, current.cpu_s - before.cpu_s) / (now - since),
                memory=current.memory,
                gpu=busy,
                gpu_memory=reserved,
                gpu_memory_total=total,
            )
            writer.write(sample)
            since, before = now, current


def _gpu_use(device: int) -> tuple[float | None, int | None, int | None]:
    """Busy share, bytes that torch holds and bytes that there are, as far as they can be known. Nothing here calls
    CUDA, which another thread may be using in a way that allows no other calls."""
    module = in_use()
    if module is None:
        return None, None, None
    busy: float | None = None
    try:
        busy = module.utilization(device) / 100
    except Exception:  # without the vendor's library, or on MIG: its errors have no narrower class in common
        pass
    try:
        reserved = int(module.memory_reserved(device))
        total = int(module.get_device_properties(device).total_memory)
    except (RuntimeError, AssertionError):  # a poisoned context
        return busy, None, None
    return busy, reserved, total
