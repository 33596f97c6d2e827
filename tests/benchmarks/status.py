"""What `hpo status DIR --json` takes beside a campaign of a million evaluations, while that is at work and afterwards.

    python tests/benchmarks/status.py [--evaluations 1000000] [--quick]

The journals of nine launches are written by hand; then a launch on one rank, the eleventh, goes on with evaluations
of 50 ms. Seconds of the command, the start of Python included: beside the launch that is at work, after its end, and
with `status.json` removed, which folds the journals. Of the first two the median of five. Then what it takes to list
what runs on a thousand workers, from the ends of their journals, at first and when a tenth of them have begun
something else. Ends in one line of JSON."""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from arguments import parser_of
from launching import single_threaded

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from individuals import make_started
from living import at_work

import hpo
from hpo.individual import Outcome
from hpo.journal.directory import status_path
from hpo.journal.files import JournalWriter, journal_path
from hpo.journal.records import Finished, Header, Started
from hpo.results.running import Tails

RUNNING_S = 20.0
LAUNCHES, WORKERS, BATCH = 10, 4, 10_000
SPACE = hpo.SearchSpace({f"x{index}": hpo.Float(-5.12, 5.12) for index in range(10)})


def evaluate(trial: hpo.Trial) -> float:
    """A sum of squares, after 50 ms."""
    time.sleep(0.05)
    return sum(float(value) ** 2 for value in trial.params.values())  # type: ignore[arg-type]


def campaign(directory: Path, evaluations: int, seconds: float) -> hpo.Campaign:
    return hpo.Campaign(
        hpo.Task(SPACE, evaluate),
        directory=directory,
        evaluations=evaluations,
        deadline=seconds,
        isolation="inline",
        kind="random",
    )


def write_launch(directory: Path, launch: int, each: int) -> None:
    """``each`` evaluations by every worker."""
    for worker in range(WORKERS):
        rng = random.Random(launch * WORKERS + worker)
        path = journal_path(directory, launch=launch, island=0, worker=worker)
        with JournalWriter(path, Header.of_this_process(launch=launch, island=0, worker=worker)) as journal:
            for sequence in range(launch * each, (launch + 1) * each):
                begun = start(worker, sequence, rng)
                facts = {
                    "configuration": begun.configuration,
                    "attempt": begun.attempt,
                    "started": begun.time,
                }
                outcome = Outcome(status="completed", objectives={"value": rng.random()}, seconds=0.5)
                journal.append(begun)
                journal.append(Finished(**facts, finished=begun.time + 0.5, outcome=outcome))
                if sequence % BATCH == 0:
                    journal.commit()


def measure_running(workers: int) -> dict[str, float]:
    """Seconds to list what ``workers`` workers run, at first and again."""
    rng = random.Random(0)
    with tempfile.TemporaryDirectory(prefix="status-") as scratch:
        directory = Path(scratch)
        journals = []
        with at_work(directory, workers):
            for worker in range(workers):
                path = journal_path(directory, launch=1, island=0, worker=worker)
                journals.append(
                    JournalWriter(path, Header.of_this_process(launch=1, island=0, worker=worker))
                )
            for sequence in range(20):
                for worker, journal in enumerate(journals):
                    journal.append(start(worker, sequence, rng))
            for journal in journals:
                journal.commit()
            tails = Tails(directory)
            seconds = []
            for _ in range(2):
                begun = time.perf_counter()
                found = len(tails.poll())
                seconds.append(time.perf_counter() - begun)
                if found != workers:
                    raise SystemExit(f"{found} of {workers} were listed")
                for worker, journal in enumerate(journals[: workers // 10]):
                    journal.append(start(worker, 20, rng))
                    journal.commit()
            for journal in journals:
                journal.close()
        return {"running_s": seconds[0], "running_again_s": seconds[1]}


def start(worker: int, sequence: int, rng: random.Random) -> Started:
    return make_started(
        id=f"0-{worker}-{sequence}",
        params=SPACE.decode(SPACE.sample(rng)),
        operator="random",
        time=1e9 + sequence,
    )


def status(directory: Path) -> tuple[float, dict[str, object]]:
    """Seconds of the command, and what it printed."""
    begun = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "hpo", "status", str(directory), "--json"],
        env=single_threaded(),
        capture_output=True,
        check=True,
        timeout=300,
    )
    return time.perf_counter() - begun, json.loads(done.stdout)


def several(directory: Path, state: str) -> float:
    found = [status(directory) for _ in range(5)]
    states = {str(table["state"]) for _, table in found}
    if states != {state}:
        raise SystemExit(f"the campaign was to be {state}, and was {', '.join(states)}")
    return statistics.median(seconds for seconds, _ in found)


def measure(evaluations: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="status-") as scratch:
        directory = Path(scratch, "campaign")
        campaign(directory, 8, 60.0).run()
        for launch in range(2, LAUNCHES + 1):
            write_launch(directory, launch, evaluations // (LAUNCHES - 1) // WORKERS)
        shutil.rmtree(directory / "ledger")  # as in a campaign of an earlier version, which goes on
        begun = time.perf_counter()
        command = [sys.executable, __file__, "--serve", str(directory), "--evaluations", str(2 * evaluations)]
        with subprocess.Popen(command, env=single_threaded(), stderr=subprocess.DEVNULL) as launch:
            try:
                while not status_path(directory, LAUNCHES + 1).exists():
                    if launch.poll() is not None or time.perf_counter() > begun + 600:
                        raise SystemExit("the launch did not begin")
                    time.sleep(0.01)
                resumed_s = time.perf_counter() - begun
                working_s = several(directory, "running")
                launch.wait(120)
            finally:
                launch.kill()
        after_s = several(directory, "stopped")
        cached = status(directory)[1]
        status_path(directory, LAUNCHES + 1).unlink()
        folded_s, folded = status(directory)
        if cached != folded:
            raise SystemExit(f"status.json says {cached}, and the journals {folded}")
        return {"resume_s": resumed_s, "working_s": working_s, "after_s": after_s, "folded_s": folded_s}


def main() -> None:
    parser = parser_of(__doc__, quick="10 000 evaluations")
    parser.add_argument("--evaluations", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        campaign(options.serve, options.evaluations, RUNNING_S).run()
        return
    if options.quick:
        options.evaluations = 10_000
    row = measure_running(options.workers) | measure(options.evaluations)
    for key, value in row.items():
        print(f"{key:12s} {value:.2f}", flush=True)
    print(json.dumps({"benchmark": "status", "evaluations": options.evaluations, **row}))


if __name__ == "__main__":
    main()
