"""A campaign out of its space, its default and its recipe: the task for its options, its command line, its test.

    make_task, main = campaign(space, default, recipe, options=MyOptions, task=MyTask)

``search_spaces.building_blocks.image_task.image_campaign`` is that for images in the form of CIFAR.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import hpo
from search_spaces.building_blocks.architecture_search.deep_network import (
    ArchitectureOptions,
    deepened,
    with_architecture,
)
from search_spaces.building_blocks.recipes import MakeRecipe, O, OwnMethod, Run, Searched
from search_spaces.building_blocks.training import TrainedTask, check_recorded
from search_spaces.standalone import command_line
from search_spaces.standalone.arguments import Command

if TYPE_CHECKING:
    from torch import nn

    import trainers
    from hpo.individual import Scalar
    from hpo.task.task import Constraint

T = TypeVar("T")
Task = TypeVar("Task", bound=TrainedTask)
Judge = Callable[["trainers.Result", int], dict[str, float]]


class MakeTask(Generic[O, Task]):
    """make_task(**options): the task for these options, the ``[task_options]`` of a campaign file. UsageError for
    options that are not allowed, or where the data are not there.
    """

    def __init__(
        self,
        module: str,
        options: type[O],
        make: Callable[[O], Task],
        recipe: MakeRecipe[O],
        facts: Sequence[str],
    ) -> None:
        self.__module__, self.options = module, options
        self.__name__ = self.__qualname__ = "make_task"
        self.__signature__ = options.signature()
        self._make, self._recipe, self._facts = make, recipe, facts

    def __call__(self, **options: Any) -> Task:
        return self._make(self.options(**options))

    def test(
        self,
        params: Mapping[str, Scalar],
        *,
        seeds: Sequence[int] = (0, 1, 2),
        ranks: int = 1,
        device: str = "cpu",
        **options: Any,
    ) -> float:
        """As ``TrainedTask.test`` of the task for ``options``."""
        return self(**options).test(params, seeds=seeds, ranks=ranks, device=device)

    def tests(
        self,
        params: Mapping[str, Scalar],
        *,
        seeds: Sequence[int] = (0, 1, 2),
        ranks: int = 1,
        device: str = "cpu",
        saved_in: Callable[[int], Path | None] = lambda seed: None,
        **options: Any,
    ) -> list[dict[str, float]]:
        """As ``TrainedTask.tests`` of the task for ``options``."""
        task = self(**options)
        return task.tests(params, seeds=seeds, ranks=ranks, device=device, saved_in=saved_in)

    def untrained(self, params: Mapping[str, Scalar], **given: Any) -> nn.Module:
        """The network of a configuration, untrained, for ``trainers.load_model`` to fill. ``given``: options, and what
        the data decide about the network, as an exported model names it; without, the data are read for that.
        """
        data = {name: given.pop(name) for name in self._facts if given.get(name) is not None}
        options = self.options(**{name: one for name, one in given.items() if name not in self._facts})
        if len(data) < len(self._facts):
            options.check_data()
            data = options.network_facts(options.parts())
        return self._recipe(dict(params), options, Run(data=data)).network


Main = Callable[..., int]
"""main(arguments=None): one configuration by the command line; returns the exit code."""


def campaign(
    space: hpo.SearchSpace | Callable[[O], hpo.SearchSpace],
    default: Mapping[str, Scalar] | Callable[[O], Mapping[str, Scalar]],
    recipe: MakeRecipe[O],
    *,
    options: type[O],
    task: type[Task],
    own: OwnMethod[O] | Callable[[O], OwnMethod[O]] | None = None,
    points: Sequence[Mapping[str, Scalar]] | Callable[[O], Sequence[Mapping[str, Scalar]]] = (),
    constraints: Sequence[Constraint] | Callable[[O], Sequence[Constraint]] = (),
    judge: Callable[[O], Judge | None] = lambda options: None,
    objectives: Mapping[str, str] | Callable[[O], Mapping[str, str] | None] | None = None,
    ranks: int | Callable[[O], int | None] | None = None,
    facts: Sequence[str] = (),
) -> tuple[MakeTask[O, Task], Main]:
    """The parts of a campaign's module. What depends on the options is a function of them.

    ``own``: the methods that the space is about; the others replace its parameters. ``judge``, ``objectives``: what
    of a result counts, where it is not the task's score alone: ``judge(options)(result, steps)`` is the number of each
    objective for a ``trainers.Result`` of a run of that many steps; without it objectives are the trainer's metrics of
    these names. ``ranks``: how many the space is made for. ``facts``: names of what the data decide about the network.
    """
    module = _module_of(recipe)
    recipe = with_architecture(recipe)

    def make(chosen: O) -> Task:
        searched = Searched(
            space=_for(space, chosen),
            default=_for(default, chosen),
            points=_for(points, chosen),
            constraints=_for(constraints, chosen),
        )
        judged, directions = judge(chosen), _for(objectives, chosen)
        needs: Sequence[str] = ()
        if judged is None and directions is not None and [*directions] != ["value"]:
            needs = [*directions]
            judged = _by_metrics(needs)
        if isinstance(chosen, ArchitectureOptions) and chosen.architecture == "deep":
            searched = deepened(searched, chosen.deep)
            if (both := chosen.objectives(task.score, task.direction)) is not None:
                judged, directions = _by_score(task.score, judged), both
        if chosen.second_objective != "none":
            if directions is not None:
                raise hpo.UsageError(
                    f"second_objective = {chosen.second_objective!r}: there are {' and '.join(directions)} already. "
                    "Leave it out, or the options that add the other."
                )
            if chosen.second_objective == "trainable_fraction" and chosen.method != "oialr":
                raise hpo.UsageError(
                    f"second_objective = 'trainable_fraction': is 1 for every network that method = {chosen.method!r} "
                    "leaves, so that there is nothing to minimise. Use method = 'oialr', second_objective = "
                    "'bytes_between_nodes' where a worker's ranks are on several nodes, or second_objective = 'none'."
                )
            judged = _with(chosen.second_objective, _by_score(task.score, judged))
            # The score first: it says which of the front is the campaign's best.
            directions = {task.score: task.direction, chosen.second_objective: "minimize"}
        made = task(
            searched,
            recipe,
            chosen,
            own=_for(own, chosen),
            judge=judged,
            needs=needs,
            objectives=directions,
            ranks=_for(ranks, chosen),
        )
        _refuse_names_of_options(made.space, options)
        return made

    make_task = MakeTask(module, options, make, recipe, facts)

    def main(arguments: Sequence[str] | None = None) -> int:
        return command_line.main(make_task, arguments)

    return make_task, main


def _refuse_names_of_options(space: hpo.SearchSpace, options: type[O]) -> None:
    """UsageError for parameters with an option's name, which a command line could not tell apart."""
    for name in space.names:
        if name in options.model_fields or name in Command.model_fields:
            hint = (
                " Recipe(samples_a_step=…) says how many samples a step has." if name == "batch_size" else ""
            )
            raise hpo.UsageError(
                f"{name}: is a parameter of the space, and an option. Give the parameter another name, by which the "
                f"recipe reads it.{hint}"
            )


