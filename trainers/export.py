"""From a run's checkpoint to a model for use, and to a file of tensors without code (safetensors)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from trainers.checkpoint import read_alone
from trainers.lowrank import factorise, matrix_weights, product

_PRODUCTS = (("u", "sigma", "vt"), ("a", "b"))
"""The factors of the methods, in the order of their product."""
_FROZEN = ("u", "vt")


def load_trained(model: nn.Module, checkpoint: str | Path, *, merge: bool = False) -> nn.Module:
    """``model``, made as for the run and filled with what that run, which is over, has left in ``checkpoint``.

    Weights that are low-rank there become so in ``model``; with ``merge`` they are multiplied out, and it stays
    an ordinary one. Of a run that restores its best epoch it is that one. Processes and devices are those of the
    caller, however many had trained it. FileNotFoundError where there is no checkpoint, ValueError where it is of
    a run that is not over, or of another model.
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
    """As ``load_trained``, from tensors by name, with factors or without. ``source`` names them in errors."""
    filled = dict(state)
    with torch.no_grad():
        for weight in matrix_weights(model, factored=False):
            names = next(
                (names for names in _PRODUCTS if all(f"{weight.name}_{name}" in filled for name in names)), ()
            )
            if weight.name in filled or not names:
                continue
            factors = {name: filled[f"{weight.name}_{name}"] for name in names}
            if merge:
                for name in names:
                    del filled[f"{weight.name}_{name}"]
                whole = product(tuple(factors.values()), weight.rows, weight.columns)
                filled[weight.name] = whole.view(weight.shape)
            else:
                factorise(
                    weight,
                    {
                        name: nn.Parameter(torch.empty_like(factor), requires_grad=name not in _FROZEN)
                        for name, factor in factors.items()
                    },
                )
    own = model.state_dict()
    differing = [
        f"{name} is {tuple(filled[name].shape) if name in filled else 'not there'} and must be "
        f"{tuple(own[name].shape) if name in own else 'not there'}"
        for name in sorted(own.keys() | filled.keys())
        if name not in filled or name not in own or filled[name].shape != own[name].shape
    ]
    if differing:
        raise ValueError(
            f"{source} is of another model: {differing[0]}"
            f"{f', and {len(differing) - 1} more' if len(differing) > 1 else ''}. "
            "Make the model with the configuration and options of the run."
        )
    model.load_state_dict(filled)
    return model


def save_model(model: nn.Module, path: str | Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write the tensors of ``model``, on the CPU, and ``metadata`` to ``path``, a safetensors file."""
    from safetensors.torch import save_file

    state = {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Nobody shall find half of a file.
    partial = path.with_name(path.name + ".partial")
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, partial, dict(metadata or {}))
    partial.replace(path)


def load_model(model: nn.Module, path: str | Path, *, merge: bool = False) -> nn.Module:
    """``model`` filled with what ``save_model`` wrote to ``path``; ``merge`` and errors as for
    ``load_trained``.
    """
    from safetensors.torch import load_file

    return load_state(model, load_file(path), merge=merge, source=str(path))
