"""Sharded models: what a method's ``prepare`` has made of a model, which outlives the run."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainers.communication.channel import Channel, CommunicationError
from trainers.communication.communicator import Communicator
from trainers.communication.meshes import kept_group
from trainers.methods.strategy import DataRanks, Method, preparation_of
from trainers.structures import is_sharded


@dataclass(frozen=True, kw_only=True)
class Sharded:
    """Facts of a model whose ranks have parts of its parameters."""

    data: DataRanks
    device: torch.device
    """Device of the passes; parts may be in the host's memory."""
    first_rank: int
    """torch's number of the first rank that has a part."""
    channel: Channel
    """All ranks that have a part, for tensors in the host's memory."""
    ordinary: nn.Module | Exception
    """Copy of the model as it was before, without memory for its tensors, or why it could not be copied."""


_sharded: WeakKeyDictionary[nn.Module, Sharded] = WeakKeyDictionary()


def prepared(method: Method, model: nn.Module, communicator: Communicator) -> DataRanks:
    """Result of the method's ``prepare``, if it has that; otherwise, each rank has samples of its own."""
    prepare = preparation_of(method)
    if prepare is None:
        return DataRanks(communicator.rank, communicator.size)
    ordinary = _without_memory(model)
    data = prepare(model, communicator)
    if any(map(is_sharded, model.parameters())):
        _sharded[model] = Sharded(
            data=data,
            device=communicator.device,
            first_rank=communicator.members[0],
            channel=_host_channel(communicator),
            ordinary=ordinary,
        )
    return data


def _host_channel(communicator: Communicator) -> Channel:
    return Channel(
        name="of the sharded model",
        ranks=tuple(range(communicator.size)),
        rank=communicator.rank,
        group=kept_group(communicator, (tuple(communicator.members),), "gloo"),
        timeout=communicator.timeout,
        next_is_near=True,
    )


def sharding_of(model: nn.Module) -> Sharded | None:
    """Facts of ``model`` if a run has sharded it."""
    return _sharded.get(model)


def units_of(model: nn.Module) -> list[Any]:
    """Modules of ``model`` that torch's ``fully_shard`` gathers and frees as a whole."""
    return [module for module in model.modules() if hasattr(module, "set_requires_gradient_sync")]


@contextmanager
def errors_named(channel: Channel) -> Iterator[None]:
    """Context of passes of a sharded model by the ranks of ``channel``, in which torch itself communicates:
    CommunicationError for a lost rank, RuntimeError with the remedy for what torch cannot do with parts of tensors.
    """
    try:
        yield
    except CommunicationError:
        raise
    except RuntimeError as error:
        text = str(error)
        if isinstance(error, dist.DistError) or "gloo" in text:
            raise channel.lost("gathering of sharded layers", error) from error
        if "mixed torch.Tensor and DTensor" in text:
            raise RuntimeError(
                "A layer's weights were used while each rank has only its part. They are gathered where the model, or "
                "a block of FSDP(blocks=…), is called as a module: call these, not their forward or their parts, and "
                f"name blocks that are called. ({text})"
            ) from error
        if "placement" in text or "sharding strategy" in text:
            raise RuntimeError(
                "torch lacks an operation for sharded tensors, most likely of the optimizer. Use one that treats each "
                f"number by itself, such as torch.optim.AdamW. ({text})"
            ) from error
        raise


def tensors_of(model: nn.Module) -> Iterator[tuple[nn.Module, str, Tensor]]:
    """Module, key and tensor of each place of a parameter or buffer; a shared tensor has several."""
    for module in model.modules():
        for held in (module._parameters, module._buffers):
            for key, tensor in held.items():
                if tensor is not None:
                    yield module, key, tensor


def _without_memory(model: nn.Module) -> nn.Module | Exception:
    """Copy of ``model`` on the device meta."""
    memo: dict[int, object] = {}
    for _, _, tensor in tensors_of(model):
        bare = torch.empty_like(tensor, device="meta")
        is_parameter = isinstance(tensor, nn.Parameter)
        memo[id(tensor)] = nn.Parameter(bare, tensor.requires_grad) if is_parameter else bare
    try:
        return copy.deepcopy(model, memo)
    except Exception as error:  # of the user's modules, which may hold anything
        return error
