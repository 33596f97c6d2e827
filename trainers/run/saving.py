"""How a run is saved and goes on later, and how its best weights are kept."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from typing import cast

from torch.optim import Optimizer

from trainers.checkpoints.callables import code_of, named, settings_of
from trainers.checkpoints.checkpoint import Checkpoint, Found
from trainers.checkpoints.contents import (
    Best,
    Facts,
    Saved,
    checked,
    described,
    fill_buffers,
    fill_model,
    fill_optimizer,
    form_of,
    optimizer_state,
    refuse_others,
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
    """What a checkpoint must have been written with to be gone on from; ``optimizer`` as the user made it."""
    return {
        **settings.identity(),
        "method": settings_of(method),
        # Methods keep state by place in the node: others could take it up, and would go apart.
        "nodes": repr(communicator.nodes),
        **described(optimizer),
    }


def facts_of(settings: Settings, checkpoint: Checkpoint) -> Facts:
    """What rank 0 sees of the user's functions and data. Collective."""
    with checkpoint.by_all("say of which run it is to"):
        text = _described_facts(settings) if checkpoint.rank == 0 else ""
    names, code, samples = json.loads(checkpoint.text_of_first(text))
    return Facts(identity=names, code=code, samples=samples, warns=checkpoint.rank == 0)


def _described_facts(settings: Settings) -> str:
    functions: dict[str, object] = {"loss": settings.loss, "step": settings.step}
    functions |= {"collate": settings.data.collate}
    functions |= {f"metric {name}": metric for name, metric in settings.metrics.items()}
    validation = settings.validation_set
    identity = {
        **{name: named(function) for name, function in functions.items()},
        "metrics": ", ".join(settings.metrics) or "none",
        "early_stopping": settings_of(settings.early_stopping),
        "samples of validation_set": "none"
        if validation is None
        else str(stream_of(validation) or length_of(validation)),
    }
    codes = {name: code_of(function) for name, function in functions.items()}
    code = {name: text for name, text in codes.items() if text is not None}
    return json.dumps([identity, code, _samples(settings)])


def _samples(settings: Settings) -> dict[str, Samples]:
    """Summaries of both data sets, but for a training set of which each rank may have another."""
    found: dict[str, Samples] = {}
    processes, collate = settings.data.loader_processes, settings.data.collate
    if settings.deals_all_alike:
        found["train_set"] = probed(settings.train_set, processes=processes, collate=collate, epoch=0).samples
    if settings.validation_set is not None:
        found["validation_set"] = probed(
            settings.validation_set, processes=processes, collate=collate, epoch=None
        ).samples
    return found


class SavedState:
    """What of one run is kept: on the disk, if it has a checkpoint directory, and the best weights in memory."""

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
        directory = settings.checkpointing.checkpoint
        self.checkpoint = Checkpoint(directory, communicator) if directory is not None else None
        self._facts = Facts(identity={}, code={}, samples={})
        if self.checkpoint is not None:
            self._facts = facts_of(settings, self.checkpoint)
            self._identity = {**identity, **self._facts.identity}

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
            "optimizer": optimizer_state(self._optimizer),
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
                "samples": self._facts.samples,
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
        found = self.checkpoint.load() if self.checkpoint is not None else None
        if self.checkpoint is None or found is None:
            return
        try:
            self._go_on(self.checkpoint, found)
        except OtherRanksError as error:
            if self._settings.checkpointing.on_other_ranks == "refuse":
                raise
            if self._communicator.rank == 0:
                warnings.warn(f"{error} It starts anew now.", stacklevel=2)

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
            may_differ = (*others.may_differ, *longer)
            saved = checked(content, identity=settings, form=self._form, where=where, but=may_differ)
            refuse_others(saved, self._facts, where=where)
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
        if longer and position.reason == "finished":
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

    def _strategy_state(self, state: State) -> State:
        return cast(State, renamed(dict(state), plain_name))

    def _by_the_model_s_names(self, state: State) -> State:
        return cast(State, renamed(state, lambda name: self._names.get(name, name)))
