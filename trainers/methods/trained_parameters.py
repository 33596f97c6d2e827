"""Trained parameters of a run: the user may thaw or freeze some, or give the optimizer more, in mid-run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from weakref import WeakValueDictionary

from torch import nn


class TrainedParameters:
    """Trained parameters of ``model``, and those among them whose gradients or values a strategy exchanges.

    A strategy asks for ``exchanged`` whenever it makes what averages them, also where one rank has nothing to average.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._exchanged: dict[int, nn.Parameter] = {}
        # Weak: what a decomposition has replaced would else stay in memory to the run's end.
        self._ever: WeakValueDictionary[int, nn.Parameter] = WeakValueDictionary()
        self.asked = False
        """Whether a strategy has asked for ``exchanged``."""

    def exchanged(self) -> list[nn.Parameter]:
        """Parameters that require a gradient now, in the model's order; the caller exchanges these from now on."""
        self.asked = True
        found = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        self._exchanged = {id(parameter): parameter for parameter in found}
        self._ever.update(self._exchanged)
        return found

    def ever(self) -> list[nn.Parameter]:
        """Parameters that are trained, or were and are frozen since: ranks that train apart may differ in either."""
        return [p for p in self._model.parameters() if p.requires_grad or self._ever.get(id(p)) is p]

    def frozen(self) -> list[nn.Parameter]:
        """Parameters that are exchanged and that the user has frozen since, in the model's order."""
        return [parameter for parameter in self._exchanged.values() if not parameter.requires_grad]

    def beside(self, groups: Iterable[Mapping[str, Any]]) -> list[nn.Parameter]:
        """Parameters in ``groups``, an optimizer's, that are not exchanged."""
        known = self._exchanged
        return [parameter for group in groups for parameter in group["params"] if id(parameter) not in known]

    def __contains__(self, parameter: nn.Parameter) -> bool:
        """Whether ``parameter`` is exchanged."""
        return id(parameter) in self._exchanged
