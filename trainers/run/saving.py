"""Saving and resuming of a run, also for more epochs or steps, and its best weights."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch.optim import Optimizer

from trainers.checkpoints.callables import code_of, named, settings_of
from trainers.checkpoints.checkpoint import Checkpoint
from trainers.checkpoints.contents import (
    REMEDY,
    REQUIRED,
    FunctionFacts,
    Saved,
    check_saved,
    compare_code,
    described,
    fill_model,
    form_of,
    refuse_other_data,
)
from trainers.checkpoints.files import CheckpointFiles
from trainers.checkpoints.host_copy import HostCopy
from trainers.checkpoints.shards import Pieces, attached, joined, parted, pieces_of, split, targets_of
from trainers.communication.communicator import Communicator
from trainers.data.probing import Samples, probed
from trainers.methods.strategy import DataRanks, Method, Setup, State, Strategy
from trainers.names import plain, plain_name, renamed
from trainers.optim.moving_average import MovingAverage
from trainers.run.other_ranks import OtherRanks, OtherRanksError
from trainers.run.position import Length, Position
from trainers.run.settings import TrainSettings
from trainers.run.thawing import Thawing

_POSITIONS = 1000
"""The most steps at which learning rates of a longer run are compared."""
_OF_RANKS = ("batch_size", "accumulate")
"""Settings that may be others where another number of ranks goes on, which takes steps of as many samples."""


def identity_of(
    settings: TrainSettings, communicator: Communicator, optimizer: Optimizer, method: Method
) -> dict[str, str]:
    """Settings that a checkpoint must have been written with; ``optimizer`` as the user made it."""
    return {
        **settings.identity(),
        "method": settings_of(method),
        # Methods keep state by place in the node: another node's rank could take it up, and train apart.
        "nodes": repr(communicator.nodes),
        **described(optimizer),
    }


@dataclass(kw_only=True)
class SavedState:
    """State of a run that is kept: on the disk, if it has a checkpoint directory, and the best weights in memory."""

    settings: TrainSettings
    setup: Setup
    data: DataRanks
    strategy: Strategy
    position: Position
    length: Length
    average: MovingAverage | None
    identity: Mapping[str, str]
    thawing: Thawing
    best: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        self._model, self._communicator = self.setup.model, self.setup.communicator
        self._best_memory = HostCopy()
        # The form as the run begins: later a method may have factored weights.
        self._form = form_of(self._model)
        self._samples: dict[str, Samples] | None = None
        self._facts = FunctionFacts(functions={}, code={})
        directory = self.settings.checkpoint
        self.checkpoint = None if directory is None else Checkpoint(directory, self._communicator)
        if self.checkpoint is not None:
            self._facts = self._facts_of_first(self.checkpoint)
            self.identity = {**self.identity, **self._facts.functions}

    def close(self) -> None:
        if self.checkpoint is not None:
            self.checkpoint.close()

    def keep_best(self) -> None:
        """Keep the model as it is now, and what the strategy needs to give it these shapes."""
        # Copied to the host's memory: a GPU has no room to spare for what only the end may need.
        self.best = self._best_memory.of(
            parted(
                {
                    "model": plain(self.strategy.model_state(self._model)),
                    "strategy": _by_plain_names(self.strategy.shapes()),
                },
                self._first_with_state,
            )
        )

    def restore_best(self) -> None:
        """Give the model the best weights, if any were kept."""
        if self.best is not None:
            self.strategy.load_shapes(self.thawing.own_names(self.best["strategy"]))
            best = attached(self.best["model"], targets_of(self.setup.optimizer, self._model))
            load = self.strategy.load_model_state
            fill_model(self._model, best, where=str(self.checkpoint), load=load)

    def save(self, *, wait: bool = False) -> None:
        """Write the checkpoint, if there is a directory for it; with ``wait``, return when it is on the disk."""
        if self.checkpoint is None:
            return
        position, strategy, average = self.position, self.strategy, self.average
        epoch, step = divmod(position.steps, self.length.steps_per_epoch)
        model_and_optimizer = {
            "model": plain(strategy.model_state(self._model)),
            "optimizer": self.setup.optimizer.state_dict(),
            **({} if average is None else {"ema": average.parameters}),
        }
        shared = {
            "identity": self.identity,
            "form": self._form,
            "changed": self.thawing.state(),
            "code": self._facts.code,
            "samples": self._samples or {},
            "epoch": epoch,
            "step": step,
            "history": position.history,
            "reason": position.reason,
            "best": self.best,
        }
        own = {
            # Running means are each rank's own until the epoch's end, whatever the method.
            "buffers": plain(dict(self._model.named_buffers())),
            **({} if average is None else {"ema_buffers": average.buffers}),
            "loss_sum": position.loss_sums,
            "train_s": position.train_s,
            "evaluation_s": position.evaluation_s,
            "counters": self._communicator.counters(),
        }
        replica = None
        if strategy.sharded:
            whole = {**model_and_optimizer, "best": self.best}
            described, own["pieces"] = split(parted(whole, self._first_with_state))
            own["strategy"] = _by_plain_names(strategy.state())
            if strategy.replica is None:
                shared.update(described)
            else:  # each node has a state of its own, of which its ranks have parts
                own |= {**described, "pieces of": list(strategy.replica)}
                del shared["best"]
        elif not strategy.replicated and strategy.replica is not None and len(strategy.replica) > 1:
            # Ranks with the same model and optimizer write them once.
            own |= {"replica": min(strategy.replica), "strategy": _by_plain_names(strategy.own_state())}
            if own["replica"] == self._communicator.rank:
                replica = {**model_and_optimizer, "strategy": _by_plain_names(strategy.state())}
        else:
            own["strategy"] = _by_plain_names(strategy.state())
            (shared if strategy.replicated else own).update(model_and_optimizer)
        self.checkpoint.save(position.steps, shared=shared, own=own, replica=replica, wait=wait)

    def resume(self) -> None:
        """Continue from the checkpoint, if there is one.

        ValueError if it is of a run with other settings, or of other ranks on which the method cannot continue, and the
        run is not to restart then.
        """
        if self.checkpoint is None:
            return
        found = self.checkpoint.load()
        try:
            if found is not None:
                self._continue_from(self.checkpoint, found)
        except OtherRanksError as error:
            if self.settings.on_other_ranks == "refuse":
                raise
            if self._communicator.rank == 0:
                warnings.warn(f"{error} It starts from the beginning now.", stacklevel=2)
        if self._samples is None:
            self._samples = self._samples_of_first(self.checkpoint)

    def _continue_from(self, checkpoint: Checkpoint, found: CheckpointFiles) -> None:
        where, length, position = str(checkpoint), self.length, self.position
        others = OtherRanks(
            found=found,
            where=where,
            settings=self.settings,
            communicator=self._communicator,
            length=length,
            data=self.data,
        )
        with checkpoint.by_all("go on from its part of"):
            if not others.same:
                others.refuse_unless_alike(self.strategy)
        with checkpoint.by_all("read its rank-N.pt of"):
            ranks = [self._communicator.rank] if others.same else range(found.ranks)
            owns = [found.of_rank(rank) for rank in ranks]
        with checkpoint.by_all("go on from its part of"):
            saved: Saved = {**found.shared, **owns[0]}
            longer: tuple[str, ...] = ()
            if others.same and not set(REQUIRED) - saved.keys():  # else ``check_saved`` refuses it
                optimizer = self.setup.optimizer
                longer = _may_be_longer(saved, self.settings, length, optimizer, self.strategy, where)
            over = self._is_over(saved, longer)
            check_saved(
                saved,
                identity=self.identity,
                form=self._form,
                where=where,
                but=("nodes", *(() if found.ranks == others.communicator.size else _OF_RANKS), *longer),
                but_numbers=() if over else self._facts.functions,
            )
            compare_code(saved, self._facts, where=where, over=over)
        # Only now, as reading may take long.
        self._samples = self._samples_of_first(checkpoint)
        with checkpoint.by_all("go on from its part of"):
            refuse_other_data(saved, self._samples, where=where)
            if not others.same:
                saved = others.go_on(saved, self.strategy, owns)
            pieces = pieces_of(found, self._own_first(found.ranks), dict(zip(ranks, owns, strict=True)))
            saved = self.thawing.fill(saved, where=where, complete=lambda saved: self._joined(saved, pieces))
            if self.average is not None:
                self.average.load({**saved.get("ema", {}), **saved.get("ema_buffers", {})})
        self.best = saved["best"]
        position.steps = saved["epoch"] * length.steps_per_epoch + saved["step"]
        if others.same:
            checkpoint.is_saved(position.steps)
        position.reason = saved["reason"] if over else ""
        position.history = saved["history"]
        position.loss_sums.copy_(saved["loss_sum"])
        position.train_s, position.evaluation_s = saved["train_s"], saved["evaluation_s"]

    @property
    def _first_with_state(self) -> int:
        """torch's number of the first rank with a part of the same state as this rank's."""
        return self._communicator.members[min(self.strategy.replica or (0,))]

    def _own_first(self, ranks: int) -> list[int]:
        """Ranks that saved, this rank's number first: with as many ranks as then, its file has all that it needs."""
        return sorted(range(ranks), key=lambda rank: (rank != self._communicator.rank, rank))

    def _joined(self, saved: Saved, sources: Iterable[Pieces]) -> Saved:
        """``saved`` with this rank's parts of sharded tensors, from those of all ranks if need be."""
        if not (self.strategy.sharded or "pieces" in saved):
            return saved
        targets = targets_of(self.setup.optimizer, self._model)
        whole = {name: saved[name] for name in ("model", "optimizer", "ema", "best") if name in saved}
        whole = joined(whole, sources, targets)
        best = {"best": whole.pop("best")}
        return {**saved, **best, **attached(whole, targets)}

    def _is_over(self, saved: Saved, longer: Sequence[str]) -> bool:
        """Whether the saved run has ended, and is not to go on for more epochs or with more patience."""
        reason, stopping = saved.get("reason", ""), self.settings.early_stopping
        if reason == "finished":
            return not longer
        if reason == "stopped early" and not self.strategy.plans_ahead and self.average is None:
            return stopping is not None and stopping.should_stop(saved.get("history", []))
        return bool(reason)

    def _facts_of_first(self, checkpoint: Checkpoint) -> FunctionFacts:
        """The user's functions as rank 0 sees them. Collective."""
        settings, text = self.settings, ""
        functions: dict[str, object] = {name: getattr(settings, name) for name in ("loss", "step", "collate")}
        functions |= {f"metric {name}": metric for name, metric in settings.metrics.items()}
        with checkpoint.by_all("name the user's functions in"):
            if self._communicator.rank == 0:
                codes = {name: code_of(function) for name, function in functions.items()}
                code = {name: digest for name, digest in codes.items() if digest is not None}
                text = json.dumps([{name: named(function) for name, function in functions.items()}, code])
        names, code = json.loads(checkpoint.text_of_first(text))
        return FunctionFacts(functions=names, code=code, warns=self._communicator.rank == 0)

    def _samples_of_first(self, checkpoint: Checkpoint) -> dict[str, Samples]:
        """Rank 0's summaries of the data sets, except a training set that may differ between ranks. Collective."""
        settings = self.settings
        found: dict[str, Samples] = {}
        with checkpoint.by_all("compare its data with"):
            for name, samples, epoch in (
                ("train_set", settings.train_set if settings.deals_all_alike else None, 0),
                ("validation_set", settings.validation_set, None),
            ):
                if self._communicator.rank == 0 and samples is not None:
                    found[name] = probed(
                        samples, processes=settings.loader_processes, collate=settings.collate, epoch=epoch
                    ).samples
        answer: dict[str, Samples] = json.loads(checkpoint.text_of_first(json.dumps(found)))
        return answer


