"""One configuration of a task from the command line, alone or under torchrun, without any campaign; and the model
that it, or a campaign, has trained, as a file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import hpo
from search_spaces.standalone import arguments as command
from search_spaces.standalone.arguments import Command, MakeTask, Request
from search_spaces.standalone.torchrun import Place, directory_of, joined
from search_spaces.standalone.trained_models import Trained, check_writable, export


def main(make_task: MakeTask, arguments: Sequence[str] | None = None) -> int:
    """Evaluate one configuration and print, as JSON on rank 0, what it brought; returns the exit code.

    Every parameter of the space is an option, and so is every keyword of ``make_task``. What is not given is
    as in the task's default point, in the file named by --config, or, with --campaign, in the best of that campaign,
    whose options of the task are taken, too. With either, ``make_task.tests`` trains it with several seeds and tests
    it. The training that the evaluation has done is not repeated, and with --directory all are saved there, for a
    second call to continue them. --export writes the trained network to a file; its checkpoint is looked for in
    folders *-ranks of the trial's directory. With --campaign it is the network that the campaign has trained, and
    nothing else is done, unless --anew is given.

    A user's mistake is one sentence on standard error; wrong options are one each.
    """
    module = make_task.__module__
    with joined() as place:
        try:
            request = command.read(make_task, arguments)
            if request.command.trains or request.trained is None:
                found = _trained(make_task, request, place)
            else:
                found = _exported(make_task, request.command, request.trained, place)
        except hpo.HpoError as error:
            # Wrong options are a line each.
            place.report("\n".join(f"{module}: {line}" for line in str(error).splitlines()))
            return error.exit_code
        if place.rank == 0:
            print(json.dumps(found, indent=2, default=_plain))
        return 0


def _plain(value: object) -> object:
    """A number of numpy or torch, for JSON."""
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{value!r}: is no number")


def _exported(make_task: MakeTask, given: Command, trained: Trained, place: Place) -> dict[str, Any]:
    """Write the model that a campaign has trained."""
    if place.rank == 0 and given.export is not None:
        _export(make_task, given, trained, given.export)
    return {"id": trained.id, "params": trained.params, "exported": str(given.export)}


def _export(make_task: MakeTask, given: Command, trained: Trained, path: Path) -> None:
    module, network = make_task.__module__, make_task.untrained
    export(trained, path, module=module, network=network, merge=given.merge)


def _trained(make_task: MakeTask, request: Request, place: Place) -> dict[str, Any]:
    """Train, and test and write what is asked for."""
    options, given = request.options, request.command
    path = given.export
    if path is not None and options.get("folds"):
        raise hpo.UsageError(
            f"--folds {options['folds']} trains a model for each fold, and --export writes one. Add --folds 0"
        )
    task = make_task(**options)
    params = command.parameters(task, request)
    if path is not None and place.rank == 0:
        check_writable(path)
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
        returned = task.evaluate(trial)
        found: dict[str, Any] = {} if request.trained is None else {"id": request.trained.id}
        found.update(params=params, options=command.all_options(make_task, options))
        found.update(returned if isinstance(returned, Mapping) else {"value": returned})
        if request.start is not None:
            repeated = {} if given.test_seeds is None else {"seeds": range(given.test_seeds)}
            tests = make_task.tests(
                params,
                ranks=place.size,
                device=place.device,
                saved_in=_places(request, directory),
                **repeated,
                **options,
            )
            found.update(tests=tests, test=sum(one["test"] for one in tests) / len(tests))
        if path is not None and place.rank == 0:
            _export(make_task, given, Trained(params=params, options=options, directory=directory), path)
            found["exported"] = str(path)
    return found


def _places(request: Request, directory: Path) -> Callable[[int], Path | None]:
    """Where the test's training of a seed is saved: in ``directory``, as the evaluation's is, if the user named it. Of
    folds no training is one of the test's, which has all samples.
    """
    evaluated = None if request.options.get("folds") else request.command.seed
    others = request.command.directory

    def place(seed: int) -> Path | None:
        if seed == evaluated:
            return directory
        return None if others is None else others / f"test-seed-{seed}"

    return place
