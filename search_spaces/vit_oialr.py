"""OIALR on a small vision transformer, CIFAR-10: the learning rate's course and when, how often and how much rank
is dropped (dissertation, section 4.4.4, tables A.2 and A.3).

    hpo run jobs/vit_oialr_small.toml                       a small search on data that a package ships
    sbatch jobs/slurm.sbatch jobs/vit_oialr.toml            the source's, on CIFAR-10
    python -m search_spaces.vit_oialr --lr 2e-4             one configuration, the others as in ``default``

There the baseline of full rank had 85.17 % of the test images right, OIALR with ``default`` 83.05 % at 30.98 % of
the parameters trained, and with what the search found, ``TUNED``, 86.33 % at 9.97 %.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import hpo
from search_spaces import options as check
from search_spaces.building_blocks.image_task import ImageOptions, ImageTask, Recipe, Run, untrained_of
from search_spaces.standalone import command_line

if TYPE_CHECKING:
    from hpo.individual import Scalar

EPOCHS, STEPS = 125, 125 * 49
"""Of the source's run (Table A.1; 50 000 images in batches of 1 024). Parameters that count epochs or steps are parts
of it: a run of another length has them in proportion."""

space = hpo.SearchSpace(
    lr=hpo.Float(5e-5, 1e-3, log=True),
    min_lr=hpo.Float(5e-6, 1e-3, log=True),  # may lie above lr: the source's best does, and rises to it
    warmup_lr=hpo.Float(5e-6, 2e-4, log=True),
    k_decay=hpo.Float(0.1, 2.0),
    warmup_epochs=hpo.Int(1, 20),
    sigma_cutoff=hpo.Float(0.01, 0.9),
    update_every=hpo.Int(200, 1000),  # the source's stability frequency
    delay=hpo.Int(1000, 10_000, log=True),
)

default: dict[str, Scalar] = {
    "lr": 1e-4,
    "min_lr": 1e-5,
    "warmup_lr": 1e-5,
    "k_decay": 1.0,
    "warmup_epochs": 10,
    "sigma_cutoff": 0.2,
    "update_every": 1000,
    "delay": 4000,
}
"""The untuned run of Table A.2."""

TUNED: dict[str, Scalar] = {
    **default, "lr": 2e-4, "min_lr": 8e-4, "warmup_lr": 8e-5, "k_decay": 0.4, "warmup_epochs": 17,
}  # fmt: skip
"""What Table A.2 states of the tuned run."""


def drops_rank(params: Mapping[str, Any]) -> bool:
    """The first update comes before the run ends."""
    return bool(params["delay"] + params["update_every"] < STEPS)


def _delay(params: Mapping[str, Any], steps: int) -> float:
    """The part of a run of ``steps`` steps before the first decomposition, which must not come after the last step: of
    a few steps, parts near 1 would be all.
    """
    part = float(params["delay"]) / STEPS
    return min(part, 1 - 1 / steps) if drops_rank(params) else part


def make_task(
    *,
    data: str = "digits",
    epochs: int = 16,
    batch_size: int = 32,
    validation_part: float = 0.5,
    folds: int = 0,
    augmentation: str = "none",
    precision: str = "fp32",
    loader_processes: int = 0,
    train_samples: int | None = None,
    dim: int = 48,
    depth: int = 2,
    heads: int = 6,
) -> ImageTask:
    """The task for these options, the ``[task_options]`` of a campaign file; see ``ImageOptions``.

    ``dim``, ``depth`` and ``heads`` are the transformer's. The defaults are a small run; the source's are in
    jobs/vit_oialr.toml.
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
        check.whole(1, dim=dim, depth=depth)
        check.divisor("dim", dim, heads=heads)

    def recipe(p: dict[str, Any], run: Run) -> Recipe:
        import torch

        import trainers
        from search_spaces.networks.vit import ViT

        return Recipe(
            network=ViT(
                side=32,
                patch=8,
                classes=run.classes,
                dim=dim,
                depth=depth,
                heads=heads,
                qkv_bias=False,
                drop_path=0.2,
            ),
            optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=p["lr"]),
            schedule=trainers.Cosine(
                warmup_epochs=p["warmup_epochs"] * epochs / EPOCHS,
                warmup_lr=p["warmup_lr"],
                min_lr=p["min_lr"],
                k_decay=p["k_decay"],
            ),
            method=trainers.OIALR(
                delay=_delay(p, run.steps),
                update_every=p["update_every"] / STEPS,
                sigma_cutoff=p["sigma_cutoff"],
                full_rank_first_layer=False,
                full_rank_last_layer=True,
            ),
            label_smoothing=0.1,
        )

    return ImageTask(space, recipe, options, default=default, constraints=[drops_rank])


test_accuracy = command_line.tests_of(make_task)
"""As ``ImageTask.test``, with the keywords of ``make_task``."""


untrained = untrained_of(make_task)
"""untrained(params, classes=…, **keywords of make_task): the network of a configuration, untrained."""

task = make_task()

if __name__ == "__main__":
    sys.exit(command_line.main("search_spaces.vit_oialr", make_task, test_accuracy, network=untrained))
