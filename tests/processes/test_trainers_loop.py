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
from typing import Any

import pytest
import torch
from cases import combinations
from gloo import outcomes_of_ranks, run_ranks
from models import adamw, labelled, noisy_model
from resuming import After, assert_identical, state_of, without_times
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

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


def killed_at(rank: int, directory: str, step: int) -> None:
    """Both ranks die at once, without any warning, before ``step``."""
    calls = After(step)

    def die() -> bool:
        if calls():
            os._exit(9)
        return False

    train(noisy_model(), checkpoint=directory, checkpoint_every=4, batch_size=4, interrupt=die)


def uninterrupted(rank: int, directory: str | None) -> tuple[dict[str, Tensor], list[dict[str, float]]]:
    net = noisy_model()
    result = train(net, checkpoint=directory, checkpoint_every=4, batch_size=4)
    return state_of(net), without_times(result)


def test_killed_without_warning_goes_on_from_the_last_checkpoint(tmp_path: Path) -> None:
    expected = run_ranks(2, uninterrupted, None)
    for step in (3, 7):
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
    write = trainers.checkpoints.checkpoint.write

    def slow(path: Path, content: Any) -> int:
        time.sleep(0.2 if path.name == "latest" else 0)
        return write(path, content)

    trainers.checkpoints.checkpoint.write = slow
    checkpoint = Checkpoint(directory, communicator)
    for step in range(3):
        checkpoint.save(step, shared={}, own={"step": step}, wait=False)
    checkpoint.finish()
    found = Checkpoint(directory, communicator).load()
    communicator.close()
    assert found is not None
    return [found.of_rank(rank)["step"]]


def test_no_rank_is_ahead_of_the_checkpoint_s_end(tmp_path: Path) -> None:
    assert run_ranks(2, saved_by_one_ahead, str(tmp_path)) == [[2], [2]]


def of_other_nodes(rank: int, directory: str) -> str:
    keywords: dict[str, Any] = {"checkpoint": f"{directory}/ddp", "batch_size": 4}
    whole, pieces = noisy_model(), noisy_model()
    train(whole, batch_size=4)
    with pytest.raises(trainers.Interrupted):
        train(noisy_model(), topology=trainers.Topology(ranks_per_node=2), interrupt=After(3), **keywords)
    train(pieces, topology=trainers.Topology(ranks_per_node=1), **keywords)
    torch.testing.assert_close(state_of(pieces), state_of(whole))
    keywords |= {"checkpoint": directory, "method": trainers.DASO(warmup_epochs=0)}
    with pytest.raises(trainers.Interrupted):
        train(noisy_model(), topology=trainers.Topology(ranks_per_node=2), interrupt=After(3), **keywords)
    with pytest.raises(ValueError) as caught:
        train(noisy_model(), topology=trainers.Topology(ranks_per_node=1), **keywords)
    return str(caught.value)


def test_a_checkpoint_of_other_nodes_is_refused_where_the_method_knows_nodes(tmp_path: Path) -> None:
    assert "nodes was ((0, 1),), is ((0,), (1,))" in run_ranks(2, of_other_nodes, str(tmp_path))[0]


@pytest.mark.parametrize(
    ("method", "compiled_first"),
    combinations([trainers.DDP(), trainers.OIALR(delay=3, update_every=3)], [True, False]),
)
def test_a_compiled_model_and_the_plain_one_share_checkpoints(
    tmp_path: Path, method: trainers.Method, compiled_first: bool
) -> None:
    def made(compiled: bool) -> nn.Module:
        return torch.compile(noisy_model(), backend="eager") if compiled else noisy_model()  # type: ignore[return-value]

    keywords = {"method": method, "early_stopping": trainers.EarlyStopping(restore_best=True)}
    with pytest.raises(trainers.Interrupted, match=f"saved in {tmp_path}"):
        train(made(compiled_first), checkpoint=tmp_path, interrupt=After(8), **keywords)
    second, whole = made(not compiled_first), noisy_model()
    result = train(second, checkpoint=tmp_path, **keywords)
    assert without_times(result) == without_times(train(whole, **keywords))
    assert_identical(
        {name.removeprefix("_orig_mod."): value for name, value in state_of(second).items()}, state_of(whole)
    )


