"""What ``trainers.train`` and ``trainers.wrap`` refuse of a model and of the optimizer that belongs to it."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn
from torch.optim import Optimizer

_WRAPPERS = ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel")


def refuse_wrapped(model: nn.Module, *, instead: str) -> None:
    """ValueError where ``model``, or a module of it, is in a wrapper that exchanges gradients itself; ``instead``: what
    the user may do other than to pass the module inside.
    """
    for name, module in model.named_modules():
        if type(module).__name__ in _WRAPPERS:
            raise ValueError(
                f"model: {name or 'it'} is in {type(module).__name__}, which exchanges gradients itself. Pass the "
                f"module inside (.module){instead}."
            )
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if _is_sharded(tensor):
            raise ValueError(
                f"model: {name} is a DTensor, as fully_shard and tensor parallelism make it, and methods exchange "
                "whole tensors. Pass the model before it is sharded."
            )


def _is_sharded(tensor: Tensor) -> bool:
    # Without an import of torch.distributed.tensor, which takes a second.
    return type(tensor).__name__ == "DTensor" or type(tensor.data).__name__ == "DTensor"


def refuse_foreign_tensors(parameters: Iterable[nn.Parameter], optimizer: Optimizer, *, remedy: str) -> None:
    """ValueError where ``optimizer`` has tensors beside ``parameters``, the model's: nothing would average or save
    them.
    """
    own = {id(parameter) for parameter in parameters}
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if others := len(held - own):
        raise ValueError(
            f"optimizer: {others} of its tensors {'is' if others == 1 else 'are'} not of the model, and would be "
            f"neither averaged over ranks nor saved. {remedy}"
        )


def refuse_copied_groups(optimizer: Optimizer, owner: str) -> None:
    """ValueError where ``optimizer`` makes its groups or its state anew whenever it is asked for them: a parameter that
    the method ``owner`` exchanges would not be exchanged in it.
    """
    for name in ("param_groups", "state"):
        if getattr(optimizer, name) is not getattr(optimizer, name):
            raise composite_error(optimizer, f"{owner} exchanges parameters in its {name}, which it copies")


def composite_error(optimizer: Optimizer, why: str) -> ValueError:
    """Error that ``optimizer``, of several others, does not let its parameters be exchanged."""
    return ValueError(
        f"optimizer: {type(optimizer).__name__} is made of others, it seems, and {why}. Have optimizer= return a list "
        "of the others in its place."
    )
