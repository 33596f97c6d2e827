"""Synchronous data parallelism, the baseline: gradients are averaged over all ranks at each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from trainers.arguments import check_rules, check_whole
from trainers.communication.averager import GradientAverager
from trainers.communication.buckets import reconcile_buffers
from trainers.communication.gradient_buckets import InPlaceAverager
from trainers.methods.powersgd import PowerSGDAverager, merged_states
from trainers.methods.strategy import AveragingStrategy, Method, Setup, State, Strategy


@dataclass(frozen=True, kw_only=True)
class DDP(Method):
    """Synchronous data parallelism: gradients are averaged over all ranks at each step.

    A parameter without a gradient on any rank at a step has none afterwards, so that the optimizer skips it as on a
    single rank; only matrices that PowerSGD sends as factors get zeros. Without compression, gradients lie in the
    buffers that are sent. An optimizer, or ``on_step``, that keeps them has what it kept, and the next step gets other
    memory.

    Args:
        compression (str; default None): compression of gradients in messages: None, "bf16" (half the bytes) or
            "powersgd" (Vogels et al. 2019), which sends two factors of each matrix and adds their error to the next
            step's gradient. A single rank sends nothing.
        powersgd_rank (int, from 1; default 4): columns of PowerSGD's factors.

    Raises:
        ValueError: a setting is not allowed.
    """

    compression: str | None = None
    powersgd_rank: int = 4

    def __post_init__(self) -> None:
        check_whole(self, powersgd_rank=1)
        is_default = self.powersgd_rank == DDP.powersgd_rank
        check_rules(
            self,
            ("compression", self.compression in (None, "bf16", "powersgd"), 'None, "bf16" or "powersgd"'),
            (
                "powersgd_rank compression",
                is_default or self.compression == "powersgd",
                f'{DDP.powersgd_rank}, its default, unless compression="powersgd"',
            ),
        )

    def strategy(self, setup: Setup) -> Strategy:
        return _DDPStrategy(self, setup)


class _DDPStrategy(AveragingStrategy):
    def __init__(self, method: DDP, setup: Setup) -> None:
        self._method = method
        self._setup = setup
        self._world = setup.communicator.world
        self.parameters_changed()

    @property
    def replicated(self) -> bool:
        return True

    @property
    def plans_ahead(self) -> bool:
        return False

    def parameters_changed(self) -> None:
        self.close()
        parameters, method = self._setup.trained.exchanged(), self._method
        if self._world.size == 1:
            return
        if method.compression == "powersgd":
            self._averager = PowerSGDAverager(
                parameters, self._world, rank=method.powersgd_rank, seed=self._setup.seed
            )
        elif method.compression == "bf16":
            self._averager = GradientAverager(
                parameters, self._world, wire_dtype=torch.bfloat16, keep_none=True
            )
        else:
            self._averager = InPlaceAverager(parameters, self._world, keep_none=True)

    def end_epoch(self, epoch: int, train_loss: float) -> None:
        reconcile_buffers(self._world, self._setup.model)

    def state(self) -> State:
        return self._averager.state() if isinstance(self._averager, PowerSGDAverager) else {}

    def load(self, state: State) -> None:
        if isinstance(self._averager, PowerSGDAverager):
            self._averager.load(state)

    def state_on_other_ranks(self, states: Sequence[State], *, step: int, same_steps: bool) -> State | None:
        return merged_states(states) if self._method.compression == "powersgd" else {}
