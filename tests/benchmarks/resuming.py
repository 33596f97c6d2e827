"""What the next launch of a large campaign reads before it serves, from its snapshot on and from the journals alone.

    python tests/benchmarks/resuming.py [--evaluations 1000000] [--repeat 3] [--quick]

The journals of ten launches of four workers in two islands are written by hand: ten floats an individual, of which 3 %
failed and 5 % migrated. Each start is a process of its own that folds as rank 0 does, imports not counted: all
journals, without a snapshot and without taking one; the eleventh launch, with the snapshot that the tenth took, and
with the next one taken, as then; and a start after that, which finds nothing new. Seconds are medians, in turn; memory
is the peak of the process, with and without what was there before the fold. Ends in one line of JSON."""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from launching import single_threaded

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from individuals import make_finished, make_started

import hpo
from hpo.islands.resume import snapshot
from hpo.islands.resume.fold import fold_directory
from hpo.journal.files import JournalWriter, journal_files, journal_path
from hpo.journal.records import Header, Launched, Migrated

LAUNCHES, WORKERS, ISLANDS, FLOATS, BATCH = 10, 4, 2, 10, 10_000
SPACE = hpo.SearchSpace({f"x{index}": hpo.Float(-5.12, 5.12) for index in range(FLOATS)})


def losses(objectives: dict[str, float]) -> tuple[float, ...]:
    return tuple(objectives.values())


def write_launch(directory: Path, launch: int, each: int) -> None:
    """``each`` evaluations by every worker."""
    for number in range(WORKERS):
        rng = random.Random(launch * WORKERS + number)
        island, worker = number % ISLANDS, number // ISLANDS
        path = journal_path(directory, launch=launch, island=island, worker=worker)
        began = 1e9 + launch * each
        header = Header(version=1, launch=launch, island=island, worker=worker, time=began)
        with JournalWriter(path, header) as journal:
            if number == 0:
                workers = {"islands": ISLANDS, "workers": WORKERS}
                journal.append(Launched(evaluations=None, deadline_s=None, time=began, **workers))
            for sequence in range((launch - 1) * each, launch * each):
                place = {"island": island, "worker": worker, "sequence": sequence}
                of = {
                    **place,
                    "id": "-".join(map(str, place.values())),
                    "params": SPACE.decode(SPACE.sample(rng)),
                    "operator": "random",
                    "parents": (),
                    "retries": 0,
                }
                journal.append(make_started(**of, time=began + sequence))
                failed = rng.random() < 0.03
                journal.append(
                    make_finished(
                        **of,
                        started=began + sequence,
                        finished=began + sequence + 0.5,
                        status="failed" if failed else "completed",
                        objectives=None if failed else {"value": rng.random()},
                        metrics={},
                        error="Traceback …\nRuntimeError: no such mount" if failed else None,
                    )
                )
                if not failed and rng.random() < 0.05:
                    journal.append(
                        Migrated(
                            id=of["id"],
                            source=island,
                            target=1 - island,
                            hop=0,
                            copy=False,
                            time=began + sequence,
                        )
                    )
                if sequence % BATCH == 0:
                    journal.commit()


def memory_mib(key: str) -> float:
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith(key))) / 1024


def start(directory: Path, *, take_snapshot: bool) -> dict[str, float]:
    """As rank 0 of a launch does it."""
    before = memory_mib("VmRSS")
    begun, cpu = time.perf_counter(), time.process_time()
    state = fold_directory(
        directory, space=SPACE, islands=ISLANDS, losses=losses, take_snapshot=take_snapshot
    )
    row = {"s": time.perf_counter() - begun, "cpu_s": time.process_time() - cpu}
    peak = memory_mib("VmHWM")
    if state.snapshot:
        snapshot.write_beside(directory, state.snapshot)()
    return {**row, "peak_mib": peak, "grown_mib": peak - before, "evaluations": state.tally.final}


def started(directory: Path, *options: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--start", str(directory), *options]
    done = subprocess.run(command, env=single_threaded(), capture_output=True, check=True, timeout=900)
    row: dict[str, float] = json.loads(done.stdout)
    return row


def measure(evaluations: int, repeat: int) -> dict[str, dict[str, float]]:
    found: dict[str, list[dict[str, float]]] = {"journals": [], "eleventh": [], "again": []}
    with tempfile.TemporaryDirectory(prefix="resuming-") as scratch:
        directory = Path(scratch)
        (directory / "campaign.json").write_text("{}")
        taken = directory / "journal/snapshot"
        for launch in range(1, LAUNCHES + 1):
            if launch == LAUNCHES:
                started(directory, "--take")
                tenth = taken.read_bytes()
            write_launch(directory, launch, evaluations // LAUNCHES // WORKERS)
        for _ in range(repeat):
            taken.unlink()
            found["journals"].append(started(directory))
            taken.write_bytes(tenth)
            found["eleventh"].append(started(directory, "--take"))
            found["again"].append(started(directory, "--take"))
        sizes = {"journals_mb": sum(path.stat().st_size for path in journal_files(directory)) / 1e6}
        sizes["snapshot_mb"] = taken.stat().st_size / 1e6
    if len({row["evaluations"] for rows in found.values() for row in rows}) > 1:
        raise SystemExit(f"the starts do not agree: {found}")
    medians = {
        name: {key: statistics.median(row[key] for row in rows) for key in rows[0]}
        for name, rows in found.items()
    }
    return {**medians, "sizes": sizes}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--evaluations", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="20 000 evaluations, once")
    parser.add_argument("--start", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--take", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.start:
        print(json.dumps(start(options.start, take_snapshot=options.take)))
        return
    if options.quick:
        options.evaluations, options.repeat = 20_000, 1
    row = measure(options.evaluations, options.repeat)
    for name in ("journals", "eleventh", "again"):
        print(f"{name:10s}" + "".join(f"  {key} {value:.2f}" for key, value in row[name].items()), flush=True)
    ratios = {f"to_fold_{key}": row["eleventh"][key] / row["journals"][key] for key in ("s", "cpu_s")}
    print(
        "eleventh launch over all journals: {to_fold_s:.3f}, processor time {to_fold_cpu_s:.3f}".format(
            **ratios
        )
    )
    print(json.dumps({"benchmark": "resuming", **ratios, **row}))


if __name__ == "__main__":
    main()
