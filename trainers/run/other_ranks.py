"""A run goes on on other ranks than those that saved it: another number of them, or placed on other nodes.

What all of them had alike, model and optimizer, each new rank takes up. What each had for itself becomes a mean, as
running statistics do at an epoch's end. Random numbers are drawn for each step and rank anew: nothing of them is kept.
The place in the run is one in its samples.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, cast

import torch
from torch import Tensor

from trainers.checkpoints.checkpoint import Found
from trainers.checkpoints.contents import Saved
from trainers.communication.communicator import Communicator
from trainers.data.batches import Disjoint, length_of
from trainers.methods.strategy import Strategy
from trainers.run.position import Length, same_place
from trainers.run.settings import Settings
from trainers.running_statistics import running_statistics

_OF_OTHERS = ("nodes", "batch_size", "accumulate")


class OtherRanksError(ValueError):
    """These ranks cannot go on from what others saved. Raised on all of them alike, before anything is filled."""


@dataclass(frozen=True, kw_only=True)
class OtherRanks:
    """The ranks that saved the checkpoint ``found``, compared with those that load it from ``where``."""

    found: Found
    where: str
    settings: Settings
    communicator: Communicator
    length: Length

    @property
    def same(self) -> bool:
        """Whether as many ranks, on the same nodes, saved it."""
        return not self._other_number and self._saved_settings.get("nodes", self._nodes) == self._nodes

    @property
    def may_differ(self) -> tuple[str, ...]:
        """The settings that do not have to be theirs."""
        return _OF_OTHERS if self._other_number else _OF_OTHERS[:1]

    def refuse_unless_alike(self, strategy: Strategy) -> None:
        """OtherRanksError unless all of them had the same model and optimizer, and all of these ranks can."""
        if "model" not in self.found.shared or not strategy.replicated:
            self._refuse("with its method each rank, or node, has a model or an optimizer state of its own")

    def go_on(self, saved: Saved, strategy: Strategy, owns: Sequence[Mapping[str, Any]]) -> Saved:
        """``saved`` of one of them, with what all of them kept for themselves, ``owns``, in order of rank, as this rank
        goes on with it at the same sample. OtherRanksError if ``strategy`` cannot, or there is no such place.
        """
        was, now = self._steps_per_epoch(), self.length.steps_per_epoch
        samples = length_of(self.settings.train_set)
        if was != now and self.settings.steps is not None:
            self._refuse(
                f"steps = {self.settings.steps} counts steps, which had another number of samples",
                self._equal_steps(),
            )
        step, deals_anew = saved["step"], self._other_number
        if step and deals_anew and not isinstance(self.settings.dealing, Disjoint):
            self._refuse(
                "within an epoch other ranks would be dealt other samples than those that are left, unless the "
                "assignment is trainers.Disjoint() and the data set does not stream"
            )
        place = same_place(step, samples=samples, was=was, now=now)
        steps, before = saved["epoch"] * now + place, saved["epoch"] * was + step
        states = [own["strategy"] for own in owns]
        state = strategy.state_on_other_ranks(states, step=steps, same_steps=was == now)
        if state is None:
            if was == now:
                self._refuse("its method cannot go on on others")
            self._refuse("its method counts steps, which had another number of samples", self._equal_steps())
        history = [dict(entry) for entry in saved["history"]]
        evaluated_at = int(history[-1].get("steps", history[-1]["epoch"] * was)) if history else 0
        for entry in history:
            entry["steps"] = float(int(entry["epoch"] * now + 1e-9))
        evaluated_at_now = int(history[-1]["steps"]) if history else 0
        merged = self._merged(owns)
        sums = merged["loss_sum"]
        # Of as many steps as they will be divided by.
        sums[0] *= place / step if step else 1.0
        sums[1] *= (steps - evaluated_at_now) / max(1, before - evaluated_at)
        return cast(Saved, {**saved, **merged, "step": place, "history": history, "strategy": state})

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

    def _saved_count(self, name: str) -> int:
        if name not in self._saved_settings:
            self._refuse(f"it does not say its {name}")
        return int(self._saved_settings[name])

    def _equal_steps(self) -> str:
        samples = self.found.ranks * self._saved_count("batch_size") * self._saved_count("accumulate")
        return (
            f"choose batch_size and accumulate such that a step has {samples} samples on all ranks together"
        )

    def _steps_per_epoch(self) -> int:
        """Of the run that was saved."""
        settings = self.settings
        with torch.device("cpu"):
            planned = settings.dealing.epoch(
                samples=length_of(settings.train_set),
                epoch=0,
                seed=settings.seed,
                rank=0,
                ranks=self.found.ranks,
                batch_size=self._saved_count("batch_size"),
                accumulate=self._saved_count("accumulate"),
            )
        return len(planned)

    def _merged(self, owns: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """What this rank goes on with, of what each of them kept for itself."""
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
        """Totals of bytes stay what they are, the first rank's; so do means of seconds."""
        first = self.communicator.rank == 0
        found = {}
        for channel in ("world", "service"):
            counted = [
                values
                for counters in of_ranks
                for name, values in counters.items()
                if (name == "service") == (channel == "service")
            ]
            if not counted:
                continue
            totals = {key: sum(values[key] for values in counted) for key in counted[0]}
            found[channel] = {
                key: total / len(of_ranks) if key == "wait_s" else total if first else 0.0
                for key, total in totals.items()
            }
        return found

    def _refuse(self, why: str, remedy: str = "") -> NoReturn:
        if self._other_number:
            ranks = self.found.ranks
            said = f"was written by {ranks} ranks and is read by {self.communicator.size}"
            use = f"Use {ranks} ranks"
        else:
            said = f"was saved with other settings: nodes was {self._saved_settings.get('nodes')}, is {self._nodes}"
            use = "Place the ranks on nodes as they were"
        raise OtherRanksError(
            f"The checkpoint in {self.where} {said}, and {why}. {', '.join(filter(None, (use, remedy)))}, or start "
            'anew: by on_other_ranks="restart", or in another checkpoint directory.'
        )


def _means(of_ranks: Sequence[Mapping[str, Tensor]], *, of: Collection[str]) -> dict[str, Tensor]:
    """The mean over the ranks of the tensors with these names; others are the first rank's."""
    return {
        name: torch.stack([tensors[name].double() for tensors in of_ranks]).mean(0).to(first.dtype)
        if name in of
        else first
        for name, first in of_ranks[0].items()
    }
