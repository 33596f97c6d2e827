"""Chaos on the real thing: a campaign of eight ranks with evaluators, to which everything happens at random.

    python tests/chaos.py [--seed 0] [--actions 30] [--evaluations 400] [--ranks 8] [--healthy SECONDS]

Two islands of workers of two ranks evaluate a task of some 0.2 s, one of ten evaluations of which goes wrong in one
of nine ways. Meanwhile evaluators, ranks, mpirun and the whole job are killed, processes are stopped and continued,
the command is told to end by signal and by ``hpo stop``, and the disk fills up (a tmpfs, where this user may mount
one). The command is typed again whenever it has ended before the budget is used; where the budget is used before all
the actions have happened, it is raised and the campaign goes on.

After every launch, and in the end, the journals are compared with what the tasks themselves wrote down elsewhere:
nothing recorded is lost, changed or recorded twice; no configuration is evaluated under two ids; what is recorded as
completed did end, with the value that the task had; the budget is used to the unit. AssertionError with the line that
begins the same chaos again, else one line of JSON.

``--healthy SECONDS`` then runs a campaign of evaluations of so many seconds twice without chaos, with and without the
tasks that go wrong: how many evaluations a second remain, over the share that is healthy. One that dies costs a new
start of its evaluators, one that hangs four times the median evaluation."""

from __future__ import annotations

import argparse
import json
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
from typing import Any

import psutil
from terminal import Command, Terminal

TASK = """
import ctypes, os, random, signal, sys, time
import hpo

SIDE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "side.txt")
WAYS = ("raises", "nan", "text", "sys.exit", "hangs", "exits", "segfaults", "killed", "aborts")


def note(*words):
    handle = os.open(SIDE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(handle, (" ".join(map(str, words)) + "\\n").encode())
    os.close(handle)


def evaluate(trial):
    rng = random.Random(trial.seed)
    way = rng.choice(WAYS) if rng.random() < UNHEALTHY else "is well"
    seconds = rng.lognormvariate(0.0, 0.5) * SECONDS
    if trial.rank == 0:
        note("begun", trial.id, trial.params["x"])
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
timeout = {timeout}
grace = 5
"""

MOST_LAUNCHES = 200
STILL_LIMIT_S = 150.0
"""For so long nothing may be recorded, the start of new launches included."""
FILLED_S = 0.5
MORE_EVALUATIONS = 40


