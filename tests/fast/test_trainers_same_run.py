"""A checkpoint goes on with the run that wrote it, and refuses another one by name, whether it is finished or not."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cases import combinations
from resuming import After, assert_identical, state_of, without_times
from torch import Tensor, nn
from torch.nn.functional import huber_loss, l1_loss, mse_loss
from torch.utils.data import Dataset, TensorDataset

import trainers

X = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
DATA = TensorDataset(X, X.sum(1, keepdim=True))
OTHER = TensorDataset(X, 100 + X[:, :1])


class Scaled:
    def __init__(self, factor: float) -> None:
        self.factor, self.calls = factor, 0

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.calls += 1
        return self.factor * mse_loss(outputs, targets)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self(outputs, targets)


class Over(nn.Module):
    """A loss made of others."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return mse_loss(outputs, targets)


def capturing(factor: float) -> Any:
    return lambda outputs, targets: factor * mse_loss(outputs, targets)


def mean(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).mean()


def step(model: nn.Module, batch: tuple[Any, Any]) -> dict[str, Tensor]:
    return {"loss": mse_loss(model(batch[0]), batch[1])}


def other_step(model: nn.Module, batch: tuple[Any, Any]) -> dict[str, Tensor]:
    return {"loss": l1_loss(model(batch[0]), batch[1])}


def trained(directory: Path, net: nn.Module | None = None, **changed: Any) -> trainers.Result:
    torch.manual_seed(0)
    settings: dict[str, Any] = {
        "train_set": DATA,
        "validation_set": DATA,
        "loss": mse_loss,
        "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
        "epochs": 2,
        "batch_size": 8,
        **changed,
    }
    return trainers.train(net or nn.Linear(4, 1), checkpoint=directory, **settings)


def targetless(model: nn.Module, batch: tuple[Any, Any]) -> dict[str, Tensor]:
    return {"loss": model(batch[0]).square().mean()}


PATHS = {
    "step": targetless,
    "loss": None,
    "validation_set": None,
    "collate": lambda items: (torch.stack([one[0] for one in items]), items[0][1]),
}


def begun(directory: Path, finished: bool, **settings: Any) -> None:
    if finished:
        trained(directory, **settings)
        return
    with pytest.raises(trainers.Interrupted):
        trained(directory, interrupt=After(5), **settings)


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "loss": ({}, {"loss": l1_loss}, "loss mse_loss l1_loss"),
    "lambda": (
        {"loss": lambda o, t: (o - t).square().mean()},
        {"loss": lambda o, t: (o - t).abs().mean()},
        "loss lambda",
    ),
    "default": (
        {"loss": lambda o, t, w=1.0: w * mse_loss(o, t)},
        {"loss": lambda o, t, w=5.0: w * mse_loss(o, t)},
        "loss lambda",
    ),
    "child": ({"loss": Over(nn.MSELoss())}, {"loss": Over(nn.L1Loss())}, "loss Over(part=MSELoss"),
    "children": (
        {"loss": Over(nn.ModuleList([Over(nn.MSELoss())]))},
        {"loss": Over(nn.ModuleList([Over(nn.L1Loss())]))},
        "loss Over(part=ModuleList",
    ),
    "step": ({"loss": None, "step": step}, {"loss": None, "step": other_step}, "step"),
    "metrics": ({}, {"metrics": {"mean": mean}}, "metrics none mean"),
    "metric": ({"metrics": {"mean": mean}}, {"metrics": {"mean": l1_loss}}, "metric mean"),
    "method": ({}, {"method": trainers.DDP(compression="bf16")}, "method bf16"),
    "train_set": ({}, {"train_set": OTHER}, "0, 10, 20, 31 train_set"),
    "validation_set": ({}, {"validation_set": OTHER}, "0, 10, 20, 31 validation_set"),
    "length": ({}, {"validation_set": TensorDataset(X[:8], X[:8, :1])}, "samples validation_set 32 8"),
    "sizes": ({}, {"batch_size": 4, "seed": 1}, "batch_size 8 4 seed 0 1"),
    "rate": ({}, {"optimizer": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9)}, "lr group 0 0.05 0.02"),
    "often": ({"evaluate_every": 3}, {"evaluate_every": 2}, "evaluate_every 3 2"),
}


