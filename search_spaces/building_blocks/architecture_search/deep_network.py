"""``architecture = "deep"``: a campaign whose network is a ``DeepResNet`` of which every part is searched beside what
the campaign is about, for a good score of few parameters, or of a short latency.

What would not fit into memory is refused before it is trained. torch is imported by the functions.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import hpo
from search_spaces import options as check
from search_spaces.building_blocks.architecture_search import memory
from search_spaces.building_blocks.recipes import MakeRecipe, Recipe, Run, Searched, TrainingOptions
from search_spaces.options import Positive

if TYPE_CHECKING:
    from torch import nn

    from hpo.individual import Scalar
    from hpo.space.space import Parameter

ACTIVATIONS = ("relu", "elu", "selu", "swish", "softplus", "tanh")
ORDERS = (
    "original",
    "norm-after-addition",
    "activation-before-addition",
    "activation-only-pre-activation",
    "full-pre-activation",
)
"""As ``search_spaces.networks.residual.ORDERS``, which comes with torch."""
_FORWARDS = 20


@dataclass(frozen=True, kw_only=True)
class Deep:
    """What the data and the size of a campaign decide about its deep network.

    ``inputs``: channels, height and width of a sample; ``classes``: None where the data say it; ``blocks``: by stage
    how many blocks there may be, and ``default_blocks`` how many there are by default; ``filters``: choices for a space
    that has neither "filters" nor "width" of its own, the first being the default; ``reduction``: as of ``DeepResNet``.
    """

    inputs: tuple[int, int, int]
    classes: int | None = None
    blocks: tuple[tuple[int, ...], ...] = ((1, 2, 3, 4),) * 4
    default_blocks: tuple[int, ...] = (1, 1, 1, 1)
    filters: tuple[int, ...] = (8, 4, 16, 32, 64)
    reduction: int = 1

    @classmethod
    def small(cls, inputs: tuple[int, int, int], classes: int | None = None) -> Deep:
        """A space of small networks: a random one trains on a few hundred samples in seconds, on one core."""
        blocks = ((1, 2),) * 4
        reduction = 4 if inputs[1] > _SIDE_LEFT_AS_IT_IS else 1
        return cls(inputs=inputs, classes=classes, blocks=blocks, filters=(8, 4, 16), reduction=reduction)


_SIDE_LEFT_AS_IT_IS = 8
"""Pixels: an image of as many leaves the last of four stages one pixel without the stem's reduction."""


_OF_DEEP_NETWORKS = "only deep networks have this option"


