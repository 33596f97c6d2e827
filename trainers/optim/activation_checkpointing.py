"""Activation checkpointing: blocks of a model keep only their inputs for the backward pass, and compute everything else
again there (Chen et al. 2016, arXiv 1604.06174).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from trainers.names import plain_name


class ActivationCheckpointing:
    """Activation checkpointing of some modules of a model, until ``close`` is called.

    ``patterns`` are names of modules; ``*`` stands for a part of a name between dots, or for some of its letters.
    ValueError if a pattern matches no module, or a module has running statistics, which the second forward pass would
    count twice.
    """

    def __init__(self, model: nn.Module, patterns: Sequence[str]) -> None:
        self._changed: list[tuple[nn.Module, Callable[..., Any] | None]] = []
        chosen = modules_called(model, patterns, setting="activation_checkpointing")
        for module, name in chosen.items():
            for inner, part in module.named_modules():
                if getattr(part, "track_running_stats", False):
                    raise ValueError(
                        f"activation_checkpointing: {name} holds {type(part).__name__}"
                        f"{f' ({inner})' if inner else ''}, whose running statistics would be updated by both forward "
                        "passes. Name modules without it, or use a norm without running statistics."
                    )
        for module in chosen:
            own = module.__dict__.get("forward")
            self._changed.append((module, own))
            module.forward = _checkpointed(module, own)

    def close(self) -> None:
        for module, forward in self._changed:
            del module.forward
            if forward is not None:
                module.forward = forward
        self._changed.clear()


def modules_called(model: nn.Module, patterns: Sequence[str], *, setting: str) -> dict[nn.Module, str]:
    """Modules of ``model`` whose names match ``patterns``, with their names; ValueError with the name of the setting
    if a pattern matches none.
    """
    modules = {plain_name(name): module for name, module in model.named_modules() if name}
    chosen: dict[nn.Module, str] = {}
    for pattern in patterns:
        found = {module: name for name, module in modules.items() if _matches(name, pattern)}
        if not found:
            names = ", ".join(list(modules)[:8])
            raise ValueError(
                f"{setting}: no module is called {pattern!r}. The model has {names}"
                f"{', …' if len(modules) > 8 else ''}; a * stands for one part of a name."
            )
        chosen.update(found)
    return chosen


def _checkpointed(module: nn.Module, own: Callable[..., Any] | None) -> Callable[..., Any]:
    """Checkpointed forward of ``module``. ``own``: a forward set on the module itself; None: that of its class."""

    def forward(*arguments: Any, **keywords: Any) -> Any:
        # Looked up in each pass, because the class of a layer changes when a training method factors its weight.
        return (
            type(module).forward(module, *arguments, **keywords)
            if own is None
            else own(*arguments, **keywords)
        )

    def recomputed(*arguments: Any, **keywords: Any) -> Any:
        if not (module.training and torch.is_grad_enabled()):
            return forward(*arguments, **keywords)
        names, places = tuple(keywords), len(arguments)

        def of_all(*values: Any) -> Any:
            return forward(*values[:places], **dict(zip(names, values[places:], strict=True)))

        # Keywords are passed by position: checkpoint restores a GPU's random numbers only if it finds tensors of that
        # GPU among the positional arguments.
        return checkpoint(of_all, *arguments, *keywords.values(), use_reentrant=False)

    return recomputed


def _matches(name: str, pattern: str) -> bool:
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))