@pytest.mark.parametrize(("case", "finished"), combinations(REFUSED, [True, False]))
def test_another_run_is_refused_by_name(tmp_path: Path, case: str, finished: bool) -> None:
    first, then, words = REFUSED[case]
    begun(tmp_path, finished, **first)
    with pytest.raises(ValueError) as caught:
        trained(tmp_path, interrupt=After(0), **then)
    assert all(word in str(caught.value) for word in (*words.split(), str(tmp_path)))
    assert trained(tmp_path, **first).reason == "finished"


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize(
    ("first", "then", "word"),
    [
        (partial(huber_loss, delta=1.0), partial(huber_loss, delta=2.0), "delta="),
        (nn.HuberLoss(), nn.HuberLoss(delta=2.0), "HuberLoss"),
        (Scaled(1.0), Scaled(2.0), "factor=1.0"),
        (Scaled(1.0).loss, Scaled(2.0).loss, "factor=1.0"),
        (capturing(1.0), capturing(5.0), ""),
    ],
)
def test_other_numbers_warn_or_are_refused_at_the_end(
    tmp_path: Path, first: Any, then: Any, word: str, finished: bool
) -> None:
    begun(tmp_path, finished, loss=first)
    more: dict[str, Any] = {"loss": then}
    if finished and word:
        with pytest.raises(ValueError, match=word):
            trained(tmp_path, **more)
        more["epochs"] = 3  # as a weight that was annealed in the run
    with pytest.warns(UserWarning, match="of loss is not"):
        assert trained(tmp_path, **more).reason == "finished"


class Gathering(Scaled):
    """A contrastive loss over ranks."""

    def __init__(self, rank: int, world_size: int) -> None:
        super().__init__(1.0)
        self.rank, self.world_size = rank, world_size


def with_path(directory: str) -> Any:
    return [(X[index], f"{directory}/{index}.png") for index in range(32)]


STOPPING = trainers.EarlyStopping(patience=3)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({"loss": Gathering(0, 1)}, {"loss": Gathering(1, 2)}),
        ({"metrics": {"a": mean, "b": l1_loss}}, {"metrics": {"b": l1_loss, "a": mean}}),
        ({}, {"early_stopping": STOPPING}),
        ({"early_stopping": STOPPING}, {"early_stopping": trainers.EarlyStopping(patience=5)}),
        ({"train_set": with_path("/tmp/1")} | PATHS, {"train_set": with_path("/tmp/2")} | PATHS),
    ],
)
def test_what_may_differ_goes_on(tmp_path: Path, first: dict[str, Any], then: dict[str, Any]) -> None:
    begun(tmp_path, False, **first)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert trained(tmp_path, **then).reason == "finished"


def test_more_patience_goes_on(tmp_path: Path) -> None:
    def impatient(patience: int) -> trainers.Result:
        stopping = trainers.EarlyStopping(metric="steps", patience=patience)
        return trained(tmp_path, epochs=6, early_stopping=stopping)

    assert [len(impatient(patience).history) for patience in (1, 1, 3)] == [2, 2, 4]
    assert impatient(9).reason == "finished"


class Drawing(Dataset[tuple[Tensor, Tensor]]):
    """Draws from its generator, the system's entropy, torch's generator, or hardly anything; counts reads."""

    def __init__(self, kind: str, seed: int) -> None:
        self.kind, self.reads = kind, 0
        self.generator = np.random.default_rng(seed)

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.reads += 1
        drawn = {
            "own": lambda: self.generator.normal(),
            "entropy": lambda: np.random.default_rng().normal(),
            "global": lambda: float(torch.randn(())),
            "rounding": lambda: 1e-4 * self.generator.normal(),
        }[self.kind]()
        return X[index] + drawn, X[index, :1]


@pytest.mark.parametrize("kind", ["own", "entropy", "global", "rounding"])
def test_a_data_set_whose_samples_are_random_goes_on(tmp_path: Path, kind: str) -> None:
    begun(tmp_path, False, train_set=Drawing(kind, 0), validation_set=Drawing(kind, 0))
    again = Drawing(kind, 1)
    assert trained(tmp_path, train_set=again, validation_set=Drawing(kind, 1)).reason == "finished"
    assert again.reads < 8 + 64


@pytest.mark.parametrize("checkpoint", [True, False])
def test_a_look_at_the_data_draws_nothing(tmp_path: Path, checkpoint: bool) -> None:
    samples = Drawing("own", 0)
    trained(tmp_path if checkpoint else None, train_set=samples)  # type: ignore[arg-type]
    expected = np.random.default_rng(0)
    expected.normal(size=64)
    assert samples.generator.normal() == expected.normal()


