"""Resuming of a run on other ranks than those that saved it: another number of ranks, or ranks on other nodes.

Each new rank takes up what all of the ranks that saved had alike, model and optimizer. What each of them had for itself
becomes a mean, as running statistics do at an epoch's end. No random numbers are kept, as they are drawn for each step
and rank. The run goes on at the same place in its samples.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

from trainers.checkpoints.contents import Saved
from trainers.checkpoints.files import CheckpointFiles
from trainers.communication.communicator import Communicator
from trainers.data.batches import Disjoint, length_of
from trainers.methods.strategy import DataRanks, Strategy
from trainers.names import running_statistics
from trainers.run.position import Length
from trainers.run.settings import TrainSettings


class OtherRanksError(ValueError):
    """These ranks cannot resume what others saved; raised on all of them alike, before anything is filled."""


@dataclass(frozen=True, kw_only=True)
class OtherRanks:
    """The ranks that saved the checkpoint ``found``, compared with those that load it from ``where``."""

    found: CheckpointFiles
    where: str
    settings: TrainSettings
    communicator: Communicator
    length: Length
    data: DataRanks

    @property
    def same(self) -> bool:
        """Whether as many ranks, on the same nodes, saved it."""
        return not self._other_number and self._saved_settings.get("nodes", self._nodes) == self._nodes

    def refuse_unless_alike(self, strategy: Strategy) -> None:
        """OtherRanksError unless all ranks that saved had the same model and optimizer, and these have, too."""
        alike = strategy.replicated or (strategy.sharded and strategy.replica is None)
        if "model" not in self.found.shared or not alike:
            self._refuse("with its method each rank, or node, has a model or an optimizer state of its own")

    def go_on(self, saved: Saved, strategy: Strategy, owns: Sequence[Mapping[str, Any]]) -> Saved:
        """``saved``, as this rank continues with it and the ``owns`` of all saving ranks at the same sample.

        OtherRanksError where it cannot.
        """
        was, now = self._steps_per_epoch(), self.length.steps_per_epoch
        if was != now and self.settings.steps is not None:
            steps_given = f"steps = {self.settings.steps} counts steps"
            self._refuse(f"{steps_given}, which had another number of samples", self._equal_steps())
        step = saved["step"]
        if step and self._other_number and not isinstance(self.settings.dealing, Disjoint):
            self._refuse(
                "within an epoch other ranks would be dealt other samples than those that are left, unless the "
                "assignment is trainers.Disjoint() and the data set does not stream"
            )
        place = same_place(step, samples=length_of(self.settings.train_set), was=was, now=now)
        steps, before = saved["epoch"] * now + place, saved["epoch"] * was + step
        states = [own["strategy"] for own in owns]
        state = strategy.state_on_other_ranks(states, step=steps, same_steps=was == now)
        if state is None:
            if was == now:
                self._refuse("its method cannot go on on others")
            self._refuse("its method counts steps, which had another number of samples", self._equal_steps())
        history = [dict(entry) for entry in saved["history"]]
        evaluated_at = int(history[-1]["steps"]) if history else 0
        for entry in history:
            entry["steps"] = float(int(entry["epoch"] * now + 1e-9))
        evaluated_at_now = int(history[-1]["steps"]) if history else 0
        merged = self._merged(owns)
        # Sums of as many steps as they will be divided by.
        merged["loss_sum"][0] *= place / step if step else 1.0
        merged["loss_sum"][1] *= (steps - evaluated_at_now) / max(1, before - evaluated_at)
        return {**saved, **merged, "step": place, "history": history, "strategy": state}

    @property
    def _nodes(self) -> str:
        return repr(self.communicator.nodes)

    @property
    def _other_number(self) -> bool:
        return self.found.ranks != self.communicator.size

    @property
    def _saved_settings(self) -> Mapping[str, str]:
        identity = self.found.shared.get("identity")
        return identity if isinstance(identity, dict) else {}

    @property
    def _saved_ranks(self) -> int:
        """Ranks that saved it and had different samples: tensor groups are of as many ranks, or the method differs."""
        return self.found.ranks * self.data.ranks // self.communicator.size

    def _equal_steps(self) -> str:
        saved = self._saved_settings
        samples = self._saved_ranks * int(saved["batch_size"]) * int(saved["accumulate"])
        return (
            f"choose batch_size and accumulate such that a step has {samples} samples on all ranks together"
        )

    def _steps_per_epoch(self) -> int:
        """Steps of an epoch of the run that was saved."""
        sizes = {name: int(self._saved_settings[name]) for name in ("batch_size", "accumulate")}
        return len(self.settings.planned(epoch=0, rank=0, ranks=self._saved_ranks, **sizes))

    def _merged(self, owns: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """This rank's part of what each saving rank kept for itself."""
        statistics = running_statistics(self.settings.model).keys()
        return {
            "buffers": _means([own["buffers"] for own in owns], of=statistics),
            "ema_buffers": _means([own.get("ema_buffers", {}) for own in owns], of=statistics),
            "loss_sum": torch.stack([own["loss_sum"] for own in owns]).mean(0),
            "train_s": sum(own["train_s"] for own in owns) / len(owns),
            "evaluation_s": sum(own["evaluation_s"] for own in owns) / len(owns),
            "counters": self._counters([own["counters"] for own in owns]),
        }

    def _counters(self, of_ranks: Sequence[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
        """Counters with the same totals of bytes, all on the first rank, and the same means of seconds."""
        found = {}
        for channel in ("world", "service"):
            counted = [
                values
                for counters in of_ranks
                for name, values in counters.items()
                if (name == "service") == (channel == "service")
            ]
            if counted:
                totals = {key: sum(values[key] for values in counted) for key in counted[0]}
                share = 1.0 if self.communicator.rank == 0 else 0.0
                found[channel] = {key: total * share for key, total in totals.items()}
                found[channel]["wait_s"] = totals["wait_s"] / len(of_ranks)
        return found

    def _refuse(self, why: str, remedy: str = "") -> NoReturn:
        if self._other_number:
            ranks = self.found.ranks
            found = f"was written by {ranks} ranks and is read by {self.communicator.size}"
            use = f"Use {ranks} ranks"
        else:
            saved_nodes = self._saved_settings.get("nodes")
            found = f"was saved with other settings: nodes was {saved_nodes}, is {self._nodes}"
            use = "Place the ranks on nodes as they were"
        raise OtherRanksError(
            f"The checkpoint in {self.where} {found}, and {why}. {', '.join(filter(None, (use, remedy)))}, or start "
            'from the beginning: by on_other_ranks="restart", or in another checkpoint directory.'
        )


def same_place(done: int, *, samples: int, was: int, now: int) -> int:
    """The step, in an epoch of ``now`` steps, with the sample that came next after ``done`` of ``was`` steps.

    Both deal the same order of ``samples`` evenly: fewer than a step's samples come twice, none is left out.
    """
    taken = done * samples // was
    return ((taken + 1) * now - 1) // samples


def _means(of_ranks: Sequence[Mapping[str, Tensor]], *, of: Collection[str]) -> dict[str, Tensor]:
    """The mean over the ranks of the tensors with these names; others are the first rank's."""
    return {
        name: torch.stack([tensors[name].double() for tensors in of_ranks]).mean(0).to(first.dtype)
        if name in of
        else first
        for name, first in of_ranks[0].items()
    }
