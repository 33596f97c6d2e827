"""Campaigns on forecasts of time series: which windows a run reads, and how it is judged. torch is imported by what
trains.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from search_spaces import options as check
from search_spaces import sources
from search_spaces.building_blocks.recipes import TrainingOptions
from search_spaces.building_blocks.training import RECORDED as RECORDED_BY_ALL
from search_spaces.building_blocks.training import TrainedTask
from search_spaces.folds import Fold
from search_spaces.options import Count, Rule

if TYPE_CHECKING:
    import torch

    from search_spaces.building_blocks.data_sets.windows import Parts
    from trainers.evaluation.metrics import Metric

RECORDED = ("mae", "epoch", *RECORDED_BY_ALL)
"""Metrics of the trainer that a campaign keeps beside the fitness."""


class SeriesOptions(TrainingOptions):
    """Which windows of which series."""

    data: Annotated[str, Rule(sources.SERIES)] = "elecdemand"
    """A csv, or elecdemand, as for ``readers.ett.read_series``."""
    stride: Count = 16
    """A window begins this many points after the one before; 1: all are used."""
    horizon: Count = 48
    """Points that are forecast."""
    context: Count = 96
    """Points that are seen."""

    def check_data(self) -> None:
        sources.check_series(self.data)

    def parts(self) -> Parts:
        from search_spaces.building_blocks.data_sets.windows import load_parts

        with check.as_usage():
            return load_parts(self.data, context=self.context, horizon=self.horizon, stride=self.stride)

    def of_fold(self, parts: Parts, fold: Fold) -> Parts:
        # Windows that share points with those held back would give these away.
        gap = -(-(self.context + self.horizon) // self.stride) - 1
        return parts.divided(*fold.block(len(parts.train), gap=gap))

    def network_facts(self, parts: Parts) -> dict[str, int]:
        return {"features": parts.features, "time_features": parts.time_features}


class ForecastTask(TrainedTask):
    """Judged by the mean squared error on the validation part, to be minimised, at the epoch where that was smallest. A
    run without such an epoch is an invalid individual.
    """

    recorded = RECORDED
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
    """Of standardised values, as the source's table has it beside the squared one."""
    return (outputs - targets).abs().mean().item()
