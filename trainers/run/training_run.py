"""The training loop itself: steps, epochs, evaluations, checkpoints. A method is a strategy whose hooks it calls."""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset

from trainers.checkpoints.save_timer import SaveTimer
from trainers.communication.buckets import averaged_over_ranks, reconcile_buffers
from trainers.communication.communicator import Communicator
from trainers.communication.rank_consistency import refuse_other_settings
from trainers.data.batches import Batch, length_of
from trainers.data.loader import Loader
from trainers.evaluation.evaluate import scores
from trainers.evaluation.metrics import MeanLoss
from trainers.methods.strategy import Method, Setup, Strategy
from trainers.modes import modes_of, put_in_training, restore_modes, whole_mode_kept
from trainers.names import plain_name
from trainers.optim.activation_checkpointing import ActivationCheckpointing
from trainers.optim.moving_average import MovingAverage
from trainers.optim.schedules import Constant
from trainers.randomness import derive, seed_generators
from trainers.run.model_checks import EXCHANGE, refuse_held
from trainers.run.position import Position
from trainers.run.profiling import Profiler
from trainers.run.progress import ProgressLine
from trainers.run.recording import Recorder
from trainers.run.result import Interrupted, Metrics, Result
from trainers.run.saving import SavedState, identity_of
from trainers.run.settings import TOTALS, Settings
from trainers.run.thawing import Thawing
from trainers.run.training_step import TrainingStep
from trainers.run.traps import warn_of_shared_series, warn_of_traps

_log = logging.getLogger("trainers.run")


