"""A user's mistake is one sentence that names value, rule and remedy, before anything is trained; nothing is lost."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import stand_ins
import torch
from cases import nightly
from places import ROOT

import hpo
import trainers
from search_spaces import assignment, autoformer, bigearthnet, daso_intervals, digits, vit_ab, vit_oialr
from search_spaces.building_blocks import image_task, sources
from search_spaces.building_blocks.data_sets import augmentation
from search_spaces.readers import cifar, published, small_images
from search_spaces.standalone.torchrun import Place

ALL: list[ModuleType] = [vit_oialr, vit_ab, daso_intervals, assignment, digits, autoformer, bigearthnet]
QUICK = ["--epochs", "2", "--batch-size", "4", "--train-samples", "32", "--dim", "24", "--depth", "1"]
OPTIONS: dict[str, Any] = {"epochs": 2, "batch_size": 4, "train_samples": 32, "dim": 24, "depth": 1}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no data."""
    monkeypatch.chdir(tmp_path)


def main(module: ModuleType, *arguments: str) -> int:
    """As ``python -m``."""
    return int(module.main(arguments))


@pytest.fixture
def refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., str]]:
    """The one sentence with which a command is refused; nothing is trained meanwhile."""

    def trained(*_: object, **__: object) -> None:
        pytest.fail("something was trained")

    def refuse(module: ModuleType, *arguments: str) -> str:
        monkeypatch.setattr(trainers, "train", trained)
        assert main(module, *arguments) == 2
        shown = capsys.readouterr()
        assert not shown.out
        assert shown.err.startswith(f"{module.__name__}: ")
        assert shown.err.count("\n") == 1
        return shown.err

    yield refuse


# Options


def campaign_file(home: Path, module: ModuleType, options: dict[str, Any]) -> Path:
    """Of two random configurations, in ``home``/run."""
    lines = [
        f'task = "{module.__name__}:make_task"',
        f'directory = "{home / "run"}"',
        "evaluations = 2",
        '[search]\nkind = "random"\n[task_options]',
        *(f"{name} = {json.dumps(value)}" for name, value in options.items()),
    ]
    path = home / "campaign.toml"
    path.write_text("\n".join(lines))
    return path


# Options of each campaign that single rules, and rules of several options, refuse.
WRONG: list[tuple[ModuleType, dict[str, Any], dict[str, Any]]] = [
    (vit_ab, {"epochs": "one", "folds": 1, "precision": 8, "lr": -1.0, "data": 3}, {}),
    (vit_ab, {"network": ["vit"], "epochs": 0, "dim": 0, "heads": True, "width": "w", "group_size": 0}, {}),
    (vit_ab, {"warmup_epochs": 10.0, "heads": 6}, {"epochs": 2, "dim": 50}),
    (vit_oialr, {"batch_size": 0, "dim": "wide", "depth": 0, "augmentation": "zz", "folds": -1}, {}),
    (vit_oialr, {"train_samples": 451}, {}),
    (vit_oialr, {"folds": 400}, {"train_samples": 100}),
    (vit_oialr, {"second_objective": "trainable_fraction"}, {"method": "ddp"}),
    (vit_oialr, {"data": ""}, {}),
    (daso_intervals, {"epochs": 2.5, "network": "x", "warmup_epochs": 0.5, "ranks_per_node": 0}, {}),
    (daso_intervals, {"steps_on_link": -1, "validation_part": float("nan")}, {}),
    (daso_intervals, {"warmup_epochs": 1}, {"epochs": 2}),
    (daso_intervals, {"steps_on_link": 8.0, "network": "perceptron"}, {"method": "ab"}),
    (assignment, {"epochs": True, "precision": "fp8", "lr": float("inf"), "ranks_per_worker": 0}, {}),
    (digits, {"data": "cifar", "epochs": 0, "batch_size": False, "train_samples": "all"}, {}),
    (digits, {"train_samples": 225}, {}),
    (digits, {"small": True, "memory": 0.0001, "cost": "latency"}, {}),
    (digits, {"architecture": "wide", "memory": 0}, {}),
    (digits, {"init": "nowhere"}, {}),
    (autoformer, {"horizon": 4.0, "dim": 0, "dropout": 1.0, "loader_processes": -1, "patience": 0}, {}),
    (autoformer, {"start_token": 97, "moving_average": 4, "heads": 3}, {}),
    (bigearthnet, {"small": 1, "epochs": 0, "patches": 0, "precision": "fp8"}, {}),
    (bigearthnet, {"patches": 601}, {"small": True}),
    (bigearthnet, {"data": ""}, {}),
]


