"""One launch at a time works on a campaign: it shows that it lives, and is waited for where it may have died."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from individuals import make_finished, make_started
from living import at_work, closed, elsewhere, joined, reader, stamp

import hpo
from hpo.campaign.definition import CampaignDefinition, StartingPoints
from hpo.campaign.rank import rank as rank_module
from hpo.campaign.rank.greeting import own_hello
from hpo.config.reader import from_keywords
from hpo.errors import EXIT_RESUMABLE, CampaignError, HpoError
from hpo.islands.transport import Transport
from hpo.journal import machine
from hpo.journal.directory import check_identity, write_identity
from hpo.journal.heartbeat import Heartbeat
from hpo.journal.records import encode
from hpo.ledger import alive
from hpo.ledger.alive import STALE_S, OtherLaunches, alive_path, last_refresh, living
from hpo.ledger.joining import Newcomer, beside
from hpo.ledger.journals import journal_files
from hpo.ledger.opening import state_of
from hpo.task.code_version import CodeVersion


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


def test_an_evaluation_inside_rank_0_does_not_let_the_sign_grow_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does anything else that its event loop is busy with."""
    monkeypatch.setattr(alive, "REFRESH_S", 0.01)
    home = tmp_path / "run"

    def evaluate(trial: hpo.Trial) -> float:
        path = alive_path(home, 1)
        at = time.time() - 3600
        os.utime(path, (at, at))
        end = time.monotonic() + 20
        while path.stat().st_mtime < time.time() - STALE_S:
            assert time.monotonic() < end, "nothing refreshes it"
            time.sleep(0.002)
        assert living(home).keys() == {1}
        return 0.0

    task = hpo.Task(hpo.SearchSpace(x=hpo.Float(0, 1)), evaluate)
    result = hpo.Campaign(task, directory=home, evaluations=2, isolation="inline", kind="random").run()
    assert [one.status for one in result.individuals] == ["completed"] * 2
    assert not living(home)


def test_a_launch_that_another_has_closed_ends_and_can_go_on_later(tmp_path: Path) -> None:
    home = tmp_path / "run"

    def evaluate(trial: hpo.Trial) -> float:
        if trial.id == "0-0-0":
            joined(home).close_others("it was silent")
        time.sleep(0.01)  # the ledger is read once a second
        return 0.0

    task = hpo.Task(hpo.SearchSpace(x=hpo.Float(0, 1)), evaluate)
    settings: dict[str, Any] = {"directory": home, "isolation": "inline", "kind": "random"}
    with pytest.raises(HpoError, match="launch 1 was closed by another launch") as caught:
        hpo.Campaign(task, evaluations=10_000, **settings).run()
    assert caught.value.exit_code == EXIT_RESUMABLE
    assert hpo.Result(home).individuals == []
    closed(home)
    assert len(hpo.Campaign(task, evaluations=3, **settings).run().individuals) == 3


def test_errors_of_the_storage_pass_and_a_file_that_is_gone_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign = at_work(tmp_path)

    def fails(*arguments: object, **keywords: object) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    with monkeypatch.context() as patched, pytest.raises(OSError, match="Stale"):
        patched.setattr(os, "replace", fails)
        sign.refresh()
    stamp(sign, -3600)
    sign.refresh()
    assert sign.path.stat().st_mtime > time.time() - STALE_S
    sign.path.unlink()
    sign.refresh()
    assert living(tmp_path) == {1: sign.holder}


def test_a_refresh_can_be_seen(tmp_path: Path) -> None:
    assert last_refresh(tmp_path, 1) == 0
    sign = at_work(tmp_path)
    stamp(sign, -60)
    before = last_refresh(tmp_path, 1)
    sign.refresh()
    after = last_refresh(tmp_path, 1)
    assert before is not None and after is not None and after > before > 0
    sign.path.unlink()
    sign.path.symlink_to(sign.path)
    assert last_refresh(tmp_path, 1) is None, "as where storage fails"


# --- on this machine --------------------------------------------------------------------------------------------------

_HOLD = """
import sys, pathlib
from living import at_work
sign = at_work(pathlib.Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def _hold(home: Path) -> subprocess.Popen[str]:
    """A launch that is at work until its standard input ends."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    tests = os.fspath(Path(__file__).parents[1])
    path = os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, home], env={**os.environ, "PYTHONPATH": path}, **pipes
    )
    assert process.stdout.readline() == "held\n"
    return process


