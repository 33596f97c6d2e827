"""The campaigns on CIFAR: each of their configurations trains, or is rejected by a stated constraint."""

from __future__ import annotations

import importlib
import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from cases import all_cases, cases
from gloo import run_ranks
from places import JOBS
from resuming import in_two_pieces

import hpo
import trainers
from hpo.config import reader as config
from search_spaces import assignment, daso_intervals, digits, vit_ab, vit_oialr
from search_spaces.building_blocks.daso_intervals import measured_seconds
from search_spaces.building_blocks.image_task import ImageTask, Run
from search_spaces.folds import Fold
from search_spaces.standalone.trained_models import Trained, export

MODULES = [vit_oialr, vit_ab, daso_intervals, assignment]

# Two epochs of ten steps.
FAST: dict[str, Any] = {
    "epochs": 2,
    "batch_size": 2,
    "train_samples": 20,
    "validation_part": 0.05,
    "augmentation": "rand-augment",
}
SMALL: dict[ModuleType, dict[str, Any]] = {
    vit_oialr: {"dim": 24, "depth": 1},
    vit_ab: {"dim": 24, "depth": 1},
    daso_intervals: {
        "network": "resnet20",
        "width": 2,
        "warmup_epochs": 0,
        "cooldown_epochs": 0,
        "ranks_per_node": 1,
    },
    assignment: {"width": 2},
}


def fast(module: ModuleType, **changed: Any) -> ImageTask:
    return module.make_task(**{**FAST, **SMALL[module], **changed})


def drawn(task: hpo.Task, count: int, seed: int) -> list[dict[str, Any]]:
    """Random configurations that the constraints allow."""
    rng, found = random.Random(seed), []
    while len(found) < count:
        params = task.space.decode(task.space.sample(rng))
        if all(constraint(params) for constraint in task.constraints):
            found.append(dict(params))
    return found


def trained(rank: int, name: str, options: dict[str, Any], configurations: list[Any], root: str) -> list[Any]:
    """Of each configuration the objectives and the metrics, on the ranks of the group."""
    torch.set_num_threads(1)
    module = importlib.import_module(name)
    task = module.make_task(**options)
    size = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
    results = []
    for number, params in enumerate(configurations):
        trial = hpo.Trial.alone(params, directory=f"{root}/{number}", rank=rank, size=size, seed=number)
        results.append(task.evaluate(trial))
    return results


@pytest.mark.parametrize("module", MODULES)
def test_random_configurations_train(module: ModuleType, tmp_path: Path) -> None:
    options = {**FAST, **SMALL[module]}
    task = module.make_task(**options)
    configurations = [dict(task.default), *drawn(task, 3 if all_cases else 1, seed=1)]
    if module is vit_oialr:
        found = trained(0, module.__name__, options, configurations, str(tmp_path))
    else:
        ranks = 4 if module is assignment else 2
        found = run_ranks(ranks, trained, module.__name__, options, configurations, str(tmp_path))[0]
    for params, metrics in zip(configurations, found, strict=True):
        for name in task.objectives:
            assert math.isfinite(metrics[name]), (params, metrics)


def all_refused(rank: int, name: str, options: dict[str, Any], configurations: list[Any], root: str) -> None:
    for params in configurations:
        with pytest.raises((ValueError, hpo.UsageError)):
            trained(rank, name, options, [params], root)


@pytest.mark.parametrize("module", [vit_oialr, daso_intervals, assignment])
def test_constraints_refuse_only_what_would_not_train(module: ModuleType, tmp_path: Path) -> None:
    options, rng = {**FAST, **SMALL[module]}, random.Random(3)
    task = module.make_task(**options)
    found = [dict(task.space.decode(task.space.sample(rng))) for _ in range(200)]
    refused = [params for params in found if not all(allows(params) for allows in task.constraints)]
    assert 0 < len(refused) < 200
    if module is assignment:
        # Copies on all ranks, or one part that is all ranks, would train as something simpler does.
        same = [(p.get("copies"), p["household"], p["household"] * p["neighbourhood"]) for p in refused]
        refused = [params for params, parts in zip(refused, same, strict=True) if 4 not in parts]
        assert refused
    given = module.__name__, options, refused[:10], str(tmp_path)
    _ = run_ranks(4, all_refused, *given) if module is assignment else all_refused(0, *given)


