"""Processor time of what is done for each individual, and of what is done once with all of a large campaign.

    python tests/benchmarks/limits.py [--quick]

- codec_us: the slowest of decoding, encoding and keying ten floats, in microseconds;
- read_s: reading a journal of 100 000 records with ten parameters each;
- fold_s: the state with which the next launch of a campaign of 100 000 evaluations goes on, as rank 0 folds it;
- again_s: the same in the launch after that, from the snapshot;
- status_s: loading a campaign of 100 000 evaluations and what ``hpo status`` says of it, without printing;
- importance_s: the importance of four parameters in a campaign of 5 000 evaluations;
- overlap_s: dealing 600 003 samples to four ranks, two copies of each (``trainers.FineGrained``).

Ends in one line of JSON; ``of_limit`` divides each figure by what is asked of it. Exit code 1 where one is above its
limit. ``--quick`` makes all of it smaller, and looks at no limit."""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
import timeit
from collections.abc import Callable
from functools import partial
from pathlib import Path

from arguments import parser_of

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import journals
from living import joined

import hpo
from hpo.islands.resume.fold import fold_directory
from hpo.journal.directory import write_identity
from hpo.journal.files import read_file
from hpo.results import result as results
from hpo.results.analysis.importance import importance
from hpo.results.record import load
from trainers import FineGrained

LIMITS = {
    "codec_us": 15.0, "read_s": 1.5, "fold_s": 3.5, "again_s": 0.3, "status_s": 3.0, "importance_s": 2.0,
    "overlap_s": 2.0,
}  # fmt: skip


def seconds(call: Callable[[], object]) -> float:
    begun = time.process_time()
    call()
    return time.process_time() - begun


def codec_us() -> float:
    """The best of several rounds, of the slowest of its functions."""
    found = []
    for log in (False, True):
        space = hpo.SearchSpace({f"x{i}": hpo.Float(0.001, 1 + i, log=log) for i in range(10)})
        genome = space.sample(random.Random(0))
        params = space.decode(genome)
        for call in (
            partial(space.decode, genome),
            partial(space.encode, params),
            partial(space.key, params),
        ):
            rounds = timeit.repeat(call, number=500, repeat=20, timer=time.process_time)
            found.append(min(rounds) / 500 * 1e6)
    return max(found)


def campaign(directory: Path, evaluations: int, parameters: int) -> hpo.SearchSpace:
    """The space of a campaign of four workers, whose objective is the sum of its parameters."""
    rng = random.Random(0)
    space = hpo.SearchSpace({f"x{index}": hpo.Float(0, 1) for index in range(parameters)})
    identity = {"task": "x:y", "space": space.describe(), "objectives": {"value": "minimize"}, "seed": 0}
    write_identity(directory, identity)
    launch = joined(directory, 4, evaluations)
    launch.draw()
    (directory / "launches").mkdir()
    for worker in range(4):
        tables = []
        for number in range(evaluations // 4):
            params = {name: rng.random() for name in space.names}
            tables.append(journals.finished(f"0-{worker}-{number}", sum(params.values()), params=params))
        journals.write(directory, tables, worker=worker)
    launch.close("done", 0, at_rest=True)
    return space


def measure(scratch: Path, smaller: int) -> dict[str, float]:
    large = scratch / "large"
    space = campaign(large, 100_000 // smaller, 10)
    campaign(scratch / "middling", 5_000 // smaller, 4)
    middling = load(scratch / "middling")
    importance(middling)  # imports scikit-learn
    paths = sorted(large.glob("launches/*/journal/*"))
    fold = partial(fold_directory, large, space=space, islands=1, losses=lambda of: (*of.values(),))
    return {
        "codec_us": codec_us(),
        "read_s": seconds(lambda: [sum(1 for _ in read_file(path)) for path in paths]),
        "fold_s": seconds(fold),
        "again_s": seconds(fold),
        "status_s": seconds(lambda: results.status(load(large))),
        "importance_s": seconds(lambda: importance(middling)),
        "overlap_s": seconds(lambda: FineGrained(copies=2).holders(600_003 // smaller, 4, 0)),
    }


def main() -> None:
    parser = parser_of(__doc__, quick="a twentieth of everything")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="limits-") as scratch:
        found = measure(Path(scratch), 20 if options.quick else 1)
    of_limit = {name: found[name] / limit for name, limit in LIMITS.items()}
    print(json.dumps({"benchmark": "limits", **found, "of_limit": of_limit}))
    if not options.quick and max(of_limit.values()) > 1:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
