"""Granting of claims from the budget, and recalls of individuals that were granted ahead."""

from __future__ import annotations

import sys
from collections import Counter, deque

from hpo.individual import Configuration
from hpo.islands.coordinator.budget import Admitted, Budget
from hpo.islands.coordinator.ending import Ending
from hpo.islands.coordinator.grants import Grants
from hpo.islands.coordinator.health import Health
from hpo.islands.coordinator.launch import Backlog, LaunchRules
from hpo.islands.coordinator.tally import RECENT
from hpo.islands.coordinator.unseen import UnseenConfigurations
from hpo.islands.coordinator.worker_registry import WorkerRegistry
from hpo.islands.messages import Assignment, Claim, Grant, Message, Recall, Retired, encode
from hpo.islands.transport import Transport


class Granting:
    """Answers the claims of leaders. ``remarks``: takes sentences for the user."""

    def __init__(
        self,
        *,
        transport: Transport,
        registry: WorkerRegistry,
        rules: LaunchRules,
        backlog: Backlog,
        health: Health,
        ending: Ending,
        remarks: deque[str],
    ) -> None:
        self._transport = transport
        self._registry = registry
        self._health = health
        self._ending = ending
        self._remarks = remarks
        self._tally = backlog.tally
        self._phases = rules.phases
        self._suits = rules.suits
        self.budget = Budget(
            backlog.units,
            before=backlog.tally.final,
            keys=backlog.known,
            duplicates=rules.duplicates,
            unseen=rules.unseen or [UnseenConfigurations()] * registry.islands,
            reservations=rules.reservations,
            suits=rules.suits,
        )
        self.grants = Grants(registry.places)
        self._phase = self._phases.at(self.budget.granted)
        self.paused = False
        """Whether nothing new is begun, by ``hpo pause``."""
        self.idle_elsewhere = 0
        """Number of idle workers of other launches that lack a unit of the budget."""
        self._elsewhere = 0
        """Number of individuals granted by other launches since this launch read the journals."""
        self.drained: set[int] = set()
        """Leaders of the workers that ``hpo drain`` lets get nothing more."""
        self._islands = {leader: place.island for leader, place in registry.places.items()}
        # Number of ranks by leader, and by island.
        self.sizes = {leader: len(place.ranks) for leader, place in registry.places.items()}
        self._size_on = {place.island: len(place.ranks) for place in registry.places.values()}
        self._restarts = rules.restarts
        self.lost_a_size = False
        """Whether the last worker of a size that was to get more has died."""
        # Leaders whose workers get nothing more; number of other leaders by island.
        self._closed: set[int] = set()
        self._open = Counter(self._islands.values())
        self._used_up: set[int] = set()

    def serve(self) -> None:
        """Grant individuals that are free again to the claims that wait."""
        self._serve_held()
        self._serve()
        self.recall()

    def answer(self, leader: int, claim: Claim) -> None:
        """Grant the claims of ``leader`` as far as possible; the others wait or are refused."""
        if self._ending.stopping:
            return
        budget, island = self.budget, self._islands[leader]
        accepted: list[int] = []
        refused: list[int] = []
        assigned: list[tuple[int, Assignment]] = []
        for want in claim.wants:
            item: Admitted | None
            if self.paused or leader in self.drained or self._health.holds(leader):
                self.grants.held.setdefault(leader, []).append(want)
                continue
            if want.paused is not None:  # it was admitted before, and only its leader can ask for it
                self._tally.reopen()
                paused = Assignment(
                    configuration=Configuration(id=want.paused, params={}),
                    key=want.key,
                    admitted=True,
                    rests=True,
                )
                self.grants.grant(leader, want.token, paused)
                accepted.append(want.token)
                continue
            ahead = self.idle_elsewhere and self.grants.count(leader)
            if (
                ahead
                or not budget.available_to(island)
                or self._too_late(self.sizes[leader], self.grants.count(leader))
            ):
                self.grants.defer(leader, want)
                continue
            phase = self._current_phase(island)
            if (item := budget.next_assignment(island)) is not None:
                pass
            elif want.phase != phase:
                refused.append(want.token)
                continue
            elif budget.admit(want.key, island):
                item = want.key
            elif claim.stuck and not self._skip_phase(phase, island):
                item = budget.admit_unseen(island, leader, refused=want.refused, drawn_s=want.drawn_s)
            if item is None:
                if budget.exhausted_for(island):
                    self._look_for_used_up_islands()
                    self.grants.defer(leader, want)
                else:
                    refused.append(want.token)
                continue
            self.grants.grant(leader, want.token, item)
            if isinstance(item, Assignment):
                assigned.append((want.token, item))
            else:
                accepted.append(want.token)
        if accepted or refused or assigned:
            self._send(leader, Grant(accepted, refused, assigned, self._current_phase(island)))
        self.recall()

    def _current_phase(self, island: int) -> int:
        granted = self.budget.granted + self._elsewhere
        phase = self._phases.at(granted)
        if phase > self._phase:
            self._remarks.append(f"{self._phases.name(phase)} is open after {granted} individuals")
        self._phase = phase
        return self._phases.at(granted, island)

    def _skip_phase(self, phase: int, island: int) -> bool:
        """Let ``island`` go on with the phase after ``phase``; False where there is none."""
        if not self._phases.skip(phase, island):
            return False
        self._remarks.append(
            f"island {island} finds nothing new in {self._phases.name(phase)}: {self._phases.name(phase + 1)} is open "
            f"to it after {self.budget.granted} individuals"
        )
        return True

    def _look_for_used_up_islands(self) -> None:
        if self.budget.exhausted:
            return
        for island in range(self._registry.islands):
            if island in self._used_up or not self.budget.exhausted_for(island):
                continue
            self._used_up.add(island)
            refused = self.budget.refused_for(island)
            self._remarks.append(
                f"island {island} has evaluated all that it may ([search] or [[island]] only, and the constraints): "
                "its workers idle while the others go on"
                if not refused
                else f"island {island} gives up, and its workers idle while the others go on: the constraints refused "
                f"{refused} proposals in a row"
            )
            for leader, own in self._islands.items():
                if own == island:
                    self.close(leader)

    def may_evaluate(self, assignment: Assignment) -> bool:
        """Whether a worker of this launch may evaluate ``assignment``."""
        return any(self._suits(island, assignment) for island in {*self._islands.values()})

    @property
    def all_drained(self) -> bool:
        """Whether all workers at work get nothing more by ``hpo drain``."""
        return self.drained.issuperset(self._registry.at_work)

    def count_elsewhere(self, granted: int) -> None:
        """Note that ``granted`` individuals of the campaign have ended or run, by all launches that are known."""
        self._elsewhere = max(self._elsewhere, granted - self.budget.granted)

    def close(self, leader: int, *, died: bool = False) -> None:
        """Note that the worker of ``leader`` gets nothing more."""
        if leader in self._closed:
            return
        self._closed.add(leader)
        size, others = self.sizes[leader], {*self._registry.at_work} - self._closed
        if size not in {self.sizes[one] for one in others}:
            self.lost_a_size |= died
            if others:
                waits = "what only such workers may evaluate waits for another launch"
                then = "the launch ends, and another starts" if self.makes_room else waits
                self._remarks.append(f"no worker of {size} rank{'s' * (size > 1)} is left: {then}")
        island, islands = self._islands[leader], self._registry.islands
        self._open[island] -= 1
        if self._open[island] or islands < 2 or self._ending.stopping is not None:
            return
        going_on = (
            one
            for one in self._registry.at_work
            if one not in self._closed and not self.budget.exhausted_for(self._islands[one])
        )
        # Individuals that migrate to an island that evaluates nothing more would be lost to the search.
        heir = min(going_on, key=lambda one: ((self._islands[one] - island) % islands, one), default=None)
        retired = [
            one for one, own in self._islands.items() if own == island and one not in self._registry.dead
        ]
        for one in self.grants.leaders if retired else ():
            if one not in self._registry.dead:
                self._send(one, Retired(retired, heir))

    @property
    def makes_room(self) -> bool:
        """Whether the launch is to end, so that another has workers of all sizes, although some could go on."""
        return self._restarts and self.lost_a_size and not self._closed.issuperset(self._registry.at_work)

    def release(self, item: Admitted) -> None:
        """Take back an individual that was granted and not begun."""
        if isinstance(item, Assignment) and item.rests:
            self._tally.reopen(number=-1)
        else:
            self.budget.give_back(item)

    def recent_s(self, size: int) -> list[float]:
        """Seconds of recent evaluations by workers of ``size`` ranks, and on islands of other launches."""
        recent = self._tally.recent_s.items()
        found = [own for island, own in recent if self._size_on.get(island, size) == size]
        each = max(1, RECENT // len(found)) if found else 0
        return [seconds for own in found for seconds in own[-each:]]

    def _too_late(self, size: int, before: int = 0) -> bool:
        """Whether an individual granted to a worker of ``size`` that is to evaluate others ``before`` would most likely
        not end in time."""
        return self._ending.too_late(self._transport.now(), lambda: self.recent_s(size), before)

    @property
    def _too_late_for(self) -> set[int]:
        """Sizes of the workers for which it is too late where they idle."""
        return set(filter(self._too_late, {*self._size_on.values()}))

    @property
    def idle_are_too_late(self) -> bool:
        """Whether leaders idle that could get more, and it is too late for all of them."""
        sizes = {self.sizes[leader] for leader, _ in self.grants.idle if self._can_get_more(leader)}
        return bool(sizes) and sizes <= self._too_late_for

    def _serve_held(self) -> None:
        if self.paused or self._health.holds_all:
            return
        ready = [one for one in self.grants.held if one not in self.drained]
        for leader in [one for one in ready if not self._health.holds(one)]:
            self.answer(leader, Claim(self.grants.held.pop(leader), False))

    def _can_get_more(self, leader: int) -> bool:
        return self.budget.available_to(self._islands[leader])

    @property
    def anybody_can_get_more(self) -> bool:
        """Whether anything is left that a worker at work may evaluate."""
        return any(self._can_get_more(one) for one in self._registry.at_work if one not in self.drained)

    def _is_used_up(self, leader: int) -> bool:
        return self.budget.exhausted_for(self._islands[leader])

    def _serve(self) -> None:
        """Answer claims that wait, those of idle leaders first."""
        if self._ending.stopping or self.paused or self._health.holds_all:
            return
        grants = self.grants
        # ``answer`` defers a claim again that is too late.
        while grants.idle and self.budget.available:
            late = self._too_late_for
            claim = grants.next_idle(lambda one: self.sizes[one] not in late and self._can_get_more(one))  # noqa: B023
            if claim is None:
                break
            self.answer(claim[0], Claim([claim[1]], False))
        while grants.later and self.budget.available and not self.idle_elsewhere:
            leader = next(filter(self._can_get_more, grants.later), None)
            if leader is None or self._too_late(self.sizes[leader], grants.count(leader)):
                break
            self.answer(leader, Claim(grants.later.pop(leader), False))

    def recall(self) -> None:
        """Ask leaders that hold more than they evaluate to give it back for those that idle."""
        if not self.grants.held_ahead or self._ending.stopping:
            return
        wanted = 0
        if self.paused or self._health.holds_all or self.budget.owed or self.idle_elsewhere:
            wanted = sys.maxsize  # individuals held ahead are not to be begun either
        elif self.grants.idle and not self._too_late_for.issuperset(self._size_on.values()):
            some_exhausted = any(map(self.budget.exhausted_for, range(self._registry.islands)))
            wanted = self.grants.lacking(self._is_used_up if some_exhausted else None)
        for leader, number in self.grants.recall(wanted) if wanted > 0 else ():
            self._send(leader, Recall(number))

    def _send(self, leader: int, message: Message) -> None:
        self._transport.send(leader, encode(message))
