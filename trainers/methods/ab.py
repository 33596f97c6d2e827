"""AB training: groups of ranks independently train one of two factors of each weight.

Dissertation, 5.2 and Algorithm 2. After a warm-up, two kinds of phase alternate. In a *group phase* each weight is
W = A B (Eq. 5.3), half of the groups train A, the other half B, and groups exchange nothing. At its end the factors are
merged (Eq. 5.8). In the *rebound* phase, all ranks together train the whole W.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trainers.arguments import check_bounds, check_kinds, check_rules, check_whole
from trainers.communication.averager import GradientAverager, gradient_of
from trainers.communication.buckets import average_tensors, broadcast_tensors, buffers_of, reconcile_buffers
from trainers.communication.channel import Channel
from trainers.communication.topology import Ranks
from trainers.lowrank.decomposition import SharedWork, svd, svd_cost
from trainers.lowrank.layers import factorise, make_whole, weights_to_factorise
from trainers.lowrank.state_projection import Projection, exchange, holds_others, moments_of
from trainers.methods.ab_merge import GroupExchange, groups_of
from trainers.methods.strategy import (
    AveragingStrategy,
    Method,
    Setup,
    State,
    Steps,
    Strategy,
    check_steps,
    refuse_synchronised_norms,
    steps_of,
)

_log = logging.getLogger("trainers.methods")


@dataclass(frozen=True, kw_only=True)
class AB(Method):
    """AB training: after a warm-up of full rank, group phases alternate with *rebound* phases of full rank.

    In a group phase, each group of ranks trains one of two factors of each weight; in a rebound phase, all ranks train
    the whole weights together. Other parameters (biases, norms, whole layers) are trained in all phases, and merged to
    their (weighted) means.

    The default lengths of phases are those of the dissertation's Table A.7 (3000, 300 and 750 of 45000 steps), but
    with a longer warm-up, 0.3 of the run in place of 0.207, with which runs of about 600 steps are closer to DDP
    (trainers/README.md has measurements, and settings that are closer still).

    A compiled model is compiled again at each change of ranks, and for evaluations. torch compiles 8 times and then
    runs that part uncompiled: raise ``torch._dynamo.config.recompile_limit`` (torch 2.6: ``cache_size_limit``) before
    the run.

    Args:
        warmup_steps (int steps or float fraction of the run; default 0.3): length of the warm-up, in which all ranks
            train whole weights.
        ab_steps (int steps or float fraction of the run; default 0.0667): length of a group phase, at least 1 step.
        rebound_steps (int steps or float fraction of the run; default None): length of a rebound phase; None: a tenth
            of ``ab_steps``, which is no step if these are fewer than six.
        lr_rebound_steps (int steps or float fraction of the run; default None): steps in which the learning rate rises
            from near zero to the schedule after each change of shape; None: a quarter of ``ab_steps``.
        sigma_cutoff (float, between 0 and 1; default 0.15): share of the largest singular value up to which singular
            values are dropped (Eq. 5.4).
        group_size (int, ranks; default None): ranks of a group, node after node; None: the ranks of a node, or half of
            all ranks on a single node.
        groups (bool; default True): whether groups train apart; False: all ranks together train B, A stays as the
            decomposition made it, and the merge is W = A B.
        merge (str; default "factors"): rule of the merge. With Δ̄ the mean change of a factor over the groups that
            trained it, and γ = ``merge_gain``, "factors" is W = (A + γΔ̄A)(B + γΔ̄B), which is Eq. 5.8 for γ = ½.
            "products" is the mean of the products of all groups, Eq. 5.7, without a gain. "loss-weighted" is "factors"
            with weighted means: the weight of group i is exp(−L_i) / Σ_j exp(−L_j), with L_i its mean training loss in
            the phase, and j over all groups of the same mean.
        merge_gain (float, above 0 to 1; default 0.5): γ, without effect if groups=False.
        compression (str; default None): "bf16" for gradients that are averaged over all ranks; None: their own type.
        full_rank_first_layer (bool; default True): whether the model's first layer with a weight stays whole.
        full_rank_last_layer (bool; default True): whether the model's last layer with a weight stays whole.

    Raises:
        ValueError: a setting is not allowed; in the run: no weight can be factorised, or no steps are left for group
            phases.
    """

    warmup_steps: Steps = 0.3
    ab_steps: Steps = 0.0667
    rebound_steps: Steps | None = None
    lr_rebound_steps: Steps | None = None
    sigma_cutoff: float = 0.15
    group_size: int | None = None
    groups: bool = True
    merge: str = "factors"
    merge_gain: float = 0.5
    compression: str | None = None
    full_rank_first_layer: bool = True
    full_rank_last_layer: bool = True

    def __post_init__(self) -> None:
        check_kinds(self)
        check_whole(self, group_size=1)
        check_steps("AB", "warmup_steps", self.warmup_steps)
        check_steps("AB", "ab_steps", self.ab_steps, least=1)
        for name in ("rebound_steps", "lr_rebound_steps"):
            if getattr(self, name) is not None:
                check_steps("AB", name, getattr(self, name))
        check_bounds(self, sigma_cutoff="above 0 and below 1", merge_gain="above 0 and at most 1")
        check_rules(
            self,
            ("merge", self.merge in _MERGES, " or ".join(f'"{merge}"' for merge in _MERGES)),
            ("compression", self.compression in (None, "bf16"), 'None or "bf16"'),
            ("group_size", self.group_size is None or self.groups, "None where groups=False"),
            (
                "merge",
                self.merge == AB.merge or self.groups,
                f'"{AB.merge}", its default, where groups=False',
            ),
            (
                "merge_gain",
                self.merge_gain == AB.merge_gain or self.merge != "products",
                f'{AB.merge_gain}, its default, where merge="products"',
            ),
        )

    def strategy(self, setup: Setup) -> Strategy:
        return _ABStrategy(self, setup)


_MERGES = ("factors", "products", "loss-weighted")


class _ABStrategy(AveragingStrategy):
    """AB training of a run.

    A group phase keeps both factors, and a copy of the trained factor at its start, but not W. Each rank computes the
    merged W itself, which may differ in its last bits between kinds of devices. After a merge:

    - The optimizer's state of W is empty, its count of steps included: half of the groups know the gradients of A, the
      others those of B, and neither gives gradients of W. At a decomposition, the moments of W, which are the same on
      all ranks, are projected to those of the trained factor.
    - Other parameters have different moments in each group. These are merged to their means like the parameters, so
      that all ranks have the same state. State without a mean, such as lists, becomes empty.
    """

    def __init__(self, method: AB, setup: Setup) -> None:
        self._method = method
        self._setup = setup
        self._optimizer = setup.optimizer
        self._communicator = setup.communicator
        self._total = setup.total_steps
        self._warmup = steps_of(method.warmup_steps, self._total)
        self._ab = max(1, steps_of(method.ab_steps, self._total))
        self._rebound, self._lr_rebound = (
            round(part * self._ab) if value is None else steps_of(value, self._total)
            for value, part in ((method.rebound_steps, 0.1), (method.lr_rebound_steps, 0.25))
        )
        if self._warmup >= self._total:
            raise ValueError(
                f"AB(warmup_steps={method.warmup_steps!r}): that is {self._warmup} steps, and the run has "
                f"{self._total}. Leave steps for the group phases, or use DDP."
            )
        self._weights = weights_to_factorise(
            "AB",
            setup.model,
            setup.optimizer,
            first=not method.full_rank_first_layer,
            last=not method.full_rank_last_layer,
        )
        self._exchange: GroupExchange | None = None
        if method.groups:
            refuse_synchronised_norms("AB(groups=True)", setup.model)
            self._exchange = GroupExchange(
                self._communicator, groups_of(self._communicator.nodes, method.group_size)
            )
        self._trains = self._exchange.trains if self._exchange is not None else "b"
        parameters = list(setup.model.parameters())
        self._full_parameters = sum(p.numel() for p in parameters)
        self._full_trainable = sum(p.numel() for p in parameters if p.requires_grad)
        self._work = SharedWork(self._communicator)
        self._factored = False
        self._whole_for_evaluation = False
        self._ranks = {weight.name: min(weight.rows, weight.columns) for weight in self._weights}
        self._starts: dict[str, Tensor] = {}
        # Long enough ago that the learning rate is not reduced.
        self._changed_at = -self._lr_rebound - 1
        self._next_step = 0
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=self._communicator.device)
        self._loss_steps = 0
        self._merges = 0
        self._average()

    # Phases

    @property
    def reparametrises(self) -> bool:
        return True

    @property
    def replicated(self) -> bool:
        return not self._factored or self._exchange is None

    @property
    def replica(self) -> Ranks | None:
        return self._channel.ranks

    @property
    def evaluates_alike(self) -> bool:
        return self._factored and self._exchange is not None

    def learning_rate(self, step: int, scheduled: float) -> float:
        # Asked before the first pass of the step, in which the decomposition happens.
        changed_at = step if self._to_decompose(step) else self._changed_at
        return min(scheduled, scheduled * (step - changed_at + 1) / (self._lr_rebound + 1))

    def before_pass(self, step: int, *, last: bool) -> None:
        if self._to_decompose(step):
            self._decompose()
            self._changed_at = step
        super().before_pass(step, last=last)

    def reduce_gradients(self, step: int) -> None:
        super().reduce_gradients(step)
        if self._averager is None and self._communicator.size > 1:
            # Without an averager, missing gradients become zeros as with one. Otherwise, optimizer states could
            # differ in kind between ranks, and could not be merged.
            for parameter in self._setup.model.parameters():
                if parameter.requires_grad:
                    gradient_of(parameter)

    def after_step(self, step: int, loss: Tensor) -> None:
        self._next_step = step + 1
        if not self._factored:
            return
        self._loss_sum += loss.detach()
        self._loss_steps += 1
        if self._place(step) == self._ab - 1 or self._next_step == self._total:
            self._merge()

    def end_epoch(self, epoch: int, train_loss: float) -> None:
        # Groups exchange nothing, so buffers are averaged inside of them; the evaluation's merge combines all.
        reconcile_buffers(self._channel, self._setup.model)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        if not self._factored:
            yield
            return
        # Kept and restored, because the merge replaces shared parameters and buffers by their means.
        touched: list[Tensor] = []
        if self._exchange is not None:
            touched = [*self._shared_parameters(), *self._setup.model.buffers()]
        kept = [tensor.clone() for tensor in touched]
        factors = [weight.factors for weight in self._weights]
        with self._communicator.counted_as_service():
            matrices = self._merged_matrices(moments=False)
        for weight, matrix in zip(self._weights, matrices, strict=True):
            make_whole(weight, matrix)
        self._whole_for_evaluation = True
        try:
            yield
        finally:
            self._whole_for_evaluation = False
            for weight, held in zip(self._weights, factors, strict=True):
                factorise(weight, held)
            with torch.no_grad():
                for tensor, value in zip(touched, kept, strict=True):
                    tensor.copy_(value)

    def synchronise(self) -> None:
        if self._factored:
            self._merge()

    def parameters_thawed(self) -> None:
        # Thawed weights stay whole, and are merged like all parameters that are no factors.
        self._average()

    def metrics(self) -> dict[str, float]:
        whole = sum(weight.rows * weight.columns for weight in self._weights)
        a = sum(weight.rows * self._ranks[weight.name] for weight in self._weights)
        b = sum(weight.columns * self._ranks[weight.name] for weight in self._weights)
        trained, stored = float(whole), whole
        if self._factored:
            groups = len(self._exchange.groups) if self._exchange is not None else 1
            of_a = self._exchange.first_of_b if self._exchange is not None else 0
            trained, stored = (of_a * a + (groups - of_a) * b) / groups, a + b
        fullest = sum(min(weight.rows, weight.columns) for weight in self._weights)
        return {
            # The first two are of the present phase, as means over groups; the merged model of an evaluation is whole.
            "trainable_fraction": (self._full_trainable - whole + trained) / self._full_trainable,
            "compression_ratio": self._full_parameters / (self._full_parameters - whole + stored),
            "decomposition_s": self._work.busiest_s(),
            "synchronisations": float(self._merges),
            # The last decomposition's, whatever the present phase is.
            "factored_compression_ratio": self._full_parameters / (self._full_parameters - whole + a + b),
            "mean_rank_fraction": sum(self._ranks[weight.name] for weight in self._weights) / max(1, fullest),
            **{f"rank/{weight.layer}": float(self._ranks[weight.name]) for weight in self._weights},
        }

    def state(self) -> State:
        factored = self._factored and not self._whole_for_evaluation
        return {
            "factored": factored,
            "ranks": dict(self._ranks),
            "starts": dict(self._starts) if factored else {},
            "changed_at": self._changed_at,
            "next_step": self._next_step,
            "loss_sum": self._loss_sum.clone(),
            "loss_steps": self._loss_steps,
            "merges": self._merges,
            "decomposition_s": self._work.own_s,
        }

    def own_state(self) -> State:
        return {"loss_sum": self._loss_sum.clone(), "decomposition_s": self._work.own_s}

    def load(self, state: State) -> None:
        if self._factored:
            self._become_whole([weight.matrix() for weight in self._weights])
        self._ranks = dict(state["ranks"])
        if state["factored"]:
            shapes = [(weight, self._ranks[weight.name]) for weight in self._weights]
            self._become_factored(
                [(w.whole.new_zeros(w.rows, rank), w.whole.new_zeros(rank, w.columns)) for w, rank in shapes]
            )
        device = self._communicator.device
        self._starts = {name: start.to(device, copy=True) for name, start in state["starts"].items()}
        self._changed_at, self._next_step = state["changed_at"], state["next_step"]
        self._loss_sum.copy_(state["loss_sum"])
        self._loss_steps, self._merges = state["loss_steps"], state["merges"]
        self._work.own_s = state["decomposition_s"]

    def state_on_other_ranks(self, states: Sequence[State], *, step: int, same_steps: bool) -> State | None:
        if not same_steps:
            return None  # phases begin and end at numbers of steps
        return {
            **states[0],
            "loss_sum": torch.stack([state["loss_sum"] for state in states]).mean(0),
            "decomposition_s": max(state["decomposition_s"] for state in states),
        }

    def close(self) -> None:
        super().close()
        if self._factored:
            # After an interruption or a failure: the model gets ordinary layers, with this rank's factors alone.
            for weight in self._weights:
                make_whole(weight)
            self._factored = False

    # Shapes

    def _place(self, step: int) -> int:
        """Steps since the beginning of the cycle of a group phase and a rebound phase; negative in the warm-up."""
        since = step - self._warmup
        return since % (self._ab + self._rebound) if since >= 0 else since

    def _to_decompose(self, step: int) -> bool:
        return not self._factored and 0 <= self._place(step) < self._ab

    def _decompose(self) -> None:
        weights, cutoff = self._weights, self._method.sigma_cutoff

        def factors(task: int) -> list[Tensor]:
            u, values, vt = svd(weights[task].whole.detach().flatten(1), cutoff=cutoff)
            root = values.sqrt()
            return [u * root, root[:, None] * vt]

        found = self._work.run(
            [svd_cost(weight.rows, weight.columns) for weight in weights],
            factors,
            [weight.whole.dtype for weight in weights],
        )
        self._ranks = {weight.name: a.shape[1] for weight, (a, _) in zip(weights, found, strict=True)}
        self._become_factored([(a, b) for a, b in found])
        if self._exchange is not None:
            self._starts = {
                weight.name: weight.factors[self._trains].detach().clone() for weight in self._weights
            }

    def _become_factored(self, factors: list[tuple[Tensor, Tensor]]) -> None:
        for weight, (a, b) in zip(self._weights, factors, strict=True):
            old = weight.whole
            factorise(
                weight,
                {
                    "a": nn.Parameter(a, requires_grad=self._trains == "a"),
                    "b": nn.Parameter(b, requires_grad=self._trains == "b"),
                },
            )
            # For W = A B, the gradient of A is G Bᵀ and that of B is Aᵀ G, with G the gradient of W.
            projection = Projection(right=b.T) if self._trains == "a" else Projection(left=a.T)
            exchange(self._optimizer, old, weight.factors[self._trains], projection)
        self._factored = True
        self._average()

    def _merge(self) -> None:
        self._become_whole(self._merged_matrices(moments=True))
        self._starts = {}
        self._loss_sum.zero_()
        self._loss_steps = 0
        self._merges += 1
        _log.debug("merge %d of the groups, before step %d", self._merges, self._next_step)
        self._changed_at = self._next_step

    def _become_whole(self, matrices: list[Tensor]) -> None:
        for weight, matrix in zip(self._weights, matrices, strict=True):
            old = weight.factors[self._trains]
            exchange(self._optimizer, old, make_whole(weight, matrix))
        self._factored = False
        self._average()

    def _average(self) -> None:
        """Average gradients over the ranks of the present phase from now on."""
        super().close()
        channel, trained = self._channel, self._setup.trained.exchanged()
        if channel.size > 1:
            narrow = self._method.compression == "bf16" and channel is self._communicator.world
            self._averager = GradientAverager(
                trained,
                channel,
                wire_dtype=torch.bfloat16 if narrow else None,
                # Optimizer states are merged over groups, so all groups must have states of the same parameters.
                keep_none=not self._method.groups,
            )

    @property
    def _channel(self) -> Channel:
        """Channel of the ranks that train together in the present phase."""
        apart = self._exchange if self._factored else None
        return apart.inside if apart is not None else self._communicator.world

    # The merge

    @torch.no_grad()
    def _merged_matrices(self, *, moments: bool) -> list[Tensor]:
        """Merged W of each weight.

        Other parameters and buffers are replaced by their means over the groups, and with ``moments`` the optimizer's
        state of these parameters too.
        """
        if self._exchange is None:
            return [weight.matrix().clone() for weight in self._weights]
        if moments:
            self._average_settings()
        statistics, others = buffers_of(self._setup.model)
        average_tensors(self._exchange.inside, statistics)
        broadcast_tensors(self._communicator.world, others)
        return self._exchange.merged(
            self._weights,
            self._starts,
            [*self._shared_parameters(), *statistics, *(self._shared_moments() if moments else [])],
            merge=self._method.merge,
            gain=self._method.merge_gain,
            loss=self._loss_sum / max(1, self._loss_steps),
        )

    def _shared_parameters(self) -> list[nn.Parameter]:
        """Parameters that are, or were, trained and are no factors."""
        factors = {id(factor) for weight in self._weights for factor in weight.factors.values()}
        return [parameter for parameter in self._setup.trained.ever() if id(parameter) not in factors]

    def _shared_moments(self) -> list[Tensor]:
        """Moments of the shared parameters; state tensors with a single number are replaced by their means."""
        moments: list[Tensor] = []
        numbers: list[Tensor] = []
        for parameter in self._shared_parameters():
            if holds_others(self._optimizer.state.get(parameter, {})):
                # State such as lists has no mean, and groups would continue with different states.
                exchange(self._optimizer, parameter, parameter)
            own_moments, own_numbers = moments_of(self._optimizer, parameter)
            moments += own_moments
            numbers += own_numbers
        # Optimizers keep numbers on the CPU, from which NCCL cannot send.
        sent = [number.to(self._communicator.device) for number in numbers]
        # average_tensors keeps numbers that are equal on all ranks, such as counts, to the last bit.
        average_tensors(self._communicator.world, sent)
        for number, mean in zip(numbers, sent, strict=True):
            number.copy_(mean)
        return moments

    def _average_settings(self) -> None:
        """Replace numbers among the settings of the optimizer's groups by their means, unless all ranks agree."""
        # Optimizers such as Prodigy change their settings by the gradients, which differ between groups.
        device = self._communicator.device
        places = [
            (group, name)
            for group in self._optimizer.param_groups
            for name, value in sorted(group.items())
            if isinstance(value, float) or (isinstance(value, Tensor) and value.is_floating_point())
        ]
        found = [torch.as_tensor(group[name], dtype=torch.float64, device=device) for group, name in places]
        means = [value.clone() for value in found]
        average_tensors(self._communicator.service, means)
        # All comparisons at once, because the host waits for the GPU at each reading.
        changed = (
            torch.stack([(a != b).any() for a, b in zip(found, means, strict=True)]).tolist() if found else []
        )
        for (group, name), mean, is_new in zip(places, means, changed, strict=True):
            if not is_new:
                continue
            if isinstance(group[name], Tensor):
                group[name].copy_(mean)
            else:
                group[name] = mean.item()
