"""The ledger on which launches agree: entries, rules, files, and campaigns of many simulated launches."""

from __future__ import annotations

import errno
import multiprocessing
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cases import cases
from msgspec import structs
from simulation import many_launches

from hpo.errors import CampaignError, LedgerDamaged
from hpo.journal.commands import Enqueue, Pause, Retry, Set, Stop, Unpause
from hpo.journal.machine import Machine
from hpo.journal.records import NotWhole, with_checksum
from hpo.ledger import entries
from hpo.ledger.entries import (
    Closed,
    Commanded,
    Completed,
    Drew,
    Go,
    Joined,
    LedgerEntry,
    Limits,
    Opened,
    UnitsReturned,
)
from hpo.ledger.fold import LedgerState
from hpo.ledger.ledger import Ledger
from hpo.ledger.store import MOST_BYTES, FileStore, Folder

GIVEN = {"time": 1.0, "by": "me"}
OPENED = Opened(
    limits=Limits(evaluations=10),
    islands=2,
    seed=0,
    points=({"x": 1.0}, {"x": 2.0}),
    workers=3,
    final=1,
    pool=("0-2-7",),
)
JOINED = [Joined(launch=1, workers=2, first_worker=3), Joined(launch=2, workers=1, first_worker=5)]
RETRY = Retry(statuses=("failed",), **GIVEN)
DONE = [Opened(limits=Limits(evaluations=1), islands=1, seed=0, final=1, workers=1)]
HELD = [OPENED, *JOINED, Drew(launch=1, fresh=2, ids=("0-2-7",), points=(0,)), Drew(launch=2, fresh=1)]


def state_after(*given: LedgerEntry) -> LedgerState:
    state = LedgerState()
    for number, entry in enumerate(given, 1):
        state.take(_numbered(entry, number))
    return state


def _numbered(entry: LedgerEntry, number: int) -> LedgerEntry:
    return structs.replace(entry, n=number)


def ledger_in(path: Path, folder: type[Folder] = Folder, **keywords: Any) -> Ledger:
    path.mkdir(exist_ok=True)
    return Ledger(FileStore(folder(path)), **keywords)


# --- entries --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "entry",
    [
        *HELD,
        UnitsReturned(launch=1, fresh=1, points=(0,)),
        Closed(
            launch=1, by=2, reason="lone surrogate?", lengths={3: (10, 20), 4: ()}, final=1, pool=("0-2-7",)
        ),
        Commanded(request=Set(evaluations=5, **GIVEN)),
        Commanded(request=Enqueue(points=[{"x": 1.0, "name": "ä"}], **GIVEN)),
        Commanded(request=Retry(statuses=("failed",), **GIVEN), pool=("0-2-1",)),
        Commanded(request=Go(**GIVEN)),
        Completed(final=3, reason="no configuration is left"),
    ],
    ids=lambda entry: type(entry).__name__,
)
def test_an_entry_is_read_as_it_was_written(entry: LedgerEntry) -> None:
    assert entries.decode(entries.encode(entry)) == entry


def test_damaged_lines_and_entries_of_a_later_version_are_told_apart() -> None:
    line = entries.encode(OPENED)
    for damaged in (b"", line[:-5], line.replace(b"10", b"11")):
        with pytest.raises(NotWhole):
            entries.decode(damaged)
    for body in (
        b'{"type":"later"',
        b'{"type":"drew","launch":1,"more":1',
        b'{"type":"command","request":{"name":"later","time":1,"by":"me"}',
        b'{"type":"drew","fresh":1',
    ):
        with pytest.raises(entries.UnknownEntry):
            entries.decode(with_checksum(body))


