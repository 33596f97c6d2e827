"""Arguments that cannot be are refused before the first step, by an error with the argument and its value."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from resuming import After
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import trainers

SAMPLES = TensorDataset(torch.zeros(16, 20), torch.zeros(16, dtype=torch.int64))
NONE = TensorDataset(torch.zeros(0, 20), torch.zeros(0, dtype=torch.int64))


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def no_step() -> bool:
    raise AssertionError("a step was begun")


def train(**changed: Any) -> trainers.Result:
    settings: dict[str, Any] = {
        "model": nn.Sequential(*(nn.Linear(20, 20) for _ in range(4))),
        "train_set": SAMPLES,
        "validation_set": SAMPLES,
        "loss": cross_entropy,
        "optimizer": sgd,
        "epochs": 2,
        "batch_size": 8,
        "interrupt": no_step,
    }
    return trainers.train(**{**settings, **changed})


def metric(outputs: object, targets: object) -> float:
    return 0.0


class Mean:
    """Cannot be summed over ranks."""

    def reset(self) -> None: ...

    def update(self, outputs: object, targets: object) -> None: ...

    def compute(self) -> float:
        return 0.0


ONE_VALUE: list[tuple[str, object]] = [
    ("schedule", "cosine"),
    ("schedule", trainers.Cosine),
    ("early_stopping", 5),
    ("topology", 2),
    ("assignment", "fine"),
    ("assignment", trainers.Disjoint),
    ("report", 3),
    ("on_step", 3),
    ("interrupt", True),
    ("loss", None),
    ("metrics", [1]),
    ("metrics", {"accuracy": 1}),
    ("step", 3),
    ("collate", 3),
    ("parameter_groups", {}),
    ("checkpoint", 5),
    ("checkpoint_every", timedelta(0)),
    ("checkpoint_every", 0),
    ("checkpoint_every", 2.5),
    ("on_other_ranks", "ask"),
    ("profile", 3),
    ("timeout", 60),
    ("timeout", timedelta(0)),
    ("seed", "x"),
    ("seed", 1.5),
    ("seed", None),
    ("epochs", 0),
    ("batch_size", 2.5),
    ("accumulate", 0),
    ("accumulate", True),
    ("loader_processes", -1),
    ("evaluation_batch_size", 0),
    ("precision", "fp8"),
    ("clip_norm", 0),
    ("clip_norm", "1"),
    ("clip_value", 0),
    ("ema_decay", 1.0),
    ("label_smoothing", 1.0),
    ("label_smoothing", "0.1"),
    ("activation_checkpointing", "blocks.*"),
    ("flops_per_sample", 0),
    ("peak_flops", -1.0),
    ("optimizer", sgd([nn.Parameter(torch.zeros(1))])),
    ("model", nn.Linear),
    ("model", None),
]


@pytest.mark.parametrize(("option", "value"), ONE_VALUE)
def test_a_value_that_is_not_allowed_is_refused(option: str, value: object) -> None:
    with pytest.raises(ValueError) as caught:
        train(**{option: value})
    shown = repr(value) if len(repr(value)) <= 80 and "\n" not in repr(value) else type(value).__name__
    before, rule = str(caught.value).split(": must be ", 1)
    assert before.startswith(f"{option} = ") and shown in before
    assert rule.endswith("Correct it.") and "\n" not in rule


class Streamed(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(SAMPLES)


class Embedded(nn.Embedding):
    """With sparse gradients."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x[:, 0].long())


class Two(nn.Linear):
    def forward(self, x: torch.Tensor) -> Any:
        return x, x


class Sum(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).sum()


