from __future__ import annotations

import gc
import math
import multiprocessing
import os
import time
import weakref
from collections import Counter
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from gloo import outcomes_of_ranks, run_ranks
from models import adamw, labelled
from resuming import After, assert_identical, state_of, without_times
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset, TensorDataset

import trainers
from trainers.checkpoints.checkpoint import Checkpoint
from trainers.communication.communicator import Communicator
from trainers.methods.strategy import Setup, Strategy
from trainers.optim.label_smoothing import smoothed

STEPS_PER_EPOCH = 5
EPOCHS = 3
STEPS = STEPS_PER_EPOCH * EPOCHS


class Noisy(Dataset[Any]):
    """``data`` with noise from the global generator on each image."""

    def __init__(self) -> None:
        self._x, self._y = labelled().tensors

    def __len__(self) -> int:
        return len(self._y)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self._x[index] + 0.1 * torch.randn(6), self._y[index]


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 16),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(16, 16),
        nn.ReLU(),
        nn.Linear(16, 2),
    )


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    return (outputs.argmax(1) == targets).double().mean().item()


def train(net: nn.Module, **changed: Any) -> trainers.Result:
    settings: dict[str, Any] = {
        "train_set": Noisy(),
        "validation_set": labelled(),
        "loss": cross_entropy,
        "metrics": {"accuracy": accuracy},
        "optimizer": adamw,
        "epochs": EPOCHS,
        "batch_size": 8,
        "schedule": trainers.Cosine(warmup_epochs=1),
    }
    return trainers.train(net, **{**settings, **changed})


METHODS = {
    "ddp": trainers.DDP(),
    "bf16": trainers.DDP(compression="bf16"),
    "powersgd": trainers.DDP(compression="powersgd", powersgd_rank=2),
}


def resumed_and_not(rank: int, directory: str, method: str, stops: list[int]) -> tuple[Any, ...]:
    """States and histories of one run in a piece and one that is interrupted after each of ``stops`` further
    steps."""
    batch_size = 8 if not torch.distributed.is_initialized() else 4
    whole = model()
    keywords = {"method": METHODS[method], "batch_size": batch_size, "clip_norm": 1.0}
    expected = train(whole, **keywords)
    for stop in stops:
        with pytest.raises(trainers.Interrupted):
            train(model(), checkpoint=directory, interrupt=After(stop), **keywords)
    pieces = model()
    found = train(pieces, checkpoint=directory, **keywords)
    assert found.metrics["bytes_inside_nodes"] == expected.metrics["bytes_inside_nodes"]
    return state_of(whole), without_times(expected), state_of(pieces), without_times(found)


@pytest.mark.parametrize("stops", [[0], [3], [5, 2, 5], [STEPS - 1]], ids=str)
def test_resumes_bit_for_bit_from_any_step(tmp_path: Path, stops: list[int]) -> None:
    whole, expected, pieces, found = resumed_and_not(0, str(tmp_path), "ddp", stops)
    assert found == expected
    assert len(found) == EPOCHS
    assert_identical(whole, pieces)


@pytest.mark.parametrize("method", METHODS)
def test_two_ranks_resume_bit_for_bit(tmp_path: Path, method: str) -> None:
    for whole, expected, pieces, found in run_ranks(2, resumed_and_not, str(tmp_path), method, [3, 6]):
        assert found == expected
        assert_identical(whole, pieces)


def killed_at(rank: int, directory: str, step: int) -> None:
    """Both ranks die at once, without any warning, before ``step``."""
    calls = After(step)

    def die() -> bool:
        if calls():
            os._exit(9)
        return False

    train(model(), checkpoint=directory, checkpoint_every=4, batch_size=4, interrupt=die)


def uninterrupted(rank: int, directory: str | None) -> tuple[dict[str, Tensor], list[dict[str, float]]]:
    net = model()
    result = train(net, checkpoint=directory, checkpoint_every=4, batch_size=4)
    return state_of(net), without_times(result)


def test_killed_without_warning_goes_on_from_the_last_checkpoint(tmp_path: Path) -> None:
    expected = run_ranks(2, uninterrupted, None)
    for step in (3, 7, 6):
        assert {kind for kind, _ in outcomes_of_ranks(2, killed_at, str(tmp_path), step)} == {"ended"}
        # What a rank was writing when it was killed.
        (tmp_path / "latest.partial").write_text("no number")
        (tmp_path / "step-000000099").mkdir(exist_ok=True)
    found = run_ranks(2, uninterrupted, str(tmp_path))
    for (state, history), (expected_state, expected_history) in zip(found, expected, strict=True):
        assert history == expected_history
        assert_identical(state, expected_state)
    assert sorted(path.name for path in tmp_path.glob("step-*")) == [f"step-{STEPS:09d}"]


def saved_by_one_ahead(rank: int, directory: str) -> list[int]:
    """Rank 0 is slow to name the step that all have written; the other has nothing to wait for."""
    communicator = Communicator(topology=None, timeout=timedelta(seconds=30), device=torch.device("cpu"))
    write = trainers.checkpoints.background.write

    def slow(path: Path, content: Any) -> int:
        time.sleep(0.2 if path.name == "latest" else 0)
        return write(path, content)

    trainers.checkpoints.background.write = slow
    checkpoint = Checkpoint(directory, communicator)
    for step in range(3):
        checkpoint.save(step, shared={}, own={"step": step}, wait=False)
    checkpoint.finish()
    found = Checkpoint(directory, communicator).load()
    communicator.close()
    assert found is not None
    return [found.own(rank)["step"]]


