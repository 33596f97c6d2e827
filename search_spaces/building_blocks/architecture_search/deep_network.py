"""``architecture = "deep"``: search of all parts of a ``DeepResNet`` beside the campaign's own parameters, for a good
score with few parameters or a short latency. Configurations that would not fit into memory are refused before training.
"""

from __future__ import annotations

import statistics
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import hpo
from search_spaces.building_blocks.architecture_search import memory
from search_spaces.building_blocks.recipes import MakeRecipe, Recipe, Run, Searched, TrainingOptions
from search_spaces.options import Positive, wrong

if TYPE_CHECKING:
    from torch import nn

    from hpo.individual import Scalar
    from hpo.space.space import Parameter

ACTIVATIONS = ("relu", "elu", "selu", "swish", "softplus", "tanh")
# Same as ``search_spaces.networks.residual.ORDERS``, whose import would import torch.
ORDERS = (
    "original",
    "norm-after-addition",
    "activation-before-addition",
    "activation-only-pre-activation",
    "full-pre-activation",
)


@dataclass(frozen=True, kw_only=True)
class Deep:
    """Properties of a deep network that depend on the data and the size of a campaign."""

    inputs: tuple[int, int, int]
    """Channels, height and width of a sample."""
    classes: int | None = None
    """Number of classes; None: from the data."""
    blocks: tuple[tuple[int, ...], ...] = ((1, 2, 3, 4),) * 4
    """Choices of the number of blocks, by stage."""
    default_blocks: tuple[int, ...] = (1, 1, 1, 1)
    """Default number of blocks, by stage."""
    filters: tuple[int, ...] = (8, 4, 16, 32, 64)
    """Choices for a space without "filters" and "width", default first."""
    reduction: int = 1
    """Factor by which the stem reduces height and width, see ``DeepResNet``."""

    @classmethod
    def small(cls, inputs: tuple[int, int, int], classes: int | None = None) -> Deep:
        """Small networks, which train on a few hundred samples in seconds on a single core."""
        # From 8 pixels a side the last of four stages has a single pixel without any reduction.
        reduction = 4 if inputs[1] > 8 else 1
        return cls(
            inputs=inputs, classes=classes, blocks=((1, 2),) * 4, filters=(8, 4, 16), reduction=reduction
        )


_FOR_DEEP_NETWORKS = "left out, or architecture 'deep': only deep networks have this option"


