"""Simulated campaigns with all that may happen to them meet their budget exactly; ten thousand of them nightly."""

from __future__ import annotations

import pytest
from many_seeds import replayable

SEEDS, CHUNKS = 300, 6
FOUND = (4992, 5088, 5290, 5933)
"""Seeds beyond those that have found a fault of the product."""


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_whatever_happens_the_budget_is_met_exactly_and_nothing_is_lost_or_done_twice(chunk: int) -> None:
    replayable(iter(range(chunk * SEEDS // CHUNKS, (chunk + 1) * SEEDS // CHUNKS)))


def test_seeds_that_have_found_a_fault_hold() -> None:
    replayable(iter(FOUND))