class Augmented(Drawing):
    """Random inputs of another strength, or from other places of the series; targets from 0 or from ``first``."""

    def __init__(self, strength: float, skipped: int = 0, first: int = 0) -> None:
        super().__init__("global", 0)
        self.strength, self.skipped, self.first = strength, skipped, first

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        torch.randn(self.skipped)
        flip = torch.rand(()) < 0.5
        inputs = X[index] + self.strength * torch.randn(4)
        return inputs.flip(0) if flip else inputs, X[index, :1] + self.first


def test_random_parts_of_samples_do_not_count_and_others_do(tmp_path: Path) -> None:
    begun(tmp_path, False, train_set=Augmented(0.1))
    for other in (Augmented(0.1, first=1), Augmented(0.5, 1, first=1)):
        with pytest.raises(ValueError, match="train_set"):
            trained(tmp_path, train_set=other)
    assert trained(tmp_path, train_set=Augmented(0.5, 1)).reason == "finished"


def test_slow_samples_are_read_once_and_those_of_another_run_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainers.data.probing._LIMIT_S", 0.0)
    begun(tmp_path, True, train_set=Drawing("global", 0))
    again = Drawing("global", 0)
    with pytest.raises(ValueError, match="loss"):
        trained(tmp_path, train_set=again, loss=l1_loss)
    assert again.reads == 0
    trained(tmp_path, train_set=again)
    assert again.reads <= 1


class OfEpochs(Drawing):
    """Other samples in each epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return X[index] + self.epoch, X[index, :1]


def test_epochs_and_state_of_objects_do_not_count(tmp_path: Path) -> None:
    samples, loss = OfEpochs("own", 0), Scaled(1.0)
    begun(tmp_path, False, train_set=samples, loss=loss)
    assert samples.epoch == 1 and loss.calls
    assert trained(tmp_path, train_set=samples, loss=loss).reason == "finished"
    assert trained(tmp_path, train_set=OfEpochs("own", 0), loss=Scaled(1.0)).reason == "finished"


def test_changed_code_of_a_named_function_warns(tmp_path: Path) -> None:
    def made(text: str, module: str) -> Any:
        names: dict[str, Any] = {"__name__": module}
        exec(f"def loss(o, t, w=1):\n    '''{text}'''\n    return {text}", names)
        return names["loss"]

    trained(tmp_path, loss=made("(o - t).square().mean()", "mine"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained(tmp_path, loss=made("(o - t).square().mean()", "of.mine"))
    with pytest.warns(UserWarning, match="code.* of loss is not"):
        trained(tmp_path, loss=made("(o - t).abs().mean()", "mine"))


# A longer run


@pytest.mark.parametrize(
    ("settings", "finished"),
    combinations(
        [
            {},
            {"schedule": trainers.Exponential(rate_factor=0.5, warmup_epochs=1.0)},
            {"steps": 6, "epochs": None},
        ],
        [True, False],
    ),
)
def test_more_epochs_go_on_as_if_they_had_been_asked_for(
    tmp_path: Path, settings: dict[str, Any], finished: bool
) -> None:
    more = {"steps": 14, "epochs": None} if "steps" in settings else {"epochs": 4}
    straight, pieces = nn.Linear(4, 1), nn.Linear(4, 1)
    pieces.load_state_dict(straight.state_dict())
    expected = trained(tmp_path / "straight", straight, **{**settings, **more})
    begun(tmp_path / "pieces", finished, net=pieces, **settings)
    found = trained(tmp_path / "pieces", pieces, **{**settings, **more})
    assert_identical(state_of(straight), state_of(pieces))
    if "steps" not in settings:
        assert without_times(found) == without_times(expected)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"schedule": trainers.Cosine()}, "Cosine"),
        ({"ema_decay": 0.9}, "ema_decay"),
        ({"evaluate_every": 0.5}, "evaluate_every = 0.5"),
        ({"method": trainers.LocalSGD(start=0.5)}, "method"),
    ],
)
def test_a_run_that_cannot_be_longer_says_why(tmp_path: Path, settings: dict[str, Any], why: str) -> None:
    trained(tmp_path, **settings)
    with pytest.raises(ValueError, match=f"2 epochs, .* 3: .*{why}"):
        trained(tmp_path, **{**settings, "epochs": 3})
    with pytest.raises(ValueError, match=r"epochs .*2.*1"):
        trained(tmp_path, **{**settings, "epochs": 1})
