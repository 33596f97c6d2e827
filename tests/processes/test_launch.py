"""``hpo run`` and an mpirun that does not do what it should: a script stands for it, which starts no ranks."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import journals
import pytest
from cases import cases
from terminal import wait_until

from hpo.campaign import launch
from hpo.campaign import supervisor as supervising
from hpo.campaign.supervisor import MpirunSettings, Supervisor
from hpo.cluster import mpirun_command
from hpo.cluster.mpirun import _session
from hpo.config import process
from hpo.config import reader as config
from hpo.errors import EXIT_REFUSED, EXIT_REPORTED, EXIT_RESUMABLE, StorageFailed
from hpo.journal.commands import Stop, asked
from hpo.journal.directory import write_identity
from hpo.ledger.opening import give

MPIRUN = """#!{python}
import os, signal, subprocess, sys, time
if "--version" in sys.argv:
    print("mpirun (Open MPI) 5.0.11")
    raise SystemExit
with open("{log}", "a") as log:
    print(os.getpid(), file=log)
{then}
"""


def journal(directory: Path, *statuses: str) -> str:
    """For an mpirun to do: leave a launch that finished individuals with ``statuses`` and never came to its end."""
    ends = [journals.finished(f"0-0-{number}", status=status) for number, status in enumerate(statuses)]
    journals.write(directory / "prepared", ends)
    return copying(directory)


def copying(directory: Path) -> str:
    """For an mpirun to do: put the journals there that lie in ``directory / "prepared"``."""
    places = [str(directory / name / "launches") for name in ("prepared", "run")]
    return f"import shutil; shutil.copytree(*{places!r}, dirs_exist_ok=True); "


def joining(directory: Path) -> str:
    """For an mpirun to do: join, as the launch of its supervisor."""
    return (
        f"import pathlib; sys.path.insert(0, {str(Path(__file__).parents[1])!r}); import living; "
        "from hpo.ledger.joining import Newcomer; "
        f"living.joined(pathlib.Path({str(directory / 'run')!r}), evaluations=1, "
        "newcomer=Newcomer(supervisor=os.environ['HPO_STARTED_BY'])); "
    )


def supervisor(directory: Path, then: str, evaluations: int = 1) -> tuple[Supervisor, Path]:
    """One whose mpirun notes its process in a file, which is returned too, and does ``then``."""
    log, mpirun = directory / "started.txt", directory / "mpirun"
    mpirun.write_text(MPIRUN.format(python=sys.executable, log=log, then=then))
    mpirun.chmod(0o755)
    settings = config.from_keywords(directory=directory / "run", evaluations=evaluations)
    (directory / "run").mkdir()
    return Supervisor(["rank"], settings, 2, MpirunSettings(mpirun=str(mpirun))), log


@contextmanager
def signalled_when_ready(directory: Path, number: int) -> Iterator[None]:
    """Signals this process once the mpirun has made the file ``ready``."""

    def send() -> None:
        wait_until((directory / "ready").exists, "the start")
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=send)
    thread.start()
    yield
    thread.join(60)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between launches that get nothing done."""
    monkeypatch.setattr(supervising, "_PAUSES_S", (0.0, 0.0))


@pytest.mark.parametrize("number", cases([signal.SIGTERM], nightly=[signal.SIGINT]))
def test_an_mpirun_that_ignores_an_interrupt_while_it_starts_ranks_is_killed_with_all_it_started(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    number: signal.Signals,
) -> None:
    monkeypatch.setattr(supervising, "_INTERRUPTED_S", 0.2)
    then = """
signal.signal(signal.SIGINT, signal.SIG_IGN)
subprocess.Popen(["sleep", "300"])
open("ready", "w").close()
time.sleep(300)
"""
    monkeypatch.chdir(tmp_path)
    supervised, log = supervisor(tmp_path, then)

    with signalled_when_ready(tmp_path, number):
        assert supervised.run() == EXIT_RESUMABLE
    (started,) = log.read_text().split()
    assert _session(int(started)) == []
    assert "stopped before the campaign began. Give the same command again" in capsys.readouterr().err