def _by_metrics(names: Sequence[str]) -> Judge:
    """Of a result the metrics of these ``names``."""

    def judged(result: trainers.Result, steps: int) -> dict[str, float]:
        check_recorded(names, result.metrics)
        return {name: result.metrics[name] for name in names}

    return judged


def _by_score(score: str, judge: Judge | None) -> Judge:
    """As ``judge``, with the score by its name."""

    def judged(result: trainers.Result, steps: int) -> dict[str, float]:
        found = {} if judge is None else judge(result, steps)
        return {**{name: one for name, one in found.items() if name != "value"}, score: result.metrics[score]}

    return judged


def _with(metric: str, judge: Judge) -> Judge:
    """As ``judge``, with a metric of the trainer."""
    return lambda result, steps: {metric: result.metrics[metric], **judge(result, steps)}


def _for(value: T | Callable[[O], T], options: O) -> T:
    return value(options) if callable(value) else value


def _module_of(recipe: object) -> str:
    """Where it is defined, by the name by which others import that, also where that is the program that runs."""
    name = str(getattr(recipe, "__module__", ""))
    if name != "__main__":
        return name
    main = sys.modules[name]
    spec = getattr(main, "__spec__", None)
    return spec.name if spec is not None else Path(str(getattr(main, "__file__", name))).stem
