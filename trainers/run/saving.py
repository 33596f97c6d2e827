"""How a run is saved and goes on later, and how its best weights are kept."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from typing import cast

from torch.optim import Optimizer

from trainers.checkpoints.callables import code_of, named, settings_of
from trainers.checkpoints.checkpoint import Checkpoint, Found
from trainers.checkpoints.contents import (
    Best,
    Facts,
    Saved,
    checked,
    compare_code,
    described,
    fill_buffers,
    fill_model,
    fill_optimizer,
    form_of,
    refuse_other_data,
)
from trainers.checkpoints.host_copy import HostCopy
from trainers.communication.communicator import Communicator
from trainers.data.batches import length_of
from trainers.data.probing import Samples, probed
from trainers.data.streams import stream_of
from trainers.methods.strategy import Method, State, Strategy
from trainers.names import plain, plain_name, renamed
from trainers.optim.moving_average import MovingAverage
from trainers.run.longer import may_be_longer
from trainers.run.other_ranks import OtherRanks, OtherRanksError
from trainers.run.position import Length, Position
from trainers.run.settings import Settings
from trainers.run.thawing import Thawing


def identity_of(
    settings: Settings, communicator: Communicator, optimizer: Optimizer, method: Method
) -> dict[str, str]:
    """Settings that a checkpoint must have been written with; ``optimizer`` as the user made it."""
    validation = settings.validation_set
    return {
        **settings.identity(),
        "metrics": ", ".join(sorted(settings.metrics)) or "none",
        "samples of validation_set": "none"
        if validation is None
        else str(stream_of(validation) or length_of(validation)),
        "method": settings_of(method),
        # Methods keep state by place in the node: others could take it up, and would go apart.
        "nodes": repr(communicator.nodes),
        **described(optimizer),
    }


def facts_of(settings: Settings, checkpoint: Checkpoint) -> Facts:
    """The user's functions as rank 0 sees them. Collective."""
    functions: dict[str, object] = {"loss": settings.loss, "step": settings.step}
    functions |= {"collate": settings.collate}
    functions |= {f"metric {name}": metric for name, metric in settings.metrics.items()}
    text = ""
    with checkpoint.by_all("name the user's functions in"):
        if checkpoint.rank == 0:
            codes = {name: code_of(function) for name, function in functions.items()}
            code = {name: text for name, text in codes.items() if text is not None}
            text = json.dumps([{name: named(function) for name, function in functions.items()}, code])
    names, code = json.loads(checkpoint.text_of_first(text))
    return Facts(functions=names, code=code, warns=checkpoint.rank == 0)


def samples_of(settings: Settings, checkpoint: Checkpoint) -> dict[str, Samples]:
    """Rank 0's summaries of both data sets, but for a training set of which each rank may have another. Collective."""
    found: dict[str, Samples] = {}
    processes, collate = settings.loader_processes, settings.collate
    with checkpoint.by_all("compare its data with"):
        for name, samples, epoch in (
            ("train_set", settings.train_set if settings.deals_all_alike else None, 0),
            ("validation_set", settings.validation_set, None),
        ):
            if checkpoint.rank == 0 and samples is not None:
                found[name] = probed(samples, processes=processes, collate=collate, epoch=epoch).samples
    answer: dict[str, Samples] = json.loads(checkpoint.text_of_first(json.dumps(found)))
    return answer


