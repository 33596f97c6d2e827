"""What the tests of all methods need to compare a run in a piece with one that was interrupted."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import trainers


class After:
    """True from the given call on."""

    def __init__(self, calls: int) -> None:
        self.left = calls

    def __call__(self) -> bool:
        self.left -= 1
        return self.left < 0


def without_times(result: trainers.Result) -> list[dict[str, float]]:
    return [{name: v for name, v in entry.items() if not name.endswith("_s")} for entry in result.history]


def state_of(net: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in net.state_dict().items()}


def assert_identical(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name