def test_no_rank_is_ahead_of_the_checkpoint_s_end(tmp_path: Path) -> None:
    assert run_ranks(2, saved_by_one_ahead, str(tmp_path)) == [[2], [2]]


def test_a_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    first, again = model(), model()
    expected = train(first, checkpoint=tmp_path)

    def no_step() -> bool:
        raise AssertionError

    found = train(again, checkpoint=tmp_path, interrupt=no_step)
    assert (found.metrics, found.history, found.reason) == (expected.metrics, expected.history, "finished")
    assert_identical(state_of(first), state_of(again))


def test_a_checkpoint_of_other_settings_is_refused_with_what_differs(tmp_path: Path) -> None:
    train(model(), checkpoint=tmp_path)
    with pytest.raises(ValueError, match="batch_size was 8, is 4") as caught:
        train(model(), checkpoint=tmp_path, batch_size=4, seed=1)
    assert "seed was 0, is 1" in str(caught.value)
    with pytest.raises(ValueError, match=r"lr of group 0 was 0\.01, is 0\.02"):
        train(model(), checkpoint=tmp_path, optimizer=lambda p: torch.optim.AdamW(p, lr=0.02))


def of_other_nodes(rank: int, directory: str) -> str:
    keywords: dict[str, Any] = {"checkpoint": f"{directory}/ddp", "batch_size": 4}
    whole, pieces = model(), model()
    train(whole, batch_size=4)
    with pytest.raises(trainers.Interrupted):
        train(model(), topology=trainers.Topology(ranks_per_node=2), interrupt=After(3), **keywords)
    train(pieces, topology=trainers.Topology(ranks_per_node=1), **keywords)
    torch.testing.assert_close(state_of(pieces), state_of(whole))
    keywords |= {"checkpoint": directory, "method": trainers.DASO(warmup_epochs=0)}
    with pytest.raises(trainers.Interrupted):
        train(model(), topology=trainers.Topology(ranks_per_node=2), interrupt=After(3), **keywords)
    with pytest.raises(ValueError) as caught:
        train(model(), topology=trainers.Topology(ranks_per_node=1), **keywords)
    return str(caught.value)


def test_a_checkpoint_of_other_nodes_is_refused_where_the_method_knows_nodes(tmp_path: Path) -> None:
    assert "nodes was ((0, 1),), is ((0,), (1,))" in run_ranks(2, of_other_nodes, str(tmp_path))[0]


def with_a_file_missing(rank: int, directory: str, missing: str) -> str:
    train(model(), checkpoint=directory, batch_size=4)
    if rank == 0:
        (found,) = Path(directory).glob(f"**/{missing}")
        found.unlink()
        if missing == "latest":
            found.mkdir()
    torch.distributed.barrier()
    begin = time.monotonic()
    with pytest.raises(ValueError) as caught:
        train(model(), checkpoint=directory, batch_size=4)
    assert time.monotonic() - begin < 10
    return str(caught.value)


def test_where_one_rank_cannot_read_all_ranks_end(tmp_path: Path) -> None:
    one, other = run_ranks(2, with_a_file_missing, str(tmp_path / "a"), "rank-1.pt")
    assert "Rank 1 could not read its rank-N.pt" in one
    assert "rank-1.pt is missing. Put back a copy" in other
    one, other = run_ranks(2, with_a_file_missing, str(tmp_path / "b"), "latest")
    assert "latest cannot be read (Is a directory)" in one
    assert "Rank 0 could not read its latest" in other


@pytest.mark.parametrize("compiled_first", [True, False])
@pytest.mark.parametrize("method", [trainers.DDP(), trainers.OIALR(delay=3, update_every=3)], ids=repr)
def test_a_compiled_model_and_the_plain_one_share_checkpoints(
    tmp_path: Path, method: trainers.Method, compiled_first: bool
) -> None:
    def made(compiled: bool) -> nn.Module:
        return torch.compile(model(), backend="eager") if compiled else model()  # type: ignore[return-value]

    keywords = {"method": method, "early_stopping": trainers.EarlyStopping(restore_best=True)}
    with pytest.raises(trainers.Interrupted):
        train(made(compiled_first), checkpoint=tmp_path, interrupt=After(8), **keywords)
    second, whole = made(not compiled_first), model()
    result = train(second, checkpoint=tmp_path, **keywords)
    assert without_times(result) == without_times(train(whole, **keywords))
    assert_identical(
        {name.removeprefix("_orig_mod."): value for name, value in state_of(second).items()}, state_of(whole)
    )


def trained_like_any(rank: int) -> tuple[dict[str, Tensor], list[dict[str, float]], str]:
    net = model()
    result = train(net, batch_size=4)
    return state_of(net), without_times(result), result.reason


def test_ranks_end_with_the_same_model_and_numbers() -> None:
    (state, history, reason), *others = run_ranks(3, trained_like_any)
    for other in others:
        assert_identical(other[0], state)
        assert other[1:] == (history, reason)


