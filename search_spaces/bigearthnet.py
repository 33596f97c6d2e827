"""A ResNet that names what is on satellite images: architecture, loss, optimizer and schedule.

BigEarthNet's patches of Sentinel-2 have twelve bands and any of 19 classes. The fitness is the micro-averaged
F₁ on the validation part; the macro-averaged one and each class's are recorded. The test part takes no part in
the search: ``test_f1`` alone reads it, for a configuration that has already been chosen.

    python -m search_spaces.readers.bigearthnet ARCHIVE data/bigearthnet    # once: files for fast reading
    mpirun -n 64 hpo run jobs/bigearthnet.toml                              # the search
    hpo run jobs/bigearthnet_small.toml                                     # the same, small, on made-up patches
    python -m search_spaces.bigearthnet --data data/bigearthnet --lr 0.01   # one configuration, else ``default``
    python -m search_spaces.bigearthnet --campaign runs/bigearthnet_small   # of its best the F₁ on the test part
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hpo
from search_spaces import options as check
from search_spaces import sources
from search_spaces.building_blocks import optimizers
from search_spaces.readers.bigearthnet_files.format import BANDS, CLASSES
from search_spaces.standalone import command_line

# torch is imported by the functions that train: the ranks that search read this module for its space, and
# need no torch.
if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.utils.data import Dataset

    import trainers
    from hpo.individual import Scalar

PATIENCE_EPOCHS = 10
"""A training ends after this many epochs without a better validation loss."""

_EVALUATED_AT_ONCE = 256
_IN_MEMORY_BYTES = 256 * 2**20
_MADE_UP_PATCHES = 1200
_HOME = "runs/made-up"


def make_space(most_filters: int = 256) -> hpo.SearchSpace:
    """The search space, with up to ``width`` filters in the first stage."""
    return hpo.SearchSpace(
        {
            # The network
            "filters": hpo.Int(2, most_filters, log=True),  # of the first stage
            "activation": hpo.Categorical(
                "elu",
                "exponential",
                "hard-sigmoid",
                "linear",
                "relu",
                "selu",
                "sigmoid",
                "softmax",
                "softplus",
                "softsign",
                "swish",
                "tanh",
            ),
            "order": hpo.Categorical(  # where a block normalises and activates, He et al. 2016
                "original",
                "norm-after-addition",
                "activation-before-addition",
                "activation-only-pre-activation",
                "full-pre-activation",
            ),
            "loss": hpo.Categorical(
                "binary-crossentropy",
                "categorical-crossentropy",
                "categorical-hinge",
                "hinge",
                "kl-divergence",
                "squared-hinge",
            ),
            # Nine optimizers and three schedules, each with parameters of its own
            **optimizers.parameters(),
            **optimizers.schedules(),
        }
    )


def default_for(most_filters: int = 256) -> dict[str, Scalar]:
    """The published baseline: ResNet-50 with Adam at Keras' settings and a constant rate."""
    return {
        "filters": min(64, most_filters),
        "activation": "relu",
        "order": "original",
        "loss": "binary-crossentropy",
        "optimizer": "adam",
        "lr": 1e-3,
        "beta1": 0.9,
        "beta2": 0.999,
        "epsilon": 1e-7,
        "schedule": "exponential",
        "final_fraction": 1.0,
    }


@dataclass(frozen=True, kw_only=True)
class _Size:
    """How large everything is but the configuration itself."""

    most_filters: int
    blocks: tuple[int, ...]
    side: int
    epochs: int
    batch_size: int


_FULL = _Size(most_filters=256, blocks=(3, 4, 6, 3), side=120, epochs=100, batch_size=512)
_SMALL = _Size(most_filters=16, blocks=(1, 1, 1, 1), side=32, epochs=6, batch_size=32)