# --- rules ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "wrong", "words"),
    [
        ([], JOINED[0], "opened by its first"),
        ([OPENED], OPENED, "opened by its first"),
        ([], structs.replace(OPENED, pool=("0-2-7", "0-2-7")), "individuals twice"),
        ([], structs.replace(OPENED, pool=("0-3-0",)), "no worker has"),
        ([], structs.replace(OPENED, resting=("0-2-1", "0-2-2")), "more individuals rest"),
        ([OPENED], JOINED[1], "joins after launch 0"),
        ([OPENED], Joined(launch=1, workers=1, first_worker=2), "next free number"),
        (HELD, Drew(launch=3, fresh=1), "not open"),
        (HELD, Drew(launch=1, fresh=5), "5 units are drawn, and 4 are free"),
        (HELD, Drew(launch=1), "draws nothing"),
        (HELD, Drew(launch=2, ids=("0-2-7",)), "not to be drawn"),
        (HELD, Drew(launch=2, points=(0,)), "not to be drawn"),
        (HELD, Drew(launch=2, points=(1, 1)), "points twice"),
        ([*HELD, Commanded(request=Pause(**GIVEN))], Drew(launch=1, fresh=1), "paused"),
        (HELD, UnitsReturned(launch=1, fresh=3), "does not hold"),
        (HELD, UnitsReturned(launch=2, ids=("0-2-7",)), "does not hold"),
        (HELD, UnitsReturned(launch=1, points=(1,)), "does not hold the points"),
        (HELD, Closed(launch=1, by=3, reason=""), "is not open"),
        (HELD, Closed(launch=1, by=2, reason=""), "are missing"),
        (HELD, Closed(launch=1, by=2, reason="", pool=("0-2-7", "0-5-0")), "neither drew nor bred"),
        (HELD, Closed(launch=1, by=2, reason="", pool=("0-2-7",), points=(1,)), "points that it leaves"),
        (HELD, Closed(launch=1, by=2, reason="", pool=("0-2-7",), lengths={5: (1,)}), "other launches"),
        (HELD, Closed(launch=1, by=2, reason="", pool=("0-2-7",)), "points that it drew are missing"),
        (HELD, Closed(launch=1, by=2, reason="", pool=("0-2-7", "0-2-7")), "individuals twice"),
        (HELD, Closed(launch=1, by=2, reason="", pool=("0-2-7",), in_place=("0-2-7",)), "may still write"),
        (
            HELD,
            Closed(launch=1, by=1, reason="", pool=("0-2-7",), in_place=("0-3-0",)),
            "neither in the pool",
        ),
        (
            HELD,
            Closed(launch=1, by=2, reason="", pool=("0-2-7",), resting=("0-3-0",)),
            "more individuals rest",
        ),
        (
            HELD,
            Closed(launch=1, by=2, reason="", final=1, pool=("0-2-7",), resting=("0-2-7",)),
            "individuals twice",
        ),
        (HELD, Commanded(request=RETRY, pool=("0-2-7",)), "has not ended in a closed launch"),
        (HELD, Commanded(request=RETRY, pool=("0-3-0",)), "has not ended in a closed launch"),
        ([OPENED], Commanded(request=RETRY, pool=("0-2-7",)), "has not ended in a closed launch"),
        (HELD, Commanded(request=RETRY, again=("0-2-0",)), "has not ended in an open launch"),
        (HELD, Commanded(request=RETRY, pool=("0-9-0",)), "no worker"),
        (HELD, Commanded(request=RETRY, pool=("0-2-0", "0-2-1")), "1 have ended"),
        (HELD, Commanded(request=Stop(**GIVEN), pool=("0-2-0",)), "only `hpo retry`"),
        (HELD, Completed(final=0), "0 individuals have ended"),
        (HELD, Completed(final=1), "hold 5 units"),
        ([OPENED], Completed(final=1), "9 units of the budget are free"),
        ([*DONE, Completed(final=1)], Completed(final=1), "completed already"),
    ],
)
def test_an_entry_that_contradicts_those_before_it_is_refused_and_changes_nothing(
    given: list[LedgerEntry], wrong: LedgerEntry, words: str
) -> None:
    state = state_after(*given)
    before = repr(state)
    with pytest.raises(LedgerDamaged, match=words):
        state.take(_numbered(wrong, len(given) + 1))
    assert repr(state) == before


def test_an_entry_out_of_its_order_is_refused() -> None:
    with pytest.raises(LedgerDamaged, match="entry 9 of the ledger follows entry 5"):
        state_after(*HELD).take(_numbered(UnitsReturned(launch=1, fresh=1), 9))


