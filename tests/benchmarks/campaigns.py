"""What a campaign of jobs/ finds, with several seeds: the best beside the default configuration, on held-out data.

    python tests/benchmarks/campaigns.py jobs/bigearthnet_small.toml --seeds 0 1 2

Each seed is a campaign of its own in DIRECTORY-seed-N, which goes on where it was. The best is chosen by its value on
the validation part alone; then best and default are trained anew, three times each (--test-seeds), and measured on the
test part: the default once for all campaigns, as its trainings are the same.
Of several objectives the first is a cost and the last the accuracy: the best is then the most accurate of the front's
points that dominate the default on the validation part, which cost less and are no less accurate. What it costs of the
default's cost is as the campaign recorded it, what it is more accurate by is measured on the test part. Ends in a line
of JSON.
"""

from __future__ import annotations

import argparse
import collections
import json
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import hpo
from hpo.config import reader as config
from hpo.individual import COMPLETED

sys.path.insert(0, str(Path(__file__).parents[2] / "jobs"))
import compare

_CAMPAIGN_S = 7_200.0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="campaign file (TOML)")
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[0, 1, 2], help="a campaign each (default: 0 1 2)"
    )
    parser.add_argument("--evaluations", type=int, help="of each campaign (default: as in the file)")
    parser.add_argument(
        "--test-seeds", type=int, default=3, help="trainings of the best and of the default (default: 3)"
    )
    told = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    for seed in told.seeds:
        measured = rows[0]["test_default"] if rows else None
        rows.append(found(told.file, seed, told.evaluations, told.test_seeds, measured))
    objectives = hpo.Campaign.from_file(told.file).task.objectives
    (cost, *others), direction = objectives, compare.tested(objectives)[1]
    what = compare.measure(str(config.read_file(told.file).task).split(":")[0], objectives)
    for row in rows:
        best, default, test_best, test_default = (
            compare.reached(row[name], what) for name in ("best", "default", "test_best", "test_default")
        )
        print(
            f"seed {row['seed']}: {row['statuses']}; validation {what} {best} (default {default}), test {test_best} "
            f"(default {test_default})"
        )
        if others:
            print(
                f"        {row['params']}; {cost} {row['best_cost']:.4g} (default {row['default_cost']:.4g}); "
                f"of the front's {row['front']} points {row['dominating']} dominate the default on the validation part"
            )
    unit = "points" if what in compare.SHARES else "hundredths"
    sign = 100 if direction == "maximize" else -100
    gains = [sign * (row["test_best"] - row["test_default"]) for row in rows]
    deviation = statistics.stdev(gains) if len(gains) > 1 else 0.0
    if others:
        ratios = [row["best_cost"] / row["default_cost"] for row in rows]
        print(
            f"The best takes {statistics.fmean(ratios):.2f} of the default's {cost} "
            f"({', '.join(f'{ratio:.2f}' for ratio in ratios)})."
        )
    print(
        f"The best is better than the default by {statistics.fmean(gains):.1f} ± {deviation:.1f} {unit} on the "
        f"test part (worst seed {min(gains):.1f})."
    )
    print(json.dumps({"file": str(told.file), f"gain_{unit}": gains, "campaigns": rows}))
    return 0


def found(
    file: Path, seed: int, evaluations: int | None, test_seeds: int, test_default: float | None
) -> dict[str, Any]:
    """Run the campaign with ``seed`` and measure what it found, and the default unless that was done."""
    settings = config.read_file(file)
    directory = settings.directory.with_name(f"{settings.directory.name}-seed-{seed}")
    directory.parent.mkdir(parents=True, exist_ok=True)
    text = _with(file.read_text(), "directory", json.dumps(str(directory)))
    text = _with(text, "seed", str(seed))
    if evaluations is not None:
        text = _with(text, "evaluations", str(evaluations))
    own = directory.with_suffix(".toml")
    own.write_text(text)
    program = Path(sys.executable).with_name("hpo")
    subprocess.run([program, "run", own], check=True, timeout=_CAMPAIGN_S, stdout=sys.stderr)
    result, campaign = hpo.Result(directory), hpo.Campaign.from_file(own)
    (default,) = [one for one in result.individuals if one.params == campaign.task.default]
    if default.status != COMPLETED:
        raise SystemExit(f"campaigns: the default ended as {default.status} in {directory}: {default.error}")
    objectives = campaign.task.objectives
    best = compare.best_beside(result, default, objectives)
    module = str(settings.task).split(":")[0]
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.task_options.items()]
    ranks = settings.layout.ranks_per_worker
    test_best = compare.test_value(module, directory, best, ranks, flags, test_seeds)
    if test_default is None:
        test_default = compare.test_value(module, directory, default, ranks, flags, test_seeds)
    statuses = collections.Counter(one.status for one in result.individuals)
    row = {
        "seed": seed,
        "statuses": ", ".join(f"{count} {status}" for status, count in statuses.most_common()),
        "completed": statuses[COMPLETED],
        "test_best": test_best,
        "test_default": test_default,
        "params": best.params,
    }
    if len(objectives) == 1:
        return {**row, "best": best.value, "default": default.value}
    cost, judged = next(iter(objectives)), compare.tested(objectives)[0]
    return {
        **row,
        "best": best.objectives[judged],
        "default": default.objectives[judged],
        "best_cost": best.objectives[cost],
        "default_cost": default.objectives[cost],
        "dominating": sum(compare.dominates(one, default, objectives) for one in result.front),
        "front": len(result.front),
    }


def _with(text: str, key: str, value: str) -> str:
    """The file with another value of a key at its top."""
    changed, count = re.subn(
        rf"^{key} = .*$", lambda _: f"{key} = {value}", text, count=1, flags=re.MULTILINE
    )
    assert count, f"{key} is not in the file"
    return changed


if __name__ == "__main__":
    sys.exit(main())
