"""What every training method owes its users, whichever it is: one suite, all methods.

Replicas agree in the end; what is trained is in the optimizer once and moves, what is frozen does not; a run that
is interrupted after each of its steps ends with the bits of an undisturbed one; no process group is left
by one that ends with an error; a rank that dies or hangs ends the others with an error, in time."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from cases import cases
from gloo import groups_in_use, outcomes_of_ranks, run_ranks
from resuming import After, assert_identical, assert_same_in_pieces, state_of, without_times
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import trainers
from trainers.checkpoints import save_timer
from trainers.checkpoints.checkpoint import Checkpoint
from trainers.lowrank.layers import merged
from trainers.run import saving

EPOCHS, STEPS_PER_EPOCH, BATCH_SIZE = 3, 5, 2

DASO = trainers.DASO(sync_every=3, sync_delay=2, warmup_epochs=0.2, cooldown_epochs=0.2)
PHASES: dict[str, Any] = {"warmup_steps": 3, "ab_steps": 4, "rebound_steps": 2, "lr_rebound_steps": 2}
RANKS: dict[str, Any] = {"delay": 4, "update_every": 3, "sigma_cutoff": 0.2, "layer_step": 0.5}
METHODS: dict[str, trainers.Method] = {
    "DDP": trainers.DDP(),
    "DDP bf16": trainers.DDP(compression="bf16"),
    "DDP PowerSGD": trainers.DDP(compression="powersgd", powersgd_rank=2),
    "DASO": DASO,
    "DASO at once": trainers.DASO(sync_every=1, sync_delay=0, wire_dtype=None),
    "DASO adaptive": trainers.DASO(
        sync_every=4,
        sync_delay=4,
        warmup_epochs=0,
        cooldown_epochs=0,
        plateau_patience=1,
        plateau_threshold=0.9,
    ),
    "local SGD": trainers.LocalSGD(world_every=3, start=2),
    "local SGD adaptive": trainers.LocalSGD(households=1, world_every=4, start=0, adaptive=True),
    "OIALR": trainers.OIALR(**RANKS),
    "OIALR from the start": trainers.OIALR(**RANKS, full_rank_warmup=False, full_rank_last_layer=False),
    "OIALR over DASO": trainers.OIALR(**RANKS, synchronisation=DASO),
    "OIALR over local SGD": trainers.OIALR(
        **RANKS, synchronisation=trainers.LocalSGD(world_every=2, start=0)
    ),
    "FSDP": trainers.FSDP(),
    "AB": trainers.AB(**PHASES),
    "AB products": trainers.AB(**PHASES, merge="products"),
    "AB by loss": trainers.AB(**PHASES, merge="loss-weighted", compression="bf16"),
    "AB without groups": trainers.AB(**PHASES, groups=False),
}
PLAIN = ("DDP", "DASO", "local SGD", "OIALR over DASO", "AB")
"""One of each kind; nightly, the others do what these do."""
OTHERS = [name for name in METHODS if name not in PLAIN]
WITH_OWN_STATE = ("DDP PowerSGD", "DASO adaptive", "local SGD adaptive", "OIALR from the start", "AB by loss")
APART = {name for name, method in METHODS.items() if isinstance(method, trainers.AB) and method.groups}
"""They need a second group: one rank is refused."""


class Everything(nn.Module):
    """An embedding, attention, a convolution, norms, dropout, and a frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embedding = nn.Embedding(20, 16)
        self.encoder = nn.TransformerEncoderLayer(16, 2, 24, dropout=0.1, batch_first=True)
        self.conv = nn.Conv1d(16, 16, 3, padding=1)
        self.norm = nn.BatchNorm1d(16)
        self.frozen = nn.Linear(16, 16).requires_grad_(False)
        self.output = nn.Linear(16, 20)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.encoder(self.embedding(tokens))
        x = self.norm(self.conv(x.transpose(1, 2))).transpose(1, 2)
        out: Tensor = self.output(self.frozen(x)).mean(1)
        return out


