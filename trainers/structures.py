"""Structures of tensors: what data sets, models and losses may give each other in place of one tensor.

A structure is a tensor, or a dictionary, a list, a tuple (with names or without) or a dataclass of structures; outputs
of Hugging Face's models are both first and last. Anything else in it, text say, stays as it is.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from itertools import chain

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
    """A container as ``value``, with ``parts`` in place of its own."""
    if isinstance(value, MutableMapping) and type(value) is not dict:
        # Keeps what it knows beside its parts: a defaultdict's factory, the fields of a model's output.
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
        # As torch.max gives it: a tuple with names of its own kind.
        return tuple(parts) if type(value) is tuple else type(value)(parts)
    names = [str(name) for name, _ in parts_of(value) or ()]
    return dataclasses.replace(value, **dict(zip(names, parts, strict=True)))  # type: ignore[type-var]


def mapped(value: object, function: Callable[[Tensor], Tensor]) -> object:
    """``value`` with ``function`` applied to each tensor in it."""
    if isinstance(value, Tensor):
        return function(value)
    parts = parts_of(value)
    if parts is None:
        return value
    return like(value, [mapped(part, function) for _, part in parts])


def tensors_in(value: object) -> Iterator[Tensor]:
    """The tensors in ``value``, in order."""
    if isinstance(value, Tensor):
        yield value
    else:
        for _, part in parts_of(value) or ():
            yield from tensors_in(part)


def moved(value: object, device: torch.device) -> object:
    """``value`` with its tensors on ``device``, maybe only when the current stream has come so far."""
    return mapped(value, lambda tensor: tensor.to(device, non_blocking=True))


def in_kind(value: object, item: object) -> object:
    """``value``, which torch has stacked of items such as ``item``, with tuples where the item has them, for which
    torch gives lists, and lists of text, for which it gives either.
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
    """The structures of several batches as one: tensors along their first axis, lists, which have an entry for each
    sample, end to end, and other containers part by part.

    Args:
        batches (list): of one structure, at least one.
        samples (list of int): of each batch.
        name (str): what the batches are, for errors.

    Raises:
        TypeError: there is something in them that cannot be joined.
    """
    first = batches[0]
    if isinstance(first, Tensor) and all(isinstance(batch, Tensor) for batch in batches):
        return _joined_tensors([batch for batch in batches if isinstance(batch, Tensor)], name)
    if isinstance(first, list) and all(isinstance(batch, list) for batch in batches):
        lists = [batch for batch in batches if isinstance(batch, list)]
        for entries, count in zip(lists, samples, strict=True):
            if len(entries) != count:
                raise TypeError(
                    f"{name}: a list of {len(entries)} for a batch of {count} samples, and where batches are joined "
                    "for the metrics a list has an entry for each sample. Make it a tuple or a dictionary."
                )
        return list(chain.from_iterable(lists))
    parts = parts_of(first)
    if parts is None or isinstance(first, list):
        if all(batch is None for batch in batches):
            return None
        other = next((batch for batch in batches if type(batch) is not type(first)), first)
        raise TypeError(
            f"{name}: {type(other).__name__} cannot be joined for the metrics, as tensors, and lists with an entry for "
            "each sample, can. Leave it out of what step= returns, or use metrics with update() and compute()."
        )
    keys = [key for key, _ in parts]
    of_batches = [parts_of(batch) for batch in batches]
    for found in of_batches:
        if found is None or [key for key, _ in found] != keys:
            raise TypeError(
                f"{name}: other parts in one batch than in another, first {keys}. Return the same for each."
            )
    return like(
        first,
        [
            joined([found[index][1] for found in of_batches if found], samples, f"{name}[{key!r}]")
            for index, key in enumerate(keys)
        ],
    )


def _joined_tensors(tensors: Sequence[Tensor], name: str) -> Tensor:
    if not all(tensor.dim() for tensor in tensors):
        raise TypeError(
            f"{name}: a tensor without dimensions for a batch, and those of all batches are to be joined for the "
            "metrics. Return outputs for each sample, and let the loss make one number of them."
        )
    shapes = {tuple(tensor.shape[1:]) for tensor in tensors}
    if len(shapes) > 1:
        one, other, *_ = sorted(shapes)
        raise TypeError(
            f"{name}: of shape (N, {', '.join(map(str, one))}) in one batch and (N, {', '.join(map(str, other))}) in "
            "another cannot be joined for the metrics. Return lists with an entry for each sample, fill them up to one "
            "shape, or use metrics with update() and compute()."
        )
    return torch.cat(list(tensors))
