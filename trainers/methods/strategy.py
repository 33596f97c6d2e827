"""The interface between the loop and the training methods: what a method implements.

A method is a frozen record of settings; at the start of a run it makes its strategy, which holds the run's
state. The loop calls, at each optimizer step and on every rank:

    learning_rate
    before_pass(last=False), forward, backward     for each accumulated batch but the last
    before_pass(last=True), forward, backward
    reduce_gradients, [clip], optimizer step, after_step

and, when an epoch is over, ``end_epoch``, then the evaluation, if there is one, inside ``evaluating``;
``finalise`` after the last step. An evaluation within an epoch comes inside ``evaluating``, too, where the loop
averages what still differs between ranks, and gives each rank its own back afterwards. ``state`` may be asked
for before any step, ``load`` comes before the first. Every hook may communicate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from trainers.arguments import is_integer, is_number
from trainers.communication.communicator import Communicator
from trainers.communication.topology import Ranks
from trainers.methods.trained_parameters import TrainedParameters

State = Mapping[str, object]
"""Tensors, numbers, strings and lists and dictionaries of them."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a strategy works with. Parameters are the same on all ranks when it is made.

    Attributes:
        model (Module): in training.
        optimizer (Optimizer): of its trained parameters.
        communicator (Communicator): the ranks, all and of this node.
        epochs (int): of the run.
        steps_per_epoch (int): optimizer steps.
        batch_size (int): samples that a rank takes at a step, in all passes together.
        seed (int): of the run.
        steps (int; default None): of the run; None: those of its epochs. Fewer where the last epoch is cut short.
    """

    model: nn.Module
    optimizer: Optimizer
    communicator: Communicator
    epochs: int
    steps_per_epoch: int
    batch_size: int
    seed: int
    steps: int | None = None
    trained: TrainedParameters = field(init=False, repr=False, compare=False)
    """Trained parameters of the model, which a strategy asks for those that it has to exchange."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "trained", TrainedParameters(self.model))

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the run."""
        return self.epochs * self.steps_per_epoch if self.steps is None else self.steps


class Strategy:
    """One method at work in one run. A hook that a method does not need it inherits: here they do nothing.

    A strategy that exchanges parameters (decompositions) does so in the model and in the optimizer, each
    trained parameter in the latter exactly once, and then calls ``parameters_changed`` of a strategy that it
    has under it.
    """

    @property
    def replicated(self) -> bool:
        """Whether, between steps, parameters and optimizer state are the same on all ranks: saved once then."""
        return False

    @property
    def replica(self) -> Ranks | None:
        """Where not all ranks are, the ones, with this one, that are the same in this way, and in what ``state`` has
        beyond ``own_state``: saved once then. None: this rank alone.
        """
        return None

    @property
    def reparametrises(self) -> bool:
        """Whether it replaces parameters, or their coordinates, during a run, so that they have no average of steps."""
        return False

    @property
    def evaluates_alike(self) -> bool:
        """Whether inside ``evaluating`` all ranks have the same model between any two steps; else the loop averages
        within an epoch what differs.
        """
        return False

    @property
    def plans_ahead(self) -> bool:
        """Whether what it does at a step depends on how many steps the run has, or its end leaves another state than
        the same step within a longer run: then no run is made longer by it.
        """
        return True

    @property
    def changes_rate(self) -> bool:
        """Whether ``learning_rate`` may give another rate than the scheduled one. In a loop of the user's own it is
        asked for only then: reading a rate that is a tensor on a GPU would have the host wait for it.
        """
        return type(self).learning_rate is not Strategy.learning_rate

    def before_pass(self, step: int, *, last: bool) -> None:
        """A forward and backward pass follows; with ``last`` it completes the gradients of ``step``. In a loop of the
        user's own it comes with ``last`` between forward and backward, after one without before the forward pass.
        """

    def reduce_gradients(self, step: int) -> None:
        """Turn this rank's gradients, of step ``step``, into those that the optimizer shall use."""

    def learning_rate(self, step: int, scheduled: float) -> float:
        """The rate to use at ``step`` where the schedule says ``scheduled``."""
        return scheduled

    def after_step(self, step: int, loss: Tensor) -> None:
        """The optimizer has taken ``step``; ``loss`` is this rank's, detached, without dimensions."""

    def end_epoch(self, epoch: int, train_loss: float) -> None:
        """``epoch`` is over; ``train_loss`` is its mean loss over all ranks. Buffers must agree on all ranks
        afterwards, or inside ``evaluating`` at the latest.
        """

    def evaluating(self) -> AbstractContextManager[None]:
        """Inside, the model is what the evaluation shall see, the same on all ranks, and ``state`` holds its
        shapes. Entered only where there is something to evaluate or to keep; what it sends should count as
        ``Communicator.service``.
        """
        return nullcontext()

    def finalise(self) -> None:
        """No step follows: leave the model in its final state, the same on all ranks."""

    def synchronise(self) -> None:
        """Make the trained parameters the same on all ranks, now; nothing is left under way."""

    def parameters_changed(self) -> None:
        """The set of trained parameters, or the shape of one, is not what it was."""

    def parameters_thawed(self) -> None:
        """The user has thawed parameters, which are the same on all ranks, or given the optimizer more; called before a
        step, on all ranks.
        """
        self.synchronise()
        self.parameters_changed()

    def metrics(self) -> dict[str, float]:
        """Further numbers to record with each epoch, the same on all ranks."""
        return {}

    def state(self) -> State:
        """This rank's state, for ``load`` to go on from bit for bit."""
        return {}

    def own_state(self) -> State:
        """Of ``state`` the entries, also in dictionaries in it, that are not the same on all ranks of ``replica``."""
        return self.state()

    def load(self, state: State) -> None:
        """Take up ``state``. Gives model and optimizer the shapes of then, for the loop to fill them next."""

    def shapes(self) -> State:
        """What ``load_shapes`` needs for the shapes that the model has now, which are the same on all ranks; nothing
        where a run never changes them. Rank 0's is what all take up.
        """
        return self.state() if self.reparametrises else {}

    def load_shapes(self, saved: State) -> None:
        """Give the model the shapes of when ``shapes`` gave ``saved``, for the loop to fill them next. After the last
        step.
        """
        if self.reparametrises:
            self.load(saved)

    def state_on_other_ranks(self, states: Sequence[State], *, step: int, same_steps: bool) -> State | None:
        """What ``load`` shall take up on each of these ranks to go on at ``step`` where ranks of another number, or on
        other nodes, had ``states``, in order of rank, and all the same parameters and optimizer state (``replicated``,
        as it is here before the first step). None, as here, if the method cannot.

        Args:
            states (sequence of dict): of ``state``, one a rank.
            step (int): of the run as these ranks count.
            same_steps (bool): whether they count as those did; else a step has another number of samples.
        """
        return None

    def close(self) -> None:
        """Take everything off the model that was put there: hooks, wrappers."""


