"""The training loop. There is one: a method is a strategy whose hooks it calls."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset

from trainers.checkpoints.checkpoint import Checkpoint
from trainers.checkpoints.contents import (
    Best,
    checked,
    copied,
    described,
    fill_buffers,
    fill_model,
    fill_optimizer,
    form_of,
)
from trainers.communication.averager import refuse_sparse
from trainers.communication.buckets import broadcast_tensors
from trainers.communication.communicator import Communicator
from trainers.communication.rank_consistency import (
    refuse_alone_among_many,
    refuse_other_models,
    refuse_other_optimizers,
    refuse_other_settings,
)
from trainers.communication.topology import Topology
from trainers.data.loading import Assignment, Batch, Disjoint, length_of, load
from trainers.evaluation import Metric, autocast, device_of, outputs_of, scores
from trainers.methods.ddp import DDP
from trainers.methods.strategy import Method, Setup, State, Strategy, check_method
from trainers.names import plain, plain_name, renamed
from trainers.optim.early_stopping import EarlyStopping, recorded
from trainers.optim.label_smoothing import smoothed
from trainers.optim.schedules import Constant, ReduceOnPlateau, Schedule
from trainers.progress import ProgressLine
from trainers.randomness import derive, generators_kept, seed_generators
from trainers.settings import (
    OF_LAYERS,
    TOTALS,
    Loss,
    Metrics,
    Settings,
    check_call,
    check_optimizer,
    check_tensors,
)


class Interrupted(Exception):
    """``interrupt`` asked the run to stop. With a ``checkpoint`` the state is saved (``saved`` is true), and the same
    call continues from there; without, nothing is saved.
    """

    saved = False
    """Whether the state is."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a run brought; the same on every rank.

    Attributes:
        metrics (dict): of the last epoch, or of the best where that was restored: your metrics by name, "epoch",
            "lr", "train_loss", "validation_loss", seconds, bytes and what the method records.
        history (tuple of dict): the same of each epoch.
        reason (str): "finished", "stopped early", or "diverged": a loss was not finite, and the run ended there.
    """

    metrics: Metrics
    history: tuple[Metrics, ...]
    reason: str


def train(
    model: nn.Module,
    train_set: Dataset[object],
    validation_set: Dataset[object] | None = None,
    *,
    loss: Loss,
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer],
    epochs: int,
    batch_size: int,
    metrics: Mapping[str, Metric] | None = None,
    method: Method | None = None,
    schedule: Schedule | None = None,
    precision: str = "fp32",
    clip_norm: float | None = None,
    accumulate: int = 1,
    label_smoothing: float = 0.0,
    early_stopping: EarlyStopping | None = None,
    assignment: Assignment | None = None,
    topology: Topology | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int | None = None,
    report: Callable[[int, Metrics], None] | None = None,
    interrupt: Callable[[], bool] | None = None,
    loader_processes: int = 0,
    evaluation_batch_size: int | None = None,
    progress: bool | None = None,
    timeout: timedelta = timedelta(minutes=10),
    group: dist.ProcessGroup | None = None,
    seed: int = 0,
) -> Result:
    """Train ``model``, in place and on its device, with the ranks of the initialised group, or alone.

    Args:
        model (Module): on the device where it is to be trained. Rank 0's parameters and buffers count.
        train_set (Dataset): its items are pairs of inputs and target; inputs are a tensor, or a tuple or dictionary
            that becomes the model's arguments. If it has a method ``set_epoch``, that is called with the number of
            each epoch, from 0, for augmentation that does not depend on how samples are dealt.
        validation_set (Dataset; default None): as ``train_set``; evaluated after each epoch.
        loss (callable): ``loss(outputs, targets)``, a mean over its samples.
        optimizer (callable): gets the parameters that require a gradient and returns a torch optimizer.
        epochs (int, from 1): passes over the training set.
        batch_size (int, from 1): samples per rank and backward pass.
        metrics (dict of callables; default None): by name, ``metric(outputs, targets)``; they and "validation_loss"
            get all outputs and targets of the validation set at once, in its order.
        method (Method; default None): how ranks work together; None: ``DDP()``.
        schedule (Schedule; default None): of the learning rate; None: ``Constant()``.
        precision (str; default "fp32"): "fp32" leaves all tensors as they are, "bf16" is autocast.
        clip_norm (float; default None): the largest norm of the gradient that the optimizer gets; None: any.
        accumulate (int, from 1; default 1): backward passes per optimizer step, each with ``batch_size`` samples per
            rank.
        label_smoothing (float, 0 to below 1; default 0.0): this part of each target's probability is spread evenly
            over all classes (Szegedy et al. 2016). The training loss then gets probabilities in place of class
            indices; the validation loss does not.
        early_stopping (EarlyStopping; default None): when to end before ``epochs``; None: never.
        assignment (Disjoint, FullOverlap, Coarse, MediumCoarse or FineGrained; default None): how samples are dealt
            to ranks; None: ``Disjoint()``.
        topology (Topology; default None): which ranks share a node; None: those with the same host name.
        checkpoint (path; default None): a directory that all ranks see. The run continues from what it finds there,
            on the CPU bit for bit. It saves when interrupted, at its end and every ``checkpoint_every`` steps.
        checkpoint_every (int, steps; default None): None: after each epoch.
        report (callable; default None): ``report(epoch, metrics)``, called on every rank after each epoch, counted
            from 1; what it raises ends the run. If it has a method ``set_last_epoch``, that is called with the number
            of epochs before the first step, and again, before the last report, where the run ends earlier.
        interrupt (callable; default None): ``interrupt()``, called on every rank before each step; must answer alike
            on all. When it is true the run saves and raises ``Interrupted``.
        loader_processes (int, from 0; default 0): processes per rank that read ahead.
        evaluation_batch_size (int, from 1; default None): samples per rank and forward pass of the evaluation; None:
            ``batch_size``.
        progress (bool; default None): whether rank 0 writes a progress line to stderr; None: if that is a terminal.
        timeout (timedelta; default timedelta(minutes=10)): how long ranks wait for one another. On GPUs it holds for
            the groups made here; in the caller's own group NCCL keeps the time-out of ``init_process_group``.
        group (ProcessGroup; default None): ranks that train together where others do something else; this rank must
            be in it. None: all ranks.
        seed (int; default 0): the same seed gives every method the same batches, and the same run.

    Among the recorded seconds, means over the ranks, ``train_s`` are those spent in training steps and ``wait_s``
    those in which the CPU waited for the method's communication. A GPU works behind the CPU: there ``wait_s`` is
    about 0, and ``train_s`` is right at an epoch's end. Python's, numpy's and torch's global generators are restored
    afterwards.

    Raises:
        Interrupted: ``interrupt`` asked for it.
        ValueError: settings are not allowed or differ between ranks, a checkpoint is damaged or of other settings, a
            directory cannot be written, or a launcher's rank is in no group; all before the first step.
        TypeError: a data set is none, or the model, the loss or a metric returned something else than it should.
        CommunicationError: a rank is lost or hangs.
    """
    check_call(
        model=model,
        metrics=metrics,
        optimizer=optimizer,
        topology=topology,
        checkpoint=checkpoint,
        timeout=timeout,
    )
    settings = Settings(
        model=model,
        train_set=train_set,
        validation_set=validation_set,
        loss=loss,
        epochs=epochs,
        batch_size=batch_size,
        metrics=dict(metrics or {}),
        schedule=Constant() if schedule is None else schedule,
        precision=precision,
        clip_norm=clip_norm,
        accumulate=accumulate,
        label_smoothing=label_smoothing,
        early_stopping=early_stopping,
        assignment=Disjoint() if assignment is None else assignment,
        checkpoint_every=checkpoint_every,
        report=report,
        interrupt=interrupt,
        loader_processes=loader_processes,
        evaluation_batch_size=batch_size if evaluation_batch_size is None else evaluation_batch_size,
        seed=seed,
        device=device_of(model),
    )
    method = DDP() if method is None else method
    check_method(f"method = {method!r}", method)
    refuse_alone_among_many()
    communicator = Communicator(topology=topology, timeout=timeout, device=settings.device, among=group)
    try:
        with generators_kept():
            channel, device = communicator.service, settings.device
            check_tensors(model, exchanged=communicator.size > 1, saved=checkpoint is not None)
            refuse_other_models(channel, model, device)
            told = {
                **settings.told(),
                "method": method,
                "ranks of each node": communicator.nodes,
                "checkpoint": "None" if checkpoint is None else "a directory",
            }
            refuse_other_settings(channel, told, device)
            # Each rank's caller may have drawn other weights: rank 0's count.
            broadcast_tensors(communicator.service, [*model.parameters(), *model.buffers()])
            if not any(parameter.requires_grad for parameter in model.parameters()):
                raise ValueError("No parameter of the model requires a gradient: there is nothing to train.")
            # Kept nowhere here: what a decomposition replaces would else stay in memory to the run's end.
            made = optimizer([parameter for parameter in model.parameters() if parameter.requires_grad])
            check_optimizer(made)
            refuse_other_optimizers(channel, made, device)
            run = _Run(settings, communicator, made, method, checkpoint, progress)
            del made
            try:
                return run.to_the_end()
            finally:
                run.strategy.close()
                run.progress.close()
    finally:
        communicator.close()


@dataclass(kw_only=True)
class _Position:
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


class _Run:
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
        self.position = _Position(loss_sum=torch.zeros((), dtype=torch.float64, device=settings.device))
        self.best: Best | None = None
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
            self.strategy.close()
            self.progress.close()
            raise

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
        # Before processes that read ahead get their copies of the set.
        set_epoch = getattr(self.settings.train_set, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(position.epoch)
        batches = load(
            self.settings.train_set,
            [batch for passes in planned for batch in passes],
            device=self.settings.device,
            processes=self.settings.loader_processes,
        )
        # An error holds on to what was there when it was raised: processes that read ahead would live as long.
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
        told = {"shapes of the model's buffers at the epoch's end": buffers}
        refuse_other_settings(self.communicator.service, told, settings.device)
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
                weights = copied(plain(self.model.state_dict()))
                self.best = {"model": weights, "strategy": self._strategy_state()}
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
            self._save()

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
            metrics={"validation_loss": settings.loss, **settings.metrics},
            batch_size=settings.evaluation_batch_size,
            precision=settings.precision,
            loader_processes=settings.loader_processes,
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
            self._save()
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

    def _save(self) -> None:
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