def test_ranks_that_die_after_a_stop_was_given_are_not_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    supervised, log = supervisor(tmp_path, "sys.exit(5)")
    given: list[None] = []
    write_identity(tmp_path / "run", {})
    before_pause = supervised._pause

    def pause(seconds: float) -> None:
        given.append(give(tmp_path / "run", Stop(**asked())))
        before_pause(seconds)

    monkeypatch.setattr(supervised, "_pause", pause)
    assert supervised.run() == 0
    assert len(log.read_text().split()) == len(given) == 1
    assert "`hpo stop` was given, so this is not started again" in capsys.readouterr().err


CODE = EXIT_REPORTED + EXIT_RESUMABLE
ONCE: dict[str, tuple[str, list[str], int]] = {
    **{
        f"complete, {code}": (f"sys.exit({code})", ["completed"], 0)
        for code in (0, 1, 137, EXIT_REPORTED + 1)
    },
    # As where two commands are given at once: another launch of this number is complete.
    "refused": (f"sys.exit({EXIT_REPORTED + EXIT_REFUSED + 2})", ["completed"], 2),
    "closed by another": (f"sys.exit({CODE})", [""], EXIT_RESUMABLE),
    "directory gone": (f"sys.exit({CODE})", [], EXIT_RESUMABLE),
    "killed": ("os.kill(os.getpid(), signal.SIGKILL)", [], EXIT_RESUMABLE),
}
"""Of an mpirun that is started once: what it does, the ends of individuals that it leaves, and the exit code."""


@pytest.mark.parametrize("case", ONCE)
def test_a_launch_that_is_the_last(tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str) -> None:
    then, statuses, code = ONCE[case]
    left = joining(tmp_path) + journal(tmp_path, *filter(None, statuses)) if statuses else ""
    supervised, log = supervisor(tmp_path, left + then)
    assert supervised.run() == code
    assert len(log.read_text().split()) == 1
    assert ("so it is not started again" in capsys.readouterr().err) is (case == "killed")


@pytest.mark.parametrize("then", ["sys.exit(5)", f"os.kill(os.getpid(), {int(signal.SIGSEGV)})"])
def test_an_mpirun_whose_ranks_did_not_start_is_started_again(tmp_path: Path, then: str) -> None:
    supervised, log = supervisor(tmp_path, then)
    assert supervised.run() == 1
    assert len(log.read_text().split()) == 3


@pytest.mark.parametrize(("code", "begun"), [(CODE, "campaign.json"), (134, "journal")])
def test_a_campaign_in_progress_whose_ranks_did_not_start_can_go_on(
    tmp_path: Path, code: int, begun: str
) -> None:
    supervised, log = supervisor(tmp_path, f"sys.exit({code})")
    if begun == "journal":
        journals.write(tmp_path / "run", [])
    else:
        (tmp_path / "run" / begun).touch()
    assert supervised.run() == EXIT_RESUMABLE
    assert len(log.read_text().split()) == 3


@pytest.mark.parametrize("while_", ["hosts are asked", "it waits"])
def test_a_signal_before_another_start_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, while_: str
) -> None:
    supervised, log = supervisor(tmp_path, "sys.exit(5)")
    say = supervised._say
    if while_ == "it waits":
        monkeypatch.setattr(supervising, "_PAUSES_S", (100.0,))
    else:
        monkeypatch.setattr(supervised, "_remaining_fleet", lambda: os.kill(os.getpid(), signal.SIGTERM))

    def then_stop(sentence: str) -> None:
        say(sentence)
        if "the next one begins in 100 s" in sentence:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(supervised, "_say", then_stop)
    assert supervised.run() == EXIT_RESUMABLE
    assert len(log.read_text().split()) == 1


UNREADABLE = """
if os.path.exists({once!r}):
    sys.exit(0)
shutil.move({journal!r}, {away!r})
open({journal!r}, "w").close()
open({once!r}, "w").close()
sys.exit(137)
"""


