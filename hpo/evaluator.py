"""The evaluator process: joins its worker's process group, runs the task, tells its control rank how it ended.

Started as ``python -m hpo.evaluator FD`` by ``hpo.child``. FD is its end of a socket pair over which JSON objects come and
go, one a line. It ends with its control rank, however that ends. The only place in hpo that imports torch, and only
for workers of several ranks.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import json
import os
import queue
import random
import signal
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from hpo.binding import widen_affinity
from hpo.errors import HpoError
from hpo.individual import FAILED
from hpo.network import interface_of, own_address
from hpo.outcome import Outcome, describe_exception
from hpo.rooms import OUTPUT
from hpo.task import TaskSource
from hpo.trial import Trial, attempt, clear_directory

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup, Store

Message = dict[str, Any]

_PR_SET_PDEATHSIG = 1
_VERDICT_S = 60.0
"""How long a report waits for an answer. Then it goes on: a control rank whose disk hangs must not fail a training."""
_HELLO_S = 60.0
_COLLECTIVE_S = 1_800.0
"""torch's own time-out for gloo. A longer time-out of the evaluation replaces it."""
_AGREEMENT_S = 86_400.0
"""One rank may validate for hours while the others wait for it in ``report``."""
_DUMP_LEAD_S = 0.2
"""Stacks are written this long before the time-out."""

_BEGIN, _REPORT, _CHECKPOINT = range(3)
_CALLS = ("the start of the evaluation", "trial.report", "trial.should_checkpoint")


