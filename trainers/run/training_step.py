"""One optimizer step: the passes forward and backward, the method's exchange, clipping, the update."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainers.communication.averager import refuse_sparse
from trainers.data.batches import Batch
from trainers.methods.strategy import Strategy
from trainers.modes import whole_mode_kept
from trainers.optim.moving_average import MovingAverage
from trainers.precision import autocast
from trainers.run.result import StepMetrics
from trainers.run.settings import Settings
from trainers.run.thawing import Thawing


class TrainingStep:
    """Takes the optimizer steps of one run on one rank; the model is in training."""

    def __init__(
        self,
        settings: Settings,
        optimizer: Optimizer,
        strategy: Strategy,
        average: MovingAverage | None,
        thawing: Thawing,
    ) -> None:
        self._settings = settings
        self._forward = settings.forward
        self._optimizer = optimizer
        self._strategy = strategy
        self._average = average
        self._thawing = thawing

    def take(
        self, step: int, passes: Sequence[Batch], batches: Iterator[tuple[object, object]], *, rate: float
    ) -> StepMetrics:
        """Take ``step``, counted from the run's begin, with as many of ``batches`` as there are ``passes``. ``rate``:
        the optimizer's, of its first group.
        """
        settings, strategy = self._settings, self._strategy
        self._optimizer.zero_grad(set_to_none=True)
        local_loss: Tensor | None = None
        for index, batch in enumerate(passes):
            inputs, targets = next(batches)
            strategy.before_pass(step, last=index == len(passes) - 1)
            # Or an eval() of the user's step, to measure something, would hold for all later steps.
            modes = nullcontext() if settings.step is None else whole_mode_kept(settings.model)
            with autocast(settings.device, settings.precision), modes:
                value = self._forward.training_loss(settings.model, inputs, targets)
            weight = batch.weight / len(passes)
            if weight != 1:  # each operation on a tensor takes as long as some of a small model's own
                value = value * weight
            torch.autograd.backward(value)
            # A copy, as the loss may be a tensor that the optimizer changes.
            part = value.detach().to(settings.device, torch.float64, copy=True)
            local_loss = part if local_loss is None else local_loss + part
        assert local_loss is not None
        strategy.reduce_gradients(step)
        taken: StepMetrics = {"loss": local_loss, "lr": rate}
        trained = []
        if settings.clip_norm is not None or settings.clip_value is not None:
            trained = self._trained()
            for parameter in trained:
                refuse_sparse(parameter.grad)
        if settings.clip_value is not None:
            nn.utils.clip_grad_value_(trained, settings.clip_value)
        elif settings.clip_norm is not None:
            taken["gradient_norm"] = nn.utils.clip_grad_norm_(trained, settings.clip_norm).detach()
        self._thawing.check_step()
        self._optimizer.step()
        strategy.after_step(step, local_loss)
        if self._average is not None:
            self._average.update()
        return taken

    def _trained(self) -> list[nn.Parameter]:
        return [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
