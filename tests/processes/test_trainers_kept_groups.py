"""Process groups that one run leaves to the next: taken over by all ranks or by none, destroyed with torch's own."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from functools import partial

import models
import pytest
import torch
import torch.distributed as dist
from gloo import run_ranks
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import TensorDataset

import trainers
from trainers.communication.communicator import Communicator
from trainers.communication.kept_groups import KEPT

communicator = partial(models.communicator, 2)


def names_of(comm: Communicator) -> list[str]:
    """Of the groups of the whole run, the node and across nodes; each has summed up what it should."""
    channels = [comm.world, comm.node, comm.across]
    for channel in channels:
        total = channel.all_reduce(torch.tensor([float(comm.rank)])).wait().item()
        assert total == sum(channel.ranks)
    return ["" if channel.group is None else channel.group.group_name for channel in channels]


def kept() -> list[str]:
    """Names of the groups that wait for another run."""
    return sorted(
        group.group_name for group in dist.distributed_c10d._world.pg_map if group.group_desc == KEPT
    )


def groups() -> int:
    return len(dist.distributed_c10d._world.pg_map)


def one_after_the_other(rank: int) -> None:
    """A run takes over the groups of the run before, if it needs the same."""
    first = communicator()
    names = names_of(first)
    first.close(keep=True)
    assert groups() == 1 + 3 and kept() == sorted(names)
    second = communicator()
    assert kept() == []
    assert names_of(second) == names
    second.close(keep=True)
    # What an evaluation does not use is kept for the training after it, and what a training does not use is not.
    third = communicator()
    assert third.world.group is not None and third.world.group.group_name == names[0]
    third.close(keep=True)
    assert kept() == sorted(names)
    third = communicator()
    third.release()
    third.close(keep=True)
    assert kept() == names[:1]
    # Other settings need other groups.
    fourth = communicator(timeout_s=20)
    assert not set(names_of(fourth)) & set(names)
    fourth.close(keep=True)
    # An error leaves nothing.
    fifth = communicator(timeout_s=20)
    names_of(fifth)
    fifth.close()
    assert groups() == 1


def unless_all_have_them(rank: int) -> None:
    """Groups that a rank no longer has are made again by all."""
    first = communicator()
    names = names_of(first)
    first.close(keep=rank != 2)
    second = communicator()
    assert not set(names_of(second)) & set(names)
    second.close(keep=True)
    # One of another number of groups, as where an error came before a method asked for its own.
    third = communicator()
    names = names_of(third)
    if rank < 2:
        third.group("one more", [(0, 1), (2, 3)]).all_reduce(torch.ones(1)).wait()
    third.close(keep=True)
    fourth = communicator()
    assert not set(names_of(fourth)) & set(names)
    fourth.close()
    assert groups() == 1


def other_partitions(rank: int) -> None:
    """A name with another partition is another group."""
    first = communicator()
    pairs = first.group("pairs", [(0, 1), (2, 3)])
    assert pairs.group is not None
    name = pairs.group.group_name
    first.close(keep=True)
    second = communicator()
    crossed = second.group("pairs", [(0, 2), (1, 3)])
    assert crossed.group is not None and crossed.group.group_name != name
    total = crossed.all_reduce(torch.tensor([float(rank)])).wait().item()
    assert total == (2.0 if rank % 2 == 0 else 4.0)
    second.close()
    assert groups() == 1


def of_some_ranks(rank: int) -> None:
    """Runs of some ranks, and runs inside runs, have groups of their own."""
    half = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
    first = communicator()
    of_all = names_of(first)
    names: list[list[str]] = []
    for _ in range(3 if rank < 2 else 5):
        # A run inside a run, as an evaluation in its report.
        inside = models.communicator(among=half)
        assert inside.world.group is not None
        names.append([inside.world.group.group_name])
        assert inside.world.all_reduce(torch.ones(1)).wait().item() == 2.0
        inside.close(keep=True)
    # Others of the world may have other numbers of groups, by which torch names some: only all ranks' are kept.
    assert len({*map(tuple, names)}) == len(names) and groups() == 1 + 2 + 3
    first.close(keep=True)
    last = communicator()
    assert names_of(last) == of_all
    last.close(keep=True)
    # Of the same ranks, while a run has the groups: it makes its own, and one of the two is kept.
    outer = communicator()
    inner = communicator()
    assert not set(names_of(inner)) & set(names_of(outer))
    inner.close(keep=True)
    outer.close(keep=True)
    assert kept() == sorted(of_all)
    dist.destroy_process_group()


def of_uneven_nodes(rank: int) -> None:
    """All ranks keep equally many groups, by whose number torch names groups."""
    comm = models.communicator()
    comm.group("node", [(0, 1), (2,)]).all_reduce(torch.ones(1)).wait()
    comm.close(keep=True)
    assert len(kept()) == 1
    # torch names it by how many groups there are.
    if rank != 1:
        two = dist.new_group([0, 2], use_local_synchronization=True)
        total = torch.tensor([float(rank)])
        dist.all_reduce(total, group=two)
        assert total.item() == 2.0


def where_torch_waits_for_all(rank: int) -> None:
    """Groups of some ranks do not wait for the others."""
    os.environ["TORCH_DIST_INIT_BARRIER"] = "1"
    comm = communicator()
    assert os.environ["TORCH_DIST_INIT_BARRIER"] == "1"
    names_of(comm)
    comm.close()


def in_the_callers_order(rank: int) -> list[int]:
    reversed_ranks = dist.new_group([3, 2, 1, 0], sort_ranks=False)
    comm = models.communicator(among=reversed_ranks)
    first = torch.tensor([rank])
    comm.world.broadcast(first).wait()
    found = [int(part) for part in comm.service.all_gather(torch.tensor([rank]))]
    comm.close()
    return [comm.rank, int(first), *found]


@pytest.mark.skipif(
    "sort_ranks" not in inspect.signature(dist.new_group).parameters,
    reason="torch sorts the ranks of each group",
)
def test_ranks_are_in_one_order_whatever_it_is_in_the_caller_s_group() -> None:
    assert run_ranks(4, in_the_callers_order) == [[rank, 0, 0, 1, 2, 3] for rank in range(4)]


def with_an_operation_under_way(rank: int) -> None:
    """A group with an operation under way is not kept."""
    comm = communicator()
    pending = comm.world.all_reduce(torch.ones(1))
    comm.close(keep=True)
    assert kept() == []
    del pending


def beside_what_the_method_sends(rank: int) -> None:
    """Messages of the loop do not wait for those of the method."""
    comm = communicator()
    pending = comm.world.all_reduce(torch.ones(1)) if rank == 0 else None
    # By another group than the method's: else this would meet the sum that only one rank has begun.
    assert [int(part) for part in comm.service.all_gather(torch.tensor([rank]))] == [0, 1]
    total = (pending or comm.world.all_reduce(torch.ones(1))).wait()
    assert total.item() == 2.0
    comm.close()


class PrunedError(Exception):
    """As hpo's of ``trial.report``."""

    on_all_ranks = True


