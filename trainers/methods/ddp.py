"""Synchronous data parallelism, the baseline: gradients are averaged over all ranks at each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from trainers.arguments import check_whole
from trainers.communication.averager import GradientAverager
from trainers.communication.buckets import reconcile_buffers
from trainers.methods.powersgd import PowerSGDAverager, merged_states
from trainers.methods.strategy import Setup, State, Strategy


@dataclass(frozen=True, kw_only=True)
class DDP:
    """Synchronous data parallelism: gradients are averaged over all ranks at each step.

    A parameter without a gradient on any rank at a step has none afterwards, so that the optimizer skips it as on a
    single rank; only matrices that PowerSGD sends as factors get zeros.

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
        if self.compression not in (None, "bf16", "powersgd"):
            raise ValueError(
                f'DDP(compression={self.compression!r}): must be None, "bf16" or "powersgd". Correct it.'
            )
        columns = self.powersgd_rank
        if columns != DDP.powersgd_rank and self.compression != "powersgd":
            raise ValueError(
                f"DDP(compression={self.compression!r}, powersgd_rank={columns}): powersgd_rank must be "
                f'{DDP.powersgd_rank}, its default, unless compression="powersgd". Correct one of them.'
            )

    def strategy(self, setup: Setup) -> Strategy:
        """Strategy of a run; called by ``train``.

        Args:
            setup (Setup): the run's model, optimizer and ranks.

        Raises:
            ValueError: the method cannot work with this setup; the text says what to do.
        """
        return _Averaging(self, setup)


class _Averaging(Strategy):
    def __init__(self, method: DDP, setup: Setup) -> None:
        self._method = method
        self._setup = setup
        self._world = setup.communicator.world
        self._averager: GradientAverager | PowerSGDAverager | None = None
        self.parameters_changed()

    @property
    def replicated(self) -> bool:
        return True

    @property
    def plans_ahead(self) -> bool:
        return False

    def parameters_changed(self) -> None:
        self.close()
        parameters = self._setup.trained.exchanged()
        if self._world.size == 1:
            return
        if self._method.compression == "powersgd":
            self._averager = PowerSGDAverager(
                parameters, self._world, rank=self._method.powersgd_rank, seed=self._setup.seed
            )
        else:
            wire_dtype = torch.bfloat16 if self._method.compression == "bf16" else None
            self._averager = GradientAverager(parameters, self._world, wire_dtype=wire_dtype, keep_none=True)

    def before_pass(self, step: int, *, last: bool) -> None:
        if last and self._averager is not None:
            self._averager.arm()

    def reduce_gradients(self, step: int) -> None:
        if self._averager is not None:
            self._averager.finish()

    def end_epoch(self, epoch: int, train_loss: float) -> None:
        reconcile_buffers(self._world, self._setup.model)

    def state(self) -> State:
        return self._averager.state() if self._averager is not None else {}

    def load(self, state: State) -> None:
        if self._averager is not None:
            self._averager.load(state)

    def state_on_other_ranks(self, states: Sequence[State], *, step: int, same_steps: bool) -> State | None:
        return merged_states(states) if self._method.compression == "powersgd" else {}

    def close(self) -> None:
        if self._averager is not None:
            self._averager.close()
            self._averager = None
