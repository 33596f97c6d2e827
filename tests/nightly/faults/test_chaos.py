"""A short piece of chaos; `python tests/chaos.py` makes as much as one likes."""

from __future__ import annotations

import pytest
from chaos import chaos


@pytest.mark.timeout(400)
def test_nothing_is_lost_and_nothing_counted_twice_whatever_happens() -> None:
    found = chaos(seed=1, actions=10, evaluations=80, ranks=8)
    print(found)
    # When a launch ends, each of the four workers has one individual at most that is done and not yet on record; before
    # that an action costs one worker the same, or two where it is two ranks that die.
    most = (
        4 * (found["launches"] - 1)
        + sum(found["actions"].values())
        + found["actions"].get("two ranks killed", 0)
    )
    assert found["unrecorded_done_again"] <= most
    assert sum(found["actions"].values()) >= 10 and found["statuses"]["completed"] > found["evaluations"] // 2
