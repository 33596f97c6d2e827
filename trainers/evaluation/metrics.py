"""Metrics of an evaluation: functions of all outputs and targets, and objects that get a batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn

from trainers.communication.channel import Channel
from trainers.communication.gathering import gathered
from trainers.evaluation.torchmetrics_states import alone, joined_over
from trainers.structures import joined, mapped, moved, tensors_in

_TEXT_BYTES = 400
"""Length of rank 0's error about a metric on the other ranks."""

_Batch = tuple[int, object, object]
"""Number of samples, outputs and targets."""


@runtime_checkable
class StreamingMetric(Protocol):
    """Metric that gets a batch at a time, so that outputs need not be kept, such as those of torchmetrics.

    A metric of your own also needs ``sums()``, which returns the tensors of its state, such as counts of samples and of
    hits; the ranks sum them, in place, before ``compute``. Metrics of torchmetrics, which have ``sync_on_compute``,
    combine their states in ``compute`` themselves, here over the ranks of the evaluation.
    """

    def reset(self) -> object:
        """Clear the state, before each evaluation."""
        ...

    def update(self, outputs: Any, targets: Any, /) -> object:
        """Add a batch of this rank, on its device and in the structures of the model and the data set."""
        ...

    def compute(self) -> Tensor | float:
        """Value over all batches. Called on all ranks, of which rank 0's value counts; on rank 0 alone if there are
        fewer samples than ranks.
        """
        ...


Metric = Callable[..., "Tensor | float"] | StreamingMetric
"""Function from (outputs, targets) of all samples, in the order of the set, to a number; or a StreamingMetric."""


def check_metrics(metrics: Mapping[str, object]) -> None:
    """Raise ValueError if a metric is neither a function nor an object whose state ranks can combine."""
    for name, metric in metrics.items():
        if isinstance(metric, type) and hasattr(metric, "update"):
            raise ValueError(
                f"metrics: {name!r} is a class, and must be a function of (outputs, targets), or an object with "
                f"update() and compute(), such as {metric.__name__}(). Correct it."
            )
        streams = isinstance(metric, StreamingMetric)
        if streams and not (hasattr(metric, "sums") or hasattr(metric, "sync_on_compute")):
            raise ValueError(
                f"metrics: {name!r} has update() and compute(), and no sums(), without which each rank would compute "
                "that of its own samples. Have it return a list of the tensors that the ranks are to sum before "
                "compute()."
            )
        if not callable(metric) and not streams:
            raise ValueError(
                f"metrics = {dict(metrics)!r}: must be functions of (outputs, targets) by name, or objects with "
                "reset(), update(), sums() and compute(). Correct it."
            )