def test_a_launch_that_is_closed_gives_back_what_it_held() -> None:
    state = state_after(
        *HELD, Closed(launch=1, by=2, reason="", final=1, pool=("0-2-7", "1-4-0"), resting=("0-3-0",))
    )
    assert (state.final, state.held, state.free) == (2, 1, 7)
    assert state.pool == {"0-2-7": False, "1-4-0": False} and state.resting == {"0-3-0": False}
    assert list(state.waiting) == [1]  # point 0 was begun, as one of the two
    again = state_after(
        *HELD, Closed(launch=1, by=1, reason="", pool=("0-2-7", "0-3-0"), points=(0,), in_place=("0-3-0",))
    )
    assert again.pool == {"0-2-7": False, "0-3-0": True} and list(again.waiting) == [0, 1]


def test_a_resting_individual_that_goes_on_costs_no_unit_of_the_budget() -> None:
    rests = Closed(launch=1, by=1, reason="", final=2, resting=("0-3-0",), in_place=("0-3-0",))
    state = state_after(OPENED, *JOINED, Drew(launch=1, fresh=9), rests, Drew(launch=2, fresh=7))
    assert (state.free, state.final) == (0, 3)
    state.take(_numbered(Drew(launch=2, ids=("0-3-0",)), 7))
    assert (state.free, state.final, state.held) == (0, 2, 8)
    state.take(_numbered(UnitsReturned(launch=2, ids=("0-3-0",)), 8))
    assert (state.free, state.final, state.resting) == (0, 3, {"0-3-0": True})


def test_a_returned_individual_is_gone_on_with_as_before_it_was_drawn() -> None:
    state = state_after(*HELD, UnitsReturned(launch=1, fresh=1, ids=("0-2-7",), points=(0,)))
    assert (state.pool, list(state.waiting), state.held) == ({"0-2-7": False}, [0, 1], 2)


def test_retried_individuals_are_drawn_again_or_evaluated_again_where_they_ended() -> None:
    resting = Opened(
        limits=Limits(evaluations=9), islands=1, seed=0, final=2, workers=3, resting=("0-2-1",), launches=4
    )
    joined = Joined(launch=5, workers=1, first_worker=3)
    retry = Commanded(request=RETRY, pool=("0-2-0", "0-2-1"), again=("0-3-0",))
    state = state_after(resting, joined, Drew(launch=5, fresh=2), retry)
    assert (state.final, state.pool, state.resting) == (0, {"0-2-0": False, "0-2-1": False}, {})
    assert state.open[5].again == {"0-3-0": 4} and state.commands == [_numbered(retry, 4)]


def test_a_stop_holds_for_what_was_submitted_before_it_until_a_person_starts_the_campaign() -> None:
    stop, go = Commanded(request=Stop(**GIVEN)), Commanded(request=Go(**GIVEN))
    state = state_after(OPENED, JOINED[0], stop)
    assert state.keeps_from_joining(2) and not state.keeps_from_joining(3) and state.is_stopped(1)
    state = state_after(OPENED, JOINED[0], stop, go, JOINED[1])
    assert not state.keeps_from_joining(0) and not state.keeps_from_joining(None)
    assert state.is_stopped(1) and not state.is_stopped(2), "it ends, though it may see both at once"


def test_what_is_submitted_after_a_stop_works_beside_what_ends_for_it() -> None:
    stop = Commanded(request=Stop(**GIVEN))
    state = state_after(OPENED, JOINED[0], stop)
    assert state.is_stopping
    state = state_after(OPENED, JOINED[0], stop, structs.replace(JOINED[1], submitted=3))
    assert state.stop_pending and not state.is_stopping
    assert state.is_stopped(1) and not state.is_stopped(2) and state.keeps_from_joining(2)


def test_a_pause_ends_with_unpause() -> None:
    paused = [OPENED, Commanded(request=Pause(**GIVEN))]
    assert not state_after(*paused).may_draw()
    assert state_after(*paused, Commanded(request=Unpause(**GIVEN))).may_draw()


def test_a_completed_campaign_goes_on_when_a_command_makes_room() -> None:
    done = [*DONE, Completed(final=1)]
    assert not state_after(*done, Commanded(request=Set(deadline_s=9.0, **GIVEN))).may_draw()
    state = state_after(*done, Commanded(request=Set(evaluations=3, **GIVEN)))
    assert state.may_draw() and state.free == 2
    state = state_after(*done, Commanded(request=RETRY, pool=("0-0-0",)))
    assert state.may_draw() and state.free == 1 and list(state.pool) == ["0-0-0"]


