"""Fine-tuning: layers in eval(), layers thawed in mid-run, buffers that have no mean."""

from __future__ import annotations

import copy
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from cases import cases, combinations
from gloo import run_ranks
from models import labelled
from resuming import After, assert_identical, state_of
from test_trainers_contract import METHODS, PLAIN, Everything, adamw, sgd, train
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize
from torch.nn.utils.parametrizations import spectral_norm

import trainers

# Modes


class Tuned(nn.Module):
    def __init__(self, own: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.own = own
        self.body = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 16))
        self.norm, self.head = nn.BatchNorm1d(16), nn.Linear(16, 2)
        if not own:
            self.body.eval()[3].train()

    def train(self, mode: bool = True) -> Tuned:
        super().train(mode)
        if self.own:
            self.body.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.norm(self.body(x)))
        return out


def modes(model: nn.Module) -> dict[str, bool]:
    return {name: module.training for name, module in model.named_modules()}


@pytest.mark.parametrize(
    ("options", "own"),
    combinations(
        [{}, {"ema_decay": 0.9}, {"method": METHODS["OIALR"]}, {"method": METHODS["AB without groups"]}],
        [False, True],
    ),
)
def test_layers_in_eval_stay_so_in_each_epoch_and_all_are_as_they_came(
    options: dict[str, Any], own: bool
) -> None:
    model = Tuned(own)
    came, seen = modes(model), []

    def step(model: nn.Module, batch: Any) -> dict[str, Tensor]:
        seen.append(modes(model))
        outputs = model(batch[0])
        return {"loss": cross_entropy(outputs, batch[1]), "outputs": outputs}

    settings = {"optimizer": sgd, "epochs": 3, "batch_size": 8, "evaluate_every": 2}
    trainers.train(model, labelled(), labelled(), step=step, **settings, **options)
    wanted = {name: mode and not (own and name.startswith("body")) for name, mode in came.items()}
    nothing = dict.fromkeys(came, False)
    assert all(found in (wanted, nothing) for found in seen)
    assert sum(found == wanted for found in seen) == 15
    assert modes(model) == came
    assert model.body[1].running_mean.abs().max() == 0 < model.norm.running_mean.abs().max()


def test_a_model_in_eval_stays_so_with_a_warning() -> None:
    model = nn.Linear(6, 2).eval()
    with pytest.warns(UserWarning, match=r"eval\(\)"):
        trainers.train(model, labelled(), loss=cross_entropy, optimizer=sgd, epochs=1, batch_size=8)
    assert not model.training


def sampled(model: nn.Module) -> None:
    model.eval()
    model(torch.zeros(4, 6))
    model.train()


@pytest.mark.parametrize(
    ("hook", "change"),
    combinations(
        ["report", "on_step", "step"],
        [(lambda model: model.eval(), ()), (sampled, ()), (lambda model: model.norm.eval(), ("norm",))],
    ),
)
def test_a_hook_changes_modes_of_single_modules_only(change: Any, hook: str) -> None:
    changes, differing = change
    model = Tuned(own=False)
    came, seen = modes(model), []
    model.body.register_forward_pre_hook(lambda *_: seen.append(modes(model)) if model.training else None)

    def step(model: nn.Module, batch: Any) -> dict[str, Tensor]:
        outputs = model(batch[0])
        changes(model)
        return {"loss": cross_entropy(outputs, batch[1]), "outputs": outputs}

    settings: dict[str, Any] = {"loss": cross_entropy, "optimizer": sgd, "epochs": 2, "batch_size": 30}
    changed = step if hook == "step" else lambda *_: changes(model)
    trainers.train(model, labelled(), **settings, **{hook: changed})
    assert seen[0] == came
    assert seen[-1] == {**came, **dict.fromkeys(differing, False)}


# Layers that are thawed, and groups that are added


def frozen() -> nn.Module:
    net = Everything()
    net.conv.requires_grad_(False)
    net.conv.eval()
    return net


