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
from trainers.checkpoints.callables import code_of, named

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
    "loss": ({}, {"loss": l1_loss}, "loss was mse_loss, is l1_loss"),
    "lambda": (
        {"loss": lambda o, t: (o - t).square().mean()},
        {"loss": lambda o, t: (o - t).abs().mean()},
        "loss was another lambda",
    ),
    "default": (
        {"loss": lambda o, t, w=1.0: w * mse_loss(o, t)},
        {"loss": lambda o, t, w=5.0: w * mse_loss(o, t)},
        "loss was another lambda",
    ),
    "child": ({"loss": Over(nn.MSELoss())}, {"loss": Over(nn.L1Loss())}, "loss was Over(part=MSELoss"),
    "children": (
        {"loss": Over(nn.ModuleList([Over(nn.MSELoss())]))},
        {"loss": Over(nn.ModuleList([Over(nn.L1Loss())]))},
        "loss was Over(part=ModuleList",
    ),
    "step": ({"loss": None, "step": step}, {"loss": None, "step": other_step}, "step was"),
    "metrics": ({}, {"metrics": {"mean": mean}}, "metrics was none, is mean"),
    "metric": ({"metrics": {"mean": mean}}, {"metrics": {"mean": l1_loss}}, "metric mean was"),
    "method": ({}, {"method": trainers.DDP(compression="bf16")}, "method was"),
    "train_set": ({}, {"train_set": OTHER}, "samples 0, 10, 20, 31 of train_set"),
    "validation_set": ({}, {"validation_set": OTHER}, "of validation_set are not what they were"),
    "length": ({}, {"validation_set": TensorDataset(X[:8], X[:8, :1])}, "samples of validation_set was 32, is 8"),
}  # fmt: skip


@pytest.mark.parametrize(("case", "finished"), combinations(REFUSED, [True, False]))
def test_another_run_is_refused_by_name(tmp_path: Path, case: str, finished: bool) -> None:
    first, then, message = REFUSED[case]
    begun(tmp_path, finished, **first)
    with pytest.raises(ValueError) as caught:
        trained(tmp_path, interrupt=After(0), **then)
    assert message in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert trained(tmp_path, **first).reason == "finished"


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize(
    ("first", "then", "message"),
    [
        (partial(huber_loss, delta=1.0), partial(huber_loss, delta=2.0), "delta="),
        (nn.HuberLoss(), nn.HuberLoss(delta=2.0), "loss was HuberLoss"),
        (Scaled(1.0), Scaled(2.0), r"Scaled\(factor=1.0\), is"),
        (Scaled(1.0).loss, Scaled(2.0).loss, "Scaled.*loss, is"),
        (capturing(1.0), capturing(5.0), ""),
    ],
)
def test_other_numbers_warn_or_are_refused_at_the_end(
    tmp_path: Path, first: Any, then: Any, message: str, finished: bool
) -> None:
    begun(tmp_path, finished, loss=first)
    if finished and message:
        with pytest.raises(ValueError, match=message):
            trained(tmp_path, loss=then)
        # A weight that was annealed in the run.
        with pytest.warns(UserWarning, match="number in it, of loss .* goes on with the new"):
            assert trained(tmp_path, loss=then, epochs=3).reason == "finished"
    else:
        with pytest.warns(UserWarning, match="number in it, of loss"):
            trained(tmp_path, loss=then)


class Gathering(Scaled):
    """A contrastive loss over ranks."""

    def __init__(self, rank: int, world_size: int) -> None:
        super().__init__(1.0)
        self.rank, self.world_size = rank, world_size


def with_path(directory: str, kind: type) -> Any:
    return [
        (X[index], kind(f"{directory}/{index}.png", "utf-8") if kind is bytes else f"{directory}/{index}.png")
        for index in range(32)
    ]


STOPPING = trainers.EarlyStopping(patience=3)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({"loss": Gathering(0, 1)}, {"loss": Gathering(1, 2)}),
        ({"metrics": {"a": mean, "b": l1_loss}}, {"metrics": {"b": l1_loss, "a": mean}}),
        ({}, {"early_stopping": STOPPING}),
        ({"early_stopping": STOPPING}, {"early_stopping": trainers.EarlyStopping(patience=5)}),
        *(
            (
                {"train_set": with_path("/tmp/1", kind)} | PATHS,
                {"train_set": with_path("/tmp/2", kind)} | PATHS,
            )
            for kind in (str, bytes)
        ),
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
        with pytest.raises(ValueError, match=r"other data: .* of train_set .* at random, seed or sort"):
            trained(tmp_path, train_set=other)
    assert trained(tmp_path, train_set=Augmented(0.5, 1)).reason == "finished"


def test_slow_samples_are_read_once_and_those_of_another_run_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainers.data.probing._LIMIT_S", 0.0)
    begun(tmp_path, True, train_set=Drawing("global", 0))
    again = Drawing("global", 0)
    with pytest.raises(ValueError, match="loss was"):
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
    with pytest.warns(UserWarning, match="code.* of loss is not what it was .* result is that of"):
        trained(tmp_path, loss=made("(o - t).abs().mean()", "mine"))


def test_a_checkpoint_of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    begun(tmp_path, False)
    (path,) = tmp_path.glob("step-*/shared.pt")
    content = torch.load(path)
    del content["code"], content["samples"]
    for name in ("loss", "step", "collate", "metrics", "samples of validation_set"):
        del content["identity"][name]
    torch.save(content, path)
    latest = tmp_path / "latest"
    latest.write_text(latest.read_text().splitlines()[0])
    assert trained(tmp_path, loss=l1_loss).reason == "finished"


def test_names_are_those_of_every_process() -> None:
    device = partial(step, device="cuda:1", path="/scratch/17", rate=0.5)
    assert named(device).endswith("step(device=…, path=…, rate=0.5)")
    assert " at 0x" not in named(Scaled(1.0)) + named(nn.CrossEntropyLoss(weight=torch.ones(3)))
    assert "1 1 1" in named(nn.CrossEntropyLoss(weight=torch.ones(3)))
    assert named(Scaled(1.0).__call__) == "Scaled(factor=1.0).__call__"
    assert code_of(mse_loss) != code_of(Scaled(1.0))
    one, same = (lambda o: o in {"a", "b", "c"}), (lambda o: o in {"a", "b", "c"})
    assert code_of(one) == code_of(same) is not None


# A longer run


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"schedule": trainers.Exponential(rate_factor=0.5, warmup_epochs=1.0)},
        {"steps": 6, "epochs": None},
    ],
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
        ({"schedule": trainers.Cosine()}, "Cosine, follows the run's length"),
        ({"ema_decay": 0.9}, "moving average"),
        ({"evaluate_every": 0.5}, "evaluate_every = 0.5 is a fraction"),
        ({"method": trainers.LocalSGD(start=0.5)}, "its method plans"),
    ],
)
def test_a_run_that_cannot_be_longer_says_why(tmp_path: Path, settings: dict[str, Any], why: str) -> None:
    trained(tmp_path, **settings)
    with pytest.raises(ValueError, match=f"is of a run of 2 epochs, which cannot go on to 3: .*{why}"):
        trained(tmp_path, **{**settings, "epochs": 3})
    with pytest.raises(ValueError, match="epochs was 2, is 1"):
        trained(tmp_path, **{**settings, "epochs": 1})
