"""Interface between the training loop and the training methods.

A method is a frozen record of settings; at the start of a run it makes its strategy, which has the run's state. The
loop calls, at each optimizer step and on all ranks:

    learning_rate
    before_pass(last=False), forward, backward     for each accumulated batch but the last
    before_pass(last=True), forward, backward
    reduce_gradients, [clip], optimizer step, after_step

At the end of an epoch it calls ``end_epoch``, and then evaluates, if there is something to evaluate, inside
``evaluating``; after the last step it calls ``finalise``. An evaluation within an epoch is inside ``evaluating`` too,
where the loop averages parameters that still differ between ranks, and restores each rank's own afterwards. ``state``
may be called before any step, and ``load`` is called before the first step. All hooks may communicate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol
from weakref import WeakValueDictionary

from torch import Tensor, nn
from torch.optim import Optimizer

from trainers.arguments import is_integer, is_number
from trainers.communication.averager import GradientAverager
from trainers.communication.channel import Channel
from trainers.communication.communicator import Communicator
from trainers.communication.topology import Ranks

State = Mapping[str, Any]
"""Structure of tensors, numbers and strings in lists and dictionaries."""


@dataclass(frozen=True)
class DataRanks:
    """Place of a rank among those that get different samples: ranks that share a model's layers get the same.

    Args:
        rank (int): this rank's number among them, from 0.
        ranks (int): how many there are.
    """

    rank: int
    ranks: int


class TrainedParameters:
    """Trained parameters of ``model``, and those whose gradients or values a strategy exchanges.

    A strategy calls ``exchanged`` whenever it makes an averager of parameters, on a single rank too.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._exchanged: dict[int, nn.Parameter] = {}
        # Weak references, because parameters that a decomposition has replaced would stay in memory otherwise.
        self._ever: WeakValueDictionary[int, nn.Parameter] = WeakValueDictionary()
        self.asked = False
        """Whether a strategy has called ``exchanged``."""

    def exchanged(self) -> list[nn.Parameter]:
        """Parameters that require a gradient now, in the model's order, which the caller exchanges from now on."""
        self.asked = True
        found = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        self._exchanged = {id(parameter): parameter for parameter in found}
        self._ever.update(self._exchanged)
        return found

    def ever(self) -> list[nn.Parameter]:
        """Parameters that are trained, or were trained before they were frozen."""
        # Ranks that train independently may differ in both.
        return [p for p in self._model.parameters() if p.requires_grad or self._ever.get(id(p)) is p]

    def frozen(self) -> list[nn.Parameter]:
        """Exchanged parameters that the user has frozen since, in the model's order."""
        return [parameter for parameter in self._exchanged.values() if not parameter.requires_grad]

    def beside(self, groups: Iterable[Mapping[str, Any]]) -> list[nn.Parameter]:
        """Parameters in an optimizer's ``groups`` that are not exchanged."""
        known = self._exchanged
        return [parameter for group in groups for parameter in group["params"] if id(parameter) not in known]

    def __contains__(self, parameter: nn.Parameter) -> bool:
        """Whether ``parameter`` is exchanged."""
        return id(parameter) in self._exchanged


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Model, optimizer and ranks of a run, whose parameters are equal on all ranks when a strategy is made.

    Attributes:
        model (Module): model to train.
        optimizer (Optimizer): optimizer of the model's trained parameters.
        communicator (Communicator): channels between the ranks.
        epochs (int): epochs of the run.
        steps_per_epoch (int): optimizer steps of an epoch.
        batch_size (int): samples of a rank in a step, in all passes together.
        seed (int): seed of the run.
        steps (int; default None): optimizer steps of the run, fewer than those of its epochs if the last is shortened;
            None: those of its epochs.
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
    """Trained parameters of the model, from which a strategy gets those to exchange."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "trained", TrainedParameters(self.model))

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the run."""
        return self.epochs * self.steps_per_epoch if self.steps is None else self.steps


