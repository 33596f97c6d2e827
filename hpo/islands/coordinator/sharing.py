"""Units of the budget among launches that are at work on a campaign at the same time.

A launch alone draws all units at once. Launches together draw portions, and give back what they have not begun as soon
as nothing is free while workers of another launch idle."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from hpo.ledger.alive import Holder, OtherLaunches
from hpo.ledger.participation import Participation

if TYPE_CHECKING:
    from hpo.islands.coordinator.view import CoordinatorView

LINGER_S = 240.0
"""Seconds for which a launch without anything to evaluate waits for what others may leave: longer than it takes to see
that another launch has died."""
_RATE_S = 60.0


class Sharing:
    """Rules for the launch of ``participation`` on the units that it draws and returns.

    ``others``: the other launches as it sees them; None where there are none."""

    def __init__(self, participation: Participation, others: OtherLaunches | None = None) -> None:
        self._participation = participation
        self._others = others
        # Times within the last minute, each with the number of units whose individuals had ended.
        self._ended: deque[tuple[float, int]] = deque([(0.0, 0)])
        self._idle_since: float | None = None
        self.alone = participation.read_alone and not self._open
        """Whether no other launch has been open since this launch read the journals."""
        self.kept = 0
        """Number of free units that this launch leaves to workers of other sizes."""
        self.lingers = False
        """Whether others may still leave something to evaluate."""
        self.hands_over = False
        """Whether the others are to finish the campaign, as there has been nothing to evaluate here for a while."""

    @property
    def _open(self) -> list[int]:
        """Other open launches."""
        return [one for one in self._participation.state.open if one != self._participation.number]

    @property
    def dead(self) -> set[int]:
        """Launches that this launch is to close."""
        return set() if self._others is None else {*self._others.dead.intersection(self._open)}

    @property
    def _signs(self) -> dict[int, Holder]:
        """Signs of the other open launches that live."""
        at_work = {} if self._others is None else self._others.at_work
        return {launch: at_work[launch] for launch in self._open if launch in at_work}

    @property
    def _free(self) -> int:
        """Number of units that this launch could draw; below 0 where the budget lacks some."""
        free = self._participation.state.free
        return free if free <= 0 else max(0, free - self.kept)

    @property
    def _idle(self) -> int:
        """Number of idle workers of other launches."""
        return sum(one.idle for one in self._signs.values())

    def look(self, target: CoordinatorView, now: float) -> int:
        """Show how far this launch has come, and see how far others have; the number of idle workers of other launches
        that lack a unit. ``now``: Unix seconds."""
        state, others = self._participation.state, self._open
        self.alone &= not others and state.launches == self._participation.number
        ended = self._own_ended(target)
        self._ended.append((now, ended))
        while now - self._ended[0][0] > _RATE_S and len(self._ended) > 1:
            self._ended.popleft()
        if self._others is not None:
            self._others.watch(others)
            unusable = target.unbegun if target.used_up else 0
            given_up = self._given_up(target) + unusable
            self._others.show(ended, given_up, target.idle_workers, target.rank_s)
        waits = target.used_up and not target.running
        if not waits and (target.unended or (self._free > 0 and state.may_draw())):
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        rests_s = 0.0 if self._idle_since is None else now - self._idle_since
        busy = self._others_evaluate
        self.lingers, self.hands_over = busy and rests_s < LINGER_S, busy and rests_s >= LINGER_S
        return self._idle if self._free <= 0 else 0

    def _given_up(self, target: CoordinatorView) -> int:
        return sum(map(self._participation.own.evaluates, target.given_up))

    def _own_ended(self, target: CoordinatorView) -> int:
        """Number of units of this launch whose individuals have ended."""
        return self._participation.own.units - target.unended - self._given_up(target)

    def final(self, target: CoordinatorView) -> int:
        """Number of individuals of the campaign that have ended, as far as other launches show it."""
        state = self._participation.state
        own = self._own_ended(target) if self._participation.number in state.open else 0
        return state.final + own + sum(one.ended for one in self._signs.values())

    def rank_s(self, target: CoordinatorView) -> float:
        """Seconds of the campaign's evaluations, each times the ranks of its worker, as far as other launches show
        it."""
        state = self._participation.state
        own = target.rank_s if self._participation.number in state.open else 0.0
        return state.rank_s + own + sum(one.rank_s for one in self._signs.values())

    @property
    def _others_evaluate(self) -> bool:
        """Whether another launch has units whose individuals may still end there, as far as is known."""
        state = self._participation.state
        over = {launch: sign.ended + sign.given_up for launch, sign in self._signs.items()}
        return any(over.get(one, 0) < state.open[one].units for one in self._open)

    def completes(self, target: CoordinatorView) -> bool:
        """Whether the budget is used up, as far as other launches show what they have done."""
        state = self._participation.state
        evaluations = state.limits.evaluations
        if evaluations is None or self._participation.number not in state.open or self._others_evaluate:
            return False
        return self.final(target) >= evaluations

    def portion(self, target: CoordinatorView) -> int | None:
        """Number of units to draw now; None for all that are free."""
        state = self._participation.state
        if not self._open or state.limits.evaluations is None:
            return None
        if target.unbegun >= len(target.workers):
            return 0
        share = 0 if self._free <= self._idle else -(-self._free // (2 * len(state.open)))
        return max(target.idle_workers, min(self._reserve(target), share))

    def _reserve(self, target: CoordinatorView) -> int:
        """Number of units that this launch uses up within a minute, at least one for each worker."""
        return max(len(target.workers), self._ended[-1][1] - self._ended[0][1])

    def to_spare(self, target: CoordinatorView) -> int:
        """Number of units drawn to breed that idle workers of other launches need more."""
        if not self._idle or self._free > 0:
            return 0
        beyond = target.unbegun - self._reserve(target)
        return beyond if beyond > 0 else max(0, min(self._idle, target.unbegun - target.idle_workers))
