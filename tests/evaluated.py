"""A task that behaves and misbehaves in every way; ``params["what"]`` names the function that says how."""

from __future__ import annotations

import atexit
import ctypes
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hpo

FOREVER_S = 3600
KEPT: list[Any] = []


def evaluate(trial: hpo.Trial) -> object:
    if trial.params.get("only_rank", trial.rank) != trial.rank:
        return _peer(trial)
    return globals()[f"_{trial.params.get('what', 'complete')}"](trial)


def _peer(trial: hpo.Trial) -> float:
    """What ranks do while another one misbehaves: wait for it in a collective."""
    if trial.params.get("peers") == "hang":
        return _hang(trial)
    import torch
    import torch.distributed as dist

    trial.log(waits=True)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    for _ in range(3):
        model(torch.ones(2, 2)).sum().backward()
    dist.barrier()
    return 0.0


def _complete(trial: hpo.Trial) -> float:
    return float(trial.params.get("value", 0.5))


def _straggle(trial: hpo.Trial) -> float:
    """Rank 0 ends, or fails where that is asked for."""
    if trial.rank:
        time.sleep(FOREVER_S)
    if trial.params.get("fails"):
        raise ValueError("rank 0 failed")
    return 2.0


def _nan(trial: hpo.Trial) -> float:
    return math.nan


def _text(trial: hpo.Trial) -> str:
    return "0.5"


def _sys_exit(trial: hpo.Trial) -> object:
    sys.exit(3)


def _metrics(trial: hpo.Trial) -> dict[str, object]:
    trial.log(epochs=3, note="logged")
    return {"value": 1, "note": "returned"}


def _elsewhere(trial: hpo.Trial) -> dict[str, object]:
    """Leaves the working directory, leads descriptor 1 away, and puts a stream that has not even a ``flush`` in the
    place of the output's."""
    before = os.getcwd()
    os.chdir("/")
    print("seen", flush=True)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)

    class Tee:
        def write(self, text: str) -> None:
            KEPT.append(text)

    sys.stdout = Tee()  # type: ignore[assignment]
    print("kept")
    return {"value": 0.0, "before": before, "kept": "".join(map(str, KEPT))}


def _raise(trial: hpo.Trial) -> float:
    raise ValueError(f"no such thing on rank {trial.rank}")


def _raise_late_in_model(trial: hpo.Trial) -> float:
    """Keeps a wrapped model, which keeps the group and its connections."""
    import torch

    KEPT.append(torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2)))
    KEPT[-1](torch.ones(2, 2)).sum().backward()
    raise ValueError("late")


def _raise_and_cannot_leave(trial: hpo.Trial) -> float:
    from torch.distributed import distributed_c10d

    def refuse(group: object = None) -> None:
        raise RuntimeError("NCCL is in trouble")

    # What torch calls to destroy the default group.
    distributed_c10d._update_default_pg = refuse
    raise ValueError("first of all")


def _hang(trial: hpo.Trial) -> float:
    Path(trial.directory, f"begun-{trial.rank}").touch()
    time.sleep(FOREVER_S)
    return 0.0


def _hang_holding_the_lock(trial: hpo.Trial) -> float:
    Path(trial.directory, f"begun-{trial.rank}").touch()
    ctypes.PyDLL(None).sleep(FOREVER_S)  # PyDLL: the interpreter's lock is not released
    return 0.0


def _exit(trial: hpo.Trial) -> float:
    print("last words")
    os._exit(7)


def _exit_zero(trial: hpo.Trial) -> float:
    os._exit(0)


def _segfault(trial: hpo.Trial) -> float:
    ctypes.string_at(0)
    return 0.0


def _abort(trial: hpo.Trial) -> float:
    """As NCCL's watchdog ends a rank, and a failed assertion of C's."""
    os.abort()


def _killed(trial: hpo.Trial) -> float:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0.0


def _output(trial: hpo.Trial) -> float:
    print("printed by Python")
    print("to stderr", file=sys.stderr)
    os.write(1, b"written to the descriptor\n")
    ctypes.CDLL(None).puts(b"printed by C")
    subprocess.run(["echo", "printed by a program"], check=True)
    return 0.0


def _report(trial: hpo.Trial) -> float:
    for step in range(10):
        trial.report(step, float(step))
        trial.log(seen=step)
    return 9.0


