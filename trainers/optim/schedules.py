"""Learning-rate schedules: pure functions of the position in the run and of its history, so that none needs
to be saved.

``epoch`` is a real number: optimizer steps taken, over steps an epoch. Every schedule may start with a linear
warm-up; its own course begins, at the full rate, where the warm-up ends, and is over when the run is.
"""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainers.arguments import check_kinds, is_number
from trainers.optim.early_stopping import is_better, recorded

History = Sequence[Mapping[str, float]]
"""The metrics of each evaluation, in order; their "epoch" is where in the run it was, by default 1, 2, 3 and so on."""


@dataclass(frozen=True, kw_only=True)
class Schedule(ABC):
    """A learning rate as a function of the position in the run: a linear warm-up from ``warmup_lr`` to the
    optimizer's own rate, then ``decayed``, which ends with the run. Derive from it for a schedule of your own.

    Args:
        warmup_epochs (float, epochs; default 0.0): of a linear warm-up, after which the schedule begins.
        warmup_lr (float; default 0.0): the rate at which the warm-up starts.

    Raises:
        ValueError: a setting is not allowed.
    """

    warmup_epochs: float = 0.0
    warmup_lr: float = 0.0

    def __post_init__(self) -> None:
        check_kinds(self)
        self._refuse_unless(0 <= self.warmup_epochs < math.inf, "warmup_epochs", "at least 0 and finite")
        self._refuse_unless(self.warmup_lr >= 0, "warmup_lr", "at least 0")

    def rate(self, lr: float, *, epoch: float, epochs: float, history: History = ()) -> float:
        """The learning rate at a position of the run.

        Args:
            lr (float): the parameter group's own rate.
            epoch (float): position: optimizer steps taken, over steps an epoch.
            epochs (float): of the run.
            history (sequence of dict; default ()): the metrics of each evaluation, after each epoch by default.
        """
        if epoch < self.warmup_epochs:
            return self.warmup_lr + (lr - self.warmup_lr) * epoch / self.warmup_epochs
        return self.decayed(
            lr, epoch=epoch - self.warmup_epochs, epochs=epochs - self.warmup_epochs, history=history
        )

    @abstractmethod
    def decayed(self, lr: float, *, epoch: float, epochs: float, history: History) -> float:
        """As ``rate``, with ``epoch`` and ``epochs`` counted from the end of the warm-up; ``history`` is
        whole.
        """

    def _refuse_unless(self, allowed: bool, name: str, rule: str) -> None:
        if not allowed:
            raise ValueError(
                f"{type(self).__name__}({name}={getattr(self, name)!r}): {name} must be {rule}. Correct it."
            )


@dataclass(frozen=True, kw_only=True)
class Constant(Schedule):
    """The optimizer's own rate throughout.

    Args:
        warmup_epochs (float, epochs; default 0.0): of a linear warm-up, after which the schedule begins.
        warmup_lr (float; default 0.0): the rate at which the warm-up starts.

    Raises:
        ValueError: a setting is not allowed.
    """

    def decayed(self, lr: float, *, epoch: float, epochs: float, history: History) -> float:
        return lr


@dataclass(frozen=True, kw_only=True)
class Cosine(Schedule):
    """Half a cosine from lr to ``min_lr``: min_lr + (lr - min_lr) (1 + cos(π (t/T)^k)) / 2.

    Args:
        warmup_epochs (float, epochs; default 0.0): of a linear warm-up, after which the schedule begins.
        warmup_lr (float; default 0.0): the rate at which the warm-up starts.
        min_lr (float; default 0.0): the last rate. A group whose own is below it rises to it, as timm's and torch's do.
        k_decay (float, above 0; default 1.0): the k of Zhang and Li (arXiv 2004.05909): above 1 the rate stays high
            longer, below 1 it falls earlier.

    Raises:
        ValueError: a setting is not allowed.
    """

    min_lr: float = 0.0
    k_decay: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._refuse_unless(self.min_lr >= 0, "min_lr", "at least 0")
        self._refuse_unless(self.k_decay > 0, "k_decay", "above 0")

    def decayed(self, lr: float, *, epoch: float, epochs: float, history: History) -> float:
        passed = min(epoch / epochs, 1.0) ** self.k_decay if epochs > 0 else 1.0
        return self.min_lr + (lr - self.min_lr) * (1.0 + math.cos(math.pi * passed)) / 2.0


@dataclass(frozen=True, kw_only=True)
class Exponential(Schedule):
    """lr · ``rate_factor`` ** (epoch / ``every_epochs``), continuously.

    Args:
        warmup_epochs (float, epochs; default 0.0): of a linear warm-up, after which the schedule begins.
        warmup_lr (float; default 0.0): the rate at which the warm-up starts.
        rate_factor (float, above 0 to 1): what is left of the rate after ``every_epochs``.
        every_epochs (float, epochs; default 1.0): see there.

    Raises:
        ValueError: a setting is not allowed.
    """

    rate_factor: float
    every_epochs: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._refuse_unless(0 < self.rate_factor <= 1, "rate_factor", "above 0 and at most 1")
        self._refuse_unless(self.every_epochs > 0, "every_epochs", "above 0")

    def decayed(self, lr: float, *, epoch: float, epochs: float, history: History) -> float:
        return lr * math.pow(self.rate_factor, epoch / self.every_epochs)


