"""Long work over many patches: shared by processes, and showing how far it is."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress

Item = TypeVar("Item")
Result = TypeVar("Result")

_LINE_S = 60.0


def in_processes(
    function: Callable[[Item], Result], items: Iterable[Item], *, processes: int | None, apart: bool = False
) -> Iterator[Result]:
    """``function`` of each item, in order, in ``processes`` processes (None: one a core that this one may use).

    A single one is this one, unless the work is to be done ``apart``. Few results wait at a time, however slowly
    they are taken. ChildProcessError if a process dies.
    """
    count = processes or len(os.sched_getaffinity(0))
    if count == 1 and not apart:
        yield from map(function, items)
        return
    others = set(multiprocessing.active_children())
    ours: set[BaseProcess] = set()
    # Not forked: the caller may have threads.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(count, mp_context=context, initializer=_begin)
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            ours.update(set(multiprocessing.active_children()) - others)
            if len(waiting) > 2 * count:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool:
        pool.shutdown()  # afterwards it is known how each ended
        raise ChildProcessError(_how_it_died({process.exitcode for process in ours})) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _how_it_died(exit_codes: set[int | None]) -> str:
    """The pool ends the others itself, by SIGTERM."""
    for fault in (signal.SIGBUS, signal.SIGSEGV):
        if -fault in exit_codes:
            return (
                f"A process that shared the work was ended by {fault.name}, as one is that reads a damaged file, or "
                "one that became shorter. Bring the file again, whole, and start again."
            )
    return "A process that shared the work was killed; was there too little memory? Start it again."


def _begin() -> None:
    # Ctrl-C is the parent's to handle; and a parent that was killed cannot end its children.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


class Shown:
    """How far the work is, on standard error: a bar on a terminal, a line a minute anywhere else."""

    def __init__(self, what: str, total: int, *, done: int = 0, show: bool = True) -> None:
        self._what, self._total, self._done = what, total, done
        self._before = done
        self._began = time.monotonic()
        self._next = self._began + 5.0 if show else float("inf")
        self._bar: Progress | None = None
        if not show:
            return
        from rich.console import Console

        console = Console(stderr=True)
        if console.is_terminal and not console.is_dumb_terminal:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"),
                TimeRemainingColumn(),
                console=console,
            )
            self._bar.add_task(what, total=total, completed=done, rate="")

    def __enter__(self) -> Shown:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, count: int) -> None:
        self._done += count
        now = time.monotonic()
        rate = (self._done - self._before) / max(now - self._began, 1e-9)
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=self._done, rate=f"{rate:.0f}/s")
        elif now >= self._next:
            self._next = now + _LINE_S
            left_min = (self._total - self._done) / max(rate, 1e-9) / 60
            print(
                f"{self._what}: {self._done}/{self._total}, {rate:.0f}/s, {left_min:.0f} min left",
                file=sys.stderr,
                flush=True,
            )
