"""Checks that all ranks of a run have the same settings; otherwise they would hang or train different models."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from trainers.communication.channel import Channel
from trainers.names import format_of, plain_name
from trainers.optim.composite import kind_of

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_SHOWN = 300
"""Most characters of a value in a message."""
_LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables in which torchrun and similar launchers describe the group of a rank."""


def refuse_other_settings(channel: Channel, agreed: Mapping[str, object]) -> None:
    """Raise ValueError on every rank of ``channel`` with the first setting that differs between ranks. Collective.

    ``agreed`` has the settings by name, the same names in the same order on all ranks. Addresses of objects in memory,
    devices of tensors and the order of sets make no difference.
    """
    if channel.size == 1:
        return
    texts = {name: shown(value) for name, value in agreed.items()}
    own = [_number(name, value) for name, value in texts.items()]
    # Hashes have the same shape on all ranks; values that differ could not be exchanged by a collective operation.
    numbers = torch.stack(channel.all_gather(torch.tensor(own, dtype=torch.int64, device="cpu"))).tolist()
    for index, (name, value) in enumerate(texts.items()):
        of_ranks = [row[index] for row in numbers]
        others = [str(rank) for rank, number in enumerate(of_ranks) if number != of_ranks[0]]
        if others:
            text = value if len(value) <= _SHOWN else f"{value[:_SHOWN]} …"
            raise ValueError(
                f"{name} = {text} on rank {channel.rank}: not the same on all ranks; rank{'s' * (len(others) > 1)} "
                f"{', '.join(others)} of {channel.size} and rank 0 differ. Give all ranks the same."
            )


def refuse_other_models(channel: Channel, model: nn.Module) -> None:
    """Same as ``refuse_other_settings`` for names, shapes, types and memory formats of parameters and buffers."""
    forms = [
        f"{plain_name(name)} {tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}{_laid_out(tensor)}"
        f"{trained}"
        for tensors, trained in (
            ([(n, p) for n, p in model.named_parameters() if p.requires_grad], ""),
            ([(n, p) for n, p in model.named_parameters() if not p.requires_grad], ", frozen"),
            (list(model.named_buffers()), ", a buffer"),
        )
        for name, tensor in tensors
    ]
    # The number first, because the second exchange needs equally many names on all ranks.
    refuse_other_settings(channel, {"number of the model's parameters and buffers": len(forms)})
    refuse_other_settings(channel, {f"model's tensor {index}": form for index, form in enumerate(forms)})


def _laid_out(tensor: Tensor) -> str:
    kept = format_of(tensor)
    return "" if kept is torch.contiguous_format else f" {str(kept).removeprefix('torch.')}"


def refuse_other_optimizers(channel: Channel, optimizer: Optimizer) -> None:
    """Same as ``refuse_other_settings`` for the optimizer's class and the settings of its groups."""
    groups = {
        f"{name} of the optimizer's group {index}": len(value) if name == "params" else value
        for index, group in enumerate(optimizer.param_groups)
        for name, value in sorted(group.items())
    }
    kind = f"{kind_of(optimizer)} with {len(groups)} settings in {len(optimizer.param_groups)} groups"
    refuse_other_settings(channel, {"optimizer": kind})
    refuse_other_settings(channel, groups)


def refuse_alone_among_many() -> None:
    """Raise ValueError if a launcher started several ranks and torch.distributed is not initialised."""
    if dist.is_available() and dist.is_initialized():
        return
    found = [os.environ.get(name, "") for name in _LAUNCHED]
    rank, ranks, *_ = found
    if all(found) and ranks.isdecimal() and int(ranks) > 1:
        raise ValueError(
            f"WORLD_SIZE = {ranks}: this is rank {rank} of several, and torch.distributed is not initialised, so that "
            "each would train alone. Call torch.distributed.init_process_group() first. Where each is meant to train "
            "alone, take WORLD_SIZE out of its environment."
        )


def shown(value: object) -> str:
    """Text of a setting that is equal on all ranks with the same setting, whatever devices they have."""
    if isinstance(value, str):
        return value
    if isinstance(value, Tensor):
        return repr(value.tolist())
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(map(shown, value)))}}}"
    if isinstance(value, (list, tuple)):
        return f"({', '.join(map(shown, value))})"
    if is_dataclass(value) and not isinstance(value, type):
        own = (f"{field.name}={shown(getattr(value, field.name))}" for field in fields(value) if field.repr)
        return f"{type(value).__name__}({', '.join(own)})"
    return repr(value)


def _number(name: str, value: str) -> int:
    text = f"{name}\n{_ADDRESS.sub('', value)}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")
