"""The experiments of the study of data assignment and communication, its chapter 5, each configuration with five seeds.

    hpo run jobs/resnet20_study.toml                          all configurations of an experiment, all seeds
    python -m search_spaces.resnet20_study runs/resnet20_study_E2.2    mean and deviation of each

The two parameters of this campaign, a configuration of the experiment and a seed, form a finite space that is evaluated
as a whole, by the recipe of ``search_spaces.assignment``. Options by which it would no longer be the study are refused.
"""

from __future__ import annotations

import argparse
import inspect
import math
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

import hpo
from hpo.individual import COMPLETED
from search_spaces import assignment
from search_spaces.options import Count, wrong

Experiment = Literal["E1", "E2.1", "E2.2", "E2.3", "E3.1", "E3.2.1", "E3.2.2", "E3.2.3", "E3.2.4", "E3.3"]

# L_W.
WORLD_EVERY = (2, 4, 8, 16, 32, 64, 128)
_ENDS = {"disjoint": {"assignment": "shards"}, "full overlap": {"assignment": "full-overlap"}}
_EFFECTIVE = {"batch_rule": "effective"}
_LINEAR = {**_EFFECTIVE, "lr_rule": "linear"}


@dataclass(frozen=True, kw_only=True)
class StudyConfiguration:
    """Parameters and options of ``search_spaces.assignment``."""

    params: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)


class Options(assignment.Options):
    """Options of ``search_spaces.assignment`` and two more; the source's are in jobs/resnet20_study.toml."""

    experiment: Experiment = "E2.2"
    """E1, E2.1 to E2.3, E3.1, E3.2.1 to E3.2.4 or E3.3."""
    seeds: Count = 5
    """Trainings of each configuration."""

    def rules(self) -> Iterator[hpo.UsageError]:
        yield from super().rules()
        for name in ("folds", "method", "architecture", "second_objective"):
            value, own = getattr(self, name), type(self).model_fields[name].default
            if value != own:
                yield wrong(name, value, f"{own!r}, as in the study; search_spaces.assignment has others")


Found = dict[str, StudyConfiguration]


def configurations(experiment: Experiment, ranks: int) -> Found:
    """Configurations of the experiment for this many ranks (M), by name."""
    found = {
        "E1": lambda: _synchronous({"disjoint": {"assignment": "shards"}}),
        "E2.1": lambda: _synchronous(_ENDS),
        "E2.2": lambda: _synchronous(_degrees()),
        "E2.3": lambda: _larger_batches(ranks),
        "E3.1": lambda: _local_sgd(_ENDS),
        "E3.2.1": lambda: _households(ranks, overlapping=False),
        "E3.2.2": lambda: _households(ranks, overlapping=False, **_EFFECTIVE),
        "E3.2.3": lambda: _households(ranks, overlapping=False, **_LINEAR),
        "E3.2.4": lambda: {
            f"{name}, {rule}": found
            for rule, options in (
                ("local batch constant", {}),
                ("effective batch constant", _EFFECTIVE),
                ("and linear rate", _LINEAR),
            )
            for name, found in _households(ranks, overlapping=True, **options).items()
        },
        "E3.3": lambda: _neighbourhoods(ranks),
    }[experiment]()
    return {name: configuration for name, configuration in found.items() if _fits(configuration, ranks)}


def _synchronous(assignments: Mapping[str, Mapping[str, Any]], **options: Any) -> Found:
    """L_W = 1."""
    return {
        name: StudyConfiguration(params=params, options={"method": "ddp", **options})
        for name, params in assignments.items()
    }


def _averaging(dealt: Mapping[str, Any], every: int, household: int = 1, **others: Any) -> StudyConfiguration:
    """Local SGD with L_W = ``every``; ``others``: options."""
    return StudyConfiguration(
        params={**dealt, "world_every": every, "household": household, "neighbourhood": 1}, options=others
    )


def _degrees() -> dict[str, dict[str, Any]]:
    copies = {"coarse": (2, 4, 8), "medium-coarse": (2, 4, 8), "fine-grained": (2, 4, 6, 8, 10, 12, 14)}
    return {
        **_ENDS,
        **{
            f"{scheme}, C = {count}": {"assignment": scheme, "copies": count}
            for scheme, counts in copies.items()
            for count in counts
        },
    }


