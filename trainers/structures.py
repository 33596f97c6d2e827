"""Structures of tensors: what data sets, models and losses may give each other in place of one tensor.

A structure is a tensor, or a dictionary, a list, a tuple (with names or without) or a dataclass of structures; outputs
of Hugging Face's models are both first and last. Anything else in it, such as text, stays as it is.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor


def parts_of(value: object) -> list[tuple[object, object]] | None:
    """The parts of ``value`` with their keys, numbers or names, in order; None if it is no container."""
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, (list, tuple)):
        return list(enumerate(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value) if field.init]
    return None


def like(value: object, parts: Sequence[object]) -> object:
    """A container of the kind of ``value``, with ``parts`` in place of its own."""
    if isinstance(value, MutableMapping) and type(value) is not dict:
        # A copy keeps what else the mapping has: a defaultdict's factory, the fields of a model's output.
        made = copy.copy(value)
        for name, part in zip(value, parts, strict=True):
            made[name] = part
        return made
    if isinstance(value, Mapping):
        return dict(zip(value, parts, strict=True))
    if isinstance(value, list):
        return list(parts)
    if isinstance(value, tuple):
        named: Callable[[Sequence[object]], object] | None = getattr(value, "_make", None)
        if named is not None:
            return named(parts)
        # torch.max and its like give a tuple class of their own, which takes a sequence.
        return tuple(parts) if type(value) is tuple else type(value)(parts)
    names = [str(name) for name, _ in parts_of(value) or ()]
    return dataclasses.replace(value, **dict(zip(names, parts, strict=True)))  # type: ignore[type-var]


def mapped(value: object, function: Callable[[Tensor], Tensor]) -> object:
    """``value`` with ``function`` applied to each tensor in it."""
    if isinstance(value, Tensor):
        return function(value)
    parts = parts_of(value)
    return value if parts is None else like(value, [mapped(part, function) for _, part in parts])


def tensors_in(value: object) -> Iterator[Tensor]:
    """The tensors in ``value``, in order."""
    if isinstance(value, Tensor):
        yield value
    else:
        for _, part in parts_of(value) or ():
            yield from tensors_in(part)


def moved(value: object, device: torch.device) -> object:
    """``value`` with its tensors on ``device``, maybe only when the current stream has come so far."""
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=True)
    return mapped(value, lambda tensor: tensor.to(device, non_blocking=True))


Place = tuple[object, ...]
"""Keys and indices that lead to a part of a state."""


def mapped_at(value: Any, function: Callable[[Any, Place], Any], place: Place = ()) -> Any:
    """``value``, a state of dictionaries, lists and tuples, with ``function(part, place)`` in place of each part that
    is none of these, or that the function changes."""
    changed = function(value, place)
    if changed is not value:
        return changed
    # Subclasses are no containers here, as they may have another constructor or further attributes.
    if type(value) is dict:
        return {name: mapped_at(part, function, (*place, name)) for name, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(mapped_at(part, function, (*place, index)) for index, part in enumerate(value))
    return value


def is_sharded(tensor: object) -> bool:
    """Whether ``tensor`` is a DTensor, of which each rank has a part."""
    # The class by its name, as an import of torch.distributed.tensor takes a second.
    return type(tensor).__name__ == "DTensor" or type(getattr(tensor, "data", None)).__name__ == "DTensor"


def local_part(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor, in the same memory; any other ``tensor`` itself."""
    sharded: Any = tensor
    return sharded.to_local() if is_sharded(tensor) else tensor


def local_parts(tensors: Iterable[Tensor]) -> list[Tensor]:
    """This rank's parts of ``tensors``, see ``local_part``, but for those of which it has nothing."""
    return [part for part in map(local_part, tensors) if part.numel()]


def in_kind(value: object, item: object) -> object:
    """``value``, a batch that torch stacked of items like ``item``, with tuples where ``item`` has them.

    torch makes lists of tuples, and either of text, which becomes a list.
    """
    if isinstance(item, (str, bytes)) and isinstance(value, (list, tuple)):
        return list(value)
    if isinstance(value, Mapping) and isinstance(item, Mapping):
        return like(value, [in_kind(part, item[name]) for name, part in value.items()])
    if isinstance(value, (list, tuple)) and isinstance(item, (list, tuple)):
        parts = [in_kind(part, of_item) for part, of_item in zip(value, item, strict=True)]
        return tuple(parts) if type(item) is tuple else like(value, parts)
    return value


def joined(batches: Sequence[object], samples: Sequence[int], name: str) -> object:
    """Batches of one structure as one batch: tensors and lists end to end, other containers part by part.

    Lists have an entry for each of a batch's ``samples``. TypeError with ``name`` if a part cannot be joined.
    """
    first = batches[0]
    tensors = [batch for batch in batches if isinstance(batch, Tensor)]
    if len(tensors) == len(batches):
        return _joined_tensors(tensors, name)
    lists = [batch for batch in batches if isinstance(batch, list)]
    if len(lists) == len(batches):
        for entries, count in zip(lists, samples, strict=True):
            if len(entries) != count:
                raise _cannot_be_joined(name, f"a list of {len(entries)} for a batch of {count} samples")
        return list(chain.from_iterable(lists))
    if all(batch is None for batch in batches):
        return None
    parts = [None if isinstance(batch, list) else parts_of(batch) for batch in batches]
    keys = [key for key, _ in parts[0] or ()]
    for found in parts:
        if found is None:
            other = next((batch for batch in batches if type(batch) is not type(first)), first)
            raise _cannot_be_joined(name, type(other).__name__)
        if (others := [key for key, _ in found]) != keys:
            raise _cannot_be_joined(name, f"parts {others} in one batch and {keys} in another")
    return like(
        first,
        [
            joined([found[index][1] for found in parts if found], samples, f"{name}[{key!r}]")
            for index, key in enumerate(keys)
        ],
    )


def _joined_tensors(tensors: Sequence[Tensor], name: str) -> Tensor:
    if not all(tensor.dim() for tensor in tensors):
        raise _cannot_be_joined(name, "a tensor without dimensions for a batch")
    if len(shapes := {tuple(tensor.shape[1:]) for tensor in tensors}) > 1:
        one, other, *_ = (f"(N, {', '.join(map(str, shape))})" for shape in sorted(shapes))
        raise _cannot_be_joined(name, f"a tensor of shape {one} in one batch and {other} in another")
    return torch.cat(list(tensors))


def _cannot_be_joined(name: str, found: str) -> TypeError:
    return TypeError(
        f"{name}: {found} cannot be joined for the metrics, which get all batches at once. Return the same parts for "
        "each batch: tensors with an entry for each sample, of one shape, or lists of such entries; make other lists "
        "tuples or dictionaries, leave the rest out of what step= returns, or use metrics with update() and compute()."
    )