@pytest.mark.parametrize(("module", "wrong", "others"), WRONG)
def test_wrong_options_are_refused_together(
    module: ModuleType, wrong: dict[str, Any], others: dict[str, Any]
) -> None:
    """A line for each: option and value, a rule, and a remedy; nothing is said of options that are right."""
    with pytest.raises(hpo.UsageError) as refused:
        module.make_task(**wrong, **others)
    lines = str(refused.value).splitlines()
    said = [line.split(": ")[0].split(",")[0] for line in lines]
    assert sorted(said) == sorted(f"{name} = {value!r}" for name, value in wrong.items())
    for line in lines:
        rule, _, remedy = line.partition(": ")[2].rpartition(". ")
        assert rule and remedy.endswith(".")


@pytest.mark.parametrize("module", ALL)
def test_data_that_are_not_there_end_a_campaign_before_it_begins(module: ModuleType, tmp_path: Path) -> None:
    file = campaign_file(tmp_path, module, {"data": "/nonexistent"})
    with pytest.raises(hpo.UsageError, match=r"data = '/nonexistent': "):
        hpo.Campaign.from_file(file)
    assert not (tmp_path / "run").exists()


def test_checks_need_no_torch() -> None:
    code = "import sys, search_spaces.readers.imagenet; "
    code += "from search_spaces import autoformer, bigearthnet, digits, vit_ab; "
    code += "autoformer.make_task(); bigearthnet.make_task(small=True); vit_ab.make_task(folds=2); "
    code += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_names_said_without_torch_are_those_of_the_readers() -> None:
    assert tuple(augmentation.AUGMENTATIONS) == image_task.AUGMENTATIONS
    assert tuple(small_images.SETS) == tuple(digits.TRAINING_IMAGES)
    assert len(published.CIFAR_ARCHIVES_BYTES) == len(cifar.ARCHIVES)
    assert tuple(form.names for form in cifar._FORMS) == published.CIFAR_FORMS
    assert len(cifar.read_cifar("digits").train) == published.PACKAGED_IMAGES["digits"]
    with pytest.raises(ValueError, match=f"digits has {digits.TRAINING_IMAGES['digits']} to train with"):
        small_images.load_images("digits", train_samples=10_000)


@pytest.mark.parametrize("form", range(4))
def test_a_folder_must_have_all_files_whole(form: int, tmp_path: Path) -> None:
    one = published.CIFAR_FORMS[form]
    whole = stand_ins.cifar_folder(tmp_path / "data" / one.folder, form, images=4)
    for named in (whole, whole.parent):
        found = sources.training_images(str(named))
        assert found == (4 * len(one.train) if one.record_bytes else None)
    (whole / one.test).write_bytes(b"\0" * 3072 if one.record_bytes else b"")
    with pytest.raises(hpo.UsageError, match=rf"^data = .*{one.test} has .* bytes"):
        vit_ab.make_task(data=str(whole))
    (whole / one.test).unlink()
    for named, lacks in ((whole, one.test), (tmp_path, "no files of CIFAR")):
        with pytest.raises(hpo.UsageError, match=rf"^data = .*{lacks}"):
            vit_ab.make_task(data=str(named))


def test_an_archive_must_have_a_published_size(tmp_path: Path) -> None:
    archive = stand_ins.cifar_archive(tmp_path / "cifar.tar.gz")
    assert vit_oialr.make_task(data=str(archive), train_samples=25_000)
    with pytest.raises(hpo.UsageError, match="25000"):
        vit_oialr.make_task(data=str(archive), train_samples=25_001)
    os.truncate(archive, 170_052_170)
    with pytest.raises(hpo.UsageError, match=r"^data = .* 170052170 bytes"):
        vit_oialr.make_task(data=str(archive))


def test_a_csv_must_begin_as_one(tmp_path: Path) -> None:
    stand_ins.series(tmp_path / "series.csv")
    assert autoformer.make_task(data="series.csv")
    (tmp_path / "series.csv").write_bytes(b"PK\3\4")
    for data in ("series.csv", "."):
        with pytest.raises(hpo.UsageError, match=re.escape(repr(data))):
            autoformer.make_task(data=data)