@pytest.mark.parametrize("back", [False, True])
def test_journals_that_cannot_be_read_after_a_launch_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, back: bool
) -> None:
    """A file stands where their folder was, so that listing it fails, as on storage that is away."""
    folder, away = tmp_path / "run" / "launches" / "0001" / "journal", tmp_path / "away"
    places = {"journal": folder, "away": away, "once": tmp_path / "once"}
    then = UNREADABLE.format(**{name: str(path) for name, path in places.items()})
    supervised, log = supervisor(tmp_path, journal(tmp_path, "completed") + then)
    if back:

        def mend(seconds: float) -> None:
            folder.unlink()
            away.rename(folder)

        clock = SimpleNamespace(monotonic=time.monotonic, sleep=mend)
        monkeypatch.setattr("hpo.ledger.launches.time", clock)
        assert supervised.run() == 0
    else:
        monkeypatch.setattr(supervising, "_GONE_S", 0.0)
        with pytest.raises(StorageFailed, match="Nothing that was recorded is lost") as caught:
            supervised.run()
        assert caught.value.exit_code == EXIT_RESUMABLE
    assert len(log.read_text().split()) == 1


def test_an_mpirun_that_stays_after_a_stop_ends_before_the_job_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervising, "_LEAVE_S", 0.5)
    ended = {"type": "ended", "reason": "stopped", "exit": 75, "time": 9.0}
    journals.write(tmp_path / "prepared", [ended])
    then = f"""
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
{copying(tmp_path)}
open({str(tmp_path / "ready")!r}, "w").close()
time.sleep(300)
"""
    supervised, _ = supervisor(tmp_path, then, evaluations=9)

    with signalled_when_ready(tmp_path, signal.SIGTERM):
        assert supervised.run() == EXIT_RESUMABLE


GONE = """
if os.path.exists({once!r}):
    sys.exit(0)
shutil.move({run!r}, {gone!r})
os.makedirs({made!r})
open({once!r}, "w").close()
sys.exit(137)
"""


@pytest.mark.parametrize(("made", "back"), [("elsewhere", False), ("run/evaluations/0-0-1", True)])
def test_ranks_that_died_while_the_directory_was_gone_are_not_started_in_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], made: str, back: bool
) -> None:
    run, gone = tmp_path / "run", tmp_path / "gone"
    places = {"run": run, "gone": gone, "made": tmp_path / made, "once": tmp_path / "once"}
    then = GONE.format(**{name: str(path) for name, path in places.items()})
    supervised, log = supervisor(tmp_path, journal(tmp_path, "completed") + then)
    (run / "campaign.json").touch()

    look = supervised._is_gone

    def gone_then_back() -> bool:
        found = look()
        if found and back:
            shutil.rmtree(run, ignore_errors=True)
            gone.rename(run)
        return found

    monkeypatch.setattr(supervised, "_is_gone", gone_then_back)
    if not back:
        monkeypatch.setattr(supervising, "_GONE_S", 0.0)
    assert supervised.run() == (0 if back else EXIT_RESUMABLE)
    assert len(log.read_text().split()) == 1 + back
    assert ("is gone, so this is not started again" in capsys.readouterr().err) == (not back)


def test_the_ranks_of_all_hosts_are_given_what_they_need_to_know() -> None:
    line = mpirun_command.command("mpirun", "mpirun (Open MPI) 5.0.11", 2, ["x"], exported=["A", "B"])
    assert line[-5:] == ["-x", "A", "-x", "B", "x"]
    assert "-x" not in mpirun_command.command("mpirun", "HYDRA build details", 2, ["x"], exported=["A", "B"])
    one, two = mpirun_command.environment({}), mpirun_command.environment({})
    assert one[process.STARTED_BY] != two[process.STARTED_BY] and process.STARTED_BY in process.EXPORTED


def test_a_host_that_is_gone_is_noticed_within_half_of_hang_timeout() -> None:
    def seconds(hang_timeout_s: float) -> int:
        time_s, pause_s, probes = map(int, mpirun_command.keepalive(hang_timeout_s).values())
        return time_s + probes * pause_s

    assert [seconds(1), seconds(16), seconds(120), seconds(1e6)] == [8, 8, 56, 480]


@pytest.mark.parametrize(
    ("ranks", "per_worker", "devices", "most"),
    [(1, 1, "0,1,2,3", 4), (2, 2, "0,1,2,3,4", 4), (4, 1, "0,1,2,3", None), (1, 1, "", None)],
)
def test_gpus_that_would_idle_are_said(ranks: int, per_worker: int, devices: str, most: int | None) -> None:
    said = launch.idle_gpus(ranks, per_worker, {"CUDA_VISIBLE_DEVICES": devices})
    assert said is None if most is None else said is not None and f"--ranks {most} " in said
