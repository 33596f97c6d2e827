"""What a run records of itself beside losses and metrics: bytes, seconds, and what of the model is trained."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from trainers.communication.communicator import Communicator
from trainers.methods.strategy import Strategy
from trainers.optim.early_stopping import EarlyStopping, recorded
from trainers.optim.schedules import ReduceOnPlateau
from trainers.run.position import Position
from trainers.run.result import Metrics
from trainers.run.settings import OF_LAYERS, TOTALS, Settings


class Recorder:
    """Of one run on one rank. It is made before the method changes the model.

    Raises:
        ValueError, by its methods: a metric of the user has the name of one of the method.
    """

    def __init__(self, settings: Settings, communicator: Communicator) -> None:
        self._settings = settings
        self._communicator = communicator
        parameters = list(settings.model.parameters())
        self._full_parameters = sum(p.numel() for p in parameters)
        self._full_trainable = sum(p.numel() for p in parameters if p.requires_grad)
        if settings.device.type == "cuda":
            # The process may have trained something else before.
            torch.cuda.reset_peak_memory_stats(settings.device)

    def check_names(self, strategy: Strategy) -> None:
        """ValueError if a metric's name is taken, or one is asked for that will not be recorded."""
        settings = self._settings
        of_strategy = strategy.metrics().keys()
        self._refuse_taken(of_strategy)
        names = ["epoch", "steps", "lr", "train_loss"]
        if settings.validation_set is not None:
            names += ["validation_loss", *settings.metrics]
        names += [*TOTALS, "trainable_fraction", "compression_ratio", "decomposition_s"]
        names += ["samples_per_s"]
        names += ["peak_memory_bytes"] if settings.device.type == "cuda" else []
        names += ["mfu"] if settings.peak_flops is not None else []
        known = dict.fromkeys([*names, *of_strategy], 0.0)
        for asking in (settings.early_stopping, settings.schedule):
            # A layer's are recorded from the step on at which a method changes it.
            if isinstance(asking, (EarlyStopping, ReduceOnPlateau)) and not asking.metric.startswith(
                OF_LAYERS
            ):
                recorded(known, asking.metric, type(asking).__name__)
        if (check := getattr(settings.report, "check_metrics", None)) is not None:
            check(tuple(known))

    def totals(self, position: Position, strategy: Strategy) -> Metrics:
        """Over the run so far: bytes of all ranks together, seconds as their mean; what is trained now. Collective: one
        all-reduce.
        """
        size = self._communicator.size
        mine = {
            **self._communicator.traffic(),
            "train_s": position.train_s / size,
            "evaluation_s": position.evaluation_s / size,
        }
        summed = self.summed(torch.tensor(list(mine.values()), dtype=torch.float64, device="cpu"))
        parameters = list(self._settings.model.parameters())
        of_strategy = strategy.metrics()
        self._refuse_taken(of_strategy)
        return {
            **dict(zip(mine, summed.tolist(), strict=True)),
            "trainable_fraction": sum(p.numel() for p in parameters if p.requires_grad)
            / self._full_trainable,
            "compression_ratio": self._full_parameters / sum(p.numel() for p in parameters),
            "decomposition_s": 0.0,
            **of_strategy,
        }

    def throughput(self, position: Position) -> Metrics:
        """Of the training steps since the last evaluation: samples of all ranks per second; the largest GPU memory
        of a rank so far; and, where the costs are known, the model FLOPs utilisation (Chowdhery et al.
        2022, appendix B). Collective: one all-gather.
        """
        settings, device = self._settings, self._settings.device
        memory = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
        mine = torch.tensor(
            [position.recent_samples, position.recent_s, memory], dtype=torch.float64, device="cpu"
        )
        of_ranks = torch.stack(self._communicator.service.all_gather(mine))
        samples, seconds = of_ranks[:, 0].sum().item(), of_ranks[:, 1].mean().item()
        found = {"samples_per_s": samples / max(seconds, 1e-9)}
        if device.type == "cuda":
            found["peak_memory_bytes"] = of_ranks[:, 2].max().item()
        if settings.flops_per_sample is not None and settings.peak_flops is not None:
            flops_per_s = found["samples_per_s"] * settings.flops_per_sample
            found["mfu"] = flops_per_s / (self._communicator.size * settings.peak_flops)
        return found

    def summed(self, values: Tensor) -> Tensor:
        """Over the ranks, in the host's memory. Collective: one all-reduce."""
        return self._communicator.service.all_reduce(values.to("cpu", copy=True)).wait()

    def _refuse_taken(self, of_strategy: Iterable[str]) -> None:
        taken = sorted(self._settings.metrics.keys() & set(of_strategy))
        if taken:
            raise ValueError(f"metrics: the method records {taken[0]!r}. Choose another name.")
