"""Storage that fails: full, read-only or gone. What was recorded stays, and the campaign goes on."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from skips import not_possible_here
from terminal import Terminal, wait_until

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


def mounted(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    """It ended with ``code`` and one sentence of ours that holds ``words``."""
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    # mpirun may leave a byte of its own before a rank's last line.
    lines = [line.lstrip("\0 ") for line in done.stderr.splitlines()]
    (sentence,) = [line for line in lines if line.startswith("hpo: ")]
    for word in words:
        assert word in sentence, f"{word!r} is not in: {sentence}"


def goes_on(terminal: Terminal, ranks: int) -> None:
    """With the same command, to exactly its budget; what was on record before is unchanged."""
    before = recorded(terminal)
    pending = json.loads(terminal.hpo("check", "run", "--json").stdout)["unfinished"]
    budget = len(before) + len(pending) + 10
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


def test_a_disk_that_fills_up(terminal: Terminal, mount: Mount, impatient: None) -> None:
    mount("-t", "tmpfs", "-o", "size=100k", "tmpfs")
    terminal.task(0.0)
    terminal.campaign(evaluations=100_000)
    done = terminal.hpo("run", "c.toml", "--ranks", 3)
    mounted(done, 75, "did not work", "run/", ": No space left on device", "Make room")
    wait_until(lambda: not terminal.processes(), "the end of all processes", seconds=10)
    before, side = recorded(terminal), terminal.side()
    assert len(before) > 10 and set(before) <= set(side)
    checked = terminal.hpo("check", "run")
    assert checked.returncode == 0 and "goes on" in checked.stdout, checked.stdout
    assert terminal.hpo("status", "run").returncode == 0
    mount("-o", "remount,size=20M")
    goes_on(terminal, ranks=3)


# Read-only and gone -----------------------------------------------------------------------------------------------


def test_a_directory_that_is_read_only(terminal: Terminal, mount: Mount) -> None:
    terminal.task(0.0)
    terminal.campaign(evaluations=10)
    assert terminal.hpo("run", "c.toml").returncode == 0
    before = recorded(terminal)
    path = mount("--bind", terminal.directory / "run")
    mount("-o", "remount,ro,bind")
    terminal.campaign(evaluations=20)
    done = terminal.hpo("run", "c.toml", "--ranks", 2)
    mounted(done, 1, "run cannot be used as a campaign's directory (Read-only file system)", "you may write")
    assert "nothing was changed" in terminal.hpo("check", "run", "--repair", returns=0).stdout
    for command in ("status", "best", "check"):
        assert terminal.hpo(command, "run").returncode == 0
    assert recorded(terminal) == before
    subprocess.run(["mount", "-o", "remount,rw,bind", str(path)], check=True, timeout=20)
    goes_on(terminal, ranks=2)


@pytest.mark.timeout(300)
def test_a_directory_that_goes_away_while_it_runs(terminal: Terminal) -> None:
    terminal.task(0.02)
    terminal.campaign(evaluations=100_000)
    command = terminal.start("run", "c.toml", "--ranks", 2)
    wait_until(lambda: len(terminal.side()) >= 20, "a few evaluations")
    run, gone = terminal.directory / "run", terminal.directory / "gone"
    run.rename(gone)
    done = command.wait(180)
    mounted(done, 75, "the storage did not work for 120 s (", "run/", "same command again")
    wait_until(lambda: not terminal.processes(), "the end of all processes", seconds=10)
    if run.exists():  # evaluations make their directories
        assert not (run / "launches").exists()
        run.rename(terminal.directory / "remains")
    gone.rename(run)
    before, side = recorded(terminal), set(terminal.side())
    assert set(before) <= side and len(side - set(before)) <= 2
    goes_on(terminal, ranks=2)
