"""What a campaign says about training one configuration: on what (its options), as what (its recipe), and what of it is
searched. ``training`` does the rest. torch is imported by what trains: the ranks that search need none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

import hpo
from search_spaces.building_blocks import methods
from search_spaces.folds import Fold
from search_spaces.options import Count, Folds, FromZero, Options, Precision

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer
    from torch.utils.data import Dataset

    import trainers
    from hpo.individual import Scalar
    from hpo.space.space import Parameter
    from hpo.task.task import Constraint
    from trainers.data.batches import Assignment
    from trainers.evaluation.forward import Loss

LR_FACTOR = "lr_factor"
"""The parameter of a campaign that has none left with a method of another: what its learning rate is multiplied by."""


class Parts(Protocol):
    """A data set in three parts, which are disjoint; ``validation`` is None where folds take its place."""

    @property
    def train(self) -> Any: ...
    @property
    def validation(self) -> Dataset[Any] | None: ...
    @property
    def test(self) -> Dataset[Any]: ...


class RunSize(Protocol):
    """Length of a run in passes over the training set, and samples a step of all ranks together."""

    @property
    def epochs(self) -> int: ...
    @property
    def batch_size(self) -> int: ...


class TrainingOptions(Options, ABC):
    """How all configurations of a campaign are trained, and on what: the options that every campaign has."""

    epochs: Count | None
    """Passes over the training set."""
    batch_size: Count | None
    """Samples a step, of all ranks together: their number does not matter."""
    folds: Folds = 0
    """The fitness is the mean over this many folds of the training images; 0: there are none."""
    precision: Precision = "fp32"
    """fp32, tf32, or bf16 for autocast."""
    loader_processes: FromZero = 0
    """Of each rank, that read and augment ahead; 0: it does so itself."""
    method: methods.MethodName = "ddp"
    """How ranks train together: ddp, daso, local-sgd, oialr, ab or ab-no-groups."""
    ranks_per_node: Count | None = None
    """Ranks that pose as a node, so that methods and counts of bytes take one host for several; left out: as it is."""
    init: str = ""
    """A safetensors file: weights that agree in name and shape are those that a training begins with."""

    second_objective: Literal["none", "trainable_fraction", "bytes_between_nodes"] = "none"
    """What is minimised beside the score, for campaigns with one objective: none; trainable_fraction, the part of the
    full-rank parameters that is trained at the end; or bytes_between_nodes, what all ranks have sent to other nodes.
    """

    @property
    def size(self) -> RunSize:
        """Size of a run whose ``epochs`` or ``batch_size`` is left out, in campaigns that allow that."""
        raise NotImplementedError

    @property
    def most_epochs(self) -> int:
        """Passes over the training set in a run that is not stopped early."""
        return self.size.epochs if self.epochs is None else self.epochs

    @property
    def samples_a_step(self) -> int:
        """Samples a step, of all ranks together."""
        return self.size.batch_size if self.batch_size is None else self.batch_size

    @property
    def saves_each_epoch(self) -> bool:
        """Or only when it is interrupted, and at its end: a run of seconds."""
        return True

    @abstractmethod
    def check_data(self) -> None:
        """UsageError where the data are not there, or too few, as far as that can be said without reading them."""

    @abstractmethod
    def parts(self) -> Parts:
        """The data. UsageError, with what to do, where they are not what they should be."""

    def training_set(self, parts: Any, seed: int) -> Dataset[Any]:
        """``parts.train`` as a run with this seed sees it, augmented."""
        return parts.train  # type: ignore[no-any-return]

    @abstractmethod
    def of_fold(self, parts: Any, fold: Fold) -> Parts:
        """Of ``parts.train`` what ``fold`` trains with, and what it validates with."""

    def network_facts(self, parts: Any) -> dict[str, int]:
        """What the data, and not the configuration, decide about the network: ``Run.data``."""
        return {}

    def input_facts(self, parts: Any) -> dict[str, list[float]]:
        """What who uses the trained network must know to prepare its inputs; an exported model's file says it."""
        return {}

    def before_training(self, recipe: Callable[[], Recipe], *, ranks: int, device: str) -> None:
        """Raises an error of hpo where what ``recipe()`` makes cannot be trained there."""

    def costs(self, model: nn.Module) -> dict[str, float]:
        """What is measured of a network beside its score."""
        return {}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What a configuration means: arguments of ``trainers.train``. ``loss`` None: cross entropy.
    ``samples_a_step``: of all ranks together, where the batch size is searched; None: the option batch_size.
    ``synchronise_batch_norms``: over all ranks, where torch can: on GPUs, with DDP and OIALR, without folds.
    """

    network: nn.Module
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer]
    schedule: trainers.Schedule
    loss: Loss | None = None
    early_stopping: trainers.EarlyStopping | None = None
    assignment: Assignment | None = None
    clip_norm: float | None = None
    label_smoothing: float = 0.0
    samples_a_step: int | None = None
    synchronise_batch_norms: bool = False


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a recipe may depend on besides the configuration: what the data decide (``network_facts``), the ranks that
    train, and the steps that they take.
    """

    data: Mapping[str, int] = field(default_factory=dict)
    ranks: int = 1
    steps: int = 1

    @property
    def classes(self) -> int:
        """That there are in the data."""
        return self.data["classes"]