def tokens(samples: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(4)
    x = torch.randint(20, (samples, 6), generator=generator)
    return TensorDataset(x, x[:, 0])


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-3)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=5e-3)


def train(net: nn.Module, name: str, per_node: int, **changed: Any) -> trainers.Result:
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    settings: dict[str, Any] = {
        "loss": cross_entropy,
        "optimizer": adamw,
        "method": METHODS[name],
        "epochs": EPOCHS,
        "batch_size": BATCH_SIZE,
        "clip_norm": 1.0,
        "topology": trainers.Topology(ranks_per_node=per_node),
        "timeout": timedelta(seconds=20),
    }
    settings["train_set"] = tokens(STEPS_PER_EPOCH * BATCH_SIZE * ranks)
    settings["validation_set"] = tokens(20)
    return trainers.train(net, **{**settings, **changed})


def of(ranks: int, function: Any, *arguments: Any) -> list[Any]:
    """What ``function(rank, *arguments)`` gave on each of so many ranks; one needs no group."""
    return run_ranks(ranks, function, *arguments) if ranks > 1 else [function(0, *arguments)]


# What is trained


class Watch:
    """Called before each step: the optimizer holds what is trained, once, and that has moved since the last."""

    def __init__(self, net: nn.Module) -> None:
        self.net = net
        self.optimizer: torch.optim.Optimizer | None = None
        self.before: dict[str, tuple[nn.Parameter, Tensor]] = {}
        self.moved: set[str] = set()

    def make(self, parameters: Any) -> torch.optim.Optimizer:
        self.optimizer = adamw(parameters)
        return self.optimizer

    def __call__(self) -> bool:
        assert self.optimizer is not None
        trained = {name: p for name, p in self.net.named_parameters() if p.requires_grad}
        held = [p for group in self.optimizer.param_groups for p in group["params"]]
        assert {id(p) for p in held} == {id(p) for p in trained.values()}
        assert len(held) == len(trained)
        assert {id(p) for p in self.optimizer.state} <= {id(p) for p in held}
        for name, parameter in trained.items():
            earlier, value = self.before.get(name, (None, None))
            if earlier is parameter and value is not None and value.shape == parameter.shape:
                assert not torch.equal(value, parameter), name
                self.moved.add(name)
        self.before = {name: (p, p.detach().clone()) for name, p in trained.items()}
        return False


def watched(rank: int, name: str, per_node: int) -> tuple[dict[str, Tensor], list[str], int]:
    net, before = Everything(), groups_in_use() if dist.is_initialized() else 0
    frozen = net.frozen.weight.detach().clone()
    watch = Watch(net)
    result = train(net, name, per_node, optimizer=watch.make, interrupt=watch)
    assert result.reason == "finished", result.reason
    assert torch.equal(state_of(net)["frozen.weight"], frozen)
    assert not net.frozen.weight.requires_grad
    watch()  # also after the last step and what follows it
    left = (groups_in_use() if dist.is_initialized() else 0) - before
    return state_of(net), sorted(watch.moved), left


@pytest.mark.parametrize(
    ("name", "ranks", "per_node"),
    cases(
        [(name, *layout) for name in PLAIN for layout in ((1, 1), (4, 2))],
        nightly=[
            *((name, *layout) for name in PLAIN for layout in ((3, 1), (8, 4))),
            *((name, *layout) for name in OTHERS for layout in ((1, 1), (3, 1), (4, 2))),
        ],
    ),
)
def test_replicas_agree_and_what_is_trained_moves(name: str, ranks: int, per_node: int) -> None:
    if name in APART and ranks == 1:
        with pytest.raises(ValueError, match="group"):
            train(Everything(), name, 1)
        return
    (state, moved, left), *others = of(ranks, watched, name, per_node)
    assert left == 0
    assert {"embedding.weight", "norm.bias", "output.bias"} <= set(moved)
    for other, _, groups_left in others:
        assert_identical(state, other)
        assert groups_left == 0


