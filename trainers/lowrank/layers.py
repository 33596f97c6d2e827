"""Layers whose weight is a product of factors: their selection, conversion and forward pass.

A layer keeps its place, name, hooks and bias; only its weight is replaced. ``layer.weight`` still is the whole matrix,
with gradients, so that code which uses it continues to work (``nn.MultiheadAttention`` for its output projection).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, ClassVar, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import conv1d, conv2d, linear
from torch.optim import Optimizer

from trainers.names import format_of, plain_name
from trainers.optim.composite import parameters_in
from trainers.precision import full_precision

SMALLEST_SIDE = 16
"""Least rows and columns of a weight that is factored; for smaller weights, factors save nothing."""
# "tensors of disadvantageous shapes" (dissertation, 4.3)
LARGEST_ASPECT = 64
"""Largest ratio of the sides of a weight that is factored."""

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.MultiheadAttention)
_OTHER_LAYERS = (
    nn.Conv3d,
    nn.modules.conv._ConvTransposeNd,
    nn.Bilinear,
    nn.Embedding,
    nn.EmbeddingBag,
    nn.RNNBase,
    nn.RNNCellBase,
)
_ATTENTION = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")


@dataclass(frozen=True, kw_only=True, eq=False)
class MatrixWeight:
    """Weight of a layer as a matrix, of ``rows`` outputs and ``columns`` with all other dimensions."""

    name: str
    """Name in the state of the unfactored model, such as "blocks.0.attention.in_proj_weight"."""
    module: nn.Module
    """Layer that has the weight."""
    attribute: str
    """Name of the weight in the layer."""
    shape: torch.Size
    """Shape of the unfactored weight."""

    @property
    def layer(self) -> str:
        """Name of the layer for metrics, such as "blocks.0.attention.in_proj", also of a compiled model."""
        name = plain_name(self.name)
        # A single suffix is removed, because a layer may be called "gate_weight", beside a layer "gate".
        return name.removesuffix(".weight" if self.attribute == "weight" else "_weight")

    @property
    def rows(self) -> int:
        return self.shape[0]

    @property
    def columns(self) -> int:
        return self.shape[1:].numel()

    @property
    def whole(self) -> nn.Parameter:
        """Parameter of an unfactored weight; KeyError for a factored weight."""
        return cast(nn.Parameter, self.module._parameters[self.attribute])

    @property
    def factors(self) -> dict[str, nn.Parameter]:
        """Factors by name, in the order of their product; empty for an unfactored weight."""
        replaced = _products(self.module).get(self.attribute)
        names = () if replaced is None else replaced.factors
        held = cast(dict[str, nn.Parameter], self.module._parameters)
        return {name: held[f"{self.attribute}_{name}"] for name in names}

    def matrix(self) -> Tensor:
        """Weight as a matrix, multiplied out in full precision if it is factored."""
        with full_precision():
            return cast(Tensor, getattr(self.module, self.attribute)).reshape(self.rows, self.columns)


def matrix_weights(
    model: nn.Module, *, first: bool = True, last: bool = True, factored: bool = True
) -> list[MatrixWeight]:
    """Weights of ``model`` that may be factored, in the order in which it defines its layers.

    These are weights of Linear, Conv1d, Conv2d and MultiheadAttention of suitable shapes, which are trained, real, and
    not shared with another layer. ``first`` and ``last`` include those of the first and the last layer with a weight,
    embeddings being layers too, ``factored`` those that are factored already.
    """
    layers = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, _LAYERS + _OTHER_LAYERS)
    ]
    owners = Counter(id(p) for module in model.modules() for p in module.parameters(recurse=False))
    chosen = layers[0 if first else 1 : len(layers) if last else -1]
    found = []
    for name, module in chosen:
        if not isinstance(module, _LAYERS):
            continue
        for attribute in _ATTENTION if isinstance(module, nn.MultiheadAttention) else ("weight",):
            shape = _shape(module, attribute)
            if shape is None:
                continue
            path = f"{name}.{attribute}" if name else attribute
            weight = MatrixWeight(name=path, module=module, attribute=attribute, shape=shape)
            short, long = sorted((weight.rows, weight.columns))
            if short < SMALLEST_SIDE or long > LARGEST_ASPECT * short:
                continue
            if weight.factors:
                eligible = factored
            else:
                # Complex weights would need other decompositions, and another projection of the optimizer's moments.
                whole = weight.whole
                eligible = whole.requires_grad and not whole.is_complex() and owners[id(whole)] == 1
            if eligible:
                found.append(weight)
    return found


def weights_to_factorise(
    owner: str, model: nn.Module, optimizer: Optimizer, *, first: bool, last: bool
) -> list[MatrixWeight]:
    """Unfactored weights of ``matrix_weights`` for the method ``owner``; ValueError without any, or if ``optimizer``
    does not train one of them.
    """
    weights = matrix_weights(model, first=first, last=last, factored=False)
    if not weights:
        raise ValueError(
            f"{owner}: the model has no weight to factorise. It needs a trained, real weight of a Linear, Conv1d, "
            f"Conv2d or MultiheadAttention with both sides of at least {SMALLEST_SIDE} and of a ratio up to "
            f"{LARGEST_ASPECT}, shared with no other layer, beside those that full_rank_first_layer and "
            "full_rank_last_layer leave whole. Widen the model, or use another method; where a run has left it in "
            "factors, begin with trainers.merged(model)."
        )
    trained = parameters_in(optimizer)
    for weight in weights:
        if id(weight.whole) not in trained:
            raise ValueError(
                f"{owner}: {weight.name} requires a gradient, but the optimizer does not train it. Give the "
                "optimizer all parameters that it is passed, or freeze this one."
            )
    return weights


def factorise(weight: MatrixWeight, factors: Mapping[str, nn.Parameter]) -> None:
    """Replace the weight, factored or not, by the product of the matrices ``factors``, in their order."""
    attribute, products = weight.attribute, dict(_products(weight.module))
    first, *_, last = factors.values()
    if first.shape[0] != weight.rows or last.shape[1] != weight.columns:
        raise ValueError(f"{weight.name}: the factors make no {weight.rows} × {weight.columns} matrix.")
    laid_out = products[attribute].laid_out if weight.factors else format_of(weight.whole)
    products[attribute] = _Product(tuple(factors), weight.shape, laid_out)
    _exchange(weight, {f"{attribute}_{name}": factor for name, factor in factors.items()}, products)


def make_whole(weight: MatrixWeight, matrix: Tensor | None = None) -> nn.Parameter:
    """Replace the factors by a single trained parameter with the value ``matrix``, or the product of the factors."""
    if matrix is None:
        with torch.no_grad():
            matrix = weight.matrix().clone()
    products = dict(_products(weight.module))
    laid_out = products.pop(weight.attribute).laid_out
    parameter = nn.Parameter(matrix.detach().reshape(weight.shape).contiguous(memory_format=laid_out))
    _exchange(weight, {weight.attribute: parameter}, products)
    return parameter


def merged(model: nn.Module) -> nn.Module:
    """Multiply out all factors of low-rank weights, in place; returns the model, which then has ordinary layers.

    Args:
        model (Module): a model trained by OIALR, or any other model, which stays unchanged.
    """
    for weight in matrix_weights(model):
        if weight.factors:
            make_whole(weight)
    return model


def product(factors: tuple[Tensor, ...], rows: int, columns: int) -> Tensor:
    """Product of ``factors``, of ``rows`` × ``columns``, multiplied from its narrower side."""
    if columns < rows:
        result = factors[-1]
        for factor in reversed(factors[:-1]):
            result = factor @ result
    else:
        result = factors[0]
        for factor in factors[1:]:
            result = result @ factor
    return result


def cheapest(factors: tuple[Tensor, ...], rows: int) -> list[tuple[Tensor, ...]]:
    """Groups of ``factors`` to multiply out before they are applied to ``rows`` inputs, with the fewest
    multiplications.

    Multiplications of the backward pass count if there is one. For U Σ Vᵀ, the groups are the three factors apart with
    a small k; then U and Σ Vᵀ (or U Σ and Vᵀ for a tall W, as the gradient of Σ then needs a product less); then, with
    many rows, W. With few rows, making a matrix takes more multiplications than it saves.
    """
    gradients = torch.is_grad_enabled()
    forms = tuple((one.shape[0], one.shape[1], gradients and one.requires_grad) for one in factors)
    # Without the cache when compiling: the compiler traces the search a single time, and warns of caches.
    search = _cheapest_borders.__wrapped__ if torch.compiler.is_compiling() else _cheapest_borders
    return _divided(factors, search(forms, rows, gradients))


_Form = tuple[int, int, bool]
"""Rows and columns of a factor, and whether its gradient is needed."""


@lru_cache(maxsize=4096)
def _cheapest_borders(forms: tuple[_Form, ...], rows: int, gradients: bool) -> int:
    """Borders, for ``_divided``, of the groups with the fewest multiplications."""
    least, chosen = math.inf, 0
    for borders in range(1 << (len(forms) - 1)):
        cost = 0
        for group in _divided(forms, borders):
            # The backward pass has a product for the input's gradient, another for the matrix's if any of its factors
            # is trained, and further products for each trained factor.
            trained = sum(wanted for _, _, wanted in group)
            height, width = group[0][0], group[-1][1]
            cost += rows * height * width * (1 + gradients + (trained > 0))
            # Multiplications of ``product``, which begins at the narrower side.
            inner = group[:-1] if width < height else group[1:]
            cost += min(height, width) * sum(one[0] * one[1] for one in inner) * (1 + trained)
        if cost < least:
            least, chosen = cost, borders
    return chosen


_Item = TypeVar("_Item")


def _divided(factors: tuple[_Item, ...], borders: int) -> list[tuple[_Item, ...]]:
    """Groups of ``factors``, with a border after factor i if bit i of ``borders`` is set."""
    groups: list[tuple[_Item, ...]] = []
    begin = 0
    for end in range(1, len(factors) + 1):
        if end == len(factors) or borders >> (end - 1) & 1:
            groups.append(factors[begin:end])
            begin = end
    return groups


# Factored layers have a class made of a mixin and the layer's own class, so that all methods of the layer's class stay.


class _Product(NamedTuple):
    """Weight of a layer that is replaced by factors."""

    factors: tuple[str, ...]
    """Names of the factors."""
    shape: torch.Size
    """Shape of the whole weight."""
    laid_out: torch.memory_format
    """Memory format of the whole weight."""


class Factored(nn.Module):
    """Mixin of layers with factored weights; ``factorise`` makes the layer's class, with a property for each weight."""

    _plain_class: ClassVar[type[nn.Module]]
    """Class of the unfactored layer."""
    _products: dict[str, _Product]
    """Factored weights by name."""

    def _factors_of(self, attribute: str) -> tuple[Tensor, ...]:
        names = self._products[attribute].factors
        return tuple(self._parameters[f"{attribute}_{name}"] for name in names)  # type: ignore[misc]

    def _whole(self, attribute: str) -> Tensor:
        shape = self._products[attribute].shape
        return product(self._factors_of(attribute), shape[0], shape[1:].numel()).view(shape)

    def __reduce_ex__(self, protocol: Any) -> tuple[object, ...]:
        # Pickle finds classes by their names in modules, and this class is in none.
        return _restored, (type(self)._plain_class, tuple(sorted(self._products))), self.__getstate__()  # type: ignore[no-untyped-call]

    def _matrices(self, rows: int) -> list[Tensor]:
        """Matrices to apply to ``rows`` inputs, one after the other, in place of ``weight``."""
        groups = cheapest(self._factors_of("weight"), rows)
        return [product(group, group[0].shape[0], group[-1].shape[1]) for group in reversed(groups)]


