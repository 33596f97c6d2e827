"""Settings that train otherwise than they read warn once, and right settings do not; optimizers in optimizers."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from resuming import After, assert_identical, assert_same_in_pieces, state_of
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.optim import SGD, AdamW, Optimizer
from torch.utils.data import Dataset, TensorDataset

import trainers

X = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
DATA = TensorDataset(X, X.sum(1, keepdim=True))


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))


def sgd(parameters: Any) -> Optimizer:
    return SGD(parameters, lr=0.01)


def train(net: nn.Module | None = None, **changed: Any) -> trainers.Result:
    settings: dict[str, Any] = {
        "train_set": DATA, "loss": mse_loss, "optimizer": sgd, "epochs": 2, "batch_size": 8, **changed
    }  # fmt: skip
    return trainers.train(net or model(), **settings)


def matrices(parameters: Any) -> Optimizer:
    return SGD([one for one in parameters if one.ndim == 2], lr=0.01)


class Noisy(Dataset[tuple[Tensor, Tensor]]):
    """Draws from its own generator, or from numpy's."""

    def __init__(self, *, draws: bool) -> None:
        self.generator: Any = np.random.default_rng(0) if draws else np.random

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return X[index] + self.generator.normal(), X[index, :1]


class Seeded(Noisy):
    def set_epoch(self, epoch: int) -> None:
        self.generator = np.random.default_rng(epoch)


class Slotted:
    __slots__ = ("generator",)

    def __init__(self) -> None:
        self.generator = np.random.default_rng(0)


OF_MODULE = np.random.default_rng(0)


class OfModule(Noisy):
    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return X[index] + OF_MODULE.normal(), X[index, :1]


class OfClass(Noisy):
    holds = Slotted()

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return X[index] + self.holds.generator.normal(), X[index, :1]


class Proxied(Noisy):
    """Holds a lazy proxy, whose class cannot be asked for."""

    class Proxy:
        @property
        def __class__(self) -> Any:
            raise RuntimeError("working outside of its context")

    proxy = Proxy()


HALF = TensorDataset(X.half(), X.half().sum(1, keepdim=True))


# From Python 3.12 on, loader processes warn where a library has left threads in this process.
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"checkpoint_every": 2}, "checkpoint_every 2"),
        ({"batch_size": 1000}, "batch_size 1000 32"),
        ({"batch_size": 1000, "accumulate": 4}, "batch_size 1000 32"),
        *(
            ({"train_set": kind(draws=True), "loader_processes": 2}, "train_set generator")
            for kind in (Noisy, OfClass, OfModule)
        ),
        ({"net": model().half(), "train_set": HALF}, "6 float16"),
        ({"optimizer": matrices}, "optimizer 3 0.bias 2.bias 4.bias"),
    ],
)
def test_a_trap_warns_once(settings: dict[str, Any], words: str) -> None:
    with pytest.warns(UserWarning) as caught:
        train(**settings)
    (trap,) = [str(warning.message) for warning in caught if warning.category is UserWarning]
    assert all(word in trap for word in words.split())


