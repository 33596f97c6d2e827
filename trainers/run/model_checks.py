"""Checks by ``trainers.train`` and ``trainers.wrap`` of a model and of the optimizer that belongs to it."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, ValuesView
from datetime import timedelta

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from trainers.arguments import check_argument, is_number
from trainers.communication.topology import Topology
from trainers.evaluation.evaluate import device_of
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


def check_call(*, model: object, metrics: object, optimizer: object) -> None:
    """ValueError where one of these, as ``train`` was given it, is of another kind than it says."""
    for name, value, allowed, rule in (
        ("model", model, isinstance(model, nn.Module), "a torch.nn.Module: an instance, not its class"),
        ("metrics", metrics, metrics is None or isinstance(metrics, Mapping), "functions by name"),
        (
            "optimizer",
            optimizer,
            callable(optimizer),
            "a function that makes it: lambda parameters: torch.optim.AdamW(parameters, lr=1e-3), say",
        ),
    ):
        check_argument(name, value, allowed, rule)


def check_tensors(model: nn.Module, *, exchanged: bool, saved: bool) -> None:
    """ValueError if tensors of ``model`` have no shape yet, or could not be ``exchanged`` with other ranks and be the
    same there, or be filled from where they are ``saved``.
    """
    for name, module in model.named_modules():
        limited = isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.max_norm is not None
        if exchanged and limited:
            raise ValueError(
                f"model: {name or 'it'} has max_norm={module.max_norm}, by which each pass changes the rows that this "
                "rank looks up, and ranks would not end with the same. Use max_norm=None, and scale what is looked up."
            )
    device = device_of(model)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if exchanged and tensor.device.type != device.type:
            raise ValueError(
                f"model: {name} is on {tensor.device}, and the first parameter on {device}. Move all to one device: "
                "model.to(device), once all layers and buffers are there."
            )
        if is_lazy(tensor):
            raise ValueError(
                f"model: {name} has no shape yet, as its layer is lazy. Put a batch through the model first: "
                "model(inputs)."
            )
        if exchanged and tensor.layout is not torch.strided:
            raise ValueError(
                f"model: {name} is sparse ({tensor.layout}), and ranks exchange dense tensors. Make it dense, or keep "
                "what does not change outside of the buffers."
            )
        # What is expanded has several numbers in one place.
        expanded = tensor.layout is torch.strided and any(
            size > 1 and not stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
        )
        if expanded and (exchanged or saved):
            raise ValueError(
                f"model: {name} is an expanded tensor, which cannot be filled from other ranks or a checkpoint. Give "
                "it memory of its own: .expand(…).clone()."
            )


def check_optimizer(made: object) -> None:
    """ValueError unless ``made``, what the user's function returned, is an optimizer that the loop can drive."""
    check_argument(
        "optimizer(parameters)", made, isinstance(made, Optimizer), "a torch.optim.Optimizer: return it"
    )
    assert isinstance(made, Optimizer)
    closure = inspect.signature(made.step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        raise ValueError(
            f"optimizer: {type(made).__name__} computes gradients several times a step, and ranks average them once. "
            "Use another, torch.optim.AdamW say."
        )
    for index, group in enumerate(made.param_groups):
        rate = group.get("lr")
        if not (isinstance(rate, Tensor) or is_number(rate)):
            raise ValueError(
                f"optimizer: lr of its group {index} = {rate!r}: must be a number, which the schedule starts from. "
                f"Give {type(made).__name__} one, or, where it has none, use another, torch.optim.AdamW say."
            )


def check_ranks(topology: object, timeout: object) -> None:
    """ValueError unless they say which ranks share a node, and how long ranks wait for one another."""
    for name, value, allowed, rule in (
        (
            "topology",
            topology,
            topology is None or isinstance(topology, Topology),
            "None or a trainers.Topology(ranks_per_node=2), say",
        ),
        (
            "timeout",
            timeout,
            isinstance(timeout, timedelta) and timeout > timedelta(0),
            "a datetime.timedelta above 0: datetime.timedelta(minutes=10), say",
        ),
    ):
        check_argument(name, value, allowed, rule)
