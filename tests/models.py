"""Networks, data, optimizers and a run that the tests of several training methods share.

In double precision, where only roundings may differ, but for ``labelled`` and ``noisy_model``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.utils.data import TensorDataset

import trainers
from trainers.communication.communicator import Communicator
from trainers.methods.strategy import Method

STEPS_PER_EPOCH = 11
EPOCHS = 2


def data(samples: int) -> TensorDataset:
    """Six numbers and the sine of their sum."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(samples, 6, dtype=torch.float64, generator=generator)
    return TensorDataset(x, torch.sin(x.sum(1, keepdim=True)))


def labelled(samples: int = 40) -> TensorDataset:
    """Six numbers of single precision, in two classes."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(samples, 6, generator=generator)
    return TensorDataset(x, (x[:, :2].sum(1) > 0).long())


def network(*widths: int) -> nn.Module:
    """Linear layers of these widths, with tanh between layers."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.Tanh()]
    return nn.Sequential(*layers[:-1]).double()


def noisy_model(*widths: int) -> nn.Module:
    """Perceptron of these widths, by default for ``labelled``, with batch norm and dropout after the first layer."""
    torch.manual_seed(0)
    (first, hidden), *others = pairwise(widths or (6, 16, 16, 2))
    layers: list[nn.Module] = [nn.Linear(first, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Dropout(0.3)]
    for before, after in others:
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def small_data() -> TensorDataset:
    """Ten samples of three numbers."""
    torch.manual_seed(1)
    return TensorDataset(torch.randn(10, 3), torch.randn(10, 1))


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.2), nn.Linear(4, 1))


def train_small(net: nn.Module, **changed: Any) -> trainers.Result:
    """Five steps an epoch, two epochs unless ``steps`` or ``epochs`` say otherwise, and ``small_data`` to validate."""
    settings: dict[str, Any] = {
        "loss": mse_loss,
        "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.5),
        "batch_size": 2,
        "epochs": None if "steps" in changed else 2,
    }
    return trainers.train(net, small_data(), small_data(), **{**settings, **changed})


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01)


def train(net: nn.Module, method: Method, *, ranks: int, per_node: int, **changed: Any) -> trainers.Result:
    """Eleven steps an epoch, of two samples a rank."""
    settings: dict[str, Any] = {
        "loss": mse_loss,
        "optimizer": sgd,
        "epochs": EPOCHS,
        "batch_size": 2,
        "topology": trainers.Topology(ranks_per_node=per_node),
    }
    return trainers.train(net, data(STEPS_PER_EPOCH * 2 * ranks), method=method, **{**settings, **changed})


def trained(
    rank: int, make: Callable[[], nn.Module], per_node: int, methods: list[Method], optimizer: Any = sgd
) -> list[Tensor]:
    """The parameters that each method leaves."""
    found = []
    for method in methods:
        net = make()
        train(net, method, ranks=dist.get_world_size(), per_node=per_node, optimizer=optimizer)
        found.append(flat(net))
    return found


def alone(make: Callable[[], nn.Module], ranks: int) -> Tensor:
    """The parameters that one rank with the batches of all leaves."""
    net = make()
    train(net, trainers.DDP(), ranks=ranks, per_node=1, batch_size=2 * ranks)
    return flat(net)


class Workers:
    """Ranks one after the other in one process: a model and an optimizer each, with data and batches of ``train``."""

    def __init__(self, make: Callable[[], nn.Module], ranks: int, optimizer: Any = sgd) -> None:
        self.nets = [make() for _ in range(ranks)]
        self._optimizers = [optimizer(net.parameters()) for net in self.nets]
        self._data = data(STEPS_PER_EPOCH * 2 * ranks)

    def parts(self, size: int) -> list[list[nn.Module]]:
        """Models of groups of ``size`` consecutive ranks."""
        return [self.nets[first : first + size] for first in range(0, len(self.nets), size)]

    def step(self, step: int, joint: int) -> None:
        """A step of each rank, with the mean gradient of parts of ``joint`` ranks."""
        epoch, of_epoch = divmod(step, STEPS_PER_EPOCH)
        dealt = {"samples": len(self._data), "epoch": epoch, "seed": 0, "batch_size": 2, "accumulate": 1}
        for rank, net in enumerate(self.nets):
            (batch,) = trainers.Disjoint().epoch(rank=rank, ranks=len(self.nets), **dealt)[of_epoch]
            x, y = self._data[batch.indices]
            net.zero_grad()
            (mse_loss(net(x), y) * batch.weight).backward()
        for part in self.parts(joint):
            for gradients in zip(*([p.grad for p in net.parameters()] for net in part), strict=True):
                mean = sum(gradients) / joint
                for gradient in gradients:
                    gradient.copy_(mean)
        for own in self._optimizers:
            own.step()


def fill(nets: Iterable[nn.Module], weights: Tensor) -> None:
    for net in nets:
        nn.utils.vector_to_parameters(weights.clone(), net.parameters())


def assert_same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def communicator(
    per_node: int | None = None, *, timeout_s: float = 30, among: dist.ProcessGroup | None = None
) -> Communicator:
    return Communicator(
        topology=trainers.Topology(ranks_per_node=per_node),
        timeout=timedelta(seconds=timeout_s),
        device=torch.device("cpu"),
        among=among,
    )


def setup_of(net: nn.Module, ranks: Communicator, **changed: Any) -> trainers.Setup:
    settings: dict[str, Any] = {"epochs": 1, "steps_per_epoch": 1000, "batch_size": 1, "seed": 0}
    optimizer = None if "optimizer" in changed else sgd(net.parameters())
    return trainers.Setup(model=net, communicator=ranks, **{"optimizer": optimizer, **settings, **changed})


def assert_same_bits(found: Iterable[list[Tensor]]) -> None:
    """Tensors of all ranks are those of the first rank."""
    first, *others = found
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def flat(net: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in net.parameters()])
