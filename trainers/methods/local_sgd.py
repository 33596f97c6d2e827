"""Local SGD: ranks train independently and average parameters at some steps, in households and neighbourhoods.

Sources: Stich 2019 (local SGD), Lin et al. 2020 (post-local and hierarchical local SGD), Wang and Joshi 2018, arXiv
1810.08313 (AdaComm), and the study of data assignment, section 4.2 (households and neighbourhoods).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from trainers.arguments import check_kinds, check_rules, check_whole
from trainers.communication.averager import GradientAverager, gradient_of
from trainers.communication.buckets import (
    BUCKET_BYTES,
    average_summands,
    averaged_over_ranks,
    each_bucket,
    reconcile_buffers,
)
from trainers.communication.channel import Channel
from trainers.communication.communicator import Communicator
from trainers.communication.quantisation import QuantisedSum
from trainers.communication.topology import Ranks
from trainers.methods.common_base import (
    WIRE_DTYPES,
    WIRE_RULE,
    CommonBase,
    MakeOuter,
    settings_of_outer,
    warn_of_unused_outer,
)
from trainers.methods.fragments import Rota, Tensors, fragments_of
from trainers.methods.fsdp import ShardingStrategy, shard_within_nodes
from trainers.methods.levels import Partition, channel_of, levels_of, refines
from trainers.methods.strategy import (
    DataRanks,
    Method,
    Prepare,
    Setup,
    State,
    Steps,
    Strategy,
    check_steps,
    refuse_synchronised_norms,
    steps_of,
)
from trainers.structures import local_parts


def effective_batch_size(*, batch_size: int, ranks: int, households: int, world_every: int) -> float:
    """Mean number of samples in a synchronisation, from the view of a rank: B_l M (H + L_W − 1) / (H L_W).

    This is equation A.2 of the study of data assignment.

    Args:
        batch_size (int): B_l, samples per rank and step.
        ranks (int): M, number of ranks.
        households (int): H, number of households of equal size, which synchronise at each step.
        world_every (int, steps): L_W, period of the average over all ranks.
    """
    return batch_size * ranks * (households + world_every - 1) / (households * world_every)


def adapted_period(*, period: int, first_loss: float, loss: float) -> int:
    """AdaComm's period ⌈√(loss / first_loss) · period⌉ (Wang and Joshi 2018), from 1 to ``period``.

    It never exceeds the user's ``period``, and stays at it if ``first_loss`` is not above 0, as the rule assumes losses
    with a lower bound of 0.
    """
    if first_loss <= 0 or not loss < first_loss:
        return period
    return max(1, math.ceil(math.sqrt(max(0.0, loss) / first_loss) * period))


@dataclass(frozen=True, kw_only=True)
class LocalSGD(Method):
    """Local SGD: ranks train independently and average parameters at some steps.

    Parameters are averaged inside a household every ``household_every`` steps, inside a neighbourhood every
    ``neighbourhood_every`` steps, over all ranks every ``world_every`` steps (L_H < L_N < L_W), and at each epoch's end
    unless ``average_at_epoch_end`` is False. Steps count from the last average over all ranks.

    With ``household_every=1``, households average gradients instead of parameters. For SGD, with or without momentum,
    that is the same; with AdamW it is better, as the ranks of a household then share the second moments of their joint
    gradient. Averages go from level to level: one rank of each household, and of each node where nodes consist of whole
    households, exchanges parameters and sends them on, so that slow links send each parameter as few times as possible.

    Args:
        household_every (int, steps; default 1): L_H, period of the average inside a household.
        neighbourhood_every (int, steps; default None): L_N, period of the average inside a neighbourhood; needs
            ``neighbourhoods``. None: no neighbourhoods.
        world_every (int, steps; default 8): L_W, period of the average over all ranks.
        households (int, ranks; default None): size of a household, of consecutive ranks; None: the ranks of a node, so
            that on a single node all ranks are one household, which is DDP. 1 is plain local SGD.
        neighbourhoods (int, ranks; default None): size of a neighbourhood, a multiple of a household's.
        start (int steps or float fraction of the run; default 0): beginning of local training; gradients are averaged
            over all ranks before it (post-local SGD).
        adaptive (bool; default False): whether ``world_every`` shrinks with each epoch after ``start`` as the training
            loss falls from that of the first (AdaComm, Wang and Joshi 2018). Inner periods stay, and have no effect
            when they are no longer shorter.
        average_at_epoch_end (bool; default True): whether to average over all ranks at each epoch's end too. False:
            periods continue over epochs, as in the study of data assignment, and the mean of the ranks' parameters is
            made at an epoch's end for the evaluation alone.
        shard (str; default None): "node" shards parameters and optimizer state over the ranks of each node, as ``FSDP``
            does over all ranks: each rank averages its part with those of the same place on other nodes. Households are
            the nodes then, with ``household_every=1`` and no neighbourhoods. Not below OIALR, and not in ``wrap``.
            None: each rank has all.
        wire_dtype (str; default None): form of numbers in the averages over all ranks: "bf16", "fp32", "int8" or
            "int4", of differences to the last such average, see ``DASO``. With the last two, sums inside households,
            and inside nodes of whole households, are in the parameters' own type. None: parameters, in that type.
        fragments (int, 1 to ``world_every``; default 1): equal parts of the parameters that are averaged over all ranks
            in turn, see ``DASO``, and all at an epoch's end, or without ``average_at_epoch_end`` at the run's.
        outer_optimizer (callable; default None): function as ``optimizer`` of ``train``, such as
            ``partial(torch.optim.SGD, lr=0.7, momentum=0.9, nesterov=True)``, whose optimizer steps the last average
            over all ranks by the mean difference to it (DiLoCo, Douillard et al. 2023, arXiv 2311.08105), instead of
            each average over all ranks from ``start`` on. Its rate and momentum stay as ``world_every`` adapts, and it
            starts again where other parameters are trained. None: parameters become the average. Not where all ranks
            are one household.

    Raises:
        ValueError: a setting is not allowed; in the run: ``start`` is the whole run, or parts of the model cannot be
            sharded.
    """

    household_every: int = 1
    neighbourhood_every: int | None = None
    world_every: int = 8
    households: int | None = None
    neighbourhoods: int | None = None
    start: Steps = 0
    adaptive: bool = False
    average_at_epoch_end: bool = True
    shard: str | None = None
    wire_dtype: str | None = None
    fragments: int = 1
    outer_optimizer: MakeOuter | None = field(default=None, repr=False, compare=False)
    outer_settings: str | None = field(default=None, init=False)
    """Class and settings of what ``outer_optimizer`` makes, by which checkpoints and ranks compare it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "outer_settings", settings_of_outer(self.outer_optimizer))
        periods = {"household_every": 1, "neighbourhood_every": 1, "world_every": 1}
        check_whole(self, **periods, households=1, neighbourhoods=1, fragments=1)
        check_kinds(self)
        check_steps("LocalSGD", "start", self.start)
        check_rules(
            self,
            ("wire_dtype", self.wire_dtype in [*WIRE_DTYPES], WIRE_RULE),
            ("fragments world_every", self.fragments <= self.world_every, "at most world_every"),
            (
                "neighbourhood_every neighbourhoods",
                (self.neighbourhood_every is None) == (self.neighbourhoods is None),
                "set where neighbourhoods is, and only there",
            ),
        )
        rising = [name for name in periods if getattr(self, name) is not None]
        for inner, outer in pairwise(rising):
            below = getattr(self, inner) < getattr(self, outer)
            rule = f"below {outer}; to average over all ranks at each step use DDP"
            check_rules(self, (f"{inner} {outer}", below, rule))
        if self.households is not None and self.neighbourhoods is not None:
            count, rest = divmod(self.neighbourhoods, self.households)
            several = count > 1 and not rest
            check_rules(self, ("neighbourhoods households", several, "several whole households"))
        of_nodes = self.household_every == 1 and self.neighbourhoods is None
        rule = '"node" or None; "node" only with household_every=1 and without neighbourhoods'
        allowed = self.shard is None or (self.shard == "node" and of_nodes)
        check_rules(self, ("shard household_every neighbourhoods", allowed, rule))

    @property
    def prepare(self) -> Prepare | None:
        """Function that shards a model within nodes; None without ``shard``."""
        return None if self.shard is None else self._shard

    def _shard(self, model: nn.Module, communicator: Communicator) -> DataRanks:
        parts, nodes = _parts(communicator, self, "households"), communicator.nodes
        of_nodes = parts is None or set(parts) == set(nodes)
        check_rules(self, ("households shard", of_nodes, f"None with shard, or a node's ranks: {nodes}"))
        return shard_within_nodes(model, communicator)

    def strategy(self, setup: Setup) -> Strategy:
        return _LocalSGDStrategy(self, setup)


