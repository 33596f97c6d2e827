"""The evaluator process: joins its worker's process group, runs the task, and reports how it ended to its control rank.

Started as ``python -m hpo.evaluation.process.evaluator FD`` by ``hpo.evaluation.evaluator_process``; FD is its end of a
socket pair. Imports torch only for workers of several ranks.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from hpo.errors import HpoError
from hpo.evaluation import cuda
from hpo.evaluation.announcement import Announcement, Words
from hpo.evaluation.conversation import (
    Broken,
    Evaluate,
    EvaluationOver,
    Exit,
    FormGroup,
    GroupFormed,
    Hello,
    LeaveGroup,
    Prepared,
    Ready,
    Warned,
)
from hpo.evaluation.cuda import OwnDevice
from hpo.evaluation.devices import evaluator_device, select_for_group
from hpo.evaluation.environment import widen_affinity
from hpo.evaluation.network import interface_of, open_sockets, own_address, shut_connection
from hpo.evaluation.process.control_socket import ControlSocket
from hpo.evaluation.process.global_seeds import Seeder
from hpo.evaluation.process.output_capture import OutputCapture
from hpo.evaluation.recording import Recording
from hpo.individual import FAILED
from hpo.search.protocols import GO, PAUSE, STOP, Verdict
from hpo.task.outcome import Outcome, describe_exception
from hpo.task.trial import Job, Trial, attempt
from hpo.task.trial_directory import OUTPUT, check_place, clear_directory, not_begun

if TYPE_CHECKING:
    from torch._C._distributed_c10d import ProcessGroup, Store

_HELLO_S = 60.0
_COLLECTIVE_S = 1_800.0
"""torch's own time-out for gloo. A longer time-out of the evaluation replaces it."""
_AGREEMENT_S = 86_400.0
"""One rank may validate for hours while the others wait for it in ``report``."""
_DUMP_LEAD_S = 0.2
"""Stacks are written this long before the time-out."""

_BEGIN, _REPORT, _CHECKPOINT = range(3)
_VERDICTS: tuple[Verdict, ...] = (GO, STOP, PAUSE)
_CALLS = ("the start of the evaluation", "trial.report", "trial.should_checkpoint")


class Group:
    """The torch.distributed group of a worker of several ranks, and what these agree on."""

    def __init__(self, hello: Hello, device: OwnDevice) -> None:
        self._rank = hello.worker_rank
        self._size = hello.size
        self._store: Store | None = None
        self._control: ProcessGroup | None = None
        self._connections: dict[int, int] = {}
        self._port = -1
        self.address: tuple[str, int] | None = None
        self.announcement = Announcement(self._rank, self.send)
        own = own_address(hello.hosts, self._rank, hello.interface)
        self._name_interfaces(own, hello)
        os.environ.update(
            RANK=str(self._rank),
            WORLD_SIZE=str(self._size),
            LOCAL_RANK=str(hello.local_rank),
            LOCAL_WORLD_SIZE=str(hello.local_size),
        )

        # It holds the default group as default arguments. Imported when there is one already, by the first
        # optimizer through torch._dynamo, it would keep that group alive for good, threads and all.
        import_module("torch.distributed.nn.functional")
        self.gpu = select_for_group(device, os.environ)
        if self._rank == 0:
            self.address = self._listen(own)

    @staticmethod
    def _name_interfaces(own: str, hello: Hello) -> None:
        """Tell gloo and NCCL the interface; between hosts the user's environment comes first."""
        on_one_host = len(set(hello.hosts)) == 1
        name = interface_of(own) if on_one_host else hello.interface or interface_of(own)
        # NCCL takes a bare name for the beginning of one: eth1 would be eth10 as well.
        for variable, sign in (("GLOO_SOCKET_IFNAME", ""), ("NCCL_SOCKET_IFNAME", "=")):
            if name is not None and (on_one_host or variable not in os.environ):
                os.environ[variable] = f"{sign}{name}"

    def _listen(self, own: str) -> tuple[str, int]:
        from torch._C._distributed_c10d import (
            TCPStore,
        )  # torch.distributed exports it, but not to type checkers

        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.bind((own, 0))
        listener.listen(self._size)
        port = listener.getsockname()[1]
        # The store takes the socket over. Given a port alone it would listen on all interfaces.
        self._store = TCPStore(
            own, port, None, True, wait_for_workers=False, master_listen_fd=listener.detach()
        )
        return own, port

    def join(self, order: FormGroup) -> None:
        """Form a new group. Collective."""
        import torch.distributed as dist
        from torch._C._distributed_c10d import PrefixStore, TCPStore

        self.leave()
        start = timedelta(seconds=order.start_timeout_s)
        if order.address is None:
            raise RuntimeError("worker rank 0 of several has named no address of its store")
        host, port = order.address
        self._port = port
        os.environ.update(MASTER_ADDR=host, MASTER_PORT=str(port))
        if self._store is None:
            self._store = TCPStore(host, port, None, False, start)
        self._store.set_timeout(start)
        before = open_sockets()
        limit = order.timeout_s or 0.0
        dist.init_process_group(
            order.backend,
            store=PrefixStore(f"hpo/{order.generation}", self._store),
            rank=self._rank,
            world_size=self._size,
            timeout=timedelta(seconds=max(_COLLECTIVE_S, limit)),
        )
        # A group of its own: what the ranks agree on must not meet what a task has under way in the other.
        self._control = dist.new_group(backend="gloo", timeout=timedelta(seconds=max(_AGREEMENT_S, limit)))
        self._connections = {
            number: inode for number, inode in open_sockets().items() if before.get(number) != inode
        }

    def leave(self) -> None:
        """Leave the group, so that ranks which wait for this one in a collective get an error at once."""
        import torch.distributed as dist

        # A model wrapped for data parallelism keeps the group, and with it the connections, alive beyond
        # destroy_process_group; so they are closed by hand.
        present = open_sockets()
        for number, inode in self._connections.items():
            if present.get(number) == inode:
                shut_connection(number, keep_port=self._port)
        self._connections = {}
        self._control = None
        self.announcement = Announcement(self._rank, self.send)
        if dist.is_initialized():
            dist.destroy_process_group()

    @property
    def whole(self) -> bool:
        """False when the task has destroyed the group."""
        import torch.distributed as dist

        return self._control is not None and dist.is_initialized()

    def begin(self, turn: int) -> None:
        """All ranks begin the evaluation of this turn. Collective."""
        # One that the last evaluation left under way would meet the messages of this one.
        self.announcement.finish()
        self.announcement = Announcement(self._rank, self.send)
        self.agree(turn, _BEGIN, 0)

    def agree(self, turn: int, call: int, answer: int) -> int:
        """What worker rank 0 says. Collective; RuntimeError where the ranks make different calls."""
        their_turn, theirs, agreed = self.send((turn, call, answer))()
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

        # Of one length, whatever they are about: a call that meets another kind is found out.
        sent = torch.tensor(words, dtype=torch.int64)
        work = dist.broadcast(sent, 0, group=self._control, async_op=True)

        def received() -> Words:
            work.wait()
            first, second, third = sent.tolist()
            return first, second, third

        return received