Steps = int | float
"""A number of optimizer steps if an int, a fraction of all steps of the run if a float."""


def steps_of(value: Steps, total: int) -> int:
    """``value`` as a number of steps of a run of ``total``."""
    return int(value) if is_integer(value) else round(float(value) * total)


def check_steps(owner: str, name: str, value: Steps, *, least: int = 0) -> None:
    """ValueError unless ``value`` is a whole number of at least ``least``, or a fraction from 0 to 1."""
    if not is_number(value):
        allowed = False
    elif is_integer(value):
        allowed = value >= least
    else:
        allowed = 0 <= value <= 1 and (value > 0 or least == 0)
    if not allowed:
        raise ValueError(
            f"{owner}({name}={value!r}): {name} must be a number of steps of at least {least}, or as a float "
            "a fraction of all steps, from 0.0 to 1.0. Correct it."
        )


def check_method(said: str, method: object) -> None:
    """ValueError, beginning with what was ``said``, unless ``method`` is a method's settings."""
    if isinstance(method, type) or not callable(getattr(method, "strategy", None)):
        name = method.__name__ if isinstance(method, type) else "DDP"
        raise ValueError(f"{said}: must be a method's settings. Pass {name}(), say.")


def refuse_synchronised_norms(owner: str, model: nn.Module) -> None:
    """ValueError if layers of ``model`` exchange statistics in each pass, over ranks that train apart."""
    for name, module in model.named_modules():
        if isinstance(module, nn.SyncBatchNorm):
            raise ValueError(
                f"{owner}: {name or 'the model'} is a SyncBatchNorm, which has ranks wait for one another in "
                "each pass, and here they train apart. Use BatchNorm, whose buffers are averaged, or DDP."
            )


class Method(Protocol):
    """The settings of a training method."""

    def strategy(self, setup: Setup) -> Strategy:
        """The strategy for one run. ValueError, with what to do, if it cannot work with this setup."""
        ...
