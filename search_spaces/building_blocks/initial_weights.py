"""Weights of a network before its training: another run's model, or a parent's checkpoint.

Tensors that agree in name and shape are copied; the others stay as they were initialised. Importing this module imports
torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import hpo
from search_spaces.networks.deep_resnet import start_new_blocks_as_identity
from trainers.checkpoints.export import multiplied_out
from trainers.checkpoints.shards import attached, read_alone, targets_of


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """Names of a network's tensors that were filled, reasons for those that were not, and unused names."""

    taken: Sequence[str]
    left: Mapping[str, str]
    unused: Sequence[str] = ()

    def __str__(self) -> str:
        reasons = "".join(f"\n  {name}: {why}" for name, why in self.left.items())
        unused = f"\n  not in this network: {', '.join(self.unused)}" if self.unused else ""
        return f"{len(self.taken)} of {len(self.taken) + len(self.left)} tensors taken{reasons}{unused}"


def take(model: nn.Module, state: Mapping[str, Tensor]) -> Transfer:
    """Fill tensors of ``model`` from those of ``state`` with the same name and shape; counters stay."""
    taken, left, own = [], {}, model.state_dict()
    with torch.no_grad():
        for name, tensor in own.items():
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
    return Transfer(taken=taken, left=left, unused=[name for name in state if name not in own])


def make_orthogonal(model: nn.Module) -> None:
    """Make weights of layers orthogonal, as Table A.6 has it (Saxe et al. 2014, arXiv 1312.6120)."""
    for name, parameter in model.named_parameters():
        if parameter.dim() >= 2 and name.endswith("weight"):
            nn.init.orthogonal_(parameter)


def take_file(model: nn.Module, path: str) -> Transfer:
    """``take`` from a safetensors file, with low-rank weights multiplied out; blocks that are not in the file begin as
    identity. UsageError for a file of another kind of network.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        state = multiplied_out(model, load_file(path))
    except (OSError, SafetensorError) as error:
        raise hpo.UsageError(f"init = {path!r}: cannot be read: {error}. Name a safetensors file.") from error
    if not state.keys() & model.state_dict().keys():
        raise hpo.UsageError(
            f"init = {path!r}: none of its {len(state)} tensors has the name of one of the network's. Name a model of "
            "a network like it, or leave init out."
        )
    transfer = take(model, state)
    start_new_blocks_as_identity(model, state)
    return transfer


@dataclass(frozen=True, kw_only=True)
class Parent:
    """Checkpoint of another run."""

    transfer: Transfer
    kind: str
    """Class of its optimizer."""
    optimizer: Mapping[str, Any] | None
    """State of the optimizer, None if its network is another, as the means over time do not fit then."""

    def continued(self, made: Optimizer) -> Optimizer:
        """``made`` with its own settings, and with the parent's means over time if both keep the same means."""
        if self.optimizer is None or self.kind != type(made).__name__:
            return made
        if _kept_means(self.optimizer["param_groups"]) != _kept_means(made.param_groups):
            return made
        # Two entries of a group are state: Ftrl's weights follow from its sums and the rate of the step before.
        settings = [
            {name: value for name, value in group.items() if name not in ("params", "last_lr")}
            for group in made.param_groups
        ]
        made.load_state_dict(attached(dict(self.optimizer), targets_of(made)))
        for group, own in zip(made.param_groups, settings, strict=True):
            group.pop("initial_lr", None)  # the parent's; the schedule counts from this run's rate
            group.update(own)
        return made


def _kept_means(groups: Sequence[Mapping[str, Any]]) -> list[tuple[object, ...]]:
    """Number of parameters per group, and the settings by which an optimizer keeps more means."""
    return [
        (len(group["params"]), *(bool(group.get(name)) for name in ("amsgrad", "centered", "momentum")))
        for group in groups
    ]


def grow(model: nn.Module, checkpoint: Path) -> Parent | None:
    """Fill ``model`` from its parent's checkpoint; None without a checkpoint. From a parent with another network, or
    whose run diverged, tensors that agree are taken from where its score was measured, with low-rank weights multiplied
    out, and new blocks begin as identity.
    """
    if not (checkpoint / "latest").exists():
        return None
    saved = read_alone(checkpoint)
    kind = saved["identity"]["optimizer"]
    own = {name: tensor.shape for name, tensor in model.state_dict().items()}
    same = own == {name: tensor.shape for name, tensor in saved["model"].items()}
    if same and saved["reason"] != "diverged":
        model.load_state_dict(saved["model"])
        return Parent(transfer=Transfer(taken=[*own], left={}), kind=kind, optimizer=saved["optimizer"])
    best = saved.get("best")
    state = multiplied_out(model, best["model"] if isinstance(best, dict) else saved["model"])
    transfer = take(model, state)
    start_new_blocks_as_identity(model, state)
    return Parent(transfer=transfer, kind=kind, optimizer=None)
