"""The MPI transport between real ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

LATE = Path(__file__).with_name("late_messages.py")


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_leaving_ranks_receive_what_nobody_polled_for(mpirun, ranks):
    done = mpirun(ranks, LATE)
    assert sorted(done.stdout.split("\n")) == ["", *["complete=True waiting=False soon=True"] * ranks]