def test_a_campaign_without_a_budget_is_never_used_up() -> None:
    state = state_after(
        Opened(limits=Limits(evaluations=None), islands=1, seed=0),
        Joined(launch=1, workers=1, first_worker=0),
    )
    state.take(_numbered(Drew(launch=1, fresh=10**9), 3))
    assert state.free > 10**12


# --- files ----------------------------------------------------------------------------------------------------------


def test_an_entry_is_decided_again_where_another_was_faster(tmp_path: Path) -> None:
    slow, fast = ledger_in(tmp_path / "ledger"), ledger_in(tmp_path / "ledger")
    slow.append(lambda state: OPENED)
    fast.read_on()

    def join(state: LedgerState) -> LedgerEntry:
        if state.launches == 0:
            fast.append(lambda state: JOINED[0])
        return Joined(launch=state.launches + 1, workers=1, first_worker=state.workers)

    entry = slow.append(join)
    assert isinstance(entry, Joined) and (entry.n, entry.launch, entry.first_worker) == (3, 2, 5)


@pytest.mark.parametrize("code", [errno.EEXIST, errno.EIO])
def test_an_entry_whose_confirmation_was_lost_is_there_once(tmp_path: Path, code: int) -> None:
    class Loses(Folder):
        def link(self, name: str, other: str) -> None:
            super().link(name, other)
            raise OSError(code, "the answer was lost")

    ledger = ledger_in(tmp_path / "ledger", Loses)
    ledger.append(lambda state: OPENED)
    ledger.append(lambda state: JOINED[0])
    assert ledger.state.launches == 1
    assert sorted(os.listdir(tmp_path / "ledger")) == ["00000001", "00000002"]


def test_others_that_are_always_faster_end_the_wait(tmp_path: Path) -> None:
    class Late(FileStore):
        def append(self, after: int, line: bytes) -> bool:
            return False

    class Clock(Machine):
        now = 0.0

        def monotonic(self) -> float:
            return self.now

        def sleep(self, seconds: float) -> None:
            self.now += 1.0

    (tmp_path / "ledger").mkdir()
    ledger = Ledger(Late(Folder(tmp_path / "ledger")), machine=Clock())
    with pytest.raises(TimeoutError, match="120 seconds"):
        ledger.append(lambda state: OPENED)


def test_damage_and_a_storage_that_lost_an_entry_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "ledger"
    ledger = ledger_in(folder)
    ledger.append(lambda state: OPENED)
    ledger.append(lambda state: JOINED[0])
    whole = (folder / "00000002").read_bytes()
    (folder / "00000002").write_bytes(whole[:-7])
    with pytest.raises(LedgerDamaged, match="entry 2 of the ledger is damaged"):
        ledger_in(folder).read_on()
    (folder / "00000002").write_bytes(whole)
    (folder / "00000001").write_bytes(entries.encode(_numbered(OPENED, 1)))
    with pytest.raises(LedgerDamaged, match="lost or replaced"):
        ledger_in(folder).read_on()
    (folder / "00000001").write_bytes(with_checksum(b'{"type":"later"'))
    with pytest.raises(CampaignError, match="later version"):
        ledger_in(folder).read_on()


def test_a_file_system_without_hard_links_is_refused(tmp_path: Path) -> None:
    class NoLinks(Folder):
        def link(self, name: str, other: str) -> None:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    with pytest.raises(CampaignError, match="hard links"):
        ledger_in(tmp_path / "ledger", NoLinks).append(lambda state: OPENED)
    assert os.listdir(tmp_path / "ledger") == []


def test_who_may_read_the_folder_may_read_the_entries_whatever_the_writer_s_umask(tmp_path: Path) -> None:
    former = os.umask(0o077)
    try:
        for mode, expected in ((0o770, 0o640), (0o755, 0o644), (0o700, 0o600)):
            folder = tmp_path / f"{mode:o}"
            folder.mkdir()
            folder.chmod(mode)
            Ledger(FileStore(Folder(folder))).append(lambda state: OPENED)
            assert (folder / "00000001").stat().st_mode & 0o777 == expected
    finally:
        os.umask(former)