def thaws(net: nn.Module, way: str) -> dict[str, Any]:
    """The settings of a run that trains ``net.conv`` after its first epoch of five steps, or after the seventh step."""
    made: list[torch.optim.Optimizer] = []

    def make(trained: Any) -> Any:
        if way == "a group of the first of two":
            made[:] = adamw(trained[:3]), adamw(trained[3:])
            return made
        made.append(adamw(net.parameters() if way == "all in the optimizer" else trained))
        return made[0]

    def thaw() -> None:
        net.conv.requires_grad_(True)
        net.conv.train()
        if way != "all in the optimizer":
            made[0].add_param_group({"params": [*net.conv.parameters()], "lr": 1e-2})

    if way != "all in the optimizer":
        return {"optimizer": make, "on_step": lambda steps, values: steps == 7 and thaw()}
    return {"optimizer": make, "report": lambda number, metrics: number == 1 and thaw()}


THAWED = cases(("local SGD", "AB"), nightly=[name for name in METHODS if name not in ("local SGD", "AB")])


def thawed(rank: int, name: str, per_node: int, directory: str) -> None:
    for way in ("all in the optimizer", "a group", "a group of the first of two"):
        net, was = frozen(), frozen().conv.weight
        ema = {} if isinstance(METHODS[name], (trainers.AB, trainers.OIALR)) else {"ema_decay": 0.5}
        train(net, name, per_node, **thaws(net, way), **ema)
        assert (net.conv.weight - was).abs().min() > 0
        for value in net.state_dict().values():
            first = value.clone()
            dist.broadcast(first, 0)
            assert torch.equal(first, value), (way, rank)
        for steps in (6, 3):
            again = frozen()
            with pytest.raises(trainers.Interrupted):
                keywords = {"checkpoint": f"{directory}/{way}", "interrupt": After(steps), **ema}
                train(again, name, per_node, **thaws(again, way), **keywords)
        again = frozen()
        train(again, name, per_node, **thaws(again, way), checkpoint=f"{directory}/{way}", **ema)
        assert_identical(state_of(again), state_of(net))


@pytest.mark.parametrize("name", THAWED)
def test_what_is_thawed_in_mid_run_is_averaged_and_saved(name: str, tmp_path: Path) -> None:
    run_ranks(2, thawed, name, 1, str(tmp_path))


def own_loop(rank: int, name: str) -> None:
    """It thaws before the eighth step, is saved after the ninth, and goes on with ``conv`` frozen or thawed."""
    tokens = torch.randint(20, (30, 6), generator=torch.Generator().manual_seed(rank))
    saved: dict[str, Any] = {}
    states = []
    for begin, thawed in ((0, False), (9, False), (9, True)):
        net = frozen()
        net.conv.requires_grad_(thawed)
        optimizer = adamw(net.parameters())
        settings: dict[str, Any] = {"method": METHODS[name], "epochs": 3, "steps_per_epoch": 5}
        settings["topology"] = trainers.Topology(ranks_per_node=1)
        with trainers.wrap(net, optimizer, **settings) as run:
            if begin and thawed and isinstance(METHODS[name], (trainers.AB, trainers.OIALR)):
                with pytest.raises(ValueError, match=r"conv.weight was .* and frozen"):
                    run.load_state_dict(saved)
                continue
            if begin:
                run.load_state_dict(copy.deepcopy(saved))
            for step in range(begin, 15):
                if step == 7:
                    net.conv.requires_grad_(True)
                torch.manual_seed(step)
                batch = tokens[2 * step : 2 * step + 2]
                optimizer.zero_grad()
                run.backward(cross_entropy(net(batch), batch[:, 0]))
                optimizer.step()
                if step == 8 and not begin:
                    saved.update(copy.deepcopy(run.state_dict()))
        states.append(state_of(net))
    assert (states[0]["conv.bias"] - frozen().conv.bias).abs().min() > 0
    for key, value in states[0].items():
        first = value.clone()
        dist.broadcast(first, 0)
        assert torch.equal(first, value), key
    for again in states[1:]:
        assert_identical(again, states[0])


