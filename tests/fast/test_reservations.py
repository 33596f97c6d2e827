"""Reservations of configurations among launches: each configuration belongs to one launch at a time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpo.ledger.reservations import FOLDER, Reservations

KEY = "{'x': 'a\ud800/../b'}"


def test_one_launch_has_a_configuration_until_it_releases_it_or_is_over(tmp_path: Path) -> None:
    first, second, third = (Reservations(tmp_path, launch) for launch in (1, 2, 3))
    assert first.take(KEY) is None and second.take(KEY) == 1
    assert first.take(KEY) is None, "as where the first reply of the file server was lost"
    second.release(KEY)
    assert third.take(KEY) == 1, "another cannot release it"
    first.release(KEY)
    assert second.take(KEY) is None and first.take(KEY) == 2
    third.learn_closed(2)
    assert (
        third.take(KEY) is None and third.take(KEY) is None and Reservations(tmp_path, 4, [2]).take(KEY) == 3
    )
    third.release(KEY)
    assert Reservations(tmp_path, 5, [2]).take(KEY) is None and first.take("other") is None


@pytest.mark.parametrize("there", ["a file", "a file in place of the folder", "a name that is no number"])
def test_what_is_no_reservation_refuses_nothing(tmp_path: Path, there: str) -> None:
    reservations = Reservations(tmp_path, 1)
    if there == "a file in place of the folder":
        (tmp_path / FOLDER).touch()
    else:
        path = Path(f"{reservations._path(KEY)}.0")
        path.parent.mkdir(parents=True)
        path.touch() if there == "a file" else path.symlink_to("/etc/passwd")
    before = sorted(os.walk(tmp_path))
    assert reservations.take(KEY) is None
    reservations.release(KEY)
    assert sorted(os.walk(tmp_path)) == before
