"""Each campaign can be trained by each method, begin with given weights, and be judged by folds."""

from __future__ import annotations

import contextlib
import io
import math
from copy import deepcopy
from datetime import datetime, timedelta
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest
import torch
from cases import cases
from gloo import run_ranks
from torch.utils.data import TensorDataset

import hpo
import trainers
from search_spaces import (
    assignment,
    autoformer,
    bigearthnet,
    cityscapes_daso,
    daso_intervals,
    digits,
    imagenet_ab,
    imagenet_daso,
    imagenet_oialr,
    vit_ab,
    vit_oialr,
)
from search_spaces.building_blocks import initial_weights, methods, patch_task
from search_spaces.building_blocks.recipes import LR_FACTOR, Run
from search_spaces.folds import Fold

NAMES = get_args(methods.MethodName)
MODULES = (
    "vit_ab", "vit_oialr", "daso_intervals", "assignment", "digits", "autoformer", "bigearthnet", "imagenet_ab",
    "imagenet_daso", "imagenet_oialr",
)  # fmt: skip
SMALL: dict[str, Any] = {"epochs": 2, "batch_size": 4, "train_samples": 24}
KINDS = {
    "ddp": trainers.DDP, "fsdp": trainers.FSDP, "daso": trainers.DASO, "local-sgd": trainers.LocalSGD,
    "oialr": trainers.OIALR, "ab": trainers.AB, "ab-no-groups": trainers.AB,
}  # fmt: skip


class Done(Exception):
    pass


def given(
    task: Any, params: Any, monkeypatch: pytest.MonkeyPatch, parts: Any = None, **how: Any
) -> dict[str, Any]:
    """What ``trainers.train`` gets for ``params``."""

    def train(*_: object, **named: Any) -> None:
        found.update(named)
        raise Done

    found: dict[str, Any] = {}
    monkeypatch.setattr(trainers, "train", train)
    with pytest.raises(Done):
        task.fit(params, parts, seed=0, device="cpu", **how)
    return found


@pytest.mark.parametrize(
    ("module", "own", "options"),
    [
        (vit_oialr, ("oialr",), {}),
        (vit_ab, ("ab", "ab-no-groups"), {}),
        (daso_intervals, ("daso",), {"steps_on_link": 0.0, "network": "resnet20", "width": 4}),
        (assignment, ("local-sgd",), {}),
        (digits, (), {}),
        (bigearthnet, (), {"small": True}),
        (imagenet_ab, ("ab", "ab-no-groups"), {"small": True}),
        (imagenet_daso, ("daso",), {"small": True}),
        (cityscapes_daso, ("daso",), {"small": True}),
        (imagenet_oialr, ("oialr",), {"small": True}),
    ],
)
def test_every_campaign_has_every_method(
    module: ModuleType, own: tuple[str, ...], options: dict[str, Any]
) -> None:
    for name in NAMES:
        task = module.make_task(method=name, **options)
        assert task.space.parameters and task.allows(task.default)
        added = methods.METHODS[name].parameters
        if name in own:
            assert task.space.describe() == module.space.describe()
        else:
            assert set(added) <= set(task.space.parameters)
        if isinstance(getattr(module, "default", None), dict):
            shared = {key for key in task.default if key not in added and key != LR_FACTOR}
            assert all(task.default[key] == module.default[key] for key in shared)
        found = task._method(task.default, Run(ranks=2, steps=100))
        assert type(found) is KINDS[name]
        assert getattr(found, "groups", False) == (name == "ab")
        alone = task._method(task.default, Run(ranks=1, steps=100))
        assert not getattr(alone, "groups", False)


@pytest.mark.parametrize("name", MODULES)
def test_every_campaign_has_the_common_options(name: str) -> None:
    """Plain values, which a file and a command line can give, with a line of help."""
    model = import_module(f"search_spaces.{name}").make_task.options
    common = ("folds", "init", "method", "data", "epochs", "precision", "loader_processes", "ranks_per_node")
    assert all(model.describe(option) for option in common)
    assert {type(field.default) for field in model.model_fields.values()} <= {
        bool,
        str,
        int,
        float,
        type(None),
    }


