"""A short piece of chaos; `python tests/chaos.py` makes as much as one likes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from chaos import Chaos, End, chaos, notes_of


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


def finished(
    identity: str, x: float, value: float | None, run: int = 0, when: float = 1.0
) -> dict[str, object]:
    status = "failed" if value is None else "completed"
    table = {"id": identity, "status": status, "objectives": {"value": value}, "params": {"x": x}}
    return {"type": "finished", **table, "finished": when, **({"reopened": run} if run else {})}


def reopened(identity: str, number: int) -> dict[str, object]:
    return {"type": "reopened", "id": identity, "number": number}


FIRST, SECOND = finished("0-0-1", 1.5, 0.5), finished("0-0-2", 2.5, 0.7)
FAILED, AGAIN = finished("0-0-3", 3.5, None), finished("0-0-3", 3.5, 0.9, run=1)
NOTES = "".join(
    f"begun {one['id']} {one['params']['x']}\nended {one['id']} {one['objectives']['value']}\n"  # type: ignore[index]
    for one in (FIRST, SECOND, AGAIN)
)


@pytest.fixture
def check(tmp_path: Path) -> Callable[..., dict[str, End]]:
    """Checks records, again and again, those of the same campaign."""
    directory = tmp_path / "disk"
    (directory / "run" / "journal").mkdir(parents=True)
    terminal = SimpleNamespace(directory=directory)
    one = Chaos(terminal, seed=0, ranks=8, evaluations=3, disk=None)  # type: ignore[arg-type]
    notes_of(one.terminal).mkdir()

    def check(*records: dict[str, object], noted: str = NOTES, given: str | None = None) -> dict[str, End]:
        terminal.records = lambda kind: [record for record in records if record["type"] == kind]
        (notes_of(one.terminal) / "side.txt").write_text(noted)
        if given is not None:
            one.given[given] += 1
        return one.check()

    return check


@pytest.mark.parametrize(
    ("records", "notes", "noticed"),
    [
        ([FIRST, FAILED], NOTES, "lost or changed"),
        ([FIRST, finished("0-0-2", 2.5, None), FAILED], NOTES, "recorded twice|lost or changed"),
        ([FIRST, SECOND, FAILED, finished("0-0-2", 2.5, 0.7, when=2.0)], NOTES, "recorded twice"),
        ([FIRST, SECOND, FAILED], NOTES.replace("ended 0-0-2 0.7", "ended 0-0-2 0.8"), "without an end"),
        ([FIRST, SECOND, FAILED, finished("0-0-4", 4.5, None)], NOTES, "never began"),
        ([FIRST, SECOND, FAILED], NOTES + "begun 0-0-2 9.5\n", "is two configurations"),
        ([FIRST, SECOND, FAILED, finished("0-0-4", 1.5, None)], NOTES + "begun 0-0-4 1.5\n", "done twice"),
        ([FIRST, SECOND, FAILED, reopened("0-0-2", 1)], NOTES, "had not failed"),
        ([FIRST, SECOND, FAILED, reopened("0-0-3", 2)], NOTES, "had not failed"),
    ],
)
def test_what_is_wrong_on_record_is_noticed(
    check: Callable[..., dict[str, End]], records: list[dict[str, object]], notes: str, noticed: str
) -> None:
    check(FIRST, SECOND, FAILED)
    with pytest.raises(AssertionError, match=noticed):
        check(*records, noted=notes)


def test_what_was_reopened_counts_by_its_next_end_and_a_record_may_stand_in_two_parts(
    check: Callable[..., dict[str, End]],
) -> None:
    assert set(check(FIRST, SECOND, FAILED)) == {"0-0-1", "0-0-2", "0-0-3"}
    assert set(check(FIRST, SECOND, SECOND, FAILED, reopened("0-0-3", 1))) == {"0-0-1", "0-0-2"}
    assert check(FIRST, SECOND, FAILED, reopened("0-0-3", 1), AGAIN)["0-0-3"].status == "completed"


def test_a_command_that_is_lost_is_noticed(check: Callable[..., dict[str, End]]) -> None:
    pause = {"type": "command", "id": "1", "name": "pause"}
    check(FIRST, pause, given="pause")
    with pytest.raises(AssertionError, match="1 `hpo pause` of 2 are lost"):
        check(FIRST, pause, given="pause")
