"""Metrics of several ranks: what functions get on the first one, and objects everywhere."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from cases import cases
from gloo import run_ranks
from models import labelled
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset, IterableDataset

import trainers
from trainers.communication import gathering


class Scenes(Dataset[Any]):
    """Images of several sizes, with several boxes each: as many as the index says."""

    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: int) -> Any:
        image = torch.full((1, 4 + index, 5), float(index))
        return image, {"boxes": torch.full((index, 4), float(index)), "name": f"scene {index}"}


def as_lists(items: Any) -> Any:
    """As torchvision's detection references do."""
    return tuple(list(part) for part in zip(*items, strict=True))


class Detector(nn.Module):
    """Takes a list of images, and returns a list of dictionaries, one an image."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, images: list[Tensor]) -> Any:
        return [
            {"boxes": image.new_ones(int(image.mean()), 4) * self.scale, "size": tuple(image.shape)}
            for image in images
        ]


def detection_step(model: nn.Module, batch: Any) -> dict[str, Any]:
    return {"loss": torch.zeros(()), "outputs": model(batch[0])}


def detected(rank: int) -> tuple[float, int]:
    seen: list[Any] = []

    def found(outputs: Any, targets: Any) -> float:
        seen.append((outputs, targets))
        assert [target["name"] for target in targets] == [f"scene {i}" for i in range(7)]
        assert [output["size"] for output in outputs] == [(1, 4 + i, 5) for i in range(7)]
        assert [len(output["boxes"]) for output in outputs] == list(range(7))
        return float(sum(target["boxes"].sum() for target in targets))

    settings: dict[str, Any] = {"step": detection_step, "collate": as_lists, "batch_size": 2}
    return trainers.evaluate(Detector(), Scenes(), metrics={"found": found}, **settings)["found"], len(seen)


def test_boxes_of_several_sizes_reach_rank_0_in_order() -> None:
    expected = sum(4.0 * i * i for i in range(7))
    for ranks in cases([1, 3], nightly=[2]):
        assert run_ranks(ranks, detected) == [(expected, int(rank == 0)) for rank in range(ranks)]


@dataclass
class Output(OrderedDict[str, Any]):
    """As Hugging Face's: a dataclass and a dictionary, which refuses ``update``."""

    logits: Tensor | None = None
    hidden: tuple[Tensor, ...] | None = None

    def __post_init__(self) -> None:
        self["logits"], self["hidden"] = self.logits, self.hidden

    def update(self, *parts: Any, **named: Any) -> None:
        raise AssertionError

    def __reduce__(self) -> Any:
        return type(self), (self.logits, self.hidden)

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        super().__setattr__(key, value)


class Answering(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, ids: Tensor, mask: Tensor) -> Output:
        return Output(ids * self.weight, (mask.float(), ids.to(torch.bfloat16) * self.weight.bfloat16()))


class Texts(Dataset[Any]):
    def __len__(self) -> int:
        return 11

    def __getitem__(self, index: int) -> Any:
        return {"ids": torch.full((3,), float(index)), "mask": torch.ones(3)}, (index, {"text": f"{index}"})


def answered(rank: int, pieces: int) -> float:
    gathering._PIECES_BYTES = pieces

    def right(outputs: Output, targets: Any) -> float:
        assert isinstance(outputs, Output)
        assert torch.equal(outputs.logits[:, 0], torch.arange(11.0))  # type: ignore[index]
        numbers, texts = targets
        assert isinstance(targets, tuple)
        assert numbers.tolist() == list(range(11))
        assert texts["text"] == [str(i) for i in range(11)]
        assert outputs.hidden is not None
        assert outputs.hidden[1].dtype is torch.float32
        return float(numbers.sum())

    return trainers.evaluate(Answering(), Texts(), metrics={"right": right}, batch_size=2)["right"]


@pytest.mark.parametrize("pieces", [2**20, 100])
def test_outputs_of_models_keep_their_kind(pieces: int) -> None:
    assert run_ranks(3, answered, pieces) == [55.0] * 3
    assert answered(0, pieces) == 55.0


