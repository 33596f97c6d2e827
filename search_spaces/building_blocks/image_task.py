"""What the campaigns on CIFAR have in common: from a configuration to a trained and judged network.

A campaign's module says which parameters there are and, in a function, which network, optimizer and method they
mean: its *recipe*. ``search_spaces.digits`` shows the same written out in one module. torch is imported by what
trains: the ranks that search need none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hpo
from search_spaces import options as check
from search_spaces import sources
from search_spaces.folds import Fold, check_folds, cross_validated
from search_spaces.standalone import trained_models

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.distributed import ProcessGroup
    from torch.optim import Optimizer

    import trainers
    from hpo.individual import Scalar
    from hpo.task.task import Constraint
    from search_spaces.readers.cifar import Parts
    from trainers.data.batches import Assignment

RECORDED = (
    "train_loss", "validation_loss", "trainable_fraction", "compression_ratio",
    "train_s", "wait_s", "bytes_inside_nodes", "bytes_between_nodes",
)  # fmt: skip
"""Metrics of the trainer that a campaign keeps beside the fitness."""

AUGMENTATIONS = ("none", "crop", "crop-flip", "rand-augment")
"""The names in ``search_spaces.readers.augmentation.AUGMENTATIONS``, which comes with torch."""


@dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """How all configurations of a campaign are trained; UsageError for what cannot be.

    - ``data``: a folder or an archive with CIFAR-10 or CIFAR-100, or "digits" or "fashion-mnist", as for
      ``read_cifar``; ``validation_part`` of its training images are those that the fitness is measured on.
    - ``folds``: instead of that, the fitness is the mean over this many folds of all training images; 0: it is not.
    - ``batch_size``: of all ranks together, so that their number does not matter.
    - ``augmentation``: one of ``AUGMENTATIONS``.
    - ``precision``: "fp32", "tf32", or "bf16" for autocast.
    - ``loader_processes``: a rank's, that read and augment ahead; 0: it does so itself.
    - ``train_samples``: how many images to train with; None: all.
    """

    data: str
    epochs: int
    batch_size: int
    validation_part: float
    folds: int
    augmentation: str
    precision: str
    loader_processes: int
    train_samples: int | None

    def __post_init__(self) -> None:
        with check.together():
            check.whole(1, epochs=self.epochs, batch_size=self.batch_size)
            check.number(
                "above 0 and below 1", lambda part: 0 < part < 1, validation_part=self.validation_part
            )
            check_folds(self.folds)
            check.one_of(AUGMENTATIONS, augmentation=self.augmentation)
            check.one_of(check.PRECISIONS, precision=self.precision)
            check.whole(0, loader_processes=self.loader_processes)
            check.whole_or_none(1, train_samples=self.train_samples)

    def check_data(self) -> None:
        """UsageError where the data are not there, or too few, as far as that can be said without reading them."""
        found = sources.training_images(self.data)
        if found is None:
            return
        left = found if self.folds else found - round(self.validation_part * found)
        if self.train_samples is not None and self.train_samples > left:
            raise hpo.UsageError(
                f"train_samples = {self.train_samples}: {self.data} has {left} to train with. Name fewer, or none."
            )
        samples = left if self.train_samples is None else self.train_samples
        if self.folds > samples:
            raise hpo.UsageError(
                f"folds = {self.folds}: each needs a sample, and there are {samples}. Name fewer."
            )

    def parts(self) -> Parts:
        """The data. UsageError, with what to do, where it is not what it should be."""
        from search_spaces.readers.cifar import load_parts

        part = None if self.folds else self.validation_part
        with check.as_usage():
            return load_parts(self.data, validation_part=part, train_samples=self.train_samples)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What a configuration means: the arguments of ``trainers.train`` that it decides."""

    network: nn.Module
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer]
    schedule: trainers.Schedule
    method: trainers.Method
    assignment: Assignment | None = None
    topology: trainers.Topology | None = None
    clip_norm: float | None = None
    label_smoothing: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a recipe may depend on besides the configuration: the classes that there are, the ranks that train, and
    the steps that they take.
    """

    classes: int
    ranks: int = 1
    steps: int = 1


MakeRecipe = Callable[[dict[str, Any], Run], Recipe]
"""From parameters and the run."""


def last_accuracy(result: trainers.Result, steps: int) -> dict[str, float]:
    """Validation accuracy of the last epoch."""
    return {"value": result.metrics["accuracy"]}


class ImageTask(hpo.Task):
    """A task that trains a network on images by ``recipe`` and judges the result, and in how many steps it was come by,
    by ``judge``: one objective called "value", to be maximised, or several, ``objectives``. ``ranks``: how many the
    space is made for; None: any.

    A run whose loss is not finite has NaN for every objective, and so is an invalid individual. UsageError where the
    data are not there.
    """

    def __init__(
        self,
        space: hpo.SearchSpace,
        recipe: MakeRecipe,
        options: ImageOptions,
        *,
        default: Mapping[str, Scalar],
        points: Iterable[Mapping[str, Scalar]] = (),
        constraints: Iterable[Constraint] = (),
        judge: Callable[[trainers.Result, int], dict[str, float]] = last_accuracy,
        objectives: Mapping[str, str] | None = None,
        ranks: int | None = None,
    ) -> None:
        options.check_data()
        self.recipe, self.options, self.judge, self._ranks = recipe, options, judge, ranks
        super().__init__(
            space,
            self._evaluate,
            None if objectives else "maximize",
            objectives=objectives,
            default=default,
            points=points,
            constraints=constraints,
            steps=options.folds or options.epochs,
        )

    def _evaluate(self, trial: hpo.Trial) -> dict[str, float]:
        if self.options.folds:
            return cross_validated(trial, self._evaluate_fold, folds=self.options.folds)
        return self._trained(trial, self.options.parts(), None)

    def _evaluate_fold(self, trial: hpo.Trial, fold: Fold) -> dict[str, float]:
        parts = self.options.parts()
        training, held = fold.split(len(parts.train), classes=parts.train.classes.tolist())
        return self._trained(trial, parts.divided(training, held), fold.group)

    def _trained(self, trial: hpo.Trial, parts: Parts, group: ProcessGroup | None) -> dict[str, float]:
        if trial.rank == 0:
            trained_models.note(trial.directory, {"classes": parts.classes})
        _, result = self.fit(
            trial.params,
            parts,
            seed=trial.seed,
            ranks=trial.size,
            device=trial.device,
            # An individual that goes on with another number of ranks begins anew.
            checkpoint=trial.directory / f"checkpoint-{trial.size}-ranks",
            report=lambda epoch, metrics: trial.report(epoch, metrics["accuracy"], **metrics),
            interrupt=trial.should_checkpoint,
            group=group,
        )
        objectives = self.judge(result, self.optimizer_steps(parts))
        if result.reason == "diverged":
            objectives = dict.fromkeys(objectives, math.nan)
        return {**objectives, **{name: result.metrics[name] for name in RECORDED}}

    def optimizer_steps(self, parts: Parts) -> int:
        """Of a whole run."""
        return self.options.epochs * -(-len(parts.train) // self.options.batch_size)

    def network(self, params: Mapping[str, Scalar], classes: int | None = None) -> nn.Module:
        """The network of a configuration, untrained, for ``trainers.load_model`` to fill. ``classes``: how many it
        distinguishes; None: as many as the data have, which are read for it.
        """
        if classes is None:
            classes = self.options.parts().classes
        return self.recipe(dict(params), Run(classes=classes)).network

    def test(
        self,
        params: Mapping[str, Scalar],
        *,
        seeds: Sequence[int] = (0, 1, 2),
        ranks: int = 1,
        device: str = "cpu",
    ) -> float:
        """Mean accuracy on the test part of ``params`` trained anew with each of ``seeds``; for a chosen
        configuration only. With folds all training images are trained with.
        """
        import trainers

        parts, found = self.options.parts(), []
        for seed in seeds:
            model, _ = self.fit(params, parts, seed=seed, ranks=ranks, device=device)
            scores = trainers.evaluate(
                model,
                parts.test,
                metrics={"accuracy": accuracy},
                batch_size=256,
                precision=self.options.precision,
            )
            found.append(scores["accuracy"])
        return sum(found) / len(found)

    def fit(
        self,
        params: Mapping[str, Scalar],
        parts: Parts,
        *,
        seed: int,
        ranks: int,
        device: str,
        checkpoint: Path | None = None,
        report: Callable[[int, dict[str, float]], None] | None = None,
        interrupt: Callable[[], bool] | None = None,
        group: ProcessGroup | None = None,
    ) -> tuple[nn.Module, trainers.Result]:
        """The network that ``params`` describe, trained on the training part and watched on the validation part, by the
        ranks of ``group``; None: by all there are.
        """
        import torch

        import trainers
        from search_spaces.readers.augmentation import AUGMENTATIONS, Augmented

        if self._ranks not in (None, ranks):
            raise hpo.UsageError(
                f"ranks_per_worker = {self._ranks} is what this task is for, and there are {ranks}. Make the campaign "
                "file's [layout] and [task_options] agree, or start as many with torchrun."
            )
        options = self.options
        torch.manual_seed(seed)
        run = Run(classes=parts.classes, ranks=ranks, steps=self.optimizer_steps(parts))
        recipe = self.recipe(dict(params), run)
        model = recipe.network.to(device)
        result = check.refusing(trainers.train)(
            model,
            Augmented(
                parts.train,
                mean=parts.mean,
                deviation=parts.deviation,
                augmentation=AUGMENTATIONS[options.augmentation],
                seed=seed,
            ),
            parts.validation,
            loss=torch.nn.functional.cross_entropy,
            metrics={"accuracy": accuracy} if parts.validation is not None else None,
            optimizer=recipe.optimizer,
            schedule=recipe.schedule,
            method=recipe.method,
            assignment=recipe.assignment,
            topology=recipe.topology,
            clip_norm=recipe.clip_norm,
            label_smoothing=recipe.label_smoothing,
            precision=options.precision,
            epochs=options.epochs,
            batch_size=-(-options.batch_size // ranks),
            evaluation_batch_size=256,
            loader_processes=options.loader_processes,
            checkpoint=checkpoint,
            report=report,
            interrupt=interrupt,
            group=group,
            seed=seed,
        )
        return model, result


def untrained_of(make_task: Callable[..., ImageTask]) -> Callable[..., nn.Module]:
    """The ``network`` of ``command_line.main`` for a module with this ``make_task``."""

    def untrained(params: Mapping[str, Scalar], *, classes: int | None = None, **options: Any) -> nn.Module:
        """The network of a configuration, untrained. With ``classes``, how many it distinguishes, no data are needed;
        without, they are read for their number.
        """
        if classes is not None:
            # Of a set that is always there: what the network was trained with may be gone.
            options["data"] = "digits"
        return make_task(**options).network(params, classes)

    return untrained


def accuracy(outputs: torch.Tensor, classes: torch.Tensor) -> float:
    """The part of ``classes`` that are the largest of their ``outputs``."""
    return (outputs.argmax(dim=1) == classes).double().mean().item()
