"""The training loop itself: steps, epochs, evaluations, checkpoints. A method is a strategy whose hooks it calls."""

from __future__ import annotations

import logging
import math
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from datetime import timedelta
from itertools import tee

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import Dataset

from trainers.checkpoints.save_timer import SaveTimer
from trainers.communication.buckets import averaged_over_ranks, reconcile_buffers
from trainers.communication.communicator import Communicator
from trainers.communication.rank_consistency import refuse_other_settings
from trainers.data.batches import Batch
from trainers.data.loader import Loader
from trainers.evaluation.evaluate import scores
from trainers.evaluation.metrics import MeanLoss
from trainers.gpu import is_gpu, module_of
from trainers.methods.sharded_models import errors_named, units_of
from trainers.methods.strategy import DataRanks, Method, Setup, Strategy
from trainers.modes import modes_of, put_in_training, restore_modes, whole_mode_kept
from trainers.names import plain_name
from trainers.optim.activation_checkpointing import ActivationCheckpointing
from trainers.optim.moving_average import MovingAverage
from trainers.optim.schedules import Constant
from trainers.randomness import derive
from trainers.run.model_checks import EXCHANGE, refuse_held
from trainers.run.position import Interrupted, Metrics, Position, Result
from trainers.run.profiling import Profiler
from trainers.run.progress import ProgressLine
from trainers.run.recording import Recorder, summed
from trainers.run.saving import SavedState, identity_of
from trainers.run.settings import TOTALS, TrainSettings
from trainers.run.thawing import Thawing
from trainers.run.training_step import LearningRates, TrainingStep
from trainers.run.traps import warn_of_shared_series, warn_of_traps

_log = logging.getLogger("trainers.run")
_CHUNK = 64
"""Steps that are planned together."""


