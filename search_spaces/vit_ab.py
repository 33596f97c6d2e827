"""AB training on a small vision transformer, CIFAR-100, or on VGG16, CIFAR-10: how long the phases are and how much
rank is dropped (dissertation, section 5.3.3, tables A.6 and A.9).

    hpo run jobs/vit_ab_small.toml                          a small search on data that a package ships
    sbatch jobs/slurm.sbatch jobs/vit_ab.toml               the source's, on CIFAR-100; jobs/vgg_ab.toml: VGG16
    torchrun --nproc-per-node 2 -m search_spaces.vit_ab --ab 0.1       one configuration: groups need two ranks

``default`` are the guidelines that the source's search found; the share of group phases mattered most there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import hpo
from search_spaces.building_blocks import methods
from search_spaces.building_blocks.image_task import OwnMethod, Recipe, Run, ViTOptions, image_campaign
from search_spaces.options import Count, FromZeroBelowOne, NotNegative, Positive, wrong

if TYPE_CHECKING:
    from torch import nn

space = hpo.SearchSpace(methods.METHODS["ab"].parameters)

# The warm-up of Table A.9 is inside.
vgg16_space = hpo.SearchSpace({**space.parameters, "warmup": hpo.Float(0.05, 0.75)})

default: dict[str, Any] = {**methods.METHODS["ab"].default}

VGG16_STEPS = 150 * 49
# Table A.9's 4 330, 759, 60 and 267 steps, if its 150 epochs are of 49 (50 000 images in batches of 1 024).
VGG16: dict[str, Any] = {
    **default,
    "warmup": 4330 / VGG16_STEPS,
    "ab": 759 / VGG16_STEPS,
    "rebound": 60 / 759,
    "lr_rebound": 267 / 759,
}


class Options(ViTOptions):
    """The defaults are a small run; the source's are in jobs/vit_ab.toml and jobs/vgg_ab.toml."""

    network: Literal["vit", "vgg16"] = "vit"
    """vit with dim, depth and heads, or vgg16 with width."""
    epochs: Count = 12
    batch_size: Count = 32
    method: methods.MethodName = "ab"
    lr: Positive = 2e-3
    warmup_epochs: NotNegative = 1.0
    """Warm-up of the learning rate."""
    group_size: Count = 1
    """Ranks of a group; a single rank trains without groups."""
    drop_path: FromZeroBelowOne = 0.0
    """Rate at which a sample skips the last block of vit; earlier blocks less often."""
    width: Count = 16

    def finish(self, network: nn.Module) -> None:
        from search_spaces.building_blocks.initial_weights import make_orthogonal

        make_orthogonal(network)

    def rules(self) -> Iterator[hpo.UsageError]:
        yield from super().rules()
        if self.warmup_epochs > self.epochs:
            yield wrong("warmup_epochs", self.warmup_epochs, f"at most epochs = {self.epochs}")


def recipe(p: dict[str, Any], options: Options, run: Run) -> Recipe:
    import torch

    from search_spaces.building_blocks.recipe_parts.schedules import cosine
    from search_spaces.networks.vgg import cifar_vgg16

    vit = options.network == "vit"
    return Recipe(
        network=options.vit(classes=run.classes, drop_path=options.drop_path)
        if vit
        else cifar_vgg16(classes=run.classes, width=options.width),
        optimizer=lambda weights: torch.optim.AdamW(
            weights, lr=options.lr, weight_decay=options.weight_decay
        ),
        schedule=cosine(options.cosine, warmup_epochs=options.warmup_epochs),
        clip_norm=1.0,
        label_smoothing=0.1,
    )


make_task, main = image_campaign(
    lambda options: vgg16_space if options.network == "vgg16" else space,
    default,
    recipe,
    options=Options,
    own=OwnMethod(names=("ab", "ab-no-groups"), parameters=tuple(space.parameters)),
    points=lambda options: [VGG16] if options.network == "vgg16" else [],
)
task = make_task()
test_accuracy, untrained = make_task.test, make_task.untrained

if __name__ == "__main__":
    sys.exit(main())