class Numbers(Dataset[tuple[Tensor, int]]):
    """Targets are Python's numbers, of which tensors are made when a batch is."""

    def __init__(self) -> None:
        self._pairs = [(x, int(y)) for x, y in labelled()]

    def __len__(self) -> int:
        return len(self._pairs)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self._pairs[index]


BY_DEFAULT: list[dict[str, Any]] = [
    {"method": trainers.DDP(compression="powersgd", powersgd_rank=2)},
    {"assignment": trainers.FineGrained(copies=1)},
    {"method": trainers.AB(warmup_steps=2, ab_steps=2, rebound_steps=1, groups=False)},
    {"method": trainers.OIALR(delay=2, update_every=2)},
]


def under_a_default_device(rank: int, device: str, several: list[dict[str, Any]]) -> list[Any]:
    found = []
    for settings in several:
        net, train_set, validation_set = noisy_model(), Numbers(), labelled()
        # AdamW makes its counts of steps there.
        sgd = partial(torch.optim.SGD, lr=0.05)
        with torch.device(device):
            made = {"train_set": train_set, "validation_set": validation_set, "optimizer": sgd, "metrics": {}}
            result = train(net, batch_size=4, **made, **settings)
        found.append((state_of(net), without_times(result)))
    return found


def test_a_default_device_elsewhere_changes_nothing() -> None:
    there, here = (run_ranks(2, under_a_default_device, device, BY_DEFAULT) for device in ("meta", "cpu"))
    alone: list[dict[str, Any]] = [{"loader_processes": processes} for processes in (0, 1)]
    there.append(under_a_default_device(0, "meta", alone))
    here.append(under_a_default_device(0, "cpu", alone))
    for elsewhere, expected in zip(there, here, strict=True):
        for (state, history), (expected_state, expected_history) in zip(elsewhere, expected, strict=True):
            assert_identical(state, expected_state)
            assert history == expected_history


def test_the_same_seed_gives_the_same_run_whatever_was_drawn_before() -> None:
    first, second, third = noisy_model(), noisy_model(), noisy_model()
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    one = train(first)
    assert torch.equal(torch.rand(3), expected), "generators are as before the call"
    two, three = train(second), train(third, seed=5)
    assert without_times(one) == without_times(two) != without_times(three)
    assert_identical(state_of(first), state_of(second))


# Evaluation


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        out: Tensor = self.layer(x) * scale
        return out


def test_several_inputs_become_the_model_s_arguments() -> None:
    parts = [{"x": torch.full((3,), float(i)), "scale": torch.tensor([2.0])} for i in range(8)]
    found = []
    for named in (True, False):
        items: Any = [(each if named else tuple(each.values()), i % 2) for i, each in enumerate(parts)]
        torch.manual_seed(0)
        found.append(train(Pair(), train_set=items, validation_set=items, batch_size=4))
    assert without_times(found[0]) == without_times(found[1])


# Stopping


@pytest.mark.parametrize("every", [None, STEPS])
def test_a_run_that_diverges_ends_after_that_epoch_and_says_so(every: int | None) -> None:
    optimizer = lambda p: torch.optim.SGD(p, lr=1e30)  # noqa: E731
    result = train(noisy_model(), optimizer=optimizer, schedule=None, evaluate_every=every)
    assert result.reason == "diverged"
    assert [entry["steps"] for entry in result.history] == [STEPS_PER_EPOCH]
    assert not math.isfinite(result.history[0]["train_loss"] + result.history[0]["validation_loss"])


def test_an_interrupted_run_stops_without_a_checkpoint_and_so_do_its_reading_processes() -> None:
    with pytest.raises(trainers.Interrupted, match=r"epoch 2 .* 1 .*nothing is saved") as stopped:
        train(noisy_model(), interrupt=After(STEPS_PER_EPOCH + 1), loader_processes=1)
    # While the error is still there, and what it holds on to.
    assert stopped.value.__traceback__ is not None and not stopped.value.saved
    assert not multiprocessing.active_children()