class Strategy:
    """A training method in a run; the hooks of this base class, which a method may inherit, do nothing.

    A strategy that replaces parameters (decompositions) does so in the model and in the optimizer, in which each
    trained parameter must be exactly once, and then calls ``parameters_changed`` of the strategy that it uses, if any.
    """

    @property
    def replicated(self) -> bool:
        """Whether parameters and optimizer state are equal on all ranks between steps, so that they are saved once."""
        return False

    @property
    def sharded(self) -> bool:
        """Whether parameters and optimizer state are parts of one state: DTensors, of which each rank has its shard.
        Tensors of other classes are then equal on all ranks. It is saved once, and continued on any number of ranks.
        Where there is a ``replica``, all of this holds for its ranks alone, and these go on on their own number.
        """
        return False

    @property
    def equal_passes(self) -> bool:
        """Whether each forward pass communicates, so that all ranks evaluate with the same number of passes."""
        return self.sharded

    @property
    def replica(self) -> Ranks | None:
        """Ranks, this rank included, whose parameters, optimizer state and ``state`` without ``own_state`` are equal,
        so that they are saved once, where not all ranks are; None: this rank alone.
        """
        return None

    @property
    def copies(self) -> Channel | None:
        """Channel of the ranks with the same parts of a sharded model, which may have values of their own between
        steps; None: there are none.
        """
        return None

    @property
    def reparametrises(self) -> bool:
        """Whether the strategy replaces parameters or their coordinates in a run, so that steps have no average."""
        return False

    @property
    def evaluates_alike(self) -> bool:
        """Whether all ranks have the same model inside ``evaluating`` between any two steps; otherwise, the loop
        averages parameters that differ within an epoch.
        """
        return False

    @property
    def plans_ahead(self) -> bool:
        """Whether steps depend on the length of the run, or its end leaves another state than the same step of a longer
        run, so that a finished run cannot be continued to be longer.
        """
        return True

    @property
    def changes_rate(self) -> bool:
        """Whether ``learning_rate`` may give another rate than the schedule."""
        # A loop of the user's own calls it only in that case, because reading a rate that is a tensor on a GPU would
        # make the host wait.
        return type(self).learning_rate is not Strategy.learning_rate

    def before_pass(self, step: int, *, last: bool) -> None:
        """Prepare for a forward and backward pass, which with ``last`` completes the gradients of ``step``.

        A loop of the user's own calls it without ``last`` before the forward pass, and then with ``last`` between the
        forward and the backward pass.
        """

    def reduce_gradients(self, step: int) -> None:
        """Replace this rank's gradients of ``step`` by those that the optimizer has to use."""

    def clip(self, parameters: Sequence[nn.Parameter], largest: float) -> Tensor:
        """Scale the gradients of ``parameters`` in place so that their norm is at most ``largest``; returns the norm
        that they had.
        """
        return nn.utils.clip_grad_norm_(parameters, largest).detach()

    def learning_rate(self, step: int, scheduled: float) -> float:
        """Learning rate at ``step``, for which the schedule gives ``scheduled``."""
        return scheduled

    def after_step(self, step: int, loss: Tensor) -> None:
        """Continue after the optimizer's ``step``. ``loss``: this rank's loss, detached, without dimensions."""

    def end_epoch(self, epoch: int, train_loss: float) -> None:
        """Finish ``epoch``, whose mean loss over all ranks is ``train_loss``.

        Buffers must be equal on all ranks afterwards, or at the latest inside ``evaluating``.
        """

    def evaluating(self) -> AbstractContextManager[None]:
        """Context in which the model is the model to evaluate, equal on all ranks, and ``state`` has its shapes.

        It is used only if there is something to evaluate or to save; its messages should count as those of
        ``Communicator.service``.
        """
        return nullcontext()

    def finalise(self) -> None:
        """Leave the model in its final state, equal on all ranks, after the last step."""
        self.synchronise()

    def synchronise(self) -> None:
        """Make the trained parameters equal on all ranks, and wait for that."""

    def parameters_changed(self) -> None:
        """Adapt to a change of the set of trained parameters, or of the shape of a trained parameter.

        Parameters are equal on all ranks then, as ``synchronise`` leaves them.
        """

    def parameters_thawed(self) -> None:
        """Adapt to parameters that the user has thawed or added to the optimizer, and which are equal on all ranks.

        Called before a step, on all ranks.
        """
        self.synchronise()
        self.parameters_changed()

    def metrics(self) -> dict[str, float]:
        """Further numbers to record with each epoch, equal on all ranks."""
        return {}

    def model_state(self, model: nn.Module) -> dict[str, Any]:
        """State of ``model``, a dictionary by name, that checkpoints keep."""
        return model.state_dict()

    def load_model_state(self, model: nn.Module, state: Mapping[str, Any]) -> None:
        """Load ``state``, of the names and shapes of ``model_state``, into ``model``; RuntimeError if it is of another
        model."""
        model.load_state_dict(state)

    def state(self) -> State:
        """State of this rank, from which ``load`` continues bit for bit."""
        return {}

    def own_state(self) -> State:
        """Entries of ``state``, and of dictionaries in it, that differ between the ranks of ``replica``."""
        return self.state()

    def load(self, state: State) -> None:
        """Restore ``state``, and give model and optimizer the shapes that they had, for the loop to fill."""

    def shapes(self) -> State:
        """Description of the model's present shapes for ``load_shapes``, equal on all ranks, of which rank 0's is used;
        empty if a run never changes them.
        """
        return self.state() if self.reparametrises else {}

    def load_shapes(self, saved: State) -> None:
        """Give the model the shapes described by ``saved``, for the loop to fill, after the last step."""
        if self.reparametrises:
            self.load(saved)

    def state_on_other_ranks(self, states: Sequence[State], *, step: int, same_steps: bool) -> State | None:
        """State for ``load`` on each of these ranks, from the states of another number of ranks, or on other nodes.

        The other ranks had equal parameters and optimizer state (``replicated``, as before the first step). None, as
        here, if the method cannot continue on other ranks.

        Args:
            states (sequence of dict): results of ``state``, in order of rank.
            step (int): step to continue at, in the count of these ranks.
            same_steps (bool): whether a step has the same number of samples as before.
        """
        return None

    def close(self) -> None:
        """Remove hooks and wrappers from the model."""


