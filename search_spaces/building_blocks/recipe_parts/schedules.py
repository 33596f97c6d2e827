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
    """timm's CosineLRScheduler with its default ``warmup_prefix=False``: the cosine counts from the start of the run,
    and the rate jumps to it at the end of the warm-up. timm sets the rate in each epoch, this schedule in each step.
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
    """Schedule "type1" of Autoformer's authors (adjust_learning_rate in github.com/thuml/Autoformer): lr / 2^(e-1) in
    epoch e, counted from 0, and lr in epoch 0, as the authors set it after each epoch.
    """

    def decayed(self, lr: float, *, epoch: float, epochs: float, history: History) -> float:
        return lr * 0.5 ** max(0, math.floor(epoch) - 1)


def searched_cosine(
    form: CosineForm,
    p: Mapping[str, float],
    *,
    width: tuple[float, float] = (1, 1),
    length: tuple[float, float] = (1, 1),
) -> tuple[float, trainers.Cosine]:
    """The rate and the cosine of the parameters ``p``, for a network of this ``width`` and a run of this ``length``,
    each beside that of the source.
    """
    # Adam's best rate is inversely proportional to the width (Yang et al. 2022, arXiv 2203.03466, Table 3).
    # Products come first: checkpoints of earlier versions compare schedules to the last digit.
    made = cosine(
        form,
        warmup_epochs=p["warmup_epochs"] * length[0] / length[1],
        warmup_lr=p["warmup_lr"] * width[1] / width[0],
        min_lr=p["min_lr"] * width[1] / width[0],
        k_decay=p["k_decay"],
    )
    return p["lr"] * width[1] / width[0], made
