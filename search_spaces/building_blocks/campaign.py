"""A campaign from its space, default and recipe: the task for its options, its command line, its test.

    make_task, main = campaign(space, default, recipe, options=MyOptions, task=MyTask)

``image_task.image_campaign`` is the same for images.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hpo
from search_spaces.building_blocks.architecture_search.deep_network import (
    ArchitectureOptions,
    deepened,
    with_architecture,
)
from search_spaces.building_blocks.recipes import MakeRecipe, OwnMethod, Run, Searched, TrainingOptions
from search_spaces.building_blocks.training import Judge, TrainedTask
from search_spaces.standalone import command_line
from search_spaces.standalone.arguments import Command

if TYPE_CHECKING:
    from torch import nn

    from hpo.individual import Scalar
    from hpo.task.task import Constraint

Options = type[TrainingOptions]
# main(arguments=None): one configuration from the command line; returns the exit code.
Main = Callable[..., int]


class MakeTask:
    """make_task(**options): the task for these options, the ``[task_options]`` of a campaign file. UsageError for
    options that are not allowed and for missing data.
    """

    def __init__(
        self,
        module: str,
        options: Options,
        make: Callable[[Any], TrainedTask],
        recipe: MakeRecipe,
        facts: Sequence[str],
    ) -> None:
        self.__module__, self.options = module, options
        self.__name__ = self.__qualname__ = "make_task"
        self.__signature__ = inspect.signature(options)
        self._make, self._recipe, self._facts = make, recipe, facts

    def __call__(self, **options: Any) -> TrainedTask:
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
        """Mean score on the test part of trainings with ``seeds``, by the task for ``options``."""
        each = self(**options).tests(params, seeds=seeds, ranks=ranks, device=device)
        return sum(training["test"] for training in each) / len(each)

    def untrained(self, params: Mapping[str, Scalar], **given: Any) -> nn.Module:
        """The untrained network of a configuration, for ``trainers.load_model`` to fill. ``given``: options, and the
        facts about the network that an exported model names; without these the data are read.
        """
        data = {name: given.pop(name) for name in self._facts if given.get(name) is not None}
        options = self.options(**given)
        if len(data) < len(self._facts):
            options.check_data()
            data = options.network_facts(options.parts())
        return self._recipe(dict(params), options, Run(data=data)).network


def campaign(
    space: hpo.SearchSpace | Callable[[Any], hpo.SearchSpace],
    default: Mapping[str, Scalar] | Callable[[Any], Mapping[str, Scalar]],
    recipe: MakeRecipe,
    *,
    options: Options,
    task: type[TrainedTask],
    own: OwnMethod | Callable[[Any], OwnMethod] | None = None,
    points: Sequence[Mapping[str, Scalar]] | Callable[[Any], Sequence[Mapping[str, Scalar]]] = (),
    constraints: Sequence[Constraint] | Callable[[Any], Sequence[Constraint]] = (),
    judge: Callable[[Any], Judge | None] = lambda options: None,
    objectives: Mapping[str, str] | Callable[[Any], Mapping[str, str]] | None = None,
    ranks: int | Callable[[Any], int] | None = None,
    facts: Sequence[str] = (),
) -> tuple[MakeTask, Main]:
    """``make_task`` and ``main`` of a campaign's module. What depends on the options is a function of them.

    Args:
        own: methods that the space is about; others replace its parameters.
        judge: ``judge(options)(result, steps)`` returns objectives that are no metrics of the trainer, for a
            ``trainers.Result`` of a run of that many steps.
        objectives: directions by objective; None: the score alone.
        ranks: number of ranks that the space is made for; None: any.
        facts: names of the facts about the network that the data decide.
    """
    module = _module_of(recipe)
    recipe = with_architecture(recipe)

    def of(value: Any, chosen: TrainingOptions) -> Any:
        return value(chosen) if callable(value) else value

    def make(chosen: TrainingOptions) -> TrainedTask:
        searched = Searched(
            space=of(space, chosen),
            default=of(default, chosen),
            points=of(points, chosen),
            constraints=of(constraints, chosen),
        )
        directions = of(objectives, chosen)
        if isinstance(chosen, ArchitectureOptions) and chosen.architecture == "deep":
            searched = deepened(searched, chosen.deep)
            directions = chosen.objectives(task.score, task.direction) or directions
        if chosen.second_objective != "none":
            if directions is not None:
                raise hpo.UsageError(
                    f"second_objective = {chosen.second_objective!r}: there are {' and '.join(directions)} already. "
                    "Leave it out, or the options that add the other."
                )
            # The score first: the first objective says which member of the front is the campaign's best.
            directions = {task.score: task.direction, chosen.second_objective: "minimize"}
        made = task(
            searched,
            recipe,
            chosen,
            own=of(own, chosen),
            judge=judge(chosen),
            objectives=directions,
            ranks=of(ranks, chosen),
        )
        for name in made.space.names:
            # The command line could not tell them apart.
            if name in options.model_fields or name in Command.model_fields:
                raise hpo.UsageError(
                    f"{name}: is a parameter of the space, and an option. Give the parameter another name; a batch "
                    "size that is searched is Recipe(samples_a_step=…)."
                )
        return made

    make_task = MakeTask(module, options, make, recipe, facts)
    return make_task, lambda arguments=None: command_line.main(make_task, arguments)


def _module_of(recipe: object) -> str:
    """Name by which others import the module of ``recipe``, also where that is the program that runs."""
    name = str(getattr(recipe, "__module__", ""))
    if name != "__main__":
        return name
    main = sys.modules[name]
    spec = getattr(main, "__spec__", None)
    return spec.name if spec is not None else Path(str(getattr(main, "__file__", name))).stem
