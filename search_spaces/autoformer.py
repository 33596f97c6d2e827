"""OIALR on Autoformer, ETTm2: the learning rate's course, when, how often and how much rank is dropped, and where
(dissertation, section 4.4.5, tables A.4 and A.5).

    hpo run jobs/autoformer_small.toml                          a small search on data that a package ships
    sbatch jobs/slurm.sbatch jobs/autoformer.toml               the source's, on ETTm2
    python -m search_spaces.autoformer --lr 1e-3                one configuration, the others as in ``default``
    python -m search_spaces.autoformer --campaign runs/autoformer_small
                                                                what that has found, with its error on the test part

There the mean squared error on the test part was, of forecasts over 96, 192, 336 and 720 points, 0.2145, 0.2737,
0.3277 and 0.4194 at full rank, and 0.2112, 0.2686, 0.3212 and 0.4120 with OIALR and what the search had found, at
12.2, 27.2, 7.1 and 4.5 % of the parameters trained. It is ``Autoformer`` of transformers here as there; what that
does unlike its authors' is listed in ``search_spaces.networks.autoformer``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hpo
from search_spaces import options as check
from search_spaces import sources
from search_spaces.standalone import command_line, trained_models

if TYPE_CHECKING:
    import torch
    from torch import nn

    import trainers
    from hpo.individual import Scalar
    from search_spaces.readers.ett import Parts

EPOCHS, STEPS = 20, 20 * 1075
"""Of the source's run, if it is not stopped earlier (34 369 windows in batches of 32). Parameters that count epochs or
steps are parts of it: a run of another length has them in proportion."""

space = hpo.SearchSpace(
    lr=hpo.Float(1e-5, 5e-3, log=True),
    min_lr=hpo.Float(5e-6, 1e-3, log=True),  # may lie above lr
    warmup_lr=hpo.Float(5e-6, 2e-4, log=True),
    k_decay=hpo.Float(1e-3, 2.0),
    warmup_epochs=hpo.Int(2, 10),
    sigma_cutoff=hpo.Float(0.01, 0.9),
    update_every=hpo.Int(50, 2000, log=True),  # the source's stability frequency
    delay=hpo.Int(250, 2500, log=True),
    full_rank_first_layer=hpo.Categorical(False, True),
    full_rank_last_layer=hpo.Categorical(False, True),
)

default: dict[str, Scalar] = {
    "lr": 4e-4,
    "min_lr": 5e-6,
    "warmup_lr": 1e-4,
    "k_decay": 1.0,
    "warmup_epochs": 2,
    "sigma_cutoff": 0.4,
    "update_every": 400,
    "delay": 600,
    "full_rank_first_layer": True,
    "full_rank_last_layer": True,
}
"""The rate that the source's untuned run starts with and its settings of OIALR (Table A.4). That run halves the rate
each epoch, which is not in the space: here it falls by a cosine to the least that there is."""

TUNED: dict[str, Scalar] = {
    **default, "lr": 5e-3, "min_lr": 4e-4, "warmup_lr": 1e-4, "k_decay": 0.85, "warmup_epochs": 3,
}  # fmt: skip
"""What Table A.4 states of the tuned run, but for its learning rate: that is 0.01 there, and by Table A.5 no more than
this was searched."""

RECORDED = ("mae", "train_loss", "trainable_fraction", "compression_ratio", "train_s", "epoch")
"""Metrics of the trainer that a campaign keeps beside the fitness."""

MEASURE = "MSE"
"""What the fitness and ``test_error`` are, for jobs/compare.py to say."""


@dataclass(frozen=True, kw_only=True)
class ForecastOptions:
    """How all configurations of a campaign are trained; UsageError for what cannot be.

    - ``data``: a csv, or "elecdemand", as for ``readers.ett.read_series``. ``stride``: a window begins this many points
      after the one before; 1: all are used.
    - ``horizon``, ``context``, ``start_token``: points that are forecast, that are seen, and of these that the
      decoder begins with.
    - ``epochs``: at most; a run ends after ``patience`` of them without a smaller error.
    - ``batch_size``: of all ranks together, so that their number does not matter.
    - ``loader_processes``: a rank's, that read ahead; 0: it does so itself.
    - ``dim``, ``linear_dim``, ``encoder_layers``, ``decoder_layers``, ``heads``, ``moving_average`` (points),
      ``dropout``: the network's.
    """

    data: str
    stride: int
    horizon: int
    context: int
    start_token: int
    epochs: int
    patience: int
    batch_size: int
    loader_processes: int
    dim: int
    linear_dim: int
    encoder_layers: int
    decoder_layers: int
    heads: int
    moving_average: int
    dropout: float

    def __post_init__(self) -> None:
        with check.together():
            check.whole(1, stride=self.stride, horizon=self.horizon, context=self.context)
            check.whole(1, start_token=self.start_token, epochs=self.epochs, patience=self.patience)
            check.whole(1, batch_size=self.batch_size, dim=self.dim, linear_dim=self.linear_dim)
            check.whole(1, encoder_layers=self.encoder_layers, decoder_layers=self.decoder_layers)
            check.whole(1, moving_average=self.moving_average)
            check.whole(0, loader_processes=self.loader_processes)
            check.divisor("dim", self.dim, heads=self.heads)
            check.number("of at least 0 and below 1", lambda value: 0 <= value < 1, dropout=self.dropout)
        with check.together():
            if self.start_token > self.context:
                check.refuse("start_token", self.start_token, f"from 1 to context = {self.context}")
            if self.moving_average % 2 == 0:
                check.refuse("moving_average", self.moving_average, "odd, to have a middle")

    def parts(self) -> Parts:
        """The data. UsageError, with what to do, where it is not what it should be."""
        from search_spaces.readers.ett import load_parts

        with check.as_usage():
            return load_parts(self.data, context=self.context, horizon=self.horizon, stride=self.stride)


class ForecastTask(hpo.Task):
    """Train Autoformer as a configuration says, and judge it by the mean squared error on the validation part, to be
    minimised, at the epoch where that was smallest. A run without such an epoch is an invalid individual.
    """

    def __init__(self, options: ForecastOptions) -> None:
        self.options = options
        super().__init__(space, self._evaluate, "minimize", default=default, steps=options.epochs)

    def _evaluate(self, trial: hpo.Trial) -> dict[str, float]:
        if trial.rank == 0:
            trained_models.note(trial.directory, _sizes_of(self.options.parts()))
        _, result = self.fit(
            trial.params,
            seed=trial.seed,
            ranks=trial.size,
            device=trial.device,
            # An individual that goes on with another number of ranks begins anew.
            checkpoint=trial.directory / f"checkpoint-{trial.size}-ranks",
            report=lambda epoch, metrics: trial.report(epoch, metrics["validation_loss"], **metrics),
            interrupt=trial.should_checkpoint,
        )
        return {
            "value": result.metrics["validation_loss"],
            **{name: result.metrics[name] for name in RECORDED},
        }

    def network(self) -> nn.Module:
        """The network, untrained, for ``trainers.load_model`` to fill: the same for every configuration."""
        return _network(self.options, **_sizes_of(self.options.parts()))

    def test(
        self,
        params: Mapping[str, Scalar],
        *,
        seeds: Sequence[int] = (0, 1, 2),
        ranks: int = 1,
        device: str = "cpu",
    ) -> float:
        """Mean squared error on the test part, the mean of ``params`` trained anew with each of ``seeds``; for a
        chosen configuration only.
        """
        import torch

        import trainers

        found = []
        for seed in seeds:
            model, _ = self.fit(params, seed=seed, ranks=ranks, device=device)
            scores = trainers.evaluate(
                model,
                self.options.parts().test,
                metrics={"mse": torch.nn.functional.mse_loss},
                batch_size=_EVALUATED_AT_ONCE,
            )
            found.append(scores["mse"])
        return sum(found) / len(found)

    def fit(
        self,
        params: Mapping[str, Scalar],
        *,
        seed: int,
        ranks: int,
        device: str,
        checkpoint: Path | None = None,
        report: Callable[[int, dict[str, float]], None] | None = None,
        interrupt: Callable[[], bool] | None = None,
    ) -> tuple[nn.Module, trainers.Result]:
        """The network, trained on the training part as ``params`` say, as it was at its best epoch."""
        import torch

        import trainers

        options, parts, p = self.options, self.options.parts(), dict[str, Any](params)
        torch.manual_seed(seed)
        model = self.network().to(device)
        result = check.refusing(trainers.train)(
            model,
            parts.train,
            parts.validation,
            loss=torch.nn.functional.mse_loss,
            metrics={"mae": mean_absolute_error},
            optimizer=lambda parameters: torch.optim.Adam(parameters, lr=p["lr"]),
            schedule=trainers.Cosine(
                warmup_epochs=p["warmup_epochs"] * options.epochs / EPOCHS,
                warmup_lr=p["warmup_lr"],
                min_lr=p["min_lr"],
                k_decay=p["k_decay"],
            ),
            method=trainers.OIALR(
                delay=p["delay"] / STEPS,
                update_every=p["update_every"] / STEPS,
                sigma_cutoff=p["sigma_cutoff"],
                full_rank_first_layer=p["full_rank_first_layer"],
                full_rank_last_layer=p["full_rank_last_layer"],
                full_rank_warmup=False,
            ),
            early_stopping=trainers.EarlyStopping(patience=options.patience, restore_best=True),
            epochs=options.epochs,
            batch_size=-(-options.batch_size // ranks),
            evaluation_batch_size=_EVALUATED_AT_ONCE,
            loader_processes=options.loader_processes,
            checkpoint=checkpoint,
            report=report,
            interrupt=interrupt,
            seed=seed,
        )
        return model, result


def _sizes_of(parts: Parts) -> dict[str, int]:
    """What the data decide about the network."""
    return {"features": parts.features, "time_features": parts.time_features}


def _network(options: ForecastOptions, *, features: int, time_features: int) -> nn.Module:
    from search_spaces.networks.autoformer import Autoformer

    return Autoformer(
        features=features,
        time_features=time_features,
        context=options.context,
        start_token=options.start_token,
        horizon=options.horizon,
        dim=options.dim,
        linear_dim=options.linear_dim,
        encoder_layers=options.encoder_layers,
        decoder_layers=options.decoder_layers,
        heads=options.heads,
        moving_average=options.moving_average,
        dropout=options.dropout,
    )


_EVALUATED_AT_ONCE = 128
"""Windows: spectra of this many, at the source's width and a horizon of 720, take some hundred MB each."""