def test_a_store_must_be_whole(tmp_path: Path) -> None:
    data = str(stand_ins.bigearthnet(tmp_path / "store"))
    assert bigearthnet.make_task(data=data, patches=2)
    parts = bigearthnet.Options(data=data, patches=2).parts()
    assert [len(part) for part in (parts.train, parts.validation, parts.test)] == [2, 1, 1]  # type: ignore[arg-type]

    def refused(part: str, data: Path = tmp_path / "store", **options: Any) -> None:
        with pytest.raises(hpo.UsageError, match=part):
            bigearthnet.make_task(data=str(data), **options)

    refused("^patches = 3: .*2", patches=3)
    os.truncate(tmp_path / "store" / "pixels.npy", 1000)
    refused(r"pixels\.npy is damaged")
    (tmp_path / "store" / "pixels.npy").unlink()
    refused(r"no pixels\.npy")
    (tmp_path / "store" / "patches.npy").rename(tmp_path / "store" / "patches.partial.npy")
    refused("is not complete")
    refused("holds no BigEarthNet", tmp_path)
    refused("B01, B04", stand_ins.bigearthnet(tmp_path / "two", bands=("B02", "B03")))
    refused("no patches for test", stand_ins.bigearthnet(tmp_path / "none", patches=(1, 1, 0)))


def test_small_makes_up_its_patches_where_there_are_no_real_patches(tmp_path: Path) -> None:
    for name in (
        "patches.npy",
        "patches.partial.npy",
        "S2A_MSIL2A_2017_0_45/",
        "BigEarthNet-S2/",
    ):
        home = tmp_path / f"home-{name.strip('/')}"
        (home / "made-up-patches-1200-seed-0").mkdir(parents=True)
        assert bigearthnet.make_task(small=True, data=str(home))
        (home / name).mkdir() if name[-1] == "/" else (home / name).touch()
        with pytest.raises(hpo.UsageError, match=f"holds {name.strip('/')}, and small = true"):
            bigearthnet.make_task(small=True, data=str(home))


# The command line


@pytest.mark.parametrize(
    ("module", "arguments", "names"),
    [
        (digits, ["--data", "/nonexistent"], ["data = '/nonexistent': "]),
        (vit_ab, ["--epochs", "0"], ["epochs = '0': must be "]),
        (vit_oialr, ["--epochs", "few"], ["epochs = 'few': must be "]),
        (digits, ["--lr", "5"], ["lr = '5': must be ", "0.0001 to 1.0"]),
        (digits, ["--optimizer", "adma"], ["optimizer = 'adma'", 'Did you mean "adam"?']),
        (digits, ["--optimiser", "sgd"], ["--optimiser sgd", '"--optimizer"']),
        (digits, ["--learning-rate", "5"], ["--learning-rate 5", "--config, "]),
        (digits, ["--momentum", "0.9"], ["momentum", "optimizer is 'sgd'"]),
        (daso_intervals, ["--sync-every", "3"], ["sync_every = '3': must be ", "1, 2, 4, 8, 16, 32"]),
        (daso_intervals, ["--directory", "a-file"], ["--directory a-file: "]),
        (vit_oialr, ["--export", "."], ["--export .: "]),
        (vit_oialr, ["--export", "/proc/none/model"], ["--export /proc/none/model: "]),
        (vit_oialr, ["--export", "m" * 250], ["cannot be written: [Errno 36]"]),
        (vit_oialr, ["--export", "model", "--folds", "2"], ["--folds 2 ", "Add --folds 0"]),
        (vit_oialr, ["--merge"], ["--merge ", "add --export"]),
        (vit_oialr, ["--id", "0-0-1"], ["--id ", "add --campaign"]),
        (vit_oialr, ["--anew"], ["--anew ", "add --campaign"]),
        (vit_oialr, ["--test-seeds", "2"], ["--test-seeds ", "add --config or --campaign"]),
        (vit_oialr, ["--config", "a", "--test-seeds", "0"], ["test_seeds = '0': must be "]),
        (vit_oialr, ["--config", "a", "--campaign", "b"], ["--config and --campaign"]),
        (vit_oialr, ["--config", "gone.json"], ["gone.json"]),
        (vit_oialr, ["--config", "a-file"], ["a-file"]),
        (vit_oialr, ["--campaign", "a", "--export", "b", "--epochs", "3"], ["--epochs ", "--anew"]),
        (vit_oialr, ["--campaign", "a", "--export", "b", "--lr=0.1"], ["--lr ", "--anew"]),
        (vit_oialr, ["--campaign", "a", "--export", "b", "--seed", "0"], ["--seed ", "--anew"]),
        (vit_oialr, ["--delay", "10000"], ["constraint drops_rank refuses {", "'delay': 10000"]),
        (vit_oialr, ["--config", "one.json"], ["constraint drops_rank refuses {", "'delay': 10000"]),
        (
            daso_intervals,
            ["--sync-every", "4", "--sync-delay", "8"],
            ["one_at_a_time", "merged before the next"],
        ),
        (
            assignment,
            ["--ranks-per-worker", "1", "--assignment", "fine-grained"],
            ["constraint fits refuses {", "ranks_per_worker = 1"],
        ),
        (assignment, [], ["ranks_per_worker = 4: ", "there are 1"]),
    ],
)
def test_a_wrong_command_is_refused_in_one_sentence(
    refused: Callable[..., str], tmp_path: Path, module: ModuleType, arguments: list[str], names: list[str]
) -> None:
    (tmp_path / "a-file").touch()
    (tmp_path / "one.json").write_text(json.dumps({"params": {**vit_oialr.default, "delay": 10_000}}))
    sentence = refused(module, *arguments)
    assert all(name in sentence for name in names), sentence
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a-file", "one.json"]


