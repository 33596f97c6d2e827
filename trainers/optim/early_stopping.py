"""Early stopping of a run that no longer improves, as a pure function of its history."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainers.arguments import check_bounds, check_kinds, check_rules

DIRECTIONS = ("minimize", "maximize")


def is_better(value: float, best: float | None, direction: str, min_delta: float) -> bool:
    """Whether ``value`` is better than ``best`` by more than ``min_delta``; any number is better than None."""
    # NaN compares as False in both directions, but would be the first best value.
    if math.isnan(value):
        return False
    if best is None:
        return True
    gain = best - value if direction == "minimize" else value - best
    return gain > min_delta


def recorded(entry: Mapping[str, float], metric: str, asked_by: str) -> float:
    """Value of ``metric`` in ``entry``; ValueError with the recorded names if it is missing."""
    if metric not in entry:
        raise ValueError(
            f"{asked_by}(metric={metric!r}): this run records {', '.join(entry)}. Name one of them."
        )
    return entry[metric]


@dataclass(frozen=True, kw_only=True)
class EarlyStopping:
    """Stops a run whose metric has not improved in the last evaluations, by default those after each epoch.

    Args:
        metric (str; default "validation_loss"): a metric that the run records.
        direction (str; default "minimize"): "minimize" or "maximize".
        patience (int, evaluations, from 1; default 10): evaluations without an improvement before the run stops.
        min_delta (float, from 0; default 0.0): difference that an improvement must exceed.
        restore_best (bool; default False): whether the model, and the metrics of the result, are those of the best
            evaluation at the end.

    Raises:
        ValueError: a setting is not allowed; in the run: it does not record ``metric``.
    """

    metric: str = "validation_loss"
    direction: str = "minimize"
    patience: int = 10
    min_delta: float = 0.0
    restore_best: bool = False

    def __post_init__(self) -> None:
        check_kinds(self)
        check_rules(self, ("direction", self.direction in DIRECTIONS, " or ".join(map(repr, DIRECTIONS))))
        check_bounds(self, patience="at least 1", min_delta="at least 0")

    def best_epoch(self, history: Sequence[Mapping[str, float]]) -> int | None:
        """Index of the best evaluation so far; None if there is none, ValueError if ``metric`` is not recorded."""
        best: int | None = None
        for index, entry in enumerate(history):
            value = recorded(entry, self.metric, type(self).__name__)
            known = None if best is None else history[best][self.metric]
            if is_better(value, known, self.direction, self.min_delta):
                best = index
        return best

    def should_stop(self, history: Sequence[Mapping[str, float]]) -> bool:
        """Whether the last ``patience`` evaluations had no improvement."""
        best = self.best_epoch(history)
        return len(history) - (0 if best is None else best + 1) >= self.patience