class ArchitectureOptions(TrainingOptions):
    """Options of campaigns that can search a deep network."""

    architecture: Literal["source", "deep"] = "source"
    """source: the network and the space of the source. deep: a residual network; its number of blocks in each stage,
    bottleneck ratio, kernel, stem, groups, squeeze-and-excitation, filters, activation and order are searched too.
    """
    cost: Literal["parameters", "latency", "none"] = "parameters"
    """Second objective of a deep network: its number of parameters, or the milliseconds of a forward pass; none keeps
    the campaign's own objectives.
    """
    memory: Positive | None = None
    """GiB that a rank may use: a deep network that needs more is not trained. Default: the memory of its device."""

    def rules(self) -> Iterator[hpo.UsageError]:
        yield from super().rules()
        if self.architecture != "deep" and self.memory is not None:
            yield wrong("memory", self.memory, _FOR_DEEP_NETWORKS)
        if self.architecture != "deep" and self.cost == "latency":
            yield wrong("cost", self.cost, _FOR_DEEP_NETWORKS)

    @property
    @abstractmethod
    def deep(self) -> Deep:
        """Properties of the deep network that are not searched."""

    def before_training(self, recipe: Callable[[], Recipe], *, ranks: int, device: str) -> None:
        if self.architecture != "deep":
            return
        import torch

        # Made without memory or data, only to compute its size.
        with torch.device("meta"):
            made = recipe()
        samples = -(-self.samples_a_step // ranks)
        needed = memory.training_memory(
            made.network, (samples, *self.deep.inputs), optimizer=made.optimizer, precision=self.precision
        )
        given = None if self.memory is None else int(self.memory * 2**30)
        memory.check_fits(needed, given or memory.available_bytes(device, ranks), per_rank=samples)

    def costs(self, model: nn.Module) -> dict[str, float]:
        if self.architecture != "deep":
            return {}
        found = {"parameters": float(sum(parameter.numel() for parameter in model.parameters()))}
        if self.cost == "latency":
            found["latency_ms"] = latency_ms(model, self.deep.inputs)
        return found

    def objectives(self, score: str, direction: str) -> dict[str, str] | None:
        """Directions of a deep network's objectives by name; None for the campaign's own objectives."""
        if self.architecture != "deep" or self.cost == "none":
            return None
        return {score: direction, "parameters" if self.cost == "parameters" else "latency_ms": "minimize"}


class SmallArchitectureOptions(ArchitectureOptions):
    """Options with ``small`` for deep networks, for campaigns whose own networks have other options for their size."""

    small: bool = False
    """Deep networks for processors, with one or two blocks in a stage; only with architecture = "deep". A space without
    widths of its own has a quarter of the filters, and the stem makes images of more than 8 pixels a side four times
    smaller.
    """

    def rules(self) -> Iterator[hpo.UsageError]:
        yield from super().rules()
        if self.small and self.architecture != "deep":
            yield wrong("small", self.small, _FOR_DEEP_NETWORKS)


def parameters(deep: Deep) -> dict[str, Parameter]:
    """Architecture parameters of a deep network, for a space that has none of them."""
    stages = {f"blocks{number}": hpo.Ordinal(*choices) for number, choices in enumerate(deep.blocks, start=1)}
    return {
        "filters": hpo.Ordinal(*sorted(deep.filters)),  # a quarter of those of the first stage's output
        "activation": hpo.Categorical(*ACTIVATIONS),
        "order": hpo.Categorical(*ORDERS),  # order of normalisation and activation in a block, He et al. 2016
        **stages,
        "bottleneck": hpo.Ordinal(1, 2, 4, 8),  # ratio of a block's output filters to its inner filters
        "kernel": hpo.Ordinal(3, 5, 7),
        "stem": hpo.Categorical("convolution", "deep", "patches"),
        "groups": hpo.Ordinal(1, 2, 4, 8, 16, 32),
        # Fraction of hidden units of squeeze-and-excitation; 0: there is none.
        "squeeze": hpo.Ordinal(0.0, 0.0625, 0.125, 0.25),
    }


def deepened(searched: Searched, deep: Deep) -> Searched:
    """Adds the architecture parameters that the space does not define yet."""
    own = searched.space.parameters
    left_out = {*own, *(("filters",) if "width" in own else ())}
    added = {name: parameter for name, parameter in parameters(deep).items() if name not in left_out}
    default: dict[str, Scalar] = {
        "filters": deep.filters[0], "activation": "relu", "order": "original",
        **{f"blocks{number}": count for number, count in enumerate(deep.default_blocks, start=1)},
        "bottleneck": 4, "kernel": 3, "stem": "convolution", "groups": 1, "squeeze": 0.0,
    }  # fmt: skip
    values = {name: default[name] for name in added}
    return Searched(
        space=hpo.SearchSpace({**own, **added}),
        default={**searched.default, **values},
        points=[{**point, **values} for point in searched.points],
        constraints=searched.constraints,
    )


def with_architecture(recipe: MakeRecipe) -> MakeRecipe:
    """``recipe`` with a finished network: its own, or a deep network if the options ask for it."""

    def of_user(p: dict[str, Any], options: Any, run: Run) -> Recipe:
        made = recipe(p, options, run)
        if not isinstance(made, Recipe):
            raise hpo.UsageError(
                f"the recipe returned an object of type {type(made).__name__}: must be a Recipe. "
                "Write return Recipe(network=…, optimizer=…, schedule=…)."
            )
        return made

    def chosen(p: dict[str, Any], options: Any, run: Run) -> Recipe:
        if getattr(options, "architecture", "source") != "deep":
            made = of_user(p, options, run)
        else:
            import torch

            with torch.device("meta"):  # its own network is replaced
                made = of_user(p, options, run)
            made = replace(made, network=_network(p, options.deep, run))
        options.finish(made.network)
        return made

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
    """Milliseconds of a forward pass of a single sample, the median of 20 passes, on the device of ``model``."""
    import torch

    device = next(model.parameters()).device
    sample, training = torch.zeros(1, *inputs, device=device), model.training
    seconds = []
    model.eval()
    with torch.inference_mode():
        for _ in range(21):
            begun = time.perf_counter()
            model(sample)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            seconds.append(time.perf_counter() - begun)
    model.train(training)
    return 1000 * statistics.median(seconds[1:])  # the first pass includes the choice of algorithms
