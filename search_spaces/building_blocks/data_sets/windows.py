"""Stretches of a time series to forecast from and to forecast. Importing this module imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset

from search_spaces.readers.ett import read_series, time_features

Window = tuple[dict[str, Tensor], Tensor]
"""Inputs by name, and the target."""


class Windows(Dataset[Window]):
    """Every stretch of ``context`` points to forecast from and ``horizon`` points to forecast of a part of a series.

    Of ``values`` (points, features) and ``time_features`` (points, features of the time), which are shared and not
    copied, it takes the points from ``first`` to before ``end``; windows begin ``stride`` points apart. An item is
    a pair of views: the inputs, by the names that transformers' time-series models have for them, and the target:

    - ``past_values`` (context, features), ``past_time_features`` (context, …), ``future_time_features`` (horizon, …);
    - the values (horizon, features).

    Nothing is missing in a ``Series``, so there is no mask.
    """

    def __init__(
        self,
        values: Tensor,
        time_features: Tensor,
        *,
        first: int,
        end: int,
        context: int,
        horizon: int,
        stride: int = 1,
    ) -> None:
        self.values, self.time_features = values, time_features
        self.first, self.context, self.horizon, self.stride = first, context, horizon, stride
        self._length = max(0, -(-(end - first - context - horizon + 1) // stride))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[dict[str, Tensor], Tensor]:
        if not 0 <= index < self._length:
            raise IndexError(index)
        begin = self.first + index * self.stride
        now, end = begin + self.context, begin + self.context + self.horizon
        inputs = {
            "past_values": self.values[begin:now],
            "past_time_features": self.time_features[begin:now],
            "future_time_features": self.time_features[now:end],
        }
        return inputs, self.values[now:end]

    def read_batch(self, indices: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """The items of ``indices`` along a first axis; faster than one by one."""
        points = self.first + indices[:, None] * self.stride + torch.arange(self.context + self.horizon)
        past, future = points[:, : self.context], points[:, self.context :]
        inputs = {
            "past_values": self.values[past],
            "past_time_features": self.time_features[past],
            "future_time_features": self.time_features[future],
        }
        return inputs, self.values[future]


@dataclass(frozen=True, kw_only=True)
class Parts:
    """A series ready for use, standardised by ``mean`` and ``deviation`` (features), those of the training part.
    ``features``: how many values a point has; ``time_features``: how many numbers give its time.
    """

    train: Windows | Subset[Window]
    validation: Windows | Subset[Window]
    test: Windows
    features: int
    time_features: int
    mean: npt.NDArray[np.float64]
    deviation: npt.NDArray[np.float64]

    def divided(self, training: Sequence[int], held: Sequence[int]) -> Parts:
        """Of ``train`` the windows of these places to train with, and of those to validate with."""
        return replace(self, train=Subset(self.train, training), validation=Subset(self.train, held))


@lru_cache(maxsize=1)
def load_parts(source: str, *, context: int = 96, horizon: int = 96, stride: int = 1) -> Parts:
    """The series at ``source``, see ``readers.ett.read_series``, in three parts (``Series.ends``).

    The first forecast of the validation and test part is of its first point: its context lies in the part before.
    ``stride`` thins out the windows of all parts. ValueError for numbers that leave a part without a window.
    """
    for name, value in (("context", context), ("horizon", horizon), ("stride", stride)):
        if value < 1:
            raise ValueError(f"{name} = {value}: must be a number of points of at least 1. Correct it.")
    series = read_series(source)
    ends = series.ends()
    trained = series.values[: ends[0]]
    mean, deviation = trained.mean(axis=0), trained.std(axis=0)
    # What never changed while it was trained with says nothing, in any unit.
    deviation = np.where(deviation > 0, deviation, 1.0)
    values = torch.from_numpy(((series.values - mean) / deviation).astype(np.float32))
    times = torch.from_numpy(time_features(series.times, series.spacing))
    firsts = (0, ends[0] - context, ends[1] - context)
    parts = []
    for name, first, end in zip(("training", "validation", "test"), firsts, ends):
        part = Windows(values, times, first=first, end=end, context=context, horizon=horizon, stride=stride)
        if first < 0 or not len(part):
            raise ValueError(
                f"{source} has {len(series)} points, and its {name} part no window of context = {context} and "
                f"horizon = {horizon}. Lower these, or bring a longer series."
            )
        parts.append(part)
    return Parts(
        train=parts[0],
        validation=parts[1],
        test=parts[2],
        features=values.shape[1],
        time_features=times.shape[1],
        mean=mean,
        deviation=deviation,
    )
