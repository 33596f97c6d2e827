"""Several optimizers as one, each of some of the parameters: Muon of matrices and AdamW of the others, say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer


class Composite(Optimizer):
    """Steps ``parts`` in turn. Its parameter groups and its state are theirs: what is exchanged in the one, or loaded
    into it, is in the others, too.

    Args:
        parts (sequence of Optimizer): of different parameters.

    Raises:
        ValueError: two of them have the same parameter.
    """

    def __init__(self, parts: Sequence[Optimizer]) -> None:
        self._parts = list(parts)
        self._groups = [len(part.param_groups) for part in parts]
        super().__init__([group for part in parts for group in part.param_groups], {})
        for part in parts:
            self.defaults.update(part.defaults)
            self.state.update(part.state)

    @property
    def kind(self) -> str:
        """The names of the parts."""
        return " and ".join(type(part).__name__ for part in self._parts)

    @property
    def parts(self) -> list[Optimizer]:
        """The parts, with these groups and this state."""
        first = 0
        for part, groups in zip(self._parts, self._groups, strict=True):
            part.param_groups = self.param_groups[first : first + groups]
            part.state = self.state
            first += groups
        return self._parts

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Take a step of each part; ``closure`` is not called."""
        for part in self.parts:
            part.step()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the last part."""
        before = len(self.param_groups)
        super().add_param_group(param_group)
        if before >= sum(self._groups):
            self._groups[-1] += 1


def part_of(optimizer: Optimizer, parameter: nn.Parameter) -> Optimizer:
    """``optimizer``, or of a ``Composite`` the part that trains ``parameter``; the whole where none does."""
    if isinstance(optimizer, Composite):
        for part in optimizer.parts:
            if any(parameter is one for group in part.param_groups for one in group["params"]):
                return part
    return optimizer


def kind_of(optimizer: Optimizer) -> str:
    """Name of its class, or of its parts."""
    return optimizer.kind if isinstance(optimizer, Composite) else type(optimizer).__name__
