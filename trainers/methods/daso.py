"""DASO: gradients are averaged inside nodes at each step, parameters between nodes at some steps, while training
continues (Coquelin et al. 2022; dissertation, section 3.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial

import torch
from torch import Tensor

from trainers.arguments import check_bounds, check_kinds, check_rules, check_whole
from trainers.communication.averager import GradientAverager
from trainers.communication.buckets import reconcile_buffers
from trainers.communication.channel import Channel
from trainers.communication.topology import Ranks
from trainers.methods.common_base import (
    WIRE_DTYPES,
    WIRE_RULE,
    MakeOuter,
    settings_of_outer,
    warn_of_unused_outer,
)
from trainers.methods.daso_exchange import NodeExchange, Synchronisation
from trainers.methods.fragments import Rota, fragments_of
from trainers.methods.fsdp import ShardingStrategy, shard_within_nodes
from trainers.methods.strategy import (
    Method,
    Prepare,
    Setup,
    State,
    Strategy,
    check_steps,
    refuse_synchronised_norms,
)
from trainers.structures import local_parts


@dataclass(frozen=True, kw_only=True)
class DASO(Method):
    """Distributed, asynchronous and selective optimization.

    After each backward pass, gradients are averaged inside the node. Every ``sync_every`` steps (B), one rank of each
    node, in turn, sends the parameters to its counterparts on the other nodes (with NCCL, each rank sends a share of
    them, so that all network cards are used), and training continues. ``sync_delay`` steps later (S, at most B), all
    ranks of the node get the sum and merge it by Eq. 3.2, w ← (2S w + Σ_p w_p,sent) / (2S + P_g), with P_g the number
    of nodes. Here, w are the parameters after S further optimizer steps, so that step t+S is the first to start from
    the merged parameters. S = 0 waits for the sum at once. With B > 1, S = B took about as much time as smaller S, and
    often lost less accuracy (Table 3.1).

    Messages are differences to the last common average, so that parameters keep their precision; the average needs a
    copy of them, in float32 at least. The last synchronisation of an epoch waits for its result, so that all ranks
    evaluate the same parameters. On a single node, DASO is plain averaging of gradients.

    Args:
        sync_every (int, from 1; default 4): B, steps between synchronisations.
        sync_delay (int, from 0; default 1): S, steps from sending to merging.
        warmup_epochs (int epochs or float fraction of the run; default 0.25): length of the warm-up at the run's start,
            in which nodes synchronise at each step and wait (B = 1, S = 0). The published implementation has 4 of 90
            epochs on ImageNet; in runs of some hundred steps, so short a warm-up costs accuracy
            (tests/benchmarks/accuracy.py).
        cooldown_epochs (int epochs or float fraction of the run; default 0.05): length of the cool-down at the run's
            end, which is the same as the warm-up. Between both, the run is *cycling*.
        adaptive (bool; default True): whether to halve B and S, to no less than 1 (S = 0 stays), when the training loss
            stalls; if B is 1 already, both return to their settings. The count of epochs then starts at 0.
        wire_dtype (str; default "bf16"): form of numbers in messages: "bf16", "fp32", or None, the parameters' own
            type; or "int8" or "int4", integers times a scale for every 64 of them, with error feedback: what rounding
            leaves out is added to the next differences (DoubleSqueeze, Tang et al. 2019, arXiv 1905.05957), and takes
            10 bytes more of memory a parameter. It starts again from 0 where other parameters are trained.
        plateau_patience (int, from 1; default 2): cycling epochs in a row without a loss below the best by more than
            ``plateau_threshold`` after which the loss has stalled, by default as in the published implementation.
        plateau_threshold (float, 0 to below 1; default 0.05): fraction of the best loss, by default as in the published
            implementation.
        bucket_bytes (int, bytes on the wire; default None): size of a message. While a message is sent between nodes,
            the message before is sent inside them, and the message before that is merged. None: 2 MiB, or 25 MiB with
            NCCL.
        shard (str; default None): "node" shards parameters and optimizer state over the ranks of each node, as ``FSDP``
            does over all ranks: each rank exchanges its part with those of the same place on other nodes. Not below
            OIALR, and not in ``wrap``. None: each rank has all.
        fragments (int, 1 to ``sync_every``; default 1): F, equal parts of the parameters that nodes send in turn, so
            that no step sends all, as in Streaming DiLoCo, Douillard et al. 2025, arXiv 2501.18512. Part i, from 0, is
            sent at step (i + 1) B // F of each period, several at a step where B has adapted to less than F. All are
            sent at an epoch's last step, and at each step of warm-up and cool-down.
        outer_optimizer (callable; default None): function as ``optimizer`` of ``train``, such as
            ``partial(torch.optim.SGD, lr=0.7, momentum=0.9, nesterov=True)``, whose optimizer steps the common base by
            the mean difference to it (DiLoCo, Douillard et al. 2023, arXiv 2311.08105), once each synchronisation,
            an epoch's last included. It rests in warm-up and cool-down, where the base is the average; its rate and
            momentum stay as B and S adapt, and it starts again where other parameters are trained. None: the base is
            the average. Not on a single node.

    Raises:
        ValueError: a setting is not allowed; in the run: nodes have different numbers of ranks, warm-up and cool-down
            leave no steps between them, or parts of the model cannot be sharded.
    """

    sync_every: int = 4
    sync_delay: int = 1
    warmup_epochs: int | float = 0.25
    cooldown_epochs: int | float = 0.05
    adaptive: bool = True
    wire_dtype: str | None = "bf16"
    plateau_patience: int = 2
    plateau_threshold: float = 0.05
    bucket_bytes: int | None = None
    shard: str | None = None
    fragments: int = 1
    outer_optimizer: MakeOuter | None = field(default=None, repr=False, compare=False)
    outer_settings: str | None = field(default=None, init=False)
    """Class and settings of what ``outer_optimizer`` makes, by which checkpoints and ranks compare it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "outer_settings", settings_of_outer(self.outer_optimizer))
        check_whole(self, sync_every=1, sync_delay=0, plateau_patience=1, bucket_bytes=1, fragments=1)
        check_kinds(self)
        for name in ("warmup_epochs", "cooldown_epochs"):
            check_steps("DASO", name, getattr(self, name), unit="epochs")
        check_rules(
            self,
            # One synchronisation is under way at a time.
            ("sync_delay sync_every", self.sync_delay <= self.sync_every, "at most sync_every"),
            ("fragments sync_every", self.fragments <= self.sync_every, "at most sync_every"),
            ("wire_dtype", self.wire_dtype in [*WIRE_DTYPES], WIRE_RULE),
            ("shard", self.shard in (None, "node"), '"node" or None'),
        )
        check_bounds(self, plateau_threshold="at least 0 and below 1")

    @property
    def prepare(self) -> Prepare | None:
        """Function that shards a model within nodes; None without ``shard``."""
        return None if self.shard is None else shard_within_nodes

    def strategy(self, setup: Setup) -> Strategy:
        return _DASOStrategy(self, setup)