class Pids(Dataset[tuple[Tensor, Tensor]]):
    """Says in which epoch and by which process its items are read."""

    def __init__(self, log: Path) -> None:
        self.log, self.epoch = log, -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        with self.log.open("a") as file:
            file.write(f"{os.getpid()} {self.epoch}\n")
        item: tuple[Tensor, Tensor] = labelled()[index]
        return item


def test_the_same_processes_read_all_epochs(tmp_path: Path) -> None:
    train(noisy_model(), train_set=Pids(tmp_path / "read"), epochs=3, loader_processes=2)
    assert not multiprocessing.active_children()
    lines = [line.split() for line in (tmp_path / "read").read_text().splitlines()]
    pids = {pid for pid, _ in lines}
    assert len(pids) == 2 and str(os.getpid()) not in pids
    assert Counter(epoch for _, epoch in lines) == {"0": 12, "1": 12, "2": 12}


def test_an_interrupted_run_s_model_is_let_go() -> None:
    train(noisy_model())
    net = noisy_model()
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


# The optimizer, precision and metrics


@pytest.mark.parametrize(("precision", "enabled"), combinations(["fp32", "bf16"], [True, False]))
def test_a_run_inside_an_autocast_of_the_caller_is_that_outside(precision: str, enabled: bool) -> None:
    method = trainers.OIALR(delay=4, update_every=3)
    alone, inside = noisy_model(), noisy_model()
    expected = train(alone, method=method, precision=precision)
    with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
        found = train(inside, method=method, precision=precision)
        assert torch.is_autocast_enabled("cpu") == enabled and torch.is_autocast_cache_enabled()
    assert_identical(state_of(alone), state_of(inside))
    assert without_times(found) == without_times(expected)


def test_bf16_is_autocast_with_full_precision_weights() -> None:
    dtypes, net = set(), noisy_model()
    net.register_forward_hook(lambda module, inputs, output: dtypes.add((module.training, output.dtype)))
    result = train(net, precision="bf16")
    assert dtypes == {(True, torch.bfloat16), (False, torch.bfloat16)}
    assert {p.dtype for p in net.parameters()} == {torch.float32}
    assert math.isfinite(result.metrics["validation_loss"])


def test_metrics_are_plain_numbers_and_complete() -> None:
    net = noisy_model()
    net[0].weight.requires_grad_(False)
    result = train(net)
    assert {type(v) for entry in (result.metrics, *result.history) for v in entry.values()} == {float}
    recorded = {
        "epoch", "steps", "lr", "train_loss", "train_s", "evaluation_s", "wait_s", "bytes_between_nodes",
        "bytes_inside_nodes", "trainable_fraction", "compression_ratio", "decomposition_s", "samples_per_s",
    }  # fmt: skip
    assert set(result.metrics) == recorded | {"validation_loss", "accuracy"}
    assert result.metrics["trainable_fraction"] == result.metrics["compression_ratio"] == 1.0
    assert set(train(noisy_model(), validation_set=None, metrics=None).metrics) == recorded


# The seam