def test_each_wrong_option_of_a_command_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(vit_ab, "--epochs", "0", "--lr", "-1") == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("search_spaces.vit_ab: epochs = '0': must be ")
    assert second.startswith("search_spaces.vit_ab: lr = '-1': must be ")


def test_data_that_are_something_else_are_told_of_in_a_sentence(
    refused: Callable[..., str], tmp_path: Path
) -> None:
    archive = stand_ins.cifar_archive(tmp_path / "cifar.tar.gz")
    os.truncate(archive, published.CIFAR_ARCHIVES_BYTES[2])
    assert "none of the published archives" in refused(vit_ab, "--data", str(archive))
    # Whole by its size, and of a class that there is not.
    folder = stand_ins.cifar_folder(tmp_path / "cifar")
    (folder / "test_batch.bin").write_bytes(b"\x63" + b"\0" * 3072)
    assert "test_batch.bin has the class 99" in refused(vit_ab, "--data", str(folder))
    stand_ins.series(tmp_path / "series.csv")
    assert "has no two rows" in refused(autoformer, "--data", "series.csv")
    cifar.read_cifar.cache_clear()


def test_a_directory_of_other_settings_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(vit_oialr, *QUICK, "--directory", "run") == 0
    capsys.readouterr()
    assert main(vit_oialr, *QUICK, "--directory", "run", "--seed", "1") == 2
    told = capsys.readouterr().err
    assert "seed was 0, is 1" in told and told.count("\n") == 1


def test_an_error_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*_: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(torch.nn.functional, "cross_entropy", wrong)
    with pytest.raises(ValueError, match="a bug") as raised:
        main(vit_oialr, *QUICK)
    assert not isinstance(raised.value, hpo.HpoError)


def test_a_run_of_few_steps_trains_what_the_constraint_allows(tmp_path: Path) -> None:
    for epochs, samples in ((1, 4), (2, 8), (3, 4)):
        task = vit_oialr.make_task(**{**OPTIONS, "epochs": epochs, "train_samples": samples})
        params = {**vit_oialr.default, "delay": 5900, "update_every": 200}
        assert task.allows(params)
        trial = hpo.Trial.alone(params, directory=tmp_path / f"{epochs}-{samples}")
        assert isinstance(task.evaluate(trial), dict)


@pytest.mark.parametrize(
    ("devices", "neighbours", "names", "backend"),
    [
        (0, 2, ["cpu", "cpu"], "gloo"),
        (2, 2, ["cuda:0", "cuda:1"], "cpu:gloo,cuda:nccl"),
        (4, 2, ["cuda:0", "cuda:1"], "cpu:gloo,cuda:nccl"),
        (2, 5, ["cuda:0", "cuda:1", "cuda:0", "cuda:1", "cuda:0"], "gloo"),
    ],
)
def test_ranks_of_torchrun_take_their_nodes_devices_in_turn(
    devices: int, neighbours: int, names: list[str], backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(neighbours))
    monkeypatch.setattr("torch.cuda.device_count", lambda: devices)
    store = torch.distributed.HashStore()
    places = [Place(rank=rank, size=neighbours, local_rank=rank, store=store) for rank in range(neighbours)]
    assert [place.device for place in places] == names
    assert {place.backend for place in places} == {backend}
    assert Place().device == ("cuda:0" if devices else "cpu")


