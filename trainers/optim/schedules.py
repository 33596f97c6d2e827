"""Learning-rate schedules: pure functions of the position in the run and of its history, without a state to save.

``epoch`` is a real number: optimizer steps so far, divided by steps in an epoch. All schedules may start with a linear
warm-up; the schedule proper begins, at the full rate, at the end of the warm-up, and ends with the run.
"""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainers.arguments import check_bounds, check_kinds, check_rules, is_number
from trainers.optim.early_stopping import DIRECTIONS, is_better, recorded

History = Sequence[Mapping[str, float]]
"""Metrics of each evaluation in order; "epoch" is the evaluation's position in the run, by default 1, 2, 3, …"""


@dataclass(frozen=True, kw_only=True)
class Schedule(ABC):
    """Base of all learning-rate schedules, and of your own: a linear warm-up to the optimizer's rate, then ``decayed``.

    Args:
        warmup_epochs (float, epochs; default 0.0): length of a linear warm-up, after which the schedule begins.
        warmup_lr (float; default 0.0): rate at the start of the warm-up.

    Raises:
        ValueError: a setting is not allowed.
    """

    warmup_epochs: float = 0.0
    warmup_lr: float = 0.0

    def __post_init__(self) -> None:
        check_kinds(self)
        check_rules(self, ("warmup_epochs", 0 <= self.warmup_epochs < math.inf, "at least 0 and finite"))
        check_bounds(self, warmup_lr="at least 0")

    def rate(self, lr: float, *, epoch: float, epochs: float, history: History = ()) -> float:
        """Learning rate at a position of the run.

        Args:
            lr (float): rate of the parameter group.
            epoch (float): position in the run: optimizer steps so far, divided by steps in an epoch.
            epochs (float): length of the run.
            history (sequence of dict; default ()): metrics of each evaluation, after each epoch by default.
        """
        if epoch < self.warmup_epochs:
            return self.warmup_lr + (lr - self.warmup_lr) * epoch / self.warmup_epochs
        return self.decayed(
            lr, epoch=epoch - self.warmup_epochs, epochs=epochs - self.warmup_epochs, history=history
        )

    @abstractmethod
    def decayed(self, lr: float, *, epoch: float, epochs: float, history: History) -> float:
        """Learning rate after the warm-up, from whose end ``epoch`` and ``epochs`` count; ``history`` is that of the
        whole run."""


@dataclass(frozen=True, kw_only=True)
class Constant(Schedule):
    """Constant rate, that of the optimizer.

    Args:
        warmup_epochs, warmup_lr (float; default 0.0): linear warm-up of ``Schedule``.
    """

    def decayed(self, lr: float, *, epoch: float, epochs: float, history: History) -> float:
        return lr


@dataclass(frozen=True, kw_only=True)
class Cosine(Schedule):
    """Half a cosine from lr to ``min_lr``: min_lr + (lr - min_lr) (1 + cos(π (t/T)^k)) / 2.

    Args:
        warmup_epochs, warmup_lr (float; default 0.0): linear warm-up of ``Schedule``.
        min_lr (float; default 0.0): last rate. A group with a lower rate rises to it, as in timm and torch.
        k_decay (float, above 0; default 1.0): exponent k of Zhang and Li (arXiv 2004.05909): above 1, the rate stays
            high longer, below 1, it falls earlier.
    """

    min_lr: float = 0.0
    k_decay: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bounds(self, min_lr="at least 0", k_decay="above 0")

    def decayed(self, lr: float, *, epoch: float, epochs: float, history: History) -> float:
        # A run of the warm-up alone has no epochs left for the schedule.
        passed = min(epoch / epochs, 1.0) ** self.k_decay if epochs > 0 else 1.0
        return self.min_lr + (lr - self.min_lr) * (1.0 + math.cos(math.pi * passed)) / 2.0


@dataclass(frozen=True, kw_only=True)
class Exponential(Schedule):
    """Exponential decay: lr · ``rate_factor`` ** (epoch / ``every_epochs``), continuously.

    Args:
        warmup_epochs, warmup_lr (float; default 0.0): linear warm-up of ``Schedule``.
        rate_factor (float, above 0 to 1): factor of the rate after ``every_epochs``.
        every_epochs (float, epochs; default 1.0): epochs in which the rate falls by ``rate_factor``.
    """

    rate_factor: float
    every_epochs: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bounds(self, rate_factor="above 0 and at most 1", every_epochs="above 0")

    def decayed(self, lr: float, *, epoch: float, epochs: float, history: History) -> float:
        return lr * math.pow(self.rate_factor, epoch / self.every_epochs)


@dataclass(frozen=True, kw_only=True)
class InverseTime(Schedule):
    """Inverse-time decay: lr / (1 + ``decay`` · epoch / ``every_epochs``).

    Args:
        warmup_epochs, warmup_lr (float; default 0.0): linear warm-up of ``Schedule``.
        decay (float, from 0): strength of the decay.
        every_epochs (float, epochs; default 1.0): unit of time of the decay.
    """

    decay: float
    every_epochs: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bounds(self, decay="at least 0", every_epochs="above 0")

    def decayed(self, lr: float, *, epoch: float, epochs: float, history: History) -> float:
        return lr / (1.0 + self.decay * epoch / self.every_epochs)


