"""What the ranks of a run were told alike: ranks that differ would wait for one another in vain, or train apart."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import nn

from trainers.communication import Channel
from trainers.names import plain_name

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_SHOWN = 200
"""Characters of a value in a message."""


def refuse_disagreement(channel: Channel, told: Mapping[str, str], device: torch.device) -> None:
    """ValueError, on every rank of ``channel``, with the first name whose value is not the same on all.

    Collective; ``told`` has the same names in the same order on all ranks. What objects show of where they lie in
    memory does not count.
    """
    if channel.size == 1:
        return
    own = [_number(name, value) for name, value in told.items()]
    # Of one shape on all ranks, whatever they were told: to exchange the values themselves might go wrong, too.
    tables = channel.all_gather(torch.tensor(own, dtype=torch.int64, device=device))
    numbers = torch.stack(tables).tolist()
    for index, (name, value) in enumerate(told.items()):
        of_ranks = [row[index] for row in numbers]
        differing = [str(rank) for rank, number in enumerate(of_ranks) if number != of_ranks[0]]
        if differing:
            shown = value if len(value) <= _SHOWN else f"{value[:_SHOWN]} …"
            raise ValueError(
                f"{name} = {shown} on rank {channel.rank}: not the same on all ranks; rank{'s' * (len(differing) > 1)} "
                f"{', '.join(differing)} of {channel.size} and rank 0 differ. Give all ranks the same."
            )


def model_in_short(model: nn.Module) -> str:
    """A sentence's part that is the same for models whose parameters and buffers have the same names and forms."""
    own = [
        f"{kind} {plain_name(name)} {tuple(tensor.shape)} {tensor.dtype} {tensor.requires_grad}"
        for kind, tensors in (("parameter", model.named_parameters()), ("buffer", model.named_buffers()))
        for name, tensor in tensors
    ]
    numbers = sum(parameter.numel() for parameter in model.parameters())
    digest = hashlib.blake2b("\n".join(own).encode(), digest_size=4).hexdigest()
    return f"a {type(model).__name__} of {numbers} numbers in {len(own)} parameters and buffers ({digest})"


def refuse_alone_among_many() -> None:
    """ValueError where a launcher started several ranks, and no torch.distributed group joins them."""
    if dist.is_available() and dist.is_initialized():
        return
    ranks, rank = os.environ.get("WORLD_SIZE", ""), os.environ.get("RANK", "")
    if ranks.isdecimal() and rank.isdecimal() and int(ranks) > 1:
        raise ValueError(
            f"WORLD_SIZE = {ranks}: this is rank {rank} of several, and torch.distributed is not initialised, so that "
            "each would train alone. Call torch.distributed.init_process_group() first. Where each is meant to train "
            "alone, take WORLD_SIZE out of its environment."
        )


def _number(name: str, value: str) -> int:
    text = f"{name}\n{_ADDRESS.sub('', value)}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")
