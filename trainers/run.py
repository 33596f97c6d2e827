"""The training loop itself: epochs, steps, evaluation, checkpoints. A method is a strategy whose hooks it calls."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset

from trainers.checkpoints.checkpoint import Checkpoint
from trainers.checkpoints.contents import (
    Best,
    checked,
    described,
    fill_buffers,
    fill_model,
    fill_optimizer,
    form_of,
)
from trainers.checkpoints.host_copy import HostCopy
from trainers.communication.averager import refuse_sparse
from trainers.communication.communicator import Communicator
from trainers.communication.rank_consistency import (
    refuse_other_settings,
)
from trainers.data.batches import Batch, length_of
from trainers.data.loader import Loader
from trainers.evaluation import outputs_of, scores
from trainers.methods.strategy import Method, Setup, State, Strategy
from trainers.names import plain, plain_name, renamed
from trainers.optim.early_stopping import EarlyStopping, recorded
from trainers.optim.label_smoothing import smoothed
from trainers.optim.schedules import ReduceOnPlateau
from trainers.precision import autocast
from trainers.progress import ProgressLine
from trainers.randomness import derive, seed_generators
from trainers.result import Interrupted, Result
from trainers.settings import (
    OF_LAYERS,
    TOTALS,
    Metrics,
    Settings,
)


@dataclass(kw_only=True)
class Position:
    """Where the run is, apart from what model, optimizer and strategy hold."""

    epoch: int = 0
    step: int = 0
    """Optimizer steps taken in this epoch."""
    loss_sum: Tensor
    """Sum over this epoch's batches of weight times mean loss, on this rank."""
    history: list[Metrics] = field(default_factory=list)
    reason: str = ""
    """Empty until the run is over."""
    train_s: float = 0.0
    evaluation_s: float = 0.0


