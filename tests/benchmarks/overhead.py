"""What a campaign adds to evaluations that do nothing, and how long it takes to get going.

    python tests/benchmarks/overhead.py [--repeat 3] [--quick]

Campaigns of one worker, started by ``hpo run``, on a task that returns at once:

- warm: milliseconds from the start of one evaluation to the start of the next, as the journal tells, for workers of one
  rank and of two; of that, from the start to the outcome: the evaluation alone. Median without the first ten;
- fresh: the same in seconds, where each evaluation gets new evaluators;
- reports: microseconds of processor time for ``trial.report`` with three metrics, without learning curves, and what
  curves add where the row is written and where it is dropped; blocks with and without them take turns in one
  evaluation. Of these, the cores that curves need for ten reports a second from each of 64 workers.

And seconds of the processes ``python -c pass``, ``python -c 'import hpo'`` and ``hpo --help``, and from starting
``hpo run --ranks 4`` to the first evaluation, which the task notes itself: for a task that imports torch on workers of
two ranks, and for a plain one on workers of one.

Medians over repeats. Ends in one line of JSON; ``of_limit`` divides each figure by what is asked of it."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from arguments import parser_of
from launching import single_threaded

from hpo.results.record import CampaignRecord, load

LIMITS = {
    "warm_1_ms": 10.0,
    "warm_2_ms": 10.0,
    "import_hpo_s": 0.3,
    "help_s": 0.3,
    "first_plain_s": 10.0,
    "first_torch_s": 10.0,
    "curves_cores": 0.01,
}
SKIPPED = 10

TASKS = '''"""Tasks that do nothing; written by a benchmark."""

import statistics
import time

import hpo


def empty(trial):
    return trial.params["x"]


def plain(trial):
    trial.log(begun=time.time())
    return trial.params["x"]


def grouped(trial):
    begun = time.time()
    import torch
    import torch.distributed

    torch.distributed.all_reduce(torch.zeros(1))
    trial.log(begun=begun)
    return trial.params["x"]


def reporting(trial):
    curve, spent = trial._curve, ([], [])
    for block in range(BLOCKS):
        trial._curve = curve if block % 2 else None
        begun = time.process_time()
        for step in range(50):
            trial.report(step, 0.5, loss=0.25, accuracy=0.75, lr=1e-3)
        spent[block % 2].append((time.process_time() - begun) / 50)
    without, kept = map(statistics.median, spent)
    trial.log(without=without, added=kept - without)
    return 0.0


BLOCKS = 100
space = hpo.SearchSpace(x=hpo.Float(0, 1))
empty_task, plain_task, torch_task, reporting_task = (
    hpo.Task(space, one) for one in (empty, plain, grouped, reporting)
)
'''

CAMPAIGN = """task = "tasks.py:{task}"
directory = "{directory}"
evaluations = {evaluations}

[layout]
ranks_per_worker = {ranks_per_worker}

[evaluation]
isolation = "{isolation}"

[logging]
every = "{every}"
"""


def campaign(
    scratch: Path, *, evaluations: int, ranks: int = 1, **settings: object
) -> tuple[float, CampaignRecord]:
    """Run one with ``hpo run``; when it was started (Unix seconds), and its record."""
    scratch = Path(tempfile.mkdtemp(dir=scratch))
    (scratch / "tasks.py").write_text(TASKS)
    settings = {
        "ranks_per_worker": 1,
        "isolation": "warm",
        "every": "1s",
        "evaluations": evaluations,
        **settings,
    }
    (scratch / "campaign.toml").write_text(CAMPAIGN.format(directory=scratch / "run", **settings))
    begun = time.time()
    done = subprocess.run(
        [sys.executable, "-m", "hpo", "run", str(scratch / "campaign.toml"), "--ranks", str(ranks)],
        env=single_threaded(),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"hpo run returned {done.returncode}:\n{done.stderr[-4000:]}")
    record = load(scratch / "run")
    failed = [one.error for one in record.individuals if one.status != "completed"]
    if failed or len(record.individuals) != evaluations:
        raise SystemExit(f"{len(failed)} of {evaluations} evaluations did not complete: {failed[:1]}")
    return begun, record


def trial_seconds(
    scratch: Path, *, ranks: int, isolation: str, evaluations: int, skipped: int
) -> tuple[float, float]:
    """Medians of start to next start, and of start to outcome, for one worker of ``ranks`` ranks."""
    _, record = campaign(
        scratch,
        task="empty_task",
        evaluations=evaluations,
        ranks=ranks,
        ranks_per_worker=ranks,
        isolation=isolation,
    )
    rows = record.individuals[skipped:]
    cycles = [later.started - one.started for one, later in pairwise(rows)]  # type: ignore[operator]
    return statistics.median(cycles), statistics.median(one.seconds for one in rows)  # type: ignore[type-var]


def first_evaluation(scratch: Path, *, task: str, ranks_per_worker: int) -> float:
    """Seconds from ``hpo run --ranks 4`` to the first evaluation, by the task's own clock."""
    begun, record = campaign(
        scratch, task=task, evaluations=8, ranks=4, ranks_per_worker=ranks_per_worker, isolation="warm"
    )
    return min(float(one.metrics["begun"]) for one in record.individuals) - begun  # type: ignore[arg-type]


