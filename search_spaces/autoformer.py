"""OIALR on Autoformer, ETTm2: the learning rate's course, when, how often and how much rank is dropped, and where
(dissertation, section 4.4.5, tables A.4 and A.5).

    hpo run jobs/autoformer_small.toml                          a small search on data that a package ships
    sbatch jobs/slurm.sbatch jobs/autoformer.toml               the source's, on ETTm2
    python -m search_spaces.autoformer --lr 1e-3                one configuration, the others as in ``default``
    python -m search_spaces.autoformer --campaign runs/autoformer_small
                                                                its best, with the error on the test part

The network is ``Autoformer`` of transformers, as in the source; ``search_spaces.networks.autoformer`` lists how that
differs from its authors'.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

import hpo
from search_spaces.building_blocks.campaign import campaign
from search_spaces.building_blocks.forecast_task import ForecastTask, SeriesOptions
from search_spaces.building_blocks.methods import MethodName
from search_spaces.building_blocks.recipes import OwnMethod, Recipe, Run
from search_spaces.options import CosineForm, Count, FromZeroBelowOne, divisor, wrong

if TYPE_CHECKING:
    import trainers

# Length of the source's run, if it is not stopped early (34 369 windows in batches of 32). Parameters that
# count epochs or steps are scaled to the length of a run.
EPOCHS, STEPS = 20, 20 * 1075

# Width that the learning rates are for, the source's.
DIM = 512

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

# First rate and OIALR of the source's untuned run (Table A.4), which halves the rate each epoch (schedule =
# "type1"); in a search the rate falls by a cosine.
default: dict[str, Any] = {
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

# The tuned run of Table A.4; its learning rate, 0.01 there, is the most that Table A.5 searches.
TUNED: dict[str, Any] = {
    **default, "lr": 5e-3, "min_lr": 4e-4, "warmup_lr": 1e-4, "k_decay": 0.85, "warmup_epochs": 3,
}  # fmt: skip

# Options that are keywords of the network, too.
_ARCHITECTURE = (
    "context", "start_token", "horizon", "dim", "linear_dim", "encoder_layers", "decoder_layers", "heads",
    "moving_average", "dropout",
)  # fmt: skip

# Options of baselines in jobs/compare.py: Table 4.4's is not tuned.
BASELINE_OPTIONS = {"schedule": "type1"}

# Name of the score in jobs/compare.py.
MEASURE = "MSE"


class Options(SeriesOptions):
    """The defaults are a small run; the source's are in jobs/autoformer.toml."""

    start_token: Count = 48
    """Points of the context that the decoder begins with."""
    epochs: Count = 5
    patience: Count = 3
    """A run ends after this many epochs without a smaller error."""
    batch_size: Count = 32
    method: MethodName = "oialr"
    schedule: Literal["cosine", "type1"] = "cosine"
    """Learning rate: cosine, or type1: halved each epoch, as in the source's untuned runs."""
    cosine: CosineForm = "after-warm-up"
    """Start of the cosine: after-warm-up, or timm: at the run's start, as the source's."""
    dim: Count = 32
    linear_dim: Count = 64
    encoder_layers: Count = 2
    decoder_layers: Count = 1
    heads: Count = 4
    moving_average: Count = 25
    """Width of the trend's moving average, in points."""
    dropout: FromZeroBelowOne = 0.05

    def rules(self) -> Iterator[hpo.UsageError]:
        yield from super().rules()
        yield from divisor("dim", self.dim, heads=self.heads)
        if self.start_token > self.context:
            yield wrong("start_token", self.start_token, f"from 1 to context = {self.context}")
        if self.moving_average % 2 == 0:
            yield wrong("moving_average", self.moving_average, "odd, to have a middle")

    def check_data(self) -> None:
        # The import takes seconds, and ranks that search do not need it.
        if find_spec("transformers") is None:
            raise hpo.UsageError(
                "Autoformer is in the package transformers, which is not installed. Run: bash jobs/setup.sh forecasting"
            )
        super().check_data()


def recipe(p: dict[str, Any], options: Options, run: Run) -> Recipe:
    import torch

    import trainers
    from search_spaces.building_blocks.recipe_parts.schedules import HalvedEachEpoch, searched_cosine
    from search_spaces.networks.autoformer import Autoformer

    lr, cosine = searched_cosine(options.cosine, p, width=(options.dim, DIM), length=(options.epochs, EPOCHS))
    return Recipe(
        network=Autoformer(
            features=run.data["features"],
            time_features=run.data["time_features"],
            **{name: getattr(options, name) for name in _ARCHITECTURE},
        ),
        loss=torch.nn.functional.mse_loss,
        # AdamW, as in all experiments of the dissertation's section 4.4.
        optimizer=lambda weights: torch.optim.AdamW(weights, lr=lr),
        schedule=cosine if options.schedule == "cosine" else HalvedEachEpoch(),
        early_stopping=trainers.EarlyStopping(patience=options.patience, restore_best=True),
    )


def _oialr(p: dict[str, Any], options: Options, run: Run) -> trainers.Method:
    import trainers

    return trainers.OIALR(
        delay=p["delay"] / STEPS,
        update_every=p["update_every"] / STEPS,
        sigma_cutoff=p["sigma_cutoff"],
        full_rank_first_layer=p["full_rank_first_layer"],
        full_rank_last_layer=p["full_rank_last_layer"],
        full_rank_warmup=False,
    )


make_task, main = campaign(
    space,
    default,
    recipe,
    options=Options,
    task=ForecastTask,
    own=OwnMethod(
        names=("oialr",),
        parameters=("sigma_cutoff", "update_every", "delay", "full_rank_first_layer", "full_rank_last_layer"),
        make=_oialr,
    ),
    facts=("features", "time_features"),
)
test_error, untrained = make_task.test, make_task.untrained

if __name__ == "__main__":
    sys.exit(main())