def _by_plain_names(state: State) -> State:
    return cast(State, renamed(dict(state), plain_name))


def _may_be_longer(
    saved: Saved,
    settings: TrainSettings,
    length: Length,
    optimizer: Optimizer,
    strategy: Strategy,
    where: str,
) -> tuple[str, ...]:
    """The setting, ``epochs`` or ``steps``, that is larger than in the ``saved`` run, if any.

    ValueError where the steps that were taken would be others in a longer run.
    """
    name = "steps" if settings.epochs is None else "epochs"
    was, now = saved["identity"].get(name, ""), getattr(settings, name)
    if not was.isdecimal() or int(was) >= now:
        return ()
    steps = int(was) * (1 if name == "steps" else length.steps_per_epoch)
    done = saved["epoch"] * length.steps_per_epoch + saved["step"]
    why = ""
    if not _same_rates(settings, steps / length.steps_per_epoch, length, saved, optimizer, done):
        why = f"its schedule, {type(settings.schedule).__name__}, follows the run's length"
    elif strategy.plans_ahead:
        why = "its method plans its phases over the run's length"
    elif isinstance(settings.evaluate_every, float):
        why = f"evaluate_every = {settings.evaluate_every!r} is a fraction of the run"
    elif settings.ema_decay is not None and saved["reason"]:
        why = "its weights have been replaced by their moving average (ema_decay)"
    if why:
        raise ValueError(
            f"The checkpoint in {where} is of a run of {was} {name}, which cannot go on to {now}: {why}. {REMEDY}"
        )
    return (name,)


def _same_rates(
    settings: TrainSettings, epochs: float, longer: Length, saved: Saved, optimizer: Optimizer, done: int
) -> bool:
    """Whether the schedule has the same rates at the ``done`` steps in a run of ``epochs`` and in the longer run."""
    initial = {float(group.get("initial_lr", group["lr"])) for group in optimizer.param_groups}
    history = saved["history"]
    for step in range(0, done, max(1, done // _POSITIONS)):
        epoch = step / longer.steps_per_epoch
        for lr in initial:
            rate = settings.schedule.rate(lr, epoch=epoch, epochs=epochs, history=history)
            longer_rate = settings.schedule.rate(lr, epoch=epoch, epochs=longer.epochs, history=history)
            # Roundings only: a schedule over another length differs by more in its first steps.
            if not math.isclose(rate, longer_rate, rel_tol=1e-9):
                return False
    return True
