"""Chaos on the real thing: a campaign of eight ranks with evaluators, to which everything happens at random.

    python tests/chaos.py [--seed 0] [--actions 30] [--evaluations 400] [--ranks 8] [--ranks-per-worker 2]

Two islands of workers evaluate a task of some 0.2 s, one of ten evaluations of which goes wrong in one of nine ways.
Meanwhile evaluators, ranks, mpirun and the whole job are killed; processes are stopped and continued, ranks for longer
than ``hang_timeout``, too; evaluators fall sick, and fail at all that they begin from then on; the storage fills up,
has room for no more files, or is gone for a while (a tmpfs, where this user may mount one); all commands to a campaign
are given, some of them nonsense. The command is typed again whenever it has ended before the budget is used; where the
budget is used before all the actions have happened, it is raised and the campaign goes on. In the end the budget is
raised once more, and one launch that nothing disturbs completes it.

After every launch, and in the end, the journals are compared with what the tasks themselves wrote down elsewhere:
nothing recorded is lost, changed or recorded twice; only failures are reopened, and each run of an individual ends
once; no configuration is evaluated under two ids; what is recorded as completed did end, with the value that the task
had; each command was applied once, or waits; the budget, with what ``hpo set`` made of it, is used to the unit, and
``hpo check`` finds nothing wrong. AssertionError with the line that begins the same chaos again, else one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from terminal import Command, Terminal

from hpo.journal.commands import name_of
from hpo.ledger.opening import state_of

TASK = """
import ctypes, os, random, signal, sys, time
import hpo

SIDE, SICK = NOTES, SICK_ONES
WAYS = ("raises", "nan", "text", "sys.exit", "hangs", "exits", "segfaults", "killed", "aborts")


