"""Checks by ``trainers.train`` and ``trainers.wrap`` of a model and of the optimizer that belongs to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, ValuesView
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from trainers.arguments import check_argument, is_number
from trainers.communication.buckets import broadcast_tensors
from trainers.communication.communicator import Communicator
from trainers.communication.rank_consistency import refuse_other_models, refuse_other_settings
from trainers.communication.topology import Topology
from trainers.evaluation.evaluate import device_of
from trainers.methods.strategy import Method, is_method
from trainers.optim.composite import Composite, needs_closure, parameters_in
from trainers.structures import is_sharded

EXCHANGE = "the method's exchange of parameters"
"""For ``refuse_held``, where a method replaces parameters."""
_PASSING_ON = ("ZeroRedundancyOptimizer",)
"""Optimizers that copy their groups' settings, in each step, to those of the optimizers that they hold."""
_WRAPPERS = ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel")


def check_kinds_of(*, model: object, method: object, topology: object, timeout: object) -> None:
    """ValueError where an argument of both ``train`` and ``wrap`` is of another kind than it must be."""
    for name, value, allowed, rule in (
        ("model", model, isinstance(model, nn.Module), "a torch.nn.Module: an instance, not its class"),
        ("method", method, is_method(method), "a method's settings, such as DDP()"),
        (
            "topology",
            topology,
            topology is None or isinstance(topology, Topology),
            "None or such as trainers.Topology(ranks_per_node=2)",
        ),
        (
            "timeout",
            timeout,
            isinstance(timeout, timedelta) and timeout > timedelta(0),
            "a datetime.timedelta above 0, such as datetime.timedelta(minutes=10)",
        ),
    ):
        check_argument(name, value, allowed, rule)


def agree_on_start(
    communicator: Communicator, model: nn.Module, method: Method, agreed: Mapping[str, object], *, saved: bool
) -> None:
    """Give all ranks the model of rank 0, whatever weights each rank's caller has drawn.

    ValueError unless their models have one form, which can be exchanged and ``saved``, and ``agreed`` is the same.
    """
    channel = communicator.service
    _check_tensors(model, exchanged=communicator.size > 1, saved=saved)
    _check_synchronised_norms(model, communicator.members)
    refuse_other_models(channel, model)
    refuse_other_settings(channel, {**agreed, "method": method, "ranks of each node": communicator.nodes})
    broadcast_tensors(channel, [*model.parameters(), *model.buffers()])


def refuse_wrapped(model: nn.Module) -> None:
    """ValueError where ``model``, or a module of it, is in a wrapper that exchanges gradients itself, or sharded."""
    for name, module in model.named_modules():
        if type(module).__name__ in _WRAPPERS:
            raise ValueError(
                f"model: {name or 'it'} is in {type(module).__name__}, which exchanges gradients itself. Pass the "
                "module inside (.module)."
            )
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_sharded(tensor):
            raise ValueError(
                f"model: {name} is a DTensor, as fully_shard and tensor parallelism make it, and training begins with "
                "whole tensors. Pass the model before it is sharded, and method=trainers.FSDP(…)."
            )


def refuse_foreign_tensors(parameters: Iterable[nn.Parameter], optimizer: Optimizer, *, remedy: str) -> None:
    """ValueError where ``optimizer`` has tensors beside the model's ``parameters``, which nothing averages or saves."""
    if others := len(parameters_in(optimizer) - set(map(id, parameters))):
        raise ValueError(
            f"optimizer: {others} of its tensors {'is' if others == 1 else 'are'} not of the model, and would be "
            f"neither averaged over ranks nor saved. {remedy}"
        )


def refuse_held(
    optimizer: Optimizer, use: str, *, remedy: str, only_groups: bool = False, loaded: bool = False
) -> None:
    """ValueError where ``optimizer`` holds another, as SAM or Lookahead do, that ``use`` does not reach.

    With ``only_groups`` the use leaves the state alone; with ``loaded`` it is by state_dict and load_state_dict, which
    ``optimizer`` may do itself.
    """
    for whole in optimizer.parts if isinstance(optimizer, Composite) else [optimizer]:
        kind = type(whole)
        saves_itself = (
            kind.state_dict is not Optimizer.state_dict
            and kind.load_state_dict is not Optimizer.load_state_dict
        )
        if (loaded and saves_itself) or (only_groups and kind.__name__ in _PASSING_ON):
            continue
        groups = set(map(id, whole.param_groups))
        for name, held in _optimizers_held_by(whole):
            copied = not groups.issuperset(map(id, held.param_groups))
            # torch's load_state_dict gives ``whole`` another state, and not ``held``, where it is an attribute of both.
            apart = held.state is not whole.state or (loaded and "state" in vars(whole))
            if copied or (apart and not only_groups):
                raise ValueError(
                    f"optimizer: {kind.__name__} holds {type(held).__name__} in .{name}, with "
                    f"{'parameter groups' if copied else 'a state'} of its own, which {use} does not reach. {remedy}"
                )


