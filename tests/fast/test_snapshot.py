"""A launch reads the same state from the snapshot of closed launches and from their journals."""

from __future__ import annotations

import copy
import random
from pathlib import Path

import journals
import pytest
from living import joined
from many_seeds import check_snapshots, comparable
from msgspec.structs import replace
from simulation.campaigns import SPACE as MIXED

import hpo
from hpo.islands.resume import fold as folding
from hpo.islands.resume.fold import fold_directory
from hpo.islands.resume.state import ResumeState
from hpo.journal import files
from hpo.journal.directory import status_path
from hpo.journal.files import journal_path
from hpo.journal.records import Finished, Header, Migrated, Record, Reopened, Reported, Started
from hpo.ledger.entries import Limits
from hpo.ledger.inspection import repair
from hpo.ledger.launches import budget_use
from hpo.search.population import Member, Population

SPACE = hpo.SearchSpace(lr=hpo.Float(0, 1))


def earlier(home: Path, islands: int = 1) -> ResumeState:
    return fold_directory(home, space=SPACE, islands=islands, losses=lambda found: (*found.values(),))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A campaign with two closed launches of three evaluations each, and an open one."""
    monkeypatch.setattr(folding, "_MANY", 1)
    home = journals.campaign(tmp_path)
    for launch in (1, 2, 3):
        own = joined(home)
        own.draw()
        (home / "launches").mkdir(exist_ok=True)
        ends = [journals.finished(f"0-{launch - 1}-{number}", number / launch) for number in range(3)]
        journals.write(home, ends, launch, launch - 1)
        if launch < 3:
            own.close("stopped", 75, at_rest=True)
    return home


def read_by(home: Path, monkeypatch: pytest.MonkeyPatch, islands: int = 1) -> tuple[list[int], ResumeState]:
    """Launches whose journals are read, and the state."""
    opened: list[int] = []
    numbered = files.numbered_records

    def noted(path: Path, *given: object) -> object:
        name = files.journal_name(path.name)
        assert name is not None
        opened.append(name.launch)
        return numbered(path, *given)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(files, "numbered_records", noted)
        return opened, earlier(home, islands)


def test_closed_launches_are_read_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, state = read_by(home, monkeypatch)
    again, same = read_by(home, monkeypatch)
    assert (first, again) == ([1, 2, 3], [3])
    assert comparable(state) == comparable(same) and state.tally.final == 9
    # A launch that is closed since is read once more, and then no more.
    joined(home).close_others("died")
    assert [read_by(home, monkeypatch)[0] for _ in range(2)] == [[3], []]


def test_launches_before_the_ledger_are_read_once_and_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folding, "_MANY", 1)
    home = journals.campaign(tmp_path, [journals.finished("0-0-0", 0.5)])
    journals.write(home, [journals.finished("0-0-1", 0.5)], 2)
    later = joined(home)
    (home / "launches").mkdir(exist_ok=True)
    later.draw()
    journals.write(home, [journals.finished("0-1-0", 0.5)], 3, 1)
    later.close("stopped", 75, at_rest=True)
    assert [read_by(home, monkeypatch)[0] for _ in range(2)] == [[1, 2, 3], []]
    assert earlier(home).tally.final == 3


@pytest.mark.parametrize("damage", ["cut", "changed", "emptied", "of other types"])
def test_a_snapshot_that_is_damaged_is_left_out(
    home: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    state, path = earlier(home), home / "launches" / "closed"
    data = path.read_bytes()
    (path.parent / ".closed.0123").touch()
    place = {"changed": len(data) // 2, "of other types": 0}.get(damage)
    if place is None:
        path.write_bytes(data[:-1] if damage == "cut" else b"")
    else:
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
    opened, found = read_by(home, monkeypatch)
    assert opened == [1, 2, 3] and comparable(found) == comparable(state)
    assert path.read_bytes() == data, "it is made again"
    assert not [*path.parent.glob(".closed*")], "what a launch left that was killed as it wrote is gone"


def test_a_snapshot_of_other_lengths_or_islands_is_left_out(
    home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    earlier(home)
    assert read_by(home, monkeypatch, islands=2)[0] == [1, 2, 3]
    # Another campaign's, whose directory it was copied from.
    other = journals.campaign(tmp_path_factory.mktemp("other"))
    launch = joined(other)
    journals.write(other, [journals.finished("0-0-0", 0.5)], 1, 0)
    launch.draw()
    launch.close("stopped", 75, at_rest=True)
    (other / "launches").mkdir(exist_ok=True)
    (other / "launches" / "closed").write_bytes((home / "launches" / "closed").read_bytes())
    assert read_by(other, monkeypatch)[0] == [1] and earlier(other).tally.final == 1


def test_a_repair_of_a_journal_removes_what_was_read_from_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier(home)
    path = journal_path(home, launch=1, island=0, worker=0)
    path.write_bytes(path.read_bytes().replace(b"completed", b"complexed", 1))
    status = status_path(home, 3)
    status.parent.mkdir(exist_ok=True)
    status.touch()
    repair(home)
    opened, state = read_by(home, monkeypatch)
    assert opened == [1, 2, 3] and state.tally.final == 8
    # Another is evaluated in the place of the lost one.
    assert not status.exists() and budget_use(home, Limits()).final == 8
    earlier(home)
    repair(home)
    assert (home / "launches" / "closed").exists(), "there was nothing to repair"


def test_a_point_is_withdrawn_that_an_older_launch_at_work_has_entered(tmp_path: Path) -> None:
    home = journals.campaign(tmp_path)
    point = {"params": {"lr": 0.5}, "status": "completed", "objectives": {"value": 0.0}, "origin": "x"}
    known = [{"type": "known", "number": one, "source": "a.csv", "time": 1.0, **point} for one in (1, 2)]
    joined(home)
    journals.write(home, known, 1, 0)
    later = joined(home)
    journals.write(home, [{"type": "withdrawn", "numbers": [1], "source": "a.csv", "time": 2.0}], 2, 1)
    later.close("stopped", 75, at_rest=True)
    state = earlier(home)
    assert (state.known, state.sources) == (2, {"a.csv": 1})


def test_a_link_in_its_place_is_not_followed(home: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "file"
    elsewhere.write_bytes(b"precious")
    (home / "launches" / "closed").symlink_to(elsewhere)
    assert earlier(home).tally.final == 9
    assert elsewhere.read_bytes() == b"precious"


@pytest.mark.parametrize("kept", [8, 1000])
def test_whatever_the_journals_hold_snapshots_change_nothing(
    monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    """Made-up launches, whose individuals migrate, are pruned and go on, fail and are reopened, in any order."""
    for name in ("KEPT", "_PRUNED", "_LATEST"):
        monkeypatch.setattr(folding, name, kept)
    for seed in range(20):
        rng = random.Random(seed)
        records: list[Record] = []
        for launch in range(1, 6):
            records.append(Header(version=1, launch=launch, island=0, worker=0, time=float(launch)))
            records += [_record(rng, launch) for _ in range(rng.randint(0, 200))]
        check_snapshots(records, rng.randint(1, 3))


def test_equal_members_of_several_objectives_keep_their_order() -> None:
    rng = random.Random(0)
    members = [
        Member(f"0-0-{number}", (), (float(rng.randrange(4)), float(rng.randrange(4))), "completed")
        for number in range(60)
    ]
    one, other = Population(best=8), Population(best=8)
    for number, member in enumerate(members):
        one.add(replace(member))
        if number == 30:
            other.restore(*map(copy.deepcopy, (one.best, one.recent, one.pruned, one.failures)))
        elif number > 30:
            other.add(replace(member))
    assert [member.id for member in one.best] == [member.id for member in other.best]


def _record(rng: random.Random, launch: int) -> Record:
    identity, at = f"{rng.randrange(2)}-{rng.randrange(2)}-{rng.randrange(80)}", launch + rng.random()
    status = rng.choice(["completed", "completed", "pruned", "failed", "interrupted"])
    own = {
        "reopened": rng.randrange(3) // 2,
        "promoted": rng.choice([0, 0, 3]),
        "params": MIXED.decode(MIXED.sample(rng)),
    }
    end = journals.finished(
        identity,
        rng.random() if status == "completed" else None,
        **{**own, "status": status, "started": at, "finished": at + rng.random()},
        metrics={"pruned_step": 3} if status == "pruned" else {},
        resting=status == "pruned" and rng.random() < 0.5,
    )
    begun = {key: end[key] for key in end if key not in ("started", "finished", "status", "objectives")}
    begun = {key: begun[key] for key in begun if key not in ("metrics", "error", "resting")}
    found = journals.record(rng.choice([end, {**begun, "type": "started", "time": at}]))
    assert isinstance(found, (Started, Finished))
    kind = rng.random()
    if kind < 0.1:
        return Migrated(
            id=identity, source=0, target=1, hop=rng.randrange(2), copy=rng.random() < 0.5, time=at
        )
    if kind < 0.2:
        return Reported(id=identity, island=rng.randrange(3), step=2, loss=rng.choice([None, 0.5]), time=at)
    return Reopened(id=identity, number=1, reason="sick", time=at) if kind < 0.25 else found
