"""Sharded data parallelism: each rank keeps its part of parameters, gradients and optimizer state.

The parts of a block of layers are gathered for its passes and freed afterwards (ZeRO stage 3, Rajbhandari et al. 2020,
arXiv 1910.02054; Zhao et al. 2023, arXiv 2304.11277), by torch's ``fully_shard``. With fewer ranks per shard than the
run has, groups of ranks have the same parts and sum gradients (hybrid sharding). Layers may in addition be split over
ranks that get the same samples (tensor parallelism, Shoeybi et al. 2019, arXiv 1909.08053).
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainers.arguments import check_kinds, check_rules, check_whole
from trainers.communication.buckets import reconcile_buffers
from trainers.communication.channel import Channel, all_gather_single
from trainers.communication.communicator import Communicator
from trainers.communication.meshes import mesh_of, mesh_of_node
from trainers.methods.sharded_models import units_of
from trainers.methods.strategy import AveragingStrategy, DataRanks, Method, Setup, State, Strategy
from trainers.names import plain_name
from trainers.optim.activation_checkpointing import modules_called
from trainers.structures import is_sharded

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


@dataclass(frozen=True, kw_only=True)
class FSDP(Method):
    """Sharded data parallelism, alone or with tensor parallelism; on a single rank it does nothing.

    Ranks are numbered such that those of a tensor group are neighbours, and those of a shard come next.

    Args:
        shard (int, from 1; default None): ranks that share a copy of the parameters; it divides the ranks of the run by
            ``tensor``. Copies on other ranks get the same updates, by sums of gradients. None: all ranks.
        tensor (int, from 1; default 1): ranks that share layers by ``parallelize``, and get the same samples.
        blocks (sequence of str; default None): names of the modules that are gathered as a whole, as in
            ``activation_checkpointing``: ``("blocks.*",)``. They are called in each pass, all by the same order. What
            is in none of them is gathered once in a pass. None: the entries of the model's Sequential, ModuleList and
            ModuleDict that have parameters of their own alone.
        parallelize (callable; default None): ``parallelize(model, mesh)`` splits layers of the model in place over the
            ``tensor`` ranks of a DeviceMesh, such as by torch's ``parallelize_module``.
        offload (bool; default False): whether parts, gradients and optimizer state are in the host's memory.
        reshard_after_forward (bool; default True): False keeps blocks gathered from the forward to the backward pass.

    Raises:
        ValueError: a setting is not allowed.
    """

    shard: int | None = None
    tensor: int = 1
    blocks: Sequence[str] | None = None
    parallelize: Callable[[nn.Module, DeviceMesh], object] | None = None
    offload: bool = False
    reshard_after_forward: bool = True

    def __post_init__(self) -> None:
        check_kinds(self)
        check_whole(self, shard=1, tensor=1)
        names = self.blocks
        if names is not None and not isinstance(names, str):
            object.__setattr__(self, "blocks", tuple(names))
        check_rules(
            self,
            (
                "blocks",
                names is None or (not isinstance(names, str) and all(isinstance(n, str) for n in names)),
                'None or a sequence of names of modules, such as ("blocks.*",)',
            ),
            (
                "parallelize tensor",
                callable(self.parallelize) if self.tensor > 1 else self.parallelize is None,
                "a function of (model, mesh) with tensor above 1, and None with tensor=1",
            ),
        )

    def prepare(self, model: nn.Module, communicator: Communicator) -> DataRanks:
        """Shard ``model`` in place; returns which samples this rank gets. Collective.

        ValueError if the ranks cannot be divided so, or parts of the model cannot be sharded.
        """
        ranks, tensor = communicator.size, self.tensor
        data = ranks // tensor
        shard = data if self.shard is None else self.shard
        if ranks % tensor or data % shard:
            product = f"shard * tensor = {shard * tensor}" if self.shard else f"tensor = {tensor}"
            raise ValueError(
                f"{self!r}: {product} does not divide the {ranks} ranks. Choose divisors, or other ranks."
            )
        if ranks == 1:
            return DataRanks(0, 1)
        sizes = {"replicate": data // shard, "shard": shard, "tensor": tensor}
        blocks = _blocks(model, self.blocks)
        # A shard dimension of one rank stays, so that all parameters are of one class, as optimizers need.
        mesh = mesh_of(communicator, {n: size for n, size in sizes.items() if size > 1 or n == "shard"})
        names = [name for name in mesh.mesh_dim_names or () if name != "tensor"]
        if self.parallelize is not None:
            _parallelized(model, self.parallelize, mesh["tensor"])
        _shard(
            model, blocks, self, mesh[tuple(names)] if len(names) > 1 else mesh["shard"], communicator.device
        )
        return DataRanks(communicator.rank // tensor, data)

    def strategy(self, setup: Setup) -> Strategy:
        return _FSDPStrategy(setup)


def shard_within_nodes(model: nn.Module, communicator: Communicator) -> DataRanks:
    """Shard ``model`` in place over the ranks of each node; returns which samples this rank gets. Collective.

    ValueError if nodes have different numbers of ranks, or parts of the model cannot be sharded.
    """
    if communicator.across.size < communicator.size:
        _shard(model, _blocks(model, None), FSDP(), mesh_of_node(communicator), communicator.device)
    return DataRanks(communicator.rank, communicator.size)


class ShardingStrategy(AveragingStrategy):
    """Strategy whose model may be sharded: counts what ranks send for it, and clips by the norm of whole gradients.

    ``among`` are the ranks that have the parts of a model, and copies with the same gradients.
    """

    def __init__(self, setup: Setup, among: Channel) -> None:
        self._setup = setup
        self._among = among
        self._units = units_of(setup.model)
        self._sums_copies = True
        """Whether this pass sums up the gradients of the copies of a shard."""
        if self._units:
            parameter: Any = next(setup.model.parameters())
            mesh = parameter.device_mesh
            self._channels = {
                name: setup.communicator.adopt(name, mesh.get_group(name))
                for name in ("replicate", "shard")
                if name in mesh.mesh_dim_names
            }
        for unit in self._units:
            unit.set_custom_all_gather(_AllGather(self._counted))
            unit.set_custom_reduce_scatter(_ReduceScatter(self._counted))

    @property
    def sharded(self) -> bool:
        return bool(self._units)

    def _counted(self, what: str, nbytes: int) -> None:
        """Count an operation on ``nbytes`` of whole tensors, of which a rank sends all but its own part."""
        shard, replicate = self._channels["shard"], self._channels.get("replicate")
        shard.count(nbytes * (shard.size - 1) / shard.size)
        if what == "reduce-scatter" and replicate is not None and self._sums_copies:
            replicate.count(2 * nbytes / shard.size * (replicate.size - 1) / replicate.size)

    def before_pass(self, step: int, *, last: bool) -> None:
        super().before_pass(step, last=last)
        self._sums_copies = last
        for unit in self._units:
            # Copies of a shard sum up once a step. Parts are reduced in each pass: gathered gradients, kept from pass
            # to pass, would take the memory that sharding saves.
            unit.set_requires_all_reduce(last, recurse=False)

    def clip(self, parameters: Sequence[nn.Parameter], largest: float) -> Tensor:
        """Same as for other methods, by sums over the ranks' parts: torch has no norm over tensors of two meshes."""
        if not self.sharded:
            return super().clip(parameters, largest)
        found = [_part(p.grad, self._among.size) for p in parameters if p.grad is not None]
        parts, copies = [part for part, _ in found], [count for _, count in found]
        norms = torch.stack(torch._foreach_norm(parts, 2.0, dtype=torch.float64))
        total = (
            (norms.square() / torch.tensor(copies, device=norms.device))
            .sum()
            .to(self._setup.communicator.device)
        )
        norm = self._among.all_reduce(total).wait().sqrt()
        torch._foreach_mul_(parts, (largest / (norm + 1e-6)).clamp(max=1.0).to(norms.device))
        return norm

    def evaluating(self) -> AbstractContextManager[None]:
        return self._setup.communicator.counted_as_service() if self.sharded else nullcontext()


