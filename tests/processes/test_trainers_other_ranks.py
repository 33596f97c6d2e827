"""A run that was saved by some ranks goes on on others, as it would have gone on, or is refused by name."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from gloo import run_ranks
from resuming import After, assert_identical, state_of
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import trainers
from trainers.checkpoints.shards import read_alone

SAMPLES, JOINT, EPOCHS, STOP = 120, 12, 3, 14
"""Ten steps an epoch, of twelve samples on all ranks together; the run is stopped within the second epoch."""

RANKS: dict[str, Any] = {"delay": 8, "update_every": 4, "sigma_cutoff": 0.2, "layer_step": 1.0}
METHODS: dict[str, trainers.Method] = {
    "DDP": trainers.DDP(),
    "DASO on one node": trainers.DASO(sync_every=2),
    "local SGD before its start": trainers.LocalSGD(start=0.9, world_every=2),
    "OIALR": trainers.OIALR(**RANKS),
    "AB without groups": trainers.AB(groups=False, warmup_steps=8, ab_steps=10, rebound_steps=3),
    "PowerSGD": trainers.DDP(compression="powersgd", powersgd_rank=2),
}
ALONE = [name for name in METHODS if name != "PowerSGD"]
"""One rank compresses nothing."""
AVERAGED = ("DDP", "local SGD before its start")
"""Where the weights' moving average is kept, too."""


def network() -> nn.Module:
    """Nothing in it depends on which rank has which samples of a step."""
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(24, 32), nn.LayerNorm(32), nn.Tanh(), nn.Linear(32, 24), nn.Tanh(), nn.Linear(24, 4)
    ).double()


def samples(count: int = SAMPLES) -> TensorDataset:
    x = torch.randn(count, 24, generator=torch.Generator().manual_seed(2)).double()
    return TensorDataset(x, x[:, :4].argmax(1))


def train(net: nn.Module, name: str, ranks: int, **changed: Any) -> trainers.Result:
    settings: dict[str, Any] = {
        "train_set": samples(),
        "validation_set": samples(20),
        "loss": cross_entropy,
        "optimizer": lambda parameters: torch.optim.AdamW(parameters, lr=3e-3),
        "schedule": trainers.Cosine(warmup_epochs=1),
        "clip_norm": 0.3,
        "epochs": EPOCHS,
        "batch_size": JOINT // ranks,
        "method": METHODS[name],
        "ema_decay": 0.9 if name in AVERAGED and "method" not in changed else None,
        "timeout": timedelta(seconds=30),
    }
    return trainers.train(net, **{**settings, **changed})


Outcome = dict[str, tuple[dict[str, Tensor], tuple[dict[str, float], ...]]]


def whole(rank: int, ranks: int, names: list[str]) -> Outcome:
    found: Outcome = {}
    for name in names:
        net = network()
        result = train(net, name, ranks)
        found[name] = (state_of(net), result.history)
    return found


def begun(rank: int, ranks: int, names: list[str], directory: str) -> None:
    for name in names:
        with pytest.raises(trainers.Interrupted):
            train(network(), name, ranks, checkpoint=f"{directory}/{name}", interrupt=After(STOP))


