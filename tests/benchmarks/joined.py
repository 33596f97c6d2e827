"""Workers on hosts that no network connects, a launch on each, beside the same workers in one launch.

    python tests/benchmarks/joined.py [--hosts 6] [--evaluations 240] [--repeat 3] [--quick]

Evaluations sleep for 1 to 2 s, so that few cores suffice. Busy is the share of the workers' time that these took from
the last worker's first evaluation on, to the end of the last. Hosts are namespaces. Needs Linux, root and util-linux.
Medians over repeats; ends in one line of JSON."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from pathlib import Path

from arguments import parser_of
from busy import busy

sys.path.append(str(Path(__file__).resolve().parents[1]))

from namespaces import cut_off_host
from terminal import HPO, Command, Terminal

TASK = """
import random, time
from pathlib import Path
import hpo

def evaluate(trial):
    begun = time.time()
    time.sleep(random.Random(trial.seed).uniform(SHORTEST, LONGEST))
    worker = trial.id.split("-")[1]  # no other of the campaign has its number
    Path(SIDE, trial.id).write_text(f"{begun} {time.time()} {worker}")
    return trial.params["x"]

task = hpo.Task(hpo.SearchSpace(x=hpo.Float(0.0, 1.0)), evaluate)
"""


def measure(launches: int, workers: int, evaluations: int, shortest_s: float) -> float:
    """Busy share of so many launches on a host each, that have ``workers`` each."""
    with tempfile.TemporaryDirectory(prefix="joined-") as scratch:
        terminal, side = Terminal(Path(scratch)), Path(scratch, "side")
        side.mkdir()
        text = TASK.replace("SHORTEST", str(shortest_s)).replace("LONGEST", str(2 * shortest_s))
        terminal.write("task.py", text.replace("SIDE", repr(str(side))))
        terminal.campaign(evaluations=evaluations)
        line = [*HPO, "run", "c.toml", "--ranks", str(workers)]
        commands = [
            Command(terminal, [*cut_off_host(f"h{host}"), *line], terminal.environment)
            for host in range(launches)
        ]
        for command in commands:
            command.wait(60 + 4 * evaluations, returns=0)
        found = [path.read_text().split() for path in side.iterdir()]
    naps = [(float(begun), float(ended), int(worker)) for begun, ended, worker in found]
    assert len(naps) == evaluations and len({worker for *_, worker in naps}) == launches * workers
    return busy(naps)


def main() -> None:
    parser = parser_of(__doc__, "two hosts, 40 evaluations of a tenth of that time, once")
    parser.add_argument("--hosts", type=int, default=6)
    parser.add_argument("--evaluations", type=int, default=240)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    hosts, evaluations, repeat = options.hosts, options.evaluations, options.repeat
    shortest_s = 1.0
    if options.quick:
        hosts, evaluations, repeat, shortest_s = 2, 40, 1, 0.1
    shares: dict[str, list[float]] = {}
    for _ in range(repeat):
        for launches, workers in ((1, hosts), (hosts, 1)):
            name = f"{launches} x {workers}"
            shares.setdefault(name, []).append(measure(launches, workers, evaluations, shortest_s))
            print(f"{name}: busy {shares[name][-1]:.3f}", flush=True)
    one, many = (statistics.median(shares[name]) for name in shares)
    found = {"busy": {name: statistics.median(shares[name]) for name in shares}, "busy_ratio": many / one}
    print(json.dumps({"benchmark": "joined", "evaluations": evaluations, **found}))


if __name__ == "__main__":
    main()
