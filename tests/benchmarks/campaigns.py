"""What the small campaigns of jobs/ find: the best beside the default configuration, on held-out data.

    python tests/benchmarks/campaigns.py                                        # the table of search_spaces/README.md
    python tests/benchmarks/campaigns.py --campaigns vit_ab vgg_ab --searches 3
    python tests/benchmarks/campaigns.py --quick                                # whether it works

Each search is a campaign of its own in DIRECTORY-seed-N, which goes on where it was. The best is chosen by its value on
the validation part alone; then best and default are trained anew, three times each (five where trainings of seconds
differ by more than is to be found; --test-seeds), and measured on the test part: the default once for all searches, as
its trainings are the same.
Of two objectives one is a cost and the other the score: the best is then the one with the best score of the
front's points that dominate the default on the validation part, which cost less and are no worse. What it costs of the
default's cost is as the campaign recorded it, what it is better by is measured on the test part.

After ± stands the standard error of the difference: of the means over the searches and over the default's trainings.
The last column says whether the difference is larger than that; "in cost" where it is not and nor is a loss, while each
search's best costs less than the default. Ends in a line of JSON.
"""

from __future__ import annotations

import argparse
import collections
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from arguments import parser_of

import hpo
from hpo.config import reader as config
from hpo.individual import COMPLETED

sys.path.insert(0, str(Path(__file__).parents[2] / "jobs"))
import compare

JOBS = Path(compare.__file__).parent
_CAMPAIGN_S = 7_200.0
TEST_SEEDS = {"daso_intervals": 5}
"""By campaign, where it is not three."""


def main() -> None:
    names = sorted(["digits", *(path.stem.removesuffix("_small") for path in JOBS.glob("*_small.toml"))])
    parser = parser_of(__doc__, quick="one search of two evaluations, of vgg_ab, which is not kept")
    parser.add_argument(
        "--campaigns",
        nargs="+",
        choices=names,
        default=names,
        help="of jobs/NAME_small.toml, or jobs/digits.toml (default: all)",
    )
    parser.add_argument(
        "--searches", type=int, default=3, help="of each campaign, with seeds from 0 on (default: 3)"
    )
    parser.add_argument("--budget", type=int, help="evaluations of each search (default: as in the file)")
    parser.add_argument(
        "--test-seeds", type=int, help="trainings of the best and of the default (default: 3, or 5)"
    )
    given = parser.parse_args()
    for name in ("searches", "budget", "test_seeds"):
        if (value := getattr(given, name)) is not None and value < 1:
            parser.error(f"--{name.replace('_', '-')} {value}: must be at least 1.")
    if given.quick:
        given.campaigns, given.searches, given.budget, given.test_seeds = ["vgg_ab"], 1, 2, 1
        with tempfile.TemporaryDirectory() as directory:
            os.chdir(directory)
            _table(given)
    else:
        _table(given)


def _table(given: argparse.Namespace) -> None:
    print(head(given.searches), flush=True)
    rows = []
    for name in given.campaigns:
        seeds = given.test_seeds or TEST_SEEDS.get(name, 3)
        rows.append(measured(name, given.searches, given.budget, seeds))
        print(line(rows[-1]), flush=True)
    print(json.dumps({"benchmark": "campaigns", "campaigns": rows}))


def measured(name: str, searches: int, budget: int | None, test_seeds: int) -> dict[str, Any]:
    """A campaign's row of the table."""
    file = JOBS / (f"{name}.toml" if name == "digits" else f"{name}_small.toml")
    settings, task = config.read_file(file), hpo.Campaign.from_file(file).task
    measured, direction = compare.tested(task)
    default: list[float] = []
    found: list[dict[str, Any]] = []
    for seed in range(searches):
        one = search(file, seed, budget, test_seeds, default)
        default = one.pop("default_tests")
        found.append(one)
    sign = 1 if direction == "maximize" else -1
    best = [one["best_test"] for one in found]
    variances = [
        statistics.variance(each) / len(each) if len(each) > 1 else math.nan for each in (best, default)
    ]
    difference, error = statistics.fmean(best) - statistics.fmean(default), math.sqrt(sum(variances))
    cheaper = all(one.get("cost_ratio", math.inf) < 1 for one in found)
    better = "yes" if sign * difference > error else "no"
    if better == "no" and cheaper and sign * difference > -error:
        better = "in cost"
    return {
        "name": name,
        "evaluations": budget or settings.evaluations,
        "folds": settings.task_options.get("folds", 0),
        "test_seeds": test_seeds,
        "measure": compare.measure(str(settings.task).split(":")[0], task),
        "costs": next((name for name in task.objectives if name != measured), None),
        "best": best,
        "default": statistics.fmean(default),
        "difference": difference,
        "standard_error": error,
        "better": better,
        "searches": found,
    }


