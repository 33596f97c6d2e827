"""The process group of a worker of several ranks: formed, left, formed again, and what its ranks agree on."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING

from hpo.evaluation.conversation import FormGroup, RankContext
from hpo.evaluation.gpu import OwnDevice, select_for_group
from hpo.evaluation.network import interface_of, open_sockets, own_address, shut_connection
from hpo.evaluation.process.announcement import Announcement, Words
from hpo.evaluation.process.task_groups import TaskGroups
from hpo.evaluation.process.wait_watch import Wait, WaitWatch

if TYPE_CHECKING:
    from torch._C._distributed_c10d import ProcessGroup, Store

_COLLECTIVE_S = 1_800.0
"""torch's own time-out for gloo. A longer time-out of the evaluation replaces it."""
_AGREEMENT_S = 86_400.0
"""A rank may validate for hours while the others wait for it in ``report``."""

BEGIN, REPORT, CHECKPOINT = range(3)
_CALLS = ("the start of the evaluation", "trial.report", "trial.should_checkpoint")


class WorkerGroup:
    """The torch.distributed group of a worker of several ranks, and what these agree on. ``tell`` gets the waits of
    this rank that last long."""

    def __init__(
        self, context: RankContext, device: OwnDevice, tasks: TaskGroups, tell: Callable[[Wait], None]
    ) -> None:
        self._tasks = tasks
        self._rank = context.worker_rank
        self._watch = WaitWatch(self._rank, tell)
        self._size = context.size
        self._store: Store | None = None
        self._control: ProcessGroup | None = None
        self._connections: dict[int, int] = {}
        self._port = -1
        self.address: tuple[str, int] | None = None
        self.announcement = Announcement(self._rank, self.send)
        own = own_address(context.hosts, self._rank, context.interface)
        self._name_interfaces(own, context)
        os.environ.update(
            RANK=str(self._rank),
            WORLD_SIZE=str(self._size),
            LOCAL_RANK=str(context.worker_local_rank),
            LOCAL_WORLD_SIZE=str(context.worker_local_size),
        )

        # It holds the default group as default arguments. Imported when there is a group already, by the first
        # optimizer through torch._dynamo, it would keep that group alive for good, threads and all.
        import_module("torch.distributed.nn.functional")
        self.gpu = select_for_group(device, os.environ)
        if self._rank == 0:
            self.address = self._listen(own)

    @staticmethod
    def _name_interfaces(own: str, context: RankContext) -> None:
        """Set the interface of gloo and NCCL; between hosts the user's environment comes first."""
        on_one_host = len(set(context.hosts)) == 1
        name = interface_of(own) if on_one_host else context.interface or interface_of(own)
        # NCCL takes a bare name for the beginning of a name: eth1 would be eth10 as well.
        for variable, sign in (("GLOO_SOCKET_IFNAME", ""), ("NCCL_SOCKET_IFNAME", "=")):
            if name is not None and (on_one_host or variable not in os.environ):
                os.environ[variable] = f"{sign}{name}"

    def _listen(self, own: str) -> tuple[str, int]:
        # torch.distributed exports it, but not to type checkers.
        from torch._C._distributed_c10d import TCPStore

        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.bind((own, 0))
        listener.listen(self._size)
        port = listener.getsockname()[1]
        # The store takes the socket over. Given a port alone it would listen on all interfaces. With libuv, torch 2.6
        # refuses sockets.
        self._store = TCPStore(
            own, port, None, True, wait_for_workers=False, master_listen_fd=listener.detach(), use_libuv=False
        )
        return own, port

    def join(self, order: FormGroup) -> None:
        """Form a new group. Collective."""
        import torch.distributed as dist
        from torch._C._distributed_c10d import PrefixStore, TCPStore

        self.leave()
        start = timedelta(seconds=order.start_timeout_s)
        assert order.address is not None, "worker rank 0 of several names the address of its store"
        host, self._port = order.address
        os.environ.update(MASTER_ADDR=host, MASTER_PORT=str(self._port))
        if self._store is None:
            self._store = TCPStore(host, self._port, None, False, start)
        self._store.set_timeout(start)
        before = open_sockets()
        limit = order.timeout_s or 0.0
        timeout = timedelta(seconds=max(_COLLECTIVE_S, limit))
        dist.init_process_group(
            order.backend,
            store=PrefixStore(f"hpo/{order.generation}", self._store),
            rank=self._rank,
            world_size=self._size,
            timeout=timeout,
        )
        # A group of its own: agreements of the ranks must not meet what a task has under way in the other.
        self._control = dist.new_group(backend="gloo", timeout=timedelta(seconds=max(_AGREEMENT_S, limit)))
        self._tasks.adopt(self._control, timeout)
        self._connections = {
            number: inode for number, inode in open_sockets().items() if before.get(number) != inode
        }

    def leave(self) -> None:
        """Leave the group, so that ranks which wait for this rank in a collective get an error at once."""
        # A model wrapped for data parallelism keeps the group, and with it the connections, alive beyond
        # destroy_process_group; so they are closed by hand.
        present = open_sockets()
        for number, inode in self._connections.items():
            if present.get(number) == inode:
                shut_connection(number, keep_port=self._port)
        self._connections = {}
        self._control = None
        self.announcement = Announcement(self._rank, self.send)
        self._tasks.leave()

    def begin(self, turn: int) -> None:
        """All ranks begin the evaluation of this turn. Collective."""
        # A message that the last evaluation left under way would meet those of this evaluation.
        self.announcement.finish()
        self._watch.said = False
        self.announcement = Announcement(self._rank, self.send)
        self.agree(turn, BEGIN, 0)
        self._watch.evaluating = True

    def end(self) -> None:
        """The task has returned."""
        self._watch.evaluating = False

    def agree(self, turn: int, call: int, answer: int) -> int:
        """Worker rank 0's answer on all ranks. Collective; RuntimeError where the ranks make different calls."""
        if call != BEGIN:  # others may still import the task
            self._watch.begun = Wait(_CALLS[call], time.monotonic(), of_all=True)
        try:
            their_turn, theirs, agreed = self.send((turn, call, answer))()
        finally:
            self._watch.begun = None
        if (their_turn, theirs) != (turn, call):
            said = _CALLS[theirs] if their_turn == turn and 0 <= theirs < len(_CALLS) else "another step"
            raise RuntimeError(
                f"worker rank {self._rank} is in {_CALLS[call]}, but rank 0 in {said}: all ranks of a worker must make "
                "these calls, in the same order."
            )
        return agreed

    def send(self, words: Words) -> Callable[[], Words]:
        """Begin to send worker rank 0's words to the others; what is returned waits for them. Collective."""
        import torch
        import torch.distributed as dist

        # All messages have one length, so that a call that meets a call of another kind is found out.
        sent = torch.tensor(words, dtype=torch.int64)
        work = dist.broadcast(sent, 0, group=self._control, async_op=True)

        def received() -> Words:
            work.wait()
            first, second, third = sent.tolist()
            return first, second, third

        return received