def _asks_after_reports(trial: hpo.Trial) -> dict[str, object]:
    """The steps after which it was asked to save, which it did not do, in the digits of a number."""
    asked = 0
    for step in range(1, 6):
        trial.report(step, float(step))
        asked = 10 * asked + (step if trial.should_checkpoint() else 0)
    return {"value": asked}


def _checkpoint(trial: hpo.Trial) -> float:
    state = Path(trial.directory, f"state-{trial.rank}")
    if state.exists():
        return float(state.read_text())
    Path(trial.directory, f"begun-{trial.rank}").touch()
    for _ in range(FOREVER_S * 100):
        if trial.should_checkpoint():
            state.write_text(str(trial.rank + 41))
            raise hpo.Interrupted
        time.sleep(0.01)
    return 0.0


def _leave_files(trial: hpo.Trial) -> float:
    """The number of files that it finds, but for output."""
    found = [path for path in trial.directory.iterdir() if not path.name.startswith("output-")]
    Path(trial.directory, "model.pt").touch()
    Path(trial.directory, "samples").mkdir()
    Path(trial.directory, "samples", "0.txt").touch()
    print("tried")
    return float(len(found))


def _manage_group(trial: hpo.Trial) -> dict[str, object]:
    """A script of one's own: it initialises the group, makes others, trains, and destroys them, but in ``leaves``."""
    import threading

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    everyone = list(range(size))
    groups = [
        None,
        dist.new_group(everyone),
        dist.new_group(everyone, use_local_synchronization=True),
        dist.new_group([rank], use_local_synchronization=True),
    ]
    if rank:  # names of groups come of how many there are
        dist.new_group([rank], use_local_synchronization=True)
    for group in groups:
        model = DistributedDataParallel(torch.nn.Linear(2, 2), process_group=group)
        model(torch.ones(2, 2)).sum().backward()
    value = torch.tensor([rank + 1.0])
    dist.all_reduce(value, group=groups[1])
    there = len(dist.distributed_c10d._world.pg_map)
    if not trial.params.get("leaves"):
        dist.destroy_process_group(groups[2])
        dist.destroy_process_group()
        assert not dist.is_initialized()
    elif trial.params["leaves"] == "model":
        KEPT[:] = [model]
    trial.report(1, 1.0)
    return {"value": float(value), "groups": there, "threads": threading.active_count()}


def _train(trial: hpo.Trial) -> dict[str, object]:
    """With trainers, across two nodes where the worker has two ranks; ``raises``: the rank that fails in its report."""
    import torch
    import torch.distributed as dist
    from torch.utils.data import TensorDataset

    import trainers
    from trainers.communication.kept_groups import KEPT as DESCRIPTION

    def report(epoch: int, metrics: object) -> None:
        if trial.params.get("raises") == trial.rank:
            raise RuntimeError("as it was asked to")

    samples = TensorDataset(torch.ones(8, 2), torch.ones(8, 1))
    trainers.train(
        torch.nn.Linear(2, 1),
        samples,
        samples,
        loss=torch.nn.functional.mse_loss,
        optimizer=torch.optim.SGD,
        epochs=1,
        batch_size=2,
        method=trainers.DASO(),
        topology=trainers.Topology(ranks_per_node=1),
        report=report,
    )
    kept = [group for group in dist.distributed_c10d._world.pg_map if group.group_desc == DESCRIPTION]
    return {
        "value": 0.0,
        "groups": len(kept),
        "name": min((int(group.group_name) for group in kept), default=0),
    }


def _wait_apart(trial: hpo.Trial) -> object:
    """Rank 0 waits in a call that rank 1 does not make, or makes when rank 0 has said so (``other = "comes"``)."""
    import torch
    import torch.distributed as dist

    from hpo.evaluation.process import wait_watch

    wait_watch._SLOW_S = 0.4
    said = Path(trial.directory, "output-0.txt")
    calls: dict[str, Callable[[], object]] = {
        "trainers.train": lambda: _train(trial),
        "torch.distributed.all_reduce": lambda: dist.all_reduce(torch.ones(1)),
        "torch.distributed.barrier": dist.barrier,
        "trial.report": lambda: trial.report(0, 0.0),
        "trial.should_checkpoint": trial.should_checkpoint,
        "returns": lambda: None,
    }
    waits, other = str(trial.params["waits"]), str(trial.params["other"])
    if trial.rank and other == "comes":
        while "has waited" not in said.read_text():
            time.sleep(0.05)
        other = waits
    calls[other if trial.rank else waits]()
    return 0.0


