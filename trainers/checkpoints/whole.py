"""``trainers.whole``: an ordinary model of a sharded one."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainers.checkpoints.shards import joined, parted, split
from trainers.communication.channel import CommunicationError
from trainers.communication.gathering import gathered
from trainers.methods.sharded_models import Sharded, sharding_of, tensors_of, units_of


def whole(model: nn.Module) -> nn.Module | None:
    """Ordinary model with all weights of ``model`` on rank 0's CPU, None on the other ranks; ``model`` stays as it is.

    Every rank that has trained a sharded model calls it. Another model is copied, on the default group's rank 0.

    Args:
        model (Module): model that ``train`` has left, sharded or not.

    Raises:
        ValueError: the model cannot be copied.
        CommunicationError: a rank is lost, or does not call it within the run's ``timeout``.
    """
    sharded = sharding_of(model)
    if sharded is None:
        first = not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0
        return copy.deepcopy(model).cpu() if first else None
    ordinary = sharded.ordinary
    if isinstance(ordinary, Exception):
        raise ValueError(
            f"The model cannot be copied ({type(ordinary).__name__}: {ordinary}). Save its weights with "
            "trainers.save_model, and load them into a new model with trainers.load_model."
        )
    made = copy.deepcopy(ordinary)
    try:
        tensors = _whole_tensors(model, sharded)
    except CommunicationError as error:
        raise CommunicationError(
            f"trainers.whole and trainers.save_model of a sharded model are called by each of its "
            f"{sharded.channel.size} ranks, and not all have done so in time. ({error})"
        ) from error
    if sharded.channel.rank:
        return None
    names = {id(tensor): name for name, tensor in (*made.named_parameters(), *made.named_buffers())}
    for module, key, tensor in [*tensors_of(made)]:
        held: dict[str, Any] = module._parameters if key in module._parameters else module._buffers
        held[key] = tensors[names[id(tensor)]]
    modes = {name: module.training for name, module in model.named_modules()}
    for name, module in made.named_modules():
        module.training = modes.get(name, module.training)
    return made


@torch.no_grad()
def _whole_tensors(model: nn.Module, sharded: Sharded) -> dict[str, Tensor]:
    """Whole parameters and buffers of ``model`` by name, on rank 0's CPU; none on other ranks. Collective."""
    for unit in units_of(model):
        unit.reshard()
    found: dict[str, Tensor] = {}
    # One after the other, so that a rank has no more than a whole tensor beside its parts.
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        described, pieces = split(parted(tensor.detach(), sharded.first_rank))
        host = {key: {**piece, "part": piece["part"].cpu()} for key, piece in pieces.items()}
        if isinstance(described, Tensor):
            whole_tensor = described.cpu().clone()
        else:
            of_ranks = gathered(host, sharded.channel, torch.device("cpu"))
            if of_ranks is None:
                continue
            whole_tensor = joined(described, of_ranks)  # type: ignore[arg-type]
        is_parameter = isinstance(tensor, nn.Parameter)
        found[name] = nn.Parameter(whole_tensor, tensor.requires_grad) if is_parameter else whole_tensor
    return found