class AveragingStrategy(Strategy):
    """Strategy with an averager of gradients, whenever ranks train together."""

    _averager: GradientAverager | None = None

    def before_pass(self, step: int, *, last: bool) -> None:
        if last and self._averager is not None:
            self._averager.arm()

    def reduce_gradients(self, step: int) -> None:
        if self._averager is not None:
            self._averager.finish()

    def close(self) -> None:
        if self._averager is not None:
            self._averager.close()
            self._averager = None


class Method(Protocol):
    """Settings of a training method.

    A method may also have ``prepare(model, communicator)``, which returns ``DataRanks``; None where its settings need
    no preparation. It is called on all ranks before the optimizer is made, and may replace the model's parameters, as
    sharding does. It keeps nothing in the method, whose settings are used again. Ranks have equal models then, and the
    autocast of the run's precision is on.
    """

    def strategy(self, setup: Setup) -> Strategy:
        """Strategy of a run; ValueError, with what to do, if the method cannot work with this setup."""
        ...


Steps = int | float
"""Number of optimizer steps as an int, or fraction of all steps of the run as a float."""


def steps_of(value: Steps, total: int) -> int:
    """``value`` as a number of steps in a run of ``total`` steps."""
    return int(value) if is_integer(value) else round(float(value) * total)


def check_steps(owner: str, name: str, value: Steps, *, least: int = 0, unit: str = "steps") -> None:
    """Raise ValueError unless ``value`` is a whole number of at least ``least``, or a fraction from 0 to 1."""
    if is_integer(value):
        allowed = value >= least
    else:
        allowed = is_number(value) and 0 <= value <= 1 and (value > 0 or least == 0)
    if not allowed:
        raise ValueError(
            f"{owner}({name}={value!r}): {name} must be a number of {unit} of at least {least}, or as a float "
            "a fraction of the run, from 0.0 to 1.0. Correct it."
        )


Prepare = Callable[[nn.Module, Communicator], DataRanks]


def preparation_of(method: Method) -> Prepare | None:
    """The method's ``prepare``, None if it replaces no parameters."""
    found: Prepare | None = getattr(method, "prepare", None)
    return found


def is_method(value: object) -> bool:
    """Whether ``value`` is the settings of a training method."""
    return callable(getattr(value, "strategy", None)) and not isinstance(value, type)


def refuse_synchronised_norms(owner: str, model: nn.Module) -> None:
    """Raise ValueError if layers of ``model`` exchange statistics in each pass, as ranks train independently."""
    for name, module in model.named_modules():
        if isinstance(module, nn.SyncBatchNorm):
            raise ValueError(
                f"{owner}: {name or 'the model'} is a SyncBatchNorm, which has ranks wait for one another in "
                "each pass, and here they train apart. Use BatchNorm, whose buffers are averaged, or DDP."
            )
