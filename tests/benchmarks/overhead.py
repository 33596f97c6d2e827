"""What a campaign adds to evaluations that do nothing, and how long it takes to get going.

    python tests/benchmarks/overhead.py [--repeat 3] [--quick]

Campaigns of one worker, started by ``hpo run``, on a task that returns at once:

- warm: milliseconds from the start of one evaluation to the start of the next, all that lies between
  included (evaluators' answers, two syncs of the journal, breeding, a permit), as the journal tells. The
  median over 300 evaluations, without the first ten. Workers of one rank and of two, whose evaluators form a
  torch.distributed group. Of that, from the start to the outcome: the evaluation alone;
- fresh: the same in seconds, where each evaluation gets new evaluators.

And:

- seconds of the processes ``python -c 'import hpo'`` and ``hpo --help``, the start of Python included, and of
  Python alone, ``python -c pass``;
- seconds from starting ``hpo run --ranks 4`` to the moment at which the first evaluation runs, which the task
  notes itself: for a task that imports torch on workers of two ranks, and for a plain one on workers of one.

Medians over repeats. Ends in one line of JSON; ``of_limit`` divides each figure by what is asked of it (10 ms
a trial warm, 0.3 s for an import, 10 s to the first evaluation)."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from launching import single_threaded

from hpo.results.record import CampaignRecord, load

LIMITS = {
    "warm_1_ms": 10.0,
    "warm_2_ms": 10.0,
    "import_hpo_s": 0.3,
    "help_s": 0.3,
    "first_plain_s": 10.0,
    "first_torch_s": 10.0,
}
SKIPPED = 10

TASKS = '''"""Tasks that do nothing; written by a benchmark."""

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


space = hpo.SearchSpace(x=hpo.Float(0, 1))
empty_task, plain_task, torch_task = (hpo.Task(space, one) for one in (empty, plain, grouped))
'''

CAMPAIGN = """task = "tasks.py:{task}"
directory = "{directory}"
evaluations = {evaluations}

[layout]
ranks_per_worker = {ranks_per_worker}

[evaluation]
isolation = "{isolation}"
"""


def campaign(
    scratch: Path, *, task: str, evaluations: int, ranks: int, ranks_per_worker: int, isolation: str
) -> tuple[float, CampaignRecord]:
    """Run one with ``hpo run``; when it was started (Unix seconds), and its record."""
    scratch = Path(tempfile.mkdtemp(dir=scratch))
    (scratch / "tasks.py").write_text(TASKS)
    text = CAMPAIGN.format(
        task=task,
        directory=scratch / "run",
        evaluations=evaluations,
        ranks_per_worker=ranks_per_worker,
        isolation=isolation,
    )
    (scratch / "campaign.toml").write_text(text)
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


def process_seconds(arguments: list[str], calls: int) -> float:
    """Median wall-clock seconds of a process."""
    seconds = []
    for _ in range(calls):
        begun = time.perf_counter()
        subprocess.run(arguments, env=single_threaded(), capture_output=True, check=True, timeout=60)
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds)


def measure(scratch: Path, *, trials: int, fresh: int, calls: int) -> dict[str, float]:
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
    row["first_plain_s"] = first_evaluation(scratch, task="plain_task", ranks_per_worker=1)
    row["first_torch_s"] = first_evaluation(scratch, task="torch_task", ranks_per_worker=2)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="few evaluations, once")
    options = parser.parse_args()
    trials, fresh, calls = 300, 8, 7
    if options.quick:
        options.repeat, trials, fresh, calls = 1, 2 * SKIPPED, 3, 1
    rows = []
    with tempfile.TemporaryDirectory(prefix="overhead-") as scratch:
        for _ in range(options.repeat):
            rows.append(measure(Path(scratch), trials=trials, fresh=fresh, calls=calls))
            print("  ".join(f"{name} {value:.4g}" for name, value in rows[-1].items()), flush=True)
    result = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
    of_limit = {name: result[name] / limit for name, limit in LIMITS.items()}
    print(json.dumps({"benchmark": "overhead", **result, "of_limit": of_limit}))


if __name__ == "__main__":
    main()