class Kept:
    """Counts samples, and how many outputs of earlier batches are still in memory."""

    def __init__(self) -> None:
        self.outputs: list[weakref.ref[Tensor]] = []

    def reset(self) -> None:
        self.count = torch.zeros((), dtype=torch.int64)
        self.alive = 0

    def update(self, outputs: Output, targets: Any) -> None:
        assert outputs.logits is not None
        self.alive += sum(earlier() is not None for earlier in self.outputs)
        self.outputs.append(weakref.ref(outputs.logits))
        self.count += len(outputs.logits)

    def sums(self) -> list[Tensor]:
        return [self.count]

    def compute(self) -> float:
        assert self.alive <= 1
        return float(self.count)


def counted(rank: int, samples: Dataset[Any]) -> float:
    return trainers.evaluate(Answering(), samples, metrics={"count": Kept()}, batch_size=1)["count"]


def test_objects_keep_no_outputs_and_their_state_is_summed() -> None:
    assert counted(0, Texts()) == 11.0 and run_ranks(3, counted, Texts()) == [11.0] * 3
    # With fewer samples than ranks all take them all, and they count once.
    assert run_ranks(3, counted, torch.utils.data.Subset(Texts(), [4, 5])) == [2.0] * 3


class Share:
    """Share of samples whose first input is above 0, which cannot be computed of no samples."""

    def reset(self) -> None:
        self.seen = torch.zeros(2, dtype=torch.int64)

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        self.seen += torch.tensor([int((outputs > 0).sum()), len(outputs)])

    def sums(self) -> list[Tensor]:
        return [self.seen]

    def compute(self) -> float:
        return int(self.seen[0]) / int(self.seen[1])


def of_two_samples(rank: int, failing: bool) -> dict[str, float]:
    """Both of a rank's own kinds of metrics, one of torchmetrics with a group of its user's, and a step's loss."""
    from torchmetrics import MeanMetric

    class Mean(MeanMetric):
        def update(self, outputs: Tensor, targets: Tensor) -> None:
            super().update(outputs)

        def compute(self) -> Tensor:
            return torch.zeros(2) if failing else super().compute()

    class Pairs(Dataset[Any]):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
            return torch.full((1,), float(index)), torch.full((1,), 3.0)

    def step(model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Any]:
        outputs = model(batch[0])
        return {"loss": (outputs - batch[1]).square().mean(), "outputs": outputs}

    everyone = dist.new_group(list(range(dist.get_world_size())))
    model = nn.Linear(1, 1)
    with torch.no_grad():
        model.weight.fill_(1.0)
        model.bias.fill_(0.0)
    result = trainers.train(
        model,
        torch.utils.data.ConcatDataset([Pairs()] * 3),
        Pairs(),
        step=step,
        metrics={"share": Share(), "mean": Mean(process_group=everyone), "count": lambda o, t: len(o)},
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0),
        epochs=1,
        batch_size=1,
        timeout=timedelta(seconds=20),
    )
    return {name: result.metrics[name] for name in ("validation_loss", "share", "mean", "count")}


def of_two_samples_and_failing(rank: int) -> tuple[dict[str, float], str]:
    found = of_two_samples(rank, False)
    with pytest.raises((TypeError, RuntimeError)) as caught:
        of_two_samples(rank, True)
    return found, f"{type(caught.value).__name__}: {caught.value}"


def test_of_fewer_samples_than_ranks_rank_0_computes_alone() -> None:
    expected = {"validation_loss": 6.5, "share": 0.5, "mean": 0.5, "count": 2.0}
    first, *others = run_ranks(3, of_two_samples_and_failing)
    assert first[0] == expected and first[1].startswith("TypeError: metrics: 'mean'")
    for found, error in others:
        assert found == expected and error.startswith("RuntimeError: ") and first[1][:50] in error


class Counted(Kept):
    """Beside functions, for which outputs are kept."""

    def compute(self) -> float:
        return float(self.count)