@dataclass(frozen=True, kw_only=True)
class InverseTime(Schedule):
    """lr / (1 + ``decay`` · epoch / ``every_epochs``).

    Args:
        warmup_epochs (float, epochs; default 0.0): of a linear warm-up, after which the schedule begins.
        warmup_lr (float; default 0.0): the rate at which the warm-up starts.
        decay (float, from 0): see above.
        every_epochs (float, epochs; default 1.0): see above.

    Raises:
        ValueError: a setting is not allowed.
    """

    decay: float
    every_epochs: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._refuse_unless(self.decay >= 0, "decay", "at least 0")
        self._refuse_unless(self.every_epochs > 0, "every_epochs", "above 0")

    def decayed(self, lr: float, *, epoch: float, epochs: float, history: History) -> float:
        return lr / (1.0 + self.decay * epoch / self.every_epochs)


@dataclass(frozen=True, kw_only=True)
class Polynomial(Schedule):
    """min_lr + (lr - min_lr) (1 - t/T) ** ``power``.

    Args:
        warmup_epochs (float, epochs; default 0.0): of a linear warm-up, after which the schedule begins.
        warmup_lr (float; default 0.0): the rate at which the warm-up starts.
        power (float, above 0; default 1.0): 1 is a straight line.
        min_lr (float; default 0.0): the smallest rate; of a group whose own is below it, that one.

    Raises:
        ValueError: a setting is not allowed.
    """

    power: float = 1.0
    min_lr: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._refuse_unless(self.power > 0, "power", "above 0")
        self._refuse_unless(self.min_lr >= 0, "min_lr", "at least 0")

    def decayed(self, lr: float, *, epoch: float, epochs: float, history: History) -> float:
        left = max(1.0 - epoch / epochs, 0.0) if epochs > 0 else 0.0
        low = min(self.min_lr, lr)
        return low + (lr - low) * math.pow(left, self.power)


@dataclass(frozen=True, kw_only=True)
class Drops(Schedule):
    """lr times ``factor`` once for each fraction in ``at`` that has passed: at 50 % and at 75 %, say, as
    for ResNets on CIFAR (He et al. 2015, section 4.2).

    Args:
        warmup_epochs (float, epochs; default 0.0): of a linear warm-up, after which the schedule begins.
        warmup_lr (float; default 0.0): the rate at which the warm-up starts.
        at (tuple of float, between 0 and 1; default (0.5, 0.75)): fractions of what follows the warm-up.
        factor (float, between 0 and 1; default 0.1): what is left of the rate after each.

    Raises:
        ValueError: a setting is not allowed.
    """

    at: tuple[float, ...] = (0.5, 0.75)
    factor: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        parts = isinstance(self.at, (tuple, list)) and all(is_number(p) and 0 < p < 1 for p in self.at)
        self._refuse_unless(parts, "at", "parts of the run, between 0 and 1")
        self._refuse_unless(0 < self.factor < 1, "factor", "between 0 and 1")

    def decayed(self, lr: float, *, epoch: float, epochs: float, history: History) -> float:
        passed = sum(epoch >= part * epochs for part in self.at)
        return lr * math.pow(self.factor, passed)


@dataclass(frozen=True, kw_only=True)
class ReduceOnPlateau(Schedule):
    """Multiply the rate by ``factor`` each time ``metric`` has not improved for more than ``patience`` evaluations. The
    count starts anew after a reduction, and with the first evaluation whose steps were all after the warm-up.

    Args:
        warmup_epochs (float, epochs; default 0.0): of a linear warm-up, after which the schedule begins.
        warmup_lr (float; default 0.0): the rate at which the warm-up starts.
        metric (str; default "train_loss"): a metric that the run records.
        direction (str; default "minimize"): "minimize" or "maximize".
        factor (float, between 0 and 1; default 0.5): what is left of the rate after each reduction.
        patience (int, evaluations, epochs by default; default 5): see above.
        min_delta (float; default 0.0): an improvement is larger than this.
        min_lr (float; default 0.0): the smallest rate; of a group whose own is below it, that one.

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
        self._refuse_unless(
            self.direction in ("minimize", "maximize"), "direction", '"minimize" or "maximize"'
        )
        self._refuse_unless(0 < self.factor < 1, "factor", "between 0 and 1")
        self._refuse_unless(self.patience >= 0, "patience", "at least 0")
        self._refuse_unless(self.min_delta >= 0, "min_delta", "at least 0")
        self._refuse_unless(self.min_lr >= 0, "min_lr", "at least 0")

    def decayed(self, lr: float, *, epoch: float, epochs: float, history: History) -> float:
        return max(lr * self.factor ** self._reductions(history), min(self.min_lr, lr))

    def _reductions(self, history: History) -> int:
        """How many there have been. Each step asks, for each group: counted once for the same entries, which stay as
        they are.
        """
        known: tuple[History, int] = vars(self).get("_counted", ((), 0))
        # To see that all entries are those of then takes a small part of the time of counting.
        if len(known[0]) == len(history) and all(map(operator.is_, known[0], history)):
            return known[1]
        best: float | None = None
        without = reductions = 0
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
        # No field: of settings it is none, and equal ones stay equal.
        object.__setattr__(self, "_counted", (tuple(history), reductions))
        return reductions