def test_an_entry_that_readers_would_not_take_is_not_appended(tmp_path: Path) -> None:
    ledger = ledger_in(tmp_path / "ledger")
    for wrong in (
        structs.replace(OPENED, limits=Limits(evaluations=-1)),
        structs.replace(OPENED, code="none"),
    ):
        with pytest.raises(ValueError, match=r"Expected|Invalid"):
            ledger.append(lambda state, wrong=wrong: wrong)  # type: ignore[misc]
    strange = structs.replace(OPENED, points=({"x": "\ud800"},))
    assert ledger.append(lambda state: strange) == ledger_in(tmp_path / "ledger").read_on()[0]
    long = Commanded(request=Enqueue(points=[{"x": "a" * MOST_BYTES}], **GIVEN))
    with pytest.raises(ValueError, match="longer than"):
        ledger.append(lambda state: long)
    assert os.listdir(tmp_path / "ledger") == ["00000001"]


def test_an_entry_is_on_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    class Recording(Folder):
        def link(self, name: str, other: str) -> None:
            done.append("link")
            super().link(name, other)

    fsync = os.fsync

    def synced(handle: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", synced)
    ledger_in(tmp_path / "ledger", Recording).append(lambda state: OPENED)
    assert done == ["file", "link", "folder"]


def test_a_folder_that_is_gone_is_no_empty_ledger(tmp_path: Path) -> None:
    ledger = ledger_in(tmp_path / "ledger")
    ledger.append(lambda state: OPENED)
    (tmp_path / "ledger").rename(tmp_path / "away")
    with pytest.raises(OSError, match="the folder is gone"):
        ledger.read_on()


def test_reading_goes_on_where_it_failed(tmp_path: Path) -> None:
    class Fails(Folder):
        reads = 0

        def read(self, name: str) -> bytes:
            self.reads += 1
            if self.reads % 3 == 0:
                raise OSError(errno.ESTALE, "Stale file handle")
            return super().read(name)

    ledger_in(tmp_path / "ledger").append(lambda state: OPENED)
    _join_often(str(tmp_path / "ledger"), 5)
    reader = ledger_in(tmp_path / "ledger", Fails)
    for _ in range(3):
        with suppress(OSError):
            reader.read_on()
    assert reader.state.entries == 6


@pytest.mark.parametrize("what", ["link", "pipe", "directory"])
def test_what_is_no_plain_file_is_refused_at_once(tmp_path: Path, what: str) -> None:
    ledger = ledger_in(tmp_path / "ledger")
    place = tmp_path / "ledger" / "00000001"
    if what == "link":
        ledger_in(tmp_path / "other").append(lambda state: OPENED)
        place.symlink_to(tmp_path / "other" / "00000001")
    elif what == "pipe":
        os.mkfifo(place)
    else:
        place.mkdir()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(CampaignError, match="00000001 is no entry of a ledger"):
            ledger.append(lambda state: OPENED)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_folder_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "ledger").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotADirectoryError):
        ledger_in(tmp_path / "ledger").append(lambda state: OPENED, timeout_s=0.0)
    assert not any((tmp_path / "elsewhere").iterdir())


def _join_often(path: str, count: int) -> None:
    ledger = ledger_in(Path(path))
    for _ in range(count):
        ledger.append(lambda state: Joined(launch=state.launches + 1, workers=1, first_worker=state.workers))


def test_processes_that_append_at_the_same_moment_lose_nothing(tmp_path: Path) -> None:
    ledger = ledger_in(tmp_path / "ledger")
    ledger.append(lambda state: Opened(limits=Limits(evaluations=10), islands=1, seed=0))
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_join_often, args=(str(tmp_path / "ledger"), 15)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    ledger.read_on()
    assert (ledger.state.entries, ledger.state.launches, ledger.state.workers) == (61, 60, 60)


# --- many launches --------------------------------------------------------------------------------------------------

CHUNK = 100


@pytest.mark.parametrize("chunk", cases(range(3), range(3, 100)))
def test_whatever_happens_launches_that_share_a_campaign_meet_its_budget_exactly(chunk: int) -> None:
    wrong = {seed: many_launches.run(seed) for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK)}
    assert {seed: str(error) for seed, error in wrong.items() if error} == {}


def test_a_storage_that_loses_confirmed_entries_is_noticed_before_anything_counts_twice() -> None:
    found = [many_launches.run(seed, loses_entries=True) for seed in range(100)]
    assert not any(isinstance(error, many_launches.Broken) for error in found)
    assert sum("lost or replaced" in str(error) for error in found) > 30
