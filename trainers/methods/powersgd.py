"""PowerSGD: average of gradients as low-rank factors (Vogels, Karimireddy and Jaggi 2019, arXiv 1905.13727, algorithms
1 and 2).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from trainers.communication.averager import GradientAverager, gradient_of
from trainers.communication.buckets import average_summands
from trainers.communication.channel import Channel
from trainers.methods.strategy import State
from trainers.randomness import derive


class PowerSGDAverager:
    """Averages gradients of matrices through factors P (m × r) and Q (n × r), and other gradients directly.

    A gradient of more than two dimensions is a matrix of its first dimension × all others. Factors are used only if
    (m + n) r < m n. Each rank adds the error of its factors to its next gradient. If gradients overflow, the averages
    are not finite either, and errors and factors stay unchanged, so that the step can be skipped.

    Args:
        parameters (iterable): parameters whose gradients are averaged.
        channel (Channel): ranks to average over.
        rank (int): r, columns of the factors.
        seed (int): seed of the first factors.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], channel: Channel, *, rank: int, seed: int) -> None:
        self._channel = channel
        self._matrices: list[nn.Parameter] = []
        others: list[nn.Parameter] = []
        for parameter in parameters:
            m, n = _shape(parameter)
            (self._matrices if (m + n) * rank < m * n else others).append(parameter)
        self._others = GradientAverager(others, channel, keep_none=True)
        self._errors = [torch.zeros(_shape(p), dtype=p.dtype, device=p.device) for p in self._matrices]
        # Equal on all ranks, because the mean of P = M Q needs a common Q.
        generator = torch.Generator().manual_seed(derive(seed, "powersgd"))
        self._qs = [
            torch.randn(_shape(p)[1], rank, generator=generator, device="cpu").to(
                device=p.device, dtype=p.dtype
            )
            for p in self._matrices
        ]

    def arm(self) -> None:
        self._others.arm()

    @torch.no_grad()
    def finish(self) -> None:
        self._others.send()
        gradients = [gradient_of(parameter) for parameter in self._matrices]
        corrected = [g.reshape(e.shape) + e for g, e in zip(gradients, self._errors, strict=True)]
        ps = self._averaged([m @ q for m, q in zip(corrected, self._qs, strict=True)])
        ps = _orthonormal(ps)
        qs = self._averaged([m.mH @ p for m, p in zip(corrected, ps, strict=True)])
        # Checked on the means, which are not finite if any rank's gradients are not, so that all ranks decide alike.
        # The host does not read the result, for which it would have to wait for the GPU.
        finite = torch.cat([q.flatten() for q in qs]).isfinite().all() if qs else torch.tensor(True)
        for i, gradient in enumerate(gradients):
            approximation = ps[i] @ qs[i].mH
            missed = corrected[i].sub_(approximation)
            torch.where(finite, missed, self._errors[i], out=self._errors[i])
            gradient.copy_(approximation.view(gradient.shape))
        self._qs = [torch.where(finite, q, kept) for q, kept in zip(qs, self._qs, strict=True)]
        self._others.finish()

    def close(self) -> None:
        self._others.close()

    def state(self) -> State:
        return {"errors": self._errors, "qs": self._qs}

    def load(self, state: State) -> None:
        if not state:  # saved by a single rank, which sends nothing
            return
        errors, qs = state["errors"], state["qs"]
        if not isinstance(errors, list) or not isinstance(qs, list) or len(errors) != len(self._matrices):
            raise ValueError(
                "The saved state is of PowerSGD on another model. Start with an empty checkpoint directory."
            )
        self._errors = [
            saved.to(own.device, copy=True) for saved, own in zip(errors, self._errors, strict=True)
        ]
        self._qs = [saved.to(own.device, copy=True) for saved, own in zip(qs, self._qs, strict=True)]

    def _averaged(self, factors: list[Tensor]) -> list[Tensor]:
        average_summands(self._channel, factors)
        return factors


def merged_states(states: Sequence[State]) -> State:
    """State for any number of ranks from the ``states`` of other ranks: each rank gets the mean of their errors."""
    # The averages of gradients depend only on the mean of the ranks' errors, which stays.
    if not states[0]:
        return {}
    errors = [cast("list[Tensor]", state["errors"]) for state in states]
    return {
        "errors": [torch.stack(of_ranks).mean(0) for of_ranks in zip(*errors, strict=True)],
        "qs": states[0]["qs"],
    }


def _orthonormal(ps: list[Tensor]) -> list[Tensor]:
    """Orthonormal basis of the columns of each matrix, computed in single precision at least."""
    # Matrices of the same shape, type and device are decomposed in a single call, as models repeat their layers.
    alike: dict[tuple[torch.Size, torch.dtype, torch.device], list[int]] = {}
    for place, p in enumerate(ps):
        alike.setdefault((p.shape, p.dtype, p.device), []).append(place)
    bases = list(ps)
    for (_, dtype, _), places in alike.items():
        stacked = torch.stack([ps[place] for place in places])
        half = dtype in (torch.bfloat16, torch.float16)
        found: Tensor = torch.linalg.qr(stacked.float() if half else stacked).Q
        for place, basis in zip(places, found.to(dtype).unbind(), strict=True):
            bases[place] = basis
    return bases


def _shape(parameter: Tensor) -> tuple[int, int]:
    # As a matrix of a single column, a vector is never worth factors.
    if parameter.dim() < 2 or parameter.numel() == 0:
        return parameter.numel(), 1
    return parameter.shape[0], parameter.numel() // parameter.shape[0]
