from __future__ import annotations

import copy

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

import trainers

Array = npt.NDArray[np.float64]


def algorithm_1(
    w: Array,
    gradients: list[Array],
    *,
    alpha: float,
    beta: float,
    lambda_1: float,
    lambda_2: float,
    n_0: float,
) -> Array:
    """McMahan et al. 2013, algorithm 1, which makes each w_t,i from z and n just before it is used."""
    z, n = np.zeros_like(w), np.full_like(w, n_0)
    for g in gradients:
        sigma = (np.sqrt(n + g * g) - np.sqrt(n)) / alpha
        z += g - sigma * w
        n += g * g
        proximal = -1 / ((beta + np.sqrt(n)) / alpha + lambda_2) * (z - np.sign(z) * lambda_1)
        w = np.where(np.abs(z) <= lambda_1, 0.0, proximal)
    return w


def parameter(values: Array) -> nn.Parameter:
    return nn.Parameter(torch.tensor(values))


def stepped(weight: nn.Parameter, optimizer: torch.optim.Optimizer, gradients: list[Array]) -> Array:
    for gradient in gradients:
        weight.grad = torch.tensor(gradient)
        optimizer.step()
    return weight.detach().numpy().copy()


def drawn(steps: int) -> list[Array]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=(3, 4)) for _ in range(steps)]


@pytest.mark.parametrize(("l1", "l2", "beta", "n_0"), [(0.0, 0.3, 0.0, 0.1), (2.5, 0.0, 1.0, 0.0)])
def test_weights_are_those_of_the_papers_algorithm(l1: float, l2: float, beta: float, n_0: float) -> None:
    start = np.random.default_rng(1).normal(size=(3, 4))
    gradients = drawn(20)
    weight = parameter(start)
    optimizer = trainers.Ftrl([weight], lr=0.2, l1=l1, l2=l2, beta=beta, initial_accumulator=n_0)
    expected = algorithm_1(start, gradients, alpha=0.2, beta=beta, lambda_1=l1, lambda_2=2 * l2, n_0=n_0)
    assert stepped(weight, optimizer, gradients) == pytest.approx(expected, rel=1e-12, abs=1e-15)
    if l1:
        assert (expected == 0).any()
        assert (expected != 0).any()


@pytest.mark.parametrize("power", [-0.5, -0.25])
def test_without_penalties_and_from_zero_it_is_a_gradient_step_at_its_own_rate(power: float) -> None:
    gradients = drawn(5)
    weight = parameter(np.zeros((3, 4)))
    optimizer = trainers.Ftrl([weight], lr=0.1, lr_power=power)
    expected, squares = np.zeros((3, 4)), np.full((3, 4), 0.1)
    for gradient in gradients:
        squares += gradient**2
        expected -= 0.1 * gradient / squares**-power
    assert stepped(weight, optimizer, gradients) == pytest.approx(expected, rel=1e-12)


def test_a_falling_rate_does_not_shrink_the_weights() -> None:
    first, second = drawn(2)
    weight = parameter(np.zeros((3, 4)))
    optimizer = trainers.Ftrl([weight], lr=0.1)
    after_one = stepped(weight, optimizer, [first])
    optimizer.param_groups[0]["lr"] = 0.001
    expected = after_one - 0.001 * second / np.sqrt(0.1 + first**2 + second**2)
    assert stepped(weight, optimizer, [second]) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("accumulated", [None, 2.5])
def test_settled_weights_are_where_steps_begin(accumulated: float | None) -> None:
    start, (gradient,) = np.random.default_rng(1).normal(size=(3, 4)), drawn(1)
    weight = parameter(start)
    optimizer = trainers.Ftrl([weight], lr=0.1)
    optimizer.settle(weight, None if accumulated is None else torch.full((3, 4), accumulated))
    squares = gradient**2 + (accumulated or 0.1)
    assert stepped(weight, optimizer, [gradient]) == pytest.approx(start - 0.1 * gradient / np.sqrt(squares))


def test_a_saved_state_goes_on_to_the_bit() -> None:
    gradients = drawn(8)
    weight = parameter(np.ones((3, 4)))
    optimizer = trainers.Ftrl([weight], lr=0.1, l1=0.1)
    stepped(weight, optimizer, gradients[:4])
    other = parameter(weight.detach().numpy().copy())
    resumed = trainers.Ftrl([other], lr=0.1, l1=0.1)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for group in (optimizer.param_groups[0], resumed.param_groups[0]):
        group["lr"] = 0.05
    expected = stepped(weight, optimizer, gradients[4:])
    assert (stepped(other, resumed, gradients[4:]) == expected).all()


def test_low_rank_training_keeps_what_it_factors() -> None:
    """A decomposition gives Ftrl new parameters, whose first step must not begin at zero."""
    from trainers.lowrank.state_projection import Projection, exchange

    old = parameter(np.random.default_rng(1).normal(size=(3, 4)))
    optimizer = trainers.Ftrl([old], lr=0.1)
    stepped(old, optimizer, drawn(3))
    left = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64))[0]
    new = nn.Parameter(left @ old.detach())
    exchange(optimizer, old, new, Projection(left=left))
    begin = new.detach().numpy().copy()
    moved = stepped(new, optimizer, [np.full((3, 4), 1e-9)])
    assert moved == pytest.approx(begin, abs=1e-7)
    assert optimizer.state[new]["sum"].mean() > 0.5


def test_wrong_settings_are_refused_and_steps_without_a_rate_or_a_gradient_change_nothing() -> None:
    for name, value in (
        ("lr", -1.0),
        ("lr_power", 0.5),
        ("initial_accumulator", -1.0),
        ("l1", -0.1),
        ("beta", -1),
    ):
        with pytest.raises(ValueError, match=rf"Ftrl\({name}={value}\)"):
            trainers.Ftrl([parameter(np.ones(1))], **{name: value})
    for settings, gradient in (({"lr": 0.0}, drawn(1)), ({"initial_accumulator": 0.0}, [np.zeros((3, 4))])):
        weight = parameter(np.ones((3, 4)))
        assert (stepped(weight, trainers.Ftrl([weight], **settings), gradient) == 1).all()
