"""The experiments of the study of data assignment and communication, its chapter 5, each configuration with five seeds.

    hpo run jobs/resnet20_study.toml                          all configurations of an experiment, all seeds
    python -m search_spaces.resnet20_study runs/resnet20_study_E2.2    mean and deviation of each

A campaign that goes through its space and ends: a configuration of the experiment and a seed are its two parameters.
What they mean ``search_spaces.assignment`` says, whose options these are, and two more. The study decides about the
method, the network and what is measured: options that would change these are refused.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import hpo
from hpo.individual import COMPLETED
from search_spaces import assignment
from search_spaces import options as check
from search_spaces.options import Count

if TYPE_CHECKING:
    from torch import nn

    from hpo.individual import Scalar

Experiment = Literal["E1", "E2.1", "E2.2", "E2.3", "E3.1", "E3.2.1", "E3.2.2", "E3.2.3", "E3.2.4", "E3.3"]

DECIDED = ("folds", "method", "architecture", "second_objective")
"""Options of ``search_spaces.assignment`` that the study decides about."""

WORLD_EVERY = (2, 4, 8, 16, 32, 64, 128)
"""L_W."""


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """Options and parameters of ``search_spaces.assignment``."""

    options: Mapping[str, Any] = field(default_factory=dict)
    params: Mapping[str, Any]


class Options(assignment.Options):
    """As of ``search_spaces.assignment``. A small run by default; the source's are in jobs/resnet20_study.toml."""

    experiment: Experiment = "E2.2"
    """E1, E2.1 to E2.3, E3.1, E3.2.1 to E3.2.4 or E3.3."""
    seeds: Count = 5
    """Trainings of each configuration."""

    def rules(self) -> None:
        super().rules()
        for name in DECIDED:
            value, own = getattr(self, name), type(self).model_fields[name].default
            if value != own:
                check.refuse(
                    name, value, f"{own!r}, as the study has it (search_spaces.assignment has others)"
                )


def configurations(experiment: Experiment, ranks: int) -> dict[str, Configuration]:
    """The experiment's configurations for this many ranks (M), by what tells them apart."""
    found = {
        "E1": lambda: _synchronous({"disjoint": {"assignment": "shards"}}),
        "E2.1": lambda: _synchronous(_ENDS),
        "E2.2": lambda: _synchronous(_degrees(ranks)),
        "E2.3": lambda: _larger_batches(ranks),
        "E3.1": lambda: _local_sgd(_ENDS),
        "E3.2.1": lambda: _households(ranks, overlapping=False),
        "E3.2.2": lambda: _households(ranks, overlapping=False, **_EFFECTIVE),
        "E3.2.3": lambda: _households(ranks, overlapping=False, **_EFFECTIVE, lr_rule="linear"),
        "E3.2.4": lambda: {
            f"{name}, {rule}": one
            for rule, options in (
                ("local batch constant", {}),
                ("effective batch constant", _EFFECTIVE),
                ("and linear rate", {**_EFFECTIVE, "lr_rule": "linear"}),
            )
            for name, one in _households(ranks, overlapping=True, **options).items()
        },
        "E3.3": lambda: _neighbourhoods(ranks),
    }[experiment]()
    return {name: one for name, one in found.items() if _fits(one, ranks)}


_ENDS: dict[str, dict[str, Any]] = {
    "disjoint": {"assignment": "shards"},
    "full overlap": {"assignment": "full-overlap"},
}
_EFFECTIVE: dict[str, Any] = {"batch_rule": "effective"}


def _synchronous(assignments: Mapping[str, Mapping[str, Any]], **options: Any) -> dict[str, Configuration]:
    """L_W = 1."""
    return {
        name: Configuration(options={"method": "ddp", **options}, params=dict(params))
        for name, params in assignments.items()
    }


def _degrees(ranks: int) -> dict[str, dict[str, Any]]:
    copies = {"coarse": (2, 4, 8), "medium-coarse": (2, 4, 8), "fine-grained": (2, 4, 6, 8, 10, 12, 14)}
    return {
        **_ENDS,
        **{
            f"{scheme}, C = {count}": {"assignment": scheme, "copies": count}
            for scheme, counts in copies.items()
            for count in counts
        },
    }


