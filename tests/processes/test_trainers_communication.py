from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gloo import run_ranks
from models import communicator
from skips import NOT_POSSIBLE
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from trainers.communication import kept_groups
from trainers.communication.averager import GradientAverager
from trainers.communication.buckets import (
    average_tensors,
    broadcast_everywhere,
    each_bucket,
    reconcile_buffers,
)
from trainers.communication.channel import Channel, CommunicationError
from trainers.communication.process_groups import give_back, group_apart, next_number
from trainers.communication.topology import Topology


def test_topology() -> None:
    assert Topology().nodes("aabbb") == ((0, 1), (2, 3, 4))
    assert Topology().nodes("abab") == ((0, 2), (1, 3))
    assert Topology(ranks_per_node=2).nodes("xxxxxx") == ((0, 1), (2, 3), (4, 5))
    for wrong in (4, 0, -1):
        with pytest.raises(ValueError, match=f"ranks_per_node={wrong}"):
            Topology(ranks_per_node=wrong).nodes("xxxxxx")


def refused(rank: int) -> None:
    with pytest.raises(ValueError, match="ranks_per_node=2"):
        communicator(2)
    assert len(dist.distributed_c10d._world.pg_map) == 1  # no group is left
    comm = communicator()
    with pytest.raises(ValueError, match="each of 3 ranks once"):
        comm.group("wrong", [(0, 1)])
    comm.nodes = ((0, 1), (2,))
    with pytest.raises(ValueError, match="2, 1 ranks"):
        _ = comm.across


def test_a_topology_and_groups_that_do_not_fit_are_refused() -> None:
    run_ranks(3, refused)


def test_buckets_hold_every_tensor_once_and_close_when_full() -> None:
    tensors = [
        torch.arange(n, dtype=dtype)
        for n, dtype in ((5, torch.float32), (3, torch.int64), (700, torch.float32))
    ]
    tensors += [torch.zeros((), dtype=torch.float32), torch.randn(2, 3)]
    made = list(each_bucket(tensors, bucket_bytes=1000))
    assert [[id(t) for t in bucket.tensors] for bucket in made] == [
        [id(tensors[0]), id(tensors[2])],
        [id(tensors[3]), id(tensors[4])],
        [id(tensors[1])],
    ]
    before = [tensor.clone() for tensor in tensors]
    for bucket in made:
        bucket.pack(bucket.tensors)
        for tensor in bucket.tensors:
            tensor.zero_()
        bucket.unpack(bucket.tensors)
    assert all(torch.equal(a, b) for a, b in zip(tensors, before, strict=True))
    narrow = each_bucket(tensors, wire_dtype=torch.bfloat16)
    assert {bucket.flat.dtype for bucket in narrow} == {torch.bfloat16, torch.int64}