def _ask_for_another_group(trial: hpo.Trial) -> float:
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    given = {name: value for name, value in trial.params.items() if name in ("backend", "world_size", "rank")}
    dist.init_process_group(**given, timeout=timedelta(seconds=0.5))
    if trial.params.get("twice"):
        dist.init_process_group()
    if trial.rank == 0:
        dist.all_reduce(torch.zeros(1))
    return 0.0


def _collective(trial: hpo.Trial) -> float:
    import torch
    import torch.distributed as dist

    total = torch.tensor([trial.rank + 1.0])
    dist.all_reduce(total)
    return float(total)


def _draw(trial: hpo.Trial) -> dict[str, object]:
    import random

    import numpy as np

    return {"value": random.random(), "numpy": np.random.rand()}


def _describe(trial: hpo.Trial) -> dict[str, object]:
    """What this process is and sees."""
    return {
        "value": 0.0,
        "parent": os.getppid(),
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "launcher": ",".join(
            name
            for name in os.environ
            if name.startswith(("OMPI", "PMI", "PRTE", "MPI", "SLURM_PROC", "SLURM_ST"))
        ),
        "place": f"{trial.rank} of {trial.size}, {trial.local_rank}, {trial.device}",
        "torchrun": ",".join(os.environ.get(name, "-") for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")),
        "interfaces": " ".join(
            os.environ.get(f"{library}_SOCKET_IFNAME", "-") for library in ("GLOO", "NCCL")
        ),
        "torch": "torch" in sys.modules,
        "cores": len(os.sched_getaffinity(0)),
    }


def _descendants(trial: hpo.Trial) -> float:
    """Starts a process, one in a group of its own and one in a session of its own, and tells their numbers."""
    started = [
        subprocess.Popen(["sleep", str(FOREVER_S)]),
        subprocess.Popen(["sh", "-c", f"sleep {FOREVER_S} & wait"], preexec_fn=os.setpgrp),
        subprocess.Popen(["sleep", str(FOREVER_S)], start_new_session=True),
    ]
    while (
        len(inner := Path(f"/proc/{started[1].pid}/task/{started[1].pid}/children").read_text().split()) < 1
    ):
        pass
    numbers = [str(process.pid) for process in started] + inner
    path = Path(trial.directory, "descendants.new")
    path.write_text(" ".join(numbers))
    path.rename(path.with_suffix(""))
    time.sleep(FOREVER_S)
    return 0.0


def _leave_running(trial: hpo.Trial) -> float:
    """Starts two processes, then is pruned, and fails where it is not."""
    named = Path(
        trial.directory, "aaaaaaaaaaaaaaü"
    )  # the kernel cuts names in the middle of a character, too
    named.symlink_to(shutil.which("sleep") or "")
    started = [
        subprocess.Popen([named, str(FOREVER_S)]),
        subprocess.Popen(["sleep", str(FOREVER_S)], start_new_session=True),
    ]
    KEPT.extend(started)
    Path(trial.directory, "descendants").write_text(" ".join(str(process.pid) for process in started))
    trial.report(1, float(trial.params.get("value", 0.0)))
    raise ValueError("nothing to prune")


def _tracked(trial: hpo.Trial) -> float:
    """Fails, and leaves the process behind that multiprocessing starts once and uses again."""
    import multiprocessing
    from multiprocessing.resource_tracker import _resource_tracker

    KEPT.append(multiprocessing.get_context("spawn").Semaphore())
    assert Path(f"/proc/{_resource_tracker._pid}").exists()
    raise ValueError("as it is to")


def _linger(trial: hpo.Trial) -> dict[str, object]:
    """Tells whether the process ``former`` is still there, and takes its time to end itself."""
    atexit.register(time.sleep, trial.params.get("lingers", 1.5))
    former = trial.params.get("former")
    return {"value": 0.0, "pid": os.getpid(), "alone": not Path(f"/proc/{former}").exists()}


def _fork(trial: hpo.Trial) -> float:
    """A forked process that lives on must not hide the end of the evaluator from its control rank."""
    if os.fork() == 0:
        time.sleep(FOREVER_S)
    os._exit(5)


task = hpo.Task(hpo.SearchSpace(value=hpo.Float(0.0, 1.0)), evaluate)