@dataclass(frozen=True)
class _Options:
    """Those of ``make_task``, and what follows from them."""

    data: str = ""
    small: bool = False
    epochs: int | None = None
    batch_size: int | None = None
    patches: int | None = None
    precision: str = "fp32"
    loader_processes: int = 0

    def __post_init__(self) -> None:
        with check.together():
            check.truth(small=self.small)
            check.whole_or_none(1, epochs=self.epochs, batch_size=self.batch_size, patches=self.patches)
            check.one_of(check.PRECISIONS, precision=self.precision)
            check.whole(0, loader_processes=self.loader_processes)

    def check_data(self) -> None:
        """UsageError where ``data`` is not what it should be: all but the pixels is looked at."""
        if self.small:
            sources.check_made_up_home(self.data or _HOME)
            available = _MADE_UP_PATCHES // 2
        else:
            available = sources.training_patches(self.data)
        if self.patches is not None and self.patches > available:
            raise hpo.UsageError(
                f"patches = {self.patches}: there are {available} to train with. Name fewer, or none."
            )

    @property
    def size(self) -> _Size:
        return _SMALL if self.small else _FULL

    @property
    def most_epochs(self) -> int:
        return self.size.epochs if self.epochs is None else self.epochs

    @property
    def samples_a_step(self) -> int:
        return self.size.batch_size if self.batch_size is None else self.batch_size

    def part(self, name: str) -> Dataset[object]:
        """The patches to train with, of the validation or of the test. UsageError, with what to do, where they are
        not what they should be.
        """
        with check.as_usage():
            return _part(self.data, name, small=self.small, side=self.size.side, patches=self.patches)


def make_task(
    *,
    data: str = "",
    small: bool = False,
    epochs: int | None = None,
    batch_size: int | None = None,
    patches: int | None = None,
    precision: str = "fp32",
    loader_processes: int = 0,
) -> hpo.Task:
    """The task for these options, which are the ``[task_options]`` of a campaign file.

    - ``data``: what ``python -m search_spaces.readers.bigearthnet`` made. With ``small`` the directory for a
      made-up archive, which is written there by who comes first; runs/made-up if it is not named.
    - ``small``: images of 32×32 pixels, one block a stage, up to 16 filters, 6 epochs of 32 samples a step.
    - ``epochs``: at most this many, else 100; early stopping may end a training before.
    - ``batch_size``: of all ranks together, so that their number does not matter; else 512.
    - ``patches``: this many of the training part, and of the others as many at most.
    - ``precision``, ``loader_processes``: as of ``trainers.train``.

    UsageError for options that cannot be, or where ``data`` is not whole.
    """
    options = _Options(data, small, epochs, batch_size, patches, precision, loader_processes)
    options.check_data()

    def evaluate(trial: hpo.Trial) -> dict[str, float]:
        _, result = _fit(
            trial.params,
            options,
            seed=trial.seed,
            ranks=trial.size,
            device=trial.device,
            # A run of seconds is saved only when it is interrupted, and at its end.
            checkpoint_every=sys.maxsize if small else None,
            # An individual that goes on with another number of ranks begins anew.
            checkpoint=trial.directory / f"checkpoint-{trial.size}-ranks",
            report=lambda epoch, metrics: trial.report(epoch, metrics["micro_f1"], **metrics),
            interrupt=trial.should_checkpoint,
        )
        # NaN is no result: the campaign counts it as invalid and goes on.
        fitness = result.metrics["micro_f1"] if result.reason != "diverged" else math.nan
        return {"value": fitness, "epochs": len(result.history), **{n: result.metrics[n] for n in RECORDED}}

    return hpo.Task(
        make_space(options.size.most_filters),
        evaluate,
        direction="maximize",
        default=default_for(options.size.most_filters),
        steps=options.most_epochs,
    )


RECORDED = (
    "macro_f1",
    *(f"f1/{name}" for name in CLASSES),
    *("train_loss", "validation_loss", "train_s", "wait_s", "bytes_inside_nodes", "bytes_between_nodes"),
)
"""Metrics of the trainer that a campaign keeps beside the fitness."""

MEASURE = "micro-F1"
"""What the fitness and ``test_f1`` are, for jobs/compare.py to say."""


def test_f1(
    params: Mapping[str, Scalar],
    *,
    seeds: Sequence[int] = (0, 1, 2),
    ranks: int = 1,
    device: str = "cpu",
    **options: Any,
) -> float:
    """Mean micro-averaged F₁ on the test part of ``params`` trained anew with each of ``seeds``; for a chosen
    configuration only. ``options`` are those of ``make_task``.
    """
    import trainers

    chosen = _Options(**options)
    found = []
    for seed in seeds:
        model, _ = _fit(params, chosen, seed=seed, ranks=ranks, device=device)
        scores = trainers.evaluate(
            model,
            chosen.part("test"),
            metrics={"micro_f1": metrics()["micro_f1"]},
            batch_size=_EVALUATED_AT_ONCE,
            precision=chosen.precision,
            loader_processes=chosen.loader_processes,
        )
        found.append(scores["micro_f1"])
    return sum(found) / len(found)