class Uneven(nn.Module):
    """Uses ``rare`` on rank 0 only, in another order than elsewhere, and ``never`` nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.rare, self.never = (nn.Linear(4, 4).double() for _ in range(4))
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)

    def forward(self, x: Tensor, rank: int) -> Tensor:
        if rank == 0:
            return (self.second(self.first(x)) + self.rare(x)).sum()
        return (self.first(self.second(x)) * 2).sum()


def gradients_of(model: nn.Module) -> list[Tensor | None]:
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


def averaged_beside_plain(rank: int, bucket_bytes: int) -> None:
    torch.manual_seed(0)
    model, comm = Uneven(), communicator()
    x = torch.randn(5, 4, dtype=torch.float64) + rank
    model(x, rank).backward()
    plain = []
    for gradient, parameter in zip(gradients_of(model), model.parameters(), strict=True):
        total = torch.zeros_like(parameter) if gradient is None else gradient
        dist.all_reduce(total)
        plain.append(total / comm.size)
    averager = GradientAverager(model.parameters(), comm.world, bucket_bytes=bucket_bytes)
    for _ in range(2):
        model.zero_grad()
        averager.arm()
        model(x, rank).backward()
        averager.finish()
        for parameter, expected in zip(model.parameters(), plain, strict=True):
            if parameter.requires_grad:
                assert parameter.grad is not None
                torch.testing.assert_close(parameter.grad, expected, rtol=1e-14, atol=1e-14)
            else:
                assert parameter.grad is None
    averager.close()
    model.zero_grad()
    model(x, rank).backward()
    assert model.never.weight.grad is None
    comm.close()


@pytest.mark.parametrize("bucket_bytes", [1, 200])
def test_averager_is_the_plain_average_whatever_order_gradients_come_in(bucket_bytes: int) -> None:
    run_ranks(3, averaged_beside_plain, bucket_bytes)


class Reused(nn.Module):
    """Goes through one layer three times, each with a checkpoint."""

    def __init__(self, use_reentrant: bool | None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.again = nn.Linear(4, 4).double(), nn.Linear(4, 4).double()
        self.use_reentrant = use_reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for _ in range(3):
            if self.use_reentrant is None:
                x = self.again(x).tanh()
            else:
                x = checkpoint(lambda x: self.again(x).tanh(), x, use_reentrant=self.use_reentrant)
        return x.sum()


def with_checkpoints(rank: int) -> list[str]:
    comm, gradients = communicator(), []
    x = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(rank))
    # In one bucket, nothing is sent before all is there.
    for use_reentrant, bucket_bytes in ((None, 1), (False, 1), (True, 10**6)):
        net = Reused(use_reentrant)
        averager = GradientAverager(net.parameters(), comm.world, bucket_bytes=bucket_bytes)
        averager.arm()
        net(x).backward()
        averager.finish()
        gradients.append(gradients_of(net))
    for others in gradients[1:]:
        torch.testing.assert_close(others, gradients[0], rtol=1e-14, atol=1e-14)
    net = Reused(True)
    averager = GradientAverager(net.parameters(), comm.world, bucket_bytes=1)
    averager.arm()
    with pytest.raises(RuntimeError) as changed:
        net(x).backward()
    embedding = nn.Embedding(5, 2, sparse=True)
    averager = GradientAverager(embedding.parameters(), communicator().world)
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(ValueError) as sparse:
        averager.finish()
    return [str(changed.value), str(sparse.value)]


def test_gradients_that_change_after_they_were_sent_or_are_sparse_are_refused() -> None:
    changed, sparse = run_ranks(2, with_checkpoints)[0]
    assert "use_reentrant=False" in changed and "sparse=False" in sparse


class Constants(nn.Module):
    """Buffers that are the same on all ranks, and one that is not."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        real = torch.rand(100, generator=generator)
        self.register_buffer("real", real)
        self.register_buffer("mask", torch.full((3,), torch.finfo(torch.float32).min))
        self.register_buffer("odd", torch.tensor([float("-inf"), float("inf"), -0.0, 3e38]))
        for dtype in (torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int16, torch.bool):
            self.register_buffer(f"as_{dtype}".replace(".", "_"), real.to(dtype))
        self.register_buffer("complex", torch.tensor(1 + 2j))
        self.register_buffer("own", torch.tensor([3e38, float(rank)]))