class Chaos:
    """One campaign in one directory, and what has been done to it."""

    def __init__(
        self, terminal: Terminal, *, seed: int, ranks: int, evaluations: int, disk: Path | None
    ) -> None:
        self.terminal = terminal
        self.evaluations = evaluations
        self.rng = random.Random(seed)
        self.ranks = ranks
        self.disk = disk
        self.done: Counter[str] = Counter()
        self.launches = 0
        self.before: dict[str, tuple[object, ...]] = {}
        self.command: Command | None = None
        self.actions: dict[str, tuple[int, Callable[[], bool]]] = {
            "evaluator killed": (6, lambda: self._signal(self.terminal.evaluators(), signal.SIGKILL)),
            "rank killed": (5, lambda: self._signal(self._ranks(but=0), signal.SIGKILL)),
            "two ranks killed": (2, lambda: self._signal(self._ranks(but=0), signal.SIGKILL, number=2)),
            "rank 0 killed": (1, lambda: self._signal(self._ranks(only=0), signal.SIGKILL)),
            "mpirun killed": (1, lambda: self._signal(self._mpirun(), signal.SIGKILL)),
            "whole job killed": (1, self._kill_all),
            "evaluator stopped": (3, lambda: self._pause(self.terminal.evaluators())),
            "rank stopped": (3, lambda: self._pause(self._ranks())),
            "SIGTERM": (1, lambda: self._tell(signal.SIGTERM)),
            "hpo stop": (1, self._stop),
            "disk full": (2 if disk else 0, self._fill),
        }

    # --- what happens -------------------------------------------------------------------------------------------

    def _ranks(self, *, but: int | None = None, only: int | None = None) -> list[psutil.Process]:
        found = []
        for number in range(self.ranks):
            process = self.terminal.rank(number) if number != but and only in (None, number) else None
            if process is not None:
                found.append(process)
        return found

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

    def _pause(self, processes: list[psutil.Process]) -> bool:
        if not processes:
            return False
        one = self.rng.choice(processes)
        try:
            one.suspend()
            time.sleep(self.rng.uniform(0.1, 1.5))
            one.resume()
        except psutil.NoSuchProcess:
            pass
        return True

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

    def _stop(self) -> bool:
        return self.terminal.hpo("stop", "run").returncode == 0

    def _fill(self) -> bool:
        assert self.disk is not None
        if not (self.disk / "campaign.json").exists():  # a directory with a file of others is refused
            return False
        filler = self.disk / "filler"
        try:
            with open(filler, "wb", buffering=0) as file:
                while True:
                    file.write(bytes(1024))
        except OSError:
            pass
        time.sleep(FILLED_S)
        filler.unlink()
        return True

    # --- the campaign ---------------------------------------------------------------------------------------------

    def launch(self) -> None:
        self.launches += 1
        assert self.launches <= MOST_LAUNCHES, "it does not come to its end"
        begun = sum(map(len, self.noted("begun").values()))
        self.command = self.terminal.start("run", "c.toml", "--ranks", self.ranks)
        if self.rng.random() < 0.75:  # else things may happen while it starts
            end = time.monotonic() + 60.0
            while sum(map(len, self.noted("begun").values())) == begun and time.monotonic() < end:
                self._wait(0.2)
                if self.command.process.returncode is not None:
                    break

    def run(self, actions: int) -> int:
        """The command's last exit code; chaos until ``actions`` have happened, then peace."""
        self.launch()
        moved, size = time.monotonic(), self._recorded()
        while True:
            assert self.command is not None
            if size != (size := self._recorded()):
                moved = time.monotonic()
            if self.command.process.poll() is not None:
                done = self.command.wait(30)
                self.check()
                assert done.returncode in (0, 1, 75, -signal.SIGKILL), done.stderr
                assert "Traceback" not in done.stderr or done.returncode == 1, done.stderr
                if done.returncode == 1:
                    # Only the disk is an error of the environment here, or who kills each launch before it has begun.
                    assert "No space left" in done.stderr or "nothing gets done" in done.stderr, done.stderr
                if done.returncode == 0:
                    assert len(self.before) == self.evaluations, (
                        f"{len(self.before)} of {self.evaluations} are on record\n{done}"
                    )
                    if sum(self.done.values()) >= actions:
                        return 0
                    self._raise_budget()
                self.terminal.kill()
                self.launch()
                moved = time.monotonic()
            elif sum(self.done.values()) < actions:
                self._wait(self.rng.expovariate(1 / 1.5))
                names = list(self.actions)
                (name,) = self.rng.choices(names, [self.actions[name][0] for name in names])
                if self.actions[name][1]():
                    self.done[name] += 1
                    print(f"{sum(self.done.values()):3} {name}", file=sys.stderr, flush=True)
            else:
                self._wait(0.2)
            assert time.monotonic() - moved < STILL_LIMIT_S, "nothing is recorded any more: it hangs"

    def _recorded(self) -> int:
        """Bytes in the journals."""
        return sum(path.stat().st_size for path in (self.terminal.directory / "run" / "journal").glob("*"))

    def _raise_budget(self) -> None:
        path = self.terminal.directory / "c.toml"
        before, text = f"evaluations = {self.evaluations}\n", path.read_text()
        assert text.count(before) == 1
        self.evaluations += MORE_EVALUATIONS
        path.write_text(text.replace(before, f"evaluations = {self.evaluations}\n"))

    def _wait(self, seconds: float) -> None:
        assert self.command is not None
        try:
            self.command.process.wait(seconds)
        except subprocess.TimeoutExpired:
            pass

    # --- the truth ------------------------------------------------------------------------------------------------

    def noted(self, word: str) -> dict[str, list[str]]:
        path = self.terminal.directory / "side.txt"
        found: dict[str, list[str]] = {}
        for line in path.read_text().splitlines() if path.exists() else []:
            kind, identity, value = line.split()
            if kind == word:
                found.setdefault(identity, []).append(value)
        return found

    def check(self) -> dict[str, tuple[object, ...]]:
        """What is on record now, compared with what was and with what the tasks noted."""
        now: dict[str, tuple[object, ...]] = {}
        if not (self.terminal.directory / "run" / "journal").exists():
            return now
        for record in self.terminal.records("finished"):
            if record["status"] == "interrupted":  # it goes on under the same id
                continue
            assert record["id"] not in now, f"{record['id']} is recorded twice"
            now[record["id"]] = (record["status"], record["objectives"], record["params"])
        assert {name: now.get(name) for name in self.before} == self.before, "a record is lost or changed"
        ended, begun = self.noted("ended"), self.noted("begun")
        for name, (status, objectives, params) in now.items():
            if status == "completed":
                assert isinstance(objectives, dict)
                assert str(objectives["value"]) in ended.get(name, []), f"{name} completed without an end"
            # An individual whose evaluators died before it began each time never got to note anything.
            assert isinstance(params, dict)
            assert name in begun or status == "crashed", f"{name} is on record and never began"
            assert set(begun.get(name, [])) <= {str(params["x"])}, f"{name} is two configurations"
        configurations = Counter(str(params) for _, _, params in now.values())
        assert not configurations or max(configurations.values()) == 1, "a configuration was done twice"
        self.before = now
        return now


