"""What a campaign of search_spaces found, beside the default configuration, and where everything lies.

    python jobs/compare.py jobs/digits.toml

Both configurations have been evaluated by the campaign: what they reach on the validation part is taken from its
journal. What they reach on the test part is measured here, now that the choice is made, by the module's own command
line on as many ranks as a worker of the campaign has. It is kept in DIR/test/ID.json and not measured twice.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import hpo
from hpo.individual import COMPLETED, Individual

_LIMIT_S = 86_400.0
"""Three trainings of a large network take hours; ranks that hang end by themselves long before."""

_ENDING_S = 45.0
"""What a training that is stopped has for it, before it is killed: torchrun gives its ranks 30 s."""

SHARES = ("accuracy", "micro-F1")
"""Measures from 0 to 1."""


def main(arguments: Sequence[str] | None = None) -> int:
    """As the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="campaign file (TOML), which has been run")
    parser.add_argument(
        "--limit",
        type=float,
        default=_LIMIT_S,
        metavar="SECONDS",
        help=f"for the trainings of one configuration (default: {_LIMIT_S:g})",
    )
    options = parser.parse_args(arguments)
    if not 0 < options.limit < math.inf:
        parser.error(f"--limit {options.limit:g}: must be a number of seconds above 0.")
    return compared(options.file, options.limit)


def compared(file: Path, limit_s: float = _LIMIT_S) -> int:
    """Measure what is not measured yet and print all; returns the exit code."""
    try:
        campaign = hpo.Campaign.from_file(file)
        settings, default = campaign.settings, campaign.task.default
        result = hpo.Result(settings.directory)
        chosen = {"best": result.best}
        for one in result.individuals:
            if one.params == default and one.status == COMPLETED:
                chosen["default"] = one
        if "default" in chosen:
            chosen["best"] = best_beside(result, chosen["default"], campaign.task.objectives)
        flags = [
            f"--{name.replace('_', '-')}={value}"
            for name, value in settings.task_options.items()
            if value is not None
        ]
        ranks = settings.layout.ranks_per_worker
        module = str(settings.task).split(":")[0]
        tests = {
            name: test_value(module, settings.directory, one, ranks, flags, limit_s=limit_s)
            for name, one in chosen.items()
        }
    except hpo.HpoError as error:
        print(f"compare: {error}", file=sys.stderr)
        return error.exit_code
    if "default" not in chosen:
        print(
            "compare: the default configuration has no completed evaluation to compare with", file=sys.stderr
        )
    print(table(result, chosen, tests, measure(module, campaign.task.objectives)))
    print()
    print(places(file, settings.directory))
    return 0


def best_beside(result: hpo.Result, default: Individual, objectives: Mapping[str, str]) -> Individual:
    """The campaign's best. Of several objectives that is, of the front's points that dominate the default, the one that
    is best in what a test measures; of the whole front where none does.
    """
    if len(objectives) == 1:
        return result.best
    name, direction = tested(objectives)
    sign = 1 if direction == "maximize" else -1
    better = [one for one in result.front if dominates(one, default, objectives)]
    return max(better or result.front, key=lambda one: sign * (one.objectives or {})[name])


def tested(objectives: Mapping[str, str]) -> tuple[str, str]:
    """The objective that a test measures too, and its direction: of several the last, after what a run costs."""
    return [*objectives.items()][-1]


def measure(module: str, objectives: Mapping[str, str]) -> str:
    """What a test measures: the objective's name, or for one without a name of its own what ``module`` calls it."""
    name, direction = tested(objectives)
    if name != "value":
        return name
    return str(
        getattr(
            importlib.import_module(module), "MEASURE", "accuracy" if direction == "maximize" else "error"
        )
    )


def dominates(one: Individual, other: Individual, objectives: Mapping[str, str]) -> bool:
    """Whether ``one`` is at least as good as ``other`` in all objectives, and better in one."""
    signs = {name: 1 if way == "maximize" else -1 for name, way in objectives.items()}
    gains = [
        sign * ((one.objectives or {})[name] - (other.objectives or {})[name]) for name, sign in signs.items()
    ]
    return min(gains) >= 0 and max(gains) > 0