class SavedState:
    """State of a run that is kept: on the disk, if it has a checkpoint directory, and the best weights in memory."""

    def __init__(
        self,
        settings: Settings,
        communicator: Communicator,
        optimizer: Optimizer,
        strategy: Strategy,
        position: Position,
        length: Length,
        average: MovingAverage | None,
        identity: Mapping[str, str],
        thawing: Thawing,
    ) -> None:
        self._settings = settings
        self._model = settings.model
        self._communicator = communicator
        self._optimizer = optimizer
        self._strategy = strategy
        self._position = position
        self._length = length
        self._average = average
        self._thawing = thawing
        self.best: Best | None = None
        self._best_memory = HostCopy()
        self._identity = identity
        # A model that a run before left in factors is whole now.
        self._form = form_of(self._model)
        self._names = {plain_name(name): name for name, _ in self._model.named_parameters()}
        """The model's names, which strategies know weights by, of those in checkpoints."""
        directory = settings.checkpoint
        self.checkpoint = Checkpoint(directory, communicator) if directory is not None else None
        self._facts = Facts(functions={}, code={})
        self._samples: dict[str, Samples] | None = None
        if self.checkpoint is not None:
            self._facts = facts_of(settings, self.checkpoint)
            self._identity = {**identity, **self._facts.functions}

    def close(self) -> None:
        if self.checkpoint is not None:
            self.checkpoint.close()

    def keep_best(self) -> None:
        """Keep the model as it is now, and what the strategy needs to give it these shapes."""
        # Not beside what is trained: a GPU has no room to spare for what only the end may need.
        self.best = self._best_memory.of(
            {
                "model": plain(self._model.state_dict()),
                "strategy": self._strategy_state(self._strategy.shapes()),
            }
        )

    def restore_best(self) -> None:
        """Give the model what was kept, if there is something."""
        if self.best is not None:
            self._strategy.load_shapes(self._by_the_model_s_names(self.best["strategy"]))
            fill_model(self._model, self.best["model"], where=str(self.checkpoint))

    def save(self, *, wait: bool = False) -> None:
        """Write the checkpoint, if there is a directory for it; with ``wait``, return when it is on the disk."""
        if self.checkpoint is None:
            return
        position = self._position
        model_and_optimizer = {
            "model": plain(self._model.state_dict()),
            "optimizer": self._optimizer.state_dict(),
            **({} if self._average is None else {"ema": self._average.parameters}),
        }
        strategy, mine = self._strategy, self._communicator.rank
        first = mine if strategy.replica is None else min(strategy.replica)
        shares = not strategy.replicated and strategy.replica is not None and len(strategy.replica) > 1
        replica: dict[str, object] | None = None
        if shares and first == mine:
            replica = {**model_and_optimizer, "strategy": self._strategy_state(strategy.state())}
        self.checkpoint.save(
            position.steps,
            shared={
                "identity": self._identity,
                "form": self._form,
                "changed": self._thawing.state(),
                "code": self._facts.code,
                "samples": self._samples or {},
                "epoch": position.steps // self._length.steps_per_epoch,
                "step": position.steps % self._length.steps_per_epoch,
                "history": position.history,
                "reason": position.reason,
                "best": self.best,
                **(model_and_optimizer if strategy.replicated else {}),
            },
            own={
                # Running means are each rank's own until the epoch's end, whatever the method.
                "buffers": plain(dict(self._model.named_buffers())),
                **({} if self._average is None else {"ema_buffers": self._average.buffers}),
                "strategy": self._strategy_state(strategy.own_state() if shares else strategy.state()),
                "loss_sum": position.loss_sums,
                "train_s": position.train_s,
                "evaluation_s": position.evaluation_s,
                "counters": self._communicator.counters(),
                **({"replica": first} if shares else {} if strategy.replicated else model_and_optimizer),
            },
            replica=replica,
            wait=wait,
        )

    def take_up(self) -> None:
        """Go on from the checkpoint, if there is one. ValueError if it is of a run with other settings, or of other
        ranks, where the method cannot go on on these and the run is not to restart then.
        """
        if self.checkpoint is None:
            return
        found = self.checkpoint.load()
        try:
            if found is not None:
                self._go_on(self.checkpoint, found)
        except OtherRanksError as error:
            if self._settings.on_other_ranks == "refuse":
                raise
            if self._communicator.rank == 0:
                warnings.warn(f"{error} It starts anew now.", stacklevel=2)
        if self._samples is None:
            self._samples = samples_of(self._settings, self.checkpoint)

    def _go_on(self, checkpoint: Checkpoint, found: Found) -> None:
        rank, where = self._communicator.rank, str(checkpoint)
        others = OtherRanks(
            found=found,
            where=where,
            settings=self._settings,
            communicator=self._communicator,
            length=self._length,
        )
        with checkpoint.by_all("go on from its part of"):
            if not others.same:
                others.refuse_unless_alike(self._strategy)
        with checkpoint.by_all("read its rank-N.pt of"):
            owns = [found.own(n) for n in ([rank] if others.same else range(found.ranks))]
        with checkpoint.by_all("go on from its part of"):
            content, settings = {**found.shared, **owns[0]}, self._identity
            longer = self._may_be_longer(content, where) if others.same else ()
            over = self._is_over(content, longer)
            saved = checked(
                content,
                identity=settings,
                form=self._form,
                where=where,
                but=(*others.may_differ, *longer),
                but_numbers=() if over else self._facts.functions,
            )
            compare_code(saved, self._facts, where=where, over=over)
        # Only now, as reading may take long.
        self._samples = samples_of(self._settings, checkpoint)
        with checkpoint.by_all("go on from its part of"):
            refuse_other_data(saved, self._samples, where=where)
            if not others.same:
                saved = others.go_on(saved, self._strategy, owns)
            self._thawing.load(saved.get("changed", {}))
            # First the strategy: it may have to give the model other shapes.
            self._strategy.load(self._by_the_model_s_names(saved["strategy"]))
            fill_model(self._model, saved["model"], where=where)
            fill_optimizer(
                self._optimizer,
                saved["optimizer"],
                model=plain(self._model.state_dict()),
                saved_model=saved["model"],
                where=where,
            )
            fill_buffers(self._model, saved["buffers"], where=where)
            if self._average is not None:
                self._average.load({**saved.get("ema", {}), **saved.get("ema_buffers", {})})
        self._communicator.set_counters(saved["counters"])
        self.best = saved["best"]
        position = self._position
        position.steps = saved["epoch"] * self._length.steps_per_epoch + saved["step"]
        if others.same:
            checkpoint.is_saved(position.steps)
        position.reason, position.history = saved["reason"], saved["history"]
        if not over:
            position.reason = ""
        for entry in position.history:  # of earlier versions, in which evaluations were at the ends of epochs
            entry.setdefault("steps", entry["epoch"] * self._length.steps_per_epoch)
        position.loss_sums.copy_(saved["loss_sum"])
        position.train_s, position.evaluation_s = saved["train_s"], saved["evaluation_s"]

    def _may_be_longer(self, content: Mapping[str, object], where: str) -> tuple[str, ...]:
        if Saved.__required_keys__ - content.keys():  # ``checked`` says so
            return ()
        return may_be_longer(
            cast(Saved, content),
            self._settings,
            self._length,
            optimizer=self._optimizer,
            strategy=self._strategy,
            where=where,
        )

    def _is_over(self, content: Mapping[str, object], longer: Sequence[str]) -> bool:
        """Whether the saved run has ended, and is not to go on for more epochs or with more patience."""
        reason, stopping = content.get("reason", ""), self._settings.early_stopping
        if reason == "finished":
            return not longer
        if reason == "stopped early" and not self._strategy.plans_ahead and self._average is None:
            history = cast("list[dict[str, float]]", content.get("history", []))
            return stopping is not None and stopping.should_stop(history)
        return bool(reason)

    def _strategy_state(self, state: State) -> State:
        return cast(State, renamed(dict(state), plain_name))

    def _by_the_model_s_names(self, state: State) -> State:
        return cast(State, renamed(state, lambda name: self._names.get(name, name)))
