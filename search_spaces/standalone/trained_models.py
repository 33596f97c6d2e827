"""From a search to a model for use: what an evaluation has trained, as a file of tensors that holds no code."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hpo
from hpo.evaluation.directories import EvaluationDirectories
from hpo.terminal import quoted

if TYPE_CHECKING:
    from torch import nn

    from hpo.individual import Scalar

MakeNetwork = Callable[..., "nn.Module"]
"""network(params, **keywords of make_task, **what was noted of the run): the network of a configuration, untrained."""

_NOTE, _NETWORK, _INPUTS = "network.json", "network", "inputs"
_TRAINED_TASK = "search_spaces.building_blocks.training"
"""What a campaign's record names in place of the task's module where Python made the task."""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """One evaluation that is over, and where its checkpoint lies."""

    params: Mapping[str, Scalar]
    options: Mapping[str, Any]
    directory: Path
    id: str | None = None

    @property
    def again(self) -> str:
        """The arguments that train it again, for a message."""
        return f"--campaign DIR {f'--id {self.id} ' if self.id else ''}--anew --export FILE"


def note(directory: Path, facts: Mapping[str, int], inputs: Mapping[str, list[float]]) -> None:
    """Keep beside a run's checkpoint what its data, and not its configuration, decided: ``facts`` about the network,
    keywords of ``MakeNetwork``, and ``inputs``, how these are prepared. So the model can be used without the data.
    """
    partial = directory / f"{_NOTE}.partial"
    partial.write_text(json.dumps({_NETWORK: facts, _INPUTS: inputs}))
    os.replace(partial, directory / _NOTE)


def noted(directory: Path) -> tuple[dict[str, int], dict[str, list[float]]]:
    """The facts and the inputs that ``note`` kept there; nothing if the network did not depend on data, or the run is
    of a time before that.
    """
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
    if isinstance(found.get(_NETWORK), dict) and isinstance(found.get(_INPUTS), dict):
        return found[_NETWORK], found[_INPUTS]
    return found, {}  # as an earlier version wrote it


def check_writable(path: Path) -> None:
    """UsageError where ``export`` could not write ``path``; its folder is made. For before a training."""
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
    """Whether Python made the task of the campaign whose ``reference`` to it this is."""
    return reference.startswith(f"{_TRAINED_TASK}:")


def check_module(reference: str, module: str, what: str) -> None:
    """UsageError where a campaign's ``reference`` to its task, "folder/my_space.py:task", say, is not to ``module``.
    ``what``: how the sentence begins.
    """
    place = reference.rpartition(":")[0]
    own = Path(place).stem if place.endswith(".py") else place
    if own != (module.rpartition(".")[2] if place.endswith(".py") else module):
        raise hpo.UsageError(
            f"{what} {reference}. Name that module, if it has this command line: python -m {own} …; of another one "
            "trainers.load_trained fills a model that you build from DIR/evaluations/ID."
        )


def of_campaign(directory: Path, module: str, chosen: str | None = None) -> Trained:
    """The best individual of the campaign in ``directory``, or the one with the id ``chosen``.

    UsageError if it is a campaign of another module than ``module``, or has no such individual.
    """
    result, directories = hpo.Result(directory), EvaluationDirectories(Path(directory))
    identity = result.record.identity
    reference = str(identity.get("task"))
    if names_no_module(reference):
        raise hpo.UsageError(
            f"{directory} was started from Python with a task that make_task returned, and its record does not say of "
            f"which module and options. Write `hpo best {quoted(directory)} --json` to a file, and give that by "
            "--config, with the campaign's options; or search with a campaign file next time."
        )
    check_module(reference, module, f"{directory} is a campaign of")
    if chosen is None:
        one = result.best
        # Where it was evaluated more than once, the checkpoint of that evaluation which looks best may be gone.
        for other in (same for each in result.repeated[:1] for same in each.individuals):
            if any(directories.path(other.id).glob("*-ranks")):
                one = other
                break
    else:
        named = [individual for individual in result.individuals if individual.id == chosen]
        if not named:
            raise hpo.UsageError(
                f"{directory} has no individual {chosen}. `hpo best {quoted(directory)} --top 5` lists the best."
            )
        one = named[0]
    options = identity.get("options")
    return Trained(
        params=one.params,
        options=options if isinstance(options, dict) else {},
        directory=directories.path(one.id),
        id=one.id,
    )


def export(trained: Trained, path: Path, *, module: str, network: MakeNetwork, merge: bool) -> None:
    """Write the model that ``trained`` left to ``path``, a safetensors file; with ``merge`` low-rank weights as
    ordinary ones. Parameters, options and what was noted are in its metadata. UsageError where there is no such model,
    or no file can be written there.
    """
    check_writable(path)
    import trainers

    found = sorted(trained.directory.glob("*-ranks"), key=lambda place: place.stat().st_mtime)
    if not found:
        if any(trained.directory.glob("fold-*")):
            raise hpo.UsageError(
                f"{trained.directory} holds a model of each fold. Train one of the configuration: {trained.again} "
                "--folds 0"
            )
        raise hpo.UsageError(
            f"{trained.directory} has no checkpoint. A campaign keeps those of its best few (keep = 3); train the "
            f"configuration again: {trained.again}"
        )
    facts, inputs = noted(trained.directory)
    model = network(trained.params, **trained.options, **facts)
    try:
        model = trainers.load_trained(model, found[-1], merge=merge)
    except (FileNotFoundError, ValueError) as error:
        raise hpo.UsageError(f"{error} Or train the configuration again: {trained.again}") from error
    described = {
        "params": dict(trained.params), "options": dict(trained.options), _NETWORK: facts, _INPUTS: inputs,
    }  # fmt: skip
    try:
        trainers.save_model(
            model, path, {"module": module, **{name: json.dumps(one) for name, one in described.items()}}
        )
    except OSError as error:
        path.with_name(path.name + ".partial").unlink(missing_ok=True)
        raise hpo.UsageError(f"--export {path}: cannot be written: {error}. Name another file.") from error