def _larger_batches(ranks: int) -> Found:
    kinds: dict[str, dict[str, Any]] = {**_ENDS, "2 shards": {"assignment": "coarse", "copies": ranks // 2}}
    return {
        f"batch {size}, {name}": configuration
        for size in (128, 256, 512, 1024, 2048, 4096)
        for name, configuration in _synchronous(kinds, batch_size=size).items()
    }


def _local_sgd(assignments: Mapping[str, Mapping[str, Any]]) -> Found:
    return {
        f"L_W = {every}, {name}": _averaging(params, every)
        for every in WORLD_EVERY
        for name, params in assignments.items()
    }


def _households(ranks: int, *, overlapping: bool, **options: Any) -> Found:
    """H households of M / H ranks, with S_H shards: H, or fewer if they overlap."""
    found = {}
    for households, every in product((2, 4, 8), WORLD_EVERY):
        for shards in (1, 2) if overlapping else (households,):
            copies = {"assignment": "coarse", "copies": households // shards}
            found[f"H = {households}, S_H = {shards}, L_W = {every}"] = _averaging(
                copies if overlapping else _ENDS["disjoint"], every, ranks // households, **options
            )
    return found


def _neighbourhoods(ranks: int) -> Found:
    """Two neighbourhoods of H / 2 households."""
    assignments: dict[str, dict[str, Any]] = {
        "disjoint": _ENDS["disjoint"],
        "full overlap between neighbourhoods": {"assignment": "coarse", "copies": 2},
    }
    found = {}
    for households, inner, every in product((4, 8), (2, 4), WORLD_EVERY):
        for name, dealt in assignments.items():
            plain = _averaging(dealt, every, ranks // households)
            inside = {"neighbourhood": households // 2, "neighbourhood_every": inner}
            found[f"H = {households}, L_N = {inner}, L_W = {every}, {name}"] = replace(
                plain, params={**plain.params, **inside}
            )
    return found


def _fits(configuration: StudyConfiguration, ranks: int) -> bool:
    """Whether this many ranks can train the configuration: there are as many households, and L_N < L_W."""
    task = assignment.make_task(**{"epochs": 1, **configuration.options, "ranks_per_worker": ranks})
    try:
        return task.allows(task.space.validate(configuration.params))
    except hpo.UsageError:
        return False


class StudyTask(hpo.Task):
    """A task judged by the accuracy on the validation part after the last epoch."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._found = configurations(options.experiment, options.ranks_per_worker)
        if not self._found:
            raise hpo.UsageError(
                f"experiment = {options.experiment!r}: has no configuration for ranks_per_worker = "
                f"{options.ranks_per_worker}. The study has 16 ranks, in E2.1 and E3.1 also 2, 4 and 8, in E1 1, too."
            )
        options.check_data()
        space = hpo.SearchSpace(
            configuration=hpo.Categorical(*self._found), seed=hpo.Ordinal(*range(options.seeds))
        )
        super().__init__(
            space,
            self._evaluate,
            "maximize",
            default={"configuration": next(iter(self._found)), "seed": 0},
            steps=options.epochs,
        )

    def _evaluate(self, trial: hpo.Trial) -> dict[str, float]:
        chosen = self._found[str(trial.params["configuration"])]
        own = self._options.model_dump(exclude={"experiment", "seeds"})
        task = assignment.make_task(**{**own, **chosen.options})
        _, result = task.fit(
            chosen.params,
            ranks=trial.size,
            device=trial.device,
            **{**trial.training(value="accuracy"), "seed": int(str(trial.params["seed"]))},
        )
        value = result.metrics["accuracy"] if result.reason != "diverged" else math.nan
        return {"value": value, **{name: result.metrics[name] for name in task.recorded}}


def table(result: hpo.Result) -> str:
    """Mean and deviation of each configuration's accuracy over the seeds that are done, best first."""
    values: dict[str, list[float]] = {}
    for individual in result.individuals:
        if individual.status == COMPLETED and individual.value is not None:
            values.setdefault(str(individual.params["configuration"]), []).append(individual.value)
    width = max(map(len, ["configuration", *values]))
    lines = [f"{'configuration':<{width}}  {'accuracy':<16}  seeds"]
    for name, each in sorted(values.items(), key=lambda item: -statistics.fmean(item[1])):
        deviation = f" ± {statistics.stdev(each):.2%}" if len(each) > 1 else ""
        lines.append(f"{name:<{width}}  {f'{statistics.fmean(each):.2%}{deviation}':<16}  {len(each)}")
    return "\n".join(lines)


def make_task(**options: Any) -> StudyTask:
    """The task for these options, the ``[task_options]`` of a campaign file."""
    return StudyTask(Options(**options))


make_task.__signature__ = inspect.signature(Options)  # type: ignore[attr-defined]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table of a campaign; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m search_spaces.resnet20_study",
        description="Mean and deviation of each configuration of an experiment.",
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="directory of the campaign")
    try:
        print(table(hpo.Result(parser.parse_args(arguments).directory)))
    except hpo.HpoError as error:
        print(f"search_spaces.resnet20_study: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
