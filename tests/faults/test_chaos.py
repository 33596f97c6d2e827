"""A short piece of chaos; `python tests/faults/chaos.py` makes as much as one likes."""

from __future__ import annotations

import pytest
from chaos import chaos


@pytest.mark.timeout(400)
def test_nothing_is_lost_and_nothing_counted_twice_whatever_happens() -> None:
    found = chaos(seed=1, actions=10, evaluations=80, ranks=8)
    print(found)
    assert sum(found["actions"].values()) == 10
    # Each rank that died had one individual at most that was done and not yet on record, and so had each launch.
    assert found["unrecorded_done_again"] <= 8 * found["commands"] + 10
