"""How long a run is, and where in it it is."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from trainers.run.result import Metrics


@dataclass(frozen=True, kw_only=True)
class Length:
    """Of a run, in optimizer steps."""

    steps_per_epoch: int
    steps: int
    """Of the run; its last epoch may be cut short."""
    evaluate_every: int

    @property
    def epochs(self) -> float:
        return self.steps / self.steps_per_epoch

    @property
    def evaluations(self) -> int:
        return -(-self.steps // self.evaluate_every)

    def ends_epoch(self, steps: int) -> bool:
        """Whether an epoch is over after ``steps`` steps; the last one is where the run is."""
        return steps % self.steps_per_epoch == 0 or steps == self.steps

    def evaluates(self, steps: int) -> bool:
        """Whether there is an evaluation after ``steps`` steps."""
        return steps % self.evaluate_every == 0 or steps == self.steps


@dataclass(kw_only=True)
class Position:
    """Where the run is, apart from what model, optimizer and strategy hold."""

    steps: int = 0
    """Optimizer steps taken."""
    loss_sums: Tensor
    """Two sums over steps of the losses, on this rank: since the epoch began, and since the last evaluation."""
    history: list[Metrics] = field(default_factory=list)
    """An entry for each evaluation."""
    reason: str = ""
    """Empty until the run is over."""
    train_s: float = 0.0
    evaluation_s: float = 0.0
    recent_samples: int = 0
    """Trained with by this rank since the last evaluation, or since a resumed run went on; not in checkpoints."""
    recent_s: float = 0.0
    """Seconds of these training steps."""

    @property
    def evaluated_at(self) -> int:
        """Steps that had been taken at the last evaluation."""
        return int(self.history[-1]["steps"]) if self.history else 0


def same_place(done: int, *, samples: int, was: int, now: int) -> int:
    """In an epoch of ``now`` steps, the one that holds the sample which came next after ``done`` of ``was`` steps,
    where both deal the same order of ``samples`` evenly: fewer than a step's samples come twice, none is left out.
    """
    taken = done * samples // was
    return ((taken + 1) * now - 1) // samples
