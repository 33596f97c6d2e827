"""Settings of methods, schedules and early stopping that are not allowed are refused where they are made."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from torch.utils.data import DataLoader

import trainers
from trainers import AB, DASO, DDP, OIALR, LocalSGD

REFUSED: list[tuple[Callable[..., object], dict[str, Any]]] = [
    (DDP, {"compression": "fp16"}),
    (DDP, {"powersgd_rank": 0}),
    (DDP, {"powersgd_rank": 2.5}),
    (DDP, {"powersgd_rank": 2}),
    (DDP, {"powersgd_rank": 8, "compression": "bf16"}),
    (DASO, {"sync_every": 0}),
    (DASO, {"sync_every": 2.0}),
    (DASO, {"sync_delay": -1}),
    (DASO, {"sync_delay": 3, "sync_every": 2}),
    (DASO, {"warmup_epochs": -1}),
    (DASO, {"cooldown_epochs": 1.5}),
    (DASO, {"warmup_epochs": math.nan}),
    (DASO, {"wire_dtype": "fp16"}),
    (DASO, {"plateau_patience": 0}),
    (DASO, {"plateau_threshold": 1.0}),
    (DASO, {"bucket_bytes": 0}),
    (DASO, {"wire_dtype": "int2"}),
    (DASO, {"wire_dtype": ["int8"]}),
    (LocalSGD, {"wire_dtype": "fp16"}),
    (DASO, {"fragments": 0}),
    (DASO, {"fragments": 5}),
    (LocalSGD, {"fragments": 9}),
    (LocalSGD, {"fragments": 2.0}),
    (LocalSGD, {"household_every": 0}),
    (LocalSGD, {"world_every": None}),
    (LocalSGD, {"world_every": 1}),
    (LocalSGD, {"households": 1.0}),
    (LocalSGD, {"neighbourhoods": 2}),
    (LocalSGD, {"neighbourhood_every": 2}),
    (LocalSGD, {"neighbourhood_every": 8, "neighbourhoods": 2}),
    (LocalSGD, {"household_every": 2, "neighbourhoods": 2, "neighbourhood_every": 2}),
    (LocalSGD, {"neighbourhoods": 3, "households": 2, "neighbourhood_every": 2}),
    (LocalSGD, {"neighbourhoods": 2, "households": 2, "neighbourhood_every": 2}),
    (LocalSGD, {"start": 1.5}),
    (LocalSGD, {"start": -1}),
    (OIALR, {"sigma_cutoff": 0.0}),
    (OIALR, {"sigma_cutoff": 1}),
    (OIALR, {"sigma_cutoff": math.nan}),
    (OIALR, {"layer_step": 0}),
    (OIALR, {"layer_step": 1.5}),
    (OIALR, {"delay": -1}),
    (OIALR, {"delay": 1.1}),
    (OIALR, {"update_every": 0}),
    (OIALR, {"update_every": 0.0}),
    (OIALR, {"synchronisation": OIALR()}),
    (OIALR, {"synchronisation": AB()}),
    (AB, {"sigma_cutoff": 0.0}),
    (AB, {"sigma_cutoff": 1.0}),
    (AB, {"merge": "mean"}),
    (AB, {"merge_gain": 0.0}),
    (AB, {"merge_gain": 1.1}),
    (AB, {"compression": "powersgd"}),
    (AB, {"group_size": 0}),
    (AB, {"group_size": 2.0}),
    (AB, {"group_size": 2, "groups": False}),
    (AB, {"merge": "products", "groups": False}),
    (AB, {"merge": "loss-weighted", "groups": False}),
    (AB, {"merge_gain": 1.0, "merge": "products"}),
    (AB, {"ab_steps": 0}),
    (AB, {"warmup_steps": -1}),
    (AB, {"rebound_steps": 1.5}),
    (OIALR, {"sigma_cutoff": None}),
    (OIALR, {"synchronisation": "DASO"}),
    (OIALR, {"synchronisation": DASO}),
    (AB, {"merge_gain": "1"}),
    (AB, {"groups": "no"}),
    (DASO, {"adaptive": "no"}),
    (DASO, {"plateau_threshold": None}),
    (LocalSGD, {"adaptive": "x"}),
    (trainers.Coarse, {"shards": 2.0}),
    (trainers.Cosine, {"warmup_epochs": "1"}),
    (trainers.Cosine, {"warmup_epochs": math.inf}),
    (trainers.Drops, {"at": 0.5}),
    (trainers.ReduceOnPlateau, {"patience": "5"}),
    (trainers.EarlyStopping, {"restore_best": 1}),
    (trainers.Cosine, {"k_decay": 0.0}),
    (trainers.Cosine, {"warmup_epochs": -1}),
    (trainers.Exponential, {"rate_factor": 1.5}),
    (trainers.InverseTime, {"decay": -0.1}),
    (trainers.Polynomial, {"power": -1.0}),
    (trainers.ReduceOnPlateau, {"direction": "min"}),
    (trainers.Constant, {"warmup_lr": math.nan}),
    (trainers.EarlyStopping, {"patience": 0}),
    (trainers.EarlyStopping, {"direction": "up"}),
]


@pytest.mark.parametrize(("kind", "given"), REFUSED)
def test_a_setting_that_is_not_allowed_is_refused(kind: Any, given: dict[str, Any]) -> None:
    """By a sentence with the setting and its value, and one with the remedy."""
    with pytest.raises(ValueError) as refused:
        kind(**given)
    (option, value), *_ = given.items()
    call, _, rest = str(refused.value).partition("): ")
    shown = type(value).__name__ if isinstance(value, (OIALR, AB)) else repr(value)
    assert call.startswith(f"{kind.__name__}(") and f"{option}={shown}" in call
    rule, _, remedy = rest.rpartition(". ")
    assert rule and remedy.endswith(".")


BATCHES = DataLoader([1])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("samples", "given"), [(iter([1]), {}), ([1], {"length": 0}), ([1], {"sharded": 1}), (BATCHES, {})]
)
def test_a_stream_that_cannot_be_read_again_and_again_is_refused(samples: Any, given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^Stream: .*\. \w.*\.$"):
        trainers.Stream(samples, **given)