def gone_on(rank: int, ranks: int, names: list[str], directory: str) -> Outcome:
    found: Outcome = {}
    for name in names:
        net, steps = network(), []
        result = train(
            net,
            name,
            ranks,
            checkpoint=f"{directory}/{name}",
            on_step=lambda step, _, steps=steps: steps.append(step),
        )
        assert steps == list(range(STOP + 1, EPOCHS * SAMPLES // JOINT + 1))
        found[name] = (state_of(net), result.history)
    return found


def assert_alike(found: Outcome, expected: Outcome) -> None:
    for name, (state, history) in found.items():
        torch.testing.assert_close(state, expected[name][0], rtol=1e-6, atol=1e-8)
        assert [entry["steps"] for entry in history] == [10, 20, 30]
        for entry, other in zip(history, expected[name][1], strict=True):
            for metric in ("train_loss", "validation_loss", "lr"):
                assert entry[metric] == pytest.approx(other[metric]), (name, metric)
        sent = [entry["bytes_inside_nodes"] for entry in history]
        assert sent == sorted(sent), name


def test_with_the_same_samples_per_step_a_run_goes_on_on_other_ranks_as_it_would_have(tmp_path: Path) -> None:
    """Two ranks, then one or three; one, then two. Gradients are sums over the same samples, in other orders."""
    names = list(METHODS)
    expected = run_ranks(2, whole, 2, names)[0]
    run_ranks(2, begun, 2, names, str(tmp_path / "two"))
    begun(0, 1, ALONE, str(tmp_path / "one"))
    for name in names:  # of which one is gone on from twice
        shutil.copytree(tmp_path / "two" / name, tmp_path / "again" / name)
    assert_alike(gone_on(0, 1, ALONE, str(tmp_path / "two")), expected)
    first, *others = run_ranks(3, gone_on, 3, names, str(tmp_path / "again"))
    assert_alike(first, expected)
    for other in others:
        for name in names:
            assert_identical(first[name][0], other[name][0])
    assert_alike(run_ranks(2, gone_on, 2, ALONE, str(tmp_path / "one"))[0], expected)


# As many samples per rank as before, and so others per step


class Noted(TensorDataset):
    """Keeps the numbers of the samples that it gives."""

    def __init__(self) -> None:
        super().__init__(*samples().tensors)
        self.given: list[int] = []

    def __getitem__(self, index: int) -> Any:
        self.given.append(int(index))
        return super().__getitem__(index)


def normalised() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(24, 32), nn.BatchNorm1d(32), nn.Linear(32, 24), nn.Linear(24, 4)).double()


def part(rank: int, directory: str, stop: int | None) -> tuple[list[int], list[int], Any]:
    """The steps of this part of a run by OIALR, the samples that they took, and the history so far."""
    taken: list[int] = []
    data, result = Noted(), None
    keywords: dict[str, Any] = {"batch_size": 6, "train_set": data, "checkpoint": directory}
    keywords["on_step"] = lambda step, _: taken.append(step)
    # At this rate nothing is learnt, and the losses of all epochs are about the same.
    keywords["optimizer"] = lambda parameters: torch.optim.SGD(parameters, lr=1e-9)
    method = trainers.OIALR(delay=0.2, update_every=0.1, sigma_cutoff=0.05)
    if stop is None:
        result = train(normalised(), "OIALR", 1, method=method, **keywords).history
    else:
        with pytest.raises(trainers.Interrupted):
            train(normalised(), "OIALR", 1, method=method, interrupt=After(stop), **keywords)
    # Before the first step rank 0 looks at four samples, each of them twice.
    return taken, data.given[0 if rank else 8 :], result


def own_of(directory: Path, rank: int) -> Any:
    (path,) = directory.glob(f"step-*/rank-{rank}.pt")
    return torch.load(path, weights_only=True)


def test_with_other_samples_per_step_a_run_goes_on_at_the_same_place_of_its_epochs(tmp_path: Path) -> None:
    """One rank takes 20 steps an epoch, two take 10."""
    first, given, _ = part(0, str(tmp_path), 27)
    assert (first[0], first[-1]) == (1, 27)
    (second, one, _), (_, other, _) = run_ranks(2, part, str(tmp_path), 4)
    assert second == [14, 15, 16, 17]  # 7 of 20 steps took 42 samples: the fourth step of 10 has the next one
    of_epoch = sorted({*given[SAMPLES:], *one, *other})
    assert len(of_epoch) == 84 and len(given[SAMPLES:]) + len(one) + len(other) == 84 + 6
    buffers = [own_of(tmp_path, rank)["buffers"] for rank in range(2)]
    assert not torch.equal(buffers[0]["1.running_mean"], buffers[1]["1.running_mean"])
    updates = own_of(tmp_path, 0)["strategy"]["updates"]
    assert updates == 3  # of 30 steps: after 6 and every third from then on

    # And back: what is saved before the first step has the means of the running statistics.
    third, again, _ = part(0, str(tmp_path), 0)
    assert (third, again) == ([], [])
    (latest,) = tmp_path.glob("step-*")
    assert latest.name == "step-000000034" and not (latest / "rank-1.pt").exists()
    mean = own_of(tmp_path, 0)
    torch.testing.assert_close(
        mean["buffers"]["1.running_var"], sum(of_rank["1.running_var"] for of_rank in buffers) / 2
    )
    assert mean["strategy"]["updates"] == updates

    fourth, rest, history = part(0, str(tmp_path), None)
    assert fourth == list(range(35, 61))
    assert len({*of_epoch, *rest[: 6 * 6]}) == SAMPLES
    assert [(entry["epoch"], entry["steps"]) for entry in history] == [(1, 20), (2, 40), (3, 60)]
    assert [entry["train_loss"] for entry in history] == pytest.approx(
        [history[0]["train_loss"]] * 3, rel=0.1
    )
    assert read_alone(tmp_path)["reason"] == "finished"


def averaged(rank: int, directory: str, ranks: int, stop: int) -> None:
    with pytest.raises(trainers.Interrupted):
        train(normalised(), "DDP", ranks, checkpoint=directory, interrupt=After(stop))


def test_the_running_statistics_of_the_moving_average_are_averaged_too(tmp_path: Path) -> None:
    run_ranks(2, averaged, str(tmp_path), 2, 4)
    kept = [own_of(tmp_path, rank)["ema_buffers"] for rank in range(2)]
    assert not torch.equal(kept[0]["1.running_mean"], kept[1]["1.running_mean"])
    averaged(0, str(tmp_path), 1, 0)
    mean = own_of(tmp_path, 0)["ema_buffers"]
    assert mean.keys() == kept[0].keys()
    for name in ("1.running_mean", "1.running_var"):
        torch.testing.assert_close(mean[name], (kept[0][name] + kept[1][name]) / 2)


# Where it cannot


STEPS: dict[str, Any] = {"epochs": None, "steps": 30}
APART: dict[str, tuple[dict[str, Any], int, list[str]]] = {
    "steps": (STEPS, 6, ["steps = 30", "12 samples"]),
    "assignment": ({"assignment": trainers.FullOverlap()}, 12, ["within an epoch"]),
    "phases": ({"method": METHODS["AB without groups"]}, 6, ["12 samples"]),
    "apart": ({"method": trainers.DASO(warmup_epochs=0)}, 12, ["state of its own"]),
}
"""Options, the batch size with which one rank cannot go on, and what it is told."""


def saved_apart(rank: int, directory: str) -> None:
    for name, (options, _, _) in APART.items():
        options = {"topology": trainers.Topology(ranks_per_node=1), **options}
        with pytest.raises(trainers.Interrupted):
            train(network(), "DDP", 2, checkpoint=f"{directory}/{name}", interrupt=After(STOP), **options)


def test_what_cannot_go_on_on_other_ranks_says_why_and_begins_again_where_it_may(tmp_path: Path) -> None:
    run_ranks(2, saved_apart, str(tmp_path))
    seen: list[int] = []
    shutil.copytree(tmp_path / "steps", tmp_path / "can")
    keywords: dict[str, Any] = {
        "on_other_ranks": "restart",
        "on_step": lambda steps, values: seen.append(steps),
    }
    train(network(), "DDP", 1, checkpoint=tmp_path / "can", batch_size=12, **STEPS, **keywords)
    assert seen == [*range(STOP + 1, 31)], "where it can go on it does"
    for name, (options, batch_size, words) in APART.items():
        options = {**options, "batch_size": batch_size}
        place = tmp_path / name
        with pytest.raises(ValueError) as caught:
            train(network(), "DDP", 1, checkpoint=place, **options)
        assert all(word in str(caught.value) for word in (str(place), "2 ranks", *words)), str(caught.value)
        new, restarted = network(), network()
        train(new, "DDP", 1, **options)
        options = {**options, "checkpoint": place, "on_other_ranks": "restart"}
        with pytest.warns(UserWarning, match="2 ranks"):
            found = train(restarted, "DDP", 1, **options)
        assert_identical(state_of(restarted), state_of(new))
        again = train(network(), "DDP", 1, **options)
        assert again.history == found.history  # what it has saved since is its own
