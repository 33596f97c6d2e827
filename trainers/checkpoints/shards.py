"""Parts of sharded tensors in checkpoints.

Of each sharded tensor, a rank writes its part with the place in the whole tensor, unless an earlier rank has the same
part. A rank that continues copies what it needs from the parts of all ranks that saved, whatever their number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainers.checkpoints.files import CheckpointFiles, latest_text
from trainers.names import plain_name
from trainers.structures import Place, is_sharded, mapped_at

_KEY = "sharded tensor"
Targets = Callable[[Place], "Tensor | None"]
"""Function that returns the tensor to be filled at a path of a state, None for a whole tensor of no model."""
Pieces = Mapping[str, Any]
"""Parts by the path of the tensor, with their places: ``{"offset": list, "part": Tensor}``."""


@dataclass(frozen=True)
class TensorPart:
    """This rank's part of a tensor, at ``offset`` of the whole tensor of ``shape``."""

    local: Tensor
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    written: bool
    """Whether this rank writes it, as the first of those that have it."""


def parted(value: Any, first_rank: int) -> Any:
    """``value``, a structure, with this rank's parts in place of sharded tensors; ``first_rank`` of torch's numbers is
    the run's first.
    """
    return mapped_at(value, lambda tensor, _: _part_of(tensor, first_rank) if is_sharded(tensor) else tensor)


def split(value: Any) -> tuple[Any, dict[str, Any]]:
    """``value``, of ``parted``, with descriptions in place of parts, the same on all ranks; and the parts to write."""
    pieces: dict[str, Any] = {}

    def described(part: Any, path: Place) -> Any:
        if not isinstance(part, TensorPart):
            return part
        key = "/".join(map(str, path))
        if part.written and part.local.numel():
            pieces[key] = {"offset": list(part.offset), "part": part.local}
        # An empty tensor has the type.
        return {_KEY: key, "shape": list(part.shape), "type": part.local.new_empty(0)}

    return mapped_at(value, described), pieces


def joined(value: Any, sources: Iterable[Pieces], target: Targets = lambda path: None) -> Any:
    """``value``, of ``split``, with tensors in place of descriptions: parts like that of the sharded tensor that
    ``target`` returns, otherwise whole tensors. ``sources`` are read until all is found; ValueError if it is not.
    """
    wanted: dict[str, tuple[Tensor, tuple[int, ...]]] = {}
    lacking: dict[str, int] = {}

    def made(found: Any, path: Place) -> Any:
        if not (isinstance(found, dict) and _KEY in found):
            return found
        shape, like = tuple(found["shape"]), target(path)
        size, offset, written = shape, (0,) * len(shape), True
        if like is not None and is_sharded(like) and tuple(like.shape) == shape:
            size, offset, written = _place_of(like)
        local = found["type"].new_empty(size)
        wanted[found[_KEY]] = local, offset
        lacking[found[_KEY]] = local.numel()
        return local if size == shape else TensorPart(local, offset, shape, written)

    result = mapped_at(value, made)
    for pieces in sources:
        for key in wanted.keys() & pieces.keys():
            local, offset = wanted[key]
            lacking[key] -= _copied(local, offset, pieces[key]["part"], pieces[key]["offset"])
        if not any(lacking.values()):
            break
    if missing := sorted(key for key, numbers in lacking.items() if numbers):
        raise ValueError(
            f"The checkpoint lacks parts of {missing[0]}. Put back its files, or remove it to start from the beginning."
        )
    return result


