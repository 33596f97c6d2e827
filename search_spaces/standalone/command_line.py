"""One configuration of a task from the command line, alone or under torchrun, without a campaign; and the model that
it, or a campaign, has trained, as a file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import hpo
from search_spaces.standalone import arguments as command
from search_spaces.standalone.arguments import MakeTask, Request
from search_spaces.standalone.torchrun import Place, directory_of, joined
from search_spaces.standalone.trained_models import Trained, check_writable, export


def main(make_task: MakeTask, arguments: Sequence[str] | None = None) -> int:
    """Evaluate one configuration and print the result as JSON on rank 0; returns the exit code.

    Every parameter of the space is an option, and so is every keyword of ``make_task``. Defaults are the task's default
    point, the file named by --config, or, with --campaign, the best of that campaign and its options. With either, the
    configuration is trained with several seeds and tested. The evaluation's training is not repeated for that, and with
    --directory all trainings are saved there, for a second call to continue them. --export writes the trained network
    to a file; with --campaign it is the network that the campaign has trained.

    A user's mistake is one sentence on standard error; wrong options are one each.
    """
    with joined() as place:
        try:
            request = command.read(make_task, arguments)
            given, trained = request.command, request.trained
            if given.trains or trained is None:
                found = _trained(make_task, request, place)
            else:
                if place.rank == 0 and given.export is not None:
                    export(trained, given.export, make_task=make_task, merge=given.merge)
                found = {"id": trained.id, "params": trained.params, "exported": str(given.export)}
        except hpo.HpoError as error:
            lines = str(error).splitlines()
            place.report("\n".join(f"{make_task.__module__}: {line}" for line in lines))
            return error.exit_code
        if place.rank == 0:
            # Numbers of numpy or torch are as good as Python's.
            print(json.dumps(found, indent=2, default=lambda value: value.item()))
        return 0


def _trained(make_task: MakeTask, request: Request, place: Place) -> dict[str, Any]:
    """Train, test and export as requested."""
    options, given = request.options, request.command
    path = given.export
    if path is not None and options.get("folds"):
        raise hpo.UsageError(
            f"--folds {options['folds']} trains a model for each fold, and --export writes one model. Add --folds 0"
        )
    task = make_task(**options)
    params = command.parameters(task, request)
    if path is not None and place.rank == 0:
        check_writable(path)  # before hours of training
    with directory_of(given.directory, place) as directory:
        trial = hpo.Trial.alone(
            params,
            directory=directory,
            seed=given.seed,
            rank=place.rank,
            size=place.size,
            local_rank=place.local_rank,
            device=place.device,
        )
        returned = task.run(trial)
        found: dict[str, Any] = {} if request.trained is None else {"id": request.trained.id}
        # The options that were not given belong to the result, too.
        found.update(params=params, options=task.options.model_dump())
        found.update(returned if isinstance(returned, Mapping) else {"value": returned})
        if request.start is not None:
            seeds = {} if given.test_seeds is None else {"seeds": range(given.test_seeds)}
            tests = task.tests(
                params, ranks=place.size, device=place.device, saved_in=_places(request, directory), **seeds
            )
            found.update(tests=tests, test=sum(one["test"] for one in tests) / len(tests))
        if path is not None and place.rank == 0:
            trained = Trained(params=params, options=options, directory=directory)
            export(trained, path, make_task=make_task, merge=given.merge)
            found["exported"] = str(path)
    return found


def _places(request: Request, directory: Path) -> Callable[[int], Path | None]:
    """Directories of the test's trainings by seed: that of the evaluation for its seed, and others if --directory is
    given. With folds no training of the evaluation has all samples, as the test's have.
    """
    evaluated = None if request.options.get("folds") else request.command.seed
    others = request.command.directory

    def place(seed: int) -> Path | None:
        if seed == evaluated:
            return directory
        return None if others is None else others / f"test-seed-{seed}"

    return place
