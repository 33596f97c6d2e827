"""Conversion of a run's checkpoint to a model for use, and to a file of tensors without code (safetensors)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from trainers.checkpoints.shards import read_alone
from trainers.checkpoints.whole import whole
from trainers.lowrank.layers import MatrixWeight, factorise, matrix_weights, product
from trainers.methods.sharded_models import sharding_of
from trainers.names import plain, plain_name

_PRODUCTS = (("u", "sigma", "vt"), ("a", "b"))
"""Names of the factors of a weight by training method, in the order of their product."""
_FROZEN = ("u", "vt")
"""Factors that are not trained."""


def load_trained(model: nn.Module, checkpoint: str | Path, *, merge: bool = False) -> nn.Module:
    """Load the weights of a finished run from its checkpoint into ``model``; returns the model.

    Low-rank weights of the run become low-rank in ``model``. With ``restore_best``, these are the weights of the best
    epoch. It works in any process and on any device, whatever processes trained the model.

    Args:
        model (Module): model, made in the same way as for the run.
        checkpoint (path): directory that was ``train``'s ``checkpoint``.
        merge (bool; default False): whether to multiply out low-rank weights, so that the model has ordinary layers.

    Raises:
        FileNotFoundError: there is no checkpoint.
        ValueError: the run is not over, or is of another model.
    """
    content = read_alone(checkpoint)
    if not content.get("reason"):
        raise ValueError(
            f"The run of the checkpoint in {checkpoint} is not over. Let it go on to its end first."
        )
    best = content.get("best")
    state = best["model"] if isinstance(best, dict) else content["model"]
    assert isinstance(state, Mapping)
    return load_state(model, state, merge=merge, source=str(checkpoint))


def load_state(
    model: nn.Module, state: Mapping[str, Tensor], *, merge: bool = False, source: str = "The state"
) -> nn.Module:
    """Load tensors by name, with or without low-rank factors, into ``model``, as ``load_trained`` does.

    Args:
        model (Module): model, made in the same way as for the run.
        state (dict of tensors): a state dictionary.
        merge (bool; default False): whether to multiply out low-rank weights.
        source (str; default "The state"): name of the state in errors.
    """
    filled = multiplied_out(model, state) if merge else plain(state)
    if not merge:
        for weight, factors in _factors(model, filled):
            made = {
                name: nn.Parameter(torch.empty_like(f), name not in _FROZEN) for name, f in factors.items()
            }
            with torch.no_grad():
                factorise(weight, made)
    own = model.state_dict()
    needed, found = _forms(plain(own)), _forms(filled)
    differing = [
        f"{name} is {found.get(name, 'not there')} and must be {needed.get(name, 'not there')}"
        for name in sorted(needed.keys() | found.keys())
        if found.get(name) != needed.get(name)
    ]
    if differing:
        more = f", and {len(differing) - 1} more" if len(differing) > 1 else ""
        raise ValueError(
            f"{source} is of another model: {differing[0]}{more}. Make the model with the configuration and options of "
            "the run."
        )
    own.update({name: filled[plain_name(name)] for name in own})
    model.load_state_dict(own)
    return model


@torch.no_grad()
def multiplied_out(model: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """``state`` with low-rank weights multiplied out, by plain names of ``model``.

    Weights of another size than the model's stay in factors, so that the later comparison reports them.
    """
    filled = plain(state)
    # A module that the model uses in several places has tensors in the state for each of them.
    places: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        places.setdefault(module, []).append(plain_name(f"{name}." if name else ""))
    for weight, factors in _factors(model, filled):
        first, *_, last = factors.values()
        if (first.shape[0], last.shape[1]) != (weight.rows, weight.columns):
            continue
        whole = product(tuple(factors.values()), weight.rows, weight.columns).view(weight.shape)
        for place in places[weight.module]:
            for name in factors:
                filled.pop(f"{place}{weight.attribute}_{name}", None)
            filled[f"{place}{weight.attribute}"] = whole
    return filled


def _factors(model: nn.Module, state: Mapping[str, Tensor]) -> list[tuple[MatrixWeight, dict[str, Tensor]]]:
    """Weights of ``model`` that are factored in ``state``, with their factors."""
    found = []
    for weight in matrix_weights(model, factored=False):
        held = plain_name(weight.name)
        names = next((names for names in _PRODUCTS if all(f"{held}_{name}" in state for name in names)), ())
        if names and held not in state:
            found.append((weight, {name: state[f"{held}_{name}"] for name in names}))
    return found


def _forms(state: Mapping[str, object]) -> dict[str, object]:
    """Shape of each tensor by name; a module's extra state may be of any other class."""
    return {
        name: tuple(value.shape) if isinstance(value, Tensor) else "no tensor"
        for name, value in state.items()
    }


def save_model(model: nn.Module, path: str | Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write a model's tensors to a safetensors file, atomically.

    Every rank that has trained a sharded model calls it, and rank 0 writes.

    Args:
        model (Module): model on any device.
        path (path): path of the file; its directory is made.
        metadata (dict of str; default None): metadata to keep in the file.

    Raises:
        ValueError: the model's state has more than tensors.
        CommunicationError: the model is sharded, and a rank does not call it within the run's ``timeout``.
    """
    from safetensors.torch import save_file

    ordinary = model if sharding_of(model) is None else whole(model)
    if ordinary is None:
        return
    named = plain(ordinary.state_dict())
    if others := [name for name, value in named.items() if not isinstance(value, Tensor)]:
        raise ValueError(
            f"{others[0]}, which a module adds to the model's state, is no tensor, and the file holds nothing else. "
            "Save model.state_dict() by other means, or have the module keep it in buffers."
        )
    # Copies, as tensors in the file must not share memory.
    state = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in named.items()}
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Written under another name first, so that no other process finds half of the file.
    partial = path.with_name(path.name + ".partial")
    save_file(state, partial, dict(metadata or {}))
    partial.replace(path)


def load_model(model: nn.Module, path: str | Path, *, merge: bool = False) -> nn.Module:
    """Load a file that ``save_model`` wrote into ``model``; returns the model.

    Args:
        model (Module): model, made in the same way as for the run.
        path (path): path of the safetensors file.
        merge (bool; default False): whether to multiply out low-rank weights, so that the model has ordinary layers.

    Raises:
        ValueError: the file is of another model.
    """
    from safetensors.torch import load_file

    return load_state(model, load_file(path), merge=merge, source=str(path))