O_contra = TypeVar("O_contra", bound=TrainingOptions, contravariant=True)
O = TypeVar("O", bound=TrainingOptions)  # noqa: E741


class MakeRecipe(Protocol[O_contra]):
    """From parameters, options and the run."""

    def __call__(self, p: dict[str, Any], options: O_contra, run: Run, /) -> Recipe: ...


class MakeMethod(Protocol[O_contra]):
    """From parameters, options and the run."""

    def __call__(self, p: dict[str, Any], options: O_contra, run: Run, /) -> trainers.Method: ...


@dataclass(frozen=True, kw_only=True)
class OwnMethod(Generic[O]):
    """The method, or methods, that a campaign is about: ``parameters`` of its space and ``constraints`` are theirs
    alone, and are left out with any other.
    """

    names: tuple[methods.MethodName, ...]
    parameters: tuple[str, ...]
    make: MakeMethod[O]
    constraints: Sequence[Constraint] = ()


@dataclass(frozen=True, kw_only=True)
class Searched:
    """What is searched: a space, its default and further points, and what is refused."""

    space: hpo.SearchSpace
    default: Mapping[str, Scalar]
    points: Sequence[Mapping[str, Scalar]] = ()
    constraints: Sequence[Constraint] = ()

    def with_method(self, name: methods.MethodName, own: OwnMethod[Any] | None) -> Searched:
        """With the parameters of the method ``name`` in the place of those of ``own``; None: there are none."""
        if own is not None and name in own.names:
            return Searched(
                space=self.space,
                default=self.default,
                points=self.points,
                constraints=[*self.constraints, *own.constraints],
            )
        left_out = () if own is None else own.parameters
        kept = {key: one for key, one in self.space.parameters.items() if key not in left_out}
        added: dict[str, Parameter] = methods.parameters(name)
        values = methods.default(name)
        if not kept and not added:
            added, values = {LR_FACTOR: hpo.Float(0.1, 10.0, log=True)}, {LR_FACTOR: 1.0}

        def without(point: Mapping[str, Scalar]) -> dict[str, Scalar]:
            return {**{key: value for key, value in point.items() if key in kept}, **values}

        space = self.space if not left_out and not added else hpo.SearchSpace({**kept, **added})
        points = [without(point) for point in self.points]
        return Searched(
            space=space,
            default=without(self.default),
            points=[point for point in points if point != without(self.default)],
            constraints=[*self.constraints, *methods.constraints(name)],
        )