class _LocalSGDStrategy(ShardingStrategy):
    def __init__(self, method: LocalSGD, setup: Setup) -> None:
        # Refused before any group is formed, which all ranks must join.
        start = steps_of(method.start, setup.total_steps)
        if start >= setup.total_steps:
            raise ValueError(
                f"LocalSGD(start={method.start!r}): that is {start} steps, and the run has "
                f"{setup.total_steps}. Leave steps for the local training, or use DDP."
            )
        communicator = setup.communicator
        households = _parts(communicator, method, "households") or communicator.nodes
        neighbourhoods = _parts(communicator, method, "neighbourhoods")
        if neighbourhoods is not None and not refines(households, neighbourhoods):
            raise ValueError(
                f"LocalSGD(neighbourhoods={method.neighbourhoods}): the nodes' ranks, {households}, are the "
                "households and do not come out even in neighbourhoods of that many ranks. Set households too."
            )
        super().__init__(setup, among=communicator.node)
        self._method, self._start = method, start
        self._levels = levels_of(communicator, households, neighbourhoods, sharded=self.sharded)
        self._household = self._level_of(households)
        self._neighbourhood = self._household if neighbourhoods is None else self._level_of(neighbourhoods)
        self._top = len(self._levels) - 1
        if self._gradients_over(self._start) < self._top:
            refuse_synchronised_norms("LocalSGD", setup.model)
        self._households = households
        self._household_channel = channel_of(communicator, "households", households)
        self._period = method.world_every
        """Current L_W."""
        self._used = 1
        """L_W of the last step; 1 before the start of local training."""
        self._first_loss: float | None = None
        self._rota = Rota(count=method.fragments)
        self._local_steps = 0
        self._averages = 0
        """Averages over all ranks of all fragments."""
        self._agreed = [self._top] * method.fragments
        """Highest level whose parts have equal parameters on all their ranks, by fragment."""
        self._averaged: int | None = None
        """Level whose parts average gradients now."""
        self._apart = self._gradients_over(self._start) < self._top
        """Whether ranks train apart from ``start`` on."""
        self._bases: list[CommonBase] = []
        """Last average over all ranks of each fragment, from the first local step on, if differences to it are sent."""
        setup.trained.exchanged()
        if self._apart:
            self._fragments()  # refuses parameters that it cannot cut
        else:
            warn_of_unused_outer(method, communicator)

    @property
    def evaluates_alike(self) -> bool:
        return not self._method.average_at_epoch_end

    @property
    def replicated(self) -> bool:
        return self._alike and not self.sharded

    @property
    def _alike(self) -> bool:
        """Whether no rank has trained apart from another."""
        return self._gradients_over(self._start) == self._top or self._local_steps == 0

    @property
    def replica(self) -> Ranks | None:
        # A rank that averages only parameters has an optimizer state of its own. Before ``start`` too, as the best
        # weights of then are parts that are written with those of later.
        together = self._method.household_every == 1 and self._apart
        return self._household_channel.ranks if together else None

    @property
    def copies(self) -> Channel | None:
        return self._levels[-1].leaders if self.sharded and not self._alike else None

    def parameters_changed(self) -> None:
        self.close()
        self._agreed, self._bases = [self._top] * self._rota.count, []
        self._rota.meet()
        self._setup.trained.exchanged()  # or a resumed run would take new factors for thawed, and synchronise

    def parameters_thawed(self) -> None:
        # Bases and fragments are of the parameters that have been trained so far.
        if self._bases or self._rota.count > 1:
            super().parameters_thawed()
        self.close()  # the next pass makes an averager of the parameters that are trained then

    def before_pass(self, step: int, *, last: bool) -> None:
        level = self._gradients_over(step)
        if not self._bases and self._apart and step >= self._start:
            self._bases = self._new_bases()
        # The ranks that average gradients change at the beginning of local training.
        if self._averaged != level:
            self.close()
            of_all = level == self._top
            channel = self._setup.communicator.world if of_all else self._household_channel
            trained = self._setup.trained.exchanged()
            if level > 0 and not self.sharded:
                self._averager = GradientAverager(trained, channel, keep_none=of_all)
            self._averaged = level
        super().before_pass(step, last=last)

    def reduce_gradients(self, step: int) -> None:
        super().reduce_gradients(step)
        level = self._gradients_over(step)
        if self.sharded and level > self._household:
            # Those of a node are averaged already, part by part.
            gradients = [gradient_of(p) for p in self._setup.model.parameters() if p.requires_grad]
            average_summands(self._levels[level].leaders, local_parts(gradients))
        # Not in after_step: the optimizer steps next, and ``synchronise`` may be called before ``after_step``.
        self._agreed = [min(agreed, level) for agreed in self._agreed]

    def after_step(self, step: int, loss: Tensor) -> None:
        if step < self._start:
            self._used = 1
            return
        method = self._method
        self._used = self._period
        self._local_steps += 1
        self._rota.since += 1
        since, between = self._rota.since, method.neighbourhood_every
        self._average(self._top, self._rota.due(self._period))
        if between is not None and since % between == 0:
            self._average(self._neighbourhood)
        elif since % method.household_every == 0:
            self._average(self._household)

    def end_epoch(self, epoch: int, train_loss: float) -> None:
        if self._method.average_at_epoch_end:
            self.synchronise()
            reconcile_buffers(self._setup.communicator.world, self._setup.model)
        if self._method.adaptive and (epoch + 1) * self._setup.steps_per_epoch > self._start:
            if self._first_loss is None:
                self._first_loss = train_loss
            self._period = adapted_period(
                period=self._method.world_every, first_loss=self._first_loss, loss=train_loss
            )

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        setup = self._setup
        with super().evaluating():
            if self._method.average_at_epoch_end:
                yield
                return
            differing = setup.trained.ever() if min(self._agreed) < self._top else ()
            service, copies = setup.communicator.service, self.copies
            with averaged_over_ranks(service, setup.model, parameters=differing, copies=copies):
                yield

    def finalise(self) -> None:
        self.synchronise()
        if not self._method.average_at_epoch_end:
            reconcile_buffers(self._setup.communicator.world, self._setup.model)

    def synchronise(self) -> None:
        self._average(self._top)
        self._rota.meet()

    def metrics(self) -> dict[str, float]:
        found = {"world_every": float(self._used), "synchronisations": self._averages / self._rota.count}
        method = self._method
        # The equation holds for households of equal size that synchronise at each step.
        even = len({len(ranks) for ranks in self._households}) == 1
        if method.household_every == 1 and method.neighbourhood_every is None and even:
            found["effective_batch_size"] = effective_batch_size(
                batch_size=self._setup.batch_size,
                ranks=self._setup.communicator.size,
                households=len(self._households),
                world_every=self._used,
            )
        return found

    def state(self) -> State:
        return {
            "period": self._period,
            "first_loss": self._first_loss,
            "since_world": self._rota.since,
            "averaged_since": self._rota.sent,
            "agreed": self._agreed,
            "local_steps": self._local_steps,
            "synchronisations": self._averages,
            "world_every": self._used,
            "bases": [base.state() for base in self._bases],
        }

    def load(self, state: State) -> None:
        self._period, self._first_loss = state["period"], state["first_loss"]
        self._local_steps, self._averages = state["local_steps"], state["synchronisations"]
        self._used = state["world_every"]
        # Checkpoints of earlier versions have one fragment, and a base with an outer optimizer alone.
        self._rota.since, self._rota.sent = state["since_world"], state.get("averaged_since", 0)
        agreed = state["agreed"]
        self._agreed = agreed if isinstance(agreed, list) else [agreed] * self._rota.count
        bases = state.get("bases", [state["base"]] if "base" in state else [])
        self._bases = self._new_bases() if bases else []
        if len(bases) != len(self._bases) or not all(map(CommonBase.load, self._bases, bases)):
            raise ValueError(
                "The saved state is of LocalSGD on another model. Start with an empty checkpoint directory."
            )

    def state_on_other_ranks(self, states: Sequence[State], *, step: int, same_steps: bool) -> State | None:
        # The number of a level depends on the nodes, which may be others now.
        state = {name: value for name, value in states[0].items() if name not in ("base", "bases")}
        return {**state, "agreed": self._top, "since_world": 0, "averaged_since": 0}

    def close(self) -> None:
        super().close()
        self._averaged = None

    def _level_of(self, partition: Partition) -> int:
        return next(i for i, level in enumerate(self._levels) if set(level.ranks) == set(partition))

    def _gradients_over(self, step: int) -> int:
        """Level whose parts average gradients at ``step``; 0, whose parts are single ranks, for none."""
        if step < self._start:
            return self._top
        return self._household if self._method.household_every == 1 else 0

    @torch.no_grad()
    def _new_bases(self) -> list[CommonBase]:
        """Bases of differences, if these are sent; ranks have the same parameters now, or load them."""
        method, leaders = self._method, self._levels[self._top].leaders
        if method.outer_optimizer is None and method.wire_dtype is None:
            return []
        make = partial(
            CommonBase,
            bucket_bytes=BUCKET_BYTES,
            senders=len(self._levels[self._top - 1].ranks),
            place=leaders.rank if leaders.size > 1 else None,
            wire_dtype=WIRE_DTYPES[method.wire_dtype],
            outer_optimizer=method.outer_optimizer,
        )
        return [make(fragment) for fragment in self._fragments()]

    def _fragments(self) -> list[Tensors]:
        """Parts of the parameters; ValueError if a parameter cannot be cut."""
        return fragments_of(local_parts(self._setup.trained.ever()), self._rota.count)

    @torch.no_grad()
    def _average(self, target: int, numbers: Iterable[int] | None = None) -> None:
        """Average parameters, or the fragments with these ``numbers``, inside the parts of the level ``target``."""
        among = range(self._rota.count) if numbers is None else numbers
        for number in [number for number in among if self._agreed[number] < target]:
            agreed = self._agreed[number]
            if self._bases and target == self._top:
                base = self._bases[number]
                for index in range(len(base.wire)):
                    quantised = base.quantised[index] if base.quantised else None
                    self._average_flat(base.pack(index), agreed, target, quantised)
                    base.merge(index, 1, weight=1.0, steps_outer=True)
            else:
                for bucket in each_bucket(self._fragments()[number]):
                    self._average_flat(bucket.pack(bucket.tensors), agreed, target)
                    bucket.unpack(bucket.tensors)
            self._agreed[number] = target
            self._averages += target == self._top

    def _average_flat(
        self, flat: Tensor, agreed: int, target: int, quantised: QuantisedSum | None = None
    ) -> None:
        """Average ``flat`` from level to level above ``agreed``; ``quantised`` sums it up in the last."""
        for upper in range(agreed + 1, target + 1):
            level = self._levels[upper]
            # Parts of different sizes count by their numbers of ranks.
            flat.mul_(level.share)
            if quantised is None or upper < target:
                level.leaders.all_reduce(flat).wait()
            elif level.leaders.size > 1:
                quantised.sum_over(level.leaders)
        for lower in range(target - 1, 0, -1):
            self._levels[lower].leaders.broadcast(flat if quantised is None else quantised.message).wait()
        if quantised is not None:
            quantised.decode()


def _parts(communicator: Communicator, method: LocalSGD, name: str) -> Partition | None:
    """Parts of as many consecutive ranks as the setting ``name`` says, which must divide the number of ranks."""
    ranks, count = getattr(method, name), communicator.size
    if ranks is None:
        return None
    check_rules(method, (name, count % ranks == 0, f"a divisor of {count}, the number of ranks"))
    return tuple(tuple(range(first, first + ranks)) for first in range(0, count, ranks))
