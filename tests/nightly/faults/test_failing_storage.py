"""Storage that fails: full, read-only, gone, or wanted by two. What was recorded stays, and the campaign goes on."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from skips import not_possible_here
from terminal import TASK, Terminal, wait_until

Mount = Callable[..., Path]


@pytest.fixture
def mount(terminal: Terminal) -> Iterator[Mount]:
    """Mounts at run/; a test is skipped where nobody may."""
    path = terminal.directory / "run"
    path.mkdir()
    done = 0

    def mount(*arguments: object) -> Path:
        nonlocal done
        line = ["mount", *map(str, arguments), str(path)]
        mounted = subprocess.run(line, capture_output=True, text=True, check=False, timeout=20)
        if mounted.returncode:
            not_possible_here(f"this user may not mount: {mounted.stderr.strip()}")
        done += "remount" not in str(arguments)
        return path

    yield mount
    terminal.kill()
    for _ in range(done):
        subprocess.run(["umount", "-l", str(path)], check=True, timeout=20)


def recorded(terminal: Terminal) -> dict[str, tuple[object, ...]]:
    found: dict[str, tuple[object, ...]] = {}
    for record in terminal.records("finished"):
        # After a write that failed, it stands in the next part of the journal again.
        end = (record["status"], record["objectives"], record["params"])
        assert found.setdefault(record["id"], end) == end, f"{record['id']} ended twice"
    return found


@pytest.fixture
def impatient(terminal: Terminal) -> None:
    """Storage that fails is waited for for five seconds."""
    folder = terminal.directory / "impatient"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        "import hpo.islands.storage as storage\n\nstorage.PATIENCE_S = 5.0\n"
    )
    terminal.environment["PYTHONPATH"] = os.pathsep.join([str(folder), terminal.environment["PYTHONPATH"]])


def mounted(done: subprocess.CompletedProcess[str], code: int, *words: str, most: int = 1) -> None:
    """It ended with ``code`` and one sentence of ours that holds ``words``; or ``most``, of a rank each."""
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    # mpirun may leave a byte of its own before a rank's last line.
    lines = [line.lstrip("\0 ") for line in done.stderr.splitlines()]
    sentences = [line for line in lines if line.startswith("hpo: ")]
    assert 1 <= len(sentences) <= most, done.stderr
    for sentence in sentences:
        for word in words:
            assert word in sentence, f"{word!r} is not in: {sentence}"


def goes_on(terminal: Terminal, more: int = 10, ranks: int = 1) -> None:
    """With the same command, to exactly its budget; what was on record before is unchanged."""
    before = recorded(terminal)
    pending = json.loads(terminal.hpo("check", "run", "--json").stdout)["unfinished"]
    budget = len(before) + len(pending) + more
    terminal.campaign(evaluations=budget)
    done = terminal.hpo("run", "c.toml", "--ranks", ranks)
    assert done.returncode == 0, done.stderr
    after = recorded(terminal)
    assert {name: after.get(name) for name in before} == before, "a record is lost or changed"
    assert len(after) == budget
    assert len({str(params) for _, _, params in after.values()}) == budget, "a configuration was done twice"
    checked = terminal.hpo("check", "run")
    assert checked.returncode == 0, checked.stdout


# Full -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [3])
def test_a_disk_that_has_room_for_no_more_files(
    terminal: Terminal, mount: Mount, impatient: None, ranks: int
) -> None:
    """The journals still take what is appended: only the directories of individuals cannot be made."""
    mount("-t", "tmpfs", "-o", "nr_inodes=60", "tmpfs")
    # What an individual prints is in a file, which stays.
    terminal.write("task.py", TASK.replace("time.sleep(SECONDS)", "print(trial.id)"))
    terminal.campaign(evaluations=40)
    done = terminal.hpo("run", "c.toml", "--ranks", ranks)
    mounted(done, 75, "run/evaluations/", ": No space left on device", "df -i", "same command again")
    assert "storage: No space left on device, waiting" in done.stderr
    before = recorded(terminal)
    assert 20 < len(before) < 40 and {status for status, _, _ in before.values()} == {"completed"}
    mount("-o", "remount,nr_inodes=4000")
    done = terminal.hpo("run", "c.toml", "--ranks", ranks)
    assert done.returncode == 0, done.stderr
    after = recorded(terminal)
    assert len(after) == 40 and {name: after[name] for name in before} == before
    assert {status for status, _, _ in after.values()} == {"completed"}
    goes_on(terminal, ranks=ranks)


@pytest.mark.parametrize("ranks", [3])
def test_a_disk_that_fills_up(terminal: Terminal, mount: Mount, impatient: None, ranks: int) -> None:
    mount("-t", "tmpfs", "-o", "size=100k", "tmpfs")
    terminal.task(0.0)
    terminal.campaign(evaluations=100_000)
    done = terminal.hpo("run", "c.toml", "--ranks", ranks)
    mounted(done, 75, "did not work", "run/", ": No space left on device", "Make room")
    wait_until(lambda: not terminal.processes(), "the end of all processes", seconds=10)
    before, side = recorded(terminal), terminal.side()
    assert len(before) > 10 and set(before) <= set(side)
    checked = terminal.hpo("check", "run")
    assert checked.returncode == 0 and "goes on" in checked.stdout, checked.stdout
    assert terminal.hpo("status", "run").returncode == 0
    mount("-o", "remount,size=20M")
    goes_on(terminal, ranks=ranks)


# Read-only and gone -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [2])
def test_a_directory_that_is_read_only(terminal: Terminal, mount: Mount, ranks: int) -> None:
    terminal.task(0.0)
    terminal.campaign(evaluations=10)
    assert terminal.hpo("run", "c.toml").returncode == 0
    before = recorded(terminal)
    path = mount("--bind", terminal.directory / "run")
    mount("-o", "remount,ro,bind")
    terminal.campaign(evaluations=20)
    done = terminal.hpo("run", "c.toml", "--ranks", ranks)
    mounted(done, 1, "run cannot be used as a campaign's directory (Read-only file system)", "you may write")
    mounted(terminal.hpo("check", "run", "--repair"), 1, "Read-only file system")
    for command in ("status", "best", "check"):
        assert terminal.hpo(command, "run").returncode == 0
    assert recorded(terminal) == before
    subprocess.run(["mount", "-o", "remount,rw,bind", str(path)], check=True, timeout=20)
    goes_on(terminal, ranks=ranks)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("ranks", [2])
def test_a_directory_that_goes_away_while_it_runs(terminal: Terminal, ranks: int) -> None:
    terminal.task(0.02)
    terminal.campaign(evaluations=100_000)
    command = terminal.start("run", "c.toml", "--ranks", ranks)
    wait_until(lambda: len(terminal.side()) >= 20, "a few evaluations")
    run, gone = terminal.directory / "run", terminal.directory / "gone"
    run.rename(gone)
    done = command.wait(180)
    mounted(done, 75, "run/lock could not be refreshed", "same command again")
    wait_until(lambda: not terminal.processes(), "the end of all processes", seconds=10)
    if run.exists():  # evaluations make their directories
        assert not (run / "journal").exists()
        run.rename(terminal.directory / "remains")
    gone.rename(run)
    before, side = recorded(terminal), set(terminal.side())
    assert set(before) <= side and len(side - set(before)) <= ranks
    goes_on(terminal, ranks=ranks)


# Wanted by two ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [2])
def test_of_two_that_start_at_once_one_is_refused(terminal: Terminal, ranks: int) -> None:
    terminal.task(0.05)
    terminal.campaign(evaluations=40)
    both = [terminal.start("run", "c.toml", "--ranks", ranks) for _ in range(2)]
    ends = sorted((command.wait() for command in both), key=lambda done: done.returncode)
    assert ends[0].returncode == 0, ends[0].stderr
    mounted(ends[1], 1, "run is in use by", "Let it finish", "hpo stop run")
    assert len(recorded(terminal)) == len(terminal.side()) == 40
    goes_on(terminal)


# Slow ------------------------------------------------------------------------------------------------------------

SLOW = """
import os, random, time

