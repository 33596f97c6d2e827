"""Entries a second that forty processes append to one ledger, half of them killed on the way, beside Optuna's journal.

    python tests/benchmarks/ledger.py [--directory DIR] [--writers 40] [--entries 20] [--quick]

Each writer joins as a launch, and then draws and returns a unit in turn, as fast as it can. Optuna's writers append an
attribute of their study to a ``JournalFileBackend`` with its lock by symbolic links, which is the one that it advises
for NFS. Both sync each entry, in DIR (default: a temporary directory). Then half of the writers of a further ledger are
killed by SIGKILL at random: all others must go on, and the chain must be whole. Ends in one line of JSON: medians of
three runs, `ratio_to_optuna` of entries a second, tries an entry, and what reading takes."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from arguments import parser_of
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock

from hpo.ledger.entries import Drew, Joined, LedgerEntry, Limits, Opened, UnitsReturned
from hpo.ledger.fold import LedgerState
from hpo.ledger.ledger import Ledger
from hpo.ledger.store import FileStore, Folder

RUNS = 3
Timed = tuple[float, list[float], int]
"""Seconds until the last writer ended, seconds of each entry, and the number of tries."""


class Counting(FileStore):
    """A store that counts how often an entry was tried."""

    tries = 0

    def append(self, after: int, line: bytes) -> bool:
        self.tries += 1
        return super().append(after, line)


def write_ours(folder: Path, entries: int, done: Any) -> None:
    """Join, then draw and return in turn."""
    store = Counting(Folder(folder))
    ledger = Ledger(store)
    mine = 0

    def join(state: LedgerState) -> LedgerEntry:
        return Joined(launch=state.launches + 1, workers=1, first_worker=state.workers)

    def draw(state: LedgerState) -> LedgerEntry:
        held = state.open[mine].fresh
        return UnitsReturned(launch=mine, fresh=1) if held else Drew(launch=mine, fresh=1)

    seconds = []
    for number in range(entries):
        began = time.perf_counter()
        entry = ledger.append(draw if number else join)
        seconds.append(time.perf_counter() - began)
        mine = entry.launch if isinstance(entry, Joined) else mine
    if done is not None:
        done.put((seconds, store.tries))


def write_optuna(folder: Path, entries: int, done: Any) -> None:
    """Append an attribute of the study, and read what others have appended, as each trial does."""
    path = str(folder / "journal.log")
    backend = JournalFileBackend(path, lock_obj=JournalFileSymlinkLock(path))
    seconds, read = [], 0
    for number in range(entries):
        began = time.perf_counter()
        backend.append_logs(
            [{"op_code": 2, "worker_id": os.getpid(), "study_id": 0, "user_attr": {"n": number}}]
        )
        read += sum(1 for _ in backend.read_logs(read))
        seconds.append(time.perf_counter() - began)
    done.put((seconds, entries))


def run(write: Callable[..., None], folder: Path, writers: int, entries: int) -> Timed:
    """``writers`` processes that append ``entries`` each."""
    context = multiprocessing.get_context("fork")
    done = context.Queue()
    processes = [context.Process(target=write, args=(folder, entries, done)) for _ in range(writers)]
    began = time.perf_counter()
    for process in processes:
        process.start()
    found = [done.get(timeout=600) for _ in processes]
    seconds = time.perf_counter() - began
    for process in processes:
        process.join(60)
    return seconds, [one for each, _ in found for one in each], sum(tries for _, tries in found)


def opened(folder: Path) -> Ledger:
    """A new ledger in ``folder``."""
    folder.mkdir()
    ledger = Ledger(FileStore(Folder(folder)))
    ledger.append(lambda state: Opened(limits=Limits(evaluations=1_000_000), islands=1, seed=0))
    return ledger


def read_us(folder: Path) -> float:
    """Microseconds an entry to read and check the whole ledger in ``folder``."""
    began = time.perf_counter()
    ledger = Ledger(FileStore(Folder(folder)))
    ledger.read_on()
    return (time.perf_counter() - began) / ledger.state.entries * 1e6


def survivors(folder: Path, writers: int, entries: int) -> dict[str, int]:
    """Kill half of the writers while they append; SystemExit where the others have lost an entry."""
    rng = random.Random(0)
    opened(folder)
    context = multiprocessing.get_context("fork")
    # A writer that is killed could hold the lock of a queue.
    processes = [context.Process(target=write_ours, args=(folder, entries, None)) for _ in range(writers)]
    for process in processes:
        process.start()
    for process in processes[: writers // 2]:
        time.sleep(rng.uniform(0, 0.02))
        process.kill()
    for process in processes:
        process.join(600)
    codes = [process.exitcode for process in processes]
    # Raises where the chain is not whole.
    found = Counter(getattr(entry, "launch", 0) for entry in Ledger(FileStore(Folder(folder))).read_on())
    complete = sum(number == entries for number in found.values())
    if complete < codes.count(0):
        raise SystemExit(
            f"{codes.count(0)} writers came to their end, and {complete} launches have all entries"
        )
    return {"entries": found.total(), "killed": codes.count(-signal.SIGKILL), "ended": codes.count(0)}


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def main(arguments: list[str]) -> int:
    parser = parser_of(__doc__, "four writers of five entries")
    parser.add_argument("--directory", type=Path, default=None, help="file system to measure")
    parser.add_argument("--writers", type=int, default=40)
    parser.add_argument("--entries", type=int, default=20, help="number of entries of each writer")
    options = parser.parse_args(arguments)
    writers, entries = (4, 5) if options.quick else (options.writers, options.entries)
    rates: dict[str, list[float]] = {"ours": [], "optuna": []}
    p99: dict[str, list[float]] = {"ours": [], "optuna": []}
    tries, reading = [], []
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        for number in range(RUNS):
            folder = Path(directory) / f"ledger{number}"
            opened(folder)
            (Path(directory) / f"optuna{number}").mkdir()
            timed = {
                "ours": run(write_ours, folder, writers, entries),
                "optuna": run(write_optuna, Path(directory) / f"optuna{number}", writers, entries),
            }
            for name, (seconds, each, _) in timed.items():
                rates[name].append(writers * entries / seconds)
                p99[name].append(quantile(each, 0.99))
            tries.append(timed["ours"][2] / writers / entries)
            reading.append(read_us(folder))
            print(
                f"run {number + 1}: {rates['ours'][-1]:.0f} entries a second, p99 {p99['ours'][-1]:.2f} s, "
                f"{tries[-1]:.2f} tries an entry; Optuna {rates['optuna'][-1]:.0f} a second, "
                f"p99 {p99['optuna'][-1]:.2f} s",
                flush=True,
            )
        killed = survivors(Path(directory) / "killed", writers, entries)
    print(
        f"{killed['killed']} of {writers} writers killed: the chain of {killed['entries']} entries is whole"
    )
    found = {
        "benchmark": "ledger",
        "writers": writers,
        "entries_per_s": round(statistics.median(rates["ours"]), 1),
        "ratio_to_optuna": round(statistics.median(rates["ours"]) / statistics.median(rates["optuna"]), 2),
        "p99_s": round(statistics.median(p99["ours"]), 3),
        "optuna_p99_s": round(statistics.median(p99["optuna"]), 3),
        "tries": round(statistics.median(tries), 2),
        "read_us": round(statistics.median(reading), 1),
        "killed": killed,
    }
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
