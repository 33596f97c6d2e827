"""A campaign in a module of one's own, with two objectives and a judge, as a user would write it."""

import sys

import numpy as np

import hpo
from search_spaces.building_blocks.image_task import ImageOptions, Recipe, image_campaign
from search_spaces.options import Count

space = hpo.SearchSpace(width=hpo.Ordinal(2, 4), lr=hpo.Float(0.01, 0.1, log=True))
default = {"width": 2, "lr": 0.05}


class Options(ImageOptions):
    epochs: Count = 1
    batch_size: Count = np.int64(16)
    train_samples: Count | None = 32


def recipe(p, options, run):
    import torch

    import trainers
    from search_spaces.networks.resnet import ResNet20

    return Recipe(
        network=ResNet20(classes=run.classes, width=p["width"]),
        optimizer=lambda weights: torch.optim.SGD(weights, lr=p["lr"]),
        schedule=trainers.Cosine(),
    )


def judge(result, steps):
    return {"seconds": np.float32(result.metrics["train_s"]), "accuracy": result.metrics["accuracy"]}


MEASURE = "share of right clothes"

make_task, main = image_campaign(
    space,
    default,
    recipe,
    options=Options,
    judge=lambda options: judge,
    objectives={"seconds": "minimize", "accuracy": "maximize"},
)

if __name__ == "__main__":
    sys.exit(main())
