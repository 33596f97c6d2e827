"""The parts of a campaign: options, which say what is trained on, the recipe of a configuration, and what is
searched."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

import hpo
from search_spaces.building_blocks.methods import METHODS, MethodName
from search_spaces.folds import Fold
from search_spaces.options import Count, Folds, FromZero, Options, Precision, wrong

# Ranks that search read these modules and need no torch: functions that train import it.
if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer
    from torch.utils.data import Dataset

    import trainers
    from hpo.individual import Scalar
    from hpo.space.space import Parameter
    from hpo.task.task import Constraint
    from trainers.data.batches import SampleAssignment
    from trainers.evaluation.forward import Loss

# Factor on the learning rate: the parameter of a campaign that has none left with another method than its
# own.
LR_FACTOR = "lr_factor"


class Parts(Protocol):
    """A data set in three disjoint parts; ``validation`` is None where folds take its place."""

    @property
    def train(self) -> Any: ...
    @property
    def validation(self) -> Dataset[Any] | None: ...
    @property
    def test(self) -> Dataset[Any]: ...


@dataclass(frozen=True, kw_only=True)
class RunSize:
    """Passes over the training set, and samples per step of all ranks together."""

    epochs: int
    batch_size: int


class TrainingOptions(Options, ABC):
    """Options that every campaign has."""

    epochs: Count | None
    """Passes over the training set."""
    batch_size: Count | None
    """Samples per step of all ranks together."""
    folds: Folds = 0
    """Number of folds of the training part over which the fitness is the mean; 0: no folds."""
    precision: Precision = "fp32"
    """fp32, tf32, or bf16 for autocast."""
    loader_processes: FromZero = 0
    """Processes of each rank that read and augment ahead; 0: the rank itself."""
    method: MethodName = "ddp"
    """Training method of the ranks: ddp, fsdp, daso, local-sgd, oialr, ab or ab-no-groups."""
    ranks_per_node: Count | None = None
    """Ranks that pose as a node for methods and counts of bytes; left out: those of a host."""
    init: str = ""
    """A safetensors file: each training begins with its weights, as far as name and shape agree."""

    second_objective: Literal["none", "trainable_fraction", "bytes_between_nodes"] = "none"
    """Minimised beside the score, in campaigns with one objective: trainable_fraction, the part of the full-rank
    parameters that is trained at the end, or bytes_between_nodes, the bytes that all ranks have sent to other nodes.
    """

    def rules(self) -> Iterator[hpo.UsageError]:
        yield from super().rules()
        if self.second_objective == "trainable_fraction" and self.method != "oialr":
            rule = (
                f"'none' or 'bytes_between_nodes' with method = {self.method!r}, which trains all parameters"
            )
            yield wrong("second_objective", self.second_objective, rule)

    @property
    def size(self) -> RunSize:
        """Size of a run, in campaigns where ``epochs`` and ``batch_size`` may be left out."""
        raise NotImplementedError

    @property
    def most_epochs(self) -> int:
        """Passes over the training set in a run that is not stopped early."""
        return self.size.epochs if self.epochs is None else self.epochs

    @property
    def samples_a_step(self) -> int:
        """Samples per step of all ranks together."""
        return self.size.batch_size if self.batch_size is None else self.batch_size

    @property
    def saves_each_epoch(self) -> bool:
        """Whether checkpoints are saved each epoch, or only at an interruption and at the end, for runs of seconds."""
        return not getattr(self, "small", False)

    @abstractmethod
    def check_data(self) -> None:
        """Raise UsageError for data that are missing or too few, as far as that shows without reading them."""

    @abstractmethod
    def parts(self) -> Parts:
        """The data. UsageError, with a remedy, for damaged data."""

    def training_set(self, parts: Any, seed: int) -> Dataset[Any]:
        """``parts.train`` as augmented in a run with this seed."""
        return parts.train  # type: ignore[no-any-return]

    @abstractmethod
    def of_fold(self, parts: Any, fold: Fold) -> Parts:
        """``parts`` with the training and validation samples of ``fold``, both from ``parts.train``."""

    def network_facts(self, parts: Any) -> dict[str, int]:
        """Properties of the network that the data decide, such as "classes", for ``Run.data``."""
        return {}

    def input_facts(self, parts: Any) -> dict[str, list[float]]:
        """Properties of the inputs that users of the trained network need; exported files contain them."""
        return {}

    def finish(self, network: nn.Module) -> None:
        """Change a network that has just been made."""

    def before_training(self, recipe: Callable[[], Recipe], *, ranks: int, device: str) -> None:
        """Raise an error of hpo if ``recipe()`` cannot be trained there."""

    @property
    def ranks_of_a_group(self) -> int | None:
        """Ranks of a group of AB training: the option ``group_size`` of campaigns that have it; None: a node's."""
        return getattr(self, "group_size", None)

    def costs(self, model: nn.Module) -> dict[str, float]:
        """Objectives that are measured on the network itself."""
        return {}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Arguments of ``trainers.train`` for one configuration.

    Attributes:
        loss (callable): loss; None: cross entropy.
        samples_a_step (int): samples per step of all ranks together; None: the option batch_size.
        synchronise_batch_norms (bool): whether batch norms see all ranks' samples; on GPUs, with DDP and OIALR,
            without folds.
    """

    network: nn.Module
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer]
    schedule: trainers.Schedule
    loss: Loss | None = None
    early_stopping: trainers.EarlyStopping | None = None
    assignment: SampleAssignment | None = None
    clip_norm: float | None = None
    label_smoothing: float = 0.0
    samples_a_step: int | None = None
    synchronise_batch_norms: bool = False


@dataclass(frozen=True, kw_only=True)
class Run:
    """Circumstances of a training: facts that the data decide, number of ranks, and optimizer steps."""

    data: Mapping[str, int] = field(default_factory=dict)
    ranks: int = 1
    steps: int = 1

    @property
    def classes(self) -> int:
        """Number of classes in the data."""
        return self.data["classes"]


# recipe(parameters, options, run)
MakeRecipe = Callable[[dict[str, Any], Any, Run], Recipe]


@dataclass(frozen=True, kw_only=True)
class OwnMethod:
    """The methods ``names`` that a campaign is about; its ``parameters`` and ``constraints`` are left out with others.

    ``make(parameters, options, run)`` returns the method; None: as ``building_blocks.methods`` makes it.
    """

    names: tuple[MethodName, ...]
    parameters: tuple[str, ...]
    make: Callable[[dict[str, Any], Any, Run], trainers.Method] | None = None
    constraints: Sequence[Constraint] = ()


@dataclass(frozen=True, kw_only=True)
class Searched:
    """Search space, its default and further points, and its constraints."""

    space: hpo.SearchSpace
    default: Mapping[str, Scalar]
    points: Sequence[Mapping[str, Scalar]] = ()
    constraints: Sequence[Constraint] = ()

    def with_method(self, name: MethodName, own: OwnMethod | None) -> Searched:
        """The search with the parameters of the method ``name`` in place of those of ``own``."""
        if own is not None and name in own.names:
            return replace(self, constraints=[*self.constraints, *own.constraints])
        offered, left_out = METHODS[name], () if own is None else own.parameters
        kept = {key: parameter for key, parameter in self.space.parameters.items() if key not in left_out}
        added: Mapping[str, Parameter] = offered.parameters
        values: Mapping[str, Scalar] = offered.default
        if not kept and not added:
            # A space needs a parameter, and the learning rate is what every method has.
            added, values = {LR_FACTOR: hpo.Float(0.1, 10.0, log=True)}, {LR_FACTOR: 1.0}
        default, *points = [
            {**{key: value for key, value in point.items() if key in kept}, **values}
            for point in (self.default, *self.points)
        ]
        return Searched(
            space=hpo.SearchSpace({**kept, **added}),
            default=default,
            points=[point for point in points if point != default],
            constraints=[*self.constraints, *offered.constraints],
        )