def test_the_network_is_of_the_source_s_size() -> None:
    """Tables A.2 and A.3."""
    options = config.read_file(JOBS / "vit_oialr.toml").task_options
    assert (options["batch_size"], options["precision"]) == (1024, "bf16")
    model = vit_oialr.untrained(vit_oialr.default, **{**options, "data": "digits"})
    blocks = 6 * (4 * 768**2 + 768 + 2 * 768 * 3072 + 3072 + 768 + 4 * 768)
    around = 3 * 64 * 768 + 768 + 768 + 17 * 768 + 2 * 768 + 7690
    assert sum(parameter.numel() for parameter in model.parameters()) == blocks + around


@pytest.mark.parametrize("module", [vit_oialr, vit_ab])
def test_the_optimizer_has_the_weight_decay_that_is_asked_for(module: ModuleType) -> None:
    options = fast(module, weight_decay=0.25).options
    recipe = module.recipe(module.default, options, Run(data={"classes": 10}))
    assert recipe.optimizer([torch.nn.Parameter(torch.ones(1))]).defaults["weight_decay"] == 0.25


def test_steps_are_parts_of_the_source_s_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []
    monkeypatch.setattr(trainers, "train", lambda *given, **named: seen.append(named) or _Nothing())
    task = fast(vit_oialr, epochs=25)
    task.fit(
        {**vit_oialr.default, "delay": 1225, "update_every": 245},
        task.options.parts(),
        seed=0,
        ranks=1,
        device="cpu",
    )
    assert seen[0]["method"].delay == pytest.approx(0.2)
    assert seen[0]["method"].update_every == pytest.approx(0.04)
    assert seen[0]["schedule"].warmup_epochs == pytest.approx(10 * 25 / 125)


class _Nothing:
    metrics: dict[str, float] = {}  # noqa: RUF012


def test_seconds_leave_out_what_held_up_some_epochs() -> None:
    totals = [2.0, 3.0, 4.0, 14.0, 15.0]
    history = tuple({"train_s": total, "accuracy": 0.5} for total in totals)
    result = trainers.Result(metrics=dict(history[-1]), history=history, reason="finished")
    assert measured_seconds(result, 100) == {"seconds": 5.0}


def fitted(rank: int, params: list[dict[str, int]], options: dict[str, Any]) -> list[Any]:
    """Of each run the result, and its judgement by counting."""
    torch.set_num_threads(1)
    task = daso_intervals.make_task(**options)
    parts = task.options.parts()
    runs = [task.fit(one, parts, seed=0, ranks=2, device="cpu")[1] for one in params]
    return [(run.metrics["synchronisations"], task.judged(run, task.optimizer_steps(parts))) for run in runs]


def test_steps_count_what_the_link_makes_wait() -> None:
    # Three epochs of 20 steps; the first and the last synchronise at each step and wait for all of it.
    options: dict[str, Any] = {
        "epochs": 3, "batch_size": 2, "train_samples": 40, "validation_part": 0.05, "width": 4,
        "ranks_per_node": 1, "steps_on_link": 3.0,
    }  # fmt: skip
    # B, S and, of the cycling epoch, how often nodes synchronise and the steps waited: at its end always all three.
    expected = [(1, 0, 20, 60), (1, 1, 20, 41), (4, 1, 5, 11), (4, 4, 5, 3), (8, 2, 3, 5), (32, 0, 1, 3)]
    params = [{"sync_every": every, "sync_delay": delay} for every, delay, _, _ in expected]
    found = run_ranks(2, fitted, params, options)[0]
    for (every, delay, synchronisations, waited), (counted, judged) in zip(expected, found, strict=True):
        assert counted == 40 + synchronisations, (every, delay)
        assert judged["steps"] == 60 + 40 * 3 + waited, (every, delay)


