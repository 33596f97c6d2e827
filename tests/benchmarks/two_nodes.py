"""Four ranks on "two nodes" of two: network namespaces joined by a virtual cable whose rate can be limited.

    python tests/benchmarks/two_nodes.py [--rate 200]       what the cable does, as a check

A benchmark runs one of its functions on all ranks:

    with TwoNodes(rate_mbit=200) as nodes:
        results = nodes.run(measure, {"steps": 40})         # measure(rank, steps=40) on each, its JSON value

In ``measure`` a gloo group is initialised, and ``bytes_sent()`` reads the interface's counter of the node's transmitted
bytes: TCP between the nodes, Ethernet headers included. Each node has half of this machine's cores to itself, as on
shared cores the scheduler lets a node run ahead. ``Alone`` does the same on this machine's loopback.

Needs Linux, root and iproute2. Namespaces are removed at the end, also after Ctrl-C, SIGTERM and failures; those that a
killed process left are removed by the next run."""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any

RANKS, RANKS_PER_NODE = 4, 2
INTERFACE = "cable0"
ADDRESSES = ("10.200.0.1", "10.200.0.2")
MTU = 9000
"""Bytes of a packet, as clusters have it; with 1500 headers alone would add 4.6 % to what is sent."""
COLLECTIVE_TIMEOUT = timedelta(seconds=120)
"""How long ranks wait for one another."""

_numbers = itertools.count()


class Unavailable(Exception):
    """Network namespaces cannot be made here; the text says why and what to do."""


def why_not() -> str | None:
    """What keeps this process from making two nodes, with the remedy; None if nothing does."""
    try:
        with TwoNodes(rate_mbit=200):
            return None
    except Unavailable as error:
        return str(error)


def bytes_sent() -> int:
    """Bytes that this rank's node has transmitted to the other node so far."""
    return int(Path(f"/sys/class/net/{INTERFACE}/statistics/tx_bytes").read_text())


def settled() -> int:
    """``bytes_sent`` when all ranks are here and nothing is left on the way."""
    import torch.distributed as dist

    dist.barrier()
    # Acknowledgements, and what still stands in the queue of a slow link.
    time.sleep(0.3)
    return bytes_sent()


class Alone:
    """Four ranks on this machine's loopback. ``run`` works as it does on two nodes."""

    interface = "lo"

    def run(
        self, function: Callable[..., Any], arguments: dict[str, Any] | None = None, *, timeout_s: float = 900
    ) -> list[Any]:
        """What ``function(rank, **arguments)`` returned on each rank, as JSON has it.

        ``function`` is defined at the top of a benchmark's file.

        Raises:
            SystemExit: a rank failed or ran over ``timeout_s``; the end of what it printed is shown.
        """
        with tempfile.TemporaryDirectory(prefix="two-nodes-") as name:
            scratch = Path(name)
            processes: list[subprocess.Popen[bytes]] = []
            try:
                # One after the other into the list: those started are ended even if the next cannot be.
                processes.extend(
                    self._start(rank, function, arguments or {}, scratch) for rank in range(RANKS)
                )
                self._wait(processes, scratch, time.monotonic() + timeout_s)
            finally:
                for process in processes:
                    process.kill()
                    process.wait()
            return [json.loads((scratch / f"result-{rank}").read_text()) for rank in range(RANKS)]

    def _start(
        self, rank: int, function: Callable[..., Any], arguments: dict[str, Any], scratch: Path
    ) -> subprocess.Popen[bytes]:
        line = [sys.executable, __file__, "--rank", str(rank), "--scratch", str(scratch)]
        line += ["--function", f"{function.__code__.co_filename}:{function.__name__}"]
        line += ["--arguments", json.dumps(arguments)]
        line += ["--cores", *map(str, self._cores(rank))]
        environment = {
            **os.environ,
            "GLOO_SOCKET_IFNAME": self.interface,
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
        }
        with (scratch / f"stderr-{rank}").open("wb") as stderr:
            return subprocess.Popen(
                [*self._inside(rank), *line],
                env=environment,
                stdin=subprocess.DEVNULL,
                stderr=stderr,
                # Ctrl-C is for the one that starts the ranks; it ends them.
                start_new_session=True,
            )

    def _inside(self, rank: int) -> list[str]:
        """What stands before a command to make it run on this rank's node."""
        return []

    def _cores(self, rank: int) -> list[int]:
        """Of this machine, those that the rank may use."""
        return sorted(os.sched_getaffinity(0))

    @staticmethod
    def _wait(processes: list[subprocess.Popen[bytes]], scratch: Path, deadline: float) -> None:
        while any(code := [process.poll() for process in processes]) or None in code:
            failed = [rank for rank, value in enumerate(code) if value]
            if failed:
                # Ranks that lose a peer fail in turn; the one that began it says more.
                time.sleep(1)
            elif time.monotonic() > deadline:
                failed = [rank for rank, value in enumerate(code) if value is None]
            if failed:
                said = "\n".join(
                    f"rank {rank} ({processes[rank].poll()}):\n"
                    + (scratch / f"stderr-{rank}").read_text(errors="replace")[-3000:]
                    for rank in failed
                )
                raise SystemExit(f"ranks {failed} failed or did not end in time:\n{said}")
            time.sleep(0.05)


