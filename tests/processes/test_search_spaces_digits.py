from __future__ import annotations

import gzip
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cases import combinations
from gloo import run_ranks
from resuming import stopped

import hpo
import trainers
from search_spaces import digits
from search_spaces.building_blocks import image_task
from search_spaces.building_blocks.training import RECORDED
from search_spaces.networks import small_resnet
from search_spaces.readers import small_images
from search_spaces.readers.small_images import load_images

FAST = {"epochs": 1, "train_samples": 40, "batch_size": 20}


def trial(params: dict[str, Any], directory: Path) -> hpo.Trial:
    return hpo.Trial.alone(params, directory=directory)


def chosen(**values: Any) -> dict[str, Any]:
    """The default with ``values``, and what exists only then in the middle of its range."""
    return digits.space.decode(digits.space.encode({**digits.default, **values}))


def test_the_default_is_a_point_of_the_space_and_the_choices_are_those_of_the_model() -> None:
    assert digits.task.default == digits.space.validate(digits.default)
    assert digits.task.objectives == {"value": "maximize"}
    parameters = digits.space.parameters
    assert parameters["order"].choices == small_resnet.ORDERS  # type: ignore[attr-defined]
    assert set(parameters["activation"].choices) == set(small_resnet.ACTIVATIONS)  # type: ignore[attr-defined]


# Every activation and order takes a step in test_networks_resnet.
@pytest.mark.parametrize(
    ("optimizer", "schedule"),
    combinations(*(digits.space.parameters[name].values() for name in ("optimizer", "schedule"))),
)
def test_every_optimizer_and_schedule_trains(optimizer: str, schedule: str, tmp_path: Path) -> None:
    params = chosen(optimizer=optimizer, schedule=schedule, lr=0.01, warmup_epochs=1, width=4)
    watched = trial(params, tmp_path)
    found = digits.make_task(**FAST).evaluate(watched)
    assert set(found) == {"value", *RECORDED} and 0 <= found["value"] <= 1
    assert math.isfinite(found["train_loss"])
    assert watched.last_report == (1, found["value"])


def test_optimizers_get_their_own_parameters() -> None:
    def made(**values: Any) -> torch.optim.Optimizer:
        return digits._optimizer([torch.nn.Parameter(torch.zeros(1))], chosen(**values))

    sgd = made(optimizer="sgd", lr=0.5, momentum=0.75, nesterov=True, weight_decay=0.01)
    assert isinstance(sgd, torch.optim.SGD)
    given = {"lr": 0.5, "momentum": 0.75, "nesterov": True, "weight_decay": 0.01}
    assert given.items() <= sgd.defaults.items()
    assert made(optimizer="rmsprop", smoothing=0.9).defaults["alpha"] == 0.9
    adamw = made(optimizer="adamw", beta1=0.85, beta2=0.95, weight_decay=0.02)
    assert isinstance(adamw, torch.optim.AdamW)
    assert (adamw.defaults["betas"], adamw.defaults["weight_decay"]) == ((0.85, 0.95), 0.02)
    assert not isinstance(made(optimizer="adam"), torch.optim.AdamW)
    assert isinstance(made(optimizer="adagrad"), torch.optim.Adagrad)


def test_final_fraction_is_what_is_left_at_the_end_and_warm_up_leaves_half_of_a_short_run() -> None:
    for schedule in ("exponential", "inverse-time"):
        made = digits._schedule(chosen(schedule=schedule, final_fraction=0.02, warmup_epochs=2), 24)
        rates = [made.rate(0.5, epoch=epoch, epochs=24) for epoch in (2, 24)]
        assert rates == pytest.approx([0.5, 0.01])
    assert digits._schedule(chosen(warmup_epochs=4), 4).warmup_epochs == 2


def test_a_run_that_diverges_is_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    params = dict(chosen(optimizer="sgd", momentum=0.99, weight_decay=1e-6), lr=1e30)
    found = digits.make_task(**FAST).evaluate(trial(params, tmp_path))
    assert math.isnan(found["value"])


def test_the_search_never_reads_the_test_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = load_images("digits", train_samples=40)
    blind = small_images.ImageData(**{**vars(whole), "test": None})
    monkeypatch.setattr(small_images, "load_images", lambda data, train_samples=None: blind)
    digits.make_task(**FAST).evaluate(trial(dict(digits.default), tmp_path))
    with pytest.raises(TypeError, match="NoneType has no length"):
        digits.test_accuracy(digits.default, **FAST)


class Reporting(hpo.Trial):
    """Keeps which epochs it reports."""

    __slots__ = ("epochs",)

    def report(self, /, step: int, value: object, **metrics: object) -> None:
        self.epochs.append(step)


def reported(rank: int, directory: str) -> list[int]:
    size = torch.distributed.get_world_size()
    both = Reporting.alone(dict(digits.default), directory=directory, rank=rank, size=size)
    both.epochs = []
    digits.make_task(**{**FAST, "epochs": 3}).evaluate(both)
    return both.epochs


def test_an_interrupted_evaluation_goes_on_on_another_number_of_ranks(tmp_path: Path) -> None:
    task = digits.make_task(**{**FAST, "epochs": 3})
    in_second_epoch = task.optimizer_steps(task.options.parts()) // 3 + 1
    stopped(task, dict(digits.default), tmp_path, steps=in_second_epoch)
    assert run_ranks(2, reported, str(tmp_path)) == [[2, 3], [2, 3]]


# The data