class Numbers(Dataset[tuple[Tensor, int]]):
    """Targets are Python's numbers, of which tensors are made when a batch is."""

    def __init__(self) -> None:
        x, y = labelled().tensors
        self._pairs = [(row, int(target)) for row, target in zip(x, y, strict=True)]

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self._pairs[index]


def under_a_default_device(rank: int, device: str, method: trainers.Method, settings: dict[str, Any]) -> Any:
    net, train_set, validation_set = model(), Numbers(), labelled()
    # AdamW makes its counts of steps there.
    sgd = partial(torch.optim.SGD, lr=0.05)
    with torch.device(device):
        made = {"train_set": train_set, "validation_set": validation_set, "optimizer": sgd, "metrics": {}}
        result = train(net, method=method, batch_size=4, **made, **settings)
    return state_of(net), without_times(result)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        (METHODS["powersgd"], {}),
        (METHODS["ddp"], {"assignment": trainers.FineGrained(copies=2)}),
        (trainers.AB(warmup_steps=2, ab_steps=2, rebound_steps=1), {}),
        (trainers.OIALR(delay=2, update_every=2), {}),
    ],
    ids=["powersgd", "assignment", "ab", "oialr"],
)
def test_a_default_device_elsewhere_changes_nothing(
    method: trainers.Method, settings: dict[str, Any]
) -> None:
    there = run_ranks(2, under_a_default_device, "meta", method, settings)
    here = run_ranks(2, under_a_default_device, "cpu", method, settings)
    for (state, history), (expected, numbers) in zip(there, here, strict=True):
        assert_identical(state, expected)
        assert history == numbers


def test_processes_that_read_ahead_make_tensors_on_the_cpu() -> None:
    for processes in (0, 1):
        state, history = under_a_default_device(0, "meta", METHODS["ddp"], {"loader_processes": processes})
        expected, numbers = under_a_default_device(0, "cpu", METHODS["ddp"], {})
        assert_identical(state, expected)
        assert history == numbers


def test_the_same_seed_gives_the_same_run_whatever_was_drawn_before() -> None:
    first, second, third = model(), model(), model()
    one = train(first)
    torch.rand(7)
    two = train(second)
    three = train(third, seed=5)
    assert without_times(one) == without_times(two)
    assert_identical(state_of(first), state_of(second))
    assert without_times(one) != without_times(three)


def test_generators_are_as_before_the_call() -> None:
    net = model()
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    train(net)
    assert torch.equal(torch.rand(3), expected)


# Evaluation


class Seen(nn.Module):
    """Returns its input, so that a metric sees what was evaluated, and in which order."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


def evaluated(rank: int, samples: int) -> list[float]:
    x = torch.arange(2.0 * samples).view(samples, 2)
    seen: list[tuple[Tensor, Tensor]] = []

    def keep(outputs: Tensor, targets: Tensor) -> float:
        seen.append((outputs.clone(), targets.clone()))
        return float(rank)

    found = trainers.evaluate(
        Seen(), TensorDataset(x, torch.arange(samples)), metrics={"rank": keep}, batch_size=2
    )
    if rank:
        assert not seen
    else:
        ((outputs, targets),) = seen
        assert torch.equal(outputs, x)
        assert torch.equal(targets, torch.arange(samples))
    return [found["rank"]]


@pytest.mark.parametrize("samples", [1, 2, 3, 10, 11])
def test_rank_0_s_metrics_get_all_in_the_order_of_the_set_and_its_values_count(samples: int) -> None:
    assert run_ranks(3, evaluated, samples) == [[0.0]] * 3
    assert evaluated(0, samples) == [0.0]


class Rows(Seen):
    """As many rows a sample as its first number says."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.repeat_interleave(x[:, 0].long(), 0))


def rows_evaluated(rank: int, counts: list[int]) -> None:
    x = torch.stack([torch.tensor(counts, dtype=torch.float), torch.arange(1.0, len(counts) + 1)], 1)
    seen: list[Tensor] = []

    def keep(outputs: Tensor, targets: Tensor) -> float:
        assert len(targets) == len(counts)
        seen.append(outputs)
        return 0.0

    trainers.evaluate(
        Rows(), TensorDataset(x, torch.zeros(len(counts))), metrics={"rows": keep}, batch_size=2
    )
    assert len(seen) == (rank == 0)
    if seen:
        assert torch.equal(seen[0], x.repeat_interleave(torch.tensor(counts), 0))


@pytest.mark.parametrize("counts", [[3] * 4, [3] * 5, [1, 0, 4, 2, 2], [0, 0, 1, 1]])
def test_metrics_get_all_rows_where_a_sample_has_several(counts: list[int]) -> None:
    run_ranks(2, rows_evaluated, counts)
    rows_evaluated(0, counts)


def test_a_model_that_returns_its_loss_cannot_be_evaluated() -> None:
    class Sum(Seen):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).sum()

    keywords: dict[str, Any] = {"loss": lambda outputs, targets: outputs, "metrics": {}, "epochs": 1}
    train(Sum(), validation_set=None, **keywords)
    with pytest.raises(TypeError, match="a tensor without dimensions for a batch"):
        train(Sum(), **keywords)


def test_evaluation_leaves_the_mode_and_the_statistics_as_they_were() -> None:
    net = model().train()
    before = state_of(net)
    trainers.evaluate(net, labelled(), metrics={"accuracy": accuracy}, batch_size=7)
    assert net.training
    assert_identical(state_of(net), before)
    net.eval()
    trainers.evaluate(net, labelled(), metrics={"accuracy": accuracy}, batch_size=7)
    assert not net.training


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        out: Tensor = self.layer(x) * scale
        return out