@dataclass(frozen=True, kw_only=True)
class Polynomial(Schedule):
    """Polynomial decay: min_lr + (lr - min_lr) (1 - t/T) ** ``power``.

    Args:
        warmup_epochs, warmup_lr (float; default 0.0): linear warm-up of ``Schedule``.
        power (float, above 0; default 1.0): exponent; 1 is a straight line.
        min_lr (float; default 0.0): smallest rate; a group with a lower rate keeps its own.
    """

    power: float = 1.0
    min_lr: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bounds(self, power="above 0", min_lr="at least 0")

    def decayed(self, lr: float, *, epoch: float, epochs: float, history: History) -> float:
        left = max(1.0 - epoch / epochs, 0.0) if epochs > 0 else 0.0
        low = min(self.min_lr, lr)
        return low + (lr - low) * math.pow(left, self.power)


@dataclass(frozen=True, kw_only=True)
class Drops(Schedule):
    """Drops of the rate at some points of the run, such as 50 % and 75 % for ResNets on CIFAR (He et al. 2015, section
    4.2).

    Args:
        warmup_epochs, warmup_lr (float; default 0.0): linear warm-up of ``Schedule``.
        at (tuple of float, between 0 and 1; default (0.5, 0.75)): points of the drops, as fractions of the run after
            the warm-up.
        factor (float, between 0 and 1; default 0.1): factor of the rate at each drop.
    """

    at: tuple[float, ...] = (0.5, 0.75)
    factor: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        fractions = isinstance(self.at, (tuple, list)) and all(is_number(p) and 0 < p < 1 for p in self.at)
        check_rules(self, ("at", fractions, "fractions of the run, between 0 and 1"))
        check_bounds(self, factor="above 0 and below 1")

    def decayed(self, lr: float, *, epoch: float, epochs: float, history: History) -> float:
        passed = sum(epoch >= part * epochs for part in self.at)
        return lr * math.pow(self.factor, passed)


@dataclass(frozen=True, kw_only=True)
class ReduceOnPlateau(Schedule):
    """Reductions of the rate when a metric has not improved for more than ``patience`` evaluations.

    The count starts at 0 after a reduction, and with the first evaluation whose steps were all after the warm-up.

    Args:
        warmup_epochs, warmup_lr (float; default 0.0): linear warm-up of ``Schedule``.
        metric (str; default "train_loss"): a metric that the run records.
        direction (str; default "minimize"): "minimize" or "maximize".
        factor (float, between 0 and 1; default 0.5): factor of the rate at each reduction.
        patience (int, evaluations, epochs by default; default 5): evaluations without an improvement that are allowed.
        min_delta (float; default 0.0): difference that an improvement must exceed.
        min_lr (float; default 0.0): smallest rate; a group with a lower rate keeps its own.

    Raises:
        ValueError: a setting is not allowed; in the run: it does not record ``metric``.
    """

    metric: str = "train_loss"
    direction: str = "minimize"
    factor: float = 0.5
    patience: int = 5
    min_delta: float = 0.0
    min_lr: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_rules(self, ("direction", self.direction in DIRECTIONS, " or ".join(map(repr, DIRECTIONS))))
        check_bounds(
            self,
            factor="above 0 and below 1",
            patience="at least 0",
            min_delta="at least 0",
            min_lr="at least 0",
        )

    def decayed(self, lr: float, *, epoch: float, epochs: float, history: History) -> float:
        return max(lr * self.factor ** self._reductions(history), min(self.min_lr, lr))

    def _reductions(self, history: History) -> int:
        """Number of reductions so far."""
        # Asked at each step for each group, so the number is kept for the entries that it was counted from.
        known: tuple[History, int] = vars(self).get("_counted", ((), 0))
        # Comparing the entries by identity takes a small part of the time of counting; entries never change.
        if len(known[0]) == len(history) and all(map(operator.is_, known[0], history)):
            return known[1]
        best: float | None = None
        without = reductions = 0
        # Evaluations may be anywhere in an epoch; each covers the steps since the evaluation before.
        begins = [0.0, *(entry.get("epoch", float(index)) for index, entry in enumerate(history, 1))]
        for begin, entry in zip(begins, history, strict=False):
            if begin < self.warmup_epochs:
                continue
            value = recorded(entry, self.metric, type(self).__name__)
            if is_better(value, best, self.direction, self.min_delta):
                best, without = value, 0
            else:
                without += 1
            if without > self.patience:
                reductions, without = reductions + 1, 0
        # Set past the frozen dataclass and not as a field: it is no setting, and must not make equal schedules differ.
        object.__setattr__(self, "_counted", (tuple(history), reductions))
        return reductions
