"""A short piece of chaos; `python tests/chaos.py` makes as much as one likes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from chaos import Chaos, chaos


@pytest.mark.timeout(400)
def test_nothing_is_lost_and_nothing_counted_twice_whatever_happens() -> None:
    found = chaos(seed=1, actions=10, evaluations=80, ranks=8)
    print(found)
    # Each rank that died had one individual at most that was done and not yet on record, and so had each launch.
    assert found["unrecorded_done_again"] <= 8 * found["commands"] + 10


NOTES = "begun 0-0-1 1.5\nended 0-0-1 0.5\nbegun 0-0-2 2.5\nended 0-0-2 0.7\nbegun 0-0-3 1.5\n"


def finished(identity: str, x: float, value: float | None) -> dict[str, object]:
    status = "failed" if value is None else "completed"
    return {"id": identity, "status": status, "objectives": {"value": value}, "params": {"x": x}}


FIRST, SECOND = finished("0-0-1", 1.5, 0.5), finished("0-0-2", 2.5, 0.7)


@pytest.mark.parametrize(
    ("records", "notes", "noticed"),
    [
        ([FIRST], NOTES, "lost or changed"),
        ([FIRST, finished("0-0-2", 2.5, None)], NOTES, "lost or changed"),
        ([FIRST, SECOND, SECOND], NOTES, "recorded twice"),
        ([FIRST, SECOND], NOTES.replace("ended 0-0-2 0.7", "ended 0-0-2 0.8"), "completed without an end"),
        ([FIRST, SECOND, finished("0-0-4", 3.5, None)], NOTES, "never began"),
        ([FIRST, SECOND], NOTES + "begun 0-0-2 9.5\n", "is two configurations"),
        ([FIRST, SECOND, finished("0-0-3", 1.5, None)], NOTES, "a configuration was done twice"),
    ],
)
def test_what_is_wrong_on_record_is_noticed(
    tmp_path: Path, records: list[dict[str, object]], notes: str, noticed: str
) -> None:
    (tmp_path / "run" / "journal").mkdir(parents=True)
    terminal = SimpleNamespace(directory=tmp_path)
    one = Chaos(terminal, seed=0, ranks=8, evaluations=3, disk=None)  # type: ignore[arg-type]

    def check(found: list[dict[str, object]], noted: str) -> None:
        terminal.records = lambda kind: found
        (tmp_path / "side.txt").write_text(noted)
        one.check()

    check([FIRST, SECOND], NOTES)
    with pytest.raises(AssertionError, match=noticed):
        check(records, notes)
