"""Learning-rate schedules of publications that the trainers do not have. Importing this module imports torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import trainers
from search_spaces.options import CosineForm
from trainers.optim.schedules import History


@dataclass(frozen=True, kw_only=True)
class TimmCosine(trainers.Cosine):
    """timm's CosineLRScheduler with its default ``warmup_prefix=False``, in which t counts from the start of the run.

    At the end of the warm-up, the rate jumps to the value of the cosine. timm sets the rate once in an epoch, this
    schedule in each step.

    Args:
        the same as for ``trainers.Cosine``.
    """

    def rate(self, lr: float, *, epoch: float, epochs: float, history: History = ()) -> float:
        if epoch < self.warmup_epochs:
            return super().rate(lr, epoch=epoch, epochs=epochs, history=history)
        return self.decayed(lr, epoch=epoch, epochs=epochs, history=history)


def cosine(
    form: CosineForm,
    *,
    warmup_epochs: float,
    warmup_lr: float = 0.0,
    min_lr: float = 0.0,
    k_decay: float = 1.0,
) -> trainers.Cosine:
    """Cosine schedule in the given form, "timm" or that of the trainers."""
    made = TimmCosine if form == "timm" else trainers.Cosine
    return made(warmup_epochs=warmup_epochs, warmup_lr=warmup_lr, min_lr=min_lr, k_decay=k_decay)


@dataclass(frozen=True, kw_only=True)
class HalvedEachEpoch(trainers.Schedule):
    """Schedule "type1" of Autoformer's authors (adjust_learning_rate in github.com/thuml/Autoformer).

    The rate is lr / 2^(e-1) in epoch e, counted from 0, and lr in epoch 0: the authors set it after each epoch, with
    1 after the first epoch, which changes nothing.

    Args:
        the same as for ``trainers.Constant``.
    """

    def decayed(self, lr: float, *, epoch: float, epochs: float, history: History) -> float:
        return lr * 0.5 ** max(0, math.floor(epoch) - 1)


def at_width(width: int, rates: Mapping[str, float], *, source: int) -> dict[str, float]:
    """``lr``, ``min_lr`` and ``warmup_lr`` for a network of ``width``, from those for a network of width ``source``."""
    # Adam's best rate is inversely proportional to the width (Yang et al. 2022, arXiv 2203.03466, Table 3).
    return {name: rates[name] * source / width for name in ("lr", "min_lr", "warmup_lr")}