class EvaluatorLink:
    """A trial's way to the campaign through the control rank, and to the other ranks through the group."""

    comm: object | None = None

    def __init__(self, channel: ControlSocket, group: Group | None, rank: int, device: OwnDevice) -> None:
        self._channel = channel
        self._group = group
        self._rank = rank
        self._device = device
        self._turn = 0
        self._saves = False
        self._pause = False

    def begin(self, turn: int) -> None:
        """The next evaluation begins."""
        self._turn = turn
        self._saves = self._pause = False

    @property
    def device(self) -> str:
        name = self._device.name
        self.warn()
        return name

    def warn(self) -> None:
        """Let the campaign know where the task cannot use the device that is there."""
        text = self._device.take_warning()
        if text is not None:
            self._channel.send(Warned(text))

    def report(self, step: int, value: float, last_step: int | None) -> bool:
        verdict: Verdict = GO
        if self._rank == 0:
            verdict = self._channel.ask(self._turn, step, value, last_step=last_step, saves=self._saves)
        if self._group is not None:
            verdict = _VERDICTS[self._group.agree(self._turn, _REPORT, _VERDICTS.index(verdict))]
        self._pause = verdict == PAUSE
        return verdict == STOP

    def should_checkpoint(self) -> bool:
        self._saves = True
        asked = self._pause or self._channel.checkpoint_turn == self._turn
        return asked if self._group is None else bool(self._group.agree(self._turn, _CHECKPOINT, asked))

    def should_checkpoint_soon(self) -> bool:
        self._saves = True
        asked = self._channel.checkpoint_turn == self._turn
        if self._pause or self._group is None:  # all ranks know the verdict on a report
            return self._pause or asked
        return self._group.announcement.ask(asked)


