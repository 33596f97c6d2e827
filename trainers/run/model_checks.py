"""Checks by ``trainers.train`` and ``trainers.wrap`` of a model and of the optimizer that belongs to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, ValuesView

from torch import Tensor, nn
from torch.optim import Optimizer

from trainers.optim.composite import Composite

EXCHANGE = "the method's exchange of parameters"
"""For ``refuse_held``, where a method replaces parameters."""
_PASSING_ON = ("ZeroRedundancyOptimizer",)
"""Optimizers that bring the settings of their groups to those of what they hold, in each step."""
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


def refuse_held(
    optimizer: Optimizer, use: str, *, remedy: str, only_groups: bool = False, loaded: bool = False
) -> None:
    """ValueError where ``optimizer`` holds another, as SAM or Lookahead do, that ``use`` does not reach.

    Args:
        optimizer (Optimizer): of the run.
        use (str): of the parameter groups and the state of ``optimizer``.
        remedy (str): a sentence.
        only_groups (bool; default False): ``use`` leaves the state alone.
        loaded (bool; default False): ``use`` is by state_dict and load_state_dict, which ``optimizer`` may do itself.
    """
    for whole in optimizer.parts if isinstance(optimizer, Composite) else [optimizer]:
        kind = type(whole)
        saves_itself = (
            kind.state_dict is not Optimizer.state_dict
            and kind.load_state_dict is not Optimizer.load_state_dict
        )
        if (loaded and saves_itself) or (only_groups and kind.__name__ in _PASSING_ON):
            continue
        groups = {id(group) for group in whole.param_groups}
        for name, held in _held(whole):
            copied = any(id(group) not in groups for group in held.param_groups)
            # torch's load_state_dict gives ``whole`` another state, and not ``held``, where it is an attribute of both.
            apart = held.state is not whole.state or (loaded and "state" in vars(whole))
            if copied or (apart and not only_groups):
                raise ValueError(
                    f"optimizer: {kind.__name__} holds {type(held).__name__} in .{name}, with "
                    f"{'parameter groups' if copied else 'a state'} of its own, which {use} does not reach. {remedy}"
                )


def _held(optimizer: Optimizer) -> Iterator[tuple[str, Optimizer]]:
    """Optimizers in the attributes of ``optimizer``, with the attributes' names."""
    for name, value in vars(optimizer).items():
        found = value.values() if isinstance(value, Mapping) else value
        for part in found if isinstance(found, (list, tuple, ValuesView)) else [found]:
            if isinstance(part, Optimizer) and part is not optimizer:
                yield name, part