class PairSet(Dataset[Any]):
    def __init__(self, named: bool) -> None:
        self.named = named

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[Any, int]:
        parts = {"x": torch.full((3,), float(index)), "scale": torch.tensor([2.0])}
        return (parts if self.named else tuple(parts.values())), index % 2


def test_several_inputs_become_the_model_s_arguments() -> None:
    found = []
    for named in (True, False):
        torch.manual_seed(0)
        found.append(train(Pair(), train_set=PairSet(named), validation_set=PairSet(named), batch_size=4))
    assert without_times(found[0]) == without_times(found[1])


class Point(NamedTuple):
    x: Tensor
    scale: Tensor


class Named(nn.Module):
    def __init__(self, whole: bool) -> None:
        super().__init__()
        self.whole, self.pair = whole, Pair()

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        x, scale = args if self.whole else (kwargs["point"].x, kwargs["point"].scale)
        out: Tensor = self.pair(x, scale)
        return out


@pytest.mark.parametrize("whole", [True, False])
def test_inputs_in_tuples_with_names_keep_them(whole: bool) -> None:
    points = [Point(torch.full((3,), float(index)), torch.ones(1)) for index in range(8)]
    items: list[Any] = [(point if whole else {"point": point}, 1) for point in points]
    train(Named(whole), train_set=items, validation_set=items, epochs=1)


# Stopping


def scripted(values: list[float], **changed: Any) -> tuple[trainers.Result, list[dict[str, Tensor]]]:
    """A run whose metric ``f1`` takes ``values`` one after the other, and the model's state after each
    epoch."""
    script = iter(values)
    net = model()
    states: list[dict[str, Tensor]] = []
    result = train(
        net,
        metrics={"f1": lambda outputs, targets: next(script)},
        report=lambda epoch, metrics: states.append(state_of(net)),
        epochs=len(values),
        **changed,
    )
    states.append(state_of(net))
    return result, states


def test_early_stopping_ends_the_run() -> None:
    stopping = trainers.EarlyStopping(metric="f1", direction="maximize", patience=2)
    result, states = scripted([0.1, 0.5, 0.4, 0.5, 0.9, 0.9], early_stopping=stopping)
    assert result.reason == "stopped early"
    assert [entry["f1"] for entry in result.history] == [0.1, 0.5, 0.4, 0.5]
    assert result.metrics == result.history[-1]
    assert_identical(states[-1], states[-2])


def test_the_best_epoch_can_be_restored(tmp_path: Path) -> None:
    stopping = trainers.EarlyStopping(metric="f1", direction="maximize", patience=2, restore_best=True)
    values = [0.1, 0.5, 0.4, 0.5, 0.9]
    result, states = scripted(values, early_stopping=stopping, checkpoint=tmp_path)
    assert len(result.history) == 4
    assert (result.metrics["epoch"], result.metrics["f1"]) == (2.0, 0.5)
    assert result.metrics["train_s"] == result.history[-1]["train_s"]
    assert_identical(states[-1], states[1])
    again, restored = scripted(values, early_stopping=stopping, checkpoint=tmp_path)
    assert again == result
    assert_identical(restored[-1], states[1])


class Counting(nn.Linear):
    """Adds the number of its passes to its state."""

    passes = 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += self.training
        return super().forward(x)

    def get_extra_state(self) -> dict[str, int]:
        return {"passes": self.passes}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.passes = state["passes"]


def test_what_modules_add_to_their_state_is_restored_too(tmp_path: Path) -> None:
    found = []
    for stops in (0, 1):
        directory, script = tmp_path / str(stops), [0.1, 0.5, 0.4]
        keywords: dict[str, Any] = {
            "metrics": {"f1": lambda outputs, targets, script=script: script.pop(0)},
            "early_stopping": trainers.EarlyStopping(metric="f1", direction="maximize", restore_best=True),
            "checkpoint": directory,
        }
        for _ in range(stops):
            with pytest.raises(trainers.Interrupted):
                train(Counting(6, 2), interrupt=After(STEPS_PER_EPOCH + 2), **keywords)
        net = Counting(6, 2)
        train(net, **keywords)
        assert torch.equal(trainers.load_trained(Counting(6, 2), directory).weight, net.weight)
        found.append(net.passes)
    assert found == [2 * STEPS_PER_EPOCH] * 2


def test_a_run_that_diverges_ends_after_that_epoch_and_says_so() -> None:
    result = train(model(), optimizer=lambda p: torch.optim.SGD(p, lr=1e30), schedule=None)
    assert result.reason == "diverged"
    assert len(result.history) == 1
    assert not math.isfinite(result.history[0]["train_loss"] + result.history[0]["validation_loss"])


def test_a_run_that_diverges_between_evaluations_ends_after_that_epoch_too() -> None:
    optimizer = lambda p: torch.optim.SGD(p, lr=1e30)  # noqa: E731
    result = train(model(), optimizer=optimizer, schedule=None, evaluate_every=STEPS)
    assert result.reason == "diverged"
    assert [entry["steps"] for entry in result.history] == [STEPS_PER_EPOCH]


