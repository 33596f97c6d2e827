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
from search_spaces.standalone.arguments import MakeTask, Request
from search_spaces.standalone.torchrun import Place, directory_of, joined
from search_spaces.standalone.trained_models import MakeNetwork, Trained, check_writable, export

Test = Callable[..., list[dict[str, float]]]
"""test(params, ranks=…, device=…, saved_in=…, **keywords of make_task), with --test-seeds N also seeds=range(N): as
``TrainedTask.tests``."""


def main(
    module: str,
    make_task: MakeTask,
    test: Test | None = None,
    arguments: Sequence[str] | None = None,
    *,
    network: MakeNetwork | None = None,
) -> int:
    """Evaluate one configuration and print, as JSON on rank 0, what it brought; returns the exit code.

    Every parameter of the space is an option, and so is every keyword of ``make_task``. What is not given is
    as in the task's default point, in the file named by --config, or, with --campaign, in the best of that campaign,
    whose options of the task are taken, too. With either, ``test`` trains it with several seeds and tests it. The
    training that the evaluation has done is not repeated, and with --directory all are saved there, for a second
    call to go on. With ``network``(params, **keywords of make_task), which makes the untrained network, --export
    writes the trained one to a file; its checkpoint is looked for in folders *-ranks of the trial's directory. With
    --campaign it is the one that the campaign has trained, and nothing else is done, unless --anew is given.

    A user's mistake is one sentence on standard error; wrong options are one each.
    """
    with joined() as place:
        try:
            request = command.read(module, make_task, arguments, exports=network is not None)
            if request.trained is None:
                found = _trained(module, make_task, test, network, request, place)
            else:
                found = _exported(module, network, request, request.trained, place)
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


def _exported(
    module: str, network: MakeNetwork | None, request: Request, trained: Trained, place: Place
) -> dict[str, Any]:
    """Write the model that a campaign has trained."""
    if place.rank == 0 and request.export is not None and network is not None:
        export(trained, request.export, module=module, network=network, merge=request.merge)
    return {"id": trained.id, "params": trained.params, "exported": str(request.export)}


def _trained(
    module: str,
    make_task: MakeTask,
    test: Test | None,
    network: MakeNetwork | None,
    request: Request,
    place: Place,
) -> dict[str, Any]:
    """Train, and test and write what is asked for."""
    options, path = request.options, request.export
    if path is not None and options.get("folds"):
        raise hpo.UsageError(
            f"--folds {options['folds']} trains a model for each fold, and --export writes one. Add --folds 0"
        )
    task = make_task(**options)
    params = command.parameters(module, make_task, task, request, options=options)
    if path is not None and place.rank == 0:
        check_writable(path)
    with directory_of(request.directory, place) as directory:
        trial = hpo.Trial.alone(
            params,
            directory=directory,
            seed=request.seed,
            rank=place.rank,
            size=place.size,
            local_rank=place.local_rank,
            device=place.device,
        )
        returned = task.evaluate(trial)
        found: dict[str, Any] = {} if request.id is None else {"id": request.id}
        found.update(params=params, options=command.all_options(make_task, options))
        found.update(returned if isinstance(returned, Mapping) else {"value": returned})
        if test is not None and request.start is not None:
            repeated = {} if request.test_seeds is None else {"seeds": range(request.test_seeds)}
            tests = test(
                params,
                ranks=place.size,
                device=place.device,
                saved_in=_places(request, directory),
                **repeated,
                **options,
            )
            found.update(tests=tests, test=sum(one["test"] for one in tests) / len(tests))
        if path is not None and network is not None and place.rank == 0:
            trained = Trained(params=params, options=options, directory=directory)
            export(trained, path, module=module, network=network, merge=request.merge)
            found["exported"] = str(path)
    return found


def _places(request: Request, directory: Path) -> Callable[[int], Path | None]:
    """Where the test's training of a seed is saved: in ``directory``, as the evaluation's is, if the user named it. Of
    folds no training is one of the test's, which has all samples.
    """
    evaluated = None if request.options.get("folds") else request.seed
    others = request.directory

    def place(seed: int) -> Path | None:
        if seed == evaluated:
            return directory
        return None if others is None else others / f"test-seed-{seed}"

    return place
