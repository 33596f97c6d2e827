"""One optimizer step: the passes forward and backward, the method's exchange, clipping, the update."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainers.communication.averager import refuse_sparse
from trainers.data.batches import Batch
from trainers.methods.strategy import Strategy
from trainers.modes import whole_mode_kept
from trainers.optim.moving_average import MovingAverage
from trainers.optim.schedules import Schedule
from trainers.precision import autocast
from trainers.randomness import generators_kept, seed_generators
from trainers.run.position import Length, Position, StepMetrics
from trainers.run.settings import TrainSettings
from trainers.run.thawing import Thawing


@dataclass(frozen=True)
class TrainingStep:
    """Takes the optimizer steps of a run on one rank; the model is in training."""

    settings: TrainSettings
    optimizer: Optimizer
    strategy: Strategy
    average: MovingAverage | None
    thawing: Thawing
    loss_sums: Tensor
    """Sums of this rank's losses, to which each step's is added."""
    fetching_draws: bool
    """Whether ``batches`` of ``take`` may draw from the global generators."""

    def take(
        self, step: int, seed: int, passes: Sequence[Batch], batches: Iterator[tuple[object, object]]
    ) -> StepMetrics:
        """Take ``step``, counted from the run's begin, with as many of ``batches`` as there are ``passes``; what it
        draws depends on ``seed`` alone.
        """
        settings, strategy = self.settings, self.strategy
        forward = settings.forward
        # Fetched before the seeds, so that no state of a generator has to be kept meanwhile: this would take longer
        # than some data sets. More than two are not held.
        fetched = deque([next(batches) for _ in passes[:2]])
        seed_generators(seed)
        self.optimizer.zero_grad(set_to_none=True)
        # A copy, as a loss may be a tensor that the optimizer changes; each costs as much as some of a small model's
        # operations.
        copied = len(passes) > 1 or self._loss_is_read
        local_loss: Tensor | None = None
        for index, batch in enumerate(passes):
            inputs, targets = fetched.popleft()
            strategy.before_pass(step, last=index == len(passes) - 1)
            # Or an eval() of the user's step, to measure something, would hold for all later steps.
            modes = nullcontext() if settings.step is None else whole_mode_kept(settings.model)
            with autocast(settings.device, settings.precision), modes:
                value = forward.training_loss(settings.model, inputs, targets)
            weight = batch.weight / len(passes)
            if weight != 1:  # each operation on a tensor takes as long as some of a small model's own
                value = value * weight
            torch.autograd.backward(value)
            part = value.detach()
            if copied or part.device != settings.device:
                part = part.to(settings.device, torch.float64, copy=True)
            local_loss = part if local_loss is None else local_loss + part
            del inputs, targets, value
            if index + 2 < len(passes):
                with generators_kept() if self.fetching_draws else nullcontext():
                    fetched.append(next(batches))
        assert local_loss is not None
        self.loss_sums.add_(local_loss)
        strategy.reduce_gradients(step)
        taken: StepMetrics = {"loss": local_loss, **self._clip()}
        self.thawing.check_step()
        self.optimizer.step()
        strategy.after_step(step, local_loss)
        if self.average is not None:
            self.average.update()
        return taken

    @property
    def _loss_is_read(self) -> bool:
        """Whether a step's loss is read after the optimizer's step."""
        return self.settings.on_step is not None or type(self.strategy).after_step is not Strategy.after_step

    def _clip(self) -> StepMetrics:
        settings = self.settings
        if settings.clip_norm is None and settings.clip_value is None:
            return {}
        trained = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        for parameter in trained:
            refuse_sparse(parameter.grad)
        if settings.clip_norm is not None:
            return {"gradient_norm": self.strategy.clip(trained, settings.clip_norm)}
        assert settings.clip_value is not None
        nn.utils.clip_grad_value_(trained, settings.clip_value)
        return {}


@dataclass
class LearningRates:
    """Learning rates of an optimizer's groups by a schedule and a method, set where they change."""

    optimizer: Optimizer
    schedule: Schedule
    strategy: Strategy
    length: Length
    position: Position

    def __post_init__(self) -> None:
        self._tensors: dict[int, tuple[Tensor, int, float]] = {}
        """Rates that are tensors as they were set last, by number of the group, with version and value."""

    def set(self, step: int) -> float:
        """Set the rate of each group; returns the first, as reading it from a tensor would have the host wait for a
        GPU.
        """
        rates = []
        for index, group in enumerate(self.optimizer.param_groups):
            if "initial_lr" not in group:  # added in mid-run
                group["initial_lr"] = float(group["lr"])
            scheduled = self.schedule.rate(
                group["initial_lr"],
                epoch=step / self.length.steps_per_epoch,
                epochs=self.length.epochs,
                history=self.position.history,
            )
            rate = float(self.strategy.learning_rate(step, scheduled))
            rates.append(rate)
            lr, last = group["lr"], self._tensors.get(index)
            if not isinstance(lr, Tensor):
                group["lr"] = rate
            # An operation on a GPU only where the schedule, or the user, has changed the rate.
            elif last is None or last[0] is not lr or last[1:] != (lr._version, rate):
                set_rate(group, rate)
                self._tensors[index] = lr, lr._version, rate
        return rates[0]


def set_rate(group: dict[str, Any], rate: float | Tensor) -> None:
    """Set the learning rate of a parameter group, without waiting for a GPU where it is a tensor."""
    kept = group["lr"]
    if isinstance(kept, Tensor):
        kept.copy_(rate) if isinstance(rate, Tensor) else kept.fill_(rate)
    else:
        group["lr"] = rate
