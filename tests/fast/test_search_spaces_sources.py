"""Settings of the campaigns are those of their sources, and each campaign file fits its task."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from places import JOBS
from stand_ins import bigearthnet as made_store
from stand_ins import cifar_archive, imagenet, series

import hpo
import trainers
from search_spaces import autoformer, bigearthnet, daso_intervals, vit_ab, vit_oialr
from search_spaces.building_blocks import sources
from search_spaces.building_blocks.patch_task import PUBLISHED_BANDS, f1_metrics
from search_spaces.building_blocks.recipe_parts import optimizers
from search_spaces.building_blocks.recipe_parts.schedules import HalvedEachEpoch, TimmCosine, cosine
from search_spaces.building_blocks.recipes import Run
from search_spaces.readers.made_up_scenes import write_made_up

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@pytest.fixture(scope="module")
def _data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    made_store(home / "data" / "bigearthnet")
    imagenet(home / "data" / "imagenet")
    write_made_up(home / "data" / "cityscapes", scenes=1)
    series(home / "data" / "ETTm2.csv")
    for archive in ("cifar-10", "cifar-100"):
        cifar_archive(home / "data" / f"{archive}-binary.tar.gz")
    return home


@pytest.mark.parametrize("file", sorted(JOBS.glob("*.toml")), ids=lambda file: file.stem)
def test_campaign_files_fit_their_tasks(file: Path, _data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if file.stem.startswith("autoformer"):
        pytest.importorskip("transformers")
    monkeypatch.chdir(_data)
    monkeypatch.setattr(sources, "FASHION_MNIST", _data)
    campaign = hpo.Campaign.from_file(file)
    task, settings = campaign.task, campaign.settings
    assert task.allows(task.default or {})
    assert getattr(task, "_ranks", None) in (None, settings.layout.ranks_per_worker)
    if file.stem == "bigearthnet_islands":  # together the islands have every optimizer
        homes = [settings.search_of(island).only["optimizer"] for island in range(settings.layout.islands)]
        assert {one for home in homes for one in home} == set(optimizers.OPTIMIZERS)
    if file.stem in ("vit_oialr", "autoformer"):  # tables A.3 and A.5
        search = settings.search_of(0)
        assert (search.crossover, search.mutation, search.random, search.migration) == (0.7, 0.4, 0.1, 0.9)
        assert settings.layout.islands == (8 if file.stem == "vit_oialr" else 4)
    if file.stem in ("vit_oialr", "autoformer", "vit_ab", "vgg_ab"):
        assert settings.task_options["cosine"] == "timm"


def options_of(name: str) -> dict[str, Any]:
    """[task_options] of a campaign file."""
    found: dict[str, Any] = tomllib.loads((JOBS / f"{name}.toml").read_text())["task_options"]
    return found


def test_timm_s_cosine_counts_from_the_run_s_start() -> None:
    tuned: dict[str, Any] = vit_oialr.TUNED
    found = cosine("timm", warmup_epochs=17, warmup_lr=8e-5, min_lr=tuned["min_lr"], k_decay=tuned["k_decay"])
    assert isinstance(found, TimmCosine)

    def rate(epoch: float) -> float:
        return found.rate(2e-4, epoch=epoch, epochs=125)

    # As timm: lr_min + 0.5 (lr - lr_min) (1 + cos(π t^k / T^k)).
    for epoch in (17, 40, 125):
        share = epoch**0.4 / 125**0.4
        assert rate(epoch) == pytest.approx(8e-4 + 0.5 * (2e-4 - 8e-4) * (1 + math.cos(math.pi * share)))
    assert rate(17) == pytest.approx(4.53e-4, rel=0.01)
    assert rate(8.5) == pytest.approx((8e-5 + 2e-4) / 2)
    ours = cosine("after-warm-up", warmup_epochs=17, warmup_lr=8e-5, min_lr=8e-4, k_decay=0.4)
    assert type(ours) is trainers.Cosine
    assert ours.rate(2e-4, epoch=17, epochs=125) == pytest.approx(2e-4)


def test_type1_halves_the_rate_from_the_third_epoch_on() -> None:
    rates = [HalvedEachEpoch().rate(4e-4, epoch=epoch, epochs=20) for epoch in (0, 0.99, 1.5, 2, 2.9, 3)]
    assert rates == pytest.approx([4e-4, 4e-4, 4e-4, 2e-4, 2e-4, 1e-4])


def test_schedules_reach_the_recipe() -> None:
    run = Run(data={"classes": 10, "features": 7, "time_features": 4}, steps=100)
    small: dict[str, Any] = {"dim": 24, "depth": 1}
    for module in (vit_oialr, vit_ab):
        recipe = module.recipe(dict(module.default), module.Options(cosine="timm", **small), run)
        assert isinstance(recipe.schedule, TimmCosine)
    pytest.importorskip("transformers")
    tiny: dict[str, Any] = {"dim": 16, "linear_dim": 16, "heads": 2}
    for chosen, kind in (({"cosine": "timm"}, TimmCosine), ({"schedule": "type1"}, HalvedEachEpoch)):
        recipe = autoformer.recipe(dict(autoformer.default), autoformer.Options(**chosen, **tiny), run)
        assert type(recipe.schedule) is kind
    # Section 4.4 has AdamW throughout.
    assert type(recipe.optimizer(recipe.network.parameters())) is torch.optim.AdamW


def test_vgg16_s_own_point_is_searched() -> None:
    """Table A.9."""
    task = vit_ab.make_task(network="vgg16", width=4)
    assert task.space.validate(vit_ab.VGG16) == task.points[0]
    assert vit_ab.VGG16["warmup"] == pytest.approx(0.589, abs=1e-3)
    assert vit_ab.make_task().space.describe() == vit_ab.space.describe()
    with pytest.raises(hpo.UsageError, match="warmup"):
        vit_ab.space.validate(vit_ab.VGG16)


def test_the_vit_of_ab_has_a_drop_path() -> None:
    options = vit_ab.Options(dim=24, depth=2, drop_path=0.1)
    network = vit_ab.recipe(dict(vit_ab.default), options, Run(data={"classes": 10})).network
    rates = [module.rate for name, module in network.named_modules() if name.endswith("drop_path")]
    assert rates == pytest.approx([0.0, 0.1])
    assert options_of("vit_ab")["drop_path"] == 0.1


# BigEarthNet


def test_the_published_baseline_can_be_run(tmp_path: Path) -> None:
    """ResNet-50 with Adam on ten bands."""
    task = bigearthnet.make_task(data=str(made_store(tmp_path / "store")), bands="published")
    p: dict[str, Any] = dict(task.default or {})
    assert (p["filters"], p["optimizer"], p["activation"], p["lr"]) == (64, "adam", "relu", 1e-3)
    network = bigearthnet.untrained(p, bands="published")
    assert next(network.parameters()).shape[1] == 10
    # A store without the two bands serves, too.
    few = str(made_store(tmp_path / "few", bands=PUBLISHED_BANDS))
    parts = bigearthnet.Options(data=few, bands="published", upsampling="bicubic").parts()
    assert parts.train[0][0].shape == (10, 120, 120)
    with pytest.raises(hpo.UsageError, match="B01, B09"):
        bigearthnet.make_task(data=few)


@pytest.mark.parametrize("bands", ["", "B02,B10", "B02,B02", "some"])
def test_bands_that_are_not_there(bands: str) -> None:
    with pytest.raises(hpo.UsageError, match=rf"^bands = {bands!r}: must be all, published"):
        bigearthnet.Options(small=True, bands=bands)
    assert bigearthnet.Options(bands="B04,B03,B02").chosen_bands == ("B04", "B03", "B02")


def test_f1_is_scikit_learns() -> None:
    from sklearn.metrics import f1_score

    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(200, 4, generator=generator)
    targets = (torch.rand(200, 4, generator=generator) < torch.tensor([0.5, 0.02, 0.9, 0.0])).float()
    logits[:, 3] = -1.0  # neither there nor predicted
    found = {name: float(metric(logits, targets)) for name, metric in f1_metrics("abcd").items()}
    arrays = targets.numpy(), (logits > 0).numpy()
    for average in ("micro", "macro"):
        assert found[f"{average}_f1"] == pytest.approx(
            f1_score(*arrays, average=average, zero_division=0.0), abs=1e-12
        )
    each = f1_score(*arrays, average=None, zero_division=0.0)
    assert [found[f"f1/{name}"] for name in "abcd"] == pytest.approx(each.tolist(), abs=1e-12)


def test_batch_normalisation_and_weights_begin_as_in_keras() -> None:
    """With softmax the source's network begins with outputs near 0, and with torch's epsilon with deviations of 1."""

    def smallest(**options: Any) -> float:
        torch.manual_seed(0)
        params = {**bigearthnet.default_for(16), "activation": "softmax", "order": "full-pre-activation"}
        network = bigearthnet.untrained(params, small=True, **options).train()
        outputs: list[float] = []
        for module in network.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.register_forward_hook(lambda _, __, out: outputs.append(out.std().item()))
            if isinstance(module, torch.nn.Conv2d) and options.get("initialisation") == "keras":
                limit = math.sqrt(6 / sum(torch.nn.init._calculate_fan_in_and_fan_out(module.weight)))
                assert 0.5 * limit < module.weight.abs().max() <= limit
        network(torch.randn(8, 12, 32, 32))
        return min(outputs)

    keras = smallest(initialisation="keras")
    assert keras < 0.05
    assert smallest(initialisation="he", batch_norm_eps=1e-5) > 10 * keras


# DASO


def test_pairs_of_b_and_s_are_different_runs_of_a_model_with_traffic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cifar_archive(tmp_path / "data" / "cifar-10-binary.tar.gz")
    task = daso_intervals.make_task(**options_of("daso_intervals"))
    assert len([*task.configurations()]) == 27
    training = 45_000
    # Twice within an epoch, at least, also where B = 32.
    assert training // task.options.samples_a_step >= 2 * 32
    network = daso_intervals.untrained(task.default or {}, classes=10, **options_of("daso_intervals"))
    assert sum(parameter.numel() for parameter in network.parameters()) * 4 > 50e6


@pytest.mark.parametrize(
    ("options", "factor"), [({"dim": 768}, 1.0), ({"dim": 96}, 8.0), ({"architecture": "deep"}, 1.0)]
)
def test_rates_of_the_source_s_width_grow_as_the_network_is_narrower(
    options: dict[str, Any], factor: float
) -> None:
    made = vit_oialr.recipe(dict(vit_oialr.TUNED), vit_oialr.Options(**options), Run(data={"classes": 10}))
    (group,) = made.optimizer([torch.nn.Parameter(torch.ones(1))]).param_groups
    found = (group["lr"], made.schedule.min_lr, made.schedule.warmup_lr)
    assert found == pytest.approx(
        tuple(factor * vit_oialr.TUNED[name] for name in ("lr", "min_lr", "warmup_lr"))
    )


def test_lines_for_srun_give_each_rank_its_cores() -> None:
    """It ignores the job's option, and without one a rank may have a single core."""
    lines = [
        line for file in JOBS.glob("*.toml") for line in file.read_text().splitlines() if "srun " in line
    ]
    assert lines and all("--cpus-per-task=" in line for line in lines), lines
