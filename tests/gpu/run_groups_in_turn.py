"""Makes groups as a run of ``trainers`` does, of this rank alone, uses them as its channels do and gives them back:
``run_groups_in_turn.py DEVICE TIMES``. Prints as JSON what the process holds then.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from groups_in_turn import held

from trainers.communication.channel import Channel
from trainers.communication.kept_groups import KEPT
from trainers.communication.process_groups import give_back, group_apart, next_number

TIMEOUT = timedelta(seconds=60)


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


def main() -> None:
    device, times = torch.device(sys.argv[1]), int(sys.argv[2])
    gpu = device.type == "cuda"
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if gpu else "gloo", store=dist.HashStore(), rank=0, world_size=1, timeout=TIMEOUT,
        device_id=device if gpu else None,
    )  # fmt: skip
    backend = "nccl" if gpu else "gloo"
    found: dict[str, object] = {"backend": backend}
    begin = time.perf_counter()
    count, bound = dist.distributed_c10d._world.group_count, dist.group.WORLD.bound_device_id
    for turn in range(1, times + 1):
        number = next_number(lambda mine: mine)
        groups: list[dist.ProcessGroup | None] = [
            group_apart([0], number, index=index, timeout=TIMEOUT, backend=backend) for index in range(2)
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
        if turn in (5, times):
            found[f"after {turn}"] = held(device)
    found["seconds each"] = (time.perf_counter() - begin) / times
    dist.destroy_process_group()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
