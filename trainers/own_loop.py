"""``trainers.wrap``: the training methods for a loop of the user's own."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from trainers.arguments import check_argument, is_integer, is_whole
from trainers.checkpoints.contents import FROZEN, form_of
from trainers.communication.buckets import averaged_over_ranks, reconcile_buffers
from trainers.communication.communicator import Communicator
from trainers.communication.rank_consistency import refuse_alone_among_many, refuse_other_optimizers
from trainers.communication.topology import Topology
from trainers.evaluation.evaluate import current, device_of
from trainers.methods.ddp import DDP
from trainers.methods.strategy import Method, Setup, preparation_of
from trainers.names import plain, plain_name, renamed
from trainers.optim.composite import parameters_in
from trainers.precision import autocast_as_now, without_autocast
from trainers.run.model_checks import (
    EXCHANGE,
    agree_on_start,
    check_kinds_of,
    check_optimizer,
    refuse_foreign_tensors,
    refuse_held,
    refuse_wrapped,
)
from trainers.run.recording import summed, summed_by_name
from trainers.run.thawing import Thawing
from trainers.run.training_step import set_rate

_wrapped_optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()


def wrap(
    model: nn.Module,
    optimizer: Optimizer,
    *,
    epochs: int,
    steps_per_epoch: int,
    method: Method | None = None,
    topology: Topology | None = None,
    timeout: timedelta = timedelta(minutes=10),
    group: dist.ProcessGroup | None = None,
    seed: int = 0,
) -> Wrapped:
    """Have a loop of your own train ``model`` by ``method``, with the ranks of the initialised group, or alone.

    The loop says ``run.backward(loss)`` in place of ``loss.backward()``, with ``run`` from
    ``with trainers.wrap(…) as run``. The rest stays: clipping, ``optimizer.step()``, schedulers. Every rank deals
    itself its own share of the data, and takes the same steps. Several models with an optimizer each are each wrapped;
    only the model whose ``run.backward`` is called exchanges gradients.

    Args:
        model (Module): model on the device where it is to be trained. Rank 0's parameters and buffers count.
        optimizer (Optimizer): optimizer of all parameters of ``model`` that require a gradient; it may have frozen
            parameters, too, which are trained by ``method`` once they are thawed.
        epochs (int, from 1): length of the run, of which methods have phases; all steps must be taken, or the ``with``
            block be left on all ranks after the same step.
        steps_per_epoch (int, from 1): optimizer steps in each epoch, the same on all ranks. After the last of them
            parameters and buffers are the same on all ranks, but for AB's groups and
            ``LocalSGD(average_at_epoch_end=False)``: evaluate inside ``evaluating``.
        method (Method; default None): how ranks work together; None: ``DDP()``.
        topology (Topology; default None): which ranks share a node; None: those with the same host name.
        timeout (timedelta; default timedelta(minutes=10)): how long ranks wait for one another.
        group (ProcessGroup; default None): ranks that train together; this rank must be in it. None: all ranks.
        seed (int; default 0): seed of what a method draws.

    Raises:
        ValueError: settings are not allowed or differ between ranks, or the method cannot work with this model or
            optimizer.
        CommunicationError: a rank is lost or hangs.
    """
    method = DDP() if method is None else method
    check_kinds_of(model=model, method=method, topology=topology, timeout=timeout)
    if preparation_of(method) is not None:
        raise ValueError(
            f"method = {type(method).__name__}: replaces parameters before the optimizer is made, and here there is "
            "one. With it, use trainers.train; or take another method, such as DDP."
        )
    for name, value, allowed, rule in (
        ("optimizer", optimizer, isinstance(optimizer, Optimizer), "one torch.optim.Optimizer, of the model"),
        ("epochs", epochs, is_whole(epochs, 1), "a whole number of at least 1"),
        ("steps_per_epoch", steps_per_epoch, is_whole(steps_per_epoch, 1), "a whole number of at least 1"),
        ("seed", seed, is_integer(seed), "a whole number, the same on all ranks"),
    ):
        check_argument(name, value, allowed, rule)
    epochs, steps_per_epoch, seed = int(epochs), int(steps_per_epoch), int(seed)
    check_optimizer(optimizer)
    _refuse_other_parameters(model, optimizer)
    refuse_alone_among_many()
    device = device_of(model)
    with _own_precision(device):
        communicator = Communicator(topology=topology, timeout=timeout, device=device, among=group)
        try:
            agreed = {"epochs": epochs, "steps_per_epoch": steps_per_epoch, "seed": seed}
            agree_on_start(communicator, model, method, agreed, saved=False)
            refuse_other_optimizers(communicator.service, optimizer)
            setup = Setup(
                model=model,
                optimizer=optimizer,
                communicator=communicator,
                epochs=epochs,
                steps_per_epoch=steps_per_epoch,
                batch_size=1,
                seed=seed,
            )
            return Wrapped(setup, method)
        except BaseException:
            communicator.close()
            raise


class Wrapped:
    """A model and its optimizer at work by a method; made by ``trainers.wrap``, a context manager.

    At the end of its ``with`` block the model is in its final state, the same on all ranks, hooks are gone, and process
    groups are gone or kept for the next run of these ranks; where the block ends with an error, no rank waits for
    another.
    """

    def __init__(self, setup: Setup, method: Method) -> None:
        """Called by ``trainers.wrap``."""
        self._setup = setup
        self._model, self._optimizer = setup.model, setup.optimizer
        self._communicator = setup.communicator
        self._device = setup.communicator.device
        self._identity = {
            "method": repr(method),
            "nodes": repr(setup.communicator.nodes),
            "epochs": str(setup.epochs),
            "steps_per_epoch": str(setup.steps_per_epoch),
            "optimizer": type(setup.optimizer).__name__,
        }
        self._strategy = method.strategy(setup)
        if self._strategy.reparametrises:
            remedy = "Wrap an ordinary optimizer, with groups for different settings, or take another method, such as "
            refuse_held(self._optimizer, EXCHANGE, remedy=f"{remedy}DDP.")
        self._thawing = Thawing(setup, self._strategy)
        self._communicator.release()
        self._identity |= {f"parameter {name}": form for name, form in form_of(self._model).items()}
        self._step = 0
        self._begun = False
        """Whether the forward pass of this step has begun."""
        self._passed = False
        """Whether a backward pass of this step is over."""
        self._reduced = False
        """Whether gradients are those that the optimizer shall use."""
        self._loss = self._no_loss()
        """This rank's loss of the step."""
        self._loss_sum = self._no_loss()
        """This rank's losses of the epoch so far."""
        self._rates: list[float | Tensor] = []
        self._closed = False
        # Hooks of two runs on one optimizer would exchange its gradients twice.
        _wrapped_optimizers.add(self._optimizer)
        self._hooks = [
            # Not compiled with a model that is compiled in place, as ranks exchange numbers in it.
            self._model.register_forward_pre_hook(
                torch.compiler.disable(self._on_forward)  # type: ignore[no-untyped-call]
            ),
            self._optimizer.register_step_pre_hook(self._before_step),
            self._optimizer.register_step_post_hook(self._after_step),
        ]

    def begin_step(self) -> None:
        """Begin a step before its forward pass, as the model's own call does.

        Only where parts of the model are called by themselves, as in ``model.encoder(inputs)``, call this first in
        every step.
        """
        if self._begun or self._step == self._setup.total_steps:
            return
        self._begun = True
        with _own_precision(self._device):
            self._thawing.begin_step(self._step, agree=self._step % self._setup.steps_per_epoch == 0)
            self._strategy.before_pass(self._step, last=False)

    def backward(self, loss: Tensor, *, last: bool = True, **arguments: Any) -> None:
        """``loss.backward()``, and the gradients become those that the optimizer shall use: the ranks' mean, or what
        the method makes of them.

        Args:
            loss (Tensor, without dimensions): a mean over this rank's samples, not scaled: some methods decide by it.
                Where a step has several passes, divided by their number.
            last (bool; default True): False: another backward pass of the same step follows, and nothing is sent yet.
            **arguments: arguments of ``torch.autograd.backward``, such as ``retain_graph``.

        Raises:
            RuntimeError: the model has not been called in this step, all steps are taken, or the optimizer has left a
                step out, which ranks whose gradients differ cannot.
            CommunicationError: a rank is lost or hangs.
        """
        if self._step == self._setup.total_steps:
            raise RuntimeError(
                f"run.backward(loss): all {self._step} steps of the run are taken, {self._setup.epochs} epochs of "
                f"{self._setup.steps_per_epoch}. Give trainers.wrap as many as the loop takes."
            )
        if self._reduced:
            if not self._strategy.replicated:
                raise RuntimeError(
                    "run.backward(loss): the optimizer has taken no step with the gradients of the last one. Where a "
                    "step takes several passes, all but the last need last=False. Where steps are left out, as by "
                    "torch's GradScaler, ranks would leave out others: train in bfloat16, which needs no scaler."
                )
            self._loss = self._no_loss()  # all ranks have left the same step out
        if not self._begun:
            raise RuntimeError(
                "run.backward(loss): the model has not been called in training since the last step. Call it, or "
                "run.begin_step() before its parts, or before it where it is in eval(), and compute the loss again."
            )
        with _own_precision(self._device):
            self._strategy.before_pass(self._step, last=last)
        with current(self._device):
            torch.autograd.backward(loss, **arguments)
            self._loss += loss.detach().reshape(())
        if last:
            with _own_precision(self._device):
                self._strategy.reduce_gradients(self._step)
        self._passed, self._reduced = True, last

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Context, after an epoch's last step, in which all ranks have the same model, to be evaluated.

        Every rank enters. Between other steps the ranks of DASO, LocalSGD and AB have models of their own.
        """
        strategy = self._strategy
        # A loop that leaves steps out, as torch's GradScaler does, evaluates before the last step of its epoch.
        buffers = averaged_over_ranks(self._communicator.service, self._model, parameters=())
        agreed = buffers if strategy.replicated and not strategy.evaluates_alike else nullcontext()
        as_caller_has_it = autocast_as_now(self._device)
        with _own_precision(self._device), strategy.evaluating(), agreed, as_caller_has_it:
            yield

    def metrics(self) -> dict[str, float]:
        """Present metrics of the method: bytes sent by all ranks between and inside nodes, the mean seconds that ranks
        waited, and what ``trainers.train`` would add to its metrics. Every rank calls it.
        """
        with _own_precision(self._device):
            totals = summed_by_name(self._communicator, self._communicator.traffic())
            of_method = self._strategy.metrics()
        of_method.pop("effective_batch_size", None)  # the batch size is the loop's
        return {**totals, **of_method}

    def state_dict(self) -> dict[str, object]:
        """State of the model, the optimizer and the method, from which this rank goes on bit for bit after this step:
        tensors, numbers, strings, lists and dictionaries of them; not copied. Save each rank's own: replicas differ.

        A step that the optimizer has left out is not counted: the next step has its number.

        Raises:
            RuntimeError: in the midst of a step. It is over with ``optimizer.step()`` or, where gradients are the same
                on all ranks, with the last ``run.backward``, after which the optimizer may leave it out: what is saved
                there goes on without that step.
        """
        if self._passed and not (self._reduced and self._strategy.replicated):
            raise RuntimeError(
                "run.state_dict(): in the midst of a step, whose gradients are not kept. Save after optimizer.step()."
            )
        refuse_held(
            self._optimizer,
            "loading this state",
            remedy="Give its class a state_dict and a load_state_dict that save both, or wrap an ordinary optimizer.",
            loaded=True,
        )
        return {
            "identity": self._identity,
            "changed": self._thawing.state(),
            "step": self._step,
            "loss_sum": self._loss_sum,
            "model": plain(self._model.state_dict()),
            # Also those that the model's state leaves out.
            "buffers": plain(dict(self._model.named_buffers())),
            "optimizer": self._optimizer.state_dict(),
            "strategy": renamed(dict(self._strategy.state()), plain_name),
            "counters": self._communicator.counters(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state``, which this rank's ``state_dict`` gave. Before the first step, on all ranks.

        Raises:
            ValueError: it is of another run.
        """
        # The loop may have thawed these by now. A method that factors weights has chosen among those of the begin.
        thawed = () if self._strategy.reparametrises else state.get("changed", {}).get("trained", ())
        differing = []
        for name, was in state["identity"].items():
            now = self._identity.get(name, "not there")
            if name.removeprefix("parameter ") in thawed:
                was, now = was.removesuffix(FROZEN), now.removesuffix(FROZEN)
            if was != now:
                differing.append(f"{name} was {was}, is {now}")
        if differing:
            raise ValueError(
                f"run.load_state_dict: the state is of another run: {'; '.join(differing)}. Give wrap the same "
                "settings, model and ranks, or start from the beginning."
            )
        with _own_precision(self._device):
            self._thawing.fill(state, where="the given state")
            self._step = state["step"]
            self._loss_sum.copy_(state["loss_sum"])

    def close(self) -> None:
        """Leave the model in its final state, and remove the hooks, as the end of the ``with`` block does.

        Every rank calls it, after the same step.
        """
        # After an error, as in a ``finally``, the other ranks may be anywhere.
        self._close(finalise=sys.exc_info()[0] is None)

    def _close(self, *, finalise: bool, keep: bool = False) -> None:
        if self._closed:
            return
        try:
            if finalise and self._step < self._setup.total_steps:
                with _own_precision(self._device):
                    self._strategy.finalise()
                    reconcile_buffers(self._communicator.service, self._model)
            keep = keep or finalise
        finally:
            self._closed = True
            _wrapped_optimizers.discard(self._optimizer)
            for hook in self._hooks:
                hook.remove()
            with _own_precision(self._device):
                self._strategy.close()
            self._communicator.close(keep=keep)

    def __enter__(self) -> Wrapped:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Not by sys.exc_info: the whole block may stand in an ``except``.
        self._close(finalise=kind is None, keep=getattr(error, "on_all_ranks", False) is True)

    # Called by the model and the optimizer

    def _on_forward(self, model: nn.Module, inputs: object) -> None:
        if model.training and torch.is_grad_enabled():
            self.begin_step()

    def _before_step(self, optimizer: Optimizer, arguments: object, named: object) -> None:
        if not self._reduced:
            raise RuntimeError(
                "optimizer.step(): the gradients are this rank's alone. Call run.backward(loss) in place of "
                "loss.backward() before it, the last time in a step without last=False."
            )
        self._thawing.check_step()
        if self._strategy.changes_rate:
            rates = [group["lr"] for group in optimizer.param_groups]
            # Kept for after the step, as schedulers go on from the rates that they have set.
            self._rates = [rate.clone() if isinstance(rate, Tensor) else rate for rate in rates]
            self._set_rates([self._strategy.learning_rate(self._step, float(rate)) for rate in self._rates])

    def _after_step(self, optimizer: Optimizer, arguments: object, named: object) -> None:
        if self._strategy.changes_rate:
            self._set_rates(self._rates)
        setup, loss = self._setup, self._loss
        with _own_precision(self._device):
            self._strategy.after_step(self._step, loss)
            self._loss_sum += loss
            self._loss = self._no_loss()
            self._step += 1
            self._begun = self._passed = self._reduced = False
            if self._step % setup.steps_per_epoch == 0:
                mean = summed(self._communicator, self._loss_sum).item() / self._communicator.size
                epoch = self._step // setup.steps_per_epoch - 1
                self._strategy.end_epoch(epoch, mean / setup.steps_per_epoch)
                self._loss_sum.zero_()
            if self._step == setup.total_steps:
                self._strategy.finalise()

    def _set_rates(self, rates: list[float | Tensor] | list[float]) -> None:
        for group, rate in zip(self._optimizer.param_groups, rates, strict=True):
            set_rate(group, rate)

    def _no_loss(self) -> Tensor:
        return torch.zeros((), dtype=torch.float64, device=self._device)


@contextmanager
def _own_precision(device: torch.device) -> Iterator[None]:
    """Context of a method's own work: ``device`` is the current device, and the caller's autocast does nothing."""
    with current(device), without_autocast(device):
        yield


def _refuse_other_parameters(model: nn.Module, optimizer: Optimizer) -> None:
    """ValueError unless ``optimizer`` has just the parameters of ``model`` that are trained, and they are whole."""
    refuse_wrapped(model)
    trained = {id(p): name for name, p in model.named_parameters() if p.requires_grad}
    if not trained:
        raise ValueError(
            "model: no parameter requires a gradient, and there is nothing to train. Wrap another."
        )
    if optimizer in _wrapped_optimizers:
        raise ValueError("optimizer: it is wrapped already. Wrap it once, or close the first run before.")
    refuse_foreign_tensors(
        model.parameters(),
        optimizer,
        remedy="Make it from model.parameters(), one optimizer a model.",
    )
    if missing := [name for identity, name in trained.items() if identity not in parameters_in(optimizer)]:
        raise ValueError(
            f"optimizer: it lacks {missing[0]} of the model, and a step is that of one optimizer. Give it all "
            "parameters, with groups for different settings, or freeze this one: requires_grad_(False)."
        )
