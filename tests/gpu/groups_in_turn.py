"""Forms and leaves groups of this rank alone, again and again: ``groups_in_turn.py KIND DEVICE TIMES``. Prints as JSON
what the process holds then. KIND: "worker", a worker's process group between evaluations, or "run", the groups of a run
of ``trainers``, used as its channels do."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from hpo.evaluation.conversation import FormGroup, RankContext
from hpo.evaluation.devices import choose_backend
from hpo.evaluation.gpu import evaluator_device
from hpo.evaluation.process.task_groups import TaskGroups
from hpo.evaluation.process.worker_group import WorkerGroup
from hpo.task.task import TaskSource
from trainers.communication.channel import Channel
from trainers.communication.kept_groups import KEPT
from trainers.communication.process_groups import give_back, group_apart, next_number

TIMEOUT = timedelta(seconds=60)
Turn = tuple[str, Callable[[int], None]]
"""The backend, and what is done in the turn of a number."""


def held(device: torch.device) -> dict[str, int]:
    used = 0
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        used = (total - free) // 2**20
    files, threads = (len(list(Path("/proc/self", name).iterdir())) for name in ("fd", "task"))
    return {"files": files, "threads": threads, "device_mib": used}


def of_a_worker(device: torch.device) -> Turn:
    host = socket.gethostname()
    index = device.index if device.type == "cuda" else None
    context = RankContext(
        worker_rank=0, size=1, hosts=(host,), local_rank=0, local_size=1, cores_agreed=True,
        source=TaskSource(reference="gpu_tasks:training"),
    )  # fmt: skip
    group = WorkerGroup(
        context, evaluator_device(os.environ, index, "the test"), TaskGroups(), lambda wait: None
    )
    backend = choose_backend([(host, group.gpu)])

    def turn(number: int) -> None:
        group.join(
            FormGroup(
                generation=number,
                address=group.address,
                backend=backend,
                start_timeout_s=60.0,
                timeout_s=None,
            )
        )
        ones = torch.ones(1000, device=device)
        dist.all_reduce(ones)
        assert ones.sum().item() == 1000.0
        group.begin(number)
        group.leave()
        assert not dist.is_initialized()

    return backend, turn


class NotAlone(Channel):
    """A channel of one rank that calls torch all the same."""

    size = property(lambda self: 2)  # type: ignore[assignment]


def use(group: dist.ProcessGroup, device: torch.device) -> None:
    channel = NotAlone(name="alone", ranks=(0,), rank=0, group=group, timeout=TIMEOUT, next_is_near=True)
    for kind in (torch.float32, torch.float64, torch.bfloat16, torch.int64):
        whole = torch.arange(6, device=device).to(kind)
        expected = whole.clone()
        for matrix in (whole, whole.view(2, 3)):
            for started in (channel.all_reduce(matrix), channel.broadcast(matrix)):
                assert torch.equal(started.wait().flatten(), expected)
    # What libraries do not know is sent as bytes.
    flags = torch.tensor([True, False, True], device=device)
    for tensor in (flags, torch.ones(3, device=device)):
        assert torch.equal(channel.broadcast(tensor.clone()).wait(), tensor)
        assert torch.equal(channel.all_gather(tensor)[0], tensor)
        gathered = channel.gather(tensor)
        assert gathered is not None and torch.equal(gathered[0], tensor)
    into = torch.ones(3, device=device)
    dist.all_gather_into_tensor(into, into, group=group)
    assert channel.number_of_each(7, device) == [7]
    channel.barrier(device)
    assert channel.under_way == 0 and channel.wait_s >= 0.0


def of_a_run(device: torch.device) -> Turn:
    gpu = device.type == "cuda"
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if gpu else "gloo", store=dist.HashStore(), rank=0, world_size=1, timeout=TIMEOUT,
        device_id=device if gpu else None,
    )  # fmt: skip
    backend = "nccl" if gpu else "gloo"
    count, bound = dist.distributed_c10d._world.group_count, dist.group.WORLD.bound_device_id

    def turn(number: int) -> None:
        own = next_number(lambda mine: mine)
        groups: list[dist.ProcessGroup | None] = [
            group_apart([0], own, index=index, timeout=TIMEOUT, backend=backend) for index in range(2)
        ]
        for group in groups:
            assert group is not None and dist.get_backend(group) == backend
            use(group, device)
            group._set_group_desc(KEPT)
            assert group.group_desc == KEPT
        group = None
        give_back(groups)
        assert len(dist.distributed_c10d._world.pg_map) == 1
        assert (dist.distributed_c10d._world.group_count, dist.group.WORLD.bound_device_id) == (count, bound)

    return backend, turn


def main() -> None:
    device, times = torch.device(sys.argv[2]), int(sys.argv[3])
    backend, turn = {"worker": of_a_worker, "run": of_a_run}[sys.argv[1]](device)
    found: dict[str, object] = {"backend": backend}
    begin = time.perf_counter()
    for number in range(1, times + 1):
        turn(number)
        if number == times // 5:
            found["settled"] = held(device)
    found |= {"last": held(device), "seconds each": (time.perf_counter() - begin) / times}
    if dist.is_initialized():
        dist.destroy_process_group()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