def test_without_a_parameter_left_the_learning_rate_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    task = vit_ab.make_task(method="ddp", lr=0.01)
    assert [*task.space.parameters] == [LR_FACTOR]
    optimizer = given(task, {LR_FACTOR: 0.5}, monkeypatch, ranks=1)["optimizer"]
    made = optimizer([torch.nn.Parameter(torch.zeros(1))])
    assert made.param_groups[0]["lr"] == pytest.approx(0.005)


def test_time_is_counted_for_methods_whose_synchronisations_are_known() -> None:
    assert [*daso_intervals.make_task(steps_on_link=0.0).objectives] == ["accuracy", "seconds"]
    task = daso_intervals.make_task(method="ddp", steps_on_link=3.0)
    entries = tuple({"accuracy": 0.5} for _ in range(2))
    result = trainers.Result(metrics=dict(entries[-1]), history=entries, reason="finished")
    assert task.judged(result, 10) == {"steps": 10 + 10 * 3.0, "accuracy": 0.5}


@pytest.mark.parametrize("name", cases(["oialr", "ab"], nightly=["ab-no-groups"]))
def test_what_factors_layers_refuses_the_perceptron_and_trains_the_others(name: str) -> None:
    options: dict[str, Any] = {
        **SMALL,
        "steps_on_link": 0.0,
        "warmup_epochs": 0,
        "cooldown_epochs": 0,
        "method": name,
    }
    with pytest.raises(hpo.UsageError, match=r"^network = 'perceptron': "):
        daso_intervals.make_task(**options)
    # A deep network takes the place of the perceptron.
    assert (
        "bottleneck" in daso_intervals.make_task(**options, architecture="deep", small=True).space.parameters
    )
    task = daso_intervals.make_task(**options, network="resnet20", width=4)
    (found,) = task.tests(task.default or {}, seeds=[0])
    assert found.get("factored_compression_ratio", found["compression_ratio"]) != 1


# Weights to begin with


def test_weights_that_agree_in_name_and_shape_are_begun_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "other.safetensors"
    other = digits.untrained({**digits.default, "width": 8})
    same = digits.untrained(digits.default)
    options = {"epochs": 1, "train_samples": 20, "batch_size": 10, "init": str(path)}
    begun: list[torch.nn.Module] = []

    def train(model: torch.nn.Module, *_: object, **__: object) -> None:
        begun.append(model)
        raise Done

    monkeypatch.setattr(trainers, "train", train)
    trainers.save_model(same, path)
    with pytest.raises(Done):
        digits.make_task(**options).fit(digits.default)
    for name, value in same.state_dict().items():
        assert torch.equal(begun[0].state_dict()[name], value), name
    assert "28 of 28 tensors taken\n" in capsys.readouterr().err
    trainers.save_model(other, path)
    with pytest.raises(Done):
        digits.make_task(**options).fit(digits.default)
    # Of another width only what has no width agrees: the biases of the classes.
    assert torch.equal(begun[1].state_dict()["classifier.bias"], other.state_dict()["classifier.bias"])
    told = capsys.readouterr().err
    assert f"init = {str(path)!r}: 1 of" in told
    assert "classifier.weight: is (10, 16) there, and (10, 32) here" in told


def what_is_printed(rank: int, path: str, parent: str) -> str:
    with contextlib.redirect_stderr(io.StringIO()) as printed:
        task = digits.make_task(epochs=1, train_samples=20, batch_size=10, init=path)
        task.fit(digits.default, ranks=2, parent=Path(parent))
    return printed.getvalue()


def test_what_a_training_begins_with_is_printed_by_the_first_rank_alone(tmp_path: Path) -> None:
    digits.make_task(epochs=1, train_samples=20, batch_size=10).fit(
        digits.default, checkpoint=tmp_path / "parent"
    )
    path = tmp_path / "other.safetensors"
    trainers.save_model(digits.untrained(digits.default), path)
    first, second = run_ranks(2, what_is_printed, str(path), str(tmp_path / "parent"))
    assert first.count("28 of 28 tensors taken") == 1 and first.count("from its parent's checkpoint") == 1
    assert second == ""