def test_a_second_launch_is_refused_until_the_first_is_dead(tmp_path: Path) -> None:
    with _hold(tmp_path) as process:
        (first,) = living(tmp_path).values()
        assert first.pid == process.pid
        # However old the sign looks: the process is there.
        at = time.time() - 3600
        os.utime(alive_path(tmp_path, 1), (at, at))
        with pytest.raises(
            CampaignError, match=f"in use by process {process.pid} on {first.host} since "
        ) as caught:
            beside(tmp_path, reader(tmp_path), Newcomer())
        assert "--join" in str(caught.value) and caught.value.exit_code == 1
        with pytest.raises(CampaignError, match="in use by"):
            beside(tmp_path, reader(tmp_path), Newcomer(join=False, job="7.0"))
        for may in Newcomer(join=True), Newcomer(job="7.0"):
            assert beside(tmp_path, reader(tmp_path), may)[1] == {1: first}
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not living(tmp_path), "a zombie is dead too"
    state, at_work = beside(tmp_path, reader(tmp_path), Newcomer())
    assert state.open.keys() == {1} and not at_work


def test_of_many_that_begin_at_once_one_joins(tmp_path: Path) -> None:
    home, go = tmp_path / "run", tmp_path / "go"
    program = (
        "import sys, time, hpo, pathlib\n"
        "def evaluate(trial):\n"
        "    while not pathlib.Path(sys.argv[2]).exists(): time.sleep(0.02)\n"
        "    return 0.0\n"
        "task = hpo.Task(hpo.SearchSpace(x=hpo.Float(0, 1)), evaluate)\n"
        "campaign = hpo.Campaign(task, directory=sys.argv[1], evaluations=20, isolation='inline', kind='random')\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "try:\n"
        "    campaign.run()\n"
        "    print('ran', flush=True)\n"
        "except hpo.HpoError as error:\n"
        "    print('refused' if 'in use by' in str(error) else error, flush=True)\n"
    )
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command = [sys.executable, "-c", program, home, go]
    rivals: list[Any] = [subprocess.Popen(command, **pipes) for _ in range(4)]
    for rival in rivals:
        assert rival.stdout.readline() == "ready\n"
    for rival in rivals:
        rival.stdin.write("\n")
        rival.stdin.flush()
    with ThreadPoolExecutor(4) as threads:
        ends = as_completed((threads.submit(rival.communicate) for rival in rivals), timeout=60)
        try:
            words = [next(ends).result()[0].split("\n")[-2] for _ in range(3)]
        finally:
            go.touch()
        words += [end.result()[0].split("\n")[-2] for end in ends]
    assert words == [*["refused"] * 3, "ran"]
    assert len(hpo.Result(home).individuals) == 20 and state_of(home).launches == 1