def trained(rank: int) -> None:
    """Trainings one after another share their groups."""

    def train(report: object = None) -> None:
        net = nn.Linear(2, 1)
        samples = TensorDataset(torch.ones(8, 2), torch.ones(8, 1))
        trainers.train(
            net,
            samples,
            samples,
            loss=mse_loss,
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
            epochs=2,
            batch_size=2,
            method=trainers.DASO(),
            topology=trainers.Topology(ranks_per_node=1),
            report=report,
        )

    def stop(epoch: int, metrics: object) -> None:
        raise KeyError("what the task raises")

    def prune(epoch: int, metrics: object) -> None:
        raise PrunedError

    train()
    names = kept()
    assert names
    train()
    assert kept() == names
    net = nn.Linear(2, 1)
    with trainers.wrap(net, torch.optim.SGD(net.parameters(), lr=0.1), epochs=1, steps_per_epoch=1) as run:
        run.backward(net(torch.ones(1, 2)).sum())
    assert len(kept()) == 1
    with pytest.raises(KeyError):
        train(stop)
    assert kept() == [] and groups() == 1
    train()
    names = kept()
    with pytest.raises(PrunedError):
        train(prune)
    assert kept() == names
    with (
        pytest.raises(PrunedError),
        trainers.wrap(net, torch.optim.SGD(net.parameters(), lr=0.1), epochs=1, steps_per_epoch=1),
    ):
        raise PrunedError
    assert len(kept()) == 1
    train()
    trainers.evaluate(
        net, TensorDataset(torch.ones(8, 2), torch.ones(8, 1)), metrics={"m": mse_loss}, batch_size=2
    )
    dist.destroy_process_group()
    assert groups() == 0


@pytest.mark.parametrize(
    ("ranks", "checks"),
    [
        (4, one_after_the_other),
        (4, unless_all_have_them),
        (4, other_partitions),
        (4, of_some_ranks),
        (3, of_uneven_nodes),
        (4, where_torch_waits_for_all),
        (2, with_an_operation_under_way),
        (2, beside_what_the_method_sends),
        (2, trained),
    ],
)
def test_runs_keep_groups_for_the_next_run_or_make_new_groups(
    ranks: int, checks: Callable[[int], None]
) -> None:
    run_ranks(ranks, checks)