class Scores:
    """Metrics of an evaluation by the ranks of ``channel``: ``update`` adds batches, ``values`` then computes them."""

    def __init__(self, metrics: Mapping[str, Metric], *, channel: Channel, device: torch.device) -> None:
        self._names = list(metrics)
        self._channel = channel
        self._device = device
        self._functions: dict[str, Callable[..., Tensor | float]] = {}
        self._streaming: dict[str, StreamingMetric] = {}
        for name, metric in metrics.items():
            if isinstance(metric, StreamingMetric):
                self._streaming[name] = metric
                if isinstance(metric, nn.Module):
                    metric.to(device)
                metric.reset()
            else:
                self._functions[name] = metric
        self._kept: list[_Batch] = []

    def update(self, outputs: object, targets: object, samples: int) -> None:
        """Add a batch of ``samples`` samples, with outputs as ``full`` returns them."""
        # Functions need all batches at the end: they are kept in the CPU's memory, as a GPU may not have the room.
        for metric in self._streaming.values():
            metric.update(outputs, targets)
        if self._functions:
            self._kept.append((samples, mapped(outputs, Tensor.cpu), mapped(targets, Tensor.cpu)))

    def values(self, *, shared: bool) -> dict[str, float]:
        """Values of rank 0 by name, equal on all ranks to the last bit, because ranks make decisions by them.

        Collective. ``shared``: each rank had samples of its own; otherwise rank 0 had all. TypeError if a metric
        returned something else than a single number, or batches cannot be joined; on other ranks RuntimeError.
        """
        together = self._gathered(shared)
        found: dict[str, float] = {}
        if shared:
            for name, metric in self._streaming.items():
                self._sum(name, metric)
                with joined_over(metric, self._channel):
                    found[name] = one_number(name, metric.compute())

        def compute() -> list[float]:
            if not shared:
                # On rank 0 alone: without a batch, many metrics of the other ranks would divide by zero.
                for name, metric in self._streaming.items():
                    with alone(metric):
                        found[name] = one_number(name, metric.compute())
            if self._functions:
                if not together:
                    raise ValueError("validation_set: it gave no rank a sample. Bring data.")
                samples, all_outputs, all_targets = zip(*together, strict=True)
                together.clear()
                outputs = joined(all_outputs, samples, "outputs")
                targets = joined(all_targets, samples, "targets")
                del all_outputs, all_targets
                for name, function in self._functions.items():
                    found[name] = one_number(name, self._call(function, outputs, targets))
            return [found[name] for name in self._names]

        return dict(zip(self._names, self._of_first_rank(compute), strict=True))

    def _gathered(self, shared: bool) -> list[_Batch]:
        """Batches of all ranks in order of rank on rank 0, not joined yet; no batches on other ranks."""
        if not self._functions:
            return []
        mine, self._kept = self._kept, []
        # Without a batch on rank 0, those of other ranks become tuples, lists and dictionaries.
        of_ranks = gathered(mine, self._channel, self._device) if shared else [mine]
        return [batch for batches in of_ranks or () for batch in cast(list[_Batch], batches)]

    def _call(self, function: Callable[..., Any], outputs: object, targets: object) -> object:
        try:
            return function(outputs, targets)
        except RuntimeError as error:
            if self._device.type == "cpu" or "same device" not in str(error):
                raise
        # The function has tensors on the GPU itself, such as weights of classes.
        return function(moved(outputs, self._device), moved(targets, self._device))

    def _sum(self, name: str, metric: StreamingMetric) -> None:
        # Metrics of torchmetrics combine their states themselves, and may have an attribute of this name.
        own: Callable[[], Iterable[Tensor]] | None = getattr(metric, "sums", None)
        if own is None or hasattr(metric, "sync_on_compute") or self._channel.size == 1:
            return
        for tensor in own():
            if not isinstance(tensor, Tensor):
                raise TypeError(
                    f"metrics: sums() of {name!r} returned {type(tensor).__name__} in its list, and must return "
                    "tensors, which the ranks sum in place."
                )
            # Sent from the host's memory, where a rank that hangs is an error after the time-out.
            sent = tensor.to("cpu", copy=True, memory_format=torch.contiguous_format)
            tensor.copy_(self._channel.all_reduce(sent).wait())

    def _of_first_rank(self, compute: Callable[[], list[float]]) -> list[float]:
        values, failed = [0.0] * len(self._names), None
        if self._channel.rank == 0:
            try:
                values = compute()
            except Exception as error:  # of the user's function, whose outcome the other ranks wait for
                if self._channel.size == 1:
                    raise
                failed = error
        # Sent in double precision with the flag of an error, so that ranks wait for a single message.
        state = torch.tensor([*values, float(failed is not None)], dtype=torch.float64, device="cpu")
        *agreed, wrong = self._channel.broadcast(state).wait().tolist()
        if wrong:
            text = f"{type(failed).__name__}: {failed}".encode()[:_TEXT_BYTES].ljust(_TEXT_BYTES)
            sent = torch.tensor(list(text), dtype=torch.uint8, device="cpu")
            text = bytes(self._channel.broadcast(sent).wait().tolist())
            ended = text.decode(errors="replace").rstrip()
            raise failed or RuntimeError(f"Rank 0, which computes the metrics, ended with {ended}")
        return [float(value) for value in agreed]


class MeanLoss:
    """Validation loss: the mean over samples of the losses of batches.

    A batch whose loss is NaN though its outputs are finite is left out: nothing of it counts, such as where all targets
    are a cross entropy's ``ignore_index``.
    """

    def __init__(self, device: torch.device) -> None:
        # Sum of losses, samples that count, and all samples.
        self._sums = torch.zeros(3, dtype=torch.float64, device=device)

    def reset(self) -> None:
        self._sums.zero_()

    def add(self, loss: float | Tensor, samples: int, outputs: object = None) -> None:
        """Add ``loss``, the mean over ``samples`` samples with the model's ``outputs``, which a user's step has not."""
        value = torch.as_tensor(loss, dtype=torch.float64, device=self._sums.device).detach() * samples
        self._sums[2] += samples
        if outputs is None:
            self._sums[0] += value
            self._sums[1] += samples
            return
        undefined = value.isnan()
        for tensor in tensors_in(outputs):
            # On the device, so that the host does not wait for it.
            undefined &= tensor.isfinite().all()
        self._sums[0] += value.masked_fill(undefined, 0.0)
        self._sums[1] += ~undefined * samples

    def update(self, outputs: object, targets: object, /) -> None:
        """Do nothing, as ``add`` gets the losses."""

    def sums(self) -> list[Tensor]:
        return [self._sums]

    def compute(self) -> Tensor:
        if not self._sums[2]:
            raise ValueError("validation_set: it gave no rank a sample. Bring data.")
        return self._sums[0] / self._sums[1]


def one_number(name: str, value: object) -> float:
    """``value``, returned by the metric ``name``, as a float; TypeError unless it is a single number."""
    shape = ""
    if isinstance(value, Tensor):
        if value.numel() == 1 and not value.is_complex():
            # Not in the try below: an error here comes from an earlier operation of the GPU, and is raised unchanged.
            return float(value.item())
        shape = f" of shape {tuple(value.shape)} and {value.dtype}"
    else:
        try:
            return float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            pass
    whose = "loss" if name == "validation_loss" else f"metrics: {name!r}"
    raise TypeError(
        f"{whose} returned {type(value).__name__}{shape} for all outputs and targets, and must return one number. "
        "Correct it."
    )


def full(tensor: Tensor) -> Tensor:
    """``tensor`` in single precision if it is in bf16, whose eight bits are too few for metrics."""
    return tensor.float() if tensor.dtype is torch.bfloat16 else tensor