class Channel:
    """The socket to the control rank, read by a thread, so that its closing is noticed during any work."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._verdicts: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._number = 0
        self.checkpoint_turn = -1
        """The last evaluation that was asked to save its state."""
        threading.Thread(target=self._read, name="hpo-channel", daemon=True).start()

    def send(self, message: Message) -> None:
        self._socket.sendall(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    def receive(self, timeout_s: float | None = None) -> Message:
        """The next order. Without a time-out this waits for the next individual, or for the end of the control rank."""
        return self._messages.get(timeout=timeout_s)

    def ask(self, turn: int, step: int, value: float) -> bool:
        """Report, and return whether to prune."""
        self._number += 1
        self.send({"type": "report", "turn": turn, "number": self._number, "step": step, "value": value})
        while True:
            try:
                verdict = self._verdicts.get(timeout=_VERDICT_S)
            except queue.Empty:
                return False
            if verdict["number"] == self._number:
                return bool(verdict["prune"])

    def _read(self) -> None:
        pending = b""
        while True:
            try:
                chunk = self._socket.recv(1 << 16)
            except OSError:
                chunk = b""
            if not chunk:
                _end_group()
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                message: Message = json.loads(line)
                if message["type"] == "verdict":
                    self._verdicts.put(message)
                elif message["type"] == "checkpoint":
                    self.checkpoint_turn = message["turn"]
                else:
                    self._messages.put(message)


class Group:
    """The worker's torch.distributed group, and what its ranks agree on. Only for workers of several ranks."""

    def __init__(self, hello: Message) -> None:
        self._rank: int = hello["worker_rank"]
        self._size: int = hello["size"]
        self._store: Store | None = None
        self._control: ProcessGroup | None = None
        self._connections: dict[int, int] = {}
        self._device: int | None = hello["device"]
        self.address: tuple[str, int] | None = None
        self.gpu: str | None = None
        own = own_address(hello["hosts"], self._rank, hello["interface"])
        self._name_interfaces(own, hello)
        os.environ.update(
            RANK=str(self._rank),
            WORLD_SIZE=str(self._size),
            LOCAL_RANK=str(hello["local_rank"]),
            LOCAL_WORLD_SIZE=str(hello["local_size"]),
        )
        import torch
        import torch.distributed

        if self._device is not None and torch.cuda.is_available():
            torch.cuda.set_device(self._device)
            if torch.distributed.is_nccl_available():
                # Not the index: where the launcher gives each rank one device, all of them are called 0.
                self.gpu = str(torch.cuda.get_device_properties(self._device).uuid)
        if self._rank == 0:
            self.address = self._listen(own)

    @staticmethod
    def _name_interfaces(own: str, hello: Message) -> None:
        """Tell gloo and NCCL the network interface, unless the user has; on one host it is the loopback in any case."""
        name = hello["interface"] or interface_of(own)
        if name is None:
            return
        if len(set(hello["hosts"])) == 1:
            os.environ.update(
                GLOO_SOCKET_IFNAME=interface_of(own) or name, NCCL_SOCKET_IFNAME=interface_of(own) or name
            )
        else:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", name)

    def _listen(self, own: str) -> tuple[str, int]:
        from torch.distributed import TCPStore

        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.bind((own, 0))
        listener.listen(self._size)
        port = listener.getsockname()[1]
        # The store takes the socket over. Given a port alone it would listen on all interfaces.
        self._store = TCPStore(
            own, port, None, True, wait_for_workers=False, master_listen_fd=listener.detach()
        )
        return own, port

    def join(self, order: Message) -> None:
        """Form a new group. Collective."""
        import torch.distributed as dist

        self.leave()
        start = timedelta(seconds=order["start_timeout_s"])
        host, port = order["address"]
        os.environ.update(MASTER_ADDR=host, MASTER_PORT=str(port))
        if self._store is None:
            self._store = dist.TCPStore(host, port, None, False, start)
        self._store.set_timeout(start)
        before = _sockets()
        limit = order["timeout_s"] or 0.0
        dist.init_process_group(
            order["backend"],
            store=dist.PrefixStore(f"hpo/{order['generation']}", self._store),
            rank=self._rank,
            world_size=self._size,
            timeout=timedelta(seconds=max(_COLLECTIVE_S, limit)),
        )
        # A group of its own: what the ranks agree on must not meet what a task has under way in the default group.
        self._control = dist.new_group(backend="gloo", timeout=timedelta(seconds=max(_AGREEMENT_S, limit)))
        self._connections = {
            number: inode for number, inode in _sockets().items() if before.get(number) != inode
        }

    def leave(self) -> None:
        """Leave the group, so that ranks which wait for this one in a collective get an error at once."""
        import torch.distributed as dist

        # A model wrapped for data parallelism keeps the group, and with it the connections, alive beyond
        # destroy_process_group; so they are closed by hand.
        present = _sockets()
        for number, inode in self._connections.items():
            if present.get(number) == inode:
                _shut(number)
        self._connections = {}
        self._control = None
        if dist.is_initialized():
            dist.destroy_process_group()

    @property
    def whole(self) -> bool:
        """False when the task has destroyed the group."""
        import torch.distributed as dist

        return self._control is not None and dist.is_initialized()

    def agree(self, turn: int, call: int, answer: bool) -> bool:
        """What worker rank 0 says. Collective; RuntimeError where the ranks make different calls."""
        import torch
        import torch.distributed as dist

        word = torch.tensor([(turn * len(_CALLS) + call) * 2 + answer], dtype=torch.int64)
        dist.broadcast(word, 0, group=self._control)
        theirs, answer = divmod(int(word), 2)[0], bool(int(word) % 2)
        if theirs != turn * len(_CALLS) + call:
            raise RuntimeError(
                f"worker rank {self._rank} is in {_CALLS[call]}, but rank 0 in {_CALLS[theirs % len(_CALLS)]}: "
                "all ranks of a worker must make these calls, in the same order."
            )
        return answer