@nightly
def test_under_torchrun_it_is_said_once_and_first() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "search_spaces.digits", "--epochs", "0"]
    done = subprocess.run(command, cwd=ROOT, timeout=100, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    sentence = "search_spaces.digits: epochs = '0': must be "
    assert done.stderr.count(sentence) == 1
    assert done.stderr.index(sentence) < done.stderr.index("ChildFailedError")
    # The only traceback is that of torchrun itself.
    assert done.stderr.count("Traceback (most") == 1


# From a campaign to a model


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """VGG16 searched for with data of its own: three folders' worth of digits."""
    home = tmp_path_factory.mktemp("campaign")
    data = home / "data"
    data.mkdir()
    for name, content in cifar.as_cifar("digits").items():
        (data / name).write_bytes(content)
    options = {"network": "vgg16", "width": 4, "epochs": 1, "batch_size": 8, "train_samples": 24}
    hpo.Campaign.from_file(campaign_file(home, vit_ab, {"data": str(data), **options})).run()
    shutil.rmtree(data)
    return home / "run"


def exported(path: Path) -> tuple[dict[str, Any], torch.nn.Module]:
    """As README's use_best.py."""
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        found = {name: json.loads(file.metadata()[name]) for name in ("params", "options", "network")}
        module = importlib.import_module(file.metadata()["module"])
    network = module.untrained(found["params"], **found["options"], **found["network"])
    return found, trainers.load_model(network, path).eval()


def test_a_model_is_used_without_its_data(
    campaign: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "new" / "model.safetensors"
    assert main(vit_ab, "--campaign", str(campaign), "--export", str(path)) == 0
    found, model = exported(path)
    assert found["network"] == {"classes": 10}
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    # What was trained before that was noted asks for the data.
    best = campaign / "evaluations" / hpo.Result(campaign).best.id
    (best / "network.json").rename(best / "away.json")
    capsys.readouterr()
    assert main(vit_ab, "--campaign", str(campaign), "--export", str(path)) == 2
    assert f"data = {found['options']['data']!r}: is not there" in capsys.readouterr().err
    (best / "away.json").rename(best / "network.json")
    assert main(vit_ab, "--campaign", str(campaign), "--export", str(path), "--id", "9-9-9") == 2
    assert "9-9-9" in capsys.readouterr().err
    assert vit_oialr.main(["--campaign", str(campaign), "--export", str(path)]) == 2
    assert "python -m search_spaces.vit_ab" in capsys.readouterr().err


def test_the_options_of_a_campaign_come_along(
    campaign: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    best = hpo.Result(campaign).best
    path = tmp_path / "model.safetensors"
    more = ["--data", "digits", "--test-seeds", "1"]
    assert main(vit_ab, "--campaign", str(campaign), *more, "--anew", "--export", str(path)) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["params"] == best.params
    assert {"network": "vgg16", "width": 4, "data": "digits", "heads": 6}.items() <= found["options"].items()
    assert 0 <= found["test"] <= 1
    assert "VGG" in repr(exported(path)[1])
    # As `hpo best --json` might write it.
    entry = {"id": best.id, "params": best.params, "options": {"network": "vgg16", "width": 4}}
    (tmp_path / "best.json").write_text(json.dumps([entry]))
    small = ["--train-samples", "16", "--batch-size", "8", "--epochs", "1", "--test-seeds", "1"]
    assert main(vit_ab, "--config", "best.json", *small, "--width", "2") == 0
    found = json.loads(capsys.readouterr().out)
    assert {"network": "vgg16", "width": 2, "train_samples": 16}.items() <= found["options"].items()


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({"options": {"colour": "red"}}, "colour"),
        ({"task": "search_spaces.vit_oialr:make_task"}, "python -m search_spaces.vit_oialr"),
        ({"options": {"epochs": "one"}}, "epochs = 'one': must be "),
    ],
)
def test_options_of_a_file_that_do_not_fit(
    refused: Callable[..., str], tmp_path: Path, entry: dict[str, Any], told: str
) -> None:
    (tmp_path / "best.json").write_text(json.dumps({"params": vit_ab.default, **entry}))
    assert told in refused(vit_ab, "--config", "best.json")


@pytest.mark.parametrize("damage", ["cut", "empty", "gone", "text", "not kept"])
def test_a_damaged_checkpoint_is_said_to_be_so(
    refused: Callable[..., str], campaign: Path, tmp_path: Path, damage: str
) -> None:
    copy = shutil.copytree(campaign, tmp_path / "copy")
    (shared,) = (copy / "evaluations" / hpo.Result(copy).best.id).glob("*-ranks/step-*/shared.pt")
    if damage == "not kept":
        shutil.rmtree(shared.parents[1])
    elif damage == "gone":
        shared.unlink()
    elif damage == "text":
        shared.write_text("no tensors")
    else:
        os.truncate(shared, shared.stat().st_size // 2 if damage == "cut" else 0)
    told = refused(vit_ab, "--campaign", str(copy), "--export", "model.safetensors")
    what = {"gone": "is missing", "not kept": "has no checkpoint"}.get(damage, "is damaged")
    assert what in told and "--anew --export FILE" in told
    assert not list(tmp_path.glob("model*"))
