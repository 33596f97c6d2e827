"""An exponential moving average of a model's weights, kept beside the training (Polyak and Juditsky 1992; with a fixed
decay as in Tarvainen and Valpola 2017, arXiv 1703.01780).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from trainers.names import plain_name
from trainers.running_statistics import running_statistics

_MOST_CAST_BYTES = 1 << 26


class MovingAverage:
    """average ← decay · average + (1 - decay) · weights after each step, of trained parameters and of running
    statistics; after the first step it is the weights. All else is the model's own. The model's parameters stay the
    same objects.

    It is kept in single precision at least: in bfloat16, steps of a thousandth of a difference would be lost.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._parameters = {plain_name(n): p for n, p in model.named_parameters() if p.requires_grad}
        self._places = running_statistics(model)
        self._update = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
        self._average: dict[str, Tensor] = {}

    def include(self, model: nn.Module) -> None:
        """Average from now on what ``model`` trains in addition; until now it was as it is."""
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and self._parameters.get(plain_name(name)) is not parameter:
                self._parameters[plain_name(name)] = parameter
                if self._average:
                    value = parameter.detach()
                    self._average[plain_name(name)] = value.to(_dtype_of_average(value.dtype), copy=True)

    def _weights(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {name: p.detach() for name, p in self._parameters.items()}
        for name, (module, key) in self._places.items():
            buffer = module._buffers[key]
            assert buffer is not None
            found[name] = buffer
        return found

    def update(self) -> None:
        """A step has been taken."""
        weights = self._weights()
        if self._average:
            self._move(weights)
        else:
            self._average = {
                name: value.to(_dtype_of_average(value.dtype), copy=True) for name, value in weights.items()
            }

    def _move(self, weights: Mapping[str, Tensor]) -> None:
        """By parts: those of another precision are cast, and a large model has no room for a second one of all."""
        averages: list[Tensor] = []
        values: list[Tensor] = []
        cast = 0
        for name, value in weights.items():
            average = self._average[name]
            averages.append(average)
            values.append(value.to(average.dtype))
            cast += average.nbytes * (value.dtype is not average.dtype)
            if cast > _MOST_CAST_BYTES:
                self._update(averages, values, 0)
                averages, values, cast = [], [], 0
        if averages:
            self._update(averages, values, 0)

    @torch.no_grad()
    def fill(self) -> None:
        """Leave the average, if there is one, in the model."""
        for name, value in self._weights().items():
            if name in self._average:
                value.copy_(self._average[name])

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Inside, the model has the average; afterwards the weights of before."""
        kept = {name: value.clone() for name, value in self._weights().items()}
        self.fill()
        try:
            yield
        finally:
            with torch.no_grad():
                for name, value in self._weights().items():
                    value.copy_(kept[name])

    @property
    def parameters(self) -> dict[str, Tensor]:
        """The average of the parameters, by plain names; nothing before the first step."""
        return {name: value for name, value in self._average.items() if name in self._parameters}

    @property
    def buffers(self) -> dict[str, Tensor]:
        """The average of the running statistics, by plain names."""
        return {name: value for name, value in self._average.items() if name in self._places}

    def load(self, saved: Mapping[str, Tensor]) -> None:
        """Go on from ``saved``, parameters and buffers together."""
        # In earlier versions it had the weights' own precision, and other buffers, too.
        self._average = {
            name: saved[name].to(value.device, _dtype_of_average(value.dtype), copy=True)
            for name, value in self._weights().items()
            if name in saved
        }


def _dtype_of_average(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32) if dtype.itemsize > 1 else torch.float32