def _optimizers_held_by(optimizer: Optimizer) -> Iterator[tuple[str, Optimizer]]:
    """Optimizers in the attributes of ``optimizer``, with the attributes' names."""
    for name, value in vars(optimizer).items():
        found = value.values() if isinstance(value, Mapping) else value
        for part in found if isinstance(found, (list, tuple, ValuesView)) else [found]:
            if isinstance(part, Optimizer) and part is not optimizer:
                yield name, part


def _check_tensors(model: nn.Module, *, exchanged: bool, saved: bool) -> None:
    for name, module in model.named_modules():
        limited = isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.max_norm is not None
        if exchanged and limited:
            raise ValueError(
                f"model: {name or 'it'} has max_norm={module.max_norm}, by which each pass changes the rows that this "
                "rank looks up, and ranks would not end with the same. Use max_norm=None, and scale what is looked up."
            )
    device = device_of(model)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        strided = tensor.layout is torch.strided
        for wrong, what in (
            (is_lazy(tensor), "has no shape yet, as its layer is lazy. Put a batch through the model first"),
            (
                not is_lazy(tensor) and tensor.is_inference(),
                "was made within torch.inference_mode(), and can neither be trained nor changed. Make it outside",
            ),
            (
                exchanged and tensor.device.type != device.type,
                f"is on {tensor.device}, and the first parameter on {device}. Move all to one: model.to(device)",
            ),
            (
                exchanged and not strided,
                f"is sparse ({tensor.layout}), and ranks exchange dense tensors. Make it dense, or no buffer",
            ),
            (
                # Several numbers of an expanded tensor share one place in memory.
                (exchanged or saved) and strided and not is_lazy(tensor) and _is_expanded(tensor),
                "is an expanded tensor, which ranks and checkpoints cannot fill. Give it memory: .expand(…).clone()",
            ),
        ):
            if wrong:
                raise ValueError(f"model: {name} {what}.")


def _check_synchronised_norms(model: nn.Module, members: Iterable[int]) -> None:
    """ValueError for a SyncBatchNorm that torch refuses on the CPU, or that waits for ranks outside of the run, whose
    ranks are ``members`` by torch's numbers.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return
    for name, module in model.named_modules():
        if not isinstance(module, nn.SyncBatchNorm) or not module.training:
            continue
        if device_of(model).type == "cpu":
            problem = "works on GPUs alone, and the model is on the CPU. Use BatchNorm there"
        else:
            waits_for = dist.get_process_group_ranks(module.process_group or dist.group.WORLD)
            if dist.get_rank() in waits_for and set(members).issuperset(waits_for):
                continue
            problem = (
                f"waits for the ranks {waits_for}, and {[*members]} train together. Convert the model with "
                "process_group= the group that train gets"
            )
        raise ValueError(f"model: {name or 'it'} is a SyncBatchNorm, which {problem}.")


def _is_expanded(tensor: Tensor) -> bool:
    return any(size > 1 and not stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def check_optimizer(made: object) -> None:
    """ValueError unless ``made``, what the user's function returned, is an optimizer that the loop can drive."""
    check_argument(
        "optimizer(parameters)", made, isinstance(made, Optimizer), "a torch.optim.Optimizer: return it"
    )
    assert isinstance(made, Optimizer)
    if needs_closure(made):
        raise ValueError(
            f"optimizer: {type(made).__name__} computes gradients several times a step, and ranks average them once. "
            "Use another, such as torch.optim.AdamW."
        )
    for index, group in enumerate(made.param_groups):
        rate = group.get("lr")
        if not (isinstance(rate, Tensor) or is_number(rate)):
            raise ValueError(
                f"optimizer: lr of its group {index} = {rate!r}: must be a number, which the schedule starts from. "
                f"Give {type(made).__name__} a number; where it has no rate, use another, such as torch.optim.AdamW."
            )
