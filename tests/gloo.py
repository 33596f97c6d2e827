"""Run a function on several ranks of a gloo group on this machine, with a hard time-out."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest

# Forked from a server that has imported torch already: starting a rank takes milliseconds, not seconds.
_context = multiprocessing.get_context("forkserver")
# torch._dynamo comes with the first optimizer.
_context.set_forkserver_preload(["torch", "torch._dynamo", "trainers"])


one_rank = False
"""Whether tests that need several ranks are left out (tests/conftest.py)."""


def groups_in_use() -> int:
    """Process groups that torch has, but for those that a run has left to the next."""
    from torch.distributed.distributed_c10d import _world

    from trainers.communication.kept_groups import KEPT

    return sum(group.group_desc != KEPT for group in _world.pg_map)


def run_ranks(
    size: int,
    function: Callable[..., Any],
    *arguments: Any,
    timeout_s: float = 100,
    method: str = "forkserver",
) -> list[Any]:
    """What ``function(rank, *arguments)`` returned on each rank; AssertionError with the traceback of one
    that failed.

    ``function`` is defined at the top of a module. ``method``: of starting a rank. Where ranks use a GPU it is
    "spawn": what has looked for one, as an import may do, cannot be forked from.
    """
    outcomes = outcomes_of_ranks(size, function, *arguments, timeout_s=timeout_s, method=method)
    failed = [text for kind, text in outcomes if kind != "returned"]
    assert not failed, "\n".join(failed)
    return [value for _, value in outcomes]


def outcomes_of_ranks(
    size: int,
    function: Callable[..., Any],
    *arguments: Any,
    timeout_s: float = 100,
    method: str = "forkserver",
) -> list[tuple[str, Any]]:
    """("returned", value), ("raised", traceback), ("ended", exit code) or ("hung", "") of each rank."""
    if one_rank and size > 1:
        pytest.skip("needs a process a rank")
    context: Any = _context if method == "forkserver" else multiprocessing.get_context(method)
    deadline = time.monotonic() + timeout_s
    outcomes: list[tuple[str, Any]] = [
        ("hung", f"rank {rank} was killed after {timeout_s} s") for rank in range(size)
    ]
    processes: list[Any] = []
    with tempfile.TemporaryDirectory() as directory:
        try:
            ends = {}
            for rank in range(size):
                mine, theirs = context.Pipe(duplex=False)
                # No daemon, which could not start the processes that read ahead; the last lines here end it.
                process = context.Process(
                    target=_rank, args=(theirs, directory, rank, size, function, arguments), daemon=False
                )
                processes.append(process)
                process.start()
                theirs.close()
                ends[mine] = rank
            while ends and (left := deadline - time.monotonic()) > 0:
                for end in wait(list(ends), timeout=left):
                    assert isinstance(end, Connection)
                    rank = ends.pop(end)
                    try:
                        outcomes[rank] = pickle.loads(end.recv_bytes())
                    except EOFError:
                        processes[rank].join(5)
                        outcomes[rank] = ("ended", f"rank {rank} ended with {processes[rank].exitcode}")
        finally:
            for process in processes:
                if process.pid is None:  # not started
                    continue
                process.join(max(0.0, min(5.0, deadline - time.monotonic())))
                if process.is_alive():
                    process.kill()
                    process.join()
    return outcomes


def _rank(
    end: Connection,
    directory: str,
    rank: int,
    size: int,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    import torch
    import torch.distributed as dist

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    # Of processes that read ahead: they end when this rank is killed, as those of another server would not.
    multiprocessing.set_start_method("fork", force=True)
    try:
        store = dist.FileStore(str(Path(directory) / "store"), size)
        dist.init_process_group(
            "gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=30)
        )
        # Plain bytes: torch would hand over tensors as shared memory, which is gone when this process is.
        end.send_bytes(pickle.dumps(("returned", function(rank, *arguments))))
        dist.destroy_process_group()
    except BaseException:
        end.send_bytes(pickle.dumps(("raised", f"rank {rank}:\n{traceback.format_exc()}")))
    finally:
        end.close()