def test_report_gets_each_epoch_and_what_it_raises_ends_the_run() -> None:
    class Enough(Exception):
        pass

    reported = []

    def report(epoch: int, metrics: dict[str, float]) -> None:
        reported.append((epoch, metrics["accuracy"]))
        if epoch == 2:
            raise Enough

    with pytest.raises(Enough):
        train(model(), report=report)
    assert [epoch for epoch, _ in reported] == [1, 2]
    assert reported == [(entry["epoch"], entry["accuracy"]) for entry in train(model(), epochs=3).history[:2]]


def test_without_a_checkpoint_an_interrupted_run_still_stops() -> None:
    with pytest.raises(trainers.Interrupted, match="epoch 2 after 1 steps of it; nothing is saved"):
        train(model(), interrupt=After(STEPS_PER_EPOCH + 1))


def test_reading_processes_end_with_an_interrupted_run() -> None:
    with pytest.raises(trainers.Interrupted) as stopped:
        train(model(), interrupt=After(2), loader_processes=1)
    # While the error is still there, and what it holds on to.
    assert stopped.value.__traceback__ is not None
    assert not multiprocessing.active_children()


class Pids(Dataset[tuple[Tensor, Tensor]]):
    """Says in which epoch, by which process and how often its items are read."""

    def __init__(self, log: Path, length: int) -> None:
        self.log, self.length, self.epoch = log, length, -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        with self.log.open("a") as file:
            file.write(f"{os.getpid()} {self.epoch}\n")
        item: tuple[Tensor, Tensor] = labelled()[index]
        return item


def test_the_same_processes_read_all_epochs(tmp_path: Path) -> None:
    read, validated = tmp_path / "read", tmp_path / "validated"
    train(
        model(),
        train_set=Pids(read, 12),
        validation_set=Pids(validated, 4),
        epochs=3,
        loader_processes=2,
    )
    assert not multiprocessing.active_children()
    lines = read.read_text().split("\n")[:-1]
    pids = {line.split()[0] for line in lines}
    assert len(pids) == 2 and str(os.getpid()) not in pids
    assert Counter(line.split()[1] for line in lines) == {"0": 12, "1": 12, "2": 12}
    assert len({line.split()[0] for line in validated.read_text().split("\n")[:-1]}) <= 2


def test_an_interrupted_run_s_model_is_let_go() -> None:
    train(model())
    net = model()
    kept = weakref.ref(net)
    gc.disable()
    try:
        try:
            train(net, interrupt=After(2))
        except trainers.Interrupted:
            del net
        assert kept() is None
    finally:
        gc.enable()


def test_an_interrupted_run_says_where_it_is_saved(tmp_path: Path) -> None:
    with pytest.raises(trainers.Interrupted, match=f"saved in {tmp_path}"):
        train(model(), checkpoint=tmp_path, interrupt=After(1))


# The optimizer, precision and metrics