def constants_reconciled(rank: int) -> list[float]:
    held, comm = Constants(rank), communicator()
    reconcile_buffers(comm.world, held)
    for (name, buffer), expected in zip(held.named_buffers(), Constants(0).buffers(), strict=True):
        if name != "own":
            found, wanted = (t.reshape(-1).view(torch.uint8) for t in (buffer, expected))
            assert torch.equal(found, wanted), name
    norm = nn.BatchNorm1d(2)
    norm.running_mean = torch.tensor([rank, 10.0 * rank])
    assert norm.num_batches_tracked is not None
    norm.num_batches_tracked.fill_(3 + rank)
    reconcile_buffers(comm.world, norm)
    assert (norm.running_mean.tolist(), norm.num_batches_tracked.item()) == ([1.0, 10.0], 3)
    numbers = torch.tensor([1 + 2j * rank, 5j])
    average_tensors(comm.world, [numbers])
    torch.testing.assert_close(numbers, torch.tensor([1 + 2j, 5j]))
    own = held.get_buffer("own")
    assert len({tuple(part.tolist()) for part in comm.world.all_gather(own)}) == 1
    short = torch.tensor([rank, 300 + rank], dtype=torch.int16)
    assert [part.tolist() for part in comm.world.all_gather(short)] == [[r, 300 + r] for r in range(3)]
    with pytest.raises(TypeError, match=r"torch\.int16 cannot be summed"):
        comm.world.all_reduce(short)
    with pytest.raises(TypeError, match=r"torch\.float8_e4m3fn has no mean"):
        average_tensors(comm.world, [held.get_buffer("as_torch_float8_e4m3fn")])
    return own.tolist()[1:]


def test_what_is_the_same_on_all_ranks_stays_so_to_the_last_bit() -> None:
    assert run_ranks(3, constants_reconciled) == [[0.0]] * 3


def counted(rank: int) -> dict[str, Any]:
    comm = communicator(2)
    comm.world.all_reduce(torch.zeros(1000)).wait()
    comm.node.all_reduce(torch.zeros(1000)).wait()
    reduced = comm.across.all_reduce(torch.full((1000,), float(rank), dtype=torch.bfloat16)).wait()
    gathered = comm.node.all_gather(torch.tensor([rank]))
    comm.service.barrier(torch.device("cpu"))
    counters = comm.counters()
    other = communicator(2)
    other.set_counters(counters)
    assert other.counters()["world"] == counters["world"]
    comm.close()
    return {
        "counters": counters,
        "nodes": comm.nodes,
        "sum": reduced[0].item(),
        "gathered": [part.item() for part in gathered],
    }


def test_groups_and_their_bytes_over_two_nodes_of_two() -> None:
    found = run_ranks(4, counted)
    assert found[0]["nodes"] == ((0, 1), (2, 3))
    assert [one["sum"] for one in found] == [2.0, 4.0, 2.0, 4.0]
    assert [one["gathered"] for one in found] == [[0, 1], [0, 1], [2, 3], [2, 3]]

    def total(channel: str, what: str) -> float:
        return sum(one["counters"][channel][what] for one in found)

    # A ring of four: two of its four links cross, each carrying 2 · 4000 · 3/4 bytes: 6 a parameter and node.
    assert total("world", "bytes_between") == 2 * 6000
    assert total("world", "bytes_inside") == 2 * 6000
    assert total("node", "bytes_between") == 0
    assert total("node", "bytes_inside") == 4 * 4000 + 4 * 8
    # Two ranks on two nodes, two bytes a number.
    assert total("across", "bytes_between") == 4 * 2000
    assert total("across", "bytes_inside") == 0
    assert all(one["counters"]["world"]["wait_s"] > 0 for one in found)


def in_any_order(rank: int) -> tuple[list[int], int, list[int] | None, list[float], list[str]]:
    comm = communicator()
    part = comm.group("part", [(0, 1), (3, 2)])
    mine = torch.tensor([rank])
    gathered = [int(one) for one in part.all_gather(mine)]
    first = part.gather(mine)
    received = int(part.broadcast(mine.clone(), source=0).wait())
    # As ranks are numbered where a launcher goes over two hosts and back.
    comm.nodes = ((0, 3), (1, 2))
    heard = []
    for source in range(4):
        value = torch.tensor([float(rank)])
        broadcast_everywhere(comm, [value], source=source)
        heard.append(value.item())
    comm.close()
    apart = dist.new_group([0, 1, 2, 3], backend="cpu:gloo")
    backends: list[str] = []
    new_group = dist.new_group

    def noted(*arguments: Any, backend: str, **named: Any) -> Any:
        backends.append(backend)
        return new_group(*arguments, backend=backend, **named)

    dist.new_group = noted
    communicator(among=apart).close()
    dist.new_group = new_group
    return gathered, received, first and [int(one) for one in first], heard, backends


