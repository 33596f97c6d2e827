"""Where a network's weights come from before its training: another run's model, or a parent's checkpoint.

What agrees in name and shape is taken, and the rest stays as it was initialised. Importing this module imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import hpo
from search_spaces.networks.deep_resnet import start_new_blocks_as_identity
from trainers.checkpoints.files import read_alone


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """Names of a network's tensors: those that were filled, and, of the others, why they were not."""

    taken: tuple[str, ...]
    left: Mapping[str, str]

    def __str__(self) -> str:
        reasons = "".join(f"\n  {name}: {why}" for name, why in self.left.items())
        return f"{len(self.taken)} of {len(self.taken) + len(self.left)} tensors taken{reasons}"


def take(model: nn.Module, state: Mapping[str, Tensor]) -> Transfer:
    """Fill what ``state`` has by the same name and shape; counters and other tensors of integers stay."""
    taken, left = [], {}
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if not tensor.is_floating_point():
                continue
            found = state.get(name)
            if found is None:
                left[name] = "is not there"
            elif found.shape != tensor.shape:
                left[name] = f"is {tuple(found.shape)} there, and {tuple(tensor.shape)} here"
            else:
                tensor.copy_(found)
                taken.append(name)
    return Transfer(taken=tuple(taken), left=left)


def make_orthogonal(model: nn.Module) -> None:
    """Weights of layers become orthogonal, as Table A.6 has it (Saxe et al. 2014, arXiv 1312.6120)."""
    for name, parameter in model.named_parameters():
        if parameter.dim() >= 2 and name.endswith("weight"):
            nn.init.orthogonal_(parameter)


def take_file(model: nn.Module, path: str) -> Transfer:
    """As ``take``, from a safetensors file; blocks that the file's network has not begin as identity. UsageError where
    it cannot be read, or is of another kind of network.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        state = load_file(path)
    except (OSError, SafetensorError) as error:
        raise hpo.UsageError(f"init = {path!r}: cannot be read: {error}. Name a safetensors file.") from error
    transfer = take(model, state)
    if not state.keys() & model.state_dict().keys():
        raise hpo.UsageError(
            f"init = {path!r}: none of its {len(state)} tensors has the name of one of the network's. Name a model of "
            "a network like it, written with --merge if it is of low rank, or leave init out."
        )
    start_new_blocks_as_identity(model, state)
    return transfer


@dataclass(frozen=True, kw_only=True)
class Parent:
    """The checkpoint of another run, which this one goes on from. ``optimizer`` is None where its network is another:
    then its means over time are not this one's.
    """

    optimizer: Mapping[str, Any] | None

    def going_on(self, made: Optimizer) -> Optimizer:
        """``made`` with its own settings, and with the parent's means over time."""
        if self.optimizer is None:
            return made
        settings = [
            {name: value for name, value in group.items() if name != "params"} for group in made.param_groups
        ]
        made.load_state_dict(dict(self.optimizer))
        for group, own in zip(made.param_groups, settings, strict=True):
            group.pop("initial_lr", None)  # of the run before; this one's schedule counts from its own
            group.update(own)
        return made


def grow(model: nn.Module, checkpoint: Path) -> Parent | None:
    """Fill ``model`` from the checkpoint of its parent; None where there is none. A parent with another network
    gives what agrees, as it was where its score was measured, and blocks that it has not begin as identity.
    """
    if not (checkpoint / "latest").exists():
        return None
    saved = cast("Mapping[str, Any]", read_alone(checkpoint))
    same = {n: t.shape for n, t in model.state_dict().items()} == {
        n: t.shape for n, t in saved["model"].items()
    }
    if same:
        model.load_state_dict(saved["model"])
    else:
        best = saved.get("best")
        state = best["model"] if isinstance(best, dict) else saved["model"]
        take(model, state)
        start_new_blocks_as_identity(model, state)
    return Parent(optimizer=saved["optimizer"] if same else None)
