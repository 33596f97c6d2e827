"""Estimate of the memory that a training needs, by tensors on torch's meta device, which have shapes and no data."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import hpo
from hpo.evaluation.cores import cgroup_numbers

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer


@dataclass(frozen=True, kw_only=True)
class TrainingMemory:
    """Bytes that a rank needs, without the memory that libraries use for themselves."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    """Tensors of the forward pass that the backward pass needs, and the gradient through the largest layer."""

    @property
    def total(self) -> int:
        return sum(vars(self).values())

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {_size(part)}" for name, part in vars(self).items())
        return f"{_size(self.total)} ({parts})"


def _size(number: float) -> str:
    return f"{number / 2**30:.2f} GiB" if number >= 2**30 / 10 else f"{number / 2**20:.2f} MiB"


def training_memory(
    model: nn.Module,
    inputs: Sequence[int],
    *,
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer],
    precision: str = "fp32",
) -> TrainingMemory:
    """Memory that a rank needs to train ``model``, which is on the meta device, with batches of the shape
    ``inputs``."""
    import torch

    largest = 0
    # Saved tensors by storage, of which several may be views. They are kept alive, as the storage of another tensor
    # could get the same address otherwise.
    saved: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        nonlocal largest
        if tensor.is_floating_point() or tensor.dtype in (torch.int64, torch.int8, torch.bool, torch.uint8):
            saved[tensor.untyped_storage()._cdata] = tensor
            largest = max(largest, tensor.nbytes)
        return tensor

    batch = torch.empty(tuple(inputs), device="meta")
    own = {one.untyped_storage()._cdata for one in (*model.parameters(), *model.buffers())}
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        outputs = model(batch)
    activations = (
        sum(tensor.untyped_storage().nbytes() for key, tensor in saved.items() if key not in own)
        + outputs.nbytes
    )
    saved.clear()
    parameters = sum(one.nbytes for one in (*model.parameters(), *model.buffers()))
    gradients = sum(one.nbytes for one in model.parameters() if one.requires_grad)
    activations += 2 * largest
    if precision == "bf16":  # autocast halves activations and copies parameters
        activations = activations // 2 + parameters // 2
    return TrainingMemory(
        parameters=parameters,
        gradients=gradients,
        optimizer=_state_bytes(optimizer(model.parameters())),
        activations=activations,
    )


def _state_bytes(optimizer: Optimizer) -> int:
    """Bytes of the state of ``optimizer`` after a step, for parameters on the meta device."""
    import torch

    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.empty_like(parameter)
    optimizer.step()
    return sum(
        value.nbytes
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor) and value.is_meta
    )


def available_bytes(device: str, ranks: int, root: Path = Path("/")) -> int:
    """This rank's share of the memory of a GPU, or of this host or its container, which all ranks of a launch share:
    ``ranks`` if no launcher states their number.
    """
    import torch

    if torch.device(device).type == "cuda":
        whole = int(torch.cuda.get_device_properties(device).total_memory)
        return whole // _ranks(("HPO_RANKS_ON_GPU",), 1)
    limits = cgroup_numbers("memory", "memory.max", "memory.limit_in_bytes", root)
    whole = min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *(limit for (limit,) in limits)])
    return whole // _ranks(_RANKS_ON_HOST, ranks)


# Environment variables with the number of ranks on this host: hpo's for its evaluators, Open MPI's and
# MPICH's for ranks that evaluate inline, and torchrun's, which in an evaluator counts the ranks of its worker
# only.
_RANKS_ON_HOST = "HPO_RANKS_ON_HOST", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "LOCAL_WORLD_SIZE"


def _ranks(names: Iterable[str], otherwise: int) -> int:
    found = next((value for name in names if (value := os.environ.get(name, "")).isdecimal()), "")
    return max(1, int(found)) if found else otherwise


class DoesNotFit(hpo.HpoError):
    """A configuration needs more memory than there is."""


def check_fits(needed: TrainingMemory, available: int, *, per_rank: int) -> None:
    """Raise DoesNotFit if ``needed`` is more than ``available`` bytes. ``per_rank``: samples of a step."""
    if needed.total > available:
        raise DoesNotFit(
            f"not trained, as it would not fit into memory: it needs about {needed} with {per_rank} samples a rank, "
            f"and its share is {_size(available)}. Lower batch_size, give an individual more ranks, or search "
            "smaller networks."
        )
