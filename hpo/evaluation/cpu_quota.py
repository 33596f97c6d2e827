"""How much CPU time the cgroups of this process allow, as ``docker --cpus``, Kubernetes' limits and systemd's
``CPUQuota`` set it. The set of CPUs of a process does not show it, and more threads than that wait for each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from math import inf
from pathlib import Path

_ROOT = Path("/")
_CGROUPS = Path("sys/fs/cgroup")


def cpu_quota(root: Path = _ROOT) -> float:
    """CPUs' worth of time a second, the least of what this process' cgroups and theirs allow; infinite without a limit.
    See "cpu.max" in Linux's documentation of cgroups version 2, and "cpu.cfs_quota_us" in that of version 1.
    """
    return min(_limits(root), default=inf)


def within(quota: float, cpus: int, ranks: int = 1) -> int:
    """How many of its ``cpus`` each of ``ranks`` can keep busy within ``quota``, one at least."""
    return max(1, int(min(cpus, quota / ranks)))


def _limits(root: Path) -> Iterator[float]:
    for line in _text(root / "proc/self/cgroup").splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if hierarchy == "0":
            for folder in _up(root / _CGROUPS, path):
                yield from _limit(*_text(folder / "cpu.max").split()[:2])
        elif "cpu" in controllers.split(","):
            # Folders have the controllers' names in an order of their own; "cpu" is a link to the right one.
            for base in dict.fromkeys((controllers, "cpu")):
                for folder in _up(root / _CGROUPS / base, path):
                    quota, period = (
                        _text(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")
                    )
                    yield from _limit(quota, period)


def _up(base: Path, path: str) -> Iterator[Path]:
    """The cgroup ``path`` and those that it is in. In a container its own may be ``base``, whatever ``path`` says."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for count in range(len(parts), -1, -1):
        yield base.joinpath(*parts[:count])


def _limit(quota: str = "", period: str = "") -> Iterator[float]:
    if quota.isdecimal() and period.isdecimal() and int(quota) and int(period):
        yield int(quota) / int(period)


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(errors="surrogateescape")
    return ""