class _FSDPStrategy(ShardingStrategy):
    def __init__(self, setup: Setup) -> None:
        super().__init__(setup, setup.communicator.world)
        setup.trained.exchanged()

    @property
    def replicated(self) -> bool:
        return not self.sharded

    @property
    def plans_ahead(self) -> bool:
        return False

    def end_epoch(self, epoch: int, train_loss: float) -> None:
        reconcile_buffers(self._setup.communicator.world, self._setup.model)

    def state_on_other_ranks(self, states: Sequence[State], *, step: int, same_steps: bool) -> State | None:
        return {}

    def parameters_thawed(self) -> None:
        self._setup.trained.exchanged()


# Named so from torch 2.13 on.
_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


class _AllGather:
    """torch's gathering of a unit's parts, counted."""

    def __init__(self, count: Callable[[str, int], None]) -> None:
        self._count = count

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, *group: Any, **options: Any) -> object:
        self._count("all-gather", output_tensor.nbytes)
        return all_gather_single(output_tensor, input_tensor, *group, **options)


class _ReduceScatter(_AllGather):
    """torch's reduction of a unit's gradients to parts, counted."""

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, *group: Any, **options: Any) -> object:
        self._count("reduce-scatter", input_tensor.nbytes)
        return _reduce_scatter(output_tensor, input_tensor, *group, **options)


def _part(gradient: Tensor, ranks: int) -> tuple[Tensor, int]:
    """This rank's part of ``gradient``, and how many of the ``ranks`` have this part."""
    if not is_sharded(gradient):
        return gradient, ranks
    sharded: Any = gradient
    mesh = sharded.device_mesh
    axes = [axis for axis, placement in enumerate(sharded.placements) if not placement.is_replicate()]
    return sharded.to_local(), ranks // math.prod(mesh.size(axis) for axis in axes)


