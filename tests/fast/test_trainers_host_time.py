"""The host's part of small steps: what is seeded, planned, held and set, and no more than that."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset, Subset, TensorDataset

import trainers
from trainers.data import loader, ring
from trainers.data.batches import Batch, Disjoint, Plan, in_order
from trainers.randomness import derive

DATA = TensorDataset(torch.randn(48, 3, generator=torch.Generator().manual_seed(0)), torch.arange(48) % 2)


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.moved(self.layer(inputs.float()))

    def moved(self, outputs: Tensor) -> Tensor:
        return outputs


class DrawsNumpy(Plain):
    def moved(self, outputs: Tensor) -> Tensor:
        return outputs * np.random.rand()


def train(model: nn.Module, data: Any = DATA, **given: Any) -> trainers.Result:
    settings = {
        "loss": nn.functional.cross_entropy,
        "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        "epochs": 2,
        "batch_size": 8,
        "progress": False,
        **given,
    }
    return trainers.train(model, data, **settings)


class Reads:
    """Data set that draws, and knows which of its batches are alive."""

    def __init__(self) -> None:
        self.alive: weakref.WeakSet[Tensor] = weakref.WeakSet()

    def __len__(self) -> int:
        return 48

    def read_batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        inputs = torch.full((len(indices), 3), random.random() + np.random.rand()) + torch.rand(3)
        self.alive.add(inputs)
        return inputs, indices % 2


@pytest.mark.parametrize("accumulate", [1, 2, 4])
@pytest.mark.parametrize("kind", [Plain, DrawsNumpy])
def test_each_step_and_evaluation_draws_from_its_own_seed(kind: type[Plain], accumulate: int) -> None:
    seen: list[float] = []

    class Watched(kind):  # type: ignore[valid-type, misc]
        def forward(self, inputs: Tensor) -> Tensor:
            if self.training:
                seen.append(float(torch.rand(())))
            return super().forward(inputs)

    def noise(outputs: Tensor, targets: Tensor) -> float:
        return float(np.random.rand() + random.random())

    result = train(
        Watched(), Reads(), accumulate=accumulate, seed=3, validation_set=DATA, metrics={"noise": noise}
    )
    steps = 2 * -(-48 // (8 * accumulate))
    expected = []
    for step in range(steps):
        generator = torch.Generator().manual_seed(derive(3, "step", step, 0))
        expected += [float(torch.rand((), generator=generator)) for _ in range(accumulate)]
    assert seen == expected
    last = derive(3, "step", steps - 1, 0)
    own = np.random.RandomState(last % 2**32)
    # The last step's own draws, and those of the evaluation's forward passes, came before.
    before = accumulate + 6 if kind is DrawsNumpy else 0
    *_, drawn = own.rand(before + 1)
    assert result.metrics["noise"] == drawn + random.Random(last).random()


class Counted(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([DATA[number] for number in range(16)])


def test_evaluating_a_stream_leaves_what_the_user_draws() -> None:
    drawn: list[list[float]] = [[], []]
    for numbers, data in zip(drawn, (DATA, trainers.Stream(Counted(), length=16)), strict=True):
        train(Plain(), validation_set=data, report=lambda *_, to=numbers: to.append(random.random()))
    assert drawn[0] == drawn[1] and len({*drawn[0]}) == 2


def test_no_more_than_two_batches_of_a_step_are_held() -> None:
    data, most = Reads(), 0

    def watch(model: nn.Module, inputs: Any) -> None:
        nonlocal most
        most = max(most, len(data.alive))

    model = Plain()
    model.register_forward_pre_hook(watch)
    train(model, data, accumulate=6, epochs=1)
    assert most == 2


def test_a_plan_makes_the_steps_that_are_read_and_none_twice() -> None:
    made: list[int] = []

    def of_step(step: int) -> list[Batch]:
        made.append(step)
        return [Batch(indices=torch.tensor([step % 48]), weight=1.0, seed=0)]

    class Dealt(Disjoint):
        def epoch(self, **sizes: int) -> Any:
            return Plan(10**9 if sizes["epoch"] == 0 else 0, of_step)

    train(Plain(), epochs=None, steps=100, assignment=Dealt(), evaluate_every=100)
    assert made == list(range(100))
    plan = Plan(3, of_step)
    assert len(plan) == 3 and [batches[0].indices.item() for batches in plan] == [0, 1, 2]
    assert plan[-1][0].indices.item() == 2 and len(plan[1:]) == 2
    with pytest.raises(IndexError):
        plan[3]


class FakeStream:
    """Stream of a GPU that does its work only when the host waits for it."""

    def __init__(self, device: object = None) -> None:
        self.queue: list[Callable[[], object]] = []
        self.done = 0

    def add(self, work: Callable[[], object]) -> None:
        self.queue.append(work)

    def record_event(self) -> FakeEvent:
        return FakeEvent(self, len(self.queue))

    def wait_event(self, event: FakeEvent) -> None:
        self.add(event.synchronize)

    def wait_stream(self, other: FakeStream) -> None:
        self.wait_event(other.record_event())


@dataclass
class FakeEvent:
    stream: FakeStream
    after: int

    def synchronize(self) -> None:
        while self.stream.done < self.after:
            self.stream.done += 1
            self.stream.queue[self.stream.done - 1]()


def test_a_ring_bounds_the_batches_in_flight_and_spoils_none(monkeypatch: pytest.MonkeyPatch) -> None:
    computing, made = FakeStream(), list[FakeStream]()

    def stream(device: object) -> FakeStream:
        made.append(FakeStream())
        return made[-1]

    def moved(value: Any, device: object) -> Tensor:
        into = torch.full_like(value, -1)
        made[0].add(lambda: into.copy_(value))
        return into

    gpu = SimpleNamespace(Stream=stream, current_stream=lambda device: computing, stream=nullcontext)
    for module in (loader, ring):
        monkeypatch.setattr(module, "module_of", lambda device: gpu)
    monkeypatch.setattr(loader, "is_gpu", lambda device: device.type == "meta")
    monkeypatch.setattr(loader, "moved", moved)
    monkeypatch.setattr(ring, "_page_locked", lambda shape, dtype: torch.empty(shape, dtype=dtype))
    found: list[list[int]] = []
    data = TensorDataset(torch.arange(40), torch.arange(40))
    with loader.Loader(Subset(data, range(39, -1, -1)), device=torch.device("meta"), processes=0) as loading:
        for number, (inputs, targets) in enumerate(loading.batches(in_order(range(40), batch_size=3))):
            # The batches before are in use until the step's work is done.
            assert number - len(found) < ring.IN_FLIGHT
            computing.add(
                partial(lambda *batch: found.append([part.tolist() for part in batch]), inputs, targets)
            )
    computing.record_event().synchronize()
    rows = [[*range(first, max(first - 3, -1), -1)] for first in range(39, -1, -3)]
    assert found == [[row, row] for row in rows]


class Falls(trainers.Constant):
    def decayed(self, lr: float, *, epoch: float, epochs: float, history: Sequence[Any]) -> float:
        return lr if epoch < 1 else lr / 2


def test_a_rate_that_is_a_tensor_is_set_where_it_changes() -> None:
    rate = torch.tensor(0.25)
    changes: list[tuple[int, float]] = []

    def watch(step: int, values: object) -> None:
        changes.append((rate._version, float(rate)))
        if step == 8:
            rate.fill_(1.0)  # the schedule's is set again

    train(
        Plain(),
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=rate, foreach=False, capturable=False),
        schedule=Falls(),
        on_step=watch,
    )
    first = changes[0][0]
    assert [version - first for version, _ in changes] == [0] * 6 + [1, 1] + [3] * 4
    assert [value for _, value in changes] == [0.25] * 6 + [0.125] * 6
