"""A stop that ranks learn of at the same step, without waiting for one another at each."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hpo.evaluation.process.announcement import INTERVAL_S, Announcement, Words


class Broadcasts:
    """Rank 0's messages in order; a rank that waits for one that is not sent yet is stuck here: ``Waits``."""

    def __init__(self) -> None:
        self.sent: list[Words] = []

    def of_rank(self, rank: int) -> Callable[[Words], Callable[[], Words]]:
        count = 0

        def send(words: Words) -> Callable[[], Words]:
            nonlocal count
            number, count = count, count + 1
            if rank == 0:
                self.sent.append(words)

            def received() -> Words:
                if number >= len(self.sent):
                    raise Waits
                return self.sent[number]

            return received

        return send


class Waits(Exception):
    pass


LENGTHS_S = st.sampled_from([0.0, 0.001, 0.02, 0.3, 5.0])


@given(
    # Of steps that differ, or are all as long.
    steps_s=st.lists(LENGTHS_S, min_size=1, max_size=300)
    | st.builds(lambda seconds, count: [seconds] * count, LENGTHS_S, st.integers(1, 300)),
    asked_from=st.integers(0, 300),
)
@example(steps_s=[0.3] * 300, asked_from=20)
@example(steps_s=[0.02] * 300, asked_from=60)
def test_all_ranks_stop_at_the_same_call_soon_after_rank_0_was_asked(
    steps_s: list[float], asked_from: int
) -> None:
    clock, broadcasts = [0.0], Broadcasts()
    first = Announcement(0, broadcasts.of_rank(0), clock=lambda: clock[0])
    stopped_at, asked_s = None, None
    for call, seconds in enumerate(steps_s):
        if call == asked_from:
            asked_s = clock[0]
        if first.ask(call >= asked_from):
            stopped_at = call
            break
        clock[0] += seconds
    # The other's clock is another; it has rank 0's messages, and runs after it.
    other = Announcement(1, broadcasts.of_rank(1), clock=lambda: 0.0)
    answers = [other.ask(False) for _ in steps_s[: len(steps_s) if stopped_at is None else stopped_at + 1]]
    assert [call for call, stops in enumerate(answers) if stops] == (
        [] if stopped_at is None else [stopped_at]
    )
    if stopped_at is not None and asked_s is not None:
        assert stopped_at > asked_from
        if len(set(steps_s)) == 1:
            late_s = clock[0] - asked_s
            assert stopped_at - asked_from <= 2 or late_s <= 2 * INTERVAL_S + 2 * steps_s[0]


def test_a_rank_runs_ahead_until_a_message_lacks() -> None:
    broadcasts, clock = Broadcasts(), [0.0]
    first = Announcement(0, broadcasts.of_rank(0), clock=lambda: clock[0])
    for _ in range(3):
        first.ask(False)
        clock[0] += INTERVAL_S / 10
    other = Announcement(1, broadcasts.of_rank(1))
    asked = 0
    with pytest.raises(Waits):
        while True:
            other.ask(False)
            asked += 1
    assert asked > 10  # rank 0 has asked three times: the other is ahead by a message


def test_ranks_that_take_other_steps_are_found_out() -> None:
    broadcasts = Broadcasts()
    first = Announcement(0, broadcasts.of_rank(0), clock=lambda: 0.0)
    first.ask(False)
    broadcasts.sent.insert(0, (7, 0, 1))
    other = Announcement(1, broadcasts.of_rank(1), clock=lambda: 0.0)
    other.ask(False)
    with pytest.raises(RuntimeError, match=r"asked before step 0 .* rank 0 before step 7"):
        other.ask(False)
