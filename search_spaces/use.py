"""From a search to a model for use: what an evaluation has trained, as a file of tensors that holds no code."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hpo

if TYPE_CHECKING:
    from torch import nn

    from hpo.individual import Scalar

MakeNetwork = Callable[..., "nn.Module"]
"""network(params, **keywords of make_task): the network of a configuration, untrained."""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """One evaluation that is over, and where its checkpoint lies."""

    params: Mapping[str, Scalar]
    options: Mapping[str, Any]
    directory: Path
    id: str | None = None


def of_campaign(directory: Path, module: str, chosen: str | None = None) -> Trained:
    """The best individual of the campaign in ``directory``, or the one with the id ``chosen``.

    UsageError if it is a campaign of another module than ``module``, or has no such individual.
    """
    result = hpo.Result(directory)
    identity = result.record.identity
    reference = str(identity.get("task"))
    if reference.split(":")[0] != module:
        raise hpo.UsageError(
            f"{directory} is a campaign of {reference}. Name that module: python -m {reference.split(':')[0]} …"
        )
    if chosen is None:
        one = result.best
        # Where it was evaluated more than once, the checkpoint of that evaluation which looks best may be gone.
        for other in (same for each in result.repeated[:1] for same in each.individuals):
            if any((Path(directory) / "evaluations" / other.id).glob("checkpoint-*")):
                one = other
                break
    else:
        named = [individual for individual in result.individuals if individual.id == chosen]
        if not named:
            raise hpo.UsageError(
                f"{directory} has no individual {chosen}. `hpo best {directory} --top 5` lists the best."
            )
        one = named[0]
    options = identity.get("options")
    return Trained(
        params=one.params,
        options=options if isinstance(options, dict) else {},
        directory=Path(directory) / "evaluations" / one.id,
        id=one.id,
    )


def export(trained: Trained, path: Path, *, module: str, network: MakeNetwork, merge: bool) -> None:
    """Write the model that ``trained`` left to ``path``, a safetensors file; with ``merge`` low-rank weights as
    ordinary ones. Parameters and options are in its metadata. UsageError where there is no such model.
    """
    import trainers

    found = sorted(trained.directory.glob("checkpoint-*"), key=lambda place: place.stat().st_mtime)
    if not found:
        if any(trained.directory.glob("fold-*")):
            raise hpo.UsageError(
                f"{trained.directory} holds a model of each fold. Train the configuration alone: --config FILE "
                "--export FILE --folds 0"
            )
        raise hpo.UsageError(
            f"{trained.directory} has no checkpoint. A campaign keeps those of its best few (keep = 3); train the "
            "configuration alone: --config FILE --export FILE"
        )
    try:
        model = trainers.load_trained(network(trained.params, **trained.options), found[-1], merge=merge)
    except (FileNotFoundError, ValueError) as error:
        raise hpo.UsageError(str(error)) from error
    trainers.save_model(
        model,
        path,
        {
            "module": module,
            "params": json.dumps(dict(trained.params)),
            "options": json.dumps(dict(trained.options)),
        },
    )
