"""What the benchmarks of training methods share: a model, data that cost nothing, a watch on the steps."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import nn
from torch.utils.data import TensorDataset
from two_nodes import RANKS, RANKS_PER_NODE, bytes_sent

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

    def __call__(self) -> bool:
        self.begun.append(time.perf_counter())
        self.sent.append(self._count())
        return False

    def step_s(self, first: int, last: int) -> float:
        """Mean seconds of the steps from ``first`` up to, not including, ``last``."""
        return (self.begun[last] - self.begun[first]) / (last - first)

    def step_bytes(self, first: int, last: int) -> float:
        """Mean bytes sent by this node in these steps."""
        return (self.sent[last] - self.sent[first]) / (last - first)


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
) -> tuple[Watch, trainers.Result]:
    """One epoch of ``steps`` with ``method`` on four ranks of two nodes, watched."""
    watch = Watch()
    result = trainers.train(
        perceptron(widths),
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
