"""Composition of several optimizers with different parameters, such as Muon for matrices and AdamW for the others."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer


class Composite(Optimizer):
    """Optimizer that steps its parts in turn, and shares its parameter groups and state with them; ValueError if two
    parts have a parameter.
    """

    def __init__(self, parts: Sequence[Optimizer]) -> None:
        self._parts = list(parts)
        groups = [group for part in parts for group in part.param_groups]
        numbers = iter(range(len(groups)))
        self._indices = [[next(numbers) for _ in part.param_groups] for part in parts]
        """Indices of each part's groups in ``param_groups``."""
        # Indices in place of the groups themselves, because loading a state replaces the groups.
        _refuse_shared(groups)
        # The parts' own dictionaries become the composite's groups, so that a schedule changes both at once.
        super().__init__(groups, {})
        for part in parts:
            self.defaults.update(part.defaults)
            self.state.update(part.state)

    @property
    def kind(self) -> str:
        """Class names of the parts."""
        return " and ".join(type(part).__name__ for part in self._parts)

    @property
    def parts(self) -> list[Optimizer]:
        """Parts, with the composite's present groups and state."""
        self.adopt()
        for part, indices in zip(self._parts, self._indices, strict=True):
            part.param_groups = [self.param_groups[index] for index in indices]
            part.state = self.state
        return self._parts

    def adopt(self) -> None:
        """Take over groups that the user has added to a part since; ValueError if two parts have a parameter."""
        for part, indices in zip(self._parts, self._indices, strict=True):
            for group in part.param_groups[len(indices) :]:
                _refuse_shared([*self.param_groups, group])
                indices.append(len(self.param_groups))
                self.param_groups.append(group)

    def part_of_group(self, index: int) -> int:
        """Number of the part that has the group ``index``."""
        return next(number for number, indices in enumerate(self._indices) if index in indices)

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Take a step of each part; ``closure`` is not called."""
        for part in self.parts:
            part.step()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the last part."""
        if len(self.param_groups) < sum(map(len, self._indices)):  # called by torch's constructor
            super().add_param_group(param_group)
            return
        self.parts[-1].add_param_group(param_group)
        self.adopt()

    def state_dict(self) -> dict[str, Any]:
        """State of all parts, including groups that were just added to a part."""
        self.adopt()
        return super().state_dict()


def _refuse_shared(groups: Sequence[dict[str, Any]]) -> None:
    seen: set[int] = set()
    for group in groups:
        for parameter in group["params"]:
            if id(parameter) in seen:
                raise ValueError(
                    f"optimizer: a parameter of shape {tuple(parameter.shape)} is in two of the optimizers, and both "
                    "would step it. Give each parameter to one of them."
                )
            seen.add(id(parameter))


def part_of(optimizer: Optimizer, parameter: nn.Parameter) -> Optimizer:
    """Part of a ``Composite`` that trains ``parameter``; ``optimizer`` itself if there is no such part."""
    if isinstance(optimizer, Composite):
        for part in optimizer.parts:
            if any(parameter is one for group in part.param_groups for one in group["params"]):
                return part
    return optimizer


def kind_of(optimizer: Optimizer) -> str:
    """Class name of ``optimizer``, or of the parts of a ``Composite``."""
    return optimizer.kind if isinstance(optimizer, Composite) else type(optimizer).__name__


def needs_closure(optimizer: Optimizer) -> bool:
    """Whether a step of ``optimizer`` computes gradients itself, several times."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is closure.empty


def parameters_in(optimizer: Optimizer) -> set[int]:
    """Identities of the parameters of ``optimizer``."""
    return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