class Run:
    """One run of the loop on one rank, from the checkpoint that there is to its last step."""

    def __init__(
        self, settings: Settings, communicator: Communicator, optimizer: Optimizer, method: Method
    ) -> None:
        self.settings = settings
        self.communicator = communicator
        self.model = settings.model
        self.modes = modes_of(self.model)
        """Modes that the user has set, for the end of the run."""
        self.optimizer = optimizer
        planned = self._plan(epoch=0)
        self.length = settings.length(len(planned))
        steps = {"steps an epoch": self.length.steps_per_epoch}
        refuse_other_settings(communicator.service, steps)
        self.recorder = Recorder(settings, communicator)
        self.position = Position(loss_sums=torch.zeros(2, dtype=torch.float64, device=settings.device))
        self.train_loader = self._loader(settings.train_set)
        self.validation_loader: Loader | None = None
        identity = identity_of(settings, communicator, optimizer, method)
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", float(group["lr"]))
        self.progress = ProgressLine(
            shown=settings.progress,
            rank=communicator.rank,
            epochs=settings.epochs,
            steps=self.length.steps,
            steps_per_epoch=self.length.steps_per_epoch,
        )
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
        decay = settings.ema_decay
        self.average = None if decay is None else MovingAverage(self.model, decay)
        self.thawing = Thawing(self.setup, self.strategy, average=self.average, modes=self.modes)
        self.saved = SavedState(
            settings,
            communicator,
            optimizer,
            self.strategy,
            self.position,
            self.length,
            self.average,
            identity,
            self.thawing,
        )
        self.training_step = TrainingStep(settings, optimizer, self.strategy, self.average, self.thawing)
        self.recomputed: ActivationCheckpointing | None = None
        self.profiler: Profiler | None = None
        self.undefined: list[str] = []
        """Metrics that are NaN at all evaluations, of which the user is warned."""
        self.save_timer: SaveTimer | None = None
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
            self.recomputed = ActivationCheckpointing(self.model, settings.activation_checkpointing)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go what the run holds beside the model: processes, hooks, the progress line."""
        self.train_loader.close()
        if self.validation_loader is not None:
            self.validation_loader.close()
        if self.recomputed is not None:
            self.recomputed.close()
        self.saved.close()
        self.strategy.close()
        self.progress.close()
        if self.profiler is not None:
            self.profiler.close()
        restore_modes(self.model, self.modes)

    def _refuse_held_optimizers(self) -> None:
        """ValueError where the optimizer holds another that the run's method, schedule or checkpoint does not reach."""
        others = "Have optimizer= return a list of the optimizers that it is made of, or one of them alone, or take "
        if self.strategy.reparametrises:
            refuse_held(self.optimizer, EXCHANGE, remedy=f"{others}another method, DDP say.")
        if self.settings.schedule != Constant():
            used = f"schedule = {self.settings.schedule!r}"
            refuse_held(self.optimizer, used, remedy=f"{others}Constant().", only_groups=True)
        if self.saved.checkpoint is not None:
            refuse_held(self.optimizer, "a checkpoint", remedy=f"{others}checkpoint=None.", loaded=True)

    def _loader(self, samples: Dataset[object]) -> Loader:
        return Loader(
            samples,
            device=self.settings.device,
            processes=self.settings.loader_processes,
            collate=self.settings.collate,
            rank=self.communicator.rank,
            ranks=self.communicator.size,
            seed=self.settings.seed,
        )

    def _validation_loader(self, samples: Dataset[object]) -> Loader:
        if self.validation_loader is None:
            self.validation_loader = self._loader(samples)
        return self.validation_loader

    def to_the_end(self) -> Result:
        self.saved.take_up()
        self._refuse_held_optimizers()  # which an optimizer's own load_state_dict may have parted from it
        self._announce_last_report(self.length.evaluations)
        if self.saved.checkpoint is not None and not self.position.reason:
            self.saved.checkpoint.try_writing()
        every = self.settings.checkpoint_every
        if self.saved.checkpoint is not None and isinstance(every, timedelta):
            self.save_timer = SaveTimer(every, self.communicator, self.position.steps)
        profile = self.settings.profile
        if profile is not None and self.communicator.rank == 0 and not self.position.reason:
            self.profiler = Profiler(profile)
        while not self.position.reason:
            self._train_epoch()
        return self._result()

    # One epoch

    def _train_epoch(self) -> None:
        position, length = self.position, self.length
        epoch, done = divmod(position.steps, length.steps_per_epoch)
        planned = self._plan(epoch=epoch)
        if len(planned) != length.steps_per_epoch:
            raise ValueError(
                f"assignment: deals {len(planned)} steps in epoch {epoch + 1}, and dealt "
                f"{length.steps_per_epoch} in the first. Deal as many in each."
            )
        planned = planned[done : done + length.steps - position.steps]
        batches = self.train_loader.batches([batch for passes in planned for batch in passes], epoch=epoch)
        # The same numbers for dropout whether the run was interrupted before or not. All at once takes a tenth of the
        # time that one between two steps does.
        seeds = [
            derive(self.settings.seed, "step", step, self.communicator.rank)
            for step in range(position.steps, position.steps + len(planned))
        ]
        put_in_training(self.model)
        with closing(batches):
            for seed, passes in zip(seeds, planned, strict=True):
                self._stop_if_asked()
                self._take_step(passes, batches, seed)
                if not length.ends_epoch(position.steps):
                    self._between_steps()
                    if position.reason:
                        return
        self._end_epoch(epoch)

    def _take_step(self, passes: list[Batch], batches: Iterator[tuple[object, object]], seed: int) -> None:
        position, step = self.position, self.position.steps
        begin = time.perf_counter()
        # After these the user's ``report`` was called.
        agree = self.length.ends_epoch(step) or self.length.evaluates(step)
        self.thawing.begin_step(step, agree=agree)
        rates = self._set_learning_rate(step)
        seed_generators(seed)
        taken = self.training_step.take(step, passes, batches, rate=rates[0])
        position.loss_sums += taken["loss"]
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

    def _between_steps(self) -> None:
        """After a step that does not end an epoch."""
        position = self.position
        evaluates = self.length.evaluates(position.steps)
        if evaluates:
            self._refuse_other_buffers()
            _, train_loss = self._mean_losses()
            self._evaluate(train_loss, ends_epoch=False)
        elif self._save_is_due():
            self.saved.save()

    def _end_epoch(self, epoch: int) -> None:
        position = self.position
        self._refuse_other_buffers()
        epoch_loss, train_loss = self._mean_losses()
        _log.debug("epoch %d ends at step %d with loss %g", epoch, position.steps, epoch_loss)
        self.strategy.end_epoch(epoch, epoch_loss)
        position.loss_sums[0] = 0.0
        if self.length.evaluates(position.steps) or not math.isfinite(epoch_loss):
            self._evaluate(train_loss, ends_epoch=True)
        elif self._save_is_due():
            self.saved.save()

    def _evaluate(self, train_loss: float, *, ends_epoch: bool) -> None:
        """Add to the history what ``_scores`` finds, report it, see whether the run is over, and save it.

        Where the epoch goes on, replicas that differ are made one for the evaluation only.
        """
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
            # What is evaluated is what stays, and nothing is averaged twice.
            self.strategy.finalise()
        with ExitStack() as evaluated:
            # Replicas that differ are made one for it, which costs communication.
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
                epoch = position.steps // self.length.steps_per_epoch
                self.strategy.end_epoch(epoch, train_loss)
            if not is_last:
                self.strategy.finalise()
            if self.average is not None:
                self.average.fill()
                reconcile_buffers(self.communicator.service, self.model, parameters=self._differing())
            # It may have merged, and sent, what an early stop left apart.
            entry.update(self.recorder.totals(position, self.strategy))
            self._announce_last_report(len(position.history))
        if settings.report is not None:
            with whole_mode_kept(self.model):
                settings.report(len(position.history), dict(entry))
        if settings.checkpoint_every is None or self._save_is_due() or position.reason:
            self.saved.save(wait=bool(position.reason))

    @contextmanager
    def _made_alike(self, *, ends_epoch: bool) -> Iterator[None]:
        """Context in which all ranks have the model that is to be evaluated; each parameter is averaged once."""
        service = self.communicator.service
        if self.average is not None:
            # Each rank's moving average is its own, whatever its weights are.
            with (
                self.average.in_use(),
                averaged_over_ranks(service, self.model, parameters=self._differing()),
            ):
                yield
            return
        with self.strategy.evaluating():
            # At an epoch's end the weights are the same.
            if ends_epoch or self.strategy.evaluates_alike:
                yield
                return
            with averaged_over_ranks(service, self.model, parameters=self._differing()):
                yield

    def _differing(self) -> list[nn.Parameter]:
        """Parameters of which ranks may have values of their own."""
        return [] if self.strategy.replicated else self.setup.trained.ever()

    def _is_undefined(self) -> bool:
        """Whether early stopping's metric, or each metric, was NaN at each of at least two evaluations in the run's
        first tenth or later: it will stay so. Early evaluations alone may have too little to compute it of. Other
        metrics, of a class that validation has no sample of say, are a warning.
        """
        history, metrics = self.position.history, self.settings.metrics
        if len(history) < 2 or 10 * self.position.steps < self.length.steps:
            return False
        names = [name for name in metrics if all(math.isnan(entry[name]) for entry in history)]
        stopping = self.settings.early_stopping
        ends = bool(names) and (
            len(names) == len(metrics) or (stopping is not None and stopping.metric in names)
        )
        if names and self.communicator.rank == 0 and not self.undefined:
            then = ", and the run ends as diverged" if ends else ""
            warnings.warn(
                f"metrics: {', '.join(names)} {'was' if len(names) == 1 else 'were'} NaN at each of {len(history)} "
                f"evaluations{then}. Where a metric may be undefined for a while, return another number, 0.0 say.",
                stacklevel=2,
            )
        self.undefined = names
        return ends

    def _save_is_due(self) -> bool:
        """Whether ``checkpoint_every`` asks for a checkpoint; asked once after each step, on every rank."""
        every, steps = self.settings.checkpoint_every, self.position.steps
        if self.save_timer is not None:
            return self.save_timer.due(steps)
        return isinstance(every, int) and steps % every == 0

    def _announce_last_report(self, number: int) -> None:
        """Whoever stops runs by their reports must not stop one that is at its end."""
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

    # Parts of a step

    def _plan(self, *, epoch: int) -> list[list[Batch]]:
        settings = self.settings
        # Whatever the user's default device is: generators there are of other numbers.
        with torch.device("cpu"):
            return settings.dealing.epoch(
                samples=length_of(settings.train_set),
                epoch=epoch,
                seed=settings.seed,
                rank=self.communicator.rank,
                ranks=self.communicator.size,
                batch_size=settings.batch_size,
                accumulate=settings.accumulate,
            )

    def _set_learning_rate(self, step: int) -> list[float]:
        """Of each group; the new ones. To read them from tensors would have the host wait for a GPU."""
        rates = []
        for group in self.optimizer.param_groups:
            if "initial_lr" not in group:  # added in mid-run
                group["initial_lr"] = float(group["lr"])
            scheduled = self.settings.schedule.rate(
                group["initial_lr"],
                epoch=step / self.length.steps_per_epoch,
                epochs=self.length.epochs,
                history=self.position.history,
            )
            rate = self.strategy.learning_rate(step, scheduled)
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
            rates.append(float(rate))
        return rates

    # Parts of an evaluation

    def _mean_losses(self) -> tuple[float, float]:
        """Over all ranks' samples since the epoch began, and since the last evaluation."""
        position = self.position
        if self.settings.device.type == "cuda":
            begin = time.perf_counter()
            torch.cuda.synchronize(self.settings.device)
            waited_s = time.perf_counter() - begin
            position.train_s += waited_s
            position.recent_s += waited_s
        of_epoch, of_evaluation = self.recorder.summed(position.loss_sums).tolist()
        of_epoch /= self.communicator.size * ((position.steps - 1) % self.length.steps_per_epoch + 1)
        of_evaluation /= self.communicator.size * (position.steps - position.evaluated_at)
        return of_epoch, of_evaluation

    def _refuse_other_buffers(self) -> None:
        """ValueError if a pass has made a buffer anew, in the shape of this rank's batch, as others have not."""
        buffers = ", ".join(f"{plain_name(n)} {tuple(b.shape)}" for n, b in self.model.named_buffers())
        agreed = {"shapes of the model's buffers at the epoch's end": buffers}
        refuse_other_settings(self.communicator.service, agreed)

    def _scores(self, samples: Dataset[object]) -> Metrics:
        settings = self.settings
        return scores(
            self.model,
            samples,
            self._validation_loader(samples),
            forward=settings.forward,
            metrics={"validation_loss": settings.loss or MeanLoss(settings.device), **settings.metrics},
            batch_size=settings.evaluation_batch_size,
            precision=settings.precision,
            channel=self.communicator.service,
        )

    def _stop_if_asked(self) -> None:
        interrupt = self.settings.interrupt
        if interrupt is not None and interrupt():
            self.saved.save(wait=True)
            epoch, step = divmod(self.position.steps, self.length.steps_per_epoch)
            checkpoint = self.saved.checkpoint
            kept = (
                f"saved in {checkpoint}"
                if checkpoint is not None
                else "nothing is saved, as no checkpoint was named"
            )
            # In no variable here: the frame and the error would hold on to each other, and to the model.
            raise _interrupted(
                f"stopped in epoch {epoch + 1} after {step} steps of it; {kept}", saved=checkpoint is not None
            )


def _interrupted(text: str, *, saved: bool) -> Interrupted:
    made = Interrupted(text)
    made.saved = saved
    return made
