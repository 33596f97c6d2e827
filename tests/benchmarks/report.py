"""What `hpo report DIR` takes for a campaign of 10 000 evaluations, and how large its file is.

    python tests/benchmarks/report.py [--evaluations 10000] [--quick]

A campaign as of tests/synthetic.py: 48 workers on six islands, early stopping, 12 learning curves an evaluation more or
less, failures, two launches, a second one with two objectives. Seconds of the command, the start of Python included,
the median of three, and processor seconds; beside them those of `hpo best`, which learns the importance, too, and
draws nothing. Ends in one line of JSON."""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from arguments import parser_of
from launching import single_threaded

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from synthetic import make


def command(*words: str) -> tuple[float, float]:
    """Wall-clock and processor seconds of an hpo command."""
    begun, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    words = (sys.executable, "-m", "hpo", *words)
    subprocess.run(words, env=single_threaded(), check=True, stdout=subprocess.DEVNULL, timeout=300)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter() - begun, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(evaluations: int) -> dict[str, float]:
    """Medians of three, for one objective and for two."""
    row: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="report-") as scratch:
        for objectives in (1, 2):
            home = make(
                Path(scratch, str(objectives)), evaluations, objectives=objectives, islands=6, workers=8
            )
            output = Path(scratch, f"{objectives}.html")
            name = "" if objectives == 1 else "_two"
            found = [command("report", str(home), str(output)) for _ in range(3)]
            row[f"report{name}_s"] = statistics.median(seconds for seconds, _ in found)
            row[f"report{name}_processor_s"] = statistics.median(seconds for _, seconds in found)
            row[f"size{name}_mb"] = output.stat().st_size / 1e6
            if objectives == 1:
                best = [command("best", str(home)) for _ in range(3)]
                row["best_s"] = statistics.median(seconds for seconds, _ in best)
                row["best_processor_s"] = statistics.median(seconds for _, seconds in best)
    return row


def main() -> None:
    parser = parser_of(__doc__, quick="1 000 evaluations")
    parser.add_argument("--evaluations", type=int, default=10_000)
    options = parser.parse_args()
    if options.quick:
        options.evaluations = 1_000
    row = measure(options.evaluations)
    for key, value in row.items():
        print(f"{key:24s} {value:.2f}", flush=True)
    print(json.dumps({"benchmark": "report", "evaluations": options.evaluations, **row}))


if __name__ == "__main__":
    main()
