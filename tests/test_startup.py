"""Starts that would never end."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

from hpo.startup import bounded

WAITS = """
import ctypes, signal
from hpo.startup import bounded

with bounded(1):
    {first}
    ctypes.PyDLL(None).sleep(60)  # holds the interpreter, as MPI_Init does
print("it went on")
"""


def test_a_wait_inside_a_library_ends_the_process_when_its_time_is_over() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WAITS.format(first="pass")], capture_output=True, timeout=30, check=False
    )
    assert done.returncode == -signal.SIGALRM and not done.stdout


def test_what_is_over_in_time_leaves_alarm_and_handler_as_they_were() -> None:
    def handler(number: int, frame: object) -> None:
        raise AssertionError("too late")

    former = signal.signal(signal.SIGALRM, handler)
    before = signal.setitimer(signal.ITIMER_REAL, 100.0)  # those who run the tests may have one
    try:
        with bounded(50):
            assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
            assert 49 < signal.getitimer(signal.ITIMER_REAL)[0] <= 50
        assert signal.getsignal(signal.SIGALRM) is handler
        assert 50 < signal.getitimer(signal.ITIMER_REAL)[0] <= 100
    finally:
        signal.setitimer(signal.ITIMER_REAL, *before)
        signal.signal(signal.SIGALRM, former)


def test_another_thread_has_no_bound_and_no_error() -> None:
    done = []

    def inside() -> None:
        before = signal.getsignal(signal.SIGALRM)
        with bounded(1):
            done.append(signal.getsignal(signal.SIGALRM) is before)

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join(10)
    assert done == [True]