def test_a_launch_that_has_ended_and_could_not_be_closed_is_in_nobodys_way(
    tmp_path: Path, clock: Clock
) -> None:
    """Whatever else its process does, as in a notebook."""
    with at_work(tmp_path) as sign:
        assert living(tmp_path) == {1: sign.holder}
    assert (
        not living(tmp_path) and not beside(tmp_path, reader(tmp_path), Newcomer())[1] and not clock.slept_s
    )


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff" * 99, b'{"pid": 1}', b"[" * 100_000, None])
def test_a_sign_that_cannot_be_read_is_none(tmp_path: Path, clock: Clock, content: bytes | None) -> None:
    sign = at_work(tmp_path)
    sign.path.unlink()
    if content is None:
        sign.path.mkdir()
        with pytest.raises(CampaignError, match="cannot be read"):
            living(tmp_path)
        return
    sign.path.write_bytes(content)
    assert not living(tmp_path)
    # One that has just joined gets a while for it.
    assert not beside(tmp_path, reader(tmp_path), Newcomer())[1] and 15 <= clock.slept_s < 16


# --- on other machines ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("skew_s", [-3600.0, 3600.0])
def test_ages_are_those_of_the_clock_that_stamps_the_files(
    tmp_path: Path, clock: Clock, skew_s: float
) -> None:
    """Whatever this machine's own clock says, as beside a file server that is an hour off."""
    clock.skew_s = skew_s
    sign = elsewhere(tmp_path, age_s=STALE_S - 20)
    assert living(tmp_path)
    assert beside(tmp_path, reader(tmp_path), Newcomer())[1] == {1: sign.holder}
    with pytest.raises(CampaignError, match="n17"):
        beside(tmp_path, reader(tmp_path), Newcomer(join=False))
    stamp(sign, -STALE_S - 20)
    assert not living(tmp_path)
    assert not beside(tmp_path, reader(tmp_path), Newcomer(join=False))[1]
    assert os.listdir(sign.path.parent) == ["alive"]


@pytest.mark.parametrize(
    ("first", "second", "follows"),
    [
        (Newcomer(supervisor="one"), Newcomer(supervisor="one", join=False), True),
        (Newcomer(supervisor="one"), Newcomer(supervisor="two", join=False), False),
        (Newcomer(supervisor="one"), Newcomer(join=False), False),
        (Newcomer(job="7.0"), Newcomer(job="7.1", join=False), True),
        (Newcomer(job="7.1"), Newcomer(job="7.1", join=False), False),
        (Newcomer(job="8.0"), Newcomer(job="7.1", join=False), False),
    ],
)
def test_the_next_launch_of_a_supervisor_or_a_job_follows_its_last_one_at_once(
    tmp_path: Path, clock: Clock, first: Newcomer, second: Newcomer, follows: bool
) -> None:
    """Rank 0's node died, and the next rank 0 is on another one."""
    elsewhere(tmp_path, newcomer=first)
    if follows:
        assert not beside(tmp_path, reader(tmp_path), second)[1]
    else:
        with pytest.raises(CampaignError, match="n17"):
            beside(tmp_path, reader(tmp_path), second)
    assert clock.slept_s == 0


def test_launches_that_are_at_work_together_search_in_the_same_way(tmp_path: Path) -> None:
    elsewhere(tmp_path, newcomer=Newcomer(kinds=("tpe", "random")))
    for kinds in ("tpe", "random"), None:
        assert beside(tmp_path, reader(tmp_path), Newcomer(kinds=kinds))[1].keys() == {1}
    for other, said in (
        (("tpe",), "2 islands and this start 1"),
        (("tpe", "gp"), '"random" on island 2 .* "gp"'),
    ):
        with pytest.raises(CampaignError, match=said):
            beside(tmp_path, reader(tmp_path), Newcomer(kinds=other))


# --- as other launches see it -----------------------------------------------------------------------------------------


def test_a_launch_is_dead_once_it_is_silent_while_its_observer_is_not(tmp_path: Path, clock: Clock) -> None:
    signs = [elsewhere(tmp_path), elsewhere(tmp_path), at_work(tmp_path)]
    others = OtherLaunches(tmp_path, signs[2])
    others.watch([1, 2])
    fails = False

    def beats(times: int, living: Collection[int]) -> None:
        for _ in range(times):
            clock.slept_s += 5
            if not fails:
                signs[2].refresh()
            for number in living:
                signs[number - 1].refresh()
            others.look()

    beats(100, {1, 2})
    assert others.at_work.keys() == {1, 2} and not others.dead
    beats(28, {2})
    assert not others.dead
    fails = True  # its own storage is away: that others are silent says nothing
    beats(100, ())
    assert not others.dead
    fails = False
    clock.slept_s += 3600  # it was stopped
    beats(1, {2})
    assert not others.dead and others.at_work.keys() == {2}, "launch 2 is the next, and closes it first"
    beats(1, {2})
    assert others.dead == {1}
    signs[0].show(7, 1, 3, 5.0)
    beats(1, {1, 2})
    assert not others.dead and others.at_work[1].ended == 7 and others.at_work[1].idle == 3
    others.watch([2])
    beats(1, {1, 2})
    assert others.at_work.keys() == {2}


def test_a_launch_is_dead_at_once_where_its_end_can_be_seen(tmp_path: Path) -> None:
    gone, over, own = at_work(tmp_path), elsewhere(tmp_path), at_work(tmp_path)
    others = OtherLaunches(tmp_path, own)
    others.watch([1, 2])
    others.look()
    assert not others.dead
    with over:
        pass
    other = msgspec.structs.replace(gone.holder, process_started=gone.holder.process_started - 1)
    gone.path.write_bytes(msgspec.json.encode(other))
    others.look()
    assert others.dead == {1, 2} and not others.at_work


def test_a_sign_is_no_link_and_waits_for_nobody(tmp_path: Path) -> None:
    sign = at_work(tmp_path)
    sign.path.rename(tmp_path / "elsewhere")
    sign.path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CampaignError, match="cannot be read"):
        living(tmp_path)
    sign.path.unlink()
    os.mkfifo(sign.path)
    assert not living(tmp_path)