class _FactoredLinear(Factored):
    def forward(self, input: Tensor) -> Tensor:
        *before, last = self._matrices(input.numel() // max(1, input.shape[-1]))
        for matrix in before:
            input = linear(input, matrix)
        return linear(input, last, cast(Tensor | None, self.bias))


class _FactoredAttention(Factored):
    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        return nn.MultiheadAttention.forward(cast(Any, _OnePass(self)), *arguments, **keywords)


class _OnePass:
    """A layer during a forward pass, which keeps multiplied weights, as attention reads a weight at least three times.

    The weights are not kept in the layer, because other threads may use it at the same time.
    """

    def __init__(self, layer: Factored) -> None:
        self._layer = layer

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._layer, name)
        if name in self._layer._products:
            self.__dict__[name] = value
        return value


class _FactoredConv(Factored):
    def forward(self, input: Tensor) -> Tensor:
        layer = cast(Any, self)
        # Each group of a grouped convolution has other input channels, so that there is no common first factor.
        if layer.groups > 1:
            return cast(Tensor, layer._conv_forward(input, layer.weight, layer.bias))
        first, *others = self._matrices(_positions(layer, input))
        shape = self._products["weight"].shape
        result: Tensor = layer._conv_forward(
            input, first.view(-1, *shape[1:]), None if others else layer.bias
        )
        pointwise = (1,) * (len(shape) - 2)
        convolve = conv1d if len(shape) == 3 else conv2d
        for number, matrix in enumerate(others, 1):
            bias = layer.bias if number == len(others) else None
            result = convolve(result, matrix.view(*matrix.shape, *pointwise), bias)
        return result


