"""A small residual network on small images, trained data-parallel: optimizer, learning rate, schedule and
architecture.

The fitness is the accuracy on a validation part that no training sees. The test part takes no part in the
search: it is read by ``test_accuracy`` alone, for a configuration that has already been chosen.

    hpo run jobs/digits.toml                                            # the search
    python -m search_spaces.digits --lr 0.1                             # one configuration, else ``default``
    torchrun --nproc-per-node 2 -m search_spaces.digits --lr 0.1        # the same on two ranks
    python -m search_spaces.digits --campaign runs/digits               # the test accuracy of what was found
    python -m search_spaces.digits --campaign runs/digits --export best.safetensors     # its model
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import hpo
from search_spaces import options as check
from search_spaces import sources
from search_spaces.folds import Fold, check_folds, cross_validated
from search_spaces.standalone import command_line

# torch is imported by the functions that train: the ranks that search read this module for its space, and
# need no torch.
if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.distributed import ProcessGroup
    from torch.optim import Optimizer
    from torch.utils.data import TensorDataset

    import trainers
    from hpo.individual import Scalar
    from search_spaces.readers.small_images import ImageData

space = hpo.SearchSpace(
    # The network
    width=hpo.Ordinal(4, 8, 12, 16, 24, 32),  # filters of the first block
    activation=hpo.Categorical("relu", "elu", "selu", "swish", "softplus", "tanh"),
    order=hpo.Categorical(  # where a block normalises and activates, He et al. 2016
        "original",
        "norm-after-addition",
        "activation-before-addition",
        "activation-only-pre-activation",
        "full-pre-activation",
    ),
    # The optimizer, and what only some have
    optimizer=hpo.Categorical("sgd", "rmsprop", "adagrad", "adam", "adamw"),
    lr=hpo.Float(1e-4, 1.0, log=True),
    momentum=hpo.Float(0.5, 0.99, when={"optimizer": "sgd"}),
    nesterov=hpo.Categorical(False, True, when={"optimizer": "sgd"}),
    smoothing=hpo.Float(0.8, 0.999, when={"optimizer": "rmsprop"}),
    beta1=hpo.Float(0.8, 0.98, when={"optimizer": ("adam", "adamw")}),
    beta2=hpo.Float(0.9, 0.9999, when={"optimizer": ("adam", "adamw")}),
    weight_decay=hpo.Float(1e-6, 1e-1, log=True, when={"optimizer": ("sgd", "adamw")}),
    # The learning rate's schedule
    schedule=hpo.Categorical("constant", "cosine", "exponential", "inverse-time", "polynomial"),
    warmup_epochs=hpo.Int(0, 4),
    k_decay=hpo.Float(0.2, 5.0, log=True, when={"schedule": "cosine"}),
    final_fraction=hpo.Float(1e-3, 0.5, log=True, when={"schedule": ("exponential", "inverse-time")}),
    power=hpo.Float(0.5, 4.0, when={"schedule": "polynomial"}),
)

default: dict[str, Scalar] = {
    "width": 16,
    "activation": "relu",
    "order": "original",
    "optimizer": "adam",
    "lr": 1e-3,
    "beta1": 0.9,
    "beta2": 0.999,
    "schedule": "constant",
    "warmup_epochs": 0,
}
"""The original network with torch's own choices for Adam."""


TRAINING_IMAGES = {"digits": 224, "fashion-mnist": 50_000}
"""As ``search_spaces.readers.small_images.load_images`` divides the sets."""
CHANNELS, CLASSES = 1, 10
"""Of both sets: their models can be used where they are not."""


