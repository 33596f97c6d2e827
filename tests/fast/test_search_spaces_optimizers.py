from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn, optim

import hpo
import trainers
from search_spaces.building_blocks.recipe_parts import optimizers
from search_spaces.building_blocks.recipe_parts.optimizers import OPTIMIZERS, SCHEDULES

BETAS = {"beta1": 0.75, "beta2": 0.95, "epsilon": 1e-5}
SPACE = hpo.SearchSpace(optimizers.parameters())


def chosen(optimizer: str, **values: Any) -> dict[str, Any]:
    """This optimizer's configuration: what is not given is in the middle of its range."""
    start: dict[str, Any] = {"optimizer": optimizer, "lr": 0.01}
    return SPACE.decode(SPACE.encode({**start, **values}))


MADE: dict[str, tuple[type[optim.Optimizer], dict[str, Any], dict[str, Any]]] = {
    "adadelta": (optim.Adadelta, {"rho": 0.9, "epsilon": 1e-5}, {"rho": 0.9, "eps": 1e-5}),
    "adagrad": (
        optim.Adagrad,
        {"initial_accumulator": 0.5, "epsilon": 1e-5},
        {"initial_accumulator_value": 0.5, "eps": 1e-5},
    ),
    "adam": (optim.Adam, BETAS, {"betas": (0.75, 0.95), "eps": 1e-5, "amsgrad": False}),
    "amsgrad": (optim.Adam, BETAS, {"betas": (0.75, 0.95), "amsgrad": True}),
    "adamax": (optim.Adamax, BETAS, {"betas": (0.75, 0.95)}),
    "ftrl": (
        trainers.Ftrl,
        {"lr_power": -0.25, "initial_accumulator": 0.5, "l1": 1e-3, "l2": 1e-2, "beta": 0.25},
        {"lr_power": -0.25, "initial_accumulator": 0.5, "l1": 1e-3, "l2": 1e-2, "beta": 0.25},
    ),
    "nadam": (optim.NAdam, BETAS, {"betas": (0.75, 0.95)}),
    "rmsprop": (
        optim.RMSprop,
        {"rho": 0.9, "momentum": 0.5, "centered": True, "epsilon": 1e-5},
        {"alpha": 0.9, "momentum": 0.5, "centered": True, "eps": 1e-5},
    ),
    "sgd": (optim.SGD, {"momentum": 0.75, "nesterov": True}, {"momentum": 0.75, "nesterov": True}),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_each_is_made_with_its_own_parameters_and_takes_steps(kind: str) -> None:
    expected, values, defaults = MADE[kind]
    params = chosen(kind, lr=0.125, **values)
    assert set(params) == {"optimizer", "lr", *values}
    weight = nn.Parameter(torch.ones(3))
    made = optimizers.make([weight], params)
    assert type(made) is expected
    assert {"lr": 0.125, **defaults}.items() <= made.defaults.items()
    for _ in range(3):
        weight.grad = torch.full((3,), 0.5)
        made.step()
    assert weight.isfinite().all() and (weight != 1).all()


def test_nesterov_without_momentum_is_plain_descent() -> None:
    made = optimizers.make([nn.Parameter(torch.zeros(1))], chosen("sgd", momentum=0.0, nesterov=True))
    assert made.defaults["nesterov"] is False


@pytest.mark.parametrize(
    ("values", "ends_at"),
    [
        ({"schedule": "exponential", "final_fraction": 0.01}, 0.005),
        ({"schedule": "inverse-time", "decay": 4.0}, 0.1),
        ({"schedule": "polynomial", "power": 2.0, "end_fraction": 0.1}, 0.05),
    ],
)
def test_schedules_begin_at_the_rate_and_end_where_they_shall(values: dict[str, Any], ends_at: float) -> None:
    space = hpo.SearchSpace(optimizers.schedules())
    params = {**space.validate(values), "lr": 0.5}
    made = optimizers.make_schedule(params, epochs=7)
    assert made.rate(0.5, epoch=0, epochs=7) == pytest.approx(0.5)
    assert made.rate(0.5, epoch=7, epochs=7) == pytest.approx(ends_at)
    assert space.parameters["schedule"].choices == SCHEDULES  # type: ignore[attr-defined]
