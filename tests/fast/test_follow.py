"""Whoever follows a campaign knows at every moment what reading it anew would find."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import journals
import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st
from journals import T

from hpo.errors import CampaignError, JournalDamaged
from hpo.journal.curves import CurveWriter, curve_path
from hpo.journal.files import journal_part, journal_path
from hpo.journal.records import Fenced, encode
from hpo.ledger.entries import Closed, Joined, Limits, Opened
from hpo.ledger.opening import open_ledger
from hpo.results import curves, follow
from hpo.results.follow import CurveFollower, Follower, Poll
from hpo.results.record import load


def _everything(follower: Follower | CurveFollower) -> list[Poll]:
    found = [follower.poll()]
    while found[-1].more:
        found.append(follower.poll())
    return found


# Few individuals and workers, so that the same one is met in several journals, in every order.
_number = st.integers(0, 1)
_time = st.integers(0, 9).map(lambda seconds: T + seconds)
_run = {"retries": _number, "promoted": _number, "reopened": _number}


def _record(kind: str, **fields: object) -> st.SearchStrategy[dict[str, Any]]:
    drawn = {
        name: one if isinstance(one, st.SearchStrategy) else st.just(one) for name, one in fields.items()
    }
    return st.fixed_dictionaries({"type": st.just(kind), "time": _time, **drawn})


def _evaluation(kind: str, **fields: object) -> st.SearchStrategy[dict[str, Any]]:
    def complete(table: dict[str, Any]) -> dict[str, Any]:
        place = {"island": 0, "worker": 1, "sequence": table.pop("individual")}
        # One run of an individual has one origin.
        origin = {"operator": f"run {table['promoted']}", "parents": [], "params": {"lr": 0.1}}
        return {**table, **place, "id": f"0-1-{place['sequence']}", **origin}

    return _record(kind, individual=st.integers(0, 2), **_run, **fields).map(complete)


_statuses = st.sampled_from(["completed", "failed", "crashed", "pruned", "interrupted", "lost"])
_of_workers = st.one_of(
    _evaluation("started"),
    _evaluation(
        "finished", started=None, finished=_time, status=_statuses, metrics={}, error=None,
        objectives=st.sampled_from([None, {"value": 0.5}]),
    ),
    _record("migrated", id="0-1-0", source=0, target=1, hop=_number, copy=False),
)  # fmt: skip
_of_leaders = st.one_of(
    _record("reported", id="0-1-0", island=0, step=_number, loss=0.5),
    _record("note", id="0-1-0", status="crashed", error=None),
)
_of_rank_0 = st.one_of(
    _record("reopened", id=st.sampled_from(["0-1-0", "0-1-1"]), number=st.integers(1, 2), reason=""),
    _record("launched", evaluations=st.integers(1, 9), deadline_s=None, islands=1, workers=3),
    _record("left", island=_number, worker=_number, reason="it died"),
    _record(
        "command", id=st.sampled_from([f"{n:020d}-{n:016x}" for n in (1, 2)]), arguments={}, by="a@b",
        name=st.sampled_from(["pause", "unpause"]), given=_time,
    ),
    _record(
        "known", number=_number.map(lambda n: n + 1), params={"lr": 0.1}, status="completed", source="x", origin="1",
        objectives=st.sampled_from([{"value": 1.0}, {"value": 2.0}]),
    ),
    _record("ended", reason="done", exit=_number),
)  # fmt: skip
_place = st.tuples(st.integers(1, 2), st.integers(0, 2))  # launch, worker
_steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), _place, st.one_of(_of_workers, _of_leaders)),
        st.tuples(st.just("append"), st.tuples(st.integers(1, 2), st.just(0)), _of_rank_0),
        st.tuples(st.just("tear"), _place, _of_workers),
        st.tuples(st.just("give_up"), _place, st.booleans()),
        st.tuples(st.just("close"), _place, st.booleans()),
        st.tuples(st.just("poll"), st.none(), st.none()),
    ),
    max_size=40,
)


class _Writers:
    """Two workers in each of two launches, which write as ``JournalWriter`` does: behind a torn line they go on in the
    next part."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.parts: dict[tuple[int, int], int] = {}
        self.ledger = open_ledger(directory, Opened(limits=Limits(), islands=1, seed=0))
        for launch in (1, 2):
            first = 2 * launch - 2
            self.ledger.append(
                lambda state, launch=launch, first=first: Joined(launch=launch, workers=2, first_worker=first)
            )  # type: ignore[misc]

    def path(self, place: tuple[int, int]) -> Path:
        launch, worker = place
        worker += 2 * launch - 2
        first = journal_path(self.directory, launch=launch, island=0, worker=worker)
        path = journal_part(first, self.parts.setdefault(place, 0))
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(journals.line(journals.header(launch, worker, T)))
        return path

    def append(self, place: tuple[int, int], table: dict[str, Any]) -> None:
        with open(self.path(place), "ab") as file:
            file.write(journals.line(table))

    def tear(self, place: tuple[int, int], table: dict[str, Any]) -> None:
        with open(self.path(place), "ab") as file:
            file.write(journals.line(table)[:-5])
        self.parts[place] += 1

    def lengths(self, launch: int, worker: int, late: bool) -> tuple[int, ...]:
        """Bytes of the whole lines of each part. ``late``: the last line of the last part came too late."""
        found = []
        for part in range(self.parts.get((launch, worker), -1) + 1):
            first = journal_path(self.directory, launch=launch, island=0, worker=worker + 2 * launch - 2)
            path = journal_part(first, part)
            lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
            whole = [line for line in lines if line.endswith(b"\n")]
            found.append(sum(map(len, whole[:-1] if late and len(whole) > 1 else whole)))
        return tuple(found)

    def give_up(self, place: tuple[int, int], late: bool) -> None:
        launch, worker = place
        self.path((launch, 0))
        number = worker + 2 * launch - 2
        fenced = Fenced(worker=number, lengths=self.lengths(launch, worker, late), time=T)
        if worker:
            with open(self.path((launch, 0)), "ab") as file:
                file.write(encode(fenced))

    def close(self, place: tuple[int, int], late: bool) -> None:
        launch = place[0]
        lengths = {worker + 2 * launch - 2: self.lengths(launch, worker, late) for worker in (0, 1)}
        closed = Closed(launch=launch, by=0, reason="", lengths=lengths)
        self.ledger.append(lambda state: closed if launch in state.open else None)