@pytest.mark.parametrize("name", THAWED)
def test_what_an_own_loop_thaws_is_averaged(name: str) -> None:
    run_ranks(2, own_loop, name)


@pytest.mark.parametrize("way", ["swapped", "old gradients"])
def test_frozen_layers_may_have_gradients(way: str) -> None:
    """As ``zero_grad(set_to_none=False)`` leaves them, at 0."""
    states = []
    for wrapped in (False, True):
        net = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 2))
        net.load_state_dict(states[0] if states else net.state_dict())
        net[1].requires_grad_(way == "old gradients")
        inputs, began = torch.randn(20, 6, generator=torch.Generator().manual_seed(0)), state_of(net)
        if way == "old gradients":
            net(inputs).square().mean().backward()
            net[0].requires_grad_(False)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        run = trainers.wrap(net, optimizer, epochs=2, steps_per_epoch=3) if wrapped else None
        for step in range(6):
            if step == 2 and way == "swapped":
                net[0].requires_grad_(False)
                net[1].requires_grad_(True)
            optimizer.zero_grad(set_to_none=False)
            loss = net(inputs).square().mean()
            run.backward(loss) if run else loss.backward()
            optimizer.step()
        if run:
            run.close()
        states += [began, state_of(net)]
    assert_identical(states[1], states[3])


def refused(rank: int) -> list[str]:
    """A layer that rank 0 alone thaws, or keeps trained, and two that a pass thaws."""
    found = []
    for method in ("DDP", "DASO", "local SGD"):
        net = Everything()
        freezes: dict[str, Any] = {
            "on_step": lambda steps, values, net=net: net.conv.requires_grad_(steps < 3 or rank == 0)
        }
        with pytest.raises(ValueError) as caught:
            train(net, method, 1, **freezes)
        found.append(str(caught.value))
    net = frozen()
    alone: dict[str, Any] = {
        "on_step": lambda steps, values: net.conv.requires_grad_(steps >= 5 and rank == 0)
    }
    with pytest.raises(ValueError) as caught:
        train(net, "DDP", 1, optimizer=lambda p: adamw(net.parameters()), **alone)
    found.append(str(caught.value))
    net = frozen()
    net.conv.register_forward_pre_hook(lambda module, inputs: module.requires_grad_() and None)
    with pytest.raises(ValueError) as caught:
        train(net, "DDP", 1, optimizer=lambda p: adamw(net.parameters()))
    found.append(str(caught.value))
    return found


def within_an_epoch(rank: int) -> str:
    net = frozen()
    alone: dict[str, Any] = {
        "on_step": lambda steps, values: net.conv.requires_grad_(steps >= 7 and rank == 0)
    }
    with pytest.raises(trainers.CommunicationError) as caught:
        train(
            net, "DDP", 1, optimizer=lambda _: adamw(net.parameters()), timeout=timedelta(seconds=2), **alone
        )
    return str(caught.value)


def test_a_layer_that_one_rank_thaws_within_an_epoch_ends_the_run() -> None:
    first, _ = run_ranks(2, within_an_epoch)
    assert all(word in first for word in ("Rank 0", "conv.weight, conv.bias", "step 8"))


def test_what_ranks_cannot_average_ends_the_run_on_all_of_them() -> None:
    for rank, (*frozen_alone, alone, late) in enumerate(run_ranks(2, refused)):
        frozen = "conv.weight, conv.bias" if rank else "none"
        for error in frozen_alone:
            assert f"before step 6 = thawed or added: none; frozen: {frozen}" in error
        assert "before step 6 = " in alone and "not the same on all ranks" in alone
        assert late.startswith("conv.weight, conv.bias: ")