_fsync, _open, _rng = os.fsync, os.open, random.Random(os.getpid())


def fsync(file):
    time.sleep(_rng.uniform(0.0, 0.6))
    return _fsync(file)


def open_(path, flags, *rest, **keywords):
    if str(path).endswith(".jsonl"):
        time.sleep(_rng.uniform(0.0, 0.3))
    return _open(path, flags, *rest, **keywords)


os.fsync, os.open = fsync, open_
"""


def test_a_storage_that_takes_its_time_as_nfs_does(terminal: Terminal) -> None:
    """Each sync of a journal takes up to 0.6 s: nobody is taken for dead, and all is on record in the end."""
    slow = terminal.directory / "slow"
    slow.mkdir()
    (slow / "sitecustomize.py").write_text(SLOW)
    path = os.pathsep.join([str(slow), terminal.environment["PYTHONPATH"]])
    terminal.task(0.02)
    terminal.campaign("[layout]\nislands = 2", evaluations=100_000)
    command = terminal.start("run", "c.toml", "--ranks", 4, environment={"PYTHONPATH": path})
    wait_until(lambda: len(terminal.side()) >= 8, "a few evaluations")
    stopped = terminal.hpo("stop", "run")
    assert stopped.returncode == 0, stopped.stderr
    done = command.wait()
    assert done.returncode == 75, done.stderr
    before = recorded(terminal)
    # What was done is on record, though it took longer to write it down than to do it.
    assert set(before) == set(terminal.side())
    budget = len(before) + 20
    terminal.campaign("[layout]\nislands = 2", evaluations=budget)
    command = terminal.start("run", "c.toml", "--ranks", 4, environment={"PYTHONPATH": path})
    assert command.wait(100).returncode == 0
    after = recorded(terminal)
    assert len(after) == budget and {name: after[name] for name in before} == before
    assert Counter(terminal.side()) == Counter(list(after))