@given(steps=_steps, most=st.sampled_from([1, 700, 1 << 20]))
def test_a_follower_knows_what_reading_anew_finds(steps: list[tuple[str, Any, Any]], most: int) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(follow, "_BYTES_A_POLL", most)
        home = journals.campaign(Path(folder))
        writers, follower = _Writers(home), Follower(home)
        for action, place, argument in [*steps, ("poll", None, None)]:
            if action != "poll":
                getattr(writers, action)(place, argument)
                continue
            _everything(follower)
            record, anew = follower.record(), load(home)
            assert record == anew
            assert (record.parts, record.hosts) == (anew.parts, anew.hosts)
            assert not follower.poll().new


def test_where_nothing_changed_no_journal_of_an_earlier_launch_is_opened(tmp_path, monkeypatch):
    for launch in (1, 2):
        journals.write(journals.campaign(tmp_path), [journals.finished(f"0-0-{launch}", 0.5)], launch=launch)
    follower = Follower(tmp_path)
    follower.poll()
    opened: list[str] = []
    before = follow.opened
    monkeypatch.setattr(follow, "opened", lambda path: (opened.append(path.name), before(path))[1])
    assert not follower.poll().new
    assert opened == ["0002-i000-w0000.jsonl"]


def test_damage_is_said_until_it_is_repaired_and_costs_no_record(tmp_path: Path) -> None:
    path = journals.write(journals.campaign(tmp_path), [journals.finished("0-0-0", 0.5)])
    follower = Follower(tmp_path)
    follower.poll()
    whole = path.read_bytes() + journals.line(journals.finished("0-0-1", 0.5))
    path.write_bytes(whole + b"nonsense\n" + journals.line(journals.finished("0-0-2", 0.5)))
    for _ in range(2):
        with pytest.raises(JournalDamaged, match="line 4"):
            follower.poll()
    path.write_bytes(whole + journals.line(journals.finished("0-0-2", 0.5)))
    assert follower.poll().new
    assert follower.record() == load(tmp_path)


def test_a_directory_that_is_no_campaign_or_none_any_more_is_said(tmp_path: Path) -> None:
    with pytest.raises(CampaignError, match="holds no campaign"):
        Follower(tmp_path).poll()
    home = tmp_path / "campaign"
    journals.write(journals.campaign(home), [journals.finished("0-0-0", 0.5)])
    follower = Follower(home)
    follower.poll()
    shutil.rmtree(home)
    for ask in (follower.poll, follower.poll, follower.record):
        with pytest.raises(CampaignError, match="holds no campaign"):
            ask()


def test_curves_come_with_the_records_and_make_the_same_table(tmp_path, monkeypatch):
    monkeypatch.setattr(follow, "_BYTES_A_POLL", 1)
    journals.write(journals.campaign(tmp_path), [journals.finished("0-0-0", 0.5)])
    follower = CurveFollower(tmp_path)
    assert list(follower.frame().columns) == ["id", "step", "value", "time"]
    for launch, identity in ((1, "0-0-0"), (2, "0-0-1"), (1, "0-0-2")):
        writer = CurveWriter(curve_path(tmp_path, launch=launch, island=0, worker=0), 0.0)
        writer.begin(identity, resumed=False)
        for step in (1, 2):
            writer.add(step, 0.5 / step, {"loss": step})
            with open(curve_path(tmp_path, launch=launch, island=0, worker=0), "ab") as file:
                file.write(b"torn" if step == 2 else b"")
            assert any(found.new for found in _everything(follower))
        writer.close()
        pandas.testing.assert_frame_equal(follower.frame(), curves.load(tmp_path), check_like=True)
    assert not follower.poll().new