class ChildLink:
    """A trial's way to the campaign through the control rank, and to the other ranks through the group."""

    comm: object | None = None

    def __init__(self, channel: Channel, group: Group | None, rank: int, device: int | None) -> None:
        self._channel = channel
        self._group = group
        self._rank = rank
        self._index = device
        self._device: str | None = "cpu" if device is None else None
        self.turn = 0

    @property
    def device(self) -> str:
        if self._device is None:
            self._device = f"cuda:{self._index}" if _cuda_works() else "cpu"
        return self._device

    def report(self, step: int, value: float) -> bool:
        prune = self._rank == 0 and self._channel.ask(self.turn, step, value)
        return prune if self._group is None else self._group.agree(self.turn, _REPORT, prune)

    def should_checkpoint(self) -> bool:
        asked = self._channel.checkpoint_turn == self.turn
        return asked if self._group is None else self._group.agree(self.turn, _CHECKPOINT, asked)


class Output:
    """Where file descriptors 1 and 2 lead: to the file of the evaluation, or back to where they led at the start."""

    def __init__(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
        self._between = os.dup(1)
        self._path: Path | None = None
        self._flush_native: Callable[[None], int] = ctypes.CDLL(None).fflush

    def open(self, path: Path) -> None:
        """Append what is printed from here on to ``path``."""
        for _ in range(10):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
                break
            except FileNotFoundError:  # a rank that printed nothing has just removed the directory
                continue
        else:
            raise OSError(f"{path.parent} disappears as fast as it is made")
        self._redirect(number)
        os.close(number)
        self._path = path

    def close(self) -> None:
        """End the file; one into which nothing was printed is removed, and the directory if it holds nothing else."""
        if self._path is None:
            return
        path, self._path = self._path, None
        self._flush()
        empty = os.fstat(1).st_size == 0
        self._redirect(self._between)
        if empty:
            try:
                path.unlink()
                path.parent.rmdir()
            except OSError:  # other ranks or the task have left something there
                pass

    def _redirect(self, number: int) -> None:
        self._flush()
        os.dup2(number, 1)
        os.dup2(number, 2)

    def _flush(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):  # a full disk, or a task that closed it
                pass
        self._flush_native(None)


class Evaluator:
    """Serves one rank: takes orders from the channel until it is told to exit."""

    def __init__(self, channel: Channel, hello: Message) -> None:
        self._channel = channel
        self._rank: int = hello["worker_rank"]
        self._size: int = hello["size"]
        self._local_rank: int = hello["local_rank"]
        self._label: str = hello["label"]
        self._output = Output()
        self._group = Group(hello) if self._size > 1 else None
        self._link = ChildLink(channel, self._group, self._rank, hello["device"])
        known = set(sys.path)
        sys.path.extend(entry for entry in hello["path"] if entry not in known)
        self._task = TaskSource.from_json(hello["source"]).load()
        self._objectives = tuple(self._task.objectives)

    def serve(self) -> None:
        """Say that this rank is ready, and follow orders."""
        # What is there now stays for good: collections between evaluations then look only at what the task left.
        gc.collect()
        gc.freeze()
        self._channel.send(
            {
                "type": "ready",
                "host": socket.gethostname(),
                "gpu": None if self._group is None else self._group.gpu,
                "address": None if self._group is None else self._group.address,
            }
        )
        while True:
            order = self._channel.receive()
            if order["type"] == "exit":
                if self._group is not None:
                    self._group.leave()
                return
            if order["type"] == "job":
                self._evaluate(order)
            elif order["type"] == "join" and self._group is not None:
                self._group.join(order)
                self._channel.send({"type": "joined", "generation": order["generation"]})
            elif order["type"] == "leave" and self._group is not None:
                self._group.leave()

    def _evaluate(self, order: Message) -> None:
        self._link.turn = order["turn"]
        directory = Path(order["directory"])
        try:
            if self._rank == 0 and not order["resumed"]:
                clear_directory(directory)
            self._output.open(directory / f"{OUTPUT}{self._rank}.txt")
        except OSError as error:
            outcome = Outcome(status=FAILED, error=f"the evaluation's directory cannot be used: {error}")
        else:
            outcome = self._attempt(order, directory)
            self._output.close()
        if self._size > 1 and outcome.status == FAILED:
            outcome = replace(outcome, error=f"{self._label}: {outcome.error}")
        self._channel.send(
            {
                "type": "finished",
                "turn": order["turn"],
                "outcome": outcome.to_json(),
                # A CUDA error may poison all later calls of the process.
                "replace": outcome.status == FAILED and _cuda_used(),
                "regroup": self._group is not None and not self._group.whole,
            }
        )
        gc.collect()  # models in reference cycles hold memory that the next one needs

    def _attempt(self, order: Message, directory: Path) -> Outcome:
        trial = Trial(
            self._link,
            params=order["params"],
            id=order["id"],
            seed=order["seed"],
            directory=directory,
            rank=self._rank,
            size=self._size,
            local_rank=self._local_rank,
        )
        limit: float | None = order["timeout_s"]
        if limit is not None:
            faulthandler.dump_traceback_later(limit - min(_DUMP_LEAD_S, limit / 2), file=2)
        try:
            return attempt(self._call, trial, self._objectives)
        finally:
            faulthandler.cancel_dump_traceback_later()

    def _call(self, trial: Trial) -> object:
        """The task, begun on all ranks at once: when rank 0 has emptied the directory."""
        if self._group is not None:
            self._group.agree(self._link.turn, _BEGIN, False)
        _seed(trial.seed)
        return self._task.evaluate(trial)


def _seed(seed: int) -> None:
    """Make what a task draws without a generator of its own independent of what this process did before."""
    random.seed(seed)
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
    if torch is not None:
        torch.manual_seed(seed % 2**63)


def _cuda_works() -> bool:
    """Whether torch can use CUDA; where there is no torch, the task brings something else that can."""
    try:
        import torch
    except ImportError:
        return True
    return torch.cuda.is_available()


def _cuda_used() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())