class Spy(Strategy):
    """Notes the calls of its hooks, and is its own method."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def __repr__(self) -> str:
        return "Spy()"

    def strategy(self, setup: Setup) -> Strategy:
        assert setup.total_steps == 2 * 5 and isinstance(setup.communicator, Communicator)
        return self

    def before_pass(self, step: int, *, last: bool) -> None:
        self.calls.append(("pass", step, last))

    def reduce_gradients(self, step: int) -> None:
        self.calls.append(("reduce", step))

    def learning_rate(self, step: int, scheduled: float) -> float:
        return scheduled / 2

    def after_step(self, step: int, loss: Tensor) -> None:
        self.calls.append(("after", step))
        assert loss.dim() == 0 and not loss.requires_grad

    def end_epoch(self, epoch: int, train_loss: float) -> None:
        self.calls.append(("end", epoch))

    def finalise(self) -> None:
        self.calls.append(("finalise",))

    def metrics(self) -> dict[str, float]:
        return {"stability": 0.5, "decomposition_s": 2.0}

    def close(self) -> None:
        self.calls.append(("close",))


def test_the_hooks_are_called_in_order() -> None:
    method = Spy()
    result = train(
        noisy_model(), method=method, batch_size=4, accumulate=2, epochs=2, schedule=trainers.Constant()
    )
    steps = [
        call
        for step in range(10)
        for call in (("pass", step, False), ("pass", step, True), ("reduce", step), ("after", step))
    ]
    ends = [("end", 1), ("finalise",), ("close",)]
    assert method.calls == [*steps[:20], ("end", 0), *steps[20:], *ends]
    assert [result.metrics[name] for name in ("lr", "stability", "decomposition_s")] == [0.005, 0.5, 2.0]


def test_weights_that_a_method_replaced_are_let_go() -> None:
    net = noisy_model()
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
    method = Spy()

    def broken(outputs: Tensor, targets: Tensor) -> Tensor:
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        train(noisy_model(), method=method, epochs=2, loss=broken)
    assert method.calls[-1] == ("close",)


class Buffered(Pair):
    def __init__(self, buffer: Tensor) -> None:
        super().__init__()
        self.register_buffer("mask", buffer)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x[:, :3], torch.tensor(2.0))


class LookedUp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(5, 2, max_norm=0.5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.rows((x[:, 0] > 0).long())
        return out


UNSHARED: dict[str, tuple[Any, str]] = {
    "sparse": (lambda: Buffered(torch.eye(2).to_sparse()), "mask"),
    "expanded": (lambda: Buffered(torch.tensor(1.0).expand(2)), "mask"),
    "elsewhere": (lambda: Buffered(torch.empty(2, device="meta")), "mask meta cpu"),
    "rows that passes change": (LookedUp, "rows max_norm=0.5"),
}


def refused_by_ranks(rank: int) -> dict[str, str]:
    found = {}
    for name, (make, _) in UNSHARED.items():
        with pytest.raises(ValueError) as caught:
            train(make(), epochs=1)
        found[name] = str(caught.value)
    return found


def test_models_that_ranks_cannot_exchange_are_refused_where_they_would(tmp_path: Path) -> None:
    for found in run_ranks(2, refused_by_ranks):
        for name, (_, words) in UNSHARED.items():
            assert found[name].startswith("model: ") and all(word in found[name] for word in words.split())
    for name in UNSHARED.keys() - {"elsewhere"}:
        train(UNSHARED[name][0](), epochs=1)
    train(UNSHARED["sparse"][0](), epochs=1, checkpoint=tmp_path / "sparse")
    with pytest.raises(ValueError, match="mask"):
        train(UNSHARED["expanded"][0](), epochs=1, checkpoint=tmp_path / "expanded")


def test_progress_is_one_line_that_stays(capsys: pytest.CaptureFixture[str]) -> None:
    train(noisy_model(), progress=True)
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert "epoch 3/3" in shown.rsplit("\r", 1)[1]
    assert "accuracy" in shown
    train(noisy_model(), progress=None)
    assert capsys.readouterr().err == ""


def test_smoothed_targets_are_probabilities_whatever_the_outputs_type() -> None:
    targets = torch.arange(10, dtype=torch.uint8)
    found = smoothed(targets, torch.zeros(10, 10, dtype=torch.bfloat16), 0.1)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.sum(1), torch.ones(10))
    assert math.isfinite(train(noisy_model(), precision="bf16", label_smoothing=0.1).metrics["train_loss"])
    for wrong in (-100, 10):
        with pytest.raises(ValueError, match=f"{wrong}"):
            smoothed(torch.tensor([1, wrong]), torch.zeros(2, 10), 0.1)


def test_label_smoothing_changes_training_and_not_what_is_validated() -> None:
    plain, smooth = noisy_model(), noisy_model()
    losses = [train(net, label_smoothing=s).metrics for net, s in ((plain, 0.0), (smooth, 0.3))]
    assert losses[1]["train_loss"] > losses[0]["train_loss"]
    smooth.eval()
    x, y = labelled().tensors
    with torch.no_grad():
        assert losses[1]["validation_loss"] == pytest.approx(cross_entropy(smooth(x), y).item(), rel=1e-5)


def test_what_is_trained_of_a_loss_belongs_to_the_model() -> None:
    weight = nn.Parameter(torch.ones(()))
    with pytest.raises(ValueError, match="1 of its tensors"):
        train(noisy_model(), optimizer=lambda parameters: torch.optim.SGD([*parameters, weight], lr=0.1))