def test_digits_parts_are_disjoint_and_whole() -> None:
    from sklearn.datasets import load_digits

    images, table = load_digits_parts(), load_digits()
    assert [len(part) for part in images] == [224, 674, 899]
    pixels = torch.cat([part.tensors[0] for part in images])
    classes = torch.cat([part.tensors[1] for part in images])
    # Of the standardised pixels the extremes are 0 and 16.
    raw = (pixels - pixels.min()) / (pixels.max() - pixels.min()) * 16
    found = zip(raw.round().view(-1, 64).tolist(), classes.tolist(), strict=True)
    whole = zip(table.images.reshape(-1, 64).tolist(), table.target.tolist(), strict=True)
    assert sorted((*row, one) for row, one in found) == sorted((*row, one) for row, one in whole)


def load_digits_parts() -> tuple[Any, Any, Any]:
    images = load_images("digits")
    return images.train, images.validation, images.test


def test_fewer_training_samples_change_nothing_else() -> None:
    whole, few = load_images("digits"), load_images("digits", train_samples=10)
    assert len(few.train) == 10
    assert torch.equal(few.train.tensors[1], whole.train.tensors[1][:10])
    assert torch.equal(few.test.tensors[1], whole.test.tensors[1])


def write_idx(path: Path, array: Any) -> None:
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    path.write_bytes(gzip.compress(b"\0\0\x08" + bytes([array.ndim]) + sizes + array.tobytes(), 1))


def test_fashion_mnist_is_read_from_idx_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_images, "FASHION_MNIST", tmp_path)
    load_images.cache_clear()
    rng = np.random.default_rng(0)
    classes = {
        part: rng.integers(0, 10, count, dtype=np.uint8)
        for part, count in (("train", 60_000), ("t10k", 10_000))
    }
    for part, labels in classes.items():
        # Every pixel of an image has its class as value, so that pairs can be told to have stayed together.
        write_idx(
            tmp_path / f"{part}-images-idx3-ubyte.gz",
            np.broadcast_to(labels[:, None, None], (len(labels), 28, 28)),
        )
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte.gz", labels)
    images = load_images("fashion-mnist", train_samples=1000)
    assert [len(part) for part in (images.train, images.validation, images.test)] == [1000, 10_000, 10_000]
    assert images.train.tensors[0].shape == (1000, 1, 28, 28)
    assert torch.equal(images.test.tensors[1], torch.from_numpy(classes["t10k"]).long())
    first, labels = images.train.tensors[0][:, 0, 0, 0], images.train.tensors[1]
    assert torch.corrcoef(torch.stack([first, labels.float()]))[0, 1] > 0.9999
    monkeypatch.setattr(small_images, "FASHION_MNIST", tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="apt-get install dataset-fashion-mnist"):
        load_images("fashion-mnist")


# The command line

QUICK = ["--epochs", "1", "--train-samples", "40"]


def main(*arguments: str) -> int:
    return int(digits.main(arguments))


def test_one_configuration_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(*QUICK, "--lr", "0.1", "--optimizer", "sgd", "--nesterov", "true", "--width", "8") == 0
    found = json.loads(capsys.readouterr().out)
    given = {"lr": 0.1, "optimizer": "sgd", "nesterov": True, "width": 8, "momentum": 0.745}
    assert given.items() <= found["params"].items()
    assert digits.space.validate(found["params"]) == found["params"]
    assert 0 <= found["value"] <= 1
    assert "test" not in found


def test_a_configuration_from_a_file_is_tested(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    params, path = chosen(lr=0.25), tmp_path / "best.json"
    for content in ([{"id": "0-0-1", "value": 0.9, "params": params}], {"params": params}, params):
        path.write_text(json.dumps(content))
        assert main(*QUICK, "--config", str(path), "--test-seeds", "1") == 0
        found = json.loads(capsys.readouterr().out)
        assert found["params"] == params
        assert 0 <= found["test"] <= 1


@pytest.mark.parametrize("content", ["no json", "[]", "3", '{"lr": 1}'])
def test_wrong_files(tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "best.json"
    path.write_text(content)
    assert main("--config", str(path)) == 2
    assert capsys.readouterr().err.startswith("search_spaces.digits: ")


def test_help_names_options_and_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main("--help")
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert all(option in shown for option in ("--weight-decay float", "--optimizer", "--train-samples int"))


def test_under_torchrun() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "search_spaces.digits", *QUICK, "--lr", "0.1"]
    done = subprocess.run(command, timeout=100, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["params"]["lr"] == 0.1
    assert found["bytes_inside_nodes"] > 0


def test_the_model_of_a_campaign_is_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, path = tmp_path / "campaign.toml", tmp_path / "best.safetensors"
    file.write_text(
        f"""
        task = "search_spaces.digits:make_task"
        directory = "{tmp_path / "run"}"
        evaluations = 2
        [task_options]
        epochs = 1
        train_samples = 40
        """
    )
    hpo.Campaign.from_file(file).run()
    best = hpo.Result(tmp_path / "run").best
    place = tmp_path / "run" / "evaluations" / best.id
    # As where a rank hung, and the individual went on in a copy.
    place.rename(place.with_name(f"{best.id}.attempt-2"))
    place.mkdir()
    capsys.readouterr()
    assert main("--campaign", str(tmp_path / "run"), "--export", str(path)) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["exported"] == str(path) and found["params"] == best.params
    model = trainers.load_model(digits.untrained(best.params), path)
    images = load_images("digits", train_samples=40)
    again = trainers.evaluate(
        model, images.validation, metrics={"accuracy": image_task.accuracy}, batch_size=256
    )
    assert again["accuracy"] == pytest.approx(best.value)