def make_task(
    *,
    data: str = "digits",
    epochs: int = 24,
    batch_size: int = 32,
    train_samples: int | None = None,
    folds: int = 0,
) -> hpo.Task:
    """The task for these options, which are the ``[task_options]`` of a campaign file.

    ``data``: "digits" or "fashion-mnist". ``batch_size``: of all ranks together, so that their number does
    not matter. ``train_samples``: how many images to train with; None: all of the training part. ``folds``: the
    fitness is the mean accuracy over this many folds of the training and validation parts together; 0 for none.

    With kind = "pbt", ``epochs`` are those of one interval: an individual begins with the weights and the optimizer's
    state of its parent, so perturb = ["lr", …] must not name what the network is made of. UsageError for options that
    cannot be.
    """
    with check.together():
        check.whole(1, epochs=epochs, batch_size=batch_size)
        check.whole_or_none(1, train_samples=train_samples)
        check_folds(folds)
        sources.packaged_images(data)
    if train_samples is not None and train_samples > TRAINING_IMAGES[data]:
        raise hpo.UsageError(
            f"train_samples = {train_samples}: {data} has {TRAINING_IMAGES[data]} to train with. Name fewer, or none."
        )

    def evaluate(trial: hpo.Trial) -> dict[str, float]:
        return cross_validated(trial, evaluate_fold, folds=folds) if folds else evaluate_fold(trial, None)

    def evaluate_fold(trial: hpo.Trial, fold: Fold | None) -> dict[str, float]:
        parent = trial.parent_checkpoint if fold is None else None
        images = _images(data, train_samples)
        train, validation = images.train, images.validation
        if fold is not None:
            both = _joined(images)
            parts = fold.split(len(both), classes=both.tensors[1].tolist())
            train, validation = (_chosen(both, indices) for indices in parts)
        _, result = _fit(
            trial.params,
            train,
            validation,
            epochs=epochs,
            batch_size=batch_size,
            seed=trial.seed,
            ranks=trial.size,
            device=trial.device,
            # An individual that goes on with another number of ranks begins anew.
            checkpoint=trial.directory / f"checkpoint-{trial.size}-ranks",
            parent=None if parent is None else parent / f"checkpoint-{trial.size}-ranks",
            report=lambda epoch, metrics: trial.report(epoch, metrics["accuracy"], **metrics),
            interrupt=trial.should_checkpoint,
            group=None if fold is None else fold.group,
        )
        accuracy = result.metrics["accuracy"] if result.reason != "diverged" else math.nan
        return {"value": accuracy, **{name: result.metrics[name] for name in RECORDED}}

    return hpo.Task(space, evaluate, direction="maximize", default=default, steps=folds or epochs)


RECORDED = ("train_loss", "validation_loss", "train_s", "wait_s", "bytes_inside_nodes", "bytes_between_nodes")
"""Metrics of the trainer that a campaign keeps beside the fitness."""


def test_accuracy(
    params: Mapping[str, Scalar],
    *,
    data: str = "digits",
    epochs: int = 24,
    batch_size: int = 32,
    train_samples: int | None = None,
    folds: int = 0,
    seeds: Sequence[int] = (0, 1, 2),
    ranks: int = 1,
    device: str = "cpu",
) -> float:
    """Mean accuracy on the test part of ``params`` trained anew with each of ``seeds``; for a chosen
    configuration only. With ``folds`` the validation part is trained with, too.
    """
    import trainers

    images, found = _images(data, train_samples), []
    for seed in seeds:
        model, _ = _fit(
            params,
            _joined(images) if folds else images.train,
            None if folds else images.validation,
            epochs=epochs,
            batch_size=batch_size,
            seed=seed,
            ranks=ranks,
            device=device,
        )
        found.append(
            trainers.evaluate(model, images.test, metrics={"accuracy": _accuracy}, batch_size=256)["accuracy"]
        )
    return sum(found) / len(found)


