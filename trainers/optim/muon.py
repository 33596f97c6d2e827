"""Muon for the matrices of hidden layers, and another optimizer for all other parameters (Jordan et al. 2024,
https://kellerjordan.github.io/posts/muon/).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainers.arguments import check_argument, is_number
from trainers.structures import is_sharded

_TORCH_MUON: Any = getattr(torch.optim, "Muon", None)  # from torch 2.9 on
Groups = list[nn.Parameter] | list[dict[str, Any]]


@dataclass(frozen=True)
class MuonAndOthers:
    """Result of ``muon``, for ``optimizer=`` of ``train``, which calls it with the model, too."""

    settings: Mapping[str, object]
    others: Callable[[Any], Optimizer]

    def __call__(self, groups: Groups, model: nn.Module) -> list[Optimizer]:
        """Optimizers of ``groups`` of the model's parameters, or of a list of them."""
        hidden = hidden_matrices(model)
        numbers = {id(weight) for weight in hidden}
        matrices = [*_chosen(groups, lambda one: id(one) in numbers)]
        rest = [*_chosen(groups, lambda one: id(one) not in numbers)]
        if not hidden:
            raise ValueError(
                "trainers.muon: the model has no hidden layer with a matrix, beside embeddings and the last layer. Use "
                "the optimizer that you gave as others."
            )
        kind = Muon if any(map(is_sharded, hidden)) else _TORCH_MUON
        found: list[Optimizer] = [kind(matrices, **self.settings)] if matrices else []  # none are trained
        return [*found, self.others(rest)] if rest else found


def muon(*, lr: float, others: Callable[[Any], Optimizer], **settings: object) -> MuonAndOthers:
    """Two optimizers for ``train(…, optimizer=…)``: Muon for hidden matrices, and another for all other parameters.

    Muon steps matrices that are modules' ``weight``, and those of attention, but for embeddings and the last layer in
    the model's order. These, biases, norms, convolutions and all else go to ``others``. A matrix that is sharded over
    ranks, as by ``FSDP``, is orthogonalised as a whole.

    Args:
        lr (float): learning rate of Muon.
        others (callable): function of the other parameters, or of groups of them; it returns a torch optimizer.
        **settings (object): other settings of ``torch.optim.Muon``.

    Raises:
        ValueError: torch is older than 2.9, or a setting is not allowed.
    """
    if _TORCH_MUON is None:
        raise ValueError(f"trainers.muon: torch {torch.__version__} has no Muon. Install torch 2.9 or newer.")
    check_argument("lr", lr, is_number(lr) and lr >= 0, "a number of at least 0")
    check_argument(
        "others", others, callable(others), "a function, such as partial(torch.optim.AdamW, lr=1e-3)"
    )
    # Made once for nothing, so that a wrong setting is refused where it is given.
    try:
        _TORCH_MUON([nn.Parameter(torch.zeros(1, 1))], lr=lr, **settings)
    except TypeError as error:
        raise ValueError(f"trainers.muon: torch.optim.Muon does not take these settings: {error}") from error
    return MuonAndOthers({"lr": lr, **settings}, others)


def hidden_matrices(model: nn.Module) -> list[nn.Parameter]:
    """Matrices that are weights of modules of ``model``, without those of embeddings and of the last such module, whose
    rows stand for words or classes.
    """
    modules = [*model.modules()]
    tables = {id(one.weight) for one in modules if isinstance(one, (nn.Embedding, nn.EmbeddingBag))}
    found = [
        weight
        for module in modules
        if "Norm" not in type(module).__name__
        for name, weight in module.named_parameters(recurse=False)
        if weight.ndim == 2 and not weight.is_complex() and (name == "weight" or name.endswith("proj_weight"))
    ]
    apart = tables | {id(weight) for weight in found[-1:]}
    return [weight for weight in found if id(weight) not in apart]


def _chosen(groups: Groups, wanted: Callable[[nn.Parameter], bool]) -> Iterator[Any]:
    for one in groups:
        if not isinstance(one, dict):
            if wanted(one):
                yield one
        elif parameters := [*filter(wanted, one["params"])]:
            yield {**one, "params": parameters}


class Muon(_TORCH_MUON or Optimizer):  # type: ignore[misc]
    """torch.optim.Muon for matrices of which each rank has a part: it orthogonalises whole matrices, as torch's own
    iteration of parts in bfloat16 differs by one per cent.

    Ranks must step at the same time. Each holds one whole matrix at a time.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:
        """Take a step; ``closure`` is not called."""
        for group in self.param_groups:
            momentum, lr = group["momentum"], group["lr"]
            for parameter in group["params"]:
                if (gradient := parameter.grad) is None:
                    continue
                state = self.state[parameter]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(gradient)
                average = state["momentum_buffer"].lerp_(gradient, 1 - momentum)
                update = gradient.lerp(average, momentum) if group["nesterov"] else average
                change = self._orthogonal(update, group)
                parameter.mul_(1 - lr * group["weight_decay"])
                parameter.add_(change, alpha=lr)

    @staticmethod
    def _orthogonal(update: Any, group: Mapping[str, Any]) -> Tensor:
        """Change of a parameter by ``update`` at a rate of 1, with the parts of ``update``."""
        sharded = is_sharded(update)
        gathered = update.full_tensor() if sharded else update
        whole = nn.Parameter(torch.zeros_like(gathered))
        whole.grad = gathered
        kept = {name: group[name] for name in ("ns_coefficients", "eps", "ns_steps", "adjust_lr_fn")}
        # A step from zero, without momentum, which is applied before.
        _TORCH_MUON([whole], lr=1.0, weight_decay=0.0, momentum=0.0, nesterov=False, **kept).step()
        if not sharded:
            return whole.detach()
        from torch.distributed.tensor import distribute_tensor

        # Without a source each rank takes its part of its own, which is the same on all.
        return distribute_tensor(whole.detach(), update.device_mesh, update.placements, src_data_rank=None)
