"""Learning-rate schedules of the sources that the trainers do not have. Importing this module imports torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import trainers
from search_spaces.options import CosineForm
from trainers.optim.schedules import History


@dataclass(frozen=True, kw_only=True)
class TimmCosine(trainers.Cosine):
    """timm's CosineLRScheduler with its default ``warmup_prefix=False``: t counts from the start, so that the rate
    falls, or rises, at once when the warm-up ends, to where the cosine is by then. timm sets the rate once an epoch,
    here it is set in each step.

    Args:
        as of ``trainers.Cosine``.
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
    """The cosine of this form."""
    made = TimmCosine if form == "timm" else trainers.Cosine
    return made(warmup_epochs=warmup_epochs, warmup_lr=warmup_lr, min_lr=min_lr, k_decay=k_decay)


@dataclass(frozen=True, kw_only=True)
class HalvedEachEpoch(trainers.Schedule):
    """The schedule "type1" of Autoformer's authors (adjust_learning_rate in github.com/thuml/Autoformer): lr / 2^(e-1)
    in epoch e, from 0, and lr in the first: they call it with 1 after the first epoch, which halves nothing.

    Args:
        as of ``trainers.Constant``.
    """

    def decayed(self, lr: float, *, epoch: float, epochs: float, history: History) -> float:
        return lr * 0.5 ** max(0, math.floor(epoch) - 1)


def at_width(width: int, rates: Mapping[str, float], *, source: int) -> dict[str, float]:
    """``lr``, ``min_lr`` and ``warmup_lr`` of a search on a network of the width ``source``, for one of another width:
    Adam's best rate is inversely proportional to it (Yang et al. 2022, arXiv 2203.03466, Table 3).
    """
    return {name: rates[name] * source / width for name in ("lr", "min_lr", "warmup_lr")}