class TwoNodes(Alone):
    """Ranks 0 and 1 on one node, 2 and 3 on the other; ``rate_mbit``: of the cable, each way (None: as fast
    as the machine copies). ``shared_cores``: nodes do not have cores of their own; so it is on a single core.

    Raises:
        Unavailable: entering it, where namespaces cannot be made.
    """

    interface = INTERFACE

    def __init__(self, *, rate_mbit: float | None, shared_cores: bool = False) -> None:
        self._rate_mbit = rate_mbit
        self._shared_cores = shared_cores
        number = next(_numbers)
        self._names = tuple(f"two-nodes-{os.getpid()}-{number}{side}" for side in "ab")
        self._previous: Any = None

    def __enter__(self) -> TwoNodes:
        check_tools()
        _remove_abandoned()
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGTERM, _end)
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def _make(self) -> None:
        first, second = self._names
        for name in self._names:
            call("ip", "netns", "add", name)
        # Both ends are born inside: nothing is ever seen, or has to be unique, outside.
        call(
            *("ip", "-n", first, "link", "add", INTERFACE, "type", "veth"),
            *("peer", "name", INTERFACE, "netns", second),
        )
        for name, address in zip(self._names, ADDRESSES):
            # Ranks of one node talk over loopback, also when they use the cable's address.
            call("ip", "-n", name, "link", "set", "lo", "up")
            call("ip", "-n", name, "link", "set", INTERFACE, "addrgenmode", "none", "mtu", str(MTU))
            call("ip", "-n", name, "address", "add", f"{address}/24", "dev", INTERFACE)
            call("ip", "-n", name, "link", "set", INTERFACE, "up")
        hardware = [self._hardware_address(name) for name in self._names]
        for name, address, other in zip(self._names, reversed(ADDRESSES), reversed(hardware)):
            call("ip", "-n", name, "neighbour", "add", address, "lladdr", other, "dev", INTERFACE)
            if self._rate_mbit is not None:
                # The queue is long enough to drop nothing: TCP's own windows are the limit.
                call(
                    *("tc", "-n", name, "qdisc", "add", "dev", INTERFACE, "root", "tbf"),
                    *("rate", f"{self._rate_mbit}mbit", "burst", "64kb", "limit", "16mb"),
                )

    @staticmethod
    def _hardware_address(name: str) -> str:
        return str(json.loads(call("ip", "-n", name, "-json", "link", "show", INTERFACE))[0]["address"])

    def _remove(self) -> None:
        for name in self._names:
            # The cable goes with its ends.
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, timeout=30, check=False)
        if self._previous is not None:
            signal.signal(signal.SIGTERM, self._previous)
            self._previous = None

    def _inside(self, rank: int) -> list[str]:
        return ["ip", "netns", "exec", self._names[rank // RANKS_PER_NODE]]

    def _cores(self, rank: int) -> list[int]:
        cores = super()._cores(rank)
        share = len(cores) // len(self._names)
        if self._shared_cores or share == 0:
            return cores
        first = rank // RANKS_PER_NODE * share
        return cores[first : first + share]


def check_tools() -> None:
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        raise Unavailable(
            "Two nodes on one machine need Linux and root: they are network namespaces. Run this as root, or in "
            "a container that has CAP_NET_ADMIN and CAP_SYS_ADMIN."
        )
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        raise Unavailable(f"{' and '.join(missing)} not found. Install iproute2: apt-get install iproute2")


def _remove_abandoned() -> None:
    """Remove namespaces of processes that were killed before they could."""
    for entry in Path("/run/netns").glob("two-nodes-*-*"):
        owner = entry.name.split("-")[2]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            subprocess.run(
                ["ip", "netns", "delete", entry.name], capture_output=True, timeout=30, check=False
            )


def call(*line: str) -> str:
    done = subprocess.run(line, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        raise Unavailable(
            f"{' '.join(line)}: {done.stderr.strip() or done.returncode}. The kernel or the container does not "
            "allow network namespaces with virtual cables; a privileged container or a real machine does."
        )
    return done.stdout


def _end(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def _as_rank(options: argparse.Namespace) -> None:
    """One rank: call the function and leave its value in a file."""
    # Should the one that started this be killed, nobody else would end it.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    # Before the first thread: those that are there already would keep theirs.
    os.sched_setaffinity(0, options.cores)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    path, _, name = options.function.rpartition(":")
    specification = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[Path(path).stem] = module
    specification.loader.exec_module(module)
    store = dist.FileStore(str(options.scratch / "store"), RANKS)  # type: ignore[attr-defined]
    dist.init_process_group(
        "gloo", store=store, rank=options.rank, world_size=RANKS, timeout=COLLECTIVE_TIMEOUT
    )
    result = getattr(module, name)(options.rank, **json.loads(options.arguments))
    (options.scratch / f"result-{options.rank}").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


def cable(rank: int, megabytes: int) -> dict[str, float]:
    """Sum a tensor over the ranks of both nodes, and over those of this one."""
    import torch
    import torch.distributed as dist

    inside = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // RANKS_PER_NODE]
    tensor = torch.ones(megabytes * 2**18)
    dist.all_reduce(tensor[:1000])
    dist.all_reduce(tensor[:1000], group=inside)
    begin, sent = time.perf_counter(), settled()
    begin = time.perf_counter()
    dist.all_reduce(tensor)
    seconds = time.perf_counter() - begin
    between = settled() - sent
    dist.all_reduce(tensor, group=inside)
    quiet = settled()
    time.sleep(1)
    return {
        "seconds": seconds,
        "bytes_between": between,
        # Two barriers lie in the first of these, nothing in the second.
        "bytes_of_a_sum_inside": quiet - sent - between,
        "bytes_of_a_quiet_second": bytes_sent() - quiet,
        "cores_of_the_node": len(os.sched_getaffinity(0)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=float, default=200.0, help="Mbit/s")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--scratch", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--function", help=argparse.SUPPRESS)
    parser.add_argument("--arguments", help=argparse.SUPPRESS)
    parser.add_argument("--cores", type=int, nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        _as_rank(options)
        return
    megabytes = 10
    with entered(options.rate) as nodes:
        found = nodes.run(cable, {"megabytes": megabytes}, timeout_s=120)[0]
    # Each node transmits one of the ring's four parts six times: 2 · 3/4 of the tensor.
    found["bytes_to_expected"] = found["bytes_between"] / (1.5 * megabytes * 2**20)
    found["mbit_per_s"] = 8e-6 * found["bytes_between"] / found["seconds"]
    print(json.dumps({"benchmark": "two_nodes", "rate_mbit": options.rate, **found}))


def entered(rate_mbit: float | None, *, shared_cores: bool = False) -> TwoNodes:
    """Two nodes for a ``with``; SystemExit with the reason where they cannot be."""
    reason = why_not()
    if reason is not None:
        raise SystemExit(reason)
    return TwoNodes(rate_mbit=rate_mbit, shared_cores=shared_cores)


if __name__ == "__main__":
    main()