@contextmanager
def workplace(disk_mib: int) -> Iterator[tuple[Path, Path | None]]:
    """A directory for a terminal, and in it run/ as a small disk of its own where this user may mount one."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        directory = Path(name)
        run = directory / "run"
        run.mkdir()
        line = ["mount", "-t", "tmpfs", "-o", f"size={disk_mib}M", "tmpfs", str(run)]
        try:
            mounted = subprocess.run(line, capture_output=True, check=False, timeout=20).returncode == 0
        except FileNotFoundError:
            mounted = False
        try:
            yield directory, run if mounted else None
        finally:
            if mounted:
                subprocess.run(["umount", "-l", str(run)], check=True, timeout=20)


def prepare(
    terminal: Terminal, *, evaluations: int, ranks_per_worker: int, unhealthy: float, seconds: float = 0.2
) -> None:
    """``seconds``: the median of an evaluation's; hardly any takes four times as long."""
    terminal.write("task.py", TASK.replace("UNHEALTHY", repr(unhealthy)).replace("SECONDS", repr(seconds)))
    text = CAMPAIGN.format(ranks_per_worker=ranks_per_worker, timeout=max(3.0, 4.0 * seconds))
    terminal.campaign(text, evaluations=evaluations, kind="default")


def chaos(
    *, seed: int, actions: int, evaluations: int, ranks: int, ranks_per_worker: int = 2
) -> dict[str, Any]:
    """Figures of one chaotic campaign; AssertionError where anything is not as it should be."""
    began = time.monotonic()
    with workplace(24) as (directory, disk):
        terminal = Terminal(directory)
        prepare(terminal, evaluations=evaluations, ranks_per_worker=ranks_per_worker, unhealthy=0.1)
        one = Chaos(terminal, seed=seed, ranks=ranks, evaluations=evaluations, disk=disk)
        try:
            one.run(actions)
            checked = terminal.hpo("check", "run")
            assert checked.returncode == 0, checked.stdout
            counts = terminal.status()["evaluations"]
            assert isinstance(counts, dict)
            assert sum(counts.values()) == one.evaluations
        except AssertionError:
            kept = tempfile.mkdtemp(prefix="chaos-kept-")
            shutil.copytree(directory, kept, dirs_exist_ok=True)
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
            "evaluations": one.evaluations,
            "statuses": {name: count for name, count in counts.items() if count},
            "unrecorded_done_again": sum(len(values) - 1 for values in ended.values()),
            "seconds": round(time.monotonic() - began, 1),
        }


def healthy_share(
    *, evaluations: int, ranks: int, seconds: float, ranks_per_worker: int = 2
) -> dict[str, float]:
    """Completed evaluations a second with one of ten going wrong, over those where none does, over 0.9."""
    rates = []
    for unhealthy in (0.0, 0.1):
        with workplace(64) as (directory, _):
            terminal = Terminal(directory)
            prepare(
                terminal,
                evaluations=evaluations,
                ranks_per_worker=ranks_per_worker,
                unhealthy=unhealthy,
                seconds=seconds,
            )
            try:
                done = terminal.hpo("run", "c.toml", "--ranks", ranks, seconds=600)
                assert done.returncode == 0, done.stderr
            finally:
                terminal.kill()
            records = terminal.records("finished")
            times = [record["finished"] for record in records]
            completed = sum(record["status"] == "completed" for record in records)
            begun = min(record["time"] for record in terminal.records("started"))
            rates.append(completed / (max(times) - begun))
    return {
        "completed_a_second": rates[0],
        "with_failures": rates[1],
        "of_healthy_share": rates[1] / rates[0] / 0.9,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--actions", type=int, default=30, help="things that happen")
    parser.add_argument("--evaluations", type=int, default=400)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument(
        "--healthy", type=float, help="also measure throughput with failing tasks of these seconds"
    )
    options = parser.parse_args()
    arguments = {"evaluations": options.evaluations, "ranks": options.ranks}
    try:
        found = chaos(seed=options.seed, actions=options.actions, **arguments)
    except AssertionError:
        print(
            f"again: python tests/chaos.py --seed {options.seed} --actions {options.actions} "
            f"--evaluations {options.evaluations} --ranks {options.ranks}",
            file=sys.stderr,
        )
        raise
    if options.healthy:
        found |= healthy_share(seconds=options.healthy, **arguments)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
