"""Windows of a time series, each with points to forecast from and points to forecast. Importing this module imports
torch."""

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
    """All windows in a part of a series.

    An item is a pair of views: the inputs ``past_values`` (context, features), ``past_time_features`` (context, …) and
    ``future_time_features`` (horizon, …), with the names of transformers' time-series models, and the target, values
    (horizon, features). A ``Series`` has no missing values, so there is no mask.

    Args:
        values (tensor): the series (points, features), which is not copied.
        time_features (tensor): features of the points' times (points, …), which are not copied.
        first (int): first point of the part.
        end (int): point after the last of the part.
        context (int): points to forecast from.
        horizon (int): points to forecast.
        stride (int; default 1): points between the beginnings of successive windows.
    """

    fixed_items = True

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
        """Items at ``indices``, stacked along a first axis, which is faster than reading them separately."""
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
    """Splits of a standardised series."""

    train: Windows | Subset[Window]
    validation: Windows | Subset[Window]
    test: Windows
    features: int
    """Number of values of a point."""
    time_features: int
    """Number of features of a point's time."""
    mean: npt.NDArray[np.float64]
    """Means of the features in the training part."""
    deviation: npt.NDArray[np.float64]
    """Standard deviations of the features in the training part."""

    def divided(self, training: Sequence[int], held: Sequence[int]) -> Parts:
        """Splits with the windows of ``train`` at the places ``training`` for training, and at ``held`` for
        validation."""
        return replace(self, train=Subset(self.train, training), validation=Subset(self.train, held))


@lru_cache(maxsize=1)
def load_parts(source: str, *, context: int = 96, horizon: int = 96, stride: int = 1) -> Parts:
    """Splits of the series at ``source`` (see ``readers.ett.read_series`` and ``Series.ends``).

    The first forecasts for validation and test are of their first points, with a context in the part before.

    Args:
        source (str): path of the series.
        context (int; default 96): points to forecast from.
        horizon (int; default 96): points to forecast.
        stride (int; default 1): points between the beginnings of successive windows, in all parts.

    Raises:
        ValueError: a number is below 1, or a part would have no window.
    """
    for name, value in (("context", context), ("horizon", horizon), ("stride", stride)):
        if value < 1:
            raise ValueError(f"{name} = {value}: must be a number of points of at least 1. Correct it.")
    series = read_series(source)
    ends = series.ends()
    trained = series.values[: ends[0]]
    mean, deviation = trained.mean(axis=0), trained.std(axis=0)
    # A feature that is constant in the training part has no scale; any divisor other than 0 will do.
    deviation = np.where(deviation > 0, deviation, 1.0)
    values = torch.from_numpy(((series.values - mean) / deviation).astype(np.float32))
    times = torch.from_numpy(time_features(series.times, series.spacing))
    # The last two parts begin a context earlier, so that their first forecasts are of their first points.
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