def _positions(layer: Any, input: Tensor) -> int:
    """Number of output positions of a convolution, of all samples together."""
    sides = len(layer.kernel_size)
    padding = (0,) * sides if layer.padding == "valid" else layer.padding
    positions = input.shape[0] if input.dim() == sides + 2 else 1
    for axis in range(sides):
        length = input.shape[axis - sides]
        if padding != "same":
            reach = layer.dilation[axis] * (layer.kernel_size[axis] - 1)
            length = (length + 2 * padding[axis] - reach - 1) // layer.stride[axis] + 1
        positions *= length
    return positions


@cache
def _factored_class(plain: type[nn.Module], attributes: tuple[str, ...]) -> type[nn.Module]:
    """Subclass of ``plain`` whose weights ``attributes`` are products of factors."""
    # A forward pass by factors only in place of torch's own: a subclass with another forward reads ``weight``.
    base: type[Factored] = Factored
    if plain.forward is nn.Linear.forward:
        base = _FactoredLinear
    elif plain.forward in (nn.Conv1d.forward, nn.Conv2d.forward):
        base = _FactoredConv
    elif plain.forward is nn.MultiheadAttention.forward:
        base = _FactoredAttention

    def reader(attribute: str) -> property:
        return property(lambda self: self._whole(attribute))

    body: dict[str, object] = {attribute: reader(attribute) for attribute in attributes}
    body["_plain_class"] = plain
    return type(f"Factored{plain.__name__}", (base, plain), body)