def _larger_batches(ranks: int) -> dict[str, Configuration]:
    kinds = {**_ENDS, "2 shards": {"assignment": "coarse", "copies": ranks // 2}}
    return {
        f"batch {size}, {name}": one
        for size in (128, 256, 512, 1024, 2048, 4096)
        for name, one in _synchronous(kinds, batch_size=size).items()
    }


def _local_sgd(assignments: Mapping[str, Mapping[str, Any]]) -> dict[str, Configuration]:
    return {
        f"L_W = {every}, {name}": Configuration(
            params={**params, "world_every": every, "household": 1, "neighbourhood": 1}
        )
        for every in WORLD_EVERY
        for name, params in assignments.items()
    }


def _households(ranks: int, *, overlapping: bool, **options: Any) -> dict[str, Configuration]:
    """H households of M / H ranks, which have S_H shards: H, or fewer where they overlap."""
    found = {}
    for households in (one for one in (2, 4, 8) if one <= ranks):
        shards = [one for one in (1, 2) if one < households] if overlapping else [households]
        for every in WORLD_EVERY:
            for count in shards:
                copies = households // count
                dealt = {"assignment": "coarse", "copies": copies} if overlapping else _ENDS["disjoint"]
                found[f"H = {households}, S_H = {count}, L_W = {every}"] = Configuration(
                    options=options,
                    params={
                        **dealt,
                        "world_every": every,
                        "household": ranks // households,
                        "neighbourhood": 1,
                    },
                )
    return found


def _neighbourhoods(ranks: int) -> dict[str, Configuration]:
    """Two neighbourhoods of H / 2 households."""
    found = {}
    for households in (one for one in (4, 8) if one <= ranks):
        for inner in (2, 4):
            for every in (one for one in WORLD_EVERY if one > inner):
                for name, dealt in (
                    ("disjoint", _ENDS["disjoint"]),
                    ("full overlap between neighbourhoods", {"assignment": "coarse", "copies": 2}),
                ):
                    found[f"H = {households}, L_N = {inner}, L_W = {every}, {name}"] = Configuration(
                        params={
                            **dealt,
                            "world_every": every,
                            "household": ranks // households,
                            "neighbourhood": households // 2,
                            "neighbourhood_every": inner,
                        }
                    )
    return found


def _fits(one: Configuration, ranks: int) -> bool:
    """Whether the configuration is for this many ranks, in this form."""
    task = assignment.make_task(**{"epochs": 1, **one.options, "ranks_per_worker": ranks})
    try:
        return task.allows(task.space.validate(one.params))
    except hpo.UsageError:
        return False


class StudyTask(hpo.Task):
    """The fitness is the accuracy on the validation part after the last epoch."""

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
        task = assignment.make_task(**_options_of(chosen, self._options))
        _, result = task.fit(
            chosen.params,
            ranks=trial.size,
            device=trial.device,
            **{
                **trial.training(value="accuracy"),
                "seed": int(str(trial.params["seed"])),
            },
        )
        value = result.metrics["accuracy"] if result.reason != "diverged" else math.nan
        return {"value": value, **{name: result.metrics[name] for name in task.recorded}}


def _options_of(chosen: Configuration, options: Options) -> dict[str, Any]:
    """Those of ``search_spaces.assignment``."""
    return {**options.model_dump(exclude={"experiment", "seeds"}), **chosen.options}


def untrained(params: Mapping[str, Scalar], **given: Any) -> nn.Module:
    """The network of a configuration, untrained. ``given``: options, and "classes" if it is known."""
    facts = {name: given.pop(name) for name in ("classes",) if name in given}
    options = Options(**given)
    chosen = configurations(options.experiment, options.ranks_per_worker)[str(params["configuration"])]
    return assignment.untrained(chosen.params, **_options_of(chosen, options), **facts)


def table(result: hpo.Result) -> str:
    """Of each configuration mean and deviation of the accuracy over its seeds, and how many are done, best first."""
    values: dict[str, list[float]] = {}
    for one in result.individuals:
        if one.status == COMPLETED and one.value is not None:
            values.setdefault(str(one.params["configuration"]), []).append(one.value)
    rows = [("configuration", "accuracy", "seeds")]
    for name, each in sorted(values.items(), key=lambda item: -statistics.fmean(item[1])):
        deviation = f" ± {statistics.stdev(each):.2%}" if len(each) > 1 else ""
        rows.append((name, f"{statistics.fmean(each):.2%}{deviation}", str(len(each))))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


class _MakeTask:
    """make_task(**options): the task for these options, the ``[task_options]`` of a campaign file."""

    options = Options
    __name__ = "make_task"
    __signature__ = Options.signature()

    def __call__(self, **options: Any) -> StudyTask:
        return StudyTask(Options(**options))


make_task: Callable[..., StudyTask] = _MakeTask()


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table of a campaign; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m search_spaces.resnet20_study",
        description="Mean and deviation of each configuration of an experiment: "
        f"{', '.join(get_args(Experiment))}.",
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="that of the campaign")
    try:
        print(table(hpo.Result(parser.parse_args(arguments).directory)))
    except hpo.HpoError as error:
        print(f"search_spaces.resnet20_study: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