def _fit(
    params: Mapping[str, Scalar],
    train: TensorDataset,
    validation: TensorDataset | None,
    *,
    epochs: int,
    batch_size: int,
    seed: int,
    ranks: int,
    device: str,
    checkpoint: Path | None = None,
    parent: Path | None = None,
    report: Callable[[int, dict[str, float]], None] | None = None,
    interrupt: Callable[[], bool] | None = None,
    group: ProcessGroup | None = None,
) -> tuple[nn.Module, trainers.Result]:
    """The model that ``params`` describe, trained on ``train`` and watched on ``validation``.

    ``parent``: the checkpoint of another run, from whose weights and optimizer's state this one begins, if it is there.
    """
    import torch

    import trainers
    from trainers.checkpoints.files import read_alone

    p: dict[str, Any] = dict(params)
    torch.manual_seed(seed)
    model = untrained(p).to(device)
    begun: Mapping[str, Any] | None = None
    if parent is not None and (parent / "latest").exists():
        begun = cast("Mapping[str, Any]", read_alone(parent))
        model.load_state_dict(begun["model"])
    result = check.refusing(trainers.train)(
        model,
        train,
        validation,
        loss=torch.nn.functional.cross_entropy,
        metrics={"accuracy": _accuracy} if validation is not None else None,
        optimizer=lambda parameters: _going_on(_optimizer(parameters, p), begun),
        schedule=_schedule(p, epochs),
        epochs=epochs,
        batch_size=-(-batch_size // ranks),
        evaluation_batch_size=256,
        checkpoint=checkpoint,
        # A run of seconds is saved only when it is interrupted, and at its end.
        checkpoint_every=sys.maxsize,
        report=report,
        interrupt=interrupt,
        group=group,
        seed=seed,
    )
    return model, result


def untrained(params: Mapping[str, Scalar], **options: object) -> nn.Module:
    """The network of a configuration, untrained; ``options``, those of ``make_task``, do not matter to it."""
    from search_spaces.networks.small_resnet import ResNet

    p: dict[str, Any] = dict(params)
    return ResNet(
        channels=CHANNELS, classes=CLASSES, width=p["width"], activation=p["activation"], order=p["order"]
    )


def _images(data: str, train_samples: int | None) -> ImageData:
    from search_spaces.readers.small_images import load_images

    with check.as_usage():
        return load_images(data, train_samples=train_samples)


def _joined(images: ImageData) -> TensorDataset:
    """The training and the validation part."""
    import torch
    from torch.utils.data import TensorDataset

    pairs = zip(images.train.tensors, images.validation.tensors, strict=True)
    return TensorDataset(*(torch.cat(pair) for pair in pairs))


def _chosen(samples: TensorDataset, indices: Sequence[int]) -> TensorDataset:
    from torch.utils.data import TensorDataset

    return TensorDataset(*(tensor[list(indices)] for tensor in samples.tensors))


def _going_on(made: Optimizer, begun: Mapping[str, Any] | None) -> Optimizer:
    """``made`` with its own settings, and with the means over time of the run that it goes on from."""
    if begun is not None:
        settings = [
            {name: value for name, value in group.items() if name != "params"} for group in made.param_groups
        ]
        made.load_state_dict(begun["optimizer"])
        for group, own in zip(made.param_groups, settings, strict=True):
            group.pop("initial_lr", None)  # of the run before; this one's schedule counts from its own
            group.update(own)
    return made


def _optimizer(parameters: Iterable[nn.Parameter], p: dict[str, Any]) -> Optimizer:
    from torch import optim

    lr, decay = p["lr"], p.get("weight_decay", 0.0)
    if p["optimizer"] == "sgd":
        return optim.SGD(
            parameters, lr=lr, momentum=p["momentum"], nesterov=p["nesterov"], weight_decay=decay
        )
    if p["optimizer"] == "rmsprop":
        return optim.RMSprop(parameters, lr=lr, alpha=p["smoothing"])
    if p["optimizer"] == "adagrad":
        return optim.Adagrad(parameters, lr=lr)
    betas = p["beta1"], p["beta2"]
    if p["optimizer"] == "adam":
        return optim.Adam(parameters, lr=lr, betas=betas)
    return optim.AdamW(parameters, lr=lr, betas=betas, weight_decay=decay)


def _schedule(p: dict[str, Any], epochs: int) -> trainers.Schedule:
    import trainers

    # A run shorter than its warm-up would never get to the schedule.
    warmup_epochs = min(p["warmup_epochs"], epochs / 2)
    if p["schedule"] == "cosine":
        return trainers.Cosine(warmup_epochs=warmup_epochs, k_decay=p["k_decay"])
    if p["schedule"] == "polynomial":
        return trainers.Polynomial(warmup_epochs=warmup_epochs, power=p["power"])
    decaying = epochs - warmup_epochs
    if p["schedule"] == "exponential":
        return trainers.Exponential(
            warmup_epochs=warmup_epochs, rate_factor=p["final_fraction"], every_epochs=decaying
        )
    if p["schedule"] == "inverse-time":
        return trainers.InverseTime(
            warmup_epochs=warmup_epochs, decay=1 / p["final_fraction"] - 1, every_epochs=decaying
        )
    return trainers.Constant(warmup_epochs=warmup_epochs)


def _accuracy(outputs: torch.Tensor, classes: torch.Tensor) -> float:
    return (outputs.argmax(dim=1) == classes).double().mean().item()


task = make_task()

if __name__ == "__main__":
    sys.exit(command_line.main("search_spaces.digits", make_task, test_accuracy, network=untrained))
