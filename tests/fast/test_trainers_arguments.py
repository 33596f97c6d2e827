"""What is of the wrong kind is refused at once, in one sentence that names it, and not where it would be used."""

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


TOGETHER: list[tuple[str, dict[str, Any]]] = [
    ("metrics: 'mean' is a class", {"metrics": {"mean": Mean}}),
    ("metrics: 'mean' has update()", {"metrics": {"mean": Mean()}}),
    ("label_smoothing = 0.1: step computes its own loss", {"label_smoothing": 0.1, "step": print}),
    ("clip_norm and clip_value: ", {"clip_norm": 1.0, "clip_value": 1.0}),
    ("flops_per_sample and peak_flops: ", {"peak_flops": 1e15}),
    ("optimizer(parameters) = None: ", {"optimizer": lambda parameters: None}),
    ("optimizer: LBFGS ", {"optimizer": torch.optim.LBFGS}),
    ("optimizer: lr of its group 0 = None: ", {"optimizer": lambda p: torch.optim.Optimizer(p, {})}),
    ("schedule: a warm-up of 2.5 epochs ", {"schedule": trainers.Cosine(warmup_epochs=2.5)}),
    ("train_set: TensorDataset is empty", {"train_set": NONE}),
    ("validation_set: TensorDataset is empty", {"validation_set": NONE}),
]


@pytest.mark.parametrize(("named", "given"), TOGETHER)
def test_values_that_do_not_fit_together_are_refused(named: str, given: dict[str, Any]) -> None:
    with pytest.raises(ValueError) as caught:
        train(**given)
    assert str(caught.value).startswith(named)
    assert "\n" not in str(caught.value)


def test_a_directory_for_traces_is_made_or_refused(tmp_path: Path) -> None:
    train(profile=tmp_path / "new", epochs=2, interrupt=None)
    assert json.loads((tmp_path / "new/trace.json").read_text())["traceEvents"]
    with pytest.raises(ValueError, match=r"cannot be made \(.*\)\. Name a directory that rank 0"):
        train(profile=tmp_path / "new/trace.json")


class Streamed(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(SAMPLES)


NO_SET: dict[str, Any] = {
    "DataLoader deals samples itself": DataLoader(SAMPLES, batch_size=8),
    "tuple holds no pairs of inputs and target. Of two tensors make a data set": SAMPLES.tensors,
    "list holds no pairs": list(SAMPLES.tensors),
    "Tensor holds no pairs": SAMPLES.tensors[0],
    "set gives no sample by its number": {1, 2},
}


@pytest.mark.parametrize("which", ["train_set", "validation_set"])
@pytest.mark.parametrize("message", NO_SET)
def test_the_loop_refuses_what_is_no_set_of_samples(message: str, which: str) -> None:
    with pytest.raises(TypeError) as caught:
        train(**{which: NO_SET[message]})
    assert f"{which}: {message}" in str(caught.value)
    assert "\n" not in str(caught.value)


STREAMS: dict[str, dict[str, Any]] = {
    "train_set: Streamed streams its samples and does not say how many an epoch has": {
        "train_set": Streamed()
    },
    "train_set: Stream streams its samples and does not say how many": {
        "train_set": trainers.Stream(Streamed(), sharded=True)
    },
    "assignment = FullOverlap(): deals samples by number, and train_set streams them": {
        "train_set": trainers.Stream(Streamed(), length=16),
        "assignment": trainers.FullOverlap(),
    },
    "loader_processes = 2: validation_set streams its samples": {
        "validation_set": Streamed(),
        "loader_processes": 2,
    },
    "16 samples for 1 ranks with 17 accumulated batches": {
        "train_set": trainers.Stream(Streamed(), length=16),
        "accumulate": 17,
    },
}


@pytest.mark.parametrize("message", STREAMS)
def test_the_loop_refuses_streams_that_cannot_be_shared(message: str) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        train(**STREAMS[message])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


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


def not_reduced(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return cross_entropy(outputs, targets, reduction="none")


def item_of(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    return cross_entropy(outputs, targets).item()


@pytest.mark.parametrize(
    ("loss", "found"),
    [
        (not_reduced, "a tensor of shape (8,)"),
        (item_of, "float"),
        (nn.CrossEntropyLoss(reduction="none"), "(8,)"),
        (
            lambda outputs, targets: cross_entropy(outputs.detach(), targets),
            "a tensor that depends on no trained",
        ),
    ],
)
def test_a_loss_that_is_no_mean_is_refused_at_the_first_step(loss: Any, found: str) -> None:
    ended: list[int] = []
    with pytest.raises(
        TypeError, match=r"loss: returned .*must return a tensor without dimensions"
    ) as caught:
        train(loss=loss, interrupt=None, report=lambda epoch, metrics: ended.append(epoch))
    assert found in str(caught.value)
    assert not ended


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (torch.zeros(16, 2), "Tensor of shape (16, 2) and torch.float32"),
        (None, "None"),
        ({"f1": 1.0}, "dict"),
    ],
)
def test_a_metric_that_is_no_number_is_named(value: Any, found: str) -> None:
    with pytest.raises(TypeError, match=r"metrics: 'f1' returned .* must return one number") as caught:
        train(metrics={"f1": lambda outputs, targets: value}, interrupt=None)
    assert found in str(caught.value)


def test_a_launchers_ranks_without_a_group_do_not_train_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "2")
    # Some launchers say so much of any program.
    assert train(interrupt=None).reason == "finished"
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    with pytest.raises(ValueError, match=r"WORLD_SIZE = 4: this is rank 2 .*init_process_group\(\) first"):
        train()
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("RANK", "0")
    assert train(interrupt=None).reason == "finished"


