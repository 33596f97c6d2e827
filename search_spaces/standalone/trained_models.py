"""Models that evaluations have trained, as files of tensors that hold no code."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hpo
from hpo.evaluation.directories import EvaluationDirectories
from hpo.terminal import quoted

if TYPE_CHECKING:
    from hpo.individual import Scalar

_NOTE, _NETWORK, _INPUTS = "network.json", "network", "inputs"
# Module that a campaign's record names instead of the task's, if Python made the task.
_TRAINED_TASK = "search_spaces.building_blocks.training"


@dataclass(frozen=True, kw_only=True)
class Trained:
    """An evaluation that has ended, and its directory, with its checkpoint."""

    params: Mapping[str, Scalar]
    options: Mapping[str, Any]
    directory: Path
    id: str | None = None

    @property
    def again(self) -> str:
        """Arguments that train the configuration again, for a message."""
        return f"--campaign DIR {f'--id {self.id} ' if self.id else ''}--anew --export FILE"


def note(directory: Path, facts: Mapping[str, int], inputs: Mapping[str, list[float]]) -> None:
    """Keep beside a run's checkpoint ``facts`` about the network and ``inputs`` that the data decided, so that the
    model can be used without the data.
    """
    partial = directory / f"{_NOTE}.partial"  # a run that is killed leaves no half of a file
    partial.write_text(json.dumps({_NETWORK: facts, _INPUTS: inputs}))
    os.replace(partial, directory / _NOTE)


def noted(directory: Path) -> tuple[dict[str, int], dict[str, list[float]]]:
    """The facts and inputs that ``note`` kept there; empty where none were kept."""
    try:
        found = json.loads((directory / _NOTE).read_text())
    except FileNotFoundError:
        return {}, {}
    except (OSError, ValueError) as error:
        raise hpo.UsageError(
            f"{directory / _NOTE} cannot be read: {error}. Remove it: the data are read in its place."
        ) from error
    if not isinstance(found, dict):
        return {}, {}
    return found.get(_NETWORK, {}), found.get(_INPUTS, {})


def check_writable(path: Path) -> None:
    """Make the folder of ``path``; UsageError if ``export`` could not write there."""
    if path.is_dir():
        raise hpo.UsageError(f"--export {path}: is a folder. Name a file in it: {path / 'model.safetensors'}")
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.touch()
        partial.unlink()
    except OSError as error:
        raise hpo.UsageError(f"--export {path}: cannot be written: {error}. Name another file.") from error


def names_no_module(reference: str) -> bool:
    """Whether ``reference`` is that of a task that Python made."""
    return reference.startswith(f"{_TRAINED_TASK}:")


def check_module(reference: str, module: str, what: str) -> None:
    """UsageError, which begins with ``what``, if a campaign's ``reference`` to its task, such as
    "folder/my_space.py:task", is not to ``module``.
    """
    place = reference.rpartition(":")[0]
    own = Path(place).stem if place.endswith(".py") else place
    if own != (module.rpartition(".")[2] if place.endswith(".py") else module):
        raise hpo.UsageError(
            f"{what} {reference}. Name that module, if it has this command line: python -m {own} …; else fill a model "
            "that you build from DIR/evaluations/ID by trainers.load_trained."
        )


def of_campaign(directory: Path, module: str, chosen: str | None = None) -> Trained:
    """The best individual of the campaign in ``directory``, or that with the id ``chosen``. UsageError if the campaign
    is of another module than ``module``, or has no such individual.
    """
    result, directories = hpo.Result(directory), EvaluationDirectories(Path(directory))
    identity = result.record.identity
    reference = str(identity.get("task"))
    if names_no_module(reference):
        raise hpo.UsageError(
            f"{directory} was started from Python, and its record does not have the task's module and options. Write "
            f"`hpo best {quoted(directory)} --json` to a file, and give that by --config, with the campaign's options."
        )
    check_module(reference, module, f"{directory} is a campaign of")
    if chosen is None:
        # The best may have been evaluated more than once, and the checkpoint of its best evaluation be gone.
        repeats = [repeat for repeated in result.repeated[:1] for repeat in repeated.individuals]
        saved = (repeat for repeat in repeats if any(directories.path(repeat.id).glob("*-ranks")))
        found = next(saved, result.best)
    else:
        named = [individual for individual in result.individuals if individual.id == chosen]
        if not named:
            raise hpo.UsageError(
                f"{directory} has no individual {chosen}. `hpo best {quoted(directory)} --top 5` lists the best."
            )
        found = named[0]
    options = identity.get("options")
    return Trained(
        params=found.params,
        options=options if isinstance(options, dict) else {},
        directory=directories.path(found.id),
        id=found.id,
    )


def export(trained: Trained, path: Path, *, make_task: Any, merge: bool) -> None:
    """Write the model of ``trained`` to ``path``, a safetensors file with parameters, options, facts and inputs as
    metadata; with ``merge`` low-rank weights are multiplied out. UsageError if there is no model, or ``path`` cannot be
    written.
    """
    check_writable(path)
    import trainers

    found = sorted(trained.directory.glob("*-ranks"), key=lambda place: place.stat().st_mtime)
    if not found:
        if any(trained.directory.glob("fold-*")):
            raise hpo.UsageError(
                f"{trained.directory} holds a model of each fold. Train a model without folds: {trained.again} "
                "--folds 0"
            )
        raise hpo.UsageError(
            f"{trained.directory} has no checkpoint. A campaign keeps those of its best few (keep = 3); train the "
            f"configuration again: {trained.again}"
        )
    facts, inputs = noted(trained.directory)
    model = make_task.untrained(trained.params, **trained.options, **facts)
    try:
        model = trainers.load_trained(model, found[-1], merge=merge)
    except (FileNotFoundError, ValueError) as error:
        raise hpo.UsageError(f"{error} Or train the configuration again: {trained.again}") from error
    described = {
        "params": dict(trained.params), "options": dict(trained.options), _NETWORK: facts, _INPUTS: inputs,
    }  # fmt: skip
    metadata = {name: json.dumps(fact) for name, fact in described.items()}
    try:
        trainers.save_model(model, path, {"module": make_task.__module__, **metadata})
    except OSError as error:  # a full disk, found after hours of training
        path.with_name(path.name + ".partial").unlink(missing_ok=True)
        raise hpo.UsageError(f"--export {path}: cannot be written: {error}. Name another file.") from error