def test_a_launch_whose_sign_cannot_be_made_does_not_begin(tmp_path: Path) -> None:
    home = tmp_path / "run"
    task = hpo.Task(hpo.SearchSpace(x=hpo.Float(0, 1)), lambda trial: 0.0)
    campaign = hpo.Campaign(task, directory=home, evaluations=3, isolation="inline", kind="random")
    home.mkdir()
    campaign.run()
    (home / "launches" / "0002").write_text("in the way")
    again = hpo.Campaign(task, directory=home, evaluations=5, isolation="inline", kind="random")
    with pytest.raises(CampaignError, match="cannot be used"):
        again.run()
    assert not state_of(home).open
    assert len(again.run().individuals) == 5


# --- a launch that was silent, and goes on ----------------------------------------------------------------------------


def test_what_a_launch_still_writes_that_was_closed_does_not_count(tmp_path: Path) -> None:
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

    run(4)
    # It died after three, while it evaluated another.
    sorted((home / "ledger").iterdir())[-1].unlink()
    (journal,) = journal_files(home, 1)
    journal.path.write_bytes(b"".join(journal.path.read_bytes().splitlines(keepends=True)[:5]))
    with open(journal.path, "ab", buffering=0) as silent:
        silent.write(encode(make_started(id="0-0-7", operator="random", params={"x": 0.5}, time=1.0)))
        assert len(run(6).individuals) == 6
        late = {"started": 1.0, "finished": 2.0, "status": "completed", "objectives": {"value": 0.5}}
        silent.write(encode(make_finished(id="0-0-99", operator="random", params={"x": 0.6}, **late)))
    individuals = hpo.Result(home).individuals
    assert len(individuals) == 6 and {one.status for one in individuals} == {"completed"}
    # The one that it had begun may still be at work in its directory.
    assert [one.name for one in directories if one.name.startswith("0-0-7")] == ["0-0-7.attempt-2"]


def test_a_supervisor_starts_again_beside_a_launch_that_has_joined_on_its_host(tmp_path: Path) -> None:
    joined(tmp_path, newcomer=Newcomer(supervisor="one"))
    other = at_work(tmp_path, newcomer=Newcomer(join=True))
    assert beside(tmp_path, reader(tmp_path), Newcomer(supervisor="one"))[1] == {2: other.holder}
    with pytest.raises(CampaignError, match="in use by"):
        beside(tmp_path, reader(tmp_path), Newcomer(supervisor="two"))


def test_launches_that_join_at_the_same_moment_do_not_close_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = partial(joined, tmp_path, machines={"elsewhere": "n17"})

    def look(*arguments: Any) -> object:
        seen = beside(*arguments)
        if seen[0].launches == 0:
            other()  # it joins between this launch's look at the others and its own entry
        return seen

    monkeypatch.setattr(rank_module, "beside", look)
    task = hpo.Task(hpo.SearchSpace(x=hpo.Float(0.0, 1.0)), lambda trial: 0.0)
    settings = from_keywords(directory=tmp_path, evaluations=8)
    definition = CampaignDefinition(settings, task, code=CodeVersion({}))
    write_identity(tmp_path, definition.identity)
    starting = StartingPoints(points=[], known=[], left_out=[])
    rank = rank_module.Rank(definition, Transport())
    participation, _ = rank._join(starting, [own_hello(settings, definition.identity)])
    assert participation.number == 2 and {*participation.state.open} == {1, 2}


def test_a_campaign_that_another_launch_begins_meanwhile_is_no_strange_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity, listed = {"task": "t"}, os.listdir

    def begun(path: Path) -> list[str]:
        write_identity(tmp_path, identity)
        return listed(path)

    monkeypatch.setattr("hpo.journal.directory.os.listdir", begun)
    found = check_identity(tmp_path, identity)
    assert found is not None and found["task"] == "t"