def _fit(
    params: Mapping[str, Scalar],
    options: _Options,
    *,
    seed: int,
    ranks: int,
    device: str,
    checkpoint: Path | None = None,
    checkpoint_every: int | None = None,
    report: Callable[[int, dict[str, float]], None] | None = None,
    interrupt: Callable[[], bool] | None = None,
) -> tuple[nn.Module, trainers.Result]:
    """The model that ``params`` describe, trained on the training part and watched on the validation part.

    It is left as it was at its best validation loss, and so are the metrics.
    """
    import torch

    import trainers
    from search_spaces.building_blocks.losses import LOSSES

    p: dict[str, Any] = dict(params)
    epochs = options.most_epochs
    torch.manual_seed(seed)
    model = _network(params, options).to(device)
    result = check.refusing(trainers.train)(
        model,
        options.part("train"),
        options.part("validation"),
        loss=LOSSES[p["loss"]],
        metrics=metrics(),
        optimizer=lambda weights: optimizers.make(weights, p),
        schedule=optimizers.make_schedule(p, epochs=epochs),
        early_stopping=trainers.EarlyStopping(patience=PATIENCE_EPOCHS, restore_best=True),
        epochs=epochs,
        batch_size=-(-options.samples_a_step // ranks),
        evaluation_batch_size=_EVALUATED_AT_ONCE,
        precision=options.precision,
        loader_processes=options.loader_processes,
        checkpoint=checkpoint,
        checkpoint_every=checkpoint_every,
        report=report,
        interrupt=interrupt,
        seed=seed,
    )
    return model, result


def untrained(params: Mapping[str, Scalar], **options: Any) -> nn.Module:
    """The network of a configuration, untrained; ``options`` are those of ``make_task``."""
    return _network(params, _Options(**options))


def _network(params: Mapping[str, Scalar], options: _Options) -> nn.Module:
    from search_spaces.networks.resnet import ResNet50

    p: dict[str, Any] = dict(params)
    return ResNet50(
        channels=len(BANDS),
        classes=len(CLASSES),
        filters=p["filters"],
        activation=p["activation"],
        order=p["order"],
        blocks=options.size.blocks,
    )


def metrics() -> dict[str, Callable[[Tensor, Tensor], float]]:
    """Scikit-learn's F₁ of (logits, targets), a class being predicted where its logit is above 0: micro- and
    macro-averaged, and of each class. A class that is neither there nor predicted has 0.
    """
    from sklearn.metrics import f1_score

    def averaged(how: str) -> Callable[[Tensor, Tensor], float]:
        def f1(logits: Tensor, targets: Tensor) -> float:
            return float(f1_score(_plain(targets), _plain(logits), average=how, zero_division=0.0))

        return f1

    def of_class(column: int) -> Callable[[Tensor, Tensor], float]:
        def f1(logits: Tensor, targets: Tensor) -> float:
            there, predicted = _plain(targets[:, column]), _plain(logits[:, column])
            return float(f1_score(there, predicted, zero_division=0.0))

        return f1

    return {
        "micro_f1": averaged("micro"),
        "macro_f1": averaged("macro"),
        **{f"f1/{name}": of_class(column) for column, name in enumerate(CLASSES)},
    }


def _plain(values: Tensor) -> Any:
    return (values > 0).cpu().numpy()


@lru_cache(maxsize=4)
def _part(data: str, name: str, *, small: bool, side: int, patches: int | None) -> Dataset[object]:
    """A part of the patches; one that is small enough is held in memory."""
    from torch.utils.data import TensorDataset

    from search_spaces.readers.bigearthnet import load_bigearthnet
    from search_spaces.readers.bigearthnet_archive import made_up_store

    path = made_up_store(data or _HOME, patches=_MADE_UP_PATCHES, processes=1) if small else Path(data)
    samples = load_bigearthnet(path, name, size=side)
    if patches is not None and (name == "train" or patches < len(samples)):
        samples = load_bigearthnet(path, name, size=side, patches=patches)
    if 4 * len(samples) * len(BANDS) * side**2 <= _IN_MEMORY_BYTES:
        return TensorDataset(*samples.read_batch(range(len(samples))))
    return samples


if __name__ == "__main__":
    sys.exit(command_line.main("search_spaces.bigearthnet", make_task, test_f1, network=untrained))
