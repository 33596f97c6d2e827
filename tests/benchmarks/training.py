"""What the benchmarks of training methods share: a model, data that cost nothing, a watch on the steps."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Sequence
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset
from two_nodes import RANKS, RANKS_PER_NODE, bytes_sent, settled

import trainers

CLASSES = 10


class Watch:
    """Given to ``train`` as ``interrupt``, which it calls before each step and which never asks for one."""

    def __init__(self, count: Callable[[], int] = bytes_sent) -> None:
        self._count = count
        self.begun: list[float] = []
        """Seconds at which each step began."""
        self.sent: list[int] = []
        """Bytes that the node had sent by then."""
        self._stood_s = 0.0
        """What the steps do not count, seconds."""

    def __call__(self) -> bool:
        self._before(len(self.begun))
        self.begun.append(time.perf_counter() - self._stood_s)
        self.sent.append(self._count())
        self._after(len(self.begun) - 1)
        return False

    def _before(self, step: int) -> None:
        """What comes before the readings of a step."""

    def _after(self, step: int) -> None:
        """What comes after them."""

    def step_s(self, first: int, last: int) -> float:
        """Mean seconds of the steps from ``first`` up to, not including, ``last``."""
        return (self.begun[last] - self.begun[first]) / (last - first)

    def step_bytes(self, first: int, last: int) -> float:
        """Mean bytes sent by this node in these steps."""
        return (self.sent[last] - self.sent[first]) / (last - first)


class Fenced(Watch):
    """Of some stretches of steps, what the node sends in them and nothing of what comes before or after: all ranks
    stand still at both ends, where the faster of two nodes may else be steps ahead of the other's receipts."""

    def __init__(self, stretches: Collection[range]) -> None:
        super().__init__()
        self._firsts = {stretch.start for stretch in stretches}
        self._stops = {stretch.stop for stretch in stretches}

    def _before(self, step: int) -> None:
        if step in self._firsts:
            begin = time.perf_counter()
            settled()
            self._stood_s += time.perf_counter() - begin

    def _after(self, step: int) -> None:
        if step in self._stops:
            begin = time.perf_counter()
            dist.barrier()
            self._stood_s += time.perf_counter() - begin


def perceptron(widths: Sequence[int]) -> nn.Sequential:
    """Linear layers of these widths with ReLU between them, the same weights at every call."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def noise(samples: int, features: int) -> TensorDataset:
    """Gaussian inputs with random classes."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(samples, features, generator=generator)
    return TensorDataset(inputs, torch.randint(CLASSES, (samples,), generator=generator))


def course(
    method: trainers.Method,
    *,
    widths: Sequence[int],
    steps: int,
    batch_size: int,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    lr: float = 0.01,
    watch: Watch | None = None,
    model: nn.Module | None = None,
) -> tuple[Watch, trainers.Result]:
    """One epoch of ``steps`` with ``method`` on four ranks of two nodes, watched; ``model`` None: a perceptron."""
    watch = watch or Watch()
    result = trainers.train(
        model or perceptron(widths),
        noise(steps * batch_size * RANKS, widths[0]),
        loss=nn.functional.cross_entropy,
        optimizer=lambda parameters: optimizer(parameters, lr=lr),
        method=method,
        epochs=1,
        batch_size=batch_size,
        topology=trainers.Topology(ranks_per_node=RANKS_PER_NODE),
        interrupt=watch,
        progress=False,
    )
    return watch, result


def load_average() -> list[float]:
    """Processes that wanted a core, over 1, 5 and 15 minutes: two are there, and others use them too."""
    return [round(value, 1) for value in os.getloadavg()]