def test_the_optimizer_follows_the_schedule_and_gets_what_is_trained() -> None:
    net = model()
    net[4].weight.requires_grad_(False)
    frozen = net[4].weight.clone()
    rates: list[float] = []

    class Recording(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            rates.append(self.param_groups[0]["lr"])
            assert all(p.requires_grad for p in self.param_groups[0]["params"])
            super().step()

    schedule = trainers.Polynomial(power=2, warmup_epochs=1)
    train(net, optimizer=lambda p: Recording(p, lr=0.3), schedule=schedule)
    expected = [schedule.rate(0.3, epoch=step / STEPS_PER_EPOCH, epochs=EPOCHS) for step in range(STEPS)]
    assert rates == pytest.approx(expected)
    assert torch.equal(net[4].weight, frozen)


def test_a_rate_that_is_a_tensor_is_set_in_each_step_and_read_at_evaluations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a GPU each reading has the host wait."""
    rate, read, seen = torch.tensor(0.3), [0], []

    def as_float(tensor: Tensor) -> float:
        read[0] += tensor is rate
        return tensor.item()

    monkeypatch.setattr(Tensor, "__float__", as_float)
    schedule = trainers.Polynomial(power=2)
    train(
        model(),
        optimizer=lambda p: torch.optim.SGD(p, lr=rate),
        schedule=schedule,
        on_step=lambda step, taken: seen.append((taken["lr"], rate.item())),
    )
    expected = [schedule.rate(0.3, epoch=step / STEPS_PER_EPOCH, epochs=EPOCHS) for step in range(STEPS)]
    assert [recorded for recorded, _ in seen] == pytest.approx(expected)
    assert [set_to for _, set_to in seen] == pytest.approx(expected)
    assert read[0] < EPOCHS + 4 < STEPS


def test_parameter_groups_keep_their_own_rates() -> None:
    net = model()
    seen: list[tuple[float, float]] = []

    def grouped(parameters: Any) -> torch.optim.Optimizer:
        first, *others = parameters
        return torch.optim.SGD([{"params": [first], "lr": 1.0}, {"params": others}], lr=0.1)

    train(
        net,
        optimizer=grouped,
        schedule=trainers.Exponential(rate_factor=0.5),
        report=lambda epoch, metrics: seen.append((epoch, metrics["lr"])),
        epochs=2,
    )
    # The first group's, at the last step of the epoch.
    assert seen == [(1, pytest.approx(0.5**0.8)), (2, pytest.approx(0.5**1.8))]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("enabled", [True, False])
def test_a_run_inside_an_autocast_of_the_caller_is_that_outside(precision: str, enabled: bool) -> None:
    method = trainers.OIALR(delay=4, update_every=3)
    alone, inside = model(), model()
    expected = train(alone, method=method, precision=precision)
    with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
        found = train(inside, method=method, precision=precision)
        assert torch.is_autocast_enabled("cpu") == enabled and torch.is_autocast_cache_enabled()
    assert_identical(state_of(alone), state_of(inside))
    assert without_times(found) == without_times(expected)


def test_bf16_is_autocast_with_full_precision_weights() -> None:
    dtypes = set()

    class Watching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = model()

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.net(x)
            dtypes.add((self.training, out.dtype))
            return out

    net = Watching()
    result = train(net, precision="bf16")
    assert dtypes == {(True, torch.bfloat16), (False, torch.bfloat16)}
    assert {p.dtype for p in net.parameters()} == {torch.float32}
    assert math.isfinite(result.metrics["validation_loss"])


def test_metrics_are_plain_numbers_and_complete() -> None:
    net = model()
    net[0].weight.requires_grad_(False)
    result = train(net)
    assert {type(v) for entry in (result.metrics, *result.history) for v in entry.values()} == {float}
    assert set(result.metrics) == {
        "epoch", "steps", "lr", "train_loss", "validation_loss", "accuracy", "train_s", "evaluation_s", "wait_s",
        "bytes_between_nodes", "bytes_inside_nodes",
        "trainable_fraction", "compression_ratio", "decomposition_s", "samples_per_s",
    }  # fmt: skip
    assert result.metrics["trainable_fraction"] == 1.0
    assert result.metrics["compression_ratio"] == 1.0
    assert train(model(), validation_set=None, metrics=None).metrics.keys() == set(result.metrics) - {
        "validation_loss", "accuracy", "evaluation_s"
    } | {"evaluation_s"}  # fmt: skip


def test_bytes_of_ddp_are_the_gradients_and_the_buffers() -> None:
    net = model()
    ranks = run_ranks(2, bytes_of_two)
    numbers = sum(p.numel() + 1 for p in net.parameters())  # with each gradient goes a flag
    # On two nodes of one rank, each sends 2 · 4 · 1/2 bytes a parameter and step; an epoch, 32 running
    # statistics, and as broadcasts, of which each sends half in the mean, rank 0's and the batch count.
    expected = 2 * (STEPS * 4 * numbers + EPOCHS * (4 * 32 + (4 * 32 + 8) / 2))
    assert ranks == [(expected, 0.0)] * 2


def bytes_of_two(rank: int) -> tuple[float, float]:
    metrics = train(model(), batch_size=4, topology=trainers.Topology(ranks_per_node=1)).metrics
    return metrics["bytes_between_nodes"], metrics["bytes_inside_nodes"]


# The seam


class Spy(Strategy):
    def __init__(self, calls: list[Any]) -> None:
        self.calls = calls

    def before_pass(self, step: int, *, last: bool) -> None:
        self.calls.append(("pass", step, last))

    def reduce_gradients(self, step: int) -> None:
        self.calls.append(("reduce", step))

    def learning_rate(self, step: int, scheduled: float) -> float:
        return scheduled / 2

    def after_step(self, step: int, loss: Tensor) -> None:
        self.calls.append(("after", step))
        assert loss.dim() == 0
        assert not loss.requires_grad

    def end_epoch(self, epoch: int, train_loss: float) -> None:
        self.calls.append(("end", epoch))

    def finalise(self) -> None:
        self.calls.append(("finalise",))

    def metrics(self) -> dict[str, float]:
        return {"stability": 0.5, "decomposition_s": 2.0}

    def close(self) -> None:
        self.calls.append(("close",))


class Spying:
    def __init__(self) -> None:
        self.calls: list[Any] = []

    def __repr__(self) -> str:
        return "Spying()"

    def strategy(self, setup: Setup) -> Strategy:
        assert setup.total_steps == 2 * 5
        assert isinstance(setup.communicator, Communicator)
        return Spy(self.calls)


def test_the_hooks_are_called_in_order() -> None:
    method = Spying()
    result = train(model(), method=method, batch_size=4, accumulate=2, epochs=2, schedule=trainers.Constant())
    step = [("pass", 0, False), ("pass", 0, True), ("reduce", 0), ("after", 0)]
    assert method.calls[:4] == step
    numbers = [call[1] for call in method.calls if call[0] == "after"]
    assert numbers == list(range(10))
    assert [call for call in method.calls if call[0] in ("end", "finalise", "close")] == [
        ("end", 0), ("end", 1), ("finalise",), ("close",)
    ]  # fmt: skip
    assert result.metrics["lr"] == 0.005
    assert result.metrics["stability"] == 0.5
    assert result.metrics["decomposition_s"] == 2.0


def test_weights_that_a_method_replaced_are_let_go() -> None:
    net = model()
    first = {name: weakref.ref(parameter) for name, parameter in net.named_parameters()}
    dead: list[set[str]] = []

    def look(epoch: int, metrics: dict[str, float]) -> None:
        gc.collect()
        mine = {id(parameter) for parameter in net.parameters()}
        assert all(ref() is None or id(ref()) in mine for ref in first.values())
        dead.append({name for name, ref in first.items() if ref() is None})

    train(net, method=trainers.OIALR(delay=2, update_every=2), report=look)
    assert dead[-1]


def test_hooks_are_taken_off_when_the_run_fails() -> None:
    method = Spying()

    def broken(outputs: Tensor, targets: Tensor) -> Tensor:
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        train(model(), method=method, batch_size=8, epochs=2, loss=broken)
    assert method.calls[-1] == ("close",)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"method": "daso"}, "method = 'daso': must be a method's settings. Pass DDP()"),
        ({"method": trainers.DASO}, "Pass DASO()"),
        ({"metrics": {"synchronisations": accuracy}}, "methods record 'synchronisations'"),
        ({"metrics": {"rank/0": accuracy}}, "methods record 'rank/0'"),
        ({"metrics": {"lr": accuracy}}, "the loop itself records 'lr'"),
        ({"validation_set": None}, "metrics need a validation set"),
        ({"train_set": TensorDataset(torch.zeros(0, 6), torch.zeros(0))}, "is empty"),
        ({"batch_size": 1, "accumulate": 41}, "40 samples for 1 ranks with 41 accumulated batches"),
        ({"topology": trainers.Topology(ranks_per_node=2)}, "1 ranks are no multiple"),
        (
            {"early_stopping": trainers.EarlyStopping(metric="f1")},
            "this run records epoch, steps, lr, train_loss",
        ),
    ],
)
def test_refuses(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        train(model(), **changed)
    assert message in str(caught.value)


def test_names_that_are_not_recorded_are_refused_before_anything_starts() -> None:
    def no_step() -> bool:
        raise AssertionError

    misspelt: list[dict[str, Any]] = [
        {"early_stopping": trainers.EarlyStopping(metric="acuracy")},
        {
            "schedule": trainers.ReduceOnPlateau(metric="validation_loss"),
            "validation_set": None,
            "metrics": {},
        },
    ]
    for changed in misspelt:
        with pytest.raises(ValueError, match="this run records epoch, steps, lr, train_loss"):
            train(model(), interrupt=no_step, **changed)
    # Recorded by the method: from the start, and from some step on.
    for method, metric in ((trainers.DASO(), "sync_every"), (trainers.OIALR(delay=1), "stability/0")):
        stopping = trainers.EarlyStopping(metric=metric, patience=9)
        with pytest.raises(AssertionError):
            train(model(), interrupt=no_step, early_stopping=stopping, method=method)


def test_a_metric_must_not_have_the_name_of_a_method_s() -> None:
    method = Spying()
    with pytest.raises(ValueError, match="the method records 'stability'"):
        train(model(), method=method, epochs=2, metrics={"stability": accuracy})
    assert method.calls == [("close",)]


def test_what_a_model_keeps_from_an_evaluation_can_be_trained_with() -> None:
    class Keeping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 2)
            self.scale: Tensor | None = None

        def forward(self, x: Tensor) -> Tensor:
            if self.scale is None:
                self.scale = torch.full((1, 6), 2.0)
            out: Tensor = self.layer(x * self.scale)
            return out

    net = Keeping()
    trainers.evaluate(net, labelled(), metrics={"accuracy": accuracy}, batch_size=7)
    train(net, epochs=1)
    with pytest.raises(ValueError, match="batch_size = 0"):
        trainers.evaluate(net, labelled(), metrics={"accuracy": accuracy}, batch_size=0)


class Embedded(nn.Embedding):
    """With sparse gradients."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward((x[:, 0] > 0).long())


class Two(nn.Linear):
    def forward(self, x: Tensor) -> Any:
        return x, x


@pytest.mark.parametrize(
    ("net", "error", "words"),
    [
        (lambda: model().requires_grad_(False), ValueError, "nothing to train"),
        (nn.Identity, ValueError, "no parameters"),
        (
            lambda: nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d()),
            ValueError,
            r"[01]\.weight has no shape yet.*Put",
        ),
        (
            lambda: nn.Sequential(nn.Linear(6, 3), nn.LazyLinear(2)),
            ValueError,
            r"[01]\.weight has no shape yet.*Put",
        ),
        (lambda: Two(6, 2), TypeError, "got a tuple, as the model returned"),
        (lambda: Embedded(5, 2, sparse=True), ValueError, "sparse=False"),
    ],
)
def test_refuses_models_that_cannot_be_trained(net: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        train(net(), clip_norm=1.0, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1))


