"""Forms and leaves a worker's process group, of one rank, again and again: ``groups_in_turn.py DEVICE TIMES``. Prints
as JSON what the process holds then."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from hpo.evaluation.conversation import FormGroup, RankContext
from hpo.evaluation.devices import choose_backend, evaluator_device
from hpo.evaluation.process.task_groups import TaskGroups
from hpo.evaluation.process.worker_group import WorkerGroup
from hpo.task.task import TaskSource


def held(device: torch.device) -> dict[str, int]:
    used = 0
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        used = (total - free) // 2**20
    files, threads = (len(list(Path("/proc/self", name).iterdir())) for name in ("fd", "task"))
    return {"files": files, "threads": threads, "device_mib": used}


def main() -> None:
    device, times = torch.device(sys.argv[1]), int(sys.argv[2])
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
    found: dict[str, object] = {"backend": backend}
    begin = time.perf_counter()
    for turn in range(1, times + 1):
        group.join(
            FormGroup(
                generation=turn, address=group.address, backend=backend, start_timeout_s=60.0, timeout_s=None
            )
        )
        ones = torch.ones(1000, device=device)
        dist.all_reduce(ones)
        assert ones.sum().item() == 1000.0
        group.begin(turn)
        group.leave()
        assert not dist.is_initialized()
        if turn in (20, times):
            found[f"after {turn}"] = held(device)
    found["seconds each"] = (time.perf_counter() - begin) / times
    print(json.dumps(found))


if __name__ == "__main__":
    main()