@pytest.mark.parametrize(
    "settings",
    [
        {"batch_size": 32},
        {"batch_size": 20},
        {"batch_size": 20, "accumulate": 4},
        {"train_set": Proxied(draws=False), "loader_processes": 2},
        {"precision": "bf16"},
        {"train_set": Noisy(draws=True)},
        {"train_set": Noisy(draws=False), "loader_processes": 2},
        {"train_set": Seeded(draws=True), "loader_processes": 2},
    ],
)
def test_what_is_right_does_not_warn(settings: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(**settings)


# Several optimizers


def muon_and_adamw(parameters: Any) -> list[Optimizer]:
    parameters = list(parameters)
    muon = getattr(torch.optim, "Muon", SGD)  # from torch 2.9 on
    return [
        muon([one for one in parameters if one.ndim == 2], lr=0.02),
        AdamW([one for one in parameters if one.ndim != 2], lr=0.003),
    ]


METHODS = [
    trainers.DDP(),
    trainers.DASO(),
    trainers.LocalSGD(),
    trainers.OIALR(delay=2, update_every=2),
    trainers.AB(groups=False),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_several_optimizers_train_all_by_every_method_and_resume(
    tmp_path: Path, method: trainers.Method
) -> None:
    began = state_of(model())
    settings: dict[str, Any] = {"optimizer": muon_and_adamw, "method": method, "epochs": 4}
    whole = assert_same_in_pieces(train, model, tmp_path, (3, 6), **settings)
    after = trainers.merged(whole).state_dict()
    assert all(not torch.equal(value, after[name]) for name, value in began.items())


def test_several_optimizers_equal_the_same_optimizer_of_all() -> None:
    ended = []
    for make in (
        lambda parameters: AdamW(parameters, lr=0.01),
        lambda parameters: [AdamW(half, lr=0.01) for half in (parameters[:2], parameters[2:])],
    ):
        net = model()
        train(net, optimizer=make, schedule=trainers.Cosine())
        ended.append(state_of(net))
    assert_identical(*ended)


class Holding(Optimizer):
    """Two in one, made by hand, with lists of its own."""

    def __init__(self, parameters: Any) -> None:
        self.parts = muon_and_adamw(parameters)
        super().__init__([group for part in self.parts for group in part.param_groups], {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for part in self.parts:
            part.step()


class Copying(Holding):
    """The same, with parameter groups of its own."""

    def __init__(self, parameters: Any) -> None:
        self.parts = muon_and_adamw(parameters)
        Optimizer.__init__(self, [dict(group) for part in self.parts for group in part.param_groups], {})


class Delegating(Optimizer):
    """Around one other, which it saves and loads."""

    def __init__(self, parameters: Any) -> None:
        self.inner = AdamW(parameters, lr=0.003)
        Optimizer.__init__(self, self.inner.param_groups, {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.inner.step()

    def state_dict(self) -> Any:
        return self.inner.state_dict()

    def load_state_dict(self, state_dict: Any) -> None:
        self.inner.load_state_dict(state_dict)
        self.param_groups = self.inner.param_groups


COSINE, FACTORS = trainers.Cosine(), trainers.OIALR(delay=2, update_every=2)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        *((kind, {"method": FACTORS}) for kind in (Holding, Copying, Delegating)),
        *((kind, {"checkpoint": True}) for kind in (Holding, Copying)),
        (Copying, {"schedule": COSINE}),
    ],
)
def test_what_does_not_reach_an_optimizer_in_another_is_refused(
    tmp_path: Path, kind: Any, settings: dict[str, Any]
) -> None:
    if "checkpoint" in settings:
        settings = {"checkpoint": tmp_path}
    with pytest.raises(ValueError, match=f"^optimizer: {kind.__name__} holds"):
        train(optimizer=kind, **settings)


def test_a_wrapped_optimizer_in_another_is_refused_where_it_is_not_reached() -> None:
    net = model()
    optimizer = Holding(net.parameters())
    with pytest.raises(ValueError, match=r"^optimizer: Holding holds"):
        trainers.wrap(net, optimizer, epochs=1, steps_per_epoch=9, method=FACTORS)
    with (
        trainers.wrap(net, optimizer, epochs=1, steps_per_epoch=9) as run,
        pytest.raises(ValueError, match=r"^optimizer: Holding holds"),
    ):
        run.state_dict()


@pytest.mark.parametrize(
    ("kind", "same", "settings"),
    [
        (Copying, muon_and_adamw, {}),
        (Holding, muon_and_adamw, {"schedule": COSINE}),
        (
            Delegating,
            lambda parameters: AdamW(parameters, lr=0.003),
            {"schedule": COSINE, "checkpoint": True},
        ),
    ],
)
def test_what_reaches_an_optimizer_in_another_works(
    tmp_path: Path, kind: Any, same: Any, settings: dict[str, Any]
) -> None:
    wanted, net, schedule = model(), model(), settings.get("schedule")
    train(wanted, optimizer=same, schedule=schedule)
    if "checkpoint" in settings:
        settings = {**settings, "checkpoint": tmp_path}
        with pytest.raises(trainers.Interrupted):
            train(optimizer=kind, interrupt=After(5), **settings)
    train(net, optimizer=kind, **settings)
    assert_identical(state_of(net), state_of(wanted))


def test_a_parameter_of_two_optimizers_is_refused() -> None:
    parts: list[Optimizer] = []

    def two(parameters: Any) -> list[Optimizer]:
        parts[:] = sgd(parameters[:2]), sgd(parameters[2:])
        return parts

    with pytest.raises(ValueError, match=r"shape \(32, 8\)"):
        train(optimizer=lambda parameters: [sgd(parameters), sgd(parameters)])
    with pytest.raises(ValueError, match=r"shape \(1,\)"):
        train(
            optimizer=two,
            report=lambda *_: parts[0].add_param_group({"params": parts[1].param_groups[0]["params"][-1:]}),
        )


# Metrics that are not numbers


@pytest.mark.parametrize(
    ("numbers_from", "beside", "stopped_by", "reason", "warns"),
    [
        (99, False, None, "diverged", True),
        (99, True, "mine", "diverged", True),
        (99, True, None, "finished", True),
        (3, False, "mine", "finished", False),
    ],
)
def test_metrics_that_are_never_numbers_end_the_run_if_they_count(
    numbers_from: int, beside: bool, stopped_by: str | None, reason: str, warns: bool
) -> None:
    calls: list[int] = []

    def mine(outputs: Tensor, targets: Tensor) -> float:
        calls.append(0)
        return math.nan if len(calls) < numbers_from else float(len(calls))

    metrics: dict[str, Any] = {"mine": mine, **({"mse": mse_loss} if beside else {})}
    stopping = None if stopped_by is None else trainers.EarlyStopping(metric=stopped_by, direction="maximize")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = train(validation_set=DATA, metrics=metrics, early_stopping=stopping, epochs=30)
    assert (result.reason, len(result.history)) == (reason, 3 if reason == "diverged" else 30)
    assert ["mine was NaN" in str(warning.message) for warning in caught] == [True] * warns
