"""Training and evaluation modes of a model's modules: a module that the user has put in ``eval()`` stays there."""

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
    """Bring the modules of ``model`` back to ``modes``, by their own ``train``, which may do more than set the mode."""
    model.train(modes[model])
    _set_modes(modes)


def put_in_training(model: nn.Module) -> None:
    """Call ``model.train``, whose override may keep norms in evaluation, and leave modules that are in evaluation, or
    the whole model, there.
    """
    before = modes_of(model)
    model.train(model.training)
    _set_modes({module: module.training and before.get(module, True) for module in model.modules()})


@contextmanager
def whole_mode_kept(model: nn.Module) -> Iterator[None]:
    """Undo afterwards an ``eval()`` or ``train()`` of the whole ``model`` by the user's function, as for sampling.

    Modes that the function sets of single modules stay.
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


def _set_modes(modes: Modes) -> None:
    for module, mode in modes.items():
        if module.training != mode:
            module.train(mode)  # sets the modules in it too, which come later and get their own mode then
    for module, mode in modes.items():
        # Again, as an own ``train``, of this module or of one that holds it, may have decided otherwise.
        module.training = mode