class Buffered(Pair):
    def __init__(self, buffer: Tensor) -> None:
        super().__init__()
        self.register_buffer("mask", buffer)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x[:, :3], torch.tensor(2.0))


BUFFERS = {
    "sparse": torch.eye(2).to_sparse(),
    "expanded": torch.tensor(1.0).expand(2),
    "elsewhere": torch.empty(2, device="meta"),
}


def buffer_refused(rank: int, kind: str) -> str:
    with pytest.raises(ValueError) as caught:
        train(Buffered(BUFFERS[kind]), epochs=1)
    return str(caught.value)


def test_buffers_that_cannot_be_exchanged_or_filled_are_refused_where_they_would_be(tmp_path: Path) -> None:
    for kind, found in (("sparse", "mask is sparse"), ("expanded", "mask is an expanded tensor")):
        assert all(f"model: {found}" in words for words in run_ranks(2, buffer_refused, kind))
        train(Buffered(BUFFERS[kind]), epochs=1)
    elsewhere = "model: mask is on meta, and the first parameter on cpu. Move all to one device"
    assert all(elsewhere in words for words in run_ranks(2, buffer_refused, "elsewhere"))
    train(Buffered(BUFFERS["sparse"]), epochs=1, checkpoint=tmp_path / "sparse")
    with pytest.raises(ValueError, match="mask is an expanded tensor"):
        train(Buffered(BUFFERS["expanded"]), epochs=1, checkpoint=tmp_path / "expanded")