# In which memory format


def images(samples: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(5)
    return TensorDataset(
        torch.randn(samples, 4, 6, 6, generator=generator), torch.randint(8, (samples,), generator=generator)
    )


def laid_out(rank: int, memory_format: torch.memory_format) -> dict[str, dict[str, Tensor]]:
    states = {}
    for name in PLAIN:
        torch.manual_seed(3)
        layers = [nn.Conv2d(4, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.Flatten(), nn.Linear(128, 8)]
        net = nn.Sequential(*layers).to(memory_format=memory_format)
        train(net, name, 2, train_set=images(60), validation_set=None, optimizer=sgd)
        weight = cast(nn.Conv2d, merged(net)[2]).weight  # OIALR leaves it in factors
        assert weight.is_contiguous(memory_format=memory_format), name
        states[name] = state_of(net)
    return states


def test_channels_last_stays_and_changes_nothing() -> None:
    """Methods that send or factor weights know their memory format: training is the same but for roundings."""
    plain, apart = (of(2, laid_out, kept)[1] for kept in (torch.contiguous_format, torch.channels_last))
    for name in PLAIN:
        torch.testing.assert_close(apart[name], plain[name], rtol=1e-3, atol=1e-4)


def of_two_formats(rank: int) -> None:
    net = nn.Sequential(nn.Conv2d(4, 16, 3), nn.Flatten(), nn.Linear(256, 8))
    if rank:
        net = net.to(memory_format=torch.channels_last)
    with pytest.raises(ValueError, match=r"0\.weight .* on rank"):
        train(net, "DDP", 2, train_set=images(20), validation_set=None)


def test_ranks_with_other_memory_formats_are_refused() -> None:
    of(2, of_two_formats)


# Interrupted after every step


def interrupted(rank: int, name: str, per_node: int, directory: str, optimizer: str, steps: int) -> None:
    keywords: dict[str, Any] = {"optimizer": {"sgd": sgd, "adamw": adamw}[optimizer]}
    if optimizer == "sgd" and not isinstance(METHODS[name], (trainers.AB, trainers.OIALR)):
        keywords["ema_decay"] = 0.8
    before = groups_in_use()
    stops = [steps] * ((EPOCHS * STEPS_PER_EPOCH - 1) // steps)
    run = partial(train, name=name, per_node=per_node)
    assert_same_in_pieces(run, Everything, directory, stops, **keywords)
    assert groups_in_use() == before


@pytest.mark.parametrize(
    ("name", "ranks", "per_node", "optimizer", "steps"),
    cases(
        [*((name, 4, 2, "sgd", 4) for name in PLAIN), *((name, 2, 1, "adamw", 4) for name in WITH_OWN_STATE)],
        nightly=[
            *((name, 4, 2, "sgd", 1) for name in METHODS),
            *((name, 2, 1, "adamw", 1) for name in PLAIN),
            *((name, 2, 1, "adamw", 4) for name in OTHERS if name not in WITH_OWN_STATE),
        ],
    ),
)
def test_a_run_in_pieces_of_so_many_steps_ends_with_the_same_bits(
    tmp_path: Path, name: str, ranks: int, per_node: int, optimizer: str, steps: int
) -> None:
    of(ranks, interrupted, name, per_node, str(tmp_path), optimizer, steps)


# On other ranks


ONE_MODEL = {"DDP", "DDP bf16", "DDP PowerSGD", "OIALR", "OIALR from the start", "AB without groups"}
"""Methods whose ranks have the same model and optimizer after any step."""


def begun(rank: int, names: list[str], directory: str) -> None:
    for name in names:
        with pytest.raises(trainers.Interrupted):
            train(Everything(), name, 1, checkpoint=f"{directory}/{name}", interrupt=After(9))


def test_a_run_of_two_nodes_goes_on_on_one_rank_with_every_method_or_is_refused(tmp_path: Path) -> None:
    """With as many samples per step; tests/processes/test_trainers_other_ranks.py compares the weights."""
    names = cases([*PLAIN, "OIALR"], nightly=[name for name in OTHERS if name != "OIALR"])
    of(2, begun, names, str(tmp_path))
    keywords: dict[str, Any] = {
        "train_set": tokens(STEPS_PER_EPOCH * BATCH_SIZE * 2),
        "batch_size": 2 * BATCH_SIZE,
    }
    for name in names:
        if name in ONE_MODEL:
            result = train(Everything(), name, 1, checkpoint=tmp_path / name, **keywords)
            assert [entry["steps"] for entry in result.history] == [5, 10, 15], name
            continue
        with pytest.raises(ValueError) as caught:
            train(Everything(), name, 1, checkpoint=tmp_path / name, **keywords)
        expected = (
            "at least two groups" if name in APART else "2 ranks and is read by 1, and .* Use 2 ranks, or"
        )
        assert re.search(expected, str(caught.value)), (name, str(caught.value))


# Options of the loop, each with every method


def every_kind() -> list[str]:
    """The methods with which an option is tried."""
    return cases(PLAIN, nightly=OTHERS)


def compared(rank: int, names: list[str], options: dict[str, Any], kept: tuple[str, ...]) -> dict[str, Any]:
    """By method the states that runs without and with ``options`` end with, and the second one's history; a sentence
    where the options are refused."""
    found: dict[str, Any] = {}
    for name in names:
        plain, net = Everything(), Everything()
        train(plain, name, 1, optimizer=sgd)
        try:
            result = train(net, name, 1, optimizer=sgd, **options)
        except ValueError as error:
            found[name] = str(error)
            continue
        history = without_times(result)
        for entry, whole in zip(history, result.history, strict=True):
            entry |= {time: whole[time] for time in kept}
        found[name] = (state_of(plain), state_of(net), history)
    return found


def with_every_method(options: dict[str, Any], kept: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """What ``compared`` found on each of two ranks, each a node, where replicas have ended alike."""
    mine, other = of(2, compared, every_kind(), options, kept)
    for name, found in mine.items():
        if not isinstance(found, str):
            assert_identical(found[1], other[name][1])
            assert found[2] == other[name][2], name
    return [mine, other]


def test_options_that_change_no_step_change_nothing_with_any_method(tmp_path: Path) -> None:
    options = {
        "evaluate_every": 2,
        "evaluation_batch_size": 7,
        "activation_checkpointing": ("encoder",),
        "loader_processes": 1,
        "precision": "tf32",  # on the CPU
        "flops_per_sample": 3.0,
        "peak_flops": 7.0,
        "profile": tmp_path,
    }
    for found in with_every_method(options, kept=("samples_per_s", "train_s")):
        for name, (plain, net, history) in found.items():
            assert [entry["steps"] for entry in history] == [2, 4, 6, 8, 10, 12, 14, 15], name
            assert_identical(plain, net)
            # Two steps of two ranks.
            samples = 2 * 2 * BATCH_SIZE
            assert history[0]["samples_per_s"] == pytest.approx(samples / history[0]["train_s"]), name
            for entry in history:
                assert entry["mfu"] == pytest.approx(entry["samples_per_s"] * 3 / (2 * 7)), name
                assert "peak_memory_bytes" not in entry  # on the CPU
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    steps = {event["name"] for event in events if event.get("name", "").startswith("ProfilerStep#")}
    assert steps == {"ProfilerStep#2", "ProfilerStep#3", "ProfilerStep#4"}  # counted from 0


def test_a_run_may_end_within_an_epoch_with_any_method() -> None:
    for found in with_every_method({"epochs": None, "steps": 13}):
        for name, (_, _, history) in found.items():
            assert [entry["steps"] for entry in history] == [5, 10, 13], name


def slower_biases(name: str, parameter: nn.Parameter) -> dict[str, float]:
    return {"lr": 0.01, "weight_decay": 0.0} if parameter.ndim < 2 else {}


STALLING = trainers.ReduceOnPlateau(metric="train_loss", factor=0.1, patience=1, min_delta=100.0)
OTHER_STEPS: dict[str, tuple[dict[str, Any], list[int]]] = {
    "accumulate": (
        {"accumulate": 2, "clip_norm": None, "clip_value": 0.01, "parameter_groups": slower_biases},
        [3, 6, 9],
    ),
    "bf16": ({"precision": "bf16"}, [5, 10, 15]),
    "label_smoothing": ({"label_smoothing": 0.2}, [5, 10, 15]),
    "ReduceOnPlateau": ({"schedule": STALLING, "evaluate_every": 3}, [3, 6, 9, 12, 15]),
    "FullOverlap": ({"assignment": trainers.FullOverlap()}, [5, 10, 15]),
    "FineGrained": ({"assignment": trainers.FineGrained(copies=1)}, [5, 10, 15]),
}
"""By name options with which a run takes other steps, and the steps after which it is evaluated."""


@pytest.mark.parametrize("option", cases(["accumulate", "bf16"], nightly=[*OTHER_STEPS][2:]))
def test_options_that_change_the_steps_leave_the_ranks_alike_with_any_method(option: str) -> None:
    options, evaluated = OTHER_STEPS[option]
    for found in with_every_method(options):
        for name, (plain, net, history) in found.items():
            assert [entry["steps"] for entry in history] == evaluated, name
            assert not torch.equal(plain["output.bias"], net["output.bias"]), name
            if option == "ReduceOnPlateau":  # AB has factors of its own
                assert history[-1]["lr"] < 0.4 * history[0]["lr"], name


class Scripted:
    """A metric that is best in the third evaluation: after 6 steps, when OIALR and AB have factors."""

    def __init__(self) -> None:
        self.values = iter([3.0, 2.0, 1.0, 2.0, 2.0])

    def __call__(self, outputs: Tensor, targets: Tensor) -> float:
        return next(self.values)


def best_of_a_resumed_run(rank: int, directory: str) -> list[tuple[float, dict[str, Tensor]]]:
    """Two nodes of two ranks, of which one a node has asked for sums that were under way when the model was best."""
    found = []
    for name, interrupts in (("whole", [None]), ("in pieces", [After(9), None])):
        for interrupt in interrupts:
            net = Everything()
            with suppress(trainers.Interrupted):
                result = train(
                    net,
                    "DASO",
                    2,
                    method=trainers.DASO(sync_every=2, sync_delay=2, warmup_epochs=0, cooldown_epochs=0),
                    evaluate_every=2,
                    early_stopping=trainers.EarlyStopping(
                        metric="validation_loss", direction="maximize", patience=99, restore_best=True
                    ),
                    checkpoint=Path(directory, name),
                    interrupt=interrupt,
                )
        found.append((result.metrics["steps"], state_of(net)))
    return found


def test_the_best_model_is_restored_after_a_rest_on_all_ranks(tmp_path: Path) -> None:
    for whole, pieces in run_ranks(4, best_of_a_resumed_run, str(tmp_path)):
        assert whole[0] == pieces[0] < 9
        assert_identical(whole[1], pieces[1])


def restored(rank: int, names: list[str]) -> dict[str, tuple[dict[str, Tensor], float, list[float]]]:
    """By method the state that a stopped run leaves, the loss with it, and those of the evaluations."""
    found = {}
    for name in names:
        net = Everything()
        result = train(
            net,
            name,
            1,
            optimizer=sgd,
            evaluate_every=2,
            metrics={"scripted": Scripted()},
            early_stopping=trainers.EarlyStopping(metric="scripted", patience=2, restore_best=True),
        )
        assert (result.reason, result.metrics["scripted"]) == ("stopped early", 1.0), name
        now = trainers.evaluate(net, tokens(20), metrics={"loss": cross_entropy}, batch_size=BATCH_SIZE)
        losses = [entry["validation_loss"] for entry in result.history]
        found[name] = (state_of(net), now["loss"], losses)
    return found


def test_the_best_model_is_restored_after_an_early_stop_with_any_method() -> None:
    mine, other = of(2, restored, every_kind())
    for name, (state, loss, losses) in mine.items():
        assert_identical(state, other[name][0])
        assert len(losses) == 5
        assert loss == pytest.approx(losses[2], rel=1e-5), name
        assert abs(losses[4] - losses[2]) > 0.01, name


def saved_by_the_clock(rank: int, names: list[str], directory: str) -> dict[str, list[int]]:
    """By method the steps after which this rank saved, where a step takes 7 s and the clock of rank 1 is wrong."""
    now, found = [0.0], {}
    save_timer.clock = lambda: now[0]

    class Noted(Checkpoint):
        def save(self, step: int, **keywords: Any) -> None:
            saved.append(step)
            super().save(step, **keywords)

    def on_step(steps: int, values: Any) -> None:
        now[0] += 7.0 if rank == 0 else 0.1

    saving.Checkpoint = Noted  # type: ignore[misc]
    for name in names:
        saved: list[int] = []
        plain, net = Everything(), Everything()
        train(plain, name, 1)
        keywords = {"checkpoint": f"{directory}/{name}", "checkpoint_every": timedelta(seconds=30)}
        train(net, name, 1, on_step=on_step, **keywords)
        assert_identical(state_of(plain), state_of(net))
        found[name] = saved
    return found


def test_checkpoints_by_the_clock_of_rank_0_with_any_method(tmp_path: Path) -> None:
    for found in of(2, saved_by_the_clock, every_kind(), str(tmp_path)):
        # The ranks agree after steps 1, 3, 4 and 5, at 35 s; after 7, 9 and 10, at 70 s; and the end is saved.
        assert found == {name: [5, 10, 15] for name in every_kind()}


def test_the_average_of_the_weights_is_the_same_on_all_ranks_or_refused() -> None:
    for found in with_every_method({"ema_decay": 0.8}):
        for name, outcome in found.items():
            if isinstance(METHODS[name], (trainers.AB, trainers.OIALR)):
                assert "changes the form of the weights" in outcome, name
            else:
                plain, net, _ = outcome
                assert not torch.equal(plain["output.weight"], net["output.weight"]), name


# A lost rank


def lost(rank: int, name: str, how: str, at: int) -> float:
    calls = After(at)

    def leave() -> bool:
        if calls() and rank == 1:
            if how == "hangs":
                threading.Event().wait(2.5)
            os._exit(9)
        return False

    begin = time.perf_counter()
    with pytest.raises(trainers.CommunicationError, match="another rank"):
        train(Everything(), name, 1, interrupt=leave, timeout=timedelta(seconds=1))
    return time.perf_counter() - begin


@pytest.mark.parametrize(
    ("name", "how", "at"),
    cases(
        [*((name, "ends", 9) for name in PLAIN), ("DDP", "hangs", 6), ("DASO", "hangs", 6)],
        nightly=[
            *((name, "ends", 9) for name in OTHERS),
            *((name, "hangs", 6) for name in METHODS if name not in ("DDP", "DASO")),
        ],
    ),
)
def test_a_lost_rank_ends_the_run_with_an_error(name: str, how: str, at: int) -> None:
    (kind, seconds), (other, _) = outcomes_of_ranks(2, lost, name, how, at)
    assert (kind, other) == ("returned", "ended"), seconds
    assert seconds < 10