def _shard(
    model: nn.Module, blocks: Sequence[nn.Module], method: FSDP, mesh: DeviceMesh, device: torch.device
) -> None:
    """Shard each of the ``blocks``, and what is in none of them, over ``mesh``."""
    fully_shard, options = _fully_shard(method.offload, device)
    for block in blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=method.reshard_after_forward, **options)
    fully_shard(model, mesh=mesh, **options)


def _fully_shard(offload: bool, device: torch.device) -> tuple[Callable[..., object], dict[str, Any]]:
    """torch's function, and its options for this offload and the precision of the present autocast."""
    fsdp: Any = importlib.import_module("torch.distributed.fsdp")
    if not hasattr(getattr(fsdp, "FSDPModule", None), "set_custom_reduce_scatter"):
        raise ValueError(f"FSDP: torch {torch.__version__} is too old for it. Install torch 2.9 or later.")
    options: dict[str, Any] = {}
    if torch.is_autocast_enabled(device.type):
        # Inputs are left to autocast, which knows the operations that need their precision.
        options["mp_policy"] = fsdp.MixedPrecisionPolicy(
            param_dtype=torch.get_autocast_dtype(device.type),
            reduce_dtype=torch.float32,
            cast_forward_inputs=False,
        )
    if offload:
        options["offload_policy"] = fsdp.CPUOffloadPolicy(pin_memory=device.type == "cuda")
    return fsdp.fully_shard, options


def _blocks(model: nn.Module, names: Sequence[str] | None) -> list[nn.Module]:
    """Modules that are gathered as a whole, those inside others first; ValueError for weights of several of them."""
    if names is None:
        chosen = dict(_entries(model, ""))
        while tied := _tied(model, chosen):
            for block in tied[1]:
                chosen.pop(block, None)
    else:
        chosen = modules_called(model, names, setting="FSDP(blocks)")
        if tied := _tied(model, chosen):
            weight, owners = tied
            places = " and ".join(chosen.get(owner, "what is in no block") for owner in owners)
            raise ValueError(
                f"FSDP: {weight} belongs to {places}, which are gathered apart. Name a block that holds both, or "
                "leave them out of blocks."
            )
    in_blocks = {id(parameter) for block in chosen for parameter in block.parameters()}
    for block in (*chosen, model):
        rest = [p for p in block.parameters() if block is not model or id(p) not in in_blocks]
        types = sorted({str(parameter.dtype) for parameter in rest if parameter.requires_grad})
        if len(types) > 1:
            raise ValueError(
                f"FSDP: {chosen.get(block, 'the model')} has trained parameters of {' and '.join(types)}, "
                "which are not gathered together. Convert them to one type."
            )
    return sorted(chosen, key=lambda block: -chosen[block].count("."))


def _entries(module: nn.Module, prefix: str) -> Iterator[tuple[nn.Module, str]]:
    """Outermost modules with parameters that are entries of containers in ``module``, with their names."""
    for name, child in module.named_children():
        if isinstance(module, _CONTAINERS) and not isinstance(child, _CONTAINERS):
            if any(True for _ in child.parameters()):
                yield child, plain_name(f"{prefix}{name}")
        else:
            yield from _entries(child, f"{prefix}{name}.")


def _tied(model: nn.Module, chosen: Mapping[nn.Module, str]) -> tuple[str, list[nn.Module]] | None:
    """Name of a parameter that several of the ``chosen`` modules have, and these; ``model`` stands for the rest."""
    modules = dict(model.named_modules(remove_duplicate=False))
    owners: dict[int, dict[nn.Module, None]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        parts = name.split(".")[:-1]
        inside = (modules[".".join(parts[:depth])] for depth in range(len(parts), 0, -1))
        owner = next((module for module in inside if module in chosen), model)
        of_all = owners.setdefault(id(parameter), {})
        of_all[owner] = None
        if len(of_all) > 1:
            return plain_name(name), list(of_all)
    return None


def _parallelized(
    model: nn.Module, parallelize: Callable[[nn.Module, DeviceMesh], object], mesh: DeviceMesh
) -> None:
    """Split layers of ``model`` over the ``mesh``; ValueError if its ranks do not divide them, or none is split."""
    parallelize(model, mesh)
    split = [(name, p) for name, p in model.named_parameters() if is_sharded(p)]
    if not split:
        raise ValueError(
            f"FSDP(tensor={mesh.size()}): parallelize has split no layer. Let it call parallelize_module on the model "
            "that it gets, or use tensor=1."
        )
    for name, parameter in split:
        placements: Any = parameter
        for placement in placements.placements:
            size = parameter.shape[placement.dim] if placement.is_shard() else 0
            if size % mesh.size():
                raise ValueError(
                    f"FSDP(tensor={mesh.size()}): {plain_name(name)} of shape {tuple(parameter.shape)} is split along "
                    f"{size}, which {mesh.size()} ranks do not divide. Choose a multiple as the layer's width."
                )
