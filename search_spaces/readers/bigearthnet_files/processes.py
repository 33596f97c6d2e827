"""Work on many patches, shared by processes, with a progress bar."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_LINE_S = 60.0


def in_processes(
    function: Callable[[Item], Result], items: Iterable[Item], *, processes: int | None, apart: bool = False
) -> Iterator[Result]:
    """Results of ``function`` for each item, in order.

    Args:
        function (callable): the work.
        items (iterable): its arguments.
        processes (int): number of processes; None: one for each core that this process may use.
        apart (bool; default False): whether one process is another than the caller's, too.

    Raises:
        ChildProcessError: a process died.
    """
    count = processes or len(os.sched_getaffinity(0))
    if count == 1 and not apart:
        yield from map(function, items)
        return
    # Not forked: the caller may have threads.
    context = multiprocessing.get_context("spawn")
    try:
        with ProcessPoolExecutor(count, mp_context=context, initializer=_begin) as pool:
            yield from pool.map(function, items)
    except BrokenProcessPool:
        raise ChildProcessError(
            "A process that shared the work was killed: there was too little memory, or the file that it read is "
            "damaged or became shorter. Start again, with fewer --processes or with the file brought again, whole."
        ) from None


def _begin() -> None:
    # Ctrl-C is the parent's to handle; and a parent that was killed cannot end its children.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


@contextmanager
def shown(what: str, total: int, *, done: int = 0, show: bool = True) -> Iterator[Callable[[int], None]]:
    """Progress on standard error, as a bar on a terminal and else as a line a minute; yields a function that adds to
    the number of finished items."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    lines = show and not console.is_interactive
    due = time.monotonic() + 5.0
    bar = Progress(*columns, console=console)
    task = bar.add_task(what, total=total, completed=done)

    def advance(count: int) -> None:
        nonlocal due
        bar.advance(task, count)
        if lines and time.monotonic() >= due:
            due = time.monotonic() + _LINE_S
            console.print(bar)

    # Not disabled instead: before rich 14 a disabled bar writes an empty line at its end.
    with bar if show and not lines else nullcontext():
        yield advance