def test_an_interrupted_evaluation_goes_on_bit_for_bit(tmp_path: Path) -> None:
    params = {**vit_oialr.default, "lr": 1e-3, "warmup_epochs": 1, "delay": 1500}
    in_two_pieces(fast(vit_oialr), params, tmp_path, steps=13)


def test_a_test_has_loss_and_top_5_beside_the_accuracy() -> None:
    """As Table 4.3 has them; the validation part's accuracy is that of the same training."""
    task = fast(vit_oialr, validation_part=0.5)
    params = task.default or {}
    (found,) = task.tests(params, seeds=[3])
    model, result = task.fit(params, seed=3)
    losses, ranks = [], []
    with torch.no_grad():
        for image, right in task.options.parts().test:
            outputs = model.eval()(image[None])[0]
            losses.append(-outputs.log_softmax(0)[right].item())
            ranks.append(int((outputs > outputs[right]).sum()))
    assert found["test_loss"] == pytest.approx(sum(losses) / len(losses), abs=1e-5)
    assert found["test_top5"] == pytest.approx(sum(rank < 5 for rank in ranks) / len(ranks))
    assert found["test"] == pytest.approx(sum(rank < 1 for rank in ranks) / len(ranks))
    assert found["test"] < found["test_top5"] < 1
    assert found["validation"] == result.metrics["accuracy"]


@pytest.mark.parametrize(("classes", "names"), [(5, {"loss"}), (6, {"loss", "top5"})])
def test_where_there_are_five_classes_all_are_among_the_top_5(classes: int, names: set[str]) -> None:
    assert set(fast(vit_oialr).test_metrics(SimpleNamespace(classes=classes))) == names
    assert set(digits.make_task().test_metrics(digits.make_task().options.parts())) == {"loss", "top5"}


# K folds


def test_each_training_image_is_held_back_once_with_its_own_class() -> None:
    options = fast(daso_intervals, folds=3, train_samples=41).options
    whole, held = options.parts(), []
    assert whole.validation is None
    for index in range(3):
        parts = options.of_fold(whole, Fold(index=index, folds=3))
        assert len(parts.train) + len(parts.validation) == 41
        images, classes = parts.validation.tensors
        back = (images * whole.deviation + whole.mean).round().to(torch.uint8)
        held += [(image.numpy().tobytes(), one) for image, one in zip(back, classes.tolist(), strict=True)]
    pixels, classes = whole.train.pixels, whole.train.classes.tolist()
    assert sorted(held) == sorted((image.numpy().tobytes(), one) for image, one in zip(pixels, classes))


def test_with_folds_the_test_part_is_met_by_a_network_trained_on_all_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = fast(vit_oialr, folds=2, train_samples=None)
    seen: list[tuple[int, object, object]] = []

    def nothing(model: Any, train_set: Any, validation_set: Any, **named: Any) -> Any:
        seen.append((len(train_set), validation_set, named["seed"]))
        return _Nothing()

    monkeypatch.setattr(trainers, "train", nothing)
    assert all("validation" not in one for one in task.tests(task.default, seeds=range(2)))
    assert seen == [(900, None, 0), (900, None, 1)]


# From search to use

QUICK = ["--epochs", "2", "--batch-size", "4", "--train-samples", "32", "--dim", "24", "--depth", "2"]
OPTIONS: dict[str, Any] = {"epochs": 2, "batch_size": 4, "train_samples": 32, "dim": 24, "depth": 2}
LOW = ["--delay", "1000", "--update-every", "300", "--sigma-cutoff", "0.5", "--lr", "1e-3"]


def main(*arguments: str) -> int:
    return int(vit_oialr.main(arguments))


