"""The lock stays alive whatever rank 0 does and the storage says, ages by the file server's clock, and is waited for
where its holder may have died."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from individuals import make_finished, make_started

import hpo
from hpo.errors import EXIT_RESUMABLE, CampaignError, LockLost
from hpo.journal import lock as locks
from hpo.journal import machine
from hpo.journal.files import journal_files
from hpo.journal.heartbeat import Heartbeat
from hpo.journal.lock import STALE_S, acquire, holder
from hpo.journal.records import encode


class Clock:
    """In the place of the module ``time``: ``monotonic`` goes on by what is slept only, and ``time`` is ``skew_s`` off
    the clock that stamps files."""

    def __init__(self) -> None:
        self.skew_s = 0.0
        self.slept_s = 0.0
        self.on_sleep: Callable[[], None] = lambda: None

    def time(self) -> float:
        return time.time() + self.skew_s

    def monotonic(self) -> float:
        return 1000.0 + self.slept_s

    def sleep(self, seconds: float) -> None:
        assert self.slept_s < 10 * STALE_S, "this waits for ever"
        self.slept_s += seconds
        self.on_sleep()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(machine, "time", clock)
    return clock


def elsewhere(home: Path, age_s: float = 0.0, **fields: object) -> None:
    """A lock that a process on another machine refreshed ``age_s`` ago."""
    lock = acquire(home)
    changed = {
        **json.loads(lock.path.read_text()),
        "machine": "elsewhere",
        "host": "n17",
        "token": "t",
        **fields,
    }
    lock.path.write_text(json.dumps(changed))
    stamp(home, -age_s)


def stamp(home: Path, seconds: float) -> None:
    at = time.time() + seconds
    os.utime(home / "lock", (at, at))


# --- the heartbeat ----------------------------------------------------------------------------------------------------


def test_what_one_function_raises_keeps_no_other_from_being_called(
    capsys: pytest.CaptureFixture[str],
) -> None:
    called: list[str] = []

    def fails() -> None:
        called.append("fails")
        raise RuntimeError("no such\nthing")

    heartbeat = Heartbeat(60.0)
    heartbeat.register(fails)
    heartbeat.register(lambda: called.append("works"))
    heartbeat.beat()
    heartbeat.beat()
    assert called == ["fails", "works"] * 2
    (line,) = capsys.readouterr().err.splitlines()  # once, and in one line
    assert "fails failed (RuntimeError: no such\\nthing)" in line


def test_an_evaluation_inside_rank_0_does_not_let_the_lock_grow_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does anything else that its event loop is busy with."""
    monkeypatch.setattr(locks, "REFRESH_S", 0.01)
    home = tmp_path / "run"

    def evaluate(trial: hpo.Trial) -> float:
        stamp(home, -3600)
        end = time.monotonic() + 20
        while (home / "lock").stat().st_mtime < time.time() - STALE_S:
            assert time.monotonic() < end, "nothing refreshes the lock"
            time.sleep(0.002)
        return 0.0

    task = hpo.Task(hpo.SearchSpace(x=hpo.Float(0, 1)), evaluate)
    result = hpo.Campaign(task, directory=home, evaluations=2, isolation="inline", kind="random").run()
    assert [one.status for one in result.individuals] == ["completed"] * 2
    assert not (home / "lock").exists()


def test_a_campaign_that_lost_its_lock_ends_and_can_go_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "REFRESH_S", 0.01)
    home = tmp_path / "run"

    def evaluate(trial: hpo.Trial) -> float:
        if trial.id == "0-0-0":
            changed = {**json.loads((home / "lock").read_text()), "token": "t", "host": "n17"}
            (home / "lock").write_text(json.dumps(changed))
        return 0.0

    task = hpo.Task(hpo.SearchSpace(x=hpo.Float(0, 1)), evaluate)
    with pytest.raises(LockLost, match="n17") as caught:
        hpo.Campaign(task, directory=home, evaluations=10_000, isolation="inline", kind="random").run()
    assert caught.value.exit_code == EXIT_RESUMABLE
    assert json.loads((home / "lock").read_text())["token"] == "t"  # it is the other's now


