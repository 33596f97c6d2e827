"""How options of ``trainers.train`` change a step: an average of the weights, clipping by value, groups of parameters,
activation checkpointing; each beside a reference of a few lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from models import small_data, small_model, train_small
from resuming import assert_identical, assert_same_in_pieces, state_of
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import trainers
from trainers.checkpoints.shards import read_alone
from trainers.lowrank.layers import Factored
from trainers.optim.moving_average import MovingAverage

# The average of the weights


def test_the_average_is_evaluated_and_left_in_the_model() -> None:
    plain, averaged = small_model(), small_model()
    after: list[dict[str, Tensor]] = []
    train_small(plain, on_step=lambda step, values: after.append(state_of(plain)))
    expected = after[0]
    for state in after[1:]:
        for name, value in state.items():
            expected[name] = 0.8 * expected[name] + 0.2 * value if value.is_floating_point() else value
    result = train_small(averaged, ema_decay=0.8)
    torch.testing.assert_close(state_of(averaged), expected)
    averaged.eval()
    inputs, targets = small_data().tensors
    with torch.no_grad():
        assert result.metrics["validation_loss"] == pytest.approx(mse_loss(averaged(inputs), targets).item())
    # The training itself is as it is without the average.
    assert result.metrics["train_loss"] == train_small(small_model()).metrics["train_loss"]


def test_the_average_of_weights_in_bfloat16_moves_in_small_steps() -> None:
    net = nn.Linear(100, 1, dtype=torch.bfloat16)
    average = MovingAverage(net, 0.999)
    with torch.no_grad():
        net.weight.fill_(1.0)
        average.update()
        net.weight.fill_(2.0)
        for _ in range(1000):
            average.update()
    average.fill()
    expected = torch.full((1, 100), 2 - 0.999**1000)
    torch.testing.assert_close(net.weight.float(), expected, rtol=2**-8, atol=0)
    again = MovingAverage(net, 0.999)
    again.load({**average.parameters, **average.buffers})
    assert_identical(average.parameters, again.parameters)


@pytest.mark.parametrize("stopping", [None, trainers.EarlyStopping(patience=1, restore_best=True)])
def test_a_run_in_pieces_has_the_same_average(tmp_path: Path, stopping: Any) -> None:
    settings: dict[str, Any] = {"ema_decay": 0.8, "early_stopping": stopping}
    whole = assert_same_in_pieces(train_small, small_model, tmp_path, (2, 2, 2), **settings)
    assert_identical(state_of(trainers.load_trained(small_model(), tmp_path)), state_of(whole))
    if stopping is None:
        assert_identical(dict(read_alone(tmp_path)["model"]), state_of(whole))  # type: ignore[call-overload]


# Clipping


def test_each_element_of_the_gradient_is_clipped() -> None:
    net, seen = small_model(), []

    class Watching(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            seen.append(max(p.grad.abs().max().item() for g in self.param_groups for p in g["params"]))
            return super().step(closure)

    def watching(parameters: Any) -> torch.optim.Optimizer:
        return Watching(parameters, lr=0.1)

    train_small(net, optimizer=watching)
    largest = max(seen)
    seen.clear()
    train_small(small_model(), optimizer=watching, clip_value=largest / 100)
    assert max(seen) == pytest.approx(largest / 100)


# Groups of parameters


def without_decay(name: str, parameter: nn.Parameter) -> dict[str, float]:
    if name.startswith("0."):
        return {"lr": 0.01, "weight_decay": 0.0}
    return {"weight_decay": 0.0} if parameter.ndim < 2 else {}


def test_groups_have_the_settings_of_their_names() -> None:
    made: list[torch.optim.Optimizer] = []

    def adamw(parameters: Any) -> torch.optim.Optimizer:
        made.append(torch.optim.AdamW(parameters, lr=0.1, weight_decay=0.5))
        return made[0]

    net = small_model()
    train_small(
        net, optimizer=adamw, parameter_groups=without_decay, schedule=trainers.Polynomial(), epochs=1
    )
    names = {id(parameter): name for name, parameter in net.named_parameters()}
    found = {
        tuple(names[id(p)] for p in group["params"]): (group["initial_lr"], group["weight_decay"])
        for group in made[0].param_groups
    }
    assert found == {
        ("0.weight", "0.bias"): (0.01, 0.0),
        ("1.weight", "1.bias", "3.bias"): (0.1, 0.0),
        ("3.weight",): (0.1, 0.5),
    }
    rates = [group["lr"] / group["initial_lr"] for group in made[0].param_groups]
    assert rates == pytest.approx([rates[0]] * 3)


# Activation checkpointing


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.Tanh()) for _ in range(3)
        )
        self.head = nn.Linear(3, 1)
        self.passes = 0
        self.blocks[0][0].register_forward_hook(self.count)

    def count(self, *_: object) -> None:
        self.passes += 1

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(x)
        return out


def test_activations_are_computed_again_with_the_same_results() -> None:
    plain, again = Blocks(), Blocks()
    expected = train_small(plain)
    assert (
        train_small(again, activation_checkpointing=["blocks.*"]).metrics.items()
        >= {name: value for name, value in expected.metrics.items() if not name.endswith("_s")}.items()
    )
    assert_identical(state_of(plain), state_of(again))
    steps, evaluations = 10, 2 * 5
    assert (plain.passes, again.passes) == (steps + evaluations, 2 * steps + evaluations)
    assert not any("forward" in vars(module) for module in again.modules())


def test_a_layer_that_is_factored_then_multiplies_nothing_out(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    whole = Factored._whole

    def noted(layer: Factored, attribute: str) -> Tensor:
        made.append(attribute)
        return whole(layer, attribute)

    monkeypatch.setattr(Factored, "_whole", noted)
    nets = []
    for patterns in ((), ["1"]):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 32), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
        method = trainers.OIALR(delay=2, update_every=3)
        train_small(net, method=method, activation_checkpointing=patterns)
        assert isinstance(net[1], Factored)
        assert made == []
        nets.append(net)
    assert_identical(*map(state_of, nets))


class Doubled(nn.Linear):
    """With a forward of its own in the instance, as some wrappers set it."""

    def __init__(self) -> None:
        super().__init__(3, 1)
        plain, self.calls = super().forward, 0

        def forward(x: Tensor) -> Tensor:
            self.calls += 1
            return 2 * plain(x)

        self.forward = forward  # type: ignore[method-assign]


def test_a_forward_of_the_instance_is_kept() -> None:
    net = nn.Sequential(Doubled())
    forward = net[0].forward
    train_small(net, activation_checkpointing=["0"])
    assert net[0].calls == 2 * 10 + 2 * 5
    assert net[0].forward is forward


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"parameter_groups": lambda name, parameter: "no"}, "returned 'no' for 0.weight, and must return"),
        (
            {"parameter_groups": lambda name, parameter: {"wieght_decay": 0.0}},
            "SGD has no setting 'wieght_decay'. It has lr, momentum",
        ),
        ({"activation_checkpointing": ["blocks.*"]}, "no module is called 'blocks.*'. The model has 0, 1"),
        ({"activation_checkpointing": ["*"]}, "1 holds BatchNorm1d, whose running statistics"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        train_small(small_model(), **given)