class Evaluator:
    """Serves one rank: takes orders from the channel until the one to exit."""

    def __init__(self, channel: ControlSocket, hello: Hello) -> None:
        self._channel = channel
        self._rank = hello.worker_rank
        self._size = hello.size
        self._local_rank = hello.local_rank
        self._label = hello.label
        self._output = OutputCapture()
        self._seeder = Seeder()
        self._device = evaluator_device(os.environ, hello.device, self._label)
        self._recording = Recording(hello.curve, self._device.index)
        self._group = Group(hello, self._device) if self._size > 1 else None
        self._link = EvaluatorLink(channel, self._group, self._rank, self._device)
        self._task = hello.source.load()
        self._objectives = tuple(self._task.objectives)
        self._modules = 0
        self._turn = 0

    def serve(self) -> None:
        """Say that this rank is ready, and follow orders."""
        self._clean()
        self._channel.send(
            Ready(
                host=socket.gethostname(),
                gpu=None if self._group is None else self._group.gpu,
                address=None if self._group is None else self._group.address,
            )
        )
        while True:
            order = self._channel.receive()
            if isinstance(order, Exit):
                self._leave_or_end()
                return
            if isinstance(order, Evaluate):
                self._evaluate(order)
            elif isinstance(order, FormGroup) and self._group is not None:
                self._group.join(order)
                self._channel.send(GroupFormed(order.generation))
            elif isinstance(order, LeaveGroup):
                self._leave_or_end()
            else:
                raise TypeError(f"an evaluator does not follow {order!r}")

    def _leave_or_end(self) -> None:
        """A group that cannot be left, as when NCCL is in trouble, would be in the way of the next one. How the
        evaluation ended has been reported; at this process's end the others are freed as well."""
        try:
            if self._group is not None:
                self._group.leave()
        except Exception:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)

    def _evaluate(self, order: Evaluate) -> None:
        self._turn = order.turn
        self._link.begin(self._turn)
        job = order.job
        try:
            check_place(Path(job.directory))
            if self._rank == 0 and not job.resumed:
                clear_directory(Path(job.directory))
            self._output.open(Path(job.directory, f"{OUTPUT}{self._rank}.txt"))
        except OSError as error:
            outcome = not_begun(error, job.directory)
        else:
            if order.confirm:
                self._channel.send(Prepared(order.turn))
            outcome = self._attempt(job, order.timeout_s)
            self._output.close()
            self._link.warn()
            fault = self._device.take_fault()
            if fault is not None:  # whatever the task made of it: the individual is not to blame
                self._channel.send(Broken(fault))
                return
        if self._size > 1 and outcome.status == FAILED and not outcome.storage:
            outcome = replace(outcome, error=f"{self._label}: {outcome.error}")
        # A CUDA error may poison all later calls of the process, and need not have reached the task, or ended it. One
        # that failed is not waited for: its kernels may wait for ranks that never come.
        failed = outcome.status == FAILED and not outcome.storage
        poisoned = cuda.used() and (failed or not cuda.healthy())
        self._channel.send(
            EvaluationOver(
                turn=order.turn,
                outcome=outcome,
                replace=poisoned,
                regroup=self._group is not None and not self._group.whole,
            )
        )
        if not poisoned:
            self._clean()

    def _attempt(self, job: Job, timeout_s: float | None) -> Outcome:
        trial = Trial(
            self._link,
            job,
            rank=self._rank,
            size=self._size,
            local_rank=self._local_rank,
            curve=self._recording.curve,
        )
        self._recording.begin(job)
        if timeout_s is not None:
            faulthandler.dump_traceback_later(timeout_s - min(_DUMP_LEAD_S, timeout_s / 2), file=2)
        try:
            return self._recording.finish(attempt(self._call, trial, self._objectives))
        finally:
            faulthandler.cancel_dump_traceback_later()

    def _clean(self) -> None:
        """Free models in reference cycles, which hold memory that the next one needs, and what CUDA keeps of them.

        What modules are made of is set aside whenever new ones have been imported, or each collection would look
        through all of torch, which takes 0.2 s.
        """
        gc.collect()
        cuda.free()
        if len(sys.modules) != self._modules:
            self._modules = len(sys.modules)
            gc.freeze()

    def _call(self, trial: Trial) -> object:
        """The task, begun on all ranks at once: when rank 0 has emptied the directory."""
        if self._group is not None:
            self._group.begin(self._turn)
        self._seeder.seed(trial.seed)
        return self._task.evaluate(trial)


def main(arguments: list[str]) -> int:
    """Serve the control rank at the other end of the socket that ``arguments[0]`` numbers."""
    if len(os.sched_getaffinity(0)) == 1:
        widen_affinity()  # one core is mpirun's default, not a wish
    faulthandler.enable(file=2, all_threads=False)
    channel = ControlSocket(int(arguments[0]))
    hello = channel.receive(_HELLO_S)
    if not isinstance(hello, Hello):
        raise TypeError(f"the first order to an evaluator is Hello, not {hello!r}")
    try:
        evaluator = Evaluator(channel, hello)
    except (Exception, SystemExit) as error:  # the task's module runs in there
        ours = isinstance(error, HpoError)
        text = str(error) if ours else describe_exception(error)
        channel.send(Broken(f"{hello.label} could not load the task: {text}"))
        return 1
    evaluator.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
