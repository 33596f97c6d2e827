"""Numbers that a run records beside losses and metrics: bytes, seconds, throughput, the trained part of the model."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from trainers.communication.communicator import Communicator
from trainers.gpu import is_gpu, module_of
from trainers.methods.strategy import DataRanks, Strategy
from trainers.optim.early_stopping import EarlyStopping, recorded
from trainers.optim.schedules import ReduceOnPlateau
from trainers.run.position import Metrics, Position
from trainers.run.settings import OF_LAYERS, TOTALS, TrainSettings


def summed(communicator: Communicator, values: Tensor) -> Tensor:
    """``values`` summed over the ranks, in the host's memory. Collective: an all-reduce."""
    return communicator.service.all_reduce(values.to("cpu", copy=True)).wait()


def summed_by_name(communicator: Communicator, values: Metrics) -> Metrics:
    """``values`` summed over the ranks. Collective: an all-reduce."""
    mine = torch.tensor(list(values.values()), dtype=torch.float64, device="cpu")
    return dict(zip(values, summed(communicator, mine).tolist(), strict=True))


class Recorder:
    """Records one run on one rank; made before the method changes the model.

    Its methods raise ValueError where a metric of the user has the name of a metric of the method.
    """

    def __init__(self, settings: TrainSettings, communicator: Communicator, data: DataRanks) -> None:
        self._settings = settings
        self._communicator = communicator
        self._data = data
        self._full_trainable, self._full_parameters = self._counts()
        if is_gpu(settings.device):
            # The process may have trained something else before.
            module_of(settings.device).reset_peak_memory_stats(settings.device)

    def check_names(self, strategy: Strategy) -> None:
        """ValueError if a metric's name is taken, or a metric is asked for that will not be recorded."""
        settings = self._settings
        of_strategy = strategy.metrics().keys()
        self._refuse_taken(of_strategy)
        names = ["epoch", "steps", "lr", "train_loss"]
        if settings.validation_set is not None:
            names += ["validation_loss", *settings.metrics]
        names += [*TOTALS, "trainable_fraction", "compression_ratio", "decomposition_s", "samples_per_s"]
        names += ["peak_memory_bytes"] if is_gpu(settings.device) else []
        names += ["mfu"] if settings.peak_flops is not None else []
        known = dict.fromkeys([*names, *of_strategy], 0.0)
        for asking in (settings.early_stopping, settings.schedule):
            # Metrics of a layer are recorded from the step on at which a method changes it.
            if isinstance(asking, (EarlyStopping, ReduceOnPlateau)) and not asking.metric.startswith(
                OF_LAYERS
            ):
                recorded(known, asking.metric, type(asking).__name__)
        if (check := getattr(settings.report, "check_metrics", None)) is not None:
            check(tuple(known))

    def totals(self, position: Position, strategy: Strategy) -> Metrics:
        """Bytes of all ranks together and mean seconds, of the run so far; the trained part of the model now.

        Collective: an all-reduce.
        """
        size = self._communicator.size
        seconds = {"train_s": position.train_s / size, "evaluation_s": position.evaluation_s / size}
        totals = summed_by_name(self._communicator, {**self._communicator.traffic(), **seconds})
        trainable, parameters = self._counts()
        of_strategy = strategy.metrics()
        self._refuse_taken(of_strategy)
        return {
            **totals,
            "trainable_fraction": trainable / self._full_trainable,
            "compression_ratio": self._full_parameters / parameters,
            "decomposition_s": 0.0,
            **of_strategy,
        }

    def throughput(self, position: Position) -> Metrics:
        """Samples of all ranks per second of the training steps since the last evaluation; the largest GPU memory of a
        rank so far; and, where the costs are known, the model FLOPs utilisation (Chowdhery et al. 2022, appendix B).

        Collective: an all-gather.
        """
        settings, device = self._settings, self._settings.device
        memory = module_of(device).max_memory_allocated(device) if is_gpu(device) else 0
        mine = torch.tensor(
            [position.recent_samples, position.recent_s, memory], dtype=torch.float64, device="cpu"
        )
        of_ranks = torch.stack(self._communicator.service.all_gather(mine))
        samples, seconds = of_ranks[:, 0].mean().item() * self._data.ranks, of_ranks[:, 1].mean().item()
        found = {"samples_per_s": samples / max(seconds, 1e-9)}
        if is_gpu(device):
            found["peak_memory_bytes"] = of_ranks[:, 2].max().item()
        if settings.flops_per_sample is not None and settings.peak_flops is not None:
            flops_per_s = found["samples_per_s"] * settings.flops_per_sample
            found["mfu"] = flops_per_s / (self._communicator.size * settings.peak_flops)
        return found

    def _counts(self) -> tuple[int, int]:
        """Numbers of trained parameters and of all."""
        parameters = list(self._settings.model.parameters())
        return sum(p.numel() for p in parameters if p.requires_grad), sum(p.numel() for p in parameters)

    def _refuse_taken(self, of_strategy: Iterable[str]) -> None:
        taken = sorted(self._settings.metrics.keys() & set(of_strategy))
        if taken:
            raise ValueError(f"metrics: the method records {taken[0]!r}. Choose another name.")
