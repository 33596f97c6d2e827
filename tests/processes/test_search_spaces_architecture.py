"""Deep architectures, progressive search and transfer, in the campaigns that come with hpo."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import cases
from torch import nn

import hpo
import trainers
from hpo import cli
from hpo.individual import COMPLETED, FAILED
from search_spaces import assignment, bigearthnet, daso_intervals, digits, vit_ab, vit_oialr
from search_spaces.building_blocks.architecture_search.deep_network import latency_ms
from search_spaces.networks.deep_resnet import DeepResNet, start_new_blocks_as_identity

NEW = ("blocks1", "blocks2", "blocks3", "blocks4", "bottleneck", "kernel", "stem", "groups", "squeeze")
IMAGES = (digits, vit_oialr, vit_ab, assignment, daso_intervals)
DEEP: dict[str, Any] = {"architecture": "deep", "epochs": 1, "train_samples": 32}


class Begun(Exception):
    """Nothing more is trained."""


def count(network: nn.Module) -> int:
    return sum(one.numel() for one in network.parameters())


# --- the space -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("small", [True, False])
def test_the_default_of_bigearthnet_is_the_sources_network(small: bool, tmp_path: Path) -> None:
    options: dict[str, Any] = {"small": small}
    if small:
        source, deep = (bigearthnet.make_task(**options, architecture=one) for one in ("source", "deep"))
        assert source.objectives == {"value": "maximize"}
        assert deep.objectives == {"micro_f1": "maximize", "parameters": "minimize"}
        assert set(deep.space.parameters) == {*source.space.parameters, *NEW}
        default = deep.default
    else:
        default = {
            **bigearthnet.default_for(), **dict(zip(NEW, (3, 4, 6, 3, 4, 3, "convolution", 1, 0.0), strict=True))
        }  # fmt: skip
    with torch.device("meta"):
        networks = [bigearthnet.untrained(default, **options, architecture=one) for one in ("source", "deep")]
    assert isinstance(networks[1], DeepResNet)
    assert count(networks[0]) == count(networks[1])
    if not small:
        # 25 557 032 with three channels and a thousand classes.
        assert count(networks[1]) == 25_557_032 + 9 * 64 * 49 - 981 * 2049


def test_a_deep_network_of_ab_training_begins_orthogonal() -> None:
    options = {"architecture": "deep", "small": True}
    network = vit_ab.untrained(vit_ab.make_task(**options).default or {}, **options, classes=10)
    weight = network.get_parameter("classifier.weight").detach()
    torch.testing.assert_close(weight @ weight.T, torch.eye(len(weight)))


@pytest.mark.parametrize("campaign", IMAGES, ids=lambda one: one.__name__.split(".")[1])
def test_image_campaigns_have_deep_networks(campaign: Any) -> None:
    source, deep = campaign.make_task(), campaign.make_task(architecture="deep")
    added = set(deep.space.parameters) - set(source.space.parameters)
    assert added >= set(NEW) and set(source.space.parameters) <= set(deep.space.parameters)
    assert deep.objectives == {"accuracy": "maximize", "parameters": "minimize"}
    assert campaign.make_task(architecture="deep", cost="none").objectives == source.objectives
    rng = random.Random(0)
    for params in (deep.default, *(deep.space.decode(deep.space.sample(rng)) for _ in range(3))):
        with torch.device("meta"):
            network = campaign.untrained(params, architecture="deep", classes=7) if campaign is not digits else (
                digits.untrained(params, architecture="deep")
            )  # fmt: skip
        assert isinstance(network, DeepResNet)
        assert [len(stage) for stage in network.stages] == [params[f"blocks{one}"] for one in range(1, 5)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "campaign", cases([digits, vit_oialr], nightly=IMAGES[2:]), ids=lambda one: one.__name__.split(".")[1]
)
def test_a_small_deep_network_trains_in_seconds(campaign: Any, tmp_path: Path) -> None:
    own: dict[Any, dict[str, Any]] = {
        assignment: {"ranks_per_worker": 1},
        daso_intervals: {"warmup_epochs": 0, "cooldown_epochs": 0},
    }
    task = campaign.make_task(**DEEP, **own.get(campaign, {}), small=True)
    assert set(NEW) <= set(task.space.parameters)
    rng = random.Random(1)
    params = next(
        one for one in iter(lambda: task.space.decode(task.space.sample(rng)), None) if task.allows(one)
    )
    found = task.evaluate(hpo.Trial.alone(params, directory=tmp_path))
    assert set(task.objectives) <= set(found)
    with pytest.raises(hpo.UsageError):
        task.space.validate({**params, "blocks4": 3})


# --- one evaluation ------------------------------------------------------------------------------------------------


def test_an_evaluation_has_score_and_cost(tmp_path: Path) -> None:
    task = digits.make_task(**DEEP, cost="latency")
    assert task.objectives == {"accuracy": "maximize", "latency_ms": "minimize"}
    found = task.evaluate(hpo.Trial.alone(task.default, directory=tmp_path))
    assert 0 <= found["accuracy"] <= 1 and found["latency_ms"] > 0
    assert found["parameters"] == count(digits.untrained(task.default, architecture="deep"))
    network = nn.Sequential(nn.BatchNorm2d(3)).train()
    assert latency_ms(network, (3, 4, 4)) > 0
    assert network.training and int(network[0].num_batches_tracked) == 0  # it is left as it was


def test_what_does_not_fit_is_a_failure_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(*_: object, **__: object) -> None:
        raise AssertionError("nothing may be trained")

    monkeypatch.setattr(trainers, "train", train)
    task = digits.make_task(**DEEP, memory=0.0001)
    result = hpo.Campaign(task, directory=tmp_path / "run", evaluations=1, isolation="inline").run()
    [one] = result.individuals
    assert one.status == FAILED and one.error is not None
    assert "not trained, as it would not fit into memory" in one.error and "32 samples a rank" in one.error


# --- growth --------------------------------------------------------------------------------------------------------


def test_a_new_block_with_synchronised_norms_begins_by_its_norm() -> None:
    network = digits.untrained(
        {**(digits.make_task(**DEEP).default or {}), "blocks1": 2}, architecture="deep"
    )
    convolution = network.stages[0][1].branch  # type: ignore[index,union-attr]
    before = [one.weight.clone() for one in convolution.modules() if isinstance(one, nn.Conv2d)]
    synchronised = nn.SyncBatchNorm.convert_sync_batchnorm(network)
    start_new_blocks_as_identity(synchronised, {})
    block = synchronised.stages[0][1].branch  # type: ignore[index,union-attr]
    norms = [one for one in block.modules() if isinstance(one, nn.SyncBatchNorm)]
    assert float(norms[-1].weight.detach().abs().max()) <= 1e-4
    after = [one.weight for one in block.modules() if isinstance(one, nn.Conv2d)]
    assert all(map(torch.equal, before, after))


def test_an_individual_begins_with_what_its_parent_has_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = digits.make_task(**DEEP)
    params = {**(task.default or {}), "width": 4}
    task.evaluate(hpo.Trial.alone(params, directory=tmp_path / "parent"))
    begun: list[nn.Module] = []

    def train(model: nn.Module, *_: object, **__: object) -> None:
        begun.append(model)
        raise Begun

    monkeypatch.setattr(trainers, "train", train)
    monkeypatch.setattr(hpo.Trial, "parent_checkpoint", tmp_path / "parent")
    with pytest.raises(Begun):
        task.evaluate(hpo.Trial.alone({**params, "blocks2": 2}, directory=tmp_path / "child"))
    parent = trainers.load_trained(
        digits.untrained(params, architecture="deep"), tmp_path / "parent" / "1-ranks"
    )
    images = torch.rand(8, 1, 8, 8)
    assert len(begun[0].stages[1]) == 2  # type: ignore[arg-type,index]
    assert torch.allclose(begun[0].eval()(images), parent.eval()(images), atol=1e-5)


# --- transfer ------------------------------------------------------------------------------------------------------


def test_a_search_begins_with_the_model_and_the_points_of_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As README has it."""
    weights, points = tmp_path / "best.safetensors", tmp_path / "best.json"
    options = {**DEEP, "small": True, "cost": "none"}

    def searched(name: str, **more: Any) -> hpo.Result:
        lines = [
            'task = "search_spaces.digits:make_task"',
            f'directory = "{tmp_path / name}"',
            "evaluations = 2",
            f"points = {[str(points)] if more else []}",
            'evaluation.isolation = "inline"',
            "[task_options]",
            *(f"{name} = {json.dumps(value)}" for name, value in {**options, **more}.items()),
        ]
        (tmp_path / f"{name}.toml").write_text("\n".join(lines))
        return hpo.Campaign.from_file(tmp_path / f"{name}.toml").run()

    before = searched("first")
    assert digits.main(["--campaign", str(before.directory), "--export", str(weights), "--merge"]) == 0
    capsys.readouterr()
    assert cli.main(["best", str(before.directory), "--json", "--top", "1"]) == 0
    points.write_text(capsys.readouterr().out)
    after = searched("second", init=str(weights), batch_size=16)
    begun = next(one for one in after.individuals if one.params == before.best.params)
    assert begun.status == COMPLETED and 0 <= (begun.value or 0.0) <= 1
    printed = (after.directory / "evaluations" / begun.id).glob("output-*")
    text = capsys.readouterr().err + "".join(one.read_text() for one in printed)
    # Its own network takes all; the default's may take fewer.
    assert any(taken == there for taken, there in re.findall(r"(\d+) of (\d+) tensors taken", text))