def mean_absolute_error(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    """Of standardised values, as the source's table has it beside the squared one."""
    return (outputs - targets).abs().mean().item()


def make_task(
    *,
    data: str = "elecdemand",
    stride: int = 16,
    horizon: int = 48,
    context: int = 96,
    start_token: int = 48,
    epochs: int = 5,
    patience: int = 3,
    batch_size: int = 32,
    loader_processes: int = 0,
    dim: int = 32,
    linear_dim: int = 64,
    encoder_layers: int = 2,
    decoder_layers: int = 1,
    heads: int = 4,
    moving_average: int = 25,
    dropout: float = 0.05,
) -> ForecastTask:
    """The task for these options, the ``[task_options]`` of a campaign file; see ``ForecastOptions``.

    The defaults are a small run; the source's are in jobs/autoformer.toml. UsageError for options that cannot be,
    for data that are not there, or if transformers is not installed.
    """
    # Asked, not imported: that takes seconds, and ranks that search need none of it.
    if find_spec("transformers") is None:
        raise hpo.UsageError(
            "Autoformer is in the package transformers, which is not installed. Run: bash jobs/setup.sh forecasting"
        )
    options = ForecastOptions(
        data=data,
        stride=stride,
        horizon=horizon,
        context=context,
        start_token=start_token,
        epochs=epochs,
        patience=patience,
        batch_size=batch_size,
        loader_processes=loader_processes,
        dim=dim,
        linear_dim=linear_dim,
        encoder_layers=encoder_layers,
        decoder_layers=decoder_layers,
        heads=heads,
        moving_average=moving_average,
        dropout=dropout,
    )
    sources.check_series(data)
    return ForecastTask(options)


test_error = command_line.tests_of(make_task)
"""As ``ForecastTask.test``, with the keywords of ``make_task``."""


def untrained(
    params: Mapping[str, Scalar],
    *,
    features: int | None = None,
    time_features: int | None = None,
    **options: Any,
) -> nn.Module:
    """The network of a configuration, untrained. With ``features``, values a point, and ``time_features``, numbers
    that give its time, no data are needed; without, they are read for these.
    """
    if features is None or time_features is None:
        return make_task(**options).network()
    # As make_task has them, which would ask for the data.
    chosen = ForecastOptions(**{**(make_task.__kwdefaults__ or {}), **options})
    return _network(chosen, features=features, time_features=time_features)


if __name__ == "__main__":
    sys.exit(command_line.main("search_spaces.autoformer", make_task, test_error, network=untrained))