class LookedUp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(5, 2, max_norm=0.5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.rows((x[:, 0] > 0).long())
        return out


def limited_refused(rank: int) -> str:
    with pytest.raises(ValueError) as caught:
        train(LookedUp(), epochs=1)
    return str(caught.value)


def test_rows_that_passes_change_are_refused_where_ranks_would_part() -> None:
    assert all("model: rows has max_norm=0.5" in words for words in run_ranks(2, limited_refused))
    train(LookedUp(), epochs=1)


def test_progress_is_one_line_that_stays(capsys: pytest.CaptureFixture[str]) -> None:
    train(model(), progress=True)
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert "epoch 3/3" in shown.rsplit("\r", 1)[1]
    assert "accuracy" in shown
    train(model(), progress=None)
    assert capsys.readouterr().err == ""


def test_label_smoothing_is_that_of_cross_entropy() -> None:
    generator = torch.Generator().manual_seed(3)
    outputs = torch.randn(5, 4, 6, dtype=torch.float64, generator=generator)
    targets = torch.randint(4, (5, 6), generator=generator)
    found = cross_entropy(outputs, smoothed(targets, outputs, 0.1))
    torch.testing.assert_close(found, cross_entropy(outputs, targets, label_smoothing=0.1))


def test_smoothed_targets_are_probabilities_whatever_the_outputs_type() -> None:
    targets = torch.arange(10, dtype=torch.uint8)
    found = smoothed(targets, torch.zeros(10, 10, dtype=torch.bfloat16), 0.1)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.sum(1), torch.ones(10))
    assert math.isfinite(train(model(), precision="bf16", label_smoothing=0.1).metrics["train_loss"])
    for wrong in (-100, 10):
        with pytest.raises(ValueError, match=f"a target is {wrong}, with outputs for classes 0 to 9"):
            smoothed(torch.tensor([1, wrong]), torch.zeros(2, 10), 0.1)


def test_label_smoothing_changes_training_and_not_what_is_validated() -> None:
    plain, smooth = model(), model()
    losses = [train(net, label_smoothing=s).metrics for net, s in ((plain, 0.0), (smooth, 0.3))]
    assert losses[1]["train_loss"] > losses[0]["train_loss"]
    smooth.eval()
    x, y = labelled().tensors
    with torch.no_grad():
        assert losses[1]["validation_loss"] == pytest.approx(cross_entropy(smooth(x), y).item(), rel=1e-5)


def test_label_smoothing_is_refused_where_there_are_no_classes() -> None:
    with pytest.raises(ValueError, match="at least 0 and below 1"):
        train(model(), label_smoothing=1.0)
    x = torch.zeros(8, 6)
    with pytest.raises(TypeError, match="smooth in the loss"):
        train(
            model(),
            train_set=TensorDataset(x, torch.zeros(8, 2)),
            validation_set=None,
            metrics={},
            label_smoothing=0.1,
        )


class Uncertain(nn.Module):
    """A loss with a weight that is learnt, as of Kendall and Gal 2017."""

    def __init__(self) -> None:
        super().__init__()
        self.log_variance = nn.Parameter(torch.zeros(()))

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return torch.exp(-self.log_variance) * cross_entropy(outputs, targets) + self.log_variance


class WithLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net, self.criterion = model(), Uncertain()

    def forward(self, inputs: Tensor) -> Tensor:
        return self.net(inputs)  # type: ignore[no-any-return]


def test_what_is_trained_of_a_loss_belongs_to_the_model() -> None:
    loss = Uncertain()
    with pytest.raises(
        ValueError, match=r"1 of its tensors is not of the model.*Give what is trained of a loss"
    ):
        train(model(), loss=loss, optimizer=lambda p: torch.optim.SGD([*p, loss.log_variance], lr=0.1))
    whole = WithLoss()

    def step(net: nn.Module, batch: Any) -> dict[str, Tensor]:
        outputs = net(batch[0])
        return {"loss": whole.criterion(outputs, batch[1]), "outputs": outputs}

    train(whole, loss=None, step=step)
    assert whole.criterion.log_variance.item() != 0.0


def test_a_model_in_a_wrapper_that_exchanges_gradients_is_refused() -> None:
    with pytest.raises(ValueError, match=r"it is in DataParallel, .* Pass the module inside \(\.module\)\."):
        train(nn.DataParallel(model()))


def throughput(rank: int) -> tuple[float, float]:
    result = train(model(), batch_size=4, epochs=1, evaluate_every=None)
    return result.metrics["samples_per_s"], result.metrics["train_s"]


def test_throughput_is_that_of_all_ranks_together() -> None:
    for found, seconds in run_ranks(2, throughput):
        assert found == pytest.approx(40 / seconds, rel=1e-6)
