"""Energy of an evaluation on a rank, where a counter counts it and nothing else: of the rank's GPU, or of the host's
processors, where the worker trains on CPUs and has its host for itself.

NVIDIA's by NVML (nvmlDeviceGetTotalEnergyConsumption), Intel's by the drivers' hwmon, processors' by RAPL in Linux's
powercap, which most systems let root alone read. AMD's GPUs have no counter that can be read without its library. Tried
with stand-ins alone."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from hpo.evaluation.conversation import RankContext
from hpo.evaluation.devices import INTEL, NVIDIA, PCI, gpus_of_host, named_gpu, text_of, visible_devices
from hpo.individual import FAILED
from hpo.task.outcome import JOULES, TaskOutcome

_ROOT = Path("/")
_POWERCAP = Path("sys/class/powercap")
_LOOK_S = 30.0
"""Least time in which a counter of RAPL begins again is some minutes, at a processor's full power."""


class Counter:
    """A counter of energy. ``read``: its joules, OSError or ValueError where it cannot be read; ``range_j``: joules at
    which it begins again, 0 for a counter that does not."""

    def __init__(self, read: Callable[[], float], range_j: float = 0.0) -> None:
        self._read = read
        self.range_j = range_j
        self._last = self._sum = 0.0

    def begin(self) -> None:
        self._last, self._sum = self._read(), 0.0

    def joules(self) -> float:
        """Energy since ``begin``; called more often than the counter begins again."""
        before, self._last = self._last, self._read()
        more = self._last - before
        if more < 0 and not self.range_j:
            raise ValueError("the counter was reset")
        self._sum += more if more >= 0 else more + self.range_j
        return self._sum


class EnergyMeter:
    """Energy of one evaluation after the other by some ``counters``; None where there can be none."""

    def __init__(self, counters: Sequence[Counter] | None) -> None:
        self._counters = counters
        self._lock = threading.Lock()
        self._running = False
        self._joules: float | None = None
        if any(counter.range_j for counter in counters or ()):
            threading.Thread(target=self._look, name="hpo-energy", daemon=True).start()

    def begin(self) -> None:
        """An evaluation begins."""
        with self._lock:
            self._joules, self._running = None, self._counters is not None
            try:
                for counter in self._counters or ():
                    counter.begin()
            except (OSError, ValueError):
                self._running = False

    def end(self) -> float | None:
        """Joules since ``begin``, up to the first call; None where they are not known."""
        with self._lock:
            self._joules = self._read() if self._running else self._joules
            self._running = False
            return self._joules

    def _read(self) -> float | None:
        try:
            return sum((counter.joules() for counter in self._counters or ()), 0.0)
        except (OSError, ValueError):
            self._running = False
            return None

    def _look(self) -> None:
        pause = threading.Event()
        while not pause.wait(_LOOK_S):
            with self._lock:
                if self._running:
                    self._read()


def counters_of(
    environment: Mapping[str, str], device: int | None, context: RankContext, root: Path = _ROOT
) -> list[Counter] | None:
    """Counters of what this rank alone uses; None where others use it, too, or nothing counts it. ``device``: index of
    its own among the visible devices, None for the CPU."""
    if device is not None:
        found = None
        with suppress(IndexError):
            if environment.get("HPO_RANKS_ON_GPU", "1") == "1":
                found = _of_gpu(environment, visible_devices(environment, root)[device], root)
        return None if found is None else [found]
    if context.local_size != context.worker_local_size:
        return None
    if context.worker_local_rank:  # the first rank on the host counts for all
        return []
    zones = [zone for zone in (root / _POWERCAP).glob("intel-rapl:*") if zone.name.count(":") == 1]
    packages = [zone for zone in zones if text_of(zone / "name").startswith("package-")]
    counters = [_in_file(zone / "energy_uj", _number(zone / "max_energy_range_uj")) for zone in packages]
    readable = [counter for counter in counters if counter is not None]
    return readable if readable and len(readable) == len(packages) else None


def _of_gpu(environment: Mapping[str, str], name: str, root: Path) -> Counter | None:
    vendor, present = gpus_of_host(environment, root)
    if vendor is NVIDIA and (name.isdecimal() or name.startswith("GPU-")):
        return _nvml(name)
    gpu = named_gpu(name, present)
    # Tiles that are devices of their own share the counter of their card.
    if vendor is INTEL and gpu is not None and present.count(gpu) == 1:
        for folder in sorted((root / PCI / gpu.bus_id / "hwmon").glob("hwmon*")):
            if text_of(folder / "name").strip() in ("i915", "xe"):
                return _in_file(folder / "energy1_input")
    return None


def _number(path: Path) -> float:
    text = text_of(path).strip()
    return int(text) * 1e-6 if text.isdecimal() else 0.0


def _in_file(path: Path, range_j: float = 0.0) -> Counter | None:
    """Counter in a file of the system, in microjoules; None where this process cannot read it."""
    counter = Counter(lambda: int(path.read_text()) * 1e-6, range_j)
    try:
        counter.begin()
    except (OSError, ValueError):
        return None
    return counter


def _nvml(name: str) -> Counter | None:
    """Counter of an NVIDIA GPU by its UUID, or by its number, which NVML counts as CUDA_VISIBLE_DEVICES does: in the
    order of the bus, without those that the job's cgroup hides."""
    handle, millijoules = ctypes.c_void_p(), ctypes.c_ulonglong()
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        find, key = (
            (library.nvmlDeviceGetHandleByIndex_v2, int(name))
            if name.isdecimal()
            else (library.nvmlDeviceGetHandleByUUID, name.encode())
        )
        if library.nvmlInit_v2() or find(key, ctypes.byref(handle)):
            return None

        def read() -> float:
            if library.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(millijoules)):
                raise OSError("NVML does not say how much energy the GPU has used")
            return millijoules.value * 1e-3

        counter = Counter(read)
        counter.begin()
    except (OSError, AttributeError):
        return None
    return counter


def filled(returned: object, objectives: Sequence[str], joules: float | None) -> object:
    """Return value of a task, ``returned``, with ``joules`` where these are an objective that it leaves to hpo."""
    if joules is None or JOULES not in objectives or not isinstance(returned, Mapping) or JOULES in returned:
        return returned
    return {**returned, JOULES: joules}


def with_joules(outcome: TaskOutcome, of_ranks: Sequence[float | None]) -> TaskOutcome:
    """``outcome`` of worker rank 0 with the joules of all ranks, as a metric or in place of its own, which it has as an
    objective or a limited metric."""
    objectives, metrics, own = outcome.objectives or {}, outcome.metrics, of_ranks[0]
    known = [joules for joules in of_ranks if joules is not None]
    is_objective, is_limited = (own is not None and held.get(JOULES) == own for held in (objectives, metrics))
    if len(known) < len(of_ranks):
        if not (is_objective or is_limited):
            return outcome
        error = f"{JOULES!r} is known of {len(known)} ranks of {len(of_ranks)}: return it."
        return replace(outcome, status=FAILED, objectives=None, error=error)
    if is_objective:
        return replace(outcome, objectives={**objectives, JOULES: sum(known)})
    if not is_limited and (JOULES in objectives or JOULES in metrics):
        return outcome
    return replace(outcome, metrics={**metrics, JOULES: sum(known)})