class Own(IterableDataset[Any]):
    """``samples`` of them."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[Any]:
        for index in range(self.samples):
            yield Texts()[index]


def of_own_shards(rank: int, samples: list[int]) -> tuple[float, float, int]:
    stream = trainers.Stream(Own(samples[rank]), sharded=True)
    lengths: list[int] = []

    def length(outputs: Output, targets: Any) -> float:
        lengths.append(len(targets[1]["text"]))
        return float(len(outputs.logits))  # type: ignore[arg-type]

    metrics: dict[str, Any] = {"count": Counted(), "length": length}
    found = trainers.evaluate(Answering(), stream, metrics=metrics, batch_size=2)
    return found["count"], found["length"], sum(lengths)


@pytest.mark.parametrize("samples", cases([[0, 3, 6]], nightly=[[3, 6, 0]]))
def test_shards_of_several_lengths_are_evaluated_once(samples: list[int]) -> None:
    assert run_ranks(3, of_own_shards, samples) == [(9.0, 9.0, 9), (9.0, 9.0, 0), (9.0, 9.0, 0)]


def by_torchmetrics(rank: int, timeout: timedelta = timedelta(minutes=1)) -> list[dict[str, float]]:
    """By all ranks, by the first two, and of fewer samples than ranks."""
    from torchmetrics import Metric
    from torchmetrics.classification import BinaryAUROC, MulticlassAccuracy
    from torchmetrics.detection.mean_ap import MeanAveragePrecision

    class Auroc(BinaryAUROC):
        def update(self, outputs: Tensor, targets: Tensor) -> None:
            super().update(outputs.softmax(1)[:, 1], targets)

    class Masks(MeanAveragePrecision):
        """States as with masks, without the libraries that compute: masks belong to scores."""

        def __init__(self) -> None:
            Metric.__init__(self)
            self.iou_type = ("segm",)
            for name in ("detection_mask", "groundtruth_mask", "detection_scores"):
                self.add_state(name, default=[], dist_reduce_fx=None)

        def update(self, outputs: Tensor, targets: Tensor) -> None:
            for score in outputs.argmax(1):
                self.detection_mask.append((((4, 4), bytes([int(score), 255])),))
                self.groundtruth_mask.append(())
                self.detection_scores.append(score[None])

        def compute(self) -> Tensor:
            masks = [mask for ((size, mask),) in self.detection_mask]
            assert masks == [bytes([int(score), 255]) for score in self.detection_scores]
            assert self.groundtruth_mask == [()] * len(masks)
            return torch.tensor(len(masks) + sum(map(float, self.detection_scores)) / 100)

    class OfBatches(Metric):
        """The mean square over batches that are not joined: ranks have different numbers of them."""

        def __init__(self) -> None:
            super().__init__()
            self.add_state("sums", default=[], dist_reduce_fx=None)
            self.add_state("counts", default=[], dist_reduce_fx=None)

        def update(self, outputs: Tensor, targets: Tensor) -> None:
            self.sums.append(outputs.square().sum(0))
            self.counts.append(torch.tensor(len(outputs)))

        def compute(self) -> Tensor:
            assert len(self.sums) == len(self.counts)
            return sum(one.sum() for one in self.sums) / sum(self.counts)  # type: ignore[return-value]

    torch.manual_seed(0)
    model = nn.Linear(6, 2)
    metrics: dict[str, Any] = {
        "of batches": OfBatches(),
        "accuracy": MulticlassAccuracy(2, average="micro"),  # counts that are summed
        "auroc": Auroc(),  # keeps all outputs, of which ranks have different numbers
        "masks": Masks(),
        "error": 1 - MulticlassAccuracy(2, average="micro"),  # a metric in another
    }
    found = []
    ranks = dist.get_world_size()
    two = dist.new_group([0, 1]) if ranks > 1 else None
    for group, count in ((None, 23), (two, 23), (None, 2)):
        if group is None or rank < 2:
            given = {"metrics": metrics, "batch_size": 3, "group": group, "timeout": timeout}
            found.append(trainers.evaluate(model, labelled(count), **given))
    assert all(one.dist_sync_fn is None for one in metrics.values())
    return found


def test_metrics_of_torchmetrics_are_of_the_ranks_that_evaluate() -> None:
    (alone,) = run_ranks(1, by_torchmetrics)
    assert alone[0] == alone[1] and 0 < alone[0]["error"] == pytest.approx(1 - alone[0]["accuracy"])
    first, second, third = run_ranks(3, by_torchmetrics)
    for one in (first, second, [third[0], alone[1], third[1]]):
        for found, expected in zip(one, alone, strict=True):
            assert found == pytest.approx(expected)


def beside_one_that_left(rank: int) -> str:
    from torchmetrics import MeanMetric

    class Left(MeanMetric):
        def update(self, outputs: Tensor, targets: Tensor) -> None:
            super().update(targets)

        def compute(self) -> Tensor:
            if rank == 1:
                raise KeyError("this rank's own")
            return super().compute()

    with pytest.raises((KeyError, trainers.CommunicationError)) as caught:
        trainers.evaluate(
            nn.Linear(6, 2), labelled(), metrics={"mean": Left()}, batch_size=3, timeout=timedelta(seconds=5)
        )
    return type(caught.value).__name__


def test_a_rank_that_is_missed_by_a_metric_of_torchmetrics_is_an_error_after_the_time_out() -> None:
    assert run_ranks(2, beside_one_that_left) == ["CommunicationError", "KeyError"]


class Merging(nn.Linear):
    """As a low-rank adapter that is merged into the weight for evaluation."""

    merged = False

    def train(self, mode: bool = True) -> Merging:
        self.merged = not mode
        return super().train(mode)


@pytest.mark.parametrize("mode", [True, False])
def test_modules_are_in_their_modes_again_after_an_evaluation(mode: bool) -> None:
    model = nn.Sequential(Merging(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
    model[0].train(mode)
    model[1].eval()
    statistics = model[1].running_mean.clone()
    trainers.evaluate(model, labelled(), metrics={"loss": cross_entropy}, batch_size=8)
    assert model[0].training == mode and model[0].merged == (not mode)
    assert [module.training for module in (model, model[1], model[2])] == [True, False, True]
    assert torch.equal(model[1].running_mean, statistics)


def validated(loss: Any, inputs: Tensor, targets: Tensor, **named: Any) -> trainers.Result:
    torch.manual_seed(0)
    model = nn.Conv2d(1, 3, 1)
    data = torch.utils.data.TensorDataset(inputs, targets)
    return trainers.train(
        model, data, data, loss=loss, optimizer=lambda p: torch.optim.SGD(p, lr=0.0), epochs=1,
        batch_size=8, evaluation_batch_size=2, **named,
    )  # fmt: skip


def dense() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(8, 1, 4, 4, generator=generator)
    return inputs, torch.randint(0, 3, (8, 4, 4), generator=generator)


def test_the_validation_loss_gets_a_batch_at_a_time_and_leaves_out_those_without_a_target() -> None:
    inputs, targets = dense()
    evaluated: list[int] = []

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        if not outputs.requires_grad:
            evaluated.append(len(outputs))
        return cross_entropy(outputs, targets, ignore_index=255)

    whole = validated(loss, inputs, targets).metrics
    assert evaluated == [2] * 4 and whole["validation_loss"] == pytest.approx(whole["train_loss"])
    targets[2:4] = 255  # a whole batch
    left = validated(loss, inputs, targets)
    torch.manual_seed(0)
    kept = [0, 1, 4, 5, 6, 7]
    with torch.no_grad():
        expected = cross_entropy(nn.Conv2d(1, 3, 1)(inputs[kept]), targets[kept])
    assert left.reason == "finished" and left.metrics["validation_loss"] == pytest.approx(float(expected))


def test_a_loss_of_outputs_that_are_not_finite_is_not_left_out() -> None:
    inputs, targets = dense()

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs.nan_to_num() if outputs.requires_grad else outputs, targets)

    inputs[3] = float("nan")
    assert validated(loss, inputs, targets).reason == "diverged"


@pytest.mark.parametrize("kind", [float, lambda value: value.reshape(1)])
def test_beside_a_step_of_the_user_the_loss_may_be_any_number(kind: Any) -> None:
    inputs, targets = dense()

    def step(model: nn.Module, batch: Any) -> dict[str, Any]:
        outputs = model(batch[0])
        return {"loss": cross_entropy(outputs, batch[1]), "outputs": outputs}

    found = validated(lambda *pair: kind(cross_entropy(*pair)), inputs, targets, step=step).metrics
    assert found["validation_loss"] == pytest.approx(found["train_loss"])