def head(searches: int) -> str:
    """The table's first two lines."""
    columns = (
        f"small campaign, evaluations of each of {searches} searches", "best found, test part", "default", "difference",
        "more than a standard error",
    )  # fmt: skip
    return f"| {' | '.join(columns)} |\n|{len(columns) * '-|'}"


def line(row: dict[str, Any]) -> str:
    """``row`` as a line of the table. A cost is a part of the default's."""
    share = row["measure"] in compare.SHARES
    scale, digits, unit, points = (100, 1, " %", " points") if share else (1, 3, "", "")
    label = [f"`{row['name']}`", str(row["evaluations"])]
    label += [f"{row['folds']} folds"] if row["folds"] else []
    label += [f"{row['test_seeds']} test training{'' if row['test_seeds'] == 1 else 's'}"]
    label += [row["measure"]] if row["measure"] != "accuracy" else []
    best = ", ".join(f"{scale * one:.{digits}f}" for one in row["best"]) + unit
    if row["costs"] is not None:
        ratios = ", ".join(f"{one['cost_ratio']:.2f}" for one in row["searches"])
        timed = row["costs"] in ("steps", "seconds")
        best += f" in {ratios} of the time" if timed else f" for {ratios} of `{row['costs']}`"
    difference = f"{scale * row['difference']:+.{digits}f}".replace("-", "\u2212")
    cells = (
        ", ".join(label),
        best,
        f"{scale * row['default']:.{digits}f}{unit}",
        f"{difference} ± {scale * row['standard_error']:.{digits}f}{points}",
        row["better"],
    )
    return f"| {' | '.join(cells)} |"


def search(
    file: Path, seed: int, budget: int | None, test_seeds: int, default_tests: list[float]
) -> dict[str, Any]:
    """Run the campaign with ``seed`` and measure what it found, and the default unless ``default_tests`` are there."""
    settings = config.read_file(file)
    directory = settings.directory.with_name(f"{settings.directory.name}-seed-{seed}")
    directory.parent.mkdir(parents=True, exist_ok=True)
    text = _with(file.read_text(), "directory", json.dumps(str(directory)))
    text = _with(text, "seed", str(seed))
    if budget is not None:
        text = _with(text, "evaluations", str(budget))
    own = directory.with_suffix(".toml")
    own.write_text(text)
    program = Path(sys.executable).with_name("hpo")
    subprocess.run([program, "run", own], check=True, timeout=_CAMPAIGN_S, stdout=sys.stderr)
    result, campaign = hpo.Result(directory), hpo.Campaign.from_file(own)
    (default,) = [one for one in result.individuals if one.params == campaign.task.default]
    if default.status != COMPLETED:
        raise SystemExit(f"campaigns: the default ended as {default.status} in {directory}: {default.error}")
    objectives = campaign.task.objectives
    best = compare.best_beside(result, default, campaign.task)
    module = str(settings.task).split(":")[0]
    flags = compare.flags_of(settings.task_options)
    place = compare.Place(ranks=settings.layout.ranks_per_worker)

    def tests(one: Any) -> list[float]:
        found = compare.trained_anew(module, directory, one, place, flags, test_seeds)
        return [float(each["test"]) for each in found["tests"]]

    best_tests = tests(best)
    found = {
        "seed": seed,
        "statuses": dict(collections.Counter(one.status for one in result.individuals)),
        "params": best.params,
        "best_test": statistics.fmean(best_tests),
        "default_tests": default_tests or tests(default),
    }
    if len(objectives) > 1:
        measured, _ = compare.tested(campaign.task)
        cost = next(name for name in objectives if name != measured)
        spent, before = (one.objectives[cost] for one in (best, default))
        found["cost_ratio"] = spent / before if before else math.nan
        found["dominating"] = sum(compare.dominates(one, default, objectives) for one in result.front)
        found["front"] = len(result.front)
    return found


def _with(text: str, key: str, value: str) -> str:
    """The file with another value of a key at its top."""
    changed, count = re.subn(
        rf"^{key} = .*$", lambda _: f"{key} = {value}", text, count=1, flags=re.MULTILINE
    )
    assert count, f"{key} is not in the file"
    return changed


if __name__ == "__main__":
    main()