def attached(value: Any, target: Targets) -> Any:
    """``value``, of ``joined`` or with whole tensors, with DTensors like those that ``target`` returns."""

    def made(found: Any, path: Place) -> Any:
        like: Any = target(path) if isinstance(found, (TensorPart, Tensor)) else None
        if like is None or not is_sharded(like) or like.shape != torch.Size(found.shape):
            return found
        if isinstance(found, TensorPart):
            local = found.local
        else:
            size, offset, _ = _place_of(like)
            local = found[tuple(slice(at, at + length) for at, length in zip(offset, size, strict=True))]
        return type(like.data).from_local(
            local.to(like.to_local().device, copy=True),
            like.device_mesh,
            like.placements,
            run_check=False,
            shape=like.shape,
            stride=like.stride(),
        )

    return mapped_at(value, made)


def targets_of(optimizer: Optimizer, model: nn.Module | None = None) -> Targets:
    """Parameters at the paths of states: those of ``optimizer`` by number, those of ``model`` by plain name."""
    named = {} if model is None else {plain_name(name): p for name, p in model.named_parameters()}
    numbered: list[Tensor] = [parameter for group in optimizer.param_groups for parameter in group["params"]]

    def target(path: Place) -> Tensor | None:
        number = path[path.index("state") + 1] if "state" in path[:-1] else None
        if isinstance(number, int) and number < len(numbered):
            return numbered[number]
        return named.get(str(path[-1]))

    return target


def read_alone(directory: str | Path) -> Mapping[str, Any]:
    """Shared content and rank 0's content of the last checkpoint, with whole tensors, read by a process that belongs to
    no run.

    FileNotFoundError if there is none in ``directory``, ValueError if it is damaged.
    """
    directory = Path(directory)
    latest = latest_text(directory)
    if not latest:
        raise FileNotFoundError(f"{directory} holds no checkpoint. Name the directory that the run saved in.")
    files = CheckpointFiles(directory, latest)
    own = files.of_rank(0)
    content = {**files.shared, **own}
    content.pop("pieces", None)
    ranks = cast("Iterable[int]", content.pop("pieces of", range(files.ranks)))
    found: Mapping[str, Any] = joined(content, pieces_of(files, ranks, {0: own}))
    return found


def pieces_of(
    files: CheckpointFiles, ranks: Iterable[int], read: Mapping[int, Mapping[str, Any]]
) -> Iterator[Pieces]:
    """Parts that ``ranks`` have written, each read when it is asked for; ``read``: contents of ranks that have been
    read."""
    for rank in ranks:
        content = read[rank] if rank in read else files.of_rank(rank)
        yield cast("Pieces", content.get("pieces", {}))


def _part_of(tensor: Any, first_rank: int) -> TensorPart:
    _, offset, written = _place_of(tensor)
    mesh = tensor.device_mesh
    written = written and bool((mesh.mesh == first_rank).any())
    return TensorPart(tensor.to_local().detach(), offset, tuple(tensor.shape), written)


def _place_of(tensor: Any) -> tuple[tuple[int, ...], tuple[int, ...], bool]:
    """Shape and offset of this rank's part of a DTensor, and whether the rank is the first of its mesh with it."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    mesh, placements = tensor.device_mesh, tensor.placements
    size, offset = compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
    first = all(
        place == 0 or not placement.is_replicate()
        for place, placement in zip(mesh.get_coordinate(), placements, strict=True)
    )
    return tuple(size), tuple(offset), first


def _copied(into: Tensor, offset: tuple[int, ...], part: Tensor, part_offset: list[int]) -> int:
    """Copy what ``part`` and ``into``, at these places of a whole tensor, have in common; returns how many numbers."""
    begins = [max(pair) for pair in zip(offset, part_offset, strict=True)]
    ends = [min(a + b, c + d) for a, b, c, d in zip(offset, into.shape, part_offset, part.shape, strict=True)]
    if any(begin >= end for begin, end in zip(begins, ends, strict=True)):
        return 0

    def cut(tensor: Tensor, at: Iterable[int]) -> Tensor:
        return tensor[tuple(slice(b - a, e - a) for a, b, e in zip(at, begins, ends, strict=True))]

    there = cut(into, offset)
    there.copy_(cut(part, part_offset))
    return there.numel()