def reports(scratch: Path, evaluations: int) -> dict[str, float]:
    """Microseconds of a report without curves, what these add, and the cores that 640 reports a second take."""
    found: dict[str, list[float]] = {"without": [], "1h": [], "0": []}
    for every in ("1h", "0"):
        _, record = campaign(scratch, task="reporting_task", evaluations=evaluations, every=every)
        found[every] = [1e6 * float(one.metrics["added"]) for one in record.individuals]  # type: ignore[arg-type]
        found["without"] += [1e6 * float(one.metrics["without"]) for one in record.individuals]  # type: ignore[arg-type]
    without, dropped, written = map(statistics.median, found.values())
    return {
        "report_us": without,
        "curve_dropped_us": dropped,
        "curve_written_us": written,
        "curves_cores": 64 * (9 * dropped + written) / 1e6,
    }


def process_seconds(arguments: list[str], calls: int) -> float:
    """Median wall-clock seconds of a process."""
    seconds = []
    for _ in range(calls):
        begun = time.perf_counter()
        subprocess.run(arguments, env=single_threaded(), capture_output=True, check=True, timeout=60)
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds)


def measure(scratch: Path, *, trials: int, fresh: int, calls: int, reporting: int) -> dict[str, float]:
    """All figures, once."""
    python = sys.executable
    row = {
        "python_s": process_seconds([python, "-c", "pass"], calls),
        "import_hpo_s": process_seconds([python, "-c", "import hpo"], calls),
        "help_s": process_seconds([str(Path(python).with_name("hpo")), "--help"], calls),
    }
    for ranks in (1, 2):
        cycle, alone = trial_seconds(
            scratch, ranks=ranks, isolation="warm", evaluations=trials, skipped=SKIPPED
        )
        row[f"warm_{ranks}_ms"] = 1e3 * cycle
        row[f"warm_{ranks}_evaluation_ms"] = 1e3 * alone
    for ranks in (1, 2):
        row[f"fresh_{ranks}_s"], _ = trial_seconds(
            scratch, ranks=ranks, isolation="fresh", evaluations=fresh, skipped=1
        )
    row |= reports(scratch, reporting)
    row["first_plain_s"] = first_evaluation(scratch, task="plain_task", ranks_per_worker=1)
    row["first_torch_s"] = first_evaluation(scratch, task="torch_task", ranks_per_worker=2)
    return row


def main() -> None:
    parser = parser_of(__doc__, quick="few evaluations, once")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    trials, fresh, calls, reporting = 300, 8, 7, 5
    if options.quick:
        options.repeat, trials, fresh, calls, reporting = 1, 2 * SKIPPED, 3, 1, 1
    rows = []
    with tempfile.TemporaryDirectory(prefix="overhead-") as scratch:
        for _ in range(options.repeat):
            rows.append(measure(Path(scratch), trials=trials, fresh=fresh, calls=calls, reporting=reporting))
            print("  ".join(f"{name} {value:.4g}" for name, value in rows[-1].items()), flush=True)
    result = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
    of_limit = {name: result[name] / limit for name, limit in LIMITS.items()}
    print(json.dumps({"benchmark": "overhead", **result, "of_limit": of_limit}))


if __name__ == "__main__":
    main()
