"""Names of tensors that do not depend on whether the model, or a part of it, is compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor


def plain_name(name: str) -> str:
    """``name`` of a tensor as it is where the model, or a part of it, is not compiled."""
    return name.replace("_orig_mod.", "")


def plain(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """``state`` by plain names: a compiled model's checkpoint is one of the plain model, and the reverse."""
    return {plain_name(name): value for name, value in state.items()}


def renamed(value: object, rename: Callable[[str], str]) -> object:
    """``value`` with the names in it, the keys of dictionaries, changed."""
    if isinstance(value, dict):
        return {
            rename(name) if isinstance(name, str) else name: renamed(part, rename)
            for name, part in value.items()
        }
    if isinstance(value, list):
        return [renamed(part, rename) for part in value]
    return value