def note(*words):
    handle = os.open(SIDE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(handle, (" ".join(map(str, words)) + "\\n").encode())
    os.close(handle)


def evaluate(trial):
    if trial.rank == 0:
        note("begun", trial.id, trial.params["x"])
    if os.path.exists(SICK) and str(os.getpid()) in open(SICK).read().split():
        raise OSError("no such mount")
    rng = random.Random(trial.seed)
    way = rng.choice(WAYS) if rng.random() < UNHEALTHY else "is well"
    seconds = rng.lognormvariate(0.0, 0.5) * SECONDS
    if trial.size > 1:
        import torch
        import torch.distributed as dist

        for _ in range(4):
            time.sleep(seconds / 4)
            dist.all_reduce(torch.ones(1))
            if trial.should_checkpoint():
                raise hpo.Interrupted("as asked")
    else:
        time.sleep(seconds)
    if trial.rank == trial.size - 1:  # the others learn it from their group, or in no way
        if way == "raises":
            raise ValueError("no such layer")
        if way == "sys.exit":
            sys.exit(3)
        if way == "hangs":
            time.sleep(600)
        if way == "exits":
            os._exit(3)
        if way == "segfaults":
            ctypes.string_at(0)
        if way == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if way == "aborts":
            os.abort()
    value = (trial.params["x"] - 1.0) ** 2 + trial.params["y"] ** 2
    if trial.rank == 0:
        if way in ("nan", "text"):
            return float("nan") if way == "nan" else "0.5"
        note("ended", trial.id, value)
    return value


task = hpo.Task(hpo.SearchSpace(x=hpo.Float(-5.0, 5.0), y=hpo.Float(-5.0, 5.0)), evaluate)
"""

CAMPAIGN = """
restarts = 1000
[layout]
islands = 2
ranks_per_worker = {ranks_per_worker}
[evaluation]
timeout = 3
grace = 5
hang_timeout = 3
"""

MOST_LAUNCHES = 200
STILL_LIMIT_S = 150.0
"""For so long nothing may be recorded, the start of new launches included."""
STORAGE_FAILS_S = (0.3, 4.0)
STOPPED_S = (0.1, 12.0)
"""Seconds for which a process is stopped; a rank is given up after 3."""
MORE_EVALUATIONS = 40
ENDS = (
    "No space left",
    "No such file or directory",
    "nothing gets done",
    "evaluations failed and none completed",
)
"""What a launch that ends with 1 may say."""
FAILURES = ("failed", "crashed", "timeout", "invalid")
STOP_HOLDS = ("not started again", "hpo stop` was given")
"""What a command says that ends with 0 before the budget is used."""


class End(NamedTuple):
    """How a run of an individual ended. ``run``: how often it had been reopened."""

    run: int
    status: str
    objectives: dict[str, float] | None
    params: dict[str, object]
    when: tuple[float | None, float | None]


def notes_of(terminal: Terminal) -> Path:
    """What the tasks write down, which is on another disk than the campaign."""
    return terminal.directory.with_name(f"{terminal.directory.name}-notes")


class Chaos:
    """One campaign in one directory, and what has been done to it."""

    def __init__(
        self, terminal: Terminal, *, seed: int, ranks: int, evaluations: int, disk: Path | None
    ) -> None:
        self.terminal = terminal
        self.in_file = evaluations
        # The budgets that `hpo set` asked for; how many of them were applied before the file had this one.
        self.set_to: list[int] = []
        self.set_before = 0
        self.given: Counter[str] = Counter()
        self.later: list[tuple[float, Callable[[], object]]] = []
        self.sick = self.paused = False
        self.rng = random.Random(seed)
        self.ranks = ranks
        self.disk = disk
        self.done: Counter[str] = Counter()
        self.launches = 0
        self.recorded, self.moved = 0, time.monotonic()
        """Bytes in the journals when they were last looked at, and when that number last changed."""
        self.before: dict[str, End] = {}
        self.ends: dict[tuple[str, int], End] = {}
        self.command: Command | None = None
        self.actions: dict[str, tuple[int, Callable[[], bool]]] = {
            "evaluator killed": (6, lambda: self._signal(self.terminal.evaluators(), signal.SIGKILL)),
            "rank killed": (5, lambda: self._signal(self._ranks(but=0), signal.SIGKILL)),
            "two ranks killed": (2, lambda: self._signal(self._ranks(but=0), signal.SIGKILL, number=2)),
            "rank 0 killed": (1, lambda: self._signal(self._ranks(only=0), signal.SIGKILL)),
            "mpirun killed": (1, lambda: self._signal(self._mpirun(), signal.SIGKILL)),
            "whole job killed": (1, self._kill_all),
            "evaluator stopped": (3, lambda: self._hang(self.terminal.evaluators())),
            "rank hangs": (4, lambda: self._hang(self._ranks(but=0))),
            "rank 0 hangs": (1, lambda: self._hang(self._ranks(only=0))),
            "worker falls sick": (2, self._sicken),
            "SIGTERM": (1, lambda: self._tell(signal.SIGTERM)),
            "disk full": (2 if disk else 0, self._fill),
            "no more files": (2 if disk else 0, self._no_more_files),
            "directory gone": (2, self._hide),
            "hpo stop": (1, lambda: self._give("stop")),
            "hpo pause": (1, self._pause_campaign),
            "hpo drain": (1, lambda: self._give("drain", f"{self.rng.randrange(2)}-{self.rng.randrange(4)}")),
            "hpo retry": (2, lambda: self._give("retry", "--status", self.rng.choice([*FAILURES, "all"]))),
            "hpo enqueue": (3, self._enqueue),
            "hpo set": (2, self._set),
            "nonsense": (1, self._nonsense),
        }

    # --- what happens -------------------------------------------------------------------------------------------

    def _ranks(self, *, but: int | None = None, only: int | None = None) -> list[psutil.Process]:
        living = self.terminal.ranks().items()
        return [one for number, one in living if number != but and only in (None, number)]

    def _mpirun(self) -> list[psutil.Process]:
        assert self.command is not None
        try:
            return psutil.Process(self.command.process.pid).children()
        except psutil.Error:
            return []

    def _signal(self, processes: list[psutil.Process], number_of: int, *, number: int = 1) -> bool:
        chosen = self.rng.sample(processes, min(number, len(processes)))
        for process in chosen:
            try:
                process.send_signal(number_of)
            except psutil.NoSuchProcess:
                pass
        return bool(chosen)

    def _kill_all(self) -> bool:
        assert self.command is not None
        self.command.process.kill()  # first, and waited for here: nobody else may take its exit code
        self.command.process.wait(10)
        self.terminal.kill()
        return True

    def _tell(self, number: int) -> bool:
        assert self.command is not None
        if not self.command.minds_signals():
            return False
        self.command.signal(number)
        return True

    def _hang(self, processes: list[psutil.Process]) -> bool:
        if not processes:
            return False
        one = self.rng.choice(processes)
        try:
            one.suspend()
        except psutil.NoSuchProcess:
            return False

        def go_on() -> None:
            try:
                one.resume()
            except psutil.NoSuchProcess:
                pass

        if self.rng.random() < 0.8:  # else it is killed in the end, by `hpo run`
            self._do_later(self.rng.uniform(*STOPPED_S), go_on)
        return True

    def _do_later(self, seconds: float, action: Callable[[], object]) -> None:
        self.later.append((time.monotonic() + seconds, action))

    def _do_what_is_due(self, *, all_of_it: bool = False) -> None:
        due = [one for one in self.later if all_of_it or one[0] <= time.monotonic()]
        self.later = [one for one in self.later if one not in due]
        for _, action in due:
            action()

    def _sicken(self) -> bool:
        evaluators = self.terminal.evaluators()
        if not evaluators:
            return False
        with open(notes_of(self.terminal) / "sick.txt", "a") as file:
            file.write(f"{self.rng.choice(evaluators).pid}\n")
        self.sick = True
        return True

    # Commands ---------------------------------------------------------------------------------------------------

    def _give(self, name: str, *arguments: str) -> bool:
        if not (self.terminal.directory / "run" / "campaign.json").exists():
            return False
        done = self.terminal.hpo(name, "run", *arguments)
        assert "Traceback" not in done.stderr, done.stderr
        # Without such failures `hpo retry` leaves no command.
        left = done.returncode == 0 and "nothing to evaluate again" not in done.stdout
        self.given[name] += left
        return left

    def _pause_campaign(self) -> bool:
        if self.paused or not self._give("pause"):
            return False
        self.paused = True
        self._do_later(self.rng.uniform(0.5, 6.0), self._unpause)
        return True

    def _unpause(self) -> None:
        self.paused = not self._give("unpause")
        if self.paused:
            self._do_later(1.0, self._unpause)

    def _enqueue(self) -> bool:
        points = [
            {"x": self.rng.uniform(-5, 5), "y": self.rng.uniform(-5, 5)}
            for _ in range(self.rng.randint(1, 3))
        ]
        known = [dict(end.params) for end in self.before.values()]
        if known and self.rng.random() < 0.3:
            points += self.rng.sample(known, 1)  # type: ignore[arg-type]
        return all(self._give("enqueue", json.dumps(point)) for point in points)

    def _set(self) -> bool:
        # Never below what was begun, so that all of it ends.
        least = len(self.noted("begun")) + 3 * self.ranks
        budget = self.rng.randint(least, least + 3 * MORE_EVALUATIONS)
        more = ["deadline=8h"] if self.rng.random() < 0.3 else []
        if not self._give("set", f"evaluations={budget}", *more):
            return False
        self.set_to.append(budget)
        return True

    def _nonsense(self) -> bool:
        folder = self.terminal.directory / "run" / "ledger"
        if not folder.exists():
            return False
        name = self.rng.choice(["stop", "notes.txt", "é.json", ".0123456789abcdef", "00000000"])
        kind = self.rng.randrange(5)
        contents = (
            b"{}",
            b'{"name":"stop"}',
            b'{"name":"set","evaluations":"5"}',
            b"\xff\x00",
            b"[" * 5000,
            b"",
        )
        try:
            path = folder / name
            if kind == 0:
                path.mkdir(exist_ok=True)
            elif kind == 1:
                path.symlink_to("/etc/passwd")
            elif kind == 2:
                os.mkfifo(path)
            else:
                path.write_bytes(self.rng.choice(contents))
        except OSError:
            return False
        return True

    # Storage ----------------------------------------------------------------------------------------------------

    def _hide(self) -> bool:
        # Rank 0 has begun: a command that was only just typed would begin anew in an empty directory.
        if not self._ranks(only=0) or not [*(self.terminal.directory / "run").glob("launches/*/alive")]:
            return False
        run, gone = self.terminal.directory / "run", self.terminal.directory / "gone"
        run.rename(gone)
        if self.rng.random() < 0.3 and self._signal(self._ranks(), signal.SIGKILL):
            self.done["rank killed meanwhile"] += 1
        time.sleep(self.rng.uniform(*STORAGE_FAILS_S))
        end = time.monotonic() + 10.0
        while gone.exists():  # evaluations make their directories meanwhile
            assert not (run / "campaign.json").exists(), "a second campaign began"
            assert time.monotonic() < end
            shutil.rmtree(run, ignore_errors=True)
            try:
                gone.rename(run)
            except OSError:
                pass
        return True

    def _no_more_files(self) -> bool:
        assert self.disk is not None
        if not (self.disk / "run" / "campaign.json").exists():
            return False
        found = os.statvfs(self.disk)
        used = found.f_files - found.f_ffree
        if not self._remount(f"nr_inodes={used + 2}"):
            return False
        time.sleep(self.rng.uniform(*STORAGE_FAILS_S))
        assert self._remount(f"nr_inodes={found.f_files}")
        return True

    def _remount(self, option: str) -> bool:
        line = ["mount", "-o", f"remount,{option}", str(self.disk)]
        return subprocess.run(line, capture_output=True, check=False, timeout=20).returncode == 0

    def _fill(self) -> bool:
        assert self.disk is not None
        if not (self.disk / "run" / "campaign.json").exists():
            return False
        filler = self.disk / "filler"
        try:
            with open(filler, "wb", buffering=0) as file:
                while True:
                    file.write(bytes(1024))
        except OSError:
            pass
        time.sleep(self.rng.uniform(*STORAGE_FAILS_S))
        filler.unlink()
        return True

    # --- the campaign ---------------------------------------------------------------------------------------------

    def launch(self) -> None:
        self.launches += 1
        self.moved = time.monotonic()
        assert self.launches <= MOST_LAUNCHES, "it does not come to its end"
        self.sick = False
        begun = sum(map(len, self.noted("begun").values()))
        self.command = self.terminal.start("run", "c.toml", "--ranks", self.ranks)
        if self.rng.random() < 0.75:  # else things may happen while it starts
            end = time.monotonic() + 60.0
            while sum(map(len, self.noted("begun").values())) == begun and time.monotonic() < end:
                self._wait(0.2)
                if self.command.process.returncode is not None:
                    break

    def run(self, actions: int) -> None:
        """Chaos until ``actions`` have happened, then one launch in peace."""
        self.launch()
        while True:
            assert self.command is not None
            self._check_that_it_records()
            over = sum(self.done.values()) >= actions
            self._do_what_is_due(all_of_it=over)
            if self.command.process.poll() is not None:
                done = self._ended()
                if done and over and not self.later:
                    break
                if done:
                    self._raise_budget()
                self.launch()
            elif not over:
                self._wait(self.rng.expovariate(1.0))
                names = list(self.actions)
                (name,) = self.rng.choices(names, [self.actions[name][0] for name in names])
                if self.actions[name][1]():
                    self.done[name] += 1
                    print(f"{sum(self.done.values()):3} {name}", file=sys.stderr, flush=True)
            else:
                self._wait(0.2)
        self._raise_budget()
        self.launch()
        while self.command.process.poll() is None:
            self._wait(0.2)
            self._check_that_it_records()
        assert self._ended(), "a launch that nothing disturbs did not complete the budget"

    def _check_that_it_records(self) -> None:
        """However slow the machine is, records come, or the launch ends."""
        if self.recorded != (recorded := self._recorded()):
            self.recorded, self.moved = recorded, time.monotonic()
        assert time.monotonic() - self.moved < STILL_LIMIT_S, "nothing is recorded any more: it hangs"

    def _ended(self) -> bool:
        """Look at what the command has left; whether the budget is used."""
        assert self.command is not None
        done = self.command.wait(STILL_LIMIT_S)
        self.terminal.kill()
        self.check()
        code = done.returncode
        assert code in (0, 1, 75, -signal.SIGKILL), done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        if code == 1:
            assert any(words in done.stderr for words in ENDS[: None if self.sick else -1]), done.stderr
        if self._journals():
            checked = self.terminal.hpo("check", "run")
            assert checked.returncode == 0, checked.stdout
        if code == 0 and self.given["stop"] and any(words in done.stderr for words in STOP_HOLDS):
            return False
        if code == 0:
            assert len(self.before) == self.budget, (
                f"{len(self.before)} of {self.budget} are on record\n{done}"
            )
            begun = {record["id"] for record in self.terminal.records("started")}
            assert begun <= set(self.before), f"{begun - set(self.before)} were begun and did not end"
        return code == 0

    @property
    def budget(self) -> int:
        """What holds by what is on record: the file's, or what `hpo set` made of it since."""
        applied = self._applied()["set"]
        return self.set_to[applied - 1] if applied > self.set_before else self.in_file

    def _applied(self) -> Counter[str]:
        """Commands that were given."""
        commands = state_of(self.terminal.directory / "run").commands
        return Counter(name_of(one.request) for one in commands)

    def _recorded(self) -> int:
        """Bytes in the journals."""
        return sum(path.stat().st_size for path in self._journals())

    def _journals(self) -> list[Path]:
        return [*self.terminal.directory.glob("run/launches/*/journal/*")]

    def _raise_budget(self) -> None:
        path = self.terminal.directory / "c.toml"
        before, text = f"evaluations = {self.in_file}\n", path.read_text()
        assert text.count(before) == 1
        # A value that the file never had: with one that it had, an earlier `hpo set` would hold.
        self.in_file = max([self.in_file, len(self.before), *self.set_to]) + MORE_EVALUATIONS
        self.set_before = self._applied()["set"]
        path.write_text(text.replace(before, f"evaluations = {self.in_file}\n"))

    def _wait(self, seconds: float) -> None:
        assert self.command is not None
        try:
            self.command.process.wait(seconds)
        except subprocess.TimeoutExpired:
            pass

    # --- the truth ------------------------------------------------------------------------------------------------

    def noted(self, word: str) -> dict[str, list[str]]:
        path = notes_of(self.terminal) / "side.txt"
        found: dict[str, list[str]] = {}
        for line in path.read_text().splitlines() if path.exists() else []:
            kind, identity, value = line.split()
            if kind == word:
                found.setdefault(identity, []).append(value)
        return found

    def check(self) -> dict[str, End]:
        """The ends that count now, by id, compared with what was and with what the tasks noted."""
        if not self._journals():
            assert not self.ends, "the journals are lost"
            return {}
        ends: dict[tuple[str, int], End] = {}
        for record in self.terminal.records("finished"):
            if record["status"] == "interrupted":  # it goes on under the same id
                continue
            run = record.get("reopened", 0)
            when = record.get("started"), record.get("finished")
            end = End(run, record["status"], record["objectives"], record["params"], when)
            # After a write that failed, the same record may stand in the next part of the journal again.
            first = ends.setdefault((record["id"], run), end)
            assert first == end, f"{record['id']} is recorded twice"
        assert {name: ends.get(name) for name in self.ends} == self.ends, "a record is lost or changed"
        reopened: Counter[str] = Counter()
        for record in self.terminal.records("reopened"):
            name, number = record["id"], record["number"]
            reopened[name] = max(reopened[name], number)
            failed = ends.get((name, number - 1))
            assert failed is not None and failed.status in FAILURES, f"{name} was reopened and had not failed"
        # That one was reopened is lost where rank 0 died before its journal could be written; its next run shows it.
        for record in self.terminal.records("started"):
            reopened[record["id"]] = max(reopened[record["id"]], record.get("reopened", 0))
        now = {name: end for (name, run), end in ends.items() if run == reopened[name]}
        ended, begun = self.noted("ended"), self.noted("begun")
        for (name, _), end in ends.items():
            if end.status == "completed":
                assert isinstance(end.objectives, dict)
                assert str(end.objectives["value"]) in ended.get(name, []), f"{name} completed without an end"
            # An individual whose evaluators died before it began each time never got to note anything.
            assert name in begun or end.status == "crashed", f"{name} is on record and never began"
            assert set(begun.get(name, [])) <= {str(end.params["x"])}, f"{name} is two configurations"
        configurations = Counter(str(end.params) for end in now.values())
        assert not configurations or max(configurations.values()) == 1, "a configuration was done twice"
        self._check_commands()
        self.before, self.ends = now, ends
        return now

    def _check_commands(self) -> None:
        """Each is an entry of the ledger."""
        known = self._applied()
        for name, number in self.given.items():
            assert number <= known[name], f"{number - known[name]} `hpo {name}` of {number} are lost"


@contextmanager
def workplace(disk_mib: int) -> Iterator[tuple[Path, Path | None]]:
    """A directory for a terminal, a small disk of its own where this user may mount one; which is also returned."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        directory = Path(name) / "disk"
        directory.mkdir()
        line = ["mount", "-t", "tmpfs", "-o", f"size={disk_mib}M,nr_inodes=100000", "tmpfs", str(directory)]
        try:
            mounted = subprocess.run(line, capture_output=True, check=False, timeout=20).returncode == 0
        except FileNotFoundError:
            mounted = False
        try:
            yield directory, directory if mounted else None
        finally:
            if mounted:
                subprocess.run(["umount", "-l", str(directory)], check=True, timeout=20)


def prepare(terminal: Terminal, *, evaluations: int, ranks_per_worker: int) -> None:
    notes = notes_of(terminal)
    notes.mkdir()
    words = {
        "NOTES": str(notes / "side.txt"),
        "SICK_ONES": str(notes / "sick.txt"),
        "UNHEALTHY": 0.1,
        "SECONDS": 0.2,
    }
    text = TASK
    for word, value in words.items():
        text = text.replace(word, repr(value))
    terminal.write("task.py", text)
    text = CAMPAIGN.format(ranks_per_worker=ranks_per_worker)
    terminal.campaign(text, evaluations=evaluations, kind="default")


def chaos(
    *, seed: int, actions: int, evaluations: int, ranks: int, ranks_per_worker: int = 2
) -> dict[str, Any]:
    """Figures of one chaotic campaign; AssertionError where anything is not as it should be."""
    began = time.monotonic()
    with workplace(24) as (directory, disk):
        terminal = Terminal(directory)
        prepare(terminal, evaluations=evaluations, ranks_per_worker=ranks_per_worker)
        one = Chaos(terminal, seed=seed, ranks=ranks, evaluations=evaluations, disk=disk)
        try:
            one.run(actions)
            counts = terminal.status()["evaluations"]
            assert isinstance(counts, dict)
            assert sum(counts.values()) == one.budget
        except AssertionError:
            kept = tempfile.mkdtemp(prefix="chaos-kept-")
            shutil.copytree(
                directory.parent,
                kept,
                dirs_exist_ok=True,
                ignore_dangling_symlinks=True,
                ignore=shutil.ignore_patterns("evaluations", "commands"),
            )
            print(f"the campaign and what the tasks noted are kept in {kept}", file=sys.stderr)
            raise
        finally:
            terminal.kill()
        ended = one.noted("ended")
        launched = len({record["time"] for record in terminal.records("launched")})
        return {
            "benchmark": "chaos",
            "seed": seed,
            "ranks": ranks,
            "actions": dict(sorted(one.done.items())),
            "commands": one.launches,
            "launches": launched,
            "evaluations": one.budget,
            "reopened": len(one.ends) - len(one.before),
            "statuses": {name: count for name, count in counts.items() if count},
            "unrecorded_done_again": sum(len(values) - 1 for values in ended.values()),
            "seconds": round(time.monotonic() - began, 1),
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--actions", type=int, default=30, help="things that happen")
    parser.add_argument("--evaluations", type=int, default=400)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--ranks-per-worker", type=int, default=2)
    options = parser.parse_args()
    arguments = {
        "evaluations": options.evaluations,
        "ranks": options.ranks,
        "ranks_per_worker": options.ranks_per_worker,
    }
    try:
        found = chaos(seed=options.seed, actions=options.actions, **arguments)
    except AssertionError:
        print(
            f"again: python tests/chaos.py --seed {options.seed} --actions {options.actions} "
            f"--evaluations {options.evaluations} --ranks {options.ranks} "
            f"--ranks-per-worker {options.ranks_per_worker}",
            file=sys.stderr,
        )
        raise
    print(json.dumps(found))


if __name__ == "__main__":
    main()
