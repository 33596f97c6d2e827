"""When a signal ends a program, and when it waits."""

from __future__ import annotations

import signal

import pytest

from hpo.cluster.signals import Signals


def test_a_signal_waits_until_what_it_may_not_interrupt_is_over() -> None:
    former = signal.getsignal(signal.SIGTERM)
    done = []
    with Signals(patience=1) as signals:
        with pytest.raises(KeyboardInterrupt):
            with signals.held():
                signal.raise_signal(signal.SIGTERM)
                done.append("imported")
            done.append("went on")
        with pytest.raises(ImportError), signals.held():
            raise ImportError
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
    assert done == ["imported"] and signals.count == 2
    assert signal.getsignal(signal.SIGTERM) == former
