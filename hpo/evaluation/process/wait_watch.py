"""A watch over one rank: where it waits for the other ranks of its worker for long, it says in which call."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from hpo.terminal import write

_SLOW_S = 20.0
_LARGE_BYTES = 64 << 20
"""Exchanging more than this may take long on a slow network."""
_TORCH = "torch.distributed.distributed_c10d"
_CHANNEL = "trainers.communication.channel"
_LEFT_OUT = re.compile("i?(send|recv)(_object_list)?|batch_isend_irecv|init_process_group")
"""Calls that wait for one rank, which need not wait for this rank, or for processes that the task may have started."""


class Wait(NamedTuple):
    """A call in which this rank waits."""

    call: str
    since: float
    of_all: bool = False
    """Whether all ranks of the worker must make this call, not only those of some group."""
    large: bool = False
    """Whether the exchange may take long."""


class WaitWatch:
    """Says on standard error, once an evaluation, where this rank has waited for the others for long: a task in which
    not all ranks make a call would hang without a word. ``tell`` gets the wait every few seconds while it goes on.

    Collectives of torch and of trainers are found by the frame in which the main thread stands still: it is inside such
    a function. A wait for a ``Work`` in the task's own code, DistributedDataParallel's backward pass and GPUs' streams
    cannot be distinguished from work."""

    def __init__(self, rank: int, tell: Callable[[Wait], None] = lambda wait: None) -> None:
        self._rank = rank
        self._tell = tell
        self.begun: Wait | None = None
        """The call of hpo in which this rank waits."""
        self.evaluating = False
        """Whether the main thread is in the task's code."""
        self.said = False
        self._still: tuple[FrameType, int, float] | None = None
        """A frame of a collective, its instruction, and since when the main thread has been there. Holding the frame,
        and with it the tensors of the call, proves that it is the same call: no other frame has its identity."""
        threading.Thread(target=self._look, name="waits", daemon=True).start()

    def _look(self) -> None:
        next_word = 0.0
        while True:
            # A frame is held for a short time only, unless it stands still.
            time.sleep(_SLOW_S / (4 if self._still is None else 80))
            wait = self.begun or self._collective()
            now = time.monotonic()
            if wait is None or now - wait.since < _SLOW_S or now < next_word:
                continue
            next_word = now + _SLOW_S / 4
            self._tell(wait)
            if not self.said:
                write(
                    f"hpo: worker rank {self._rank} has waited {now - wait.since:.0f} s in {wait.call} for other ranks "
                    "of the worker. Every rank of the group has to make this call; while another rank still works, "
                    "nothing is wrong.",
                    sys.stderr,
                    flush=True,
                )
                self.said = True

    def _collective(self) -> Wait | None:
        """The collective in which the main thread is, since it was first seen at this place of this call."""
        frame = sys._current_frames().get(threading.main_thread().ident or 0) if self.evaluating else None
        call = None if frame is None else _call(frame)
        if frame is None or call is None:
            self._still = None
            return None
        now = time.monotonic()
        still = self._still
        if still is None or still[0] is not frame or still[1] != frame.f_lasti:
            self._still = still = frame, frame.f_lasti, now
        long = now - still[2] >= _SLOW_S
        return Wait(call, still[2], large=long and _bytes(frame) > _LARGE_BYTES)


def _call(innermost: FrameType) -> str | None:
    """The call of a collective that a thread is in: the outermost function of trainers, or of torch; None outside
    collectives."""
    torch, channel = (getattr(sys.modules.get(name), "__file__", None) for name in (_TORCH, _CHANNEL))
    if innermost.f_code.co_filename not in (torch, channel):
        return None
    trainers = None if channel is None else f"{Path(channel).parents[1]}/"
    torch_call = trainers_call = None
    frame: FrameType | None = innermost
    while frame is not None:
        path, name = frame.f_code.co_filename, frame.f_code.co_name
        if trainers is not None and path.startswith(trainers):
            trainers_call = name
        elif path == torch:
            torch_call = name
        frame = frame.f_back
    if torch_call is not None and _LEFT_OUT.fullmatch(torch_call):
        return None
    return f"trainers.{trainers_call}" if trainers_call else f"torch.distributed.{torch_call}"


def _bytes(frame: FrameType) -> float:
    """Size of the tensors, and of the lists of tensors, that a call has been given; infinite where it is not known."""
    size = 0
    try:
        for local in list(frame.f_locals.values()):
            for value in local if isinstance(local, (list, tuple)) else (local,):
                size += int(getattr(value, "nbytes", 0))
    except Exception:  # tensors of some layouts have no size; objects of the task may do anything
        return float("inf")
    return size
