"""DiLoCo by torchft 0.2.0, the reference for outer optimizers: two threads with a stand-in for its manager.

python tests/diloco.py tests/golden     # where torchft is installed
"""

from __future__ import annotations

import json
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

STEPS, EVERY, DELAYS = 33, 4, (0, 1, 2)
RECORDED = {"diloco.json": 1, "diloco_fragments.json": 2}
"""Files with values by delay, and the number of fragments, of which one is exchanged every ``EVERY`` steps."""
outer = partial(torch.optim.SGD, lr=0.7, momentum=0.9, nesterov=True)


def model_and_optimizer() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Tanh(), nn.Linear(2, 2, bias=False))
    with torch.no_grad():
        for sign, layer in ((1, model[0]), (-1, model[2])):
            layer.weight.copy_(torch.tensor([[0.5, -0.25], [0.125, 0.75]]) * sign)
    return model, torch.optim.AdamW(model.parameters(), lr=0.05)


def batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
    first = 4 * (2 * step + rank)
    x = torch.sin(torch.arange(first, first + 4, dtype=torch.float32) * 1.7).view(2, 2)
    return x, torch.stack([x[:, 0] * x[:, 1], x[:, 0] - x[:, 1]], 1)


def weights(model: nn.Module) -> list[float]:
    return [number for p in model.parameters() for number in p.detach().flatten().tolist()]


class _Average:
    """Work that averages a tensor of both replicas when both wait for it."""

    def __init__(
        self, tensor: Tensor, number: int, sent: list[list[Tensor]], barrier: threading.Barrier
    ) -> None:
        self._tensor, self._number, self._sent, self._barrier = tensor, number, sent, barrier

    def wait(self) -> None:
        self._barrier.wait(30)
        mean = (self._sent[0][self._number] + self._sent[1][self._number]) / 2
        self._barrier.wait(30)
        self._tensor.copy_(mean)


class _Manager:
    """Stand-in for the manager of torchft that DiLoCo calls, whose server needs a network."""

    _use_async_quorum = False

    def __init__(self, mine: list[Tensor], sent: list[list[Tensor]], barrier: threading.Barrier) -> None:
        self._mine, self._sent, self._barrier = mine, sent, barrier
        self._step = 0

    def __getattr__(self, name: str) -> Any:  # start_quorum, allow_state_dict_read, …
        return lambda *arguments: None

    def current_step(self) -> int:
        return self._step

    def should_commit(self) -> bool:
        self._step += 1
        return True

    def allreduce(self, tensor: Tensor, should_quantize: bool = False) -> _Average:
        self._mine.append(tensor.clone())
        return _Average(tensor, len(self._mine) - 1, self._sent, self._barrier)


def by_torchft(delay: int, fragments: int = 1) -> list[list[float]]:
    """Weights of a replica after each step, merged by Eq. 3.2's weights; torchft sends ``delay`` steps later."""
    from torchft.local_sgd import DiLoCo

    sent: list[list[Tensor]] = [[], []]
    barrier = threading.Barrier(2)
    found: list[list[list[float]]] = [[], []]

    def train(rank: int) -> None:
        model, inner = model_and_optimizer()
        manager = _Manager(sent[rank], sent, barrier)
        alpha = 2 * delay / (2 * delay + 2)
        keywords = {"fragment_sync_delay": delay, "fragment_update_alpha": alpha, "pin_memory": False}
        parts = [model] if fragments == 1 else [model[0], model[2]]
        outers = [outer(part.parameters()) for part in parts]
        with DiLoCo(manager, parts, inner, outers, EVERY * fragments, **keywords) as diloco:
            diloco._local_step = -delay
            for step in range(STEPS):
                x, y = batch(step, rank)
                inner.zero_grad()
                nn.functional.mse_loss(model(x), y).backward()
                inner.step()
                found[rank].append(weights(model))

    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found[0]


if __name__ == "__main__":
    for name, fragments in RECORDED.items():
        values = {str(delay): by_torchft(delay, fragments) for delay in DELAYS}
        (Path(sys.argv[1]) / name).write_text(json.dumps(values) + "\n")