class ArchitectureOptions(TrainingOptions):
    """The options of campaigns whose network may be a deep one."""

    architecture: Literal["source", "deep"] = "source"
    """source: the network and the space of the source. deep: a residual network whose blocks of each stage, bottleneck
    ratio, kernel, stem, groups, squeeze-and-excitation, filters, activation and order are searched, too.
    """
    cost: Literal["parameters", "latency", "none"] = "parameters"
    """Of a deep network the second objective: the number of parameters, or the milliseconds of a forward pass; none:
    there is no other than without it.
    """
    memory: Positive | None = None
    """GiB that a rank may use: a deep network that needs more is not trained. Left out: what its device has."""

    def rules(self) -> None:
        super().rules()
        if self.architecture == "deep":
            return
        if self.memory is not None:
            check.refuse("memory", self.memory, f"left out, or architecture 'deep': {_OF_DEEP_NETWORKS}")
        if self.cost == "latency":
            check.refuse("cost", self.cost, f"left out, or architecture 'deep': {_OF_DEEP_NETWORKS}")

    @property
    @abstractmethod
    def deep(self) -> Deep:
        """Of a deep network what does not belong to the configuration."""

    def finish(self, network: nn.Module) -> None:
        """What the campaign does with a network that has just been made."""

    def before_training(self, recipe: Callable[[], Recipe], *, ranks: int, device: str) -> None:
        if self.architecture != "deep":
            return
        import torch

        with torch.device("meta"):
            made = recipe()
        samples = -(-self.samples_a_step // ranks)
        needed = memory.training_memory(
            made.network, (samples, *self.deep.inputs), optimizer=made.optimizer, precision=self.precision
        )
        there = memory.available_bytes(device, ranks)
        memory.check_fits(
            needed, there if self.memory is None else int(self.memory * 2**30), per_rank=samples
        )

    def costs(self, model: nn.Module) -> dict[str, float]:
        if self.architecture != "deep":
            return {}
        found = {"parameters": float(sum(one.numel() for one in model.parameters()))}
        if self.cost == "latency":
            found["latency_ms"] = latency_ms(model, self.deep.inputs)
        return found

    def objectives(self, score: str, direction: str) -> dict[str, str] | None:
        """By name the directions of a deep network's objectives; None where they are those of the campaign."""
        if self.architecture != "deep" or self.cost == "none":
            return None
        return {score: direction, "parameters" if self.cost == "parameters" else "latency_ms": "minimize"}


class SmallArchitectureOptions(ArchitectureOptions):
    """Where the option ``small`` is of deep networks alone: others have options of their own for their size."""

    small: bool = False
    """With architecture = "deep": networks for processors, of one or two blocks a stage. A space without widths of its
    own has a quarter of the filters, and the stem makes images of more than 8 pixels a side four times smaller.
    """

    def rules(self) -> None:
        super().rules()
        if self.small and self.architecture != "deep":
            check.refuse("small", self.small, f"false, or architecture 'deep': {_OF_DEEP_NETWORKS}")


def parameters(deep: Deep) -> dict[str, Parameter]:
    """What is searched of a deep network, for a space that has none of it."""
    stages = {f"blocks{number}": hpo.Ordinal(*choices) for number, choices in enumerate(deep.blocks, start=1)}
    return {
        "filters": hpo.Ordinal(*sorted(deep.filters)),  # a quarter of those that the first stage gives
        "activation": hpo.Categorical(*ACTIVATIONS),
        "order": hpo.Categorical(*ORDERS),  # where a block normalises and activates, He et al. 2016
        **stages,
        "bottleneck": hpo.Ordinal(1, 2, 4, 8),  # how many times fewer filters a block has inside
        "kernel": hpo.Ordinal(3, 5, 7),
        "stem": hpo.Categorical("convolution", "deep", "patches"),
        "groups": hpo.Ordinal(1, 2, 4, 8, 16, 32),
        "squeeze": hpo.Ordinal(
            0.0, 0.0625, 0.125, 0.25
        ),  # hidden units of squeeze-and-excitation; 0: there is none
    }


def _default(deep: Deep) -> dict[str, Scalar]:
    stages = {f"blocks{number}": count for number, count in enumerate(deep.default_blocks, start=1)}
    return {
        "filters": deep.filters[0], "activation": "relu", "order": "original", **stages,
        "bottleneck": 4, "kernel": 3, "stem": "convolution", "groups": 1, "squeeze": 0.0,
    }  # fmt: skip


def deepened(searched: Searched, deep: Deep) -> Searched:
    """With what there is to search of a deep network, as far as the space has it not. What it has holds."""
    own = searched.space.parameters
    left_out = {*own, *(("filters",) if "width" in own else ())}
    added = {name: one for name, one in parameters(deep).items() if name not in left_out}
    values = {name: value for name, value in _default(deep).items() if name in added}
    return Searched(
        space=hpo.SearchSpace({**own, **added}),
        default={**searched.default, **values},
        points=[{**point, **values} for point in searched.points],
        constraints=searched.constraints,
    )


def with_architecture(recipe: MakeRecipe[Any]) -> MakeRecipe[Any]:
    """``recipe``, whose network is a deep one where the options say so."""

    def chosen(p: dict[str, Any], options: Any, run: Run) -> Recipe:
        if getattr(options, "architecture", "source") != "deep":
            return recipe(p, options, run)
        import torch

        with torch.device("meta"):  # its network is not used
            made = recipe(p, options, run)
        network = _network(p, options.deep, run)
        options.finish(network)
        return dataclasses.replace(made, network=network)

    return chosen


def _network(p: Mapping[str, Any], deep: Deep, run: Run) -> nn.Module:
    from search_spaces.networks.deep_resnet import DeepResNet

    return DeepResNet(
        channels=deep.inputs[0],
        classes=run.classes if deep.classes is None else deep.classes,
        filters=p["filters"] if "filters" in p else max(1, p["width"] // 4),
        blocks=[p[f"blocks{number}"] for number in range(1, len(deep.blocks) + 1)],
        bottleneck=p["bottleneck"],
        kernel=p["kernel"],
        stem=p["stem"],
        groups=p["groups"],
        squeeze=p["squeeze"],
        activation=p["activation"],
        order=p["order"],
        reduction=deep.reduction,
    )


def latency_ms(model: nn.Module, inputs: tuple[int, ...]) -> float:
    """Milliseconds of a forward pass of one sample, the median of 20, on the device where ``model`` is."""
    import torch

    device = next(model.parameters()).device
    sample, training = torch.zeros(1, *inputs, device=device), model.training
    seconds = []
    model.eval()
    with torch.inference_mode():
        for _ in range(_FORWARDS + 1):
            begun = time.perf_counter()
            model(sample)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            seconds.append(time.perf_counter() - begun)
    model.train(training)
    return 1000 * statistics.median(seconds[1:])  # the first chooses algorithms
