"""Whether the hundred-thousandth evaluation costs what the thousandth does.

    python tests/benchmarks/flat_cost.py [--evaluations 100000] [--repeat 3] [--kinds default genetic] [--quick]

100 000 evaluations of ten floats that cost nothing, ``inline``, on 4 ranks in 2 islands. Measured are:

- seconds an evaluation: the start of every evaluation is noted on its rank; all are merged by time, cut into
  blocks of 500, and the median over the blocks between evaluations 90 000 and 100 000 is divided by that
  between 1 000 and 10 000. By the wall clock, and by the processor time of all ranks together, which other
  people's work on the machine disturbs less;
- memory: the peak of each rank's resident set (VmHWM) when its campaign has ended; the largest rank counts.

The median of the campaigns counts. Ends in one line of JSON."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from array import array
from pathlib import Path

import numpy
from arguments import parser_of
from launching import start_ranks

RANKS, ISLANDS, FLOATS = 4, 2, 10

wall, processor = array("d"), array("d")
"""Of this rank's evaluations: when each began, and the processor time that this rank had used by then."""


def peak_mib() -> float:
    """The largest resident set that this process has had; unlike ru_maxrss not that of what started it."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def evaluate(trial: object) -> float:
    """Ten multiplications, and two looks at the clock."""
    wall.append(time.perf_counter())
    processor.append(time.process_time())
    return sum(value * value for value in trial.params.values())  # type: ignore[attr-defined]


def serve(directory: Path, evaluations: int, kind: str, out: Path) -> None:
    """One rank of the campaign; writes what it noted to ``out``."""
    from mpi4py import MPI

    import hpo
    import hpo.campaign.rank.wiring
    import hpo.search.kinds.propulate_kinds

    hpo.search.kinds.propulate_kinds._propagators()
    imported = peak_mib()
    MPI.COMM_WORLD.Barrier()
    space = hpo.SearchSpace({f"x{index}": hpo.Float(-5.12, 5.12) for index in range(FLOATS)})
    hpo.Campaign(
        hpo.Task(space, evaluate),
        directory=directory,
        evaluations=evaluations,
        islands=ISLANDS,
        isolation="inline",
        kind=kind,
    ).run()
    peak = peak_mib()
    out.mkdir(exist_ok=True)
    (out / f"{os.getpid()}.json").write_text(
        json.dumps(
            {
                "imported_mib": imported,
                "peak_mib": peak,
                "wall": wall.tolist(),
                "processor": processor.tolist(),
            }
        )
    )


def seconds_an_evaluation(ranks: list[dict[str, object]], block: int) -> tuple[list[float], list[float]]:
    """Of each block of evaluations in the order in which they began: wall-clock and processor seconds."""
    begun = numpy.sort(numpy.concatenate([numpy.array(rank["wall"]) for rank in ranks]))
    marks = begun[::block]
    used = sum(numpy.interp(marks, rank["wall"], rank["processor"]) for rank in ranks if rank["wall"])
    return list(numpy.diff(marks) / block), list(numpy.diff(used) / block)


def growth(blocks: list[float], evaluations: int, block: int) -> tuple[float, float]:
    """Medians of the blocks in the early and in the late part: 1 to 10 % and 90 to 100 % of the campaign."""
    early = blocks[evaluations // 100 // block : evaluations // 10 // block]
    late = blocks[evaluations * 9 // 10 // block :]
    return statistics.median(early), statistics.median(late)


def measure(kind: str, evaluations: int, block: int) -> dict[str, float]:
    """One campaign."""
    with tempfile.TemporaryDirectory(prefix="flat-cost-") as scratch:
        out = Path(scratch, "out")
        options = ("--role", "rank", "--directory", Path(scratch, "campaign"), "--evaluations", evaluations)
        start_ranks(RANKS, __file__, *options, *("--kinds", kind, "--out", out))
        ranks = [json.loads(path.read_text()) for path in out.iterdir()]
        count = sum(len(rank["wall"]) for rank in ranks)  # type: ignore[arg-type]
        if count != evaluations:
            raise SystemExit(f"{count} evaluations were made where {evaluations} were asked for")
        by_wall, by_processor = seconds_an_evaluation(ranks, block)
        early, late = growth(by_wall, evaluations, block)
        early_processor, late_processor = growth(by_processor, evaluations, block)
        return {
            "early_us": 1e6 * early,
            "late_us": 1e6 * late,
            "late_to_early": late / early,
            "early_processor_us": 1e6 * early_processor,
            "late_processor_us": 1e6 * late_processor,
            "late_to_early_processor": late_processor / early_processor,
            "peak_mib": max(rank["peak_mib"] for rank in ranks),  # type: ignore[type-var]
            "imported_mib": max(rank["imported_mib"] for rank in ranks),  # type: ignore[type-var]
        }


def main() -> None:
    parser = parser_of(__doc__, quick="4 000 evaluations, once, the default kind")
    parser.add_argument("--evaluations", type=int, default=100_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--kinds", nargs="+", default=["default", "genetic"])
    parser.add_argument("--role", choices=["rank"], help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role == "rank":
        serve(options.directory, options.evaluations, options.kinds[0], options.out)
        return
    block = 500
    if options.quick:
        options.evaluations, options.repeat, options.kinds = 4_000, 1, ["default"]
        block = 20
    result: dict[str, object] = {"benchmark": "flat_cost", "evaluations": options.evaluations}
    for kind in options.kinds:
        rows = []
        for _ in range(options.repeat):
            row = measure(kind, options.evaluations, block)
            rows.append(row)
            print(f"{kind:8s} " + "  ".join(f"{name} {value:.4g}" for name, value in row.items()), flush=True)
        result[kind] = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
