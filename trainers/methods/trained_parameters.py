"""Trained parameters of a run, which the user may change during the run by thawing, freezing or adding parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from weakref import WeakValueDictionary

from torch import nn


class TrainedParameters:
    """Trained parameters of ``model``, and those whose gradients or values a strategy exchanges.

    A strategy calls ``exchanged`` whenever it makes an averager of parameters, on a single rank too.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._exchanged: dict[int, nn.Parameter] = {}
        # Weak references, because parameters that a decomposition has replaced would stay in memory otherwise.
        self._ever: WeakValueDictionary[int, nn.Parameter] = WeakValueDictionary()
        self.asked = False
        """Whether a strategy has called ``exchanged``."""

    def exchanged(self) -> list[nn.Parameter]:
        """Parameters that require a gradient now, in the model's order, which the caller exchanges from now on."""
        self.asked = True
        found = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        self._exchanged = {id(parameter): parameter for parameter in found}
        self._ever.update(self._exchanged)
        return found

    def ever(self) -> list[nn.Parameter]:
        """Parameters that are trained, or were trained before they were frozen."""
        # Ranks that train independently may differ in both.
        return [p for p in self._model.parameters() if p.requires_grad or self._ever.get(id(p)) is p]

    def frozen(self) -> list[nn.Parameter]:
        """Exchanged parameters that the user has frozen since, in the model's order."""
        return [parameter for parameter in self._exchanged.values() if not parameter.requires_grad]

    def beside(self, groups: Iterable[Mapping[str, Any]]) -> list[nn.Parameter]:
        """Parameters in an optimizer's ``groups`` that are not exchanged."""
        known = self._exchanged
        return [parameter for group in groups for parameter in group["params"] if id(parameter) not in known]

    def __contains__(self, parameter: nn.Parameter) -> bool:
        """Whether ``parameter`` is exchanged."""
        return id(parameter) in self._exchanged