def test_a_file_that_has_nothing_of_the_network_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.safetensors"
    path.write_bytes(b"no tensors")
    with pytest.raises(hpo.UsageError, match=r"cannot be read"):
        digits.make_task(init=str(path))
    trainers.save_model(torch.nn.Linear(2, 2), path)
    task = digits.make_task(init=str(path), epochs=1, train_samples=20, batch_size=10)
    with pytest.raises(hpo.UsageError, match="none of its 2 tensors"):
        task.fit(digits.default)


@pytest.mark.parametrize(
    ("of_parent", "own", "kept"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), lambda p: torch.optim.Adam(p, lr=0.01), False),
        (lambda p: torch.optim.Adam(p), lambda p: torch.optim.Adam(p, amsgrad=True), False),
        (lambda p: torch.optim.RMSprop(p), lambda p: torch.optim.RMSprop(p, centered=True), False),
        (lambda p: torch.optim.RMSprop(p), lambda p: torch.optim.RMSprop(p, momentum=0.9), False),
        (lambda p: torch.optim.Adam(p, lr=0.1), lambda p: torch.optim.Adam(p, lr=0.01), True),
        (lambda p: trainers.Ftrl(p, lr=0.001), lambda p: trainers.Ftrl(p, lr=0.5), True),
    ],
    ids=["adam", "amsgrad", "centered", "momentum", "its own", "ftrl"],
)
def test_a_child_has_its_parent_s_optimizer_s_state_where_its_own_keeps_the_same(
    of_parent: Any, own: Any, kept: bool
) -> None:
    def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, gradient: float) -> None:
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, gradient)
        optimizer.step()

    model = torch.nn.Linear(3, 2)
    before = of_parent(model.parameters())
    step(model, before, 0.1)
    parent = initial_weights.Parent(
        transfer=initial_weights.Transfer(taken=(), left={}),
        kind=type(before).__name__,
        optimizer=deepcopy(before.state_dict()),
    )
    made = parent.continued(own(model.parameters()))
    assert bool(made.state) == kept
    assert made.param_groups[0]["lr"] == own(model.parameters()).param_groups[0]["lr"]
    weights = model.weight.detach().clone()
    step(model, made, 1e-6)
    assert torch.allclose(model.weight, weights, atol=0.2)


def test_a_child_of_a_parent_in_factors_or_that_diverged_begins_where_its_score_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = digits.make_task(epochs=3, train_samples=64, method="oialr")
    params = {**(task.default or {}), "width": 24}
    model, _ = task.fit(params, checkpoint=tmp_path / "parent")
    assert any(name.endswith("_sigma") for name in model.state_dict())
    child = digits.untrained(params)
    assert initial_weights.grow(child, tmp_path / "nowhere") is None
    begun = initial_weights.grow(child, tmp_path / "parent")
    assert begun is not None and begun.optimizer is None and not begun.transfer.left
    images = torch.rand(4, 1, 8, 8)
    assert torch.allclose(child.eval()(images), model.eval()(images), atol=1e-4)

    best = {name: torch.full_like(value, 2) for name, value in child.state_dict().items()}
    last = {
        name: torch.full_like(value, math.nan) for name, value in best.items() if value.is_floating_point()
    }
    saved = {
        "reason": "diverged", "model": {**best, **last}, "best": {"model": best},
        "optimizer": {}, "identity": {"optimizer": "SGD"},
    }  # fmt: skip
    monkeypatch.setattr(initial_weights, "read_alone", lambda checkpoint: saved)
    begun = initial_weights.grow(child, tmp_path / "parent")
    assert begun is not None and begun.optimizer is None
    assert all(bool((parameter == 2).all()) for parameter in child.parameters())


# Folds