def test_value(
    module: str,
    directory: Path,
    individual: Individual,
    ranks: int,
    flags: list[str],
    seeds: int | None = None,
    *,
    limit_s: float = _LIMIT_S,
) -> float:
    """What ``individual`` reaches on the test part; trained anew unless that was done before. ``seeds``: in the mean of
    so many trainings; None: of as many as the module does, which is three.

    Raises:
        CampaignError: the training failed, or took longer than ``limit_s``.
    """
    counted = "" if seeds is None else f"-{seeds}-seeds"
    path = directory / "test" / f"{individual.id}{counted}.json"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        with tempfile.NamedTemporaryFile("w", suffix=".json", dir=path.parent) as config:
            json.dump({"id": individual.id, "params": individual.params}, config)
            config.flush()
            start = [sys.executable, "-m"]
            if ranks > 1:
                start += ["torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "-m"]
            command = [*start, module, f"--config={config.name}", *flags]
            if seeds is not None:
                command.append(f"--test-seeds={seeds}")
            threads = str(max(1, (os.cpu_count() or 1) // ranks))
            print(f"compare: measuring {individual.id} on the test part", file=sys.stderr, flush=True)
            code, printed, errors = _run(command, {"OMP_NUM_THREADS": threads, **os.environ}, limit_s)
        if code is None:
            raise hpo.CampaignError(
                f"{shlex.join(command)} was not done after {limit_s:g} s and was stopped. Give it longer by --limit. "
                f"What it printed:\n{printed}{errors}"
            )
        if code:
            raise hpo.CampaignError(
                f"{shlex.join(command)} returned {code}. What it printed:\n{printed}{errors}"
            )
        # A run that is killed while it writes leaves no half of a result behind.
        partial = path.with_suffix(".partial")
        partial.write_text(printed)
        os.replace(partial, path)
    return float(json.loads(path.read_text())["test"])


def _run(
    command: Sequence[str], environment: Mapping[str, str], limit_s: float
) -> tuple[int | None, str, str]:
    """The exit code, None if it took longer than ``limit_s``, and what was printed on both streams."""
    with (
        tempfile.TemporaryFile("w+") as printed,
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, env=environment, stdout=printed, stderr=errors) as process,
    ):
        code: int | None = None
        try:
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(limit_s)
        finally:
            if code is None:
                # torchrun ends its ranks when it is asked to end; killed, it would leave them.
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_ENDING_S)
                process.kill()
        for file in (printed, errors):
            file.seek(0)
        return code, printed.read(), errors.read()


def table(result: hpo.Result, chosen: dict[str, Individual], tests: dict[str, float], what: str) -> str:
    """The configurations side by side, with ``what`` they reach, as ``measure`` names it."""
    counts = result.record.individuals
    completed = sum(one.status == COMPLETED for one in counts)
    rows = [["", *(f"{name} ({one.id})" for name, one in chosen.items())]]
    names = dict.fromkeys(name for one in chosen.values() for name in one.params)
    rows += [[name, *(_shown(one.params.get(name)) for one in chosen.values())] for name in names]
    if result.best.value is None:
        for name in result.best.objectives or {}:
            rows.append([name, *(f"{(one.objectives or {})[name]:.4g}" for one in chosen.values())])
    else:
        rows.append([f"validation {what}", *(reached(one.value or 0.0, what) for one in chosen.values())])
    rows.append([f"test {what}", *(reached(tests[name], what) for name in chosen)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [f"{len(counts)} configurations evaluated, {completed} of them to the end:", ""]
    lines += ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths)).rstrip() for row in rows]
    lines.append("")
    by = "alone" if result.best.value is not None else "among those that dominate the default there"
    lines.append(
        f"The best is chosen by validation {what} {by}; the test {what} is the mean of three trainings."
    )
    return "\n".join(lines)


def reached(value: float, what: str) -> str:
    """A share of what is right in per cent; all else as it is."""
    return f"{value:.2%}" if what in SHARES else f"{value:.4g}"


def _shown(value: object) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def places(file: Path, directory: Path) -> str:
    """Where the campaign's files lie, and how to look further."""
    hpo_command = shlex.quote(os.path.relpath(Path(sys.executable).with_name("hpo")))
    entries = [
        (f"{directory}/", "the campaign"),
        (f"{directory}/journal/", "every evaluation, one JSON line a record"),
        (f"{directory}/evaluations/", "checkpoints of the best, and what evaluations printed, if they did"),
        (f"{directory}/test/", "the test results above"),
        (f"{hpo_command} status {directory}", "how it stands; --json for programs"),
        (f"{hpo_command} best {directory} --top 5", "the best five"),
        (f"{hpo_command} export {directory} {directory}.csv", "all as a table; .parquet and .json too"),
        (f"{hpo_command} run {file}", "goes on, once evaluations = … in the file is larger"),
    ]
    width = max(len(place) for place, _ in entries)
    return "\n".join(f"{place:<{width}}  {what}" for place, what in entries)


if __name__ == "__main__":
    sys.exit(main())
