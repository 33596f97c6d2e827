"""Where a network's weights come from before its training: another run's model, or a parent's checkpoint.

What agrees in name and shape is taken, and the rest stays as it was initialised. Importing this module imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import hpo
from search_spaces.networks.deep_resnet import start_new_blocks_as_identity
from trainers.checkpoints.export import multiplied_out
from trainers.checkpoints.files import read_alone

_OF_THE_STATE = ("params", "last_lr")
"""Of a group, what is no setting: Ftrl's weights follow from its sums and the rate of the step before."""


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """Names of a network's tensors: those that were filled, and, of the others, why they were not. ``unused``: those of
    the other model that this network has not.
    """

    taken: tuple[str, ...]
    left: Mapping[str, str]
    unused: tuple[str, ...] = ()

    def __str__(self) -> str:
        reasons = "".join(f"\n  {name}: {why}" for name, why in self.left.items())
        unused = f"\n  not in this network: {', '.join(self.unused)}" if self.unused else ""
        return f"{len(self.taken)} of {len(self.taken) + len(self.left)} tensors taken{reasons}{unused}"


def take(model: nn.Module, state: Mapping[str, Tensor]) -> Transfer:
    """Fill what ``state`` has by the same name and shape; counters and other tensors of integers stay."""
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
    unused = tuple(name for name in state if name not in own)
    return Transfer(taken=tuple(taken), left=left, unused=unused)


def make_orthogonal(model: nn.Module) -> None:
    """Weights of layers become orthogonal, as Table A.6 has it (Saxe et al. 2014, arXiv 1312.6120)."""
    for name, parameter in model.named_parameters():
        if parameter.dim() >= 2 and name.endswith("weight"):
            nn.init.orthogonal_(parameter)


def take_file(model: nn.Module, path: str) -> Transfer:
    """As ``take``, from a safetensors file, low-rank weights multiplied out; blocks that the file's network has not
    begin as identity. UsageError where it cannot be read, or is of another kind of network.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        state = load_file(path)
    except (OSError, SafetensorError) as error:
        raise hpo.UsageError(f"init = {path!r}: cannot be read: {error}. Name a safetensors file.") from error
    state = multiplied_out(model, state)
    transfer = take(model, state)
    if not state.keys() & model.state_dict().keys():
        raise hpo.UsageError(
            f"init = {path!r}: none of its {len(state)} tensors has the name of one of the network's. Name a model of "
            "a network like it, or leave init out."
        )
    start_new_blocks_as_identity(model, state)
    return transfer


@dataclass(frozen=True, kw_only=True)
class Parent:
    """The checkpoint of another run, which this one goes on from. ``kind``: of its ``optimizer``, whose state is None
    where its network is another: then its means over time are not this one's.
    """

    transfer: Transfer
    kind: str
    optimizer: Mapping[str, Any] | None

    def going_on(self, made: Optimizer) -> Optimizer:
        """``made`` with its own settings, and with the parent's means over time where it keeps the same ones."""
        if self.optimizer is None or self.kind != type(made).__name__:
            return made
        if _what_is_kept(self.optimizer["param_groups"]) != _what_is_kept(made.param_groups):
            return made
        settings = [
            {name: value for name, value in group.items() if name not in _OF_THE_STATE}
            for group in made.param_groups
        ]
        made.load_state_dict(dict(self.optimizer))
        for group, own in zip(made.param_groups, settings, strict=True):
            group.pop("initial_lr", None)  # of the run before; this one's schedule counts from its own
            group.update(own)
        return made


def _what_is_kept(groups: Sequence[Mapping[str, Any]]) -> list[tuple[object, ...]]:
    """For each group the number of its parameters, and whether settings are on by which an optimizer keeps more."""
    return [
        (len(group["params"]), *(bool(group.get(name)) for name in ("amsgrad", "centered", "momentum")))
        for group in groups
    ]


def grow(model: nn.Module, checkpoint: Path) -> Parent | None:
    """Fill ``model`` from the checkpoint of its parent; None where there is none. A parent with another network, or
    whose run diverged, gives what agrees, low-rank weights multiplied out, as it was where its score was measured, and
    blocks that it has not begin as identity.
    """
    if not (checkpoint / "latest").exists():
        return None
    saved = cast("Mapping[str, Any]", read_alone(checkpoint))
    kind = saved["identity"]["optimizer"]
    own = {name: tensor.shape for name, tensor in model.state_dict().items()}
    same = own == {name: tensor.shape for name, tensor in saved["model"].items()}
    if same and saved["reason"] != "diverged":
        model.load_state_dict(saved["model"])
        return Parent(transfer=Transfer(taken=tuple(own), left={}), kind=kind, optimizer=saved["optimizer"])
    best = saved.get("best")
    state = multiplied_out(model, best["model"] if isinstance(best, dict) else saved["model"])
    transfer = take(model, state)
    start_new_blocks_as_identity(model, state)
    return Parent(transfer=transfer, kind=kind, optimizer=None)