def _restored(plain: type[nn.Module], attributes: tuple[str, ...]) -> nn.Module:
    """Layer without a state, which ``copy`` or ``pickle`` then sets."""
    made = _factored_class(cast(Any, plain), attributes)
    return made.__new__(made)


def _products(module: nn.Module) -> dict[str, _Product]:
    return module._products if isinstance(module, Factored) else {}


def _exchange(weight: MatrixWeight, new: Mapping[str, nn.Parameter], products: dict[str, _Product]) -> None:
    """Put the parameters ``new`` in the place of the weight's parameters, and give the layer the class for its factored
    weights ``products``: its plain class without any.
    """
    # The order of parameters must not depend on when a weight was factored: it decides the buckets, and these the
    # roundings, which have to be the same in a resumed run.
    module, parameters = weight.module, weight.module._parameters
    old = [f"{weight.attribute}_{name}" for name in weight.factors] or [weight.attribute]
    ordered: dict[str, nn.Parameter | None] = {}
    for name, parameter in parameters.items():
        if name == old[0]:
            ordered.update(new)
        elif name not in old:
            ordered[name] = parameter
    parameters.clear()
    parameters.update(ordered)
    plain: type[nn.Module] = getattr(type(module), "_plain_class", type(module))
    if products:
        module.__class__ = _factored_class(cast(Any, plain), tuple(sorted(products)))
        module.__dict__["_products"] = products
    else:
        module.__class__ = plain
        del module.__dict__["_products"]


def _shape(module: nn.Module, attribute: str) -> torch.Size | None:
    if attribute in _products(module):
        return _products(module)[attribute].shape
    parameter = module._parameters.get(attribute)
    return parameter.shape if parameter is not None else None