class Run:
    """One run of the loop on one rank, from the checkpoint that there is to its last epoch."""

    def __init__(
        self,
        settings: Settings,
        communicator: Communicator,
        optimizer: Optimizer,
        method: Method,
        checkpoint: str | Path | None,
        progress: bool | None,
    ) -> None:
        self.settings = settings
        self.communicator = communicator
        self.model = settings.model
        self.optimizer = optimizer
        self.steps_per_epoch = len(self._plan(epoch=0))
        steps = {"steps an epoch": self.steps_per_epoch}
        refuse_other_settings(communicator.service, steps, settings.device)
        self.full_parameters = sum(p.numel() for p in self.model.parameters())
        self.full_trainable = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        self.position = Position(loss_sum=torch.zeros((), dtype=torch.float64, device=settings.device))
        self.best: Best | None = None
        self.best_memory = HostCopy()
        self.train_loader = self._loader(settings.train_set)
        self.validation_loader: Loader | None = None
        self.identity = {
            **settings.identity(),
            "method": repr(method),
            # Methods keep state by place in the node: others could take it up, and would go apart.
            "nodes": repr(communicator.nodes),
            **described(optimizer),
        }
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", float(group["lr"]))
        self.progress = ProgressLine(
            shown=progress,
            rank=communicator.rank,
            epochs=settings.epochs,
            steps_per_epoch=self.steps_per_epoch,
        )
        self.strategy: Strategy = method.strategy(
            Setup(
                model=self.model,
                optimizer=optimizer,
                communicator=communicator,
                epochs=settings.epochs,
                steps_per_epoch=self.steps_per_epoch,
                batch_size=settings.batch_size * settings.accumulate,
                seed=settings.seed,
            )
        )
        # A model that a run before left in factors is whole now.
        self.form = form_of(self.model)
        self.names = {plain_name(name): name for name, _ in self.model.named_parameters()}
        """The model's names, which strategies know weights by, of those in checkpoints."""
        self.checkpoint = Checkpoint(checkpoint, communicator) if checkpoint is not None else None
        try:
            self._check_names()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go what the run holds beside the model: processes, hooks, the progress line."""
        self.train_loader.close()
        if self.validation_loader is not None:
            self.validation_loader.close()
        if self.checkpoint is not None:
            self.checkpoint.close()
        self.strategy.close()
        self.progress.close()

    def _loader(self, samples: Dataset[object]) -> Loader:
        return Loader(samples, device=self.settings.device, processes=self.settings.loader_processes)

    def _validation_loader(self, samples: Dataset[object]) -> Loader:
        if self.validation_loader is None:
            self.validation_loader = self._loader(samples)
        return self.validation_loader

    def _check_names(self) -> None:
        """ValueError if a metric's name is taken, or one is asked for that will not be recorded."""
        settings = self.settings
        of_strategy = self.strategy.metrics().keys()
        self._refuse_taken(of_strategy)
        names = ["epoch", "lr", "train_loss"]
        if settings.validation_set is not None:
            names += ["validation_loss", *settings.metrics]
        names += [*TOTALS, "trainable_fraction", "compression_ratio", "decomposition_s"]
        known = dict.fromkeys([*names, *of_strategy], 0.0)
        for asking in (settings.early_stopping, settings.schedule):
            # A layer's are recorded from the step on at which a method changes it.
            if isinstance(asking, (EarlyStopping, ReduceOnPlateau)) and not asking.metric.startswith(
                OF_LAYERS
            ):
                recorded(known, asking.metric, type(asking).__name__)

    def _refuse_taken(self, of_strategy: Iterable[str]) -> None:
        taken = sorted(self.settings.metrics.keys() & set(of_strategy))
        if taken:
            raise ValueError(f"metrics: the method records {taken[0]!r}. Choose another name.")

    def to_the_end(self) -> Result:
        self._take_up()
        self._announce_last_epoch(self.settings.epochs)
        if self.checkpoint is not None and not self.position.reason:
            self.checkpoint.try_writing()
        while not self.position.reason:
            self._train_epoch()
            self._finish_epoch()
        return self._result()

    # One epoch

    def _train_epoch(self) -> None:
        position = self.position
        planned = self._plan(epoch=position.epoch)
        if len(planned) != self.steps_per_epoch:
            raise ValueError(
                f"assignment: deals {len(planned)} steps in epoch {position.epoch + 1}, and dealt "
                f"{self.steps_per_epoch} in the first. Deal as many in each."
            )
        planned = planned[position.step :]
        batches = self.train_loader.batches(
            [batch for passes in planned for batch in passes], epoch=position.epoch
        )
        with closing(batches):
            self._take_steps(planned, batches)

    def _take_steps(self, planned: list[list[Batch]], batches: Iterator[tuple[object, Tensor]]) -> None:
        position, model = self.position, self.model
        model.train()
        for passes in planned:
            self._stop_if_asked()
            begin = time.perf_counter()
            step = position.epoch * self.steps_per_epoch + position.step
            self._set_learning_rate(step)
            # The same numbers for dropout whether the run was interrupted before or not.
            seed_generators(derive(self.settings.seed, "step", step, self.communicator.rank))
            self.optimizer.zero_grad(set_to_none=True)
            local_loss = torch.zeros_like(position.loss_sum)
            for index, batch in enumerate(passes):
                inputs, targets = next(batches)
                self.strategy.before_pass(step, last=index == len(passes) - 1)
                with autocast(self.settings.device, self.settings.precision):
                    outputs = outputs_of(model, inputs)
                    if self.settings.label_smoothing:
                        targets = smoothed(targets, outputs, self.settings.label_smoothing)
                    value = _one_number(self.settings.loss(outputs, targets))
                value = value * (batch.weight / len(passes))
                torch.autograd.backward(value)
                local_loss += value.detach()
            self.strategy.reduce_gradients(step)
            if self.settings.clip_norm is not None:
                for parameter in self._trained():
                    refuse_sparse(parameter.grad)
                nn.utils.clip_grad_norm_(self._trained(), self.settings.clip_norm)
            self.optimizer.step()
            self.strategy.after_step(step, local_loss)
            position.loss_sum += local_loss
            position.step += 1
            position.train_s += time.perf_counter() - begin
            self.progress.step(position.epoch, position.step)
            every = self.settings.checkpoint_every
            if every and (step + 1) % every == 0 and position.step < self.steps_per_epoch:
                self._save()
        if self.settings.device.type == "cuda":
            begin = time.perf_counter()
            torch.cuda.synchronize(self.settings.device)
            position.train_s += time.perf_counter() - begin

    def _finish_epoch(self) -> None:
        position, settings = self.position, self.settings
        train_loss = self._summed(position.loss_sum).item() / self.communicator.size / self.steps_per_epoch
        # One that a pass has made anew may have come out in the shape of this rank's batch.
        buffers = ", ".join(f"{plain_name(n)} {tuple(b.shape)}" for n, b in self.model.named_buffers())
        agreed = {"shapes of the model's buffers at the epoch's end": buffers}
        refuse_other_settings(self.communicator.service, agreed, settings.device)
        self.strategy.end_epoch(position.epoch, train_loss)
        entry: Metrics = {
            "epoch": float(position.epoch + 1),
            "lr": float(self.optimizer.param_groups[0]["lr"]),
            "train_loss": train_loss,
        }
        stopping = settings.early_stopping
        keeps_best = stopping is not None and stopping.restore_best
        # Replicas that differ are made one for it, which costs communication.
        seen = settings.validation_set is not None or keeps_best
        with self.strategy.evaluating() if seen else nullcontext():
            if settings.validation_set is not None:
                begin = time.perf_counter()
                entry.update(self._evaluate(settings.validation_set))
                position.evaluation_s += time.perf_counter() - begin
            entry.update(self._totals())
            position.history.append(entry)
            position.epoch, position.step = position.epoch + 1, 0
            position.loss_sum.zero_()
            if (
                stopping
                and stopping.restore_best
                and stopping.best_epoch(position.history) == position.epoch - 1
            ):
                # Not beside what is trained: a GPU has no room to spare for what only the end may need.
                self.best = self.best_memory.of(
                    {"model": plain(self.model.state_dict()), "strategy": self._strategy_state()}
                )
        self.progress.epoch(entry)
        if not all(map(math.isfinite, (train_loss, entry.get("validation_loss", 0.0)))):
            position.reason = "diverged"
        elif position.epoch == settings.epochs:
            position.reason = "finished"
        elif stopping and stopping.should_stop(position.history):
            position.reason = "stopped early"
        if position.reason:
            self.strategy.finalise()
            # It may have merged, and sent, what an early stop left apart.
            entry.update(self._totals())
            self._announce_last_epoch(position.epoch)
        if settings.report is not None:
            settings.report(position.epoch, dict(entry))
        every = settings.checkpoint_every
        if every is None or position.epoch * self.steps_per_epoch % every == 0 or position.reason:
            self._save(wait=bool(position.reason))

    def _announce_last_epoch(self, epochs: int) -> None:
        """Whoever stops runs by their reports must not stop one that is at its end."""
        announce = getattr(self.settings.report, "set_last_epoch", None)
        if announce is not None:
            announce(epochs)

    def _result(self) -> Result:
        history = self.position.history
        metrics = dict(history[-1])
        stopping = self.settings.early_stopping
        if self.best is not None and stopping is not None:
            self._fill(self.best)
            best_epoch = stopping.best_epoch(history)
            if best_epoch is not None:
                metrics = {**history[best_epoch], **{name: metrics[name] for name in TOTALS}}
        return Result(metrics=metrics, history=tuple(history), reason=self.position.reason)

    # Parts of a step

    def _plan(self, *, epoch: int) -> list[list[Batch]]:
        settings = self.settings
        # Whatever the user's default device is: generators there are of other numbers.
        with torch.device("cpu"):
            return settings.assignment.epoch(
                samples=length_of(settings.train_set),
                epoch=epoch,
                seed=settings.seed,
                rank=self.communicator.rank,
                ranks=self.communicator.size,
                batch_size=settings.batch_size,
                accumulate=settings.accumulate,
            )

    def _set_learning_rate(self, step: int) -> None:
        for group in self.optimizer.param_groups:
            scheduled = self.settings.schedule.rate(
                group["initial_lr"],
                epoch=step / self.steps_per_epoch,
                epochs=self.settings.epochs,
                history=self.position.history,
            )
            rate = self.strategy.learning_rate(step, scheduled)
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def _trained(self) -> list[nn.Parameter]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    # Numbers

    def _evaluate(self, samples: Dataset[object]) -> Metrics:
        settings = self.settings
        return scores(
            self.model,
            samples,
            self._validation_loader(samples),
            metrics={"validation_loss": settings.loss, **settings.metrics},
            batch_size=settings.evaluation_batch_size,
            precision=settings.precision,
            channel=self.communicator.service,
        )

    def _totals(self) -> Metrics:
        """Over the run so far: bytes of all ranks together, seconds as their mean; what is trained now."""
        channels = [
            channel for channel in self.communicator.channels if channel is not self.communicator.service
        ]
        position, size = self.position, self.communicator.size
        mine = {
            "bytes_between_nodes": sum(channel.bytes_between for channel in channels),
            "bytes_inside_nodes": sum(channel.bytes_inside for channel in channels),
            "wait_s": sum(channel.wait_s for channel in channels) / size,
            "train_s": position.train_s / size,
            "evaluation_s": position.evaluation_s / size,
        }
        summed = self._summed(
            torch.tensor(list(mine.values()), dtype=torch.float64, device=self.settings.device)
        )
        parameters = list(self.model.parameters())
        of_strategy = self.strategy.metrics()
        self._refuse_taken(of_strategy)
        return {
            **dict(zip(mine, summed.tolist(), strict=True)),
            "trainable_fraction": sum(p.numel() for p in parameters if p.requires_grad) / self.full_trainable,
            "compression_ratio": self.full_parameters / sum(p.numel() for p in parameters),
            "decomposition_s": 0.0,
            **of_strategy,
        }

    def _summed(self, values: Tensor) -> Tensor:
        return self.communicator.service.all_reduce(values.clone()).wait()

    # Going on from a checkpoint

    def _stop_if_asked(self) -> None:
        if self.settings.interrupt is not None and self.settings.interrupt():
            self._save(wait=True)
            position = self.position
            kept = (
                f"saved in {self.checkpoint}"
                if self.checkpoint is not None
                else "nothing is saved, as no checkpoint was named"
            )
            # In no variable here: the frame and the error would hold on to each other, and to the model.
            raise _interrupted(
                f"stopped in epoch {position.epoch + 1} after {position.step} steps of it; {kept}",
                saved=self.checkpoint is not None,
            )

    def _save(self, *, wait: bool = False) -> None:
        if self.checkpoint is None:
            return
        position = self.position
        model_and_optimizer = {
            "model": plain(self.model.state_dict()),
            "optimizer": self.optimizer.state_dict(),
        }
        replicated = self.strategy.replicated
        self.checkpoint.save(
            position.epoch * self.steps_per_epoch + position.step,
            shared={
                "identity": self.identity,
                "form": self.form,
                "epoch": position.epoch,
                "step": position.step,
                "history": position.history,
                "reason": position.reason,
                "best": self.best,
                **(model_and_optimizer if replicated else {}),
            },
            own={
                # Running means are each rank's own until the epoch's end, whatever the method.
                "buffers": plain(dict(self.model.named_buffers())),
                "strategy": self._strategy_state(),
                "loss_sum": position.loss_sum,
                "train_s": position.train_s,
                "evaluation_s": position.evaluation_s,
                "counters": self.communicator.counters(),
                **({} if replicated else model_and_optimizer),
            },
            wait=wait,
        )

    def _take_up(self) -> None:
        """Go on from the checkpoint, if there is one. ValueError if it is of a run with other settings."""
        found = self.checkpoint.load() if self.checkpoint is not None else None
        if self.checkpoint is None or found is None:
            return
        with self.checkpoint.by_all("go on from its part of"):
            where = str(self.checkpoint)
            saved = checked({**found[0], **found[1]}, identity=self.identity, form=self.form, where=where)
            self._fill({"model": saved["model"], "strategy": saved["strategy"]})
            fill_optimizer(
                self.optimizer,
                saved["optimizer"],
                model=plain(self.model.state_dict()),
                saved_model=saved["model"],
                where=where,
            )
            fill_buffers(self.model, saved["buffers"], where=where)
        self.communicator.set_counters(saved["counters"])
        self.best = saved["best"]
        position = self.position
        position.epoch, position.step, position.reason = saved["epoch"], saved["step"], saved["reason"]
        position.history = saved["history"]
        position.loss_sum.copy_(saved["loss_sum"])
        position.train_s, position.evaluation_s = saved["train_s"], saved["evaluation_s"]

    def _strategy_state(self) -> State:
        return cast(State, renamed(dict(self.strategy.state()), plain_name))

    def _fill(self, saved: Best) -> None:
        # First the strategy: it may have to give the model other shapes.
        self.strategy.load(cast(State, renamed(saved["strategy"], lambda name: self.names.get(name, name))))
        fill_model(self.model, saved["model"], where=str(self.checkpoint))


def _interrupted(text: str, *, saved: bool) -> Interrupted:
    made = Interrupted(text)
    made.saved = saved
    return made


def _one_number(value: object) -> Tensor:
    """``value``, what the loss returned. TypeError if it is not one number that can be derived."""
    if isinstance(value, Tensor) and not value.dim():
        if value.requires_grad:
            return value
        found = "a tensor that depends on no trained parameter, so that there is no gradient"
    else:
        found = (
            f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        )
    raise TypeError(
        f"loss: returned {found}, and must return a tensor without dimensions, the mean over its samples, from the "
        'model\'s outputs. Correct it: cross_entropy(outputs, targets, reduction="mean"), say.'
    )