# --- a storage that fails for a while ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "call"), [(errno.ESTALE, "utime"), (errno.EIO, "read")])
def test_errors_that_pass_are_borne_for_minutes(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, number: int, call: str
) -> None:
    lock = acquire(tmp_path)

    def fails(*arguments: object) -> bytes:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        if call == "utime":
            patched.setattr(os, "utime", fails)
        else:
            patched.setattr(Path, "read_bytes", fails)
        for _ in range(20):
            clock.sleep(5.0)
            lock.refresh()
            lock.check()
    stamp(tmp_path, -3600)
    lock.refresh()
    lock.check()
    assert holder(tmp_path) == lock.holder
    assert (tmp_path / "lock").stat().st_mtime > time.time() - STALE_S


def test_errors_that_stay_end_the_campaign_so_that_it_can_go_on(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = acquire(tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / "gone")
    clock.sleep(119.0)
    lock.refresh()
    lock.check()
    clock.sleep(2.0)
    lock.refresh()
    with pytest.raises(LockLost, match="121 s") as end:
        lock.check()
    assert end.value.exit_code == EXIT_RESUMABLE


def test_a_lock_that_was_removed_by_hand_is_written_again(tmp_path: Path, clock: Clock) -> None:
    lock = acquire(tmp_path)
    (tmp_path / "campaign.json").touch()
    lock.path.unlink()
    lock.refresh()
    lock.check()
    assert holder(tmp_path) == lock.holder
    # After a silence, another launch may have come and gone meanwhile.
    clock.sleep(STALE_S)
    lock.path.unlink()
    lock.refresh()
    with pytest.raises(LockLost):
        lock.check()
    assert not lock.path.exists()


def test_a_directory_that_is_gone_is_waited_for_and_not_taken_for_what_was_made_in_its_place(
    tmp_path: Path, clock: Clock
) -> None:
    home, gone = tmp_path / "run", tmp_path / "gone"
    lock = acquire(home)
    (home / "campaign.json").touch()
    home.rename(gone)
    (home / "evaluations").mkdir(parents=True)  # as an evaluation that begins does
    clock.sleep(90.0)
    lock.refresh()
    lock.check()
    assert not lock.path.exists()
    home.rename(tmp_path / "remains")
    gone.rename(home)
    lock.refresh()
    clock.sleep(90.0)
    lock.refresh()
    lock.check()


# --- whose clock ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("skew_s", [-3600.0, 3600.0])
def test_ages_are_those_of_the_clock_that_stamps_the_files(
    tmp_path: Path, clock: Clock, skew_s: float
) -> None:
    """Whatever this machine's own clock says, as beside a file server that is an hour off."""
    clock.skew_s = skew_s
    elsewhere(tmp_path, age_s=STALE_S - 20)
    assert holder(tmp_path) is not None
    with pytest.raises(CampaignError):
        acquire(tmp_path)
    stamp(tmp_path, -STALE_S - 20)
    assert holder(tmp_path) is None
    acquire(tmp_path)
    assert os.listdir(tmp_path) == ["lock"]


# --- waiting ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("age_s", [0, -3600])
def test_a_holder_elsewhere_that_died_is_waited_for(tmp_path: Path, clock: Clock, age_s: float) -> None:
    """Also where its stamp is in the future."""
    elsewhere(tmp_path, age_s=age_s)
    said: list[str] = []
    lock = acquire(tmp_path, waiting=said.append)
    assert holder(tmp_path) == lock.holder
    assert STALE_S <= clock.slept_s < STALE_S + 2
    (sentence,) = said
    assert "n17" in sentence and f"{STALE_S:.0f} s" in sentence


def test_a_holder_elsewhere_that_lives_is_left_in_peace_as_soon_as_it_shows(
    tmp_path: Path, clock: Clock
) -> None:
    elsewhere(tmp_path, age_s=30)
    clock.on_sleep = lambda: stamp(tmp_path, 0) if clock.slept_s >= 4 else None
    with pytest.raises(CampaignError) as caught:
        acquire(tmp_path, waiting=lambda sentence: None)
    assert clock.slept_s == 4 and caught.value.exit_code == 1


def test_the_next_launch_of_a_supervisor_takes_the_lock_of_its_last_one_at_once(
    tmp_path: Path, clock: Clock
) -> None:
    """Rank 0's node died, and the next rank 0 is on another one."""
    acquire(tmp_path, supervisor="one")
    changed = {**json.loads((tmp_path / "lock").read_text()), "machine": "elsewhere"}
    (tmp_path / "lock").write_text(json.dumps(changed))
    for other in None, "two":
        with pytest.raises(CampaignError):
            acquire(tmp_path, supervisor=other)
    lock = acquire(tmp_path, supervisor="one", waiting=lambda sentence: pytest.fail(sentence))
    assert holder(tmp_path) == lock.holder and clock.slept_s == 0


# --- a launch that was silent, and goes on ----------------------------------------------------------------------------


def test_what_a_launch_still_writes_whose_lock_was_taken_over_does_not_count(tmp_path: Path) -> None:
    home = tmp_path / "run"
    directories: list[Path] = []

    def evaluate(trial: hpo.Trial) -> float:
        directories.append(trial.directory)
        return float(trial.params["x"])

    task = hpo.Task(hpo.SearchSpace(x=hpo.Float(0, 1)), evaluate)

    def run(evaluations: int) -> hpo.Result:
        return hpo.Campaign(
            task, directory=home, evaluations=evaluations, isolation="inline", kind="random"
        ).run()

    run(3)
    (journal,) = journal_files(home, 1)
    with open(journal, "ab", buffering=0) as silent:
        silent.write(encode(make_started(id="0-0-7", operator="random", params={"x": 0.5}, time=1.0)))
        elsewhere(home, age_s=STALE_S + 20)
        assert len(run(6).individuals) == 6
        late = {"started": 1.0, "finished": 2.0, "status": "completed", "objectives": {"value": 0.5}}
        silent.write(encode(make_finished(id="0-0-99", operator="random", params={"x": 0.6}, **late)))
    individuals = hpo.Result(home).individuals
    assert len(individuals) == 6 and {one.status for one in individuals} == {"completed"}
    # The one that it had begun may still be at work in its directory.
    assert [one.name for one in directories if one.name.startswith("0-0-7")] == ["0-0-7.attempt-2"]


# --- who was silent ---------------------------------------------------------------------------------------------------


def test_that_a_silent_launch_may_go_on_is_known_until_it_is_on_record(tmp_path: Path) -> None:
    """Whoever had the lock meanwhile: `hpo run` tries it before its ranks do."""
    elsewhere(tmp_path, STALE_S + 1)
    for _ in range(2):
        with acquire(tmp_path) as tried:
            assert tried.contested
        assert holder(tmp_path) is None
    died = acquire(tmp_path)
    died.path.write_text(json.dumps({**json.loads(died.path.read_text()), "process_started": 1}))
    lock = acquire(tmp_path)
    assert lock.contested
    lock.settle()
    lock.refresh()
    lock.check()
    assert not lock.contested and holder(tmp_path) == lock.holder
    lock.release()
    assert not lock.path.exists()
    assert not acquire(tmp_path).contested


@pytest.mark.parametrize("released", [False, True])
@pytest.mark.parametrize(
    ("others", "contested"),
    [([], False), ([("here", 9)], False), ([("here", 8)], True), ([("here", 9), ("elsewhere", 9)], True)],
)
def test_a_lock_is_contested_unless_all_ranks_of_its_launch_are_seen_to_have_ended(
    tmp_path: Path, others: list[tuple[str, int]], contested: bool, released: bool
) -> None:
    """Wherever rank 0 ran: of two hosts one may be silent. ``released``: rank 0 ended, and could not say of all."""

    class Host(machine.Machine):
        identity = "here"
        running: frozenset[int] = frozenset({7, 8})
        pid = 7

        def is_running(self, pid: int, started: int | None) -> bool:
            return pid in self.running

    host = Host()
    first = acquire(tmp_path, supervisor="one", machine=host)
    first.name_ranks(others)
    if released:
        first.release()
    host.running = frozenset({8})
    second = acquire(tmp_path, supervisor="one", machine=host)
    assert second.contested == contested
    second.settle()
    second.all_ended = True
    second.release()
    assert not (tmp_path / "lock").exists()


def test_a_silence_counts_from_when_the_last_call_began(tmp_path: Path, clock: Clock) -> None:
    """The server may have stamped the lock then, and answered late."""

    class Slow(machine.Machine):
        def touch(self, path: Path) -> None:
            super().touch(path)
            clock.sleep(60.0)

    lock = acquire(tmp_path, machine=Slow())
    lock.refresh()
    clock.sleep(locks._PATIENCE_S - 60.0)
    with pytest.raises(LockLost, match="could not be refreshed for 120 s"):
        lock._machine = machine.Machine()
        lock._refreshing = True
        lock.check()
