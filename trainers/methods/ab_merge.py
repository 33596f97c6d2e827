"""Merge of AB training: groups of ranks, the exchange between them, and the product of their factors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from trainers.communication.channel import Channel
from trainers.communication.communicator import Communicator
from trainers.communication.topology import Ranks
from trainers.lowrank.layers import MatrixWeight
from trainers.precision import full_precision

Nodes = tuple[Ranks, ...]


def groups_of(nodes: Nodes, group_size: int | None) -> tuple[Ranks, ...]:
    """Ranks of each group, for the ``group_size`` of ``AB``; ValueError without two groups of equal size."""
    ordered = [rank for ranks in nodes for rank in ranks]
    count, sizes = len(ordered), [len(ranks) for ranks in nodes]
    if group_size is not None:
        size = group_size
    elif len(nodes) == 1:
        size = count // 2 if count % 2 == 0 else 0
    else:
        size = sizes[0] if len(set(sizes)) == 1 else 0
    if not 0 < size < count or count % size:
        raise ValueError(
            f"AB(group_size={group_size}): there are {' + '.join(map(str, sizes))} ranks on the nodes, and there must "
            "be at least two groups of equal size. Start other ranks, name a group_size that divides their number, or "
            "use AB(groups=False)."
        )
    return tuple(tuple(sorted(ordered[first : first + size])) for first in range(0, count, size))


def shares_by_loss(losses: Sequence[float]) -> list[float]:
    """Weight exp(−L_i) / Σ_j exp(−L_j) of each group i with mean loss L_i; NaN for all if a loss is NaN."""
    return torch.softmax(-torch.tensor(losses, dtype=torch.float64, device="cpu"), dim=0).tolist()


@full_precision()
def merged_matrix(
    a: Tensor, b: Tensor, delta_a: Tensor, delta_b: Tensor, *, gain: tuple[float, float], mixed: bool
) -> Tensor:
    """Merged W from the factors before the group phase, their mean changes over the groups, and γ_A and γ_B (``gain``).

    If ``mixed``, W is (A + γ_A ΔA)(B + γ_B ΔB), which is Eq. 5.8 for γ = ½ with its mixed states. Otherwise, W is
    A B + γ_A ΔA B + γ_B A ΔB, which is Eq. 5.7 for γ_A = n_A / n and γ_B = n_B / n, with n_A of n groups training A.
    """
    step_a, step_b = gain[0] * delta_a, gain[1] * delta_b
    if mixed:
        return (a + step_a) @ (b + step_b)
    return (a + step_a) @ b + a @ step_b


class GroupExchange:
    """Exchange between groups at a merge. All methods are collective.

    All ranks of a group have the same state. So each rank exchanges a slice of it with the ranks at the same place in
    the other groups, and slices are then gathered inside the group. The first half of the groups trains A, the second
    half B; with an odd number of groups, the second half has one more.

    With halves of equal size, a group first sums with its half, and then exchanges the sum with its partner in the
    other half, so that each factor is sent from one half to the other only once. Otherwise all groups sum together,
    with zeros for the factor that they did not train.
    """

    def __init__(self, communicator: Communicator, groups: tuple[Ranks, ...]) -> None:
        nodes = groups == communicator.nodes
        self.groups = groups
        self._device = communicator.device
        self.index = next(i for i, ranks in enumerate(groups) if communicator.rank in ranks)
        self.first_of_b = len(groups) // 2
        self.inside = communicator.node if nodes else communicator.group("group", groups)
        self._world = communicator.world
        halves = groups[: self.first_of_b], groups[self.first_of_b :]
        self._half: Channel | None = None
        self._pair: Channel | None = None
        self._across: Channel | None = None
        if len(groups) % 2:
            places = zip(*groups, strict=True)
            self._across = communicator.across if nodes else communicator.group("across groups", places)
        else:
            self._half = communicator.group(
                "half of the groups", [ranks for half in halves for ranks in zip(*half, strict=True)]
            )
            self._pair = communicator.group(
                "pair of groups",
                [ranks for pair in zip(*halves, strict=True) for ranks in zip(*pair, strict=True)],
            )

    @property
    def trains(self) -> str:
        """Factor that this rank's group trains: "a" or "b"."""
        return "a" if self.index < self.first_of_b else "b"

    @torch.no_grad()
    def merged(
        self,
        weights: Sequence[MatrixWeight],
        starts: Mapping[str, Tensor],
        shared: Sequence[Tensor],
        *,
        merge: str,
        gain: float,
        loss: Tensor,
    ) -> list[Tensor]:
        """Merged matrix of each weight, from the same bits on all ranks, by the rule ``merge`` and the ``gain`` of
        ``AB``.

        Args:
            weights (sequence of MatrixWeight): factored weights.
            starts (dict): the factor that this group trains at the beginning of the phase, by name of the weight.
            shared (sequence of tensors): other tensors, which are replaced by their means over the groups.
            merge, gain: settings of ``AB``.
            loss (tensor): this rank's mean training loss in the phase, without dimensions.
        """
        share_of_factor, share_of_all = self._shares(loss if merge == "loss-weighted" else None)
        # Changes are exchanged, not values: without any change, W is A B to the last bit.
        changes: dict[str, list[Tensor]] = {"a": [], "b": []}
        for weight in weights:
            for name, factor in weight.factors.items():
                changes[name].append(
                    (factor - starts[weight.name]) * share_of_factor
                    if name == self.trains
                    else torch.empty_like(factor)
                )
        parts = [tensor * share_of_all for tensor in shared]
        self._sum(changes["a"], changes["b"], parts)
        for tensor, mean in zip(shared, parts, strict=True):
            tensor.copy_(mean)
        mixed = merge != "products"
        share_of_a = self.first_of_b / len(self.groups)
        gains = (gain, gain) if mixed else (share_of_a, 1 - share_of_a)
        matrices = []
        for weight, delta_a, delta_b in zip(weights, changes["a"], changes["b"], strict=True):
            old = {**weight.factors, self.trains: starts[weight.name]}
            matrices.append(merged_matrix(old["a"], old["b"], delta_a, delta_b, gain=gains, mixed=mixed))
        return matrices

    def _shares(self, loss: Tensor | None) -> tuple[float, float]:
        """Weights of this group in the means over groups of the same factor, and over all groups; equal without
        ``loss``.
        """
        count = len(self.groups)
        same = range(self.first_of_b) if self.trains == "a" else range(self.first_of_b, count)
        if loss is None:
            return 1 / len(same), 1 / count
        of_ranks = [float(part.item()) for part in self._world.all_gather(loss.reshape(1))]
        losses = [sum(of_ranks[rank] for rank in ranks) / len(ranks) for ranks in self.groups]
        return (
            shares_by_loss([losses[group] for group in same])[self.index - same.start],
            shares_by_loss(losses)[self.index],
        )

    def _sum(self, a: list[Tensor], b: list[Tensor], both: list[Tensor]) -> None:
        """Replace ``a`` by its sum over groups that train A, ``b`` by that over groups that train B, and ``both`` by
        that over all groups.

        The values of the factor that this group does not train are ignored; its shapes and types must be right.
        """
        for dtype in sorted({tensor.dtype for tensor in (*a, *b, *both)}, key=str):
            of_type = [[tensor for tensor in part if tensor.dtype == dtype] for part in (a, b, both)]
            self._sum_flat(dtype, *of_type)

    def _sum_flat(self, dtype: torch.dtype, a: list[Tensor], b: list[Tensor], both: list[Tensor]) -> None:
        trains_a = self.trains == "a"
        of_a = self._slice(a, dtype, empty=not trains_a)
        of_b = self._slice(b, dtype, empty=trains_a)
        of_both = self._slice(both, dtype)
        if self._across is not None:
            joined = torch.cat([of_a, of_b, of_both])
            self._across.all_reduce(joined).wait()
            of_a, of_b, of_both = torch.split(joined, [len(of_a), len(of_b), len(of_both)])
        else:
            assert self._half is not None
            assert self._pair is not None
            own = of_a if trains_a else of_b
            joined = torch.cat([own, of_both])
            self._half.all_reduce(joined).wait()
            own.copy_(joined[: len(own)])
            of_both.copy_(joined[len(own) :])
            under_way = [self._pair.broadcast(of_a, source=0), self._pair.broadcast(of_b, source=1)]
            if both:
                # The sum of two numbers does not depend on their order: all pairs get the same bits.
                under_way.append(self._pair.all_reduce(of_both))
            for pending in under_way:
                pending.wait()
        for tensors, part in ((a, of_a), (b, of_b), (both, of_both)):
            if tensors:
                self._put_together(part.contiguous(), tensors)

    def _slice(self, tensors: list[Tensor], dtype: torch.dtype, *, empty: bool = False) -> Tensor:
        """This rank's slice of ``tensors``, flat and filled up to equal sizes in the group; zeros if ``empty``."""
        members, place = self.inside.size, self.inside.rank
        length = -(-sum(tensor.numel() for tensor in tensors) // members)
        part = torch.zeros(length, dtype=dtype, device=self._device)
        if tensors and not empty:
            flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
            mine = flat[place * length : (place + 1) * length]
            part[: len(mine)] = mine
        return part

    def _put_together(self, part: Tensor, into: list[Tensor]) -> None:
        flat = torch.cat(self.inside.all_gather(part))
        sizes = [tensor.numel() for tensor in into]
        for tensor, values in zip(into, torch.split(flat[: sum(sizes)], sizes), strict=True):
            tensor.copy_(values.view(tensor.shape))
