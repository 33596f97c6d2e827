"""The merge of AB training: which ranks form groups, what crosses between them, how factors become W again."""

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
    """The ranks of each group: ``size`` each, node after node; None: a node's, or half of all on one node.

    ValueError if that makes no groups of one size, or only one.
    """
    ordered = [rank for ranks in nodes for rank in ranks]
    size = len(ordered)
    if group_size is None:
        if size == 1:
            raise ValueError(
                "AB(groups=True): groups train apart, and one rank is no two groups. Start more ranks, or use "
                "AB(groups=False)."
            )
        sizes = {len(ranks) for ranks in nodes}
        if len(sizes) > 1:
            raise ValueError(
                f"AB(group_size=None): the nodes have {', '.join(str(len(ranks)) for ranks in nodes)} ranks, "
                f"and groups are of one size. Name a group_size that divides {size}, or use AB(groups=False)."
            )
        if len(nodes) == 1 and size % 2:
            raise ValueError(
                f"AB(group_size=None): {size} ranks on one node make no two halves. Name a group_size that "
                f"divides {size}, or use AB(groups=False)."
            )
        group_size = len(nodes[0]) if len(nodes) > 1 else size // 2
    if size % group_size:
        raise ValueError(
            f"AB(group_size={group_size}): {size} ranks are no multiple of it. Name a divisor of {size}."
        )
    if group_size == size:
        raise ValueError(
            f"AB(group_size={group_size}): {size} ranks make one group only, and half of the groups trains A, "
            "half B. Name a smaller group_size, or use AB(groups=False)."
        )
    return tuple(tuple(sorted(ordered[first : first + group_size])) for first in range(0, size, group_size))


def shares_by_loss(losses: Sequence[float]) -> list[float]:
    """exp(−L_i) / Σ_j exp(−L_j): the weight of each group whose mean loss was L_i. NaN makes all of them
    NaN.
    """
    return torch.softmax(-torch.tensor(losses, dtype=torch.float64, device="cpu"), dim=0).tolist()


@full_precision()
def merged_matrix(
    a: Tensor, b: Tensor, delta_a: Tensor, delta_b: Tensor, *, gain: tuple[float, float], mixed: bool
) -> Tensor:
    """W from the factors before the group phase and the mean of what the groups added to each.

    ``mixed``: (A + γ_A ΔA)(B + γ_B ΔB), which is Eq. 5.8 for γ = ½, its mixed states included; otherwise only
    products of which one factor is old, A B + γ_A ΔA B + γ_B A ΔB, which is Eq. 5.7 for γ_A = n_A / n and
    γ_B = n_B / n, where n_A of n groups trained A. a: m × k, b: k × n.
    """
    step_a, step_b = gain[0] * delta_a, gain[1] * delta_b
    if mixed:
        return (a + step_a) @ (b + step_b)
    return (a + step_a) @ b + a @ step_b


class GroupExchange:
    """What groups exchange when they merge. All methods are collective.

    Members of a group are identical. So the member at each place carries one slice of what its group
    sends, to and from the members at the same place of the other groups, and inside the group slices are put
    together again. The first half of the groups trains A, the second B; with an odd number the second has
    one more.

    With halves of one size, a group first sums with its half, and then exchanges the sum with its partner in
    the other half: each factor crosses from one half to the other only once. Otherwise all groups sum, with
    zeros for the factor that they did not train.
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
        """The factor that this rank's group trains: "a" or "b"."""
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
        """The matrix of each of ``weights`` as the groups together have it, the same bits on all ranks;
        ``shared`` becomes its mean over the groups, in place.

        ``starts``: of each weight the factor that this group trains, as it was when the phase began; the
        other factor is still that of the beginning. ``merge``, ``gain``: as in ``AB``. ``loss``: this rank's
        mean in this phase, without dimensions.
        """
        share_of_factor, share_of_all = self._shares(loss if merge == "loss-weighted" else None)
        # Changes travel, not values: where nothing was learned they are zero, and W is A B to the last bit.
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
        """The weight of this group in means over those that train the same factor, and over all; the same
        for each without a ``loss``.
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
        """Overwrite ``a`` with its sum over the groups that train A, ``b`` with that over those that train B,
        and ``both`` with that over all groups.

        Of the factor that this group does not train, only shapes and types count.
        """
        for dtype in sorted({tensor.dtype for tensor in (*a, *b, *both)}, key=str):
            of_type = [[tensor for tensor in part if tensor.dtype == dtype] for part in (a, b, both)]
            self._sum_flat(dtype, *of_type)

    def _sum_flat(self, dtype: torch.dtype, a: list[Tensor], b: list[Tensor], both: list[Tensor]) -> None:
        """``_sum`` for tensors of one type."""
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
                # The order of two summands does not matter: all pairs get the same bits.
                under_way.append(self._pair.all_reduce(of_both))
            for pending in under_way:
                pending.wait()
        for tensors, part in ((a, of_a), (b, of_b), (both, of_both)):
            if tensors:
                self._put_together(part.contiguous(), tensors)

    def _slice(self, tensors: list[Tensor], dtype: torch.dtype, *, empty: bool = False) -> Tensor:
        """This member's part of ``tensors``, flat and filled up to a size that all members share; zeros if
        ``empty``.
        """
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