def test_groups_whose_ranks_are_in_any_order_and_of_a_backend_of_their_own() -> None:
    for rank, found in enumerate(run_ranks(4, in_any_order)):
        part = [0, 1] if rank < 2 else [3, 2]
        first = part if rank == part[0] else None
        # Named, not the world's, which may be another: for what is in the host's memory, and for the model's device.
        assert found == (part, part[0], first, [0.0, 1.0, 2.0, 3.0], ["gloo", "gloo"])


def again_and_again(rank: int, rounds: int) -> list[list[float]]:
    """Two teams of two, of which the second goes on longer, then all four: what sums over new groups brought."""
    found: list[list[float]] = []
    teams = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    for turn in range(rounds if rank < 2 else 2 * rounds):
        part = communicator(1, among=teams[rank // 2])
        across = part.across
        found.append([across.all_reduce(torch.tensor([float(rank + turn)])).wait().item()])
        part.close()
    # As a campaign's next evaluation does: all ranks in common, in the same order.
    everyone = dist.new_group([0, 1, 2, 3])
    total = torch.tensor([float(rank)])
    dist.all_reduce(total, group=everyone)
    found.append([total.item(), float(int(everyone.group_name) < 100)])
    return found


def test_groups_apart_are_made_again_and_again_on_the_same_ranks() -> None:
    rounds = 8
    first, second, third, fourth = run_ranks(4, again_and_again, rounds)
    assert first == second == [*([1.0 + 2 * turn] for turn in range(rounds)), [6.0, 1.0]]
    assert third == fourth == [*([5.0 + 2 * turn] for turn in range(2 * rounds)), [6.0, 1.0]]


def of_a_world_on_gpus(rank: int) -> list[float]:
    everyone = dist.distributed_c10d._get_default_group()
    device = torch.device("cuda", rank)
    # What init_process_group(device_id=…) leaves, whatever carries the tensors.
    everyone.bound_device_id = device
    try:
        group = group_apart([0, 1], next_number(lambda number: number), timeout=timedelta(seconds=20))
        assert everyone.bound_device_id == device
        assert group.bound_device_id is None
    finally:
        everyone.bound_device_id = None
    total = torch.tensor([float(rank)])
    dist.all_reduce(total, group=group)
    return [total.item()]


def test_a_group_apart_is_not_split_off_a_world_that_knows_its_device() -> None:
    assert run_ranks(2, of_a_world_on_gpus) == [[1.0], [1.0]]


def with_a_hanging_peer(rank: int) -> bool:
    """On rank 1, whether rank 0's process ended while rank 1 came to no collective."""
    comm = communicator(timeout_s=2)
    first, _ = (int(pid.item()) for pid in comm.world.all_gather(torch.tensor([os.getpid()])))
    ending = os.pidfd_open(first) if rank == 1 else -1
    comm.world.barrier(torch.device("cpu"))
    if rank == 1:
        return bool(select.select([ending], [], [], 20)[0])
    try:
        with pytest.raises(CommunicationError, match=r"Rank 0 of 2 on .*another rank"):
            # The second was to come after the first, which holds up a thread of gloo's.
            for pending in [comm.world.all_reduce(torch.ones(10)) for _ in range(4)]:
                pending.wait()
    finally:
        comm.close()
    return True


@pytest.mark.skipif(
    not hasattr(os, "pidfd_open"), reason=f"{NOT_POSSIBLE}another process's end is seen through Linux's pidfd"
)
def test_a_process_ends_though_its_peer_hangs() -> None:
    # The time-out of the group that the caller made is longer than 20 s.
    assert run_ranks(2, with_a_hanging_peer) == [True, True]


@pytest.mark.parametrize("failing", [False, True])
def test_an_error_waits_for_no_group(failing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL's destruction waits for peers, which may wait for this rank in vain."""
    peers_come, by = threading.Event(), []

    def destroy(group: object) -> None:
        by.append((group, threading.current_thread()))
        assert peers_come.wait(60)

    monkeypatch.setattr("trainers.communication.process_groups.dist.destroy_process_group", destroy)
    monkeypatch.setattr("trainers.communication.process_groups._PATIENCE_S", 0.0)
    if failing:
        try:
            with pytest.raises(RuntimeError, match="what matters"):
                try:
                    raise RuntimeError("what matters")
                finally:
                    groups: list[Any] = [None]
                    give_back(groups)
                    give_back(groups)  # as a close in an ``except`` and one in its ``finally``
            assert not peers_come.is_set() and len(by) == 1
        finally:
            peers_come.set()
        (_, thread), *_ = by
        thread.join(60)
        assert thread is not threading.current_thread()
    else:
        peers_come.set()
        give_back([None, None])
        assert by == [(None, threading.current_thread())] * 2


@pytest.mark.parametrize("starting", [False, True])
@pytest.mark.parametrize("kind", ["OutOfMemoryError", "AcceleratorError"])
def test_an_error_of_its_own_device_is_no_lost_peer(starting: bool, kind: str) -> None:
    error, text = getattr(torch, kind, torch.OutOfMemoryError), "CUDA error"

    class Started:
        def wait(self, timeout: timedelta) -> None:
            raise error(text)

    def start() -> Any:
        if starting:
            Started().wait(timedelta(0))
        return Started()

    channel = Channel(
        name="two", ranks=(0, 1), rank=0, group=None, timeout=timedelta(seconds=1), next_is_near=True
    )
    with pytest.raises(error, match=text):
        channel._start(torch.ones(1), "all-reduce", 4.0, start).wait()


def without_a_backend(rank: int) -> None:
    elsewhere = dist.new_group(backend="cuda:gloo")
    dist.barrier()  # neither may end while the other still connects
    for members in ([0, 1], [0]):
        group = elsewhere if len(members) > 1 else dist.new_group(members, backend="cuda:gloo")
        if rank not in members:
            continue
        try:
            communicator(timeout_s=5, among=group).close()
        except ValueError as error:
            assert len(members) > 1
            assert "has a backend for cuda, and the model is on cpu. Move the model there" in str(error)
        else:
            assert len(members) == 1


def test_a_model_where_the_group_has_no_backend_is_refused_but_alone() -> None:
    run_ranks(2, without_a_backend)


LEFT = """
import time
from pathlib import Path
import torch, torch.distributed as dist
import trainers
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))])
dist.destroy_process_group()
# Linux lists a thread for a moment after it has been joined, and has no name for one that goes while it is read.
end = time.monotonic() + 5
while time.monotonic() < end:
    try:
        names = [path.joinpath("comm").read_text().strip() for path in Path("/proc/self/task").iterdir()]
    except OSError:
        continue
    if not any("gloo" in name for name in names):
        break
print(*names)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason=f"{NOT_POSSIBLE}threads are found in /proc")
def test_nothing_keeps_a_destroyed_group_alive() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEFT], capture_output=True, text=True, timeout=120, check=True
    )
    assert "gloo" not in done.stdout


def connected_late(rank: int) -> bool:
    """Whether the other rank was connected when this one's communicator was there; the second rank takes longer."""
    store = dist.distributed_c10d._get_default_store()

    def make(*arguments: Any, **named: Any) -> dist.ProcessGroup:
        made = group_apart(*arguments, **named)
        store.set(f"made by {rank}", "")
        if rank == 1:
            store.wait(["made by 0"], timedelta(seconds=20))
            time.sleep(0.2)  # in which the first would be seen to go on
            store.set("connected", "")
        return made

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(kept_groups, "group_apart", make)
        made = communicator()
    both = store.check(["connected"])
    made.close()
    return both


def test_no_rank_goes_on_before_all_are_connected() -> None:
    assert run_ranks(2, connected_late) == [True, True]