@dataclass(kw_only=True)
class _Periods:
    """Current B and S, and their adaptation to the training loss."""

    sync_every: int
    sync_delay: int
    best: float | None = None
    """Best training loss of a cycling epoch."""
    bad_epochs: int = 0
    """Epochs in a row without a better loss."""

    def adapt(self, train_loss: float, method: DASO) -> None:
        """Adapt B and S after a cycling epoch with ``train_loss``."""
        if self.best is None or train_loss < self.best - method.plateau_threshold * abs(self.best):
            self.best, self.bad_epochs = train_loss, 0
            return
        self.bad_epochs += 1
        if self.bad_epochs < method.plateau_patience:
            return
        self.bad_epochs = 0
        # B cannot be halved any further: the cycle begins again with the largest periods.
        if self.sync_every == 1:
            self.sync_every, self.sync_delay = method.sync_every, method.sync_delay
        else:
            self.sync_every = self.sync_every // 2
            self.sync_delay = min(self.sync_delay, max(1, self.sync_delay // 2))


class _DASOStrategy(ShardingStrategy):
    def __init__(self, method: DASO, setup: Setup) -> None:
        self._method = method
        self._setup = setup
        self._warm_until = self._steps(method.warmup_epochs)
        self._cool_from = setup.total_steps - self._steps(method.cooldown_epochs)
        if self._warm_until >= self._cool_from:
            raise ValueError(
                f"DASO(warmup_epochs={method.warmup_epochs!r}, cooldown_epochs={method.cooldown_epochs!r}): they "
                f"leave none of the run's {setup.epochs} epochs for cycling. Lower one, or use DDP."
            )
        # Checked before groups are made: a rank with an error ends, and others could still be connecting to it.
        if len(setup.communicator.nodes) > 1:
            refuse_synchronised_norms("DASO", setup.model)
        self._across = setup.communicator.across  # first, as it refuses nodes of different sizes
        self._node = setup.communicator.node
        self._world = setup.communicator.world
        super().__init__(setup, among=self._node)
        self._periods = _Periods(sync_every=method.sync_every, sync_delay=method.sync_delay)
        self._used = (method.sync_every, method.sync_delay)
        """B and S of the last step."""
        self._sent = 0
        """Synchronisations of all fragments."""
        self._rota = Rota(count=method.fragments)
        self._fragments: list[Synchronisation] = []
        self._cycling = self._warm_until == 0
        """Whether the last step was cycling, so that the outer optimizer steps."""
        if self._across.size == 1:
            warn_of_unused_outer(method, setup.communicator)
        self.parameters_changed()

    @property
    def replicated(self) -> bool:
        # The optimizer's moments differ between nodes even when parameters are equal.
        return self._across.size == 1 and not self.sharded

    @property
    def replica(self) -> Ranks | None:
        return None if self._across.size == 1 else self._node.ranks

    @property
    def copies(self) -> Channel | None:
        return self._across if self.sharded and self._across.size > 1 else None

    def parameters_changed(self) -> None:
        # Sums under way must arrive before the exchange with their buffers is replaced.
        for fragment in self._fragments:
            fragment.exchange.receive()
        self._rota.meet()
        self.close()
        trained = self._setup.trained.exchanged()
        if self._node.size > 1 and not self.sharded:
            self._averager = GradientAverager(trained, self._node, keep_none=self._across.size == 1)
        exchange = partial(
            NodeExchange,
            communicator=self._setup.communicator,
            # Each rank has parts of its own, which no other rank of the node needs.
            node=self._setup.communicator.alone if self.sharded else self._node,
            bucket_bytes=self._method.bucket_bytes,
            wire_dtype=WIRE_DTYPES[self._method.wire_dtype],
            outer_optimizer=self._method.outer_optimizer,
        )
        with torch.no_grad():
            parts = fragments_of(local_parts(trained) if self._across.size > 1 else [], self._rota.count)
            self._fragments = [Synchronisation(exchange=exchange(part)) for part in parts]

    def reduce_gradients(self, step: int) -> None:
        super().reduce_gradients(step)
        # Not in after_step: the optimizer steps next, and ``synchronise`` may be called before ``after_step``.
        for fragment in self._fragments:
            fragment.agreed = self._across.size == 1

    def after_step(self, step: int, loss: Tensor) -> None:
        self._cycling = self._warm_until <= step < self._cool_from
        periods = self._periods
        every, delay = (periods.sync_every, periods.sync_delay) if self._cycling else (1, 0)
        self._used = (every, delay)
        if self._across.size == 1:
            return
        self._rota.since += 1
        for fragment in self._fragments:
            fragment.steps += 1
        if not self._cycling:
            self.synchronise()
            return
        for fragment in self._fragments:
            fragment.go_on(delay)
        # At the last step of an epoch, ``end_epoch`` synchronises.
        if (step + 1) % self._setup.steps_per_epoch:
            for number in self._rota.due(every):
                self._send(self._fragments[number])
                if delay == 0:
                    self._fragments[number].merge()

    def end_epoch(self, epoch: int, train_loss: float) -> None:
        self.synchronise()
        reconcile_buffers(self._world, self._setup.model)
        first = epoch * self._setup.steps_per_epoch
        cycled = first >= self._warm_until and first + self._setup.steps_per_epoch <= self._cool_from
        if self._method.adaptive and cycled:
            self._periods.adapt(train_loss, self._method)

    def synchronise(self) -> None:
        for fragment in self._fragments:
            fragment.go_on(0)
        for fragment in self._fragments:
            if not fragment.agreed:
                self._send(fragment)
        for fragment in self._fragments:
            fragment.go_on(0)
        self._rota.meet()

    def metrics(self) -> dict[str, float]:
        every, delay = self._used
        return {
            "sync_every": float(every),
            "sync_delay": float(delay),
            "synchronisations": self._sent / self._rota.count,
        }

    def state(self) -> State:
        first, *others = (fragment.state() for fragment in self._fragments)
        return {
            **first,
            "fragments": {str(number): other for number, other in enumerate(others)},
            "cycling": self._cycling,
            "since_sync": self._rota.since,
            "sent_since": self._rota.sent,
            "synchronisations": self._sent,
            "used": list(self._used),
            "periods": asdict(self._periods),
        }

    def own_state(self) -> State:
        first, *others = (fragment.own_state() for fragment in self._fragments)
        return {**first, "fragments": {str(number): other for number, other in enumerate(others)}}

    def load(self, state: State) -> None:
        self._sent, self._rota.since = state["synchronisations"], state["since_sync"]
        self._used, self._periods = tuple(state["used"]), _Periods(**state["periods"])
        # Checkpoints of earlier versions have none of these.
        self._cycling, self._rota.sent = state.get("cycling", True), state.get("sent_since", 0)
        states = [state, *state.get("fragments", {}).values()]
        if not all(fragment.load(saved) for fragment, saved in zip(self._fragments, states, strict=True)):
            raise ValueError(
                "The saved state is of DASO on another model, other nodes, another backend of torch.distributed or "
                "with another bucket_bytes. Start with an empty checkpoint directory."
            )

    def state_on_other_ranks(self, states: Sequence[State], *, step: int, same_steps: bool) -> State | None:
        # All ranks are on a single node, before and now, where nothing is sent between nodes.
        return states[0]

    def _steps(self, epochs: int | float) -> int:
        if isinstance(epochs, int):
            return epochs * self._setup.steps_per_epoch
        return round(epochs * self._setup.total_steps)

    def _send(self, fragment: Synchronisation) -> None:
        fragment.send(self._sent, steps_outer=self._cycling)
        self._sent += 1