def test_one_configuration_is_trained_and_its_model_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from safetensors import safe_open

    path = tmp_path / "model.safetensors"
    where = ["--directory", str(tmp_path / "run"), "--export", str(path)]
    for merge in ([], ["--merge"]):  # the second call goes on where the first has ended
        assert main(*QUICK, *LOW, *where, *merge) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["exported"] == str(path)
        with safe_open(path, "pt") as file:
            metadata, names = file.metadata(), set(file.keys())
        params, options = json.loads(metadata["params"]), json.loads(metadata["options"])
        assert params == found["params"]
        parts = vit_oialr.make_task(**options).options.parts()
        plain = vit_oialr.untrained(params, **options)
        assert (names == plain.state_dict().keys()) == bool(merge)
        # The oracle: the loss that the run itself ended with.
        again = trainers.evaluate(
            trainers.load_model(plain, path),
            parts.validation,
            metrics={"loss": torch.nn.functional.cross_entropy},
            batch_size=256,
        )
        assert again["loss"] == pytest.approx(found["validation_loss"], abs=1e-4)
    inputs = {name: torch.tensor(one).view(3, 1, 1) for name, one in json.loads(metadata["inputs"]).items()}
    raw, prepared = parts.train.pixels[0], parts.train.normalised(parts.mean, parts.deviation)[0][0]
    assert torch.allclose((raw - inputs["mean"]) / inputs["deviation"], prepared, atol=1e-5)


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The seed of each training that has done steps."""
    seeds: list[int] = []
    whole = trainers.train

    def train(*given: Any, seed: int, **keywords: Any) -> trainers.Result:
        checkpoint = keywords["checkpoint"]
        before = None if checkpoint is None else saved(checkpoint)
        result = whole(*given, seed=seed, **keywords)
        if checkpoint is None or saved(checkpoint) != before:
            seeds.append(seed)
        return result

    def saved(checkpoint: Path) -> list[str]:
        return sorted(f"{one.name} {one.stat().st_mtime_ns}" for one in checkpoint.glob("*"))

    monkeypatch.setattr(trainers, "train", train)
    yield seeds


@pytest.mark.parametrize("method", cases(["oialr"], nightly=["ddp", "ab"]))
def test_a_test_takes_the_training_of_the_evaluation_for_its_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], trainings: list[int], method: str
) -> None:
    """The oracle: other trainings with the same seeds."""
    task = vit_oialr.make_task(**OPTIONS, method=method)
    params = task.default
    others = task.tests(params, seeds=range(2))
    assert trainings == [0, 1]
    trainings.clear()
    (tmp_path / "one.json").write_text(json.dumps(params))
    arguments = ["--config", str(tmp_path / "one.json"), "--test-seeds", "2", "--method", method]
    assert main(*QUICK, *arguments, "--seed", "1") == 0
    assert trainings == [1, 0]
    found = json.loads(capsys.readouterr().out)
    assert found["test"] == pytest.approx(sum(other["test"] for other in others) / 2)
    for one, other in zip(found["tests"], others, strict=True):
        assert {**one, "train_s": 0} == {**other, "train_s": 0}


def test_trainings_of_a_test_that_are_saved_are_not_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], trainings: list[int]
) -> None:
    (tmp_path / "one.json").write_text(json.dumps(vit_oialr.default))
    arguments = ["--config", str(tmp_path / "one.json"), "--directory", str(tmp_path / "run")]
    assert main(*QUICK, *arguments, "--test-seeds", "2") == 0
    first = json.loads(capsys.readouterr().out)
    assert main(*QUICK, *arguments, "--test-seeds", "3") == 0
    second = json.loads(capsys.readouterr().out)
    assert trainings == [0, 1, 2]
    assert second["tests"][:2] == first["tests"]
    # With folds each has all samples, which none of the evaluation's trainings had.
    trainings.clear()
    assert main(*QUICK, *arguments[:2], "--folds", "2", "--test-seeds", "1") == 0
    assert len(trainings) == 3


def test_folds_leave_a_model_each_and_say_how_to_come_by_one(tmp_path: Path) -> None:
    assert main(*QUICK, "--folds", "2", "--directory", str(tmp_path / "run")) == 0
    trained = Trained(params={}, options={}, directory=tmp_path / "run")
    with pytest.raises(hpo.UsageError, match="--anew --export FILE --folds 0"):
        export(trained, tmp_path / "model.safetensors", make_task=vit_oialr.make_task, merge=False)
