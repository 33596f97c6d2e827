"""An evaluator's socket to its control rank; the evaluator ends when that rank does."""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import socket
import threading
from types import FrameType

from hpo.evaluation.conversation import (
    Answer,
    CrewOrder,
    ReportMade,
    ReportVerdict,
    SaveState,
    order_of,
    to_line,
)
from hpo.search.protocols import GO, Verdict

_PR_SET_PDEATHSIG = 1
_VERDICT_S = 60.0
"""Longest wait for the answer to a report. Then training goes on: a slow disk of the campaign must not fail it."""


class ControlSocket:
    """The socket to the control rank, numbered ``descriptor``.

    A thread reads it, so that its closing is noticed during any work; the kernel kills this process too when
    the control rank has died, even if the work never lets that thread run.
    """

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.set_inheritable(False)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        _shield(self._socket)
        self._orders: queue.SimpleQueue[CrewOrder] = queue.SimpleQueue()
        self._verdicts: queue.SimpleQueue[ReportVerdict] = queue.SimpleQueue()
        self._sending = threading.Lock()
        self._number = 0
        self.checkpoint_turn = -1
        """The last evaluation that was asked to save its state."""
        threading.Thread(target=self._read, name="hpo-channel", daemon=True).start()

    def send(self, answer: Answer) -> None:
        with self._sending:
            self._socket.sendall(to_line(answer))

    def receive(self, timeout_s: float | None = None) -> CrewOrder:
        """The next order. Without a time-out this waits for one as long as the control rank lives."""
        return self._orders.get(timeout=timeout_s)

    def ask(self, turn: int, step: int, value: float, *, last_step: int | None, saves: bool) -> Verdict:
        """Report, and return the verdict."""
        self._number += 1
        self.send(
            ReportMade(
                turn=turn,
                number=self._number,
                step=step,
                value=value,
                last_step=last_step,
                saves=saves,
            )
        )
        while True:
            try:
                answer = self._verdicts.get(timeout=_VERDICT_S)
            except queue.Empty:
                return GO
            if answer.number == self._number:
                return answer.verdict

    def _read(self) -> None:
        pending = b""
        while True:
            try:
                chunk = self._socket.recv(1 << 16)
            except OSError:
                chunk = b""
            if not chunk:  # the control rank is gone: end this process and all in its process group
                if os.getpgrp() == os.getpid():
                    os.killpg(os.getpid(), signal.SIGKILL)
                os._exit(1)
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                order = order_of(line)
                if isinstance(order, ReportVerdict):
                    self._verdicts.put(order)
                elif isinstance(order, SaveState):
                    self.checkpoint_turn = order.turn
                else:
                    self._orders.put(order)


def _shield(connection: socket.socket) -> None:
    """Ignore signals to the campaign.

    By handlers, as SIG_IGN would be passed on to the programs that a task starts. Forked processes, such as data
    loaders' workers, get the former handlers back, and must not hold the socket.
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
