"""Data sets that are kept on the device: the same batches as from the host, and never where they do not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset, TensorDataset

import trainers
from trainers.data import loader
from trainers.data.batches import in_order
from trainers.data.device_copy import DeviceCopy, ItemReader

CPU = torch.device("cpu")
BATCHES = in_order([5, 0, 19, 7, 7, 2, 11], batch_size=3)


class Bytes(Dataset[Any]):
    """Twenty items of 4 bytes, of which the device makes noisy fractions."""

    fixed_items = True

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def __len__(self) -> int:
        return 20

    def read_batch(self, indices: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        self.asked.append(indices.tolist())
        values = indices.to(torch.uint8)
        return {"x": values[:, None].expand(-1, 3).contiguous()}, values

    def on_device(self, inputs: dict[str, Tensor], targets: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        return {"x": inputs["x"] / 20 + 0.1 * torch.rand(3)}, targets / 20


class Ragged(Bytes):
    def read_batch(self, indices: Tensor) -> tuple[Any, Tensor]:
        wide = 2 if 13 in indices else 1
        return torch.zeros(len(indices), wide), indices


def tensors() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(20, 3, generator=generator), torch.randn(20, generator=generator))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.layer(nn.functional.dropout(x, 0.2, self.training))).squeeze(1)


def train(data: Dataset[Any], **given: Any) -> tuple[list[Tensor], Any]:
    torch.manual_seed(0)
    model = Model()
    settings = {"epochs": 3, "batch_size": 4, "loss": nn.functional.mse_loss, "progress": False, **given}
    result = trainers.train(
        model,
        data,
        data,
        optimizer=lambda p: torch.optim.AdamW(p, lr=0.1),
        **settings,
    )
    return [*model.parameters()], [one["validation_loss"] for one in result.history]


@pytest.mark.parametrize(
    "make", [tensors, Bytes, lambda: Subset(Subset(Bytes(), range(3, 20)), range(1, 15))]
)
@pytest.mark.parametrize("given", [{}, {"accumulate": 3}, {"loader_processes": 1}])
def test_the_same_batches_are_trained_on(make: Callable[[], Dataset[Any]], given: dict[str, Any]) -> None:
    weights, losses = train(make(), data_on_device=False, **given | {"loader_processes": 0})
    kept, of_kept = train(make(), data_on_device=True, **given)
    assert losses == of_kept and all(map(torch.equal, weights, kept))


def on_a_gpu(monkeypatch: pytest.MonkeyPatch, samples: Any, *, free: int) -> loader.Loader:
    """Loader that takes the CPU for a GPU with ``free`` bytes where it decides on the copy."""
    made = loader.Loader(samples, device=CPU, processes=0)
    monkeypatch.setattr(loader, "is_gpu", lambda device: True)
    monkeypatch.setattr(loader, "free_bytes", lambda device: free)
    made.keep_on_device("auto", "train_set")
    monkeypatch.undo()
    monkeypatch.setattr(loader, "free_bytes", lambda device: free)
    return made


@pytest.mark.parametrize(("share", "epochs_from_the_host"), [(1 / 100, 0), (1 / 5, 1), (1 / 3, 3)])
def test_what_fits_is_read_once(
    monkeypatch: pytest.MonkeyPatch, share: float, epochs_from_the_host: int
) -> None:
    samples = Bytes()
    with on_a_gpu(monkeypatch, samples, free=round(20 * 4 / share)) as kept:
        for epoch in range(3):
            samples.asked.clear()
            (first, *_) = kept.batches(BATCHES, epoch=epoch)
            assert ([5, 0, 19] in samples.asked) == (epoch < epochs_from_the_host)
            assert first[1].tolist() == pytest.approx([0.25, 0, 0.95])
            assert ([*range(20)] in samples.asked) == (epoch == epochs_from_the_host)


@pytest.mark.parametrize("midway", [False, True])
def test_a_tensor_that_was_changed_is_read_again(midway: bool) -> None:
    samples = tensors()
    with loader.Loader(samples, device=CPU, processes=0) as kept:
        kept._copy = DeviceCopy(tuple(tensor.clone() for tensor in samples.tensors), samples.tensors)
        if midway:
            batches = kept.batches(BATCHES)
            next(batches)
            samples.tensors[0].mul_(2)
            inputs, _ = next(batches)
            assert torch.equal(inputs, samples.tensors[0][[7, 7, 2]])
        samples.tensors[0].mul_(2)
        inputs, _ = next(kept.batches(BATCHES))
        assert torch.equal(inputs, samples.tensors[0][[5, 0, 19]])


class Own(TensorDataset):
    pass


def no_items() -> Any:
    samples = Bytes()
    samples.fixed_items = False  # type: ignore[misc]
    return samples


@pytest.mark.parametrize(
    ("make", "given", "reason"),
    [
        (lambda: Own(*tensors().tensors), {}, "is no torch TensorDataset"),
        (no_items, {}, "fixed_items"),
        (Ragged, {}, "several shapes"),
        (tensors, {"collate": lambda items: (torch.zeros(4, 3), torch.zeros(4))}, "has collate"),
        (lambda: TensorDataset(*tensors().tensors, torch.zeros(20)), {}, "is not of two tensors"),
        (tensors, {"data_on_device": 1}, 'True, False or "auto"'),
        (tensors, {"data_on_device": "cuda"}, 'True, False or "auto"'),
    ],
)
def test_what_cannot_be_kept_is_refused(make: Callable[[], Any], given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as refused:
        train(make(), **{"data_on_device": True, **given})
    assert "data_on_device" in str(refused.value)


def test_inputs_that_are_trained_stay_where_they_are() -> None:
    samples = TensorDataset(torch.ones(4, 3).requires_grad_(), torch.ones(4))
    assert "without gradients" in str(ItemReader(samples, torch.arange(4)).refusal)


def test_what_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "free_bytes", lambda device: 79)
    with pytest.raises(ValueError, match="are free there"):
        train(Bytes(), data_on_device=True)


def test_on_the_cpu_nothing_is_copied_unasked() -> None:
    samples = Bytes()
    train(samples, epochs=1)
    assert [*range(20)] not in samples.asked