SIXTEEN = trainers.Stream(Streamed(), length=16)
RUNS: dict[str, Any] = {"interrupt": None}
BY_STEPS: dict[str, Any] = {"epochs": None, "steps": 3}
TOGETHER: list[tuple[type[Exception], str, dict[str, Any]]] = [
    (ValueError, "method 'daso' DDP()", {"method": "daso"}),
    (ValueError, "method DASO DDP()", {"method": trainers.DASO}),
    (ValueError, "metrics: 'mean'", {"metrics": {"mean": Mean}}),
    (ValueError, "metrics: 'mean' sums()", {"metrics": {"mean": Mean()}}),
    *((ValueError, f"metrics: '{name}'", {"metrics": {name: metric}}) for name in ("rank/0", "lr", "sync_every")),
    (ValueError, "metrics validation", {"validation_set": None, "metrics": {"mine": metric}}),
    (ValueError, "label_smoothing 0.1 step", {"label_smoothing": 0.1, "step": print}),
    (ValueError, "clip_norm clip_value", {"clip_norm": 1.0, "clip_value": 1.0}),
    (ValueError, "flops_per_sample peak_flops", {"peak_flops": 1e15}),
    (ValueError, "optimizer(parameters) None", {"optimizer": lambda parameters: None}),
    (ValueError, "optimizer: LBFGS", {"optimizer": torch.optim.LBFGS}),
    (ValueError, "optimizer: lr 0 None", {"optimizer": lambda p: torch.optim.Optimizer(p, {})}),
    (ValueError, "epochs None steps None", {"epochs": None}),
    (ValueError, "epochs 2 steps 3", {"steps": 3}),
    (ValueError, "steps = 0", {"epochs": None, "steps": 0}),
    (ValueError, "evaluate_every 0", {"evaluate_every": 0}),
    (ValueError, "evaluate_every 1.5", {"evaluate_every": 1.5}),
    (ValueError, "schedule: 2.5 2", {"schedule": trainers.Cosine(warmup_epochs=2.5)}),
    (ValueError, "schedule: 2 1.5", {**BY_STEPS, "schedule": trainers.Cosine(warmup_epochs=2)}),
    (ValueError, "Topology(ranks_per_node=2) 1", {"topology": trainers.Topology(ranks_per_node=2)}),
    (ValueError, "'f1' train_loss", {"early_stopping": trainers.EarlyStopping(metric="f1")}),
    (
        ValueError,
        "'validation_loss' train_loss",
        {"schedule": trainers.ReduceOnPlateau(metric="validation_loss"), "validation_set": None},
    ),
    # Data sets
    (ValueError, "train_set: TensorDataset empty", {"train_set": NONE}),
    (ValueError, "validation_set: TensorDataset empty", {"validation_set": NONE}),
    (TypeError, "train_set: DataLoader", {"train_set": DataLoader(SAMPLES, batch_size=8)}),
    (TypeError, "validation_set: tuple TensorDataset", {"validation_set": SAMPLES.tensors}),
    (TypeError, "train_set: list TensorDataset", {"train_set": list(SAMPLES.tensors)}),
    (TypeError, "train_set: Tensor TensorDataset", {"train_set": SAMPLES.tensors[0]}),
    (TypeError, "validation_set: set __getitem__", {"validation_set": {1, 2}}),
    (TypeError, "validation_set: int __len__", {"validation_set": 5}),
    (TypeError, "train_set: Streamed length", {"train_set": Streamed()}),
    (TypeError, "train_set: Stream length", {"train_set": trainers.Stream(Streamed(), sharded=True)}),
    (ValueError, "FullOverlap() train_set", {"train_set": SIXTEEN, "assignment": trainers.FullOverlap()}),
    (ValueError, "loader_processes 2 validation_set", {"validation_set": Streamed(), "loader_processes": 2}),
    (ValueError, "16 17", {"train_set": SIXTEEN, "accumulate": 17}),
    (ValueError, "16 17", {"accumulate": 17}),
    # Models
    (ValueError, "train", {"model": nn.Linear(20, 20).requires_grad_(False)}),
    (ValueError, "model parameters", {"model": nn.Identity()}),
    (ValueError, "model: weight shape", {"model": nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d())}),
    (ValueError, "model: weight shape", {"model": nn.Sequential(nn.Linear(20, 3), nn.LazyLinear(2))}),
    (ValueError, "model: weight inference_mode", {"model": torch.inference_mode()(lambda: nn.Linear(20, 3))()}),
    (ValueError, "model: DataParallel .module", {"model": nn.DataParallel(nn.Linear(20, 20))}),
    # Found in the first step, or the first evaluation
    (TypeError, "tuple", {**RUNS, "model": Two(20, 20)}),
    (ValueError, "sparse=False", {**RUNS, "model": Embedded(5, 20, sparse=True), "clip_norm": 1.0}),
    (TypeError, "dimensions", {**RUNS, "model": Sum(20, 20), "loss": lambda o, t: o, "metrics": {"f1": max}}),
    (TypeError, "loss: (8,)", {**RUNS, "loss": nn.CrossEntropyLoss(reduction="none")}),
    (TypeError, "loss: float", {**RUNS, "loss": lambda o, t: cross_entropy(o, t).item()}),
    (TypeError, "loss: gradient", {**RUNS, "loss": lambda o, t: cross_entropy(o.detach(), t)}),
    (TypeError, "metrics: 'f1' (16, 2) float32", {**RUNS, "metrics": {"f1": lambda o, t: torch.zeros(16, 2)}}),
    (TypeError, "metrics: 'f1' None", {**RUNS, "metrics": {"f1": lambda o, t: None}}),
    (TypeError, "metrics: 'f1' dict", {**RUNS, "metrics": {"f1": lambda o, t: {"f1": 1.0}}}),
    (TypeError, "step: Tensor", {**RUNS, "step": lambda model, batch: model(batch[0]).mean()}),
    (TypeError, "step: outputs loss", {**RUNS, "step": lambda model, batch: {"outputs": model(batch[0])}}),
    (TypeError, "step: (16,)", {**RUNS, "step": lambda model, batch: {"loss": torch.zeros(16)}}),
    (TypeError, "step: gradient", {**RUNS, "step": lambda model, batch: {"loss": torch.zeros(())}}),
    (TypeError, "step: outputs", {**RUNS, "step": lambda model, batch: {"loss": model(batch[0]).mean()}}),
    (
        TypeError,
        "label_smoothing",
        {**RUNS, "model": Two(20, 20), "label_smoothing": 0.1},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("error", "words", "given"), TOGETHER)