class TrainingRun:
    """A run of the loop on one rank, from its checkpoint, if there is one, to its last step."""

    def __init__(
        self,
        settings: TrainSettings,
        communicator: Communicator,
        optimizer: Optimizer,
        method: Method,
        data: DataRanks,
    ) -> None:
        self.settings = settings
        self.communicator = communicator
        self.data = data
        self.model = settings.model
        self.optimizer = optimizer
        modes = modes_of(self.model)
        planned = settings.planned(epoch=0, rank=data.rank, ranks=data.ranks)
        self.first_plan: Sequence[Sequence[Batch]] = planned
        """Plan of the first epoch, until it is used."""
        self.length = settings.length(len(planned))
        refuse_other_settings(communicator.service, {"steps an epoch": self.length.steps_per_epoch})
        self.recorder = Recorder(settings, communicator, data)
        self.position = Position(loss_sums=torch.zeros(2, dtype=torch.float64, device=settings.device))
        # A step seeds the generators once it has its batches. What evaluations draw goes on from the step before.
        self.train_loader = self._loader(settings.train_set, keeps=False)
        self.train_loader.keep_on_device(settings.data_on_device, "train_set")
        validation = settings.validation_set
        self.validation_loader = None if validation is None else self._loader(validation, keeps=True)
        if self.validation_loader is not None:
            self.validation_loader.keep_on_device(settings.data_on_device and "auto", "validation_set")
        identity = identity_of(settings, communicator, optimizer, method)
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", float(group["lr"]))
        shown = sys.stderr.isatty() if settings.progress is None else settings.progress
        self.progress = ProgressLine(self.length, shown=shown and communicator.rank == 0)
        self.setup = Setup(
            model=self.model,
            optimizer=optimizer,
            communicator=communicator,
            epochs=math.ceil(self.length.epochs),
            steps_per_epoch=self.length.steps_per_epoch,
            batch_size=settings.batch_size * settings.accumulate,
            seed=settings.seed,
            steps=self.length.steps,
        )
        self.strategy: Strategy = method.strategy(self.setup)
        communicator.release()
        self.units = units_of(self.model) if self.strategy.sharded else []
        decay = settings.ema_decay
        self.average = None if decay is None else MovingAverage(self.model, decay)
        self.thawing = Thawing(self.setup, self.strategy, average=self.average, modes=modes)
        self.saved = SavedState(
            settings=settings,
            setup=self.setup,
            data=data,
            strategy=self.strategy,
            position=self.position,
            length=self.length,
            average=self.average,
            identity=identity,
            thawing=self.thawing,
        )
        self.training_step = TrainingStep(
            settings,
            optimizer,
            self.strategy,
            self.average,
            self.thawing,
            self.position.loss_sums,
            fetching_draws=self.train_loader.draws,
        )
        self.profiler: Profiler | None = None
        self.rates = LearningRates(optimizer, settings.schedule, self.strategy, self.length, self.position)
        self.warned_of_nan = False
        self.save_timer: SaveTimer | None = None
        # Let go in reverse order.
        self.held = ExitStack()
        self.held.callback(restore_modes, self.model, modes)
        for part in (self.progress, self.strategy, self.saved, self.train_loader, self.validation_loader):
            if part is not None:
                self.held.callback(part.close)
        try:
            self.recorder.check_names(self.strategy)
            self._refuse_held_optimizers()
            # After the method, which refuses some of it.
            if communicator.rank == 0:
                warn_of_traps(settings, optimizer, planned)
            warn_of_shared_series(settings, communicator.service)
            if self.average is not None and self.strategy.reparametrises:
                raise ValueError(
                    f"ema_decay = {decay}: {type(method).__name__} changes the form of the weights in the midst of the "
                    "run, and weights of different forms have no average. Use another method, or ema_decay=None."
                )
            recomputed = ActivationCheckpointing(self.model, settings.activation_checkpointing)
            self.held.callback(recomputed.close)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go what the run holds beside the model: processes, hooks, the progress line."""
        self.held.close()

    def _refuse_held_optimizers(self) -> None:
        """ValueError where the optimizer holds another that the run's method, schedule or checkpoint does not reach."""
        others = "Have optimizer= return a list of the optimizers that it is made of, or one of them alone, or take "
        if self.strategy.reparametrises:
            refuse_held(self.optimizer, EXCHANGE, remedy=f"{others}another method, such as DDP.")
        if self.settings.schedule != Constant():
            used = f"schedule = {self.settings.schedule!r}"
            refuse_held(self.optimizer, used, remedy=f"{others}Constant().", only_groups=True)
        if self.saved.checkpoint is not None:
            refuse_held(self.optimizer, "a checkpoint", remedy=f"{others}checkpoint=None.", loaded=True)

    def _loader(self, samples: Dataset[object], *, keeps: bool) -> Loader:
        return Loader(
            samples,
            device=self.settings.device,
            processes=self.settings.loader_processes,
            collate=self.settings.collate,
            rank=self.data.rank,
            ranks=self.data.ranks,
            seed=self.settings.seed,
            keeps=keeps,
        )

    def to_the_end(self) -> Result:
        checkpoint, settings = self.saved.checkpoint, self.settings
        every, profile = settings.checkpoint_every, settings.profile
        self.saved.resume()
        self._refuse_held_optimizers()  # again, as the optimizer's own load_state_dict may have parted them
        self._announce_last_report(-(-self.length.steps // self.length.evaluate_every))
        if not self.position.reason:
            if checkpoint is not None:
                checkpoint.try_writing()
            if checkpoint is not None and isinstance(every, timedelta):
                self.save_timer = SaveTimer(every, self.communicator, self.position.steps)
            if profile is not None and self.communicator.rank == 0:
                self.profiler = Profiler(profile)
                self.held.callback(self.profiler.close)
        with errors_named(self.communicator.world) if self.strategy.sharded else nullcontext():
            while not self.position.reason:
                self._train_epoch()
        return self._result()

    # One epoch

    def _train_epoch(self) -> None:
        position, length = self.position, self.length
        epoch, done = divmod(position.steps, length.steps_per_epoch)
        planned, self.first_plan = () if epoch else self.first_plan, ()
        planned = planned or self.settings.planned(epoch=epoch, rank=self.data.rank, ranks=self.data.ranks)
        if len(planned) != length.steps_per_epoch:
            raise ValueError(
                f"assignment: deals {len(planned)} steps in epoch {epoch + 1}, and dealt "
                f"{length.steps_per_epoch} in the first. Deal as many in each."
            )
        steps, ahead = tee(self._seeded(planned, position.steps - done, done))
        batches = self.train_loader.batches((batch for _, passes in ahead for batch in passes), epoch=epoch)
        put_in_training(self.model)
        with closing(batches):
            for seed, passes in steps:
                self._stop_if_asked()
                self._take_step(passes, batches, seed)
                if not length.ends_epoch(position.steps):
                    self._end_step(evaluates=length.evaluates(position.steps))
                    if position.reason:
                        return
        self._end_step(evaluates=length.evaluates(position.steps), ends_epoch=True)

    def _seeded(
        self, planned: Sequence[Sequence[Batch]], before: int, done: int
    ) -> Iterator[tuple[int, Sequence[Batch]]]:
        """Seeds and batches of an epoch's steps from ``done`` on, of which there were ``before`` in earlier epochs."""
        end = min(len(planned), self.length.steps - before)
        for first in range(done, end, _CHUNK):
            steps = range(first, min(first + _CHUNK, end))
            # Derived from the step, so that dropout is the same whether the run was interrupted or not. To make many
            # together takes a tenth of the time that it takes to make each between two steps; all would hold up the
            # first.
            seeds = [derive(self.settings.seed, "step", before + step, self.data.rank) for step in steps]
            yield from zip(seeds, planned[steps.start : steps.stop], strict=True)

    def _take_step(
        self, passes: Sequence[Batch], batches: Iterator[tuple[object, object]], seed: int
    ) -> None:
        position, step = self.position, self.position.steps
        begin = time.perf_counter()
        # The user's ``report``, which may have thawed layers, was called after these.
        agree = self.length.ends_epoch(step) or self.length.evaluates(step)
        self._reshard()
        self.thawing.begin_step(step, agree=agree)
        rate = self.rates.set(step)
        taken = self.training_step.take(step, seed, passes, batches)
        taken["lr"] = rate
        position.steps += 1
        taken_s = time.perf_counter() - begin
        position.train_s += taken_s
        position.recent_s += taken_s
        position.recent_samples += sum(len(batch.indices) for batch in passes)
        if self.profiler is not None:
            self.profiler.step()
        self.progress.step(position.steps)
        if self.settings.on_step is not None:
            with whole_mode_kept(self.model):
                self.settings.on_step(position.steps, taken)

    def _end_step(self, *, evaluates: bool, ends_epoch: bool = False) -> None:
        """End the epoch, evaluate and save where it is time for it."""
        position = self.position
        if evaluates or ends_epoch:
            self._refuse_other_buffers()
            epoch_loss, train_loss = self._mean_losses()
            if ends_epoch:
                epoch = (position.steps - 1) // self.length.steps_per_epoch
                _log.debug("epoch %d ends at step %d with loss %g", epoch, position.steps, epoch_loss)
                self.strategy.end_epoch(epoch, epoch_loss)
                position.loss_sums[0] = 0.0
            if evaluates or not math.isfinite(epoch_loss):
                self._evaluate(train_loss, ends_epoch=ends_epoch)
                return
        if self._save_is_due():
            self.saved.save()

    def _evaluate(self, train_loss: float, *, ends_epoch: bool) -> None:
        """Add to the history what ``_scores`` finds, report it, see whether the run is over, and save it."""
        position, settings = self.position, self.settings
        entry: Metrics = {
            "epoch": position.steps / self.length.steps_per_epoch,
            "steps": float(position.steps),
            "lr": float(self.optimizer.param_groups[0]["lr"]),
            "train_loss": train_loss,
        }
        stopping = settings.early_stopping
        keeps_best = stopping is not None and stopping.restore_best
        is_last = position.steps == self.length.steps
        if is_last:
            # Before the evaluation, so that the final model is evaluated, and nothing is averaged twice.
            self.strategy.finalise()
        with ExitStack() as evaluated:
            # Only where it is needed, as averaging replicas that differ costs communication.
            if settings.validation_set is not None or keeps_best:
                evaluated.enter_context(self._made_alike(ends_epoch=ends_epoch))
            if settings.validation_set is not None:
                begin = time.perf_counter()
                entry.update(self._scores(settings.validation_set))
                position.evaluation_s += time.perf_counter() - begin
            entry.update(self.recorder.totals(position, self.strategy))
            entry.update(self.recorder.throughput(position))
            position.recent_samples, position.recent_s = 0, 0.0
            position.history.append(entry)
            position.loss_sums[1] = 0.0
            if stopping and keeps_best and stopping.best_epoch(position.history) == len(position.history) - 1:
                self.saved.keep_best()
        self.progress.evaluated(entry)
        if not all(map(math.isfinite, (train_loss, entry.get("validation_loss", 0.0)))):
            position.reason = "diverged"
        elif is_last:
            position.reason = "finished"
        elif self._is_undefined():
            position.reason = "diverged"
        elif stopping and stopping.should_stop(position.history):
            position.reason = "stopped early"
        if position.reason:
            if not ends_epoch:
                self.strategy.end_epoch(position.steps // self.length.steps_per_epoch, train_loss)
            if not is_last:
                self.strategy.finalise()
            if self.average is not None:
                self.average.fill()
                service, copies = self.communicator.service, self.strategy.copies
                with self.communicator.counted_as_service():
                    reconcile_buffers(service, self.model, parameters=self._differing(), copies=copies)
            # Once more, as ``finalise`` may have merged weights, and sent bytes.
            entry.update(self.recorder.totals(position, self.strategy))
            self._announce_last_report(len(position.history))
        if settings.report is not None:
            with whole_mode_kept(self.model):
                settings.report(len(position.history), dict(entry))
        if settings.checkpoint_every is None or self._save_is_due() or position.reason:
            self.saved.save(wait=bool(position.reason))

    @contextmanager
    def _made_alike(self, *, ends_epoch: bool) -> Iterator[None]:
        """Context in which all ranks have the model to evaluate; each parameter is averaged a single time."""
        with ExitStack() as stack:
            self._reshard()
            stack.callback(self._reshard)
            # Each rank's moving average is its own, whatever its weights are.
            if self.average is None or self.strategy.sharded:
                stack.enter_context(self.strategy.evaluating())
            if self.average is not None:
                stack.enter_context(self.average.in_use())
            # At an epoch's end the weights are the same already.
            if self.average is not None or not (ends_epoch or self.strategy.evaluates_alike):
                service, differing = self.communicator.service, self._differing()
                copies = self.strategy.copies
                stack.enter_context(
                    averaged_over_ranks(service, self.model, parameters=differing, copies=copies)
                )
            yield

    def _reshard(self) -> None:
        """Free what passes have left gathered: the outermost unit after a forward pass without a backward pass, which
        would hide weights that are changed then, as by a moving average, and be trained on in the next step.
        """
        for unit in self.units:
            unit.reshard()

    def _differing(self) -> list[nn.Parameter]:
        """Parameters of which ranks may have values of their own."""
        strategy = self.strategy
        equal = strategy.replicated or (strategy.sharded and strategy.copies is None)
        return [] if equal else self.setup.trained.ever()

    def _is_undefined(self) -> bool:
        """Whether early stopping's metric, or each metric, was NaN at each of at least two evaluations in the run's
        first tenth or later, and so will stay. Other metrics, as of a class without validation samples, are a warning.
        """
        history, metrics = self.position.history, self.settings.metrics
        # Early evaluations alone may have too little to compute a metric of.
        if len(history) < 2 or 10 * self.position.steps < self.length.steps:
            return False
        names = [name for name in metrics if all(math.isnan(entry[name]) for entry in history)]
        stopping = self.settings.early_stopping
        stops = stopping is not None and stopping.metric in names
        ends = bool(names) and (len(names) == len(metrics) or stops)
        if names and self.communicator.rank == 0 and not self.warned_of_nan:
            self.warned_of_nan = True
            then = ", and the run ends as diverged" if ends else ""
            warnings.warn(
                f"metrics: {', '.join(names)} {'was' if len(names) == 1 else 'were'} NaN at each of {len(history)} "
                f"evaluations{then}. Where a metric may be undefined for a while, return another number, such as 0.0.",
                stacklevel=2,
            )
        return ends

    def _save_is_due(self) -> bool:
        """Whether ``checkpoint_every`` asks for a checkpoint; called a single time after each step, on every rank."""
        every, steps = self.settings.checkpoint_every, self.position.steps
        if self.save_timer is not None:
            return self.save_timer.due(steps)
        return isinstance(every, int) and steps % every == 0

    def _announce_last_report(self, number: int) -> None:
        """Announce the last report, so that a campaign does not stop a run that is at its end."""
        announce = getattr(self.settings.report, "set_last_epoch", None)
        if announce is not None:
            announce(number)

    def _result(self) -> Result:
        history = self.position.history
        metrics = dict(history[-1])
        stopping = self.settings.early_stopping
        if self.saved.best is not None and stopping is not None:
            self.saved.restore_best()
            best = stopping.best_epoch(history)
            if best is not None:
                metrics = {**history[best], **{name: metrics[name] for name in TOTALS}}
        return Result(metrics=metrics, history=tuple(history), reason=self.position.reason)

    # Parts of an evaluation

    def _mean_losses(self) -> tuple[float, float]:
        """Mean losses of all ranks' samples since the epoch began, and since the last evaluation."""
        position = self.position
        if is_gpu(self.settings.device):
            begin = time.perf_counter()
            module_of(self.settings.device).synchronize(self.settings.device)
            waited_s = time.perf_counter() - begin
            position.train_s += waited_s
            position.recent_s += waited_s
        of_epoch, of_evaluation = summed(self.communicator, position.loss_sums).tolist()
        of_epoch /= self.communicator.size * ((position.steps - 1) % self.length.steps_per_epoch + 1)
        evaluated_at = int(position.history[-1]["steps"]) if position.history else 0
        of_evaluation /= self.communicator.size * (position.steps - evaluated_at)
        return of_epoch, of_evaluation

    def _refuse_other_buffers(self) -> None:
        """ValueError if a pass has replaced a buffer, in the shape of this rank's batch, as others have not."""
        buffers = ", ".join(f"{plain_name(n)} {tuple(b.shape)}" for n, b in self.model.named_buffers())
        agreed = {"shapes of the model's buffers at the epoch's end": buffers}
        refuse_other_settings(self.communicator.service, agreed)

    def _scores(self, samples: Dataset[object]) -> Metrics:
        settings, loader = self.settings, self.validation_loader
        assert loader is not None
        return scores(
            self.model,
            samples,
            loader,
            forward=settings.forward,
            metrics={"validation_loss": MeanLoss(settings.device), **settings.metrics},
            batch_size=settings.evaluation_batch_size,
            precision=settings.precision,
            channel=self.communicator.service,
            data=self.data,
            equal_passes=self.strategy.equal_passes,
        )

    def _stop_if_asked(self) -> None:
        interrupt, checkpoint = self.settings.interrupt, self.saved.checkpoint
        if interrupt is not None and interrupt():
            self.saved.save(wait=True)
            epoch, step = divmod(self.position.steps, self.length.steps_per_epoch)
            kept = "nothing is saved, as no checkpoint was named"
            if checkpoint is not None:
                kept = f"saved in {checkpoint}"
            # Made outside: a variable here and the error would hold on to each other, and to the model.
            raise _interrupted(
                f"stopped in epoch {epoch + 1} after {step} steps of it; {kept}", saved=checkpoint is not None
            )


def _interrupted(text: str, *, saved: bool) -> Interrupted:
    made = Interrupted(text)
    made.saved = saved
    return made