# Buffers


class Remembering(nn.Module):
    """Spectral norm's vectors, a queue of unit keys, and running statistics."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = spectral_norm(nn.Linear(6, 16)), nn.Linear(16, 16)
        self.norms = nn.ModuleList([nn.BatchNorm1d(16), nn.InstanceNorm1d(16, track_running_stats=True)])
        self.out = nn.Linear(16, 2)
        self.register_buffer("queue", normalize(torch.randn(8, 16)))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.second(self.first(x))
        if self.training:
            with torch.no_grad():
                self.queue = torch.cat([normalize(hidden), self.queue])[:8]
        for norm in self.norms:
            hidden = (
                norm(hidden[..., None].expand(-1, -1, 2))[..., 0] if norm is self.norms[1] else norm(hidden)
            )
        out: Tensor = self.out(hidden)
        return out


def statistics_and_others(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    named = {name: buffer.clone() for name, buffer in model.named_buffers()}
    statistics = {name: value for name, value in named.items() if "running_" in name}
    assert len(statistics) == 4
    return statistics, {name: value for name, value in named.items() if name not in statistics}


def remembered(rank: int, names: list[str], directory: str) -> None:
    settings: dict[str, Any] = {"epochs": 1, "batch_size": 5, "loss": cross_entropy, "optimizer": sgd}
    settings["topology"] = trainers.Topology(ranks_per_node=1)
    own: list[Any] = []
    for name in names:
        for options in ({}, {"interrupt": After(3), "checkpoint": f"{directory}/{name}"}):
            model, method = Remembering(), METHODS[name]

            def after_step(steps: int, values: object, model: nn.Module = model) -> None:
                own[:] = statistics_and_others(model)

            try:
                trainers.train(model, labelled(), method=method, on_step=after_step, **settings, **options)
                statistics, others = statistics_and_others(model)
                for key, value in own[1].items():
                    dist.broadcast(value, 0)
                    assert torch.equal(others[key], value), (name, key)
                for key, value in own[0].items():
                    dist.all_reduce(value)
                    torch.testing.assert_close(statistics[key], value / 2, msg=f"{name} {key}")
            except trainers.Interrupted:
                torch.save(own, f"{directory}/{name}-{rank}.pt")


def test_of_buffers_only_running_statistics_are_averaged_over_ranks(tmp_path: Path) -> None:
    run_ranks(2, remembered, [name for name in PLAIN if "OIALR" not in name], str(tmp_path))
    saved = [torch.load(tmp_path / f"DDP-{rank}.pt") for rank in range(2)]
    model = Remembering()
    with pytest.raises(trainers.Interrupted):  # one rank goes on, and stops at once
        keywords: dict[str, Any] = {"epochs": 1, "batch_size": 10, "loss": cross_entropy, "optimizer": sgd}
        topology = trainers.Topology(ranks_per_node=1)
        keywords |= {"topology": topology, "checkpoint": tmp_path / "DDP", "interrupt": After(0)}
        trainers.train(model, labelled(), method=METHODS["DDP"], **keywords)
    statistics, others = statistics_and_others(model)
    assert_identical(others, saved[0][1])
    for key, value in statistics.items():
        torch.testing.assert_close(value, (saved[0][0][key] + saved[1][0][key]) / 2)


def test_of_buffers_only_running_statistics_are_averaged_over_steps() -> None:
    found = []
    for decay in (None, 0.9):
        model = Remembering()
        settings: dict[str, Any] = {"loss": cross_entropy, "epochs": 3, "batch_size": 5, "ema_decay": decay}
        trainers.train(model, labelled(), labelled(), optimizer=sgd, **settings)
        found.append(statistics_and_others(model))
    (plain, others), (averaged, with_average) = found
    assert_identical(others, with_average)
    assert all(not torch.equal(plain[name], averaged[name]) for name in plain)
