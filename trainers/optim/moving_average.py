"""Exponential moving average of a model's weights during the training (Polyak and Juditsky 1992; with a fixed decay as
in Tarvainen and Valpola 2017, arXiv 1703.01780).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from trainers.names import plain_name, running_statistics
from trainers.structures import local_part

_MOST_CAST_BYTES = 1 << 26
"""Most bytes of weights that are converted to the average's precision at the same time."""


class MovingAverage:
    """Exponential moving average of trained parameters and running statistics of a model.

    After each step: average ← decay · average + (1 - decay) · weights. It begins with the weights after the first step.
    The model's parameters stay the same objects.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        # Averages are in single precision at least: in bfloat16, a thousandth of a difference would be rounded away.
        self._parameters = {plain_name(n): p for n, p in model.named_parameters() if p.requires_grad}
        self._places = running_statistics(model)
        self._update = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
        self._average: dict[str, Tensor] = {}

    def include(self, model: nn.Module) -> None:
        """Add parameters that ``model`` trains in addition now; their averages begin with their present values."""
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
        """Update the average after a step."""
        weights = self._weights()
        if not self._average:
            self._average = {
                name: value.to(_dtype_of_average(value.dtype), copy=True) for name, value in weights.items()
            }
            return
        # Part by part, because weights of another precision are converted, and a copy of a large model may not fit.
        averages: list[Tensor] = []
        values: list[Tensor] = []
        cast = 0
        for name, value in weights.items():
            average = self._average[name]
            # Parts, as torch averages no list of both sharded and other tensors.
            averages.append(local_part(average))
            values.append(local_part(value).to(average.dtype))
            cast += averages[-1].nbytes * (value.dtype is not average.dtype)
            if cast > _MOST_CAST_BYTES:
                self._update(averages, values, 0)
                averages, values, cast = [], [], 0
        if averages:
            self._update(averages, values, 0)

    @torch.no_grad()
    def fill(self) -> None:
        """Overwrite the model's weights with the average, if there is one."""
        for name, value in self._weights().items():
            if name in self._average:
                value.copy_(self._average[name])

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Context in which the model has the average; afterwards, it has its own weights again."""
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
        """Average of the parameters by plain name; empty before the first step."""
        return {name: value for name, value in self._average.items() if name in self._parameters}

    @property
    def buffers(self) -> dict[str, Tensor]:
        """Average of the running statistics by plain name; empty before the first step."""
        return {name: value for name, value in self._average.items() if name in self._places}

    def load(self, saved: Mapping[str, Tensor]) -> None:
        """Continue from ``saved``, parameters and buffers together."""
        self._average = {
            name: saved[name].to(value.device, copy=True)
            for name, value in self._weights().items()
            if name in saved
        }


def _dtype_of_average(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32) if dtype.itemsize > 1 else torch.float32