def test_folds_of_a_series_are_stretches_that_share_no_point(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    start = datetime(2020, 1, 1)
    rows = [f"{start + timedelta(hours=hour)},{hour % 24},{hour % 7}" for hour in range(400)]
    (tmp_path / "series.csv").write_text("\n".join(["date,one,two", *rows]) + "\n")
    options = {"stride": 4, "horizon": 4, "context": 8, "start_token": 4}
    chosen = autoformer.Options(data=str(tmp_path / "series.csv"), folds=3, **options)
    whole = chosen.parts()
    held: list[int] = []
    for index in range(3):
        parts = chosen.of_fold(whole, Fold(index=index, folds=3))
        points = [
            {begin + offset for begin in (place * 4 for place in part.indices) for offset in range(12)}
            for part in (parts.train, parts.validation)
        ]
        assert not points[0] & points[1]
        held += parts.validation.indices
        assert parts.test is whole.test
    assert held == [*range(len(whole.train))]
    with pytest.raises(hpo.UsageError, match="10 samples for 2 folds with gaps of 5"):
        Fold(index=0, folds=2).block(10, gap=5)


def test_folds_of_patches_are_of_the_training_part(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {name: TensorDataset(torch.arange(count)) for name, count in (("train", 10), ("validation", 3))}
    monkeypatch.setattr(patch_task, "_part", lambda options, name: parts[name])
    options = bigearthnet.Options(small=True, folds=2)
    each = [options.of_fold(options.parts(), Fold(index=index, folds=2)) for index in range(2)]
    held = [[int(one[0]) for one in part.validation] for part in each]  # type: ignore[attr-defined]
    assert sorted(held[0] + held[1]) == [*range(10)]
    assert all(len(part.train) == 5 for part in each)  # type: ignore[arg-type]


def test_what_a_training_costs_may_be_the_second_objective(tmp_path: Path) -> None:
    task = vit_oialr.make_task(second_objective="trainable_fraction", epochs=1, train_samples=64)
    assert task.objectives == {"trainable_fraction": "minimize", "accuracy": "maximize"}
    found = task.evaluate(hpo.Trial.alone(task.default, directory=tmp_path))
    assert "value" not in found
    assert 0 < found["trainable_fraction"] <= 1
    assert 0 <= found["accuracy"] <= 1
    with pytest.raises(hpo.UsageError, match=r"second_objective = .*accuracy and steps already"):
        daso_intervals.make_task(steps_on_link=8.0, second_objective="bytes_between_nodes")


def sent(rank: int, ranks: int, ranks_per_node: int | None) -> tuple[float, float]:
    task = vit_ab.make_task(method="ddp", epochs=1, train_samples=64, ranks_per_node=ranks_per_node)
    _, result = task.fit(task.default, ranks=ranks)
    return result.metrics["bytes_between_nodes"], result.metrics["bytes_inside_nodes"]


def test_ranks_of_one_host_may_pose_as_nodes_in_any_campaign() -> None:
    for between, inside in run_ranks(2, sent, 2, 1):
        assert between > 0 and inside == 0
    for between, inside in run_ranks(2, sent, 2, None):
        assert between == 0 and inside > 0
    assert sent(0, 1, 2) == (0, 0)  # alone, as a configuration by hand is


def test_a_search_with_nothing_to_minimise_fails_with_a_reason(tmp_path: Path) -> None:
    options = {"method": "ddp", "second_objective": "bytes_between_nodes", "epochs": 1, "train_samples": 32}
    result = hpo.Campaign(
        vit_ab.make_task(**options), directory=tmp_path / "run", evaluations=1, isolation="inline"
    ).run()
    (one,) = result.individuals
    assert one.status == "failed" and "second_objective = 'bytes_between_nodes'" in (one.error or "")


def test_ranks_that_do_not_make_up_nodes_are_refused_by_the_option_s_name() -> None:
    task = vit_ab.make_task(method="ddp", epochs=1, train_samples=64, ranks_per_node=3)
    with pytest.raises(hpo.UsageError, match=r"^ranks_per_node = 3: .* 2 ranks"):
        task.fit(task.default, ranks=2)
