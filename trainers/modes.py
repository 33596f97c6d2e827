"""Modes of a model's modules, in training or in evaluation: what the user has put in ``eval()`` stays there."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import nn

Modes = Mapping[nn.Module, bool]
"""Whether each module is in training."""


def modes_of(model: nn.Module) -> Modes:
    """Present modes of the modules of ``model``."""
    return {module: module.training for module in model.modules()}


def restore_modes(model: nn.Module, modes: Modes) -> None:
    """Bring the modules of ``model`` back to ``modes``, by their own ``train``, as some do more there."""
    model.train(modes[model])
    _bring(modes)


def put_in_training(model: nn.Module) -> None:
    """Call ``model.train``, whose override may keep norms in evaluation, say, and leave modules in evaluation that are
    there already, also the whole model.
    """
    before = modes_of(model)
    model.train(model.training)
    _bring({module: module.training and before.get(module, True) for module in model.modules()})


@contextmanager
def whole_mode_kept(model: nn.Module) -> Iterator[None]:
    """Undo afterwards what the user's function inside has done by ``eval()`` or ``train()`` to the whole of a ``model``
    in training, as functions do that sample from it. Modules that it has set by themselves stay so.
    """
    before = modes_of(model)
    yield
    left_in_eval = not model.training
    # ``train()`` has also reached modules that the user keeps in evaluation.
    all_in_training = not all(before.values()) and all(module.training for module in model.modules())
    if before[model] and (left_in_eval or all_in_training):
        restore_modes(model, before)


def warn_of_evaluation_mode(model: nn.Module) -> None:
    """Warn where no module of ``model`` is in training, as some libraries leave what they load."""
    if not any(module.training for module in model.modules()):
        warnings.warn(
            "model: it is in eval() as a whole and stays so: its dropout is off, and its batch norms keep their "
            "statistics. Where that is not meant, call model.train() before.",
            stacklevel=3,
        )


def _bring(modes: Modes) -> None:
    for module, mode in modes.items():
        if module.training != mode:
            module.train(mode)  # and what is in it, which comes later and gets its own mode then
    for module, mode in modes.items():
        # Where its own ``train``, or that of another module that holds it, does otherwise.
        module.training = mode
