"""AB training on a small vision transformer, CIFAR-100, or on VGG16, CIFAR-10: how long the phases are and how much
rank is dropped (dissertation, section 5.3.3, tables A.6 and A.9).

    hpo run jobs/vit_ab_small.toml                          a small search on data that a package ships
    sbatch jobs/slurm.sbatch jobs/vit_ab.toml               the source's, on CIFAR-100; jobs/vgg_ab.toml: VGG16
    torchrun --nproc-per-node 2 -m search_spaces.vit_ab --ab 0.1       one configuration: groups need two ranks

What that search found are its guidelines, ``default`` here; the share of group phases mattered most there.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import hpo
from search_spaces import options as check
from search_spaces.building_blocks.image_task import ImageOptions, ImageTask, Recipe, Run, untrained_of
from search_spaces.standalone import command_line

if TYPE_CHECKING:
    from torch import nn

    from hpo.individual import Scalar

space = hpo.SearchSpace(
    warmup=hpo.Float(0.05, 0.5),  # of all steps: full rank, all ranks in common
    ab=hpo.Float(0.005, 0.25, log=True),  # of all steps: one phase in groups, num_ab_steps
    rebound=hpo.Float(0.02, 1.0, log=True),  # of a group phase: full rank in common after it
    lr_rebound=hpo.Float(0.05, 1.0, log=True),  # of a group phase: until the learning rate is back
    sigma_cutoff=hpo.Float(0.01, 0.5, log=True),
    merge_gain=hpo.Float(0.5, 1.0),  # 0.5 is the source's merge; see trainers.AB
)

default: dict[str, Scalar] = {
    "warmup": 0.2,
    "ab": 0.0333,
    "rebound": 0.25,
    "lr_rebound": 0.5,
    "sigma_cutoff": 0.15,
    "merge_gain": 0.5,
}
"""The guidelines of section 5.3.3; sigma_cutoff of Table A.6."""

VGG16_STEPS = 150 * 49
VGG16: dict[str, Scalar] = {
    **default,
    "warmup": 4330 / VGG16_STEPS,
    "ab": 759 / VGG16_STEPS,
    "rebound": 60 / 759,
    "lr_rebound": 267 / 759,
}
"""Table A.9's 4 330, 759, 60 and 267 steps, if its 150 epochs are of 49 (50 000 images in batches of 1 024). Its
warm-up is beyond what is searched."""

NETWORKS = ("vit", "vgg16")


def make_task(
    *,
    data: str = "digits",
    network: str = "vit",
    epochs: int = 12,
    batch_size: int = 32,
    validation_part: float = 0.5,
    folds: int = 0,
    augmentation: str = "none",
    precision: str = "fp32",
    loader_processes: int = 0,
    train_samples: int | None = None,
    lr: float = 2e-3,
    weight_decay: float = 0.01,
    warmup_epochs: float = 1.0,
    group_size: int = 1,
    dim: int = 48,
    depth: int = 2,
    heads: int = 6,
    width: int = 16,
) -> ImageTask:
    """The task for these options, the ``[task_options]`` of a campaign file; see ``ImageOptions``.

    ``network``: "vit" of
    ``dim``, ``depth`` and ``heads``, or "vgg16" of first ``width``. ``group_size``: ranks a group; a single rank trains
    without groups. The defaults are a small run; the source's are in jobs/vit_ab.toml and jobs/vgg_ab.toml.
    """
    with check.together():
        options = ImageOptions(
            data=data,
            epochs=epochs,
            batch_size=batch_size,
            validation_part=validation_part,
            folds=folds,
            augmentation=augmentation,
            precision=precision,
            loader_processes=loader_processes,
            train_samples=train_samples,
        )
        check.one_of(NETWORKS, network=network)
        check.number("above 0", lambda value: value > 0, lr=lr)
        check.number("of at least 0", lambda value: value >= 0, weight_decay=weight_decay)
        check.whole(1, group_size=group_size, dim=dim, depth=depth, width=width)
        check.divisor("dim", dim, heads=heads)
    check.number(
        f"from 0 to the run's {epochs} epochs",
        lambda value: 0 <= value <= epochs,
        warmup_epochs=warmup_epochs,
    )

    def recipe(p: dict[str, Any], run: Run) -> Recipe:
        import torch

        import trainers
        from search_spaces.networks.vgg import cifar_vgg16
        from search_spaces.networks.vit import ViT

        model: nn.Module
        if network == "vit":
            model = ViT(side=32, patch=8, classes=run.classes, dim=dim, depth=depth, heads=heads)
        else:
            model = cifar_vgg16(classes=run.classes, width=width)
        _orthogonal(model)
        return Recipe(
            network=model,
            optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=lr, weight_decay=weight_decay),
            schedule=trainers.Cosine(warmup_epochs=warmup_epochs),
            method=trainers.AB(
                warmup_steps=p["warmup"],
                ab_steps=p["ab"],
                rebound_steps=p["rebound"] * p["ab"],
                lr_rebound_steps=p["lr_rebound"] * p["ab"],
                sigma_cutoff=p["sigma_cutoff"],
                merge_gain=p["merge_gain"],
                groups=run.ranks > 1,
                group_size=group_size if run.ranks > 1 else None,
            ),
            clip_norm=1.0,
            label_smoothing=0.1,
        )

    return ImageTask(space, recipe, options, default=default)


def _orthogonal(model: nn.Module) -> None:
    """Weights with orthogonal rows or columns (Saxe et al. 2014, arXiv 1312.6120), as Table A.6 has it."""
    from torch.nn import init

    for name, parameter in model.named_parameters():
        if parameter.dim() >= 2 and name.endswith("weight"):
            init.orthogonal_(parameter)


test_accuracy = command_line.tests_of(make_task)
"""As ``ImageTask.test``, with the keywords of ``make_task``."""


untrained = untrained_of(make_task)
"""untrained(params, classes=…, **keywords of make_task): the network of a configuration, untrained."""

task = make_task()

if __name__ == "__main__":
    sys.exit(command_line.main("search_spaces.vit_ab", make_task, test_accuracy, network=untrained))