def _sockets() -> dict[int, int]:
    """Inodes of this process's sockets by descriptor."""
    found: dict[int, int] = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
            if target.startswith("socket:"):
                found[int(name)] = int(target[len("socket:[") : -1])
        except OSError:  # the descriptor of this very listing
            continue
    return found


def _shut(number: int) -> None:
    """Close a connection both ways. One that listens is left: gloo ends the process when accepting fails."""
    try:
        with socket.socket(fileno=os.dup(number)) as connection:
            if not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                connection.shutdown(socket.SHUT_RDWR)
    except OSError:  # closed meanwhile
        pass


def _end_group() -> None:
    """End this process and all in its process group."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


def _shield(connection: socket.socket) -> None:
    """Signals for the campaign are not for its evaluators; handlers, unlike SIG_IGN, are not passed on to programs.

    Forked processes, such as data loaders' workers, get the defaults back, and must not hold the socket.
    """
    former = {
        number: signal.signal(number, _ignore)
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    }

    def unshield() -> None:
        connection.close()
        for number, handler in former.items():
            if signal.getsignal(number) is _ignore:
                signal.signal(number, handler)

    os.register_at_fork(after_in_child=unshield)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Do nothing about a signal."""


def main(arguments: list[str]) -> int:
    """Serve the control rank at the other end of the socket that ``arguments[0]`` numbers."""
    if (
        len(os.sched_getaffinity(0)) == 1
    ):  # mpirun's default, not a wish: a trainer needs its share of the host
        widen_affinity()
    connection = socket.socket(fileno=int(arguments[0]))
    connection.set_inheritable(False)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    _shield(connection)
    faulthandler.enable(file=2)
    channel = Channel(connection)
    hello = channel.receive(_HELLO_S)
    try:
        evaluator = Evaluator(channel, hello)
    except (Exception, SystemExit) as error:  # the task's module runs in there
        ours = isinstance(error, HpoError)
        text = str(error) if ours else describe_exception(error)
        channel.send({"type": "broken", "error": f"{hello['label']} could not load the task: {text}"})
        return 1
    evaluator.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
