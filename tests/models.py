"""Networks, data, optimizers and a run that the tests of several training methods share.

In double precision, where only roundings may differ, but for ``labelled`` and ``noisy_model``.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.utils.data import TensorDataset

import trainers
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


def noisy_model() -> nn.Module:
    """For ``labelled``: with statistics and dropout."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 2))


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


def flat(net: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in net.parameters()])
