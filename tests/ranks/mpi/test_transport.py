"""The MPI transport between real ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cases import cases

GIVES_UP = Path(__file__).with_name("one_gives_up.py")
GROUPS = Path(__file__).with_name("groups.py")
LATE = Path(__file__).with_name("late_messages.py")


@pytest.mark.parametrize("ranks", cases([4], nightly=[1, 2]))
def test_leaving_ranks_receive_what_nobody_polled_for(mpirun, ranks):
    done = mpirun(ranks, LATE)
    assert sorted(done.stdout.split("\n")) == ["", *["complete=True waiting=False soon=True"] * ranks]


@pytest.mark.parametrize(
    ("who", "tolerant"),
    cases([("0", False), ("02", True)], nightly=[("0", True), ("2", False), ("2", True), ("02", False)]),
)
def test_who_gives_up_ends_all_whether_or_not_mpi_tolerates_deaths(mpirun, tolerant, who):
    done = mpirun(4, GIVES_UP, *who, tolerant=tolerant, check=False, timeout=50)
    assert done.returncode == 65, done.stderr
    assert "was not ended" not in done.stdout


@pytest.mark.parametrize("listener", cases([0], nightly=[1, 2, 3]))
def test_a_rank_that_still_listens_hears_nothing_of_a_communicator_in_the_making(mpirun, listener):
    done = mpirun(4, GROUPS, listener, timeout=90)
    found = json.loads(done.stdout.splitlines()[-1])
    sent = [[rank, '"early"'] for rank in range(4) if rank != listener]
    assert found == {"heard": sorted([*sent, [(listener + 1) % 4, '"later"']]), "total": 6}