def test_the_loop_refuses_what_cannot_be_dealt() -> None:
    with pytest.raises(TypeError, match="validation_set: int has no length"):
        train(validation_set=5)


def test_what_numpy_makes_and_a_warm_up_of_the_whole_run_are_allowed() -> None:
    schedule = trainers.Cosine(warmup_epochs=np.float32(2), warmup_lr=np.float64(0.01))
    result = train(schedule=schedule, seed=np.int64(3), interrupt=None)
    assert [entry["lr"] for entry in result.history] == pytest.approx([0.0325, 0.0775])


def test_steps_are_taken_as_numpy_makes_them(tmp_path: Path) -> None:
    whole: Any = np.int64(1)
    part: Any = np.float32(0.25)
    for index, method in enumerate(
        (
            trainers.OIALR(delay=whole, update_every=whole, full_rank_last_layer=False),
            trainers.OIALR(delay=part, update_every=part, full_rank_last_layer=False),
            trainers.AB(warmup_steps=whole, ab_steps=whole, rebound_steps=part, groups=False),
        )
    ):
        settings: dict[str, Any] = {"method": method, "epochs": 6, "checkpoint": tmp_path / str(index)}
        with pytest.raises(trainers.Interrupted):
            train(**settings, interrupt=After(9))
        assert train(**settings, interrupt=None).reason == "finished"
    assert trainers.AB(group_size=whole).group_size == 1


def test_settings_of_numpy_are_those_of_python(tmp_path: Path) -> None:
    """As they come out of a table of results: a run that one began goes on with the other."""
    one: Any = np.int64(1)
    four: Any = np.int64(4)
    part: Any = np.float64(0.25)
    yes: Any = np.bool_(True)
    for made, plain in (
        (trainers.DDP(powersgd_rank=four), trainers.DDP(powersgd_rank=4)),
        (
            trainers.DASO(sync_every=four, sync_delay=one, warmup_epochs=part, adaptive=yes),
            trainers.DASO(sync_every=4, sync_delay=1, warmup_epochs=0.25, adaptive=True),
        ),
        (trainers.LocalSGD(world_every=four, start=part), trainers.LocalSGD(world_every=4, start=0.25)),
        (trainers.AB(warmup_steps=part, groups=yes), trainers.AB(warmup_steps=0.25, groups=True)),
        (trainers.OIALR(delay=one, sigma_cutoff=part), trainers.OIALR(delay=1, sigma_cutoff=0.25)),
        (trainers.Topology(ranks_per_node=one), trainers.Topology(ranks_per_node=1)),
    ):
        assert repr(made) == repr(plain)
    with pytest.raises(ValueError, match="sync_every must be a whole number of at least 1"):
        trainers.DASO(sync_every=np.int64(0))  # type: ignore[arg-type]

    own = {
        "epochs": np.int64(4),
        "batch_size": np.int64(8),
        "accumulate": one,
        "loader_processes": np.int64(0),
    }
    with pytest.raises(trainers.Interrupted):
        train(**own, checkpoint_every=one, evaluate_every=one, checkpoint=tmp_path, interrupt=After(3))
    result = train(
        epochs=4, batch_size=8, checkpoint_every=2, evaluate_every=1, checkpoint=tmp_path, interrupt=None
    )
    assert result.reason == "finished" and result.history[-1]["steps"] == 8
    model = nn.Linear(20, 20)
    found = trainers.evaluate(model, SAMPLES, batch_size=four, metrics={"loss": cross_entropy})
    assert found["loss"] > 0


@pytest.mark.parametrize("method", [trainers.AB(groups=False), trainers.OIALR()], ids=["AB", "OIALR"])
def test_a_weight_that_the_optimizer_leaves_out_is_named_before_the_first_step(
    method: trainers.Method,
) -> None:
    owner = type(method).__name__
    with pytest.raises(ValueError, match=rf"{owner}: 2\.weight requires a gradient, but the optimizer"):
        train(method=method, optimizer=lambda parameters: sgd(list(parameters)[:4]))
