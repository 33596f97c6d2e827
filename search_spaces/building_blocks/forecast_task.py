"""Campaigns on forecasts of time series: the windows that a run reads, and its score."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from search_spaces.building_blocks import sources
from search_spaces.building_blocks.recipes import TrainingOptions
from search_spaces.building_blocks.training import RECORDED, TrainedTask
from search_spaces.folds import Fold
from search_spaces.options import Count, as_usage

if TYPE_CHECKING:
    import torch

    from search_spaces.building_blocks.data_sets.windows import Parts
    from trainers.evaluation.metrics import Metric


class SeriesOptions(TrainingOptions):
    """Series and windows of it."""

    data: str = "elecdemand"
    """A csv, or elecdemand, as for ``readers.ett.read_series``."""
    stride: Count = 16
    """Points from the begin of a window to that of the next; 1: all windows are used."""
    horizon: Count = 48
    """Points that are forecast."""
    context: Count = 96
    """Points that are seen."""

    def check_data(self) -> None:
        sources.check_series(self.data)

    def parts(self) -> Parts:
        from search_spaces.building_blocks.data_sets.windows import load_parts

        with as_usage():
            return load_parts(self.data, context=self.context, horizon=self.horizon, stride=self.stride)

    def of_fold(self, parts: Parts, fold: Fold) -> Parts:
        # Windows that share points with the validation windows would give these away.
        gap = -(-(self.context + self.horizon) // self.stride) - 1
        return parts.divided(*fold.block(len(parts.train), gap=gap))

    def network_facts(self, parts: Parts) -> dict[str, int]:
        return {"features": parts.features, "time_features": parts.time_features}


class ForecastTask(TrainedTask):
    """A task judged by the mean squared error on the validation part at its best epoch; NaN without such an epoch."""

    recorded = ("mae", "epoch", *RECORDED)
    keeps_best_of_diverged = True
    # Autoformer's spectra of this many windows, at the source's width and a horizon of 720, take some hundred MB each.
    samples_evaluated_at_once = 128

    def metrics(self) -> dict[str, Metric]:
        return {"mae": mean_absolute_error}

    def test_metric(self) -> Metric:
        import torch

        return torch.nn.functional.mse_loss

    def test_metrics(self, parts: Any) -> dict[str, Metric]:
        return self.metrics()


def mean_absolute_error(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    """Mean absolute error of standardised values, as in the source's table."""
    return (outputs - targets).abs().mean().item()
