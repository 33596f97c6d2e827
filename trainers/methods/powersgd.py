"""PowerSGD: average of gradients as low-rank factors (Vogels, Karimireddy and Jaggi 2019, arXiv 1905.13727, algorithms
1 and 2).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from trainers.communication.averager import GradientAverager, gradient_of
from trainers.communication.buckets import average_summands
from trainers.communication.channel import Channel
from trainers.methods.strategy import State
from trainers.randomness import derive


class PowerSGDAverager(GradientAverager):
    """Averages gradients of matrices through factors P (m × r) and Q (n × r), with r the ``rank``, and others directly.

    A gradient of more than two dimensions is a matrix of its first dimension × all others. Factors are used only if
    (m + n) r < m n. Each rank adds the error of its factors to its next gradient. If gradients overflow, the averages
    are not finite either, and errors and factors stay unchanged, so that the step can be skipped.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], channel: Channel, *, rank: int, seed: int) -> None:
        self._matrices: list[nn.Parameter] = []
        others: list[nn.Parameter] = []
        for parameter in parameters:
            m, n = _shape(parameter)
            (self._matrices if (m + n) * rank < m * n else others).append(parameter)
        super().__init__(others, channel, keep_none=True)
        self._errors = [torch.zeros(_shape(p), dtype=p.dtype, device=p.device) for p in self._matrices]
        # Equal on all ranks, because the mean of P = M Q needs a common Q.
        generator = torch.Generator().manual_seed(derive(seed, "powersgd"))
        self._qs = [
            torch.randn(_shape(p)[1], rank, generator=generator, device="cpu").to(
                device=p.device, dtype=p.dtype
            )
            for p in self._matrices
        ]

    @torch.no_grad()
    def finish(self) -> None:
        self.send()
        gradients = [gradient_of(parameter) for parameter in self._matrices]
        corrected = [g.reshape(e.shape) + e for g, e in zip(gradients, self._errors, strict=True)]
        ps = [m @ q for m, q in zip(corrected, self._qs, strict=True)]
        average_summands(self._channel, ps)
        ps = _orthonormal(ps)
        qs = [m.mH @ p for m, p in zip(corrected, ps, strict=True)]
        average_summands(self._channel, qs)
        # Checked on the means, which are not finite if any rank's gradients are not, so that all ranks decide alike.
        # The host does not read the result, for which it would have to wait for the GPU.
        finite = torch.cat([q.flatten() for q in qs]).isfinite().all() if qs else torch.tensor(True)
        for i, gradient in enumerate(gradients):
            approximation = ps[i] @ qs[i].mH
            missed = corrected[i].sub_(approximation)
            torch.where(finite, missed, self._errors[i], out=self._errors[i])
            gradient.copy_(approximation.view(gradient.shape))
        self._qs = [torch.where(finite, q, kept) for q, kept in zip(qs, self._qs, strict=True)]
        super().finish()

    def state(self) -> State:
        return {"errors": self._errors, "qs": self._qs}

    def load(self, state: State) -> None:
        if not state:  # saved by a single rank, which sends nothing
            return
        if len(state["errors"]) != len(self._matrices):
            raise ValueError(
                "The saved state is of PowerSGD on another model. Start with an empty checkpoint directory."
            )
        self._errors = [
            saved.to(own.device, copy=True) for saved, own in zip(state["errors"], self._errors, strict=True)
        ]
        self._qs = [saved.to(own.device, copy=True) for saved, own in zip(state["qs"], self._qs, strict=True)]


def merged_states(states: Sequence[State]) -> State:
    """State for any number of ranks from the ``states`` of other ranks: each rank gets the mean of their errors."""
    # The averages of gradients depend only on the mean of the ranks' errors, which stays.
    if not states[0]:
        return {}
    errors = zip(*(state["errors"] for state in states), strict=True)
    return {"errors": [torch.stack(of_ranks).mean(0) for of_ranks in errors], "qs": states[0]["qs"]}


def _orthonormal(ps: list[Tensor]) -> list[Tensor]:
    """Orthonormal basis of the columns of each matrix, computed in single precision at least."""
    # Matrices of the same shape, type and device are decomposed in a single call, as models repeat their layers.
    alike: dict[object, list[int]] = defaultdict(list)
    for index, p in enumerate(ps):
        alike[p.shape, p.dtype, p.device].append(index)
    bases = list(ps)
    for indices in alike.values():
        stacked = torch.stack([ps[index] for index in indices])
        half = stacked.dtype in (torch.bfloat16, torch.float16)
        found: Tensor = torch.linalg.qr(stacked.float() if half else stacked).Q
        for index, basis in zip(indices, found.to(stacked.dtype).unbind(), strict=True):
            bases[index] = basis
    return bases


def _shape(parameter: Tensor) -> tuple[int, int]:
    # As a matrix of a single column, a vector is never worth factors.
    if parameter.dim() < 2 or parameter.numel() == 0:
        return parameter.numel(), 1
    return parameter.shape[0], parameter.numel() // parameter.shape[0]