def test_what_does_not_fit_together_is_refused(
    error: type[Exception], words: str, given: dict[str, Any]
) -> None:
    epochs: list[int] = []
    with pytest.raises(error) as caught:
        train(report=lambda epoch, metrics: epochs.append(epoch), **given)
    message = str(caught.value)
    assert all(word in message for word in words.split()), message
    assert "\n" not in message and message.endswith(".") and not epochs


def test_a_metric_of_the_method_may_be_asked_for_also_where_it_comes_later() -> None:
    for method, name in ((trainers.DASO(), "sync_every"), (trainers.OIALR(delay=1), "stability/0")):
        with pytest.raises(AssertionError, match="a step"):
            train(early_stopping=trainers.EarlyStopping(metric=name, patience=9), method=method)


def test_a_directory_for_traces_is_made_or_refused(tmp_path: Path) -> None:
    train(profile=tmp_path / "new", interrupt=None)
    assert json.loads((tmp_path / "new/trace.json").read_text())["traceEvents"]
    with pytest.raises(ValueError, match=r"^profile = .*trace\.json"):
        train(profile=tmp_path / "new/trace.json")


class Files(list[str]):
    """A list whose items are not what it holds."""

    def __getitem__(self, index: Any) -> Any:
        return SAMPLES[int(super().__getitem__(index))]


class ByNumberToo(Streamed):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Any:
        return SAMPLES[index]


@pytest.mark.parametrize(
    "samples", [list(SAMPLES), tuple(SAMPLES), Files(map(str, range(16))), ByNumberToo()]
)
def test_whatever_gives_pairs_by_number_is_a_set_of_samples(samples: Any) -> None:
    assert train(train_set=samples, validation_set=samples, interrupt=None).reason == "finished"


def test_a_launchers_ranks_without_a_group_do_not_train_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "2")
    # Some launchers say so much of any program.
    assert train(interrupt=None).reason == "finished"
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    with pytest.raises(ValueError, match=r"WORLD_SIZE = 4: .*2 .*init_process_group"):
        train()
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("RANK", "0")
    assert train(interrupt=None).reason == "finished"


def test_settings_of_numpy_are_those_of_python(tmp_path: Path) -> None:
    """As they come out of a table of results: a run that one began goes on with the other."""
    one, four, part, yes = (np.int64(1), np.int64(4), np.float64(0.25), np.bool_(True))
    numbers: list[tuple[Any, dict[str, Any]]] = [
        (trainers.DDP, {"powersgd_rank": four}),
        (trainers.DASO, {"sync_every": four, "sync_delay": one, "warmup_epochs": part, "adaptive": yes}),
        (trainers.LocalSGD, {"world_every": four, "start": part}),
        (trainers.AB, {"warmup_steps": part, "ab_steps": one, "groups": yes, "group_size": one}),
        (trainers.OIALR, {"delay": one, "update_every": np.float32(0.25), "sigma_cutoff": part}),
        (trainers.Topology, {"ranks_per_node": one}),
    ]
    for kind, given in numbers:
        made = kind(**given)
        assert made == kind(**{name: value.item() for name, value in given.items()})
        # Methods and checkpoints tell whole numbers from fractions, and know no numpy.
        assert all(type(getattr(made, name)) is type(value.item()) for name, value in given.items())
    with pytest.raises(ValueError, match="sync_every"):
        trainers.DASO(sync_every=np.int64(0))
    own = {"epochs": four, "batch_size": np.int64(8), "accumulate": one, "seed": one}
    with pytest.raises(trainers.Interrupted):
        train(**own, checkpoint_every=one, evaluate_every=one, checkpoint=tmp_path, interrupt=After(3))
    plain = {"epochs": 4, "batch_size": 8, "checkpoint_every": 2, "evaluate_every": 1, "seed": 1}
    result = train(**plain, checkpoint=tmp_path, interrupt=None)
    assert result.reason == "finished" and result.history[-1]["steps"] == 8
    assert (
        trainers.evaluate(nn.Linear(20, 20), SAMPLES, batch_size=four, metrics={"l": cross_entropy})["l"] > 0
    )
    with pytest.raises(ValueError, match="batch_size = 0"):
        trainers.evaluate(nn.Linear(20, 20), SAMPLES, batch_size=0, metrics={"l": cross_entropy})
    schedule = trainers.Cosine(warmup_epochs=np.float32(2), warmup_lr=np.float64(0.01))
    found = train(schedule=schedule, interrupt=None)  # a warm-up of the whole run
    assert [entry["lr"] for entry in found.history] == pytest.approx([0.0325, 0.0775])


@pytest.mark.parametrize("method", [trainers.AB(groups=False), trainers.OIALR()], ids=["AB", "OIALR"])
def test_a_weight_that_the_optimizer_leaves_out_is_named_before_the_first_step(
    method: trainers.Method,
) -> None:
    with pytest.raises(ValueError, match=rf"{type(method).__name__}: 2\.weight"):
        train(method=method, optimizer=lambda parameters: sgd(list(parameters)[:4]))
