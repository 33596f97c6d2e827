"""Units of the campaign's budget that this launch holds: how many individuals it may still admit, and which
configurations were admitted."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple, Protocol

from hpo.individual import GRID
from hpo.islands.coordinator.unseen import UnseenConfigurations
from hpo.islands.messages import Assignment

Suits = Callable[[int, Assignment], bool]
"""Whether workers of an island may evaluate an assignment."""
Admitted = Assignment | str
"""An individual to evaluate: an assignment, or a configuration that a leader bred, by its key."""


class Reserving(Protocol):
    """Reservations of configurations among launches (see ``hpo.ledger.reservations``)."""

    def take(self, key: str) -> int | None: ...
    def release(self, key: str) -> None: ...
    def learn_closed(self, launch: int) -> None: ...


class Surrendered(NamedTuple):
    """Units that are used no more: a number of them, and assignments that hold a unit each."""

    fresh: int
    assignments: list[Assignment]


class Budget:
    """``remaining``: number of individuals that may be admitted beside the ``assignments``, which come first.

    Args:
        units: number of individuals that may be admitted now.
        before: number of individuals that were admitted in earlier launches.
        keys: of all admitted configurations, to which this adds.
        duplicates: configurations may come twice.
        unseen: configurations that each island can still evaluate, one object for islands of equal parts.
        reservations: None where launches may evaluate the same configurations.
        suits: whether workers of an island may evaluate an assignment, which another may have begun.
    """

    def __init__(
        self,
        units: int,
        *,
        before: int,
        keys: set[str],
        duplicates: bool,
        unseen: Sequence[UnseenConfigurations],
        reservations: Reserving | None = None,
        suits: Suits = lambda island, assignment: True,
    ) -> None:
        self._suits = suits
        self._keys = keys
        self._reservations = reservations
        # Keys among ``keys`` that were refused as another launch has reserved them, by launch.
        self._held_by_others: defaultdict[int, set[str]] = defaultdict(set)
        self._duplicates = duplicates
        self._unseen = unseen
        self.assignments: deque[Assignment] = deque()
        self._admitted = before + units
        self.remaining = units
        self.owed = 0
        """Number of units that the launch is to return, as the campaign's budget was made smaller: meanwhile nothing is
        granted."""

    def add(self, units: int, first: Sequence[Assignment] = (), then: Sequence[Assignment] = ()) -> None:
        """Take ``units`` more, and assignments that hold a unit each: ``first`` come before all others, ``then``, which
        are reserved, after them."""
        self.remaining += units
        self._admitted += units + len(first) + len(then)
        self.assignments.extendleft(reversed(first))
        self._keys.update(assignment.key for assignment in then)
        self.assignments.extend(then)

    def spare(self, most: int) -> int:
        """Give up at most ``most`` units for which nothing was granted or assigned; their number."""
        fresh = max(0, min(most, self.remaining))
        self.remaining -= fresh
        self._admitted -= fresh
        return fresh

    def surrender(self, most: int, returnable: Callable[[Assignment], bool]) -> Surrendered:
        """Give up at most ``most`` units for which nothing was granted. ``returnable``: whether an assignment holds a
        unit that can be returned with it."""
        fresh = self.spare(most)
        begun_with = fresh
        given_up: list[Assignment] = []
        kept: list[Assignment] = []
        while self.assignments and fresh + len(given_up) < most:
            one = self.assignments.pop()
            if returnable(one):
                given_up.append(one)
                if not one.id:  # a given point, which may come back
                    self._release(one.key)
            # Its unit is used, as it has begun; or it is a point of a grid, which no leader here would propose again.
            elif one.admitted or (one.configuration.operator == GRID and not self.owed):
                kept.append(one)
            else:
                self._release(one.key)
                fresh += 1
        self.assignments.extend(reversed(kept))
        self._admitted -= fresh - begun_with + len(given_up)
        return Surrendered(fresh, given_up)

    def reserve(self, key: str) -> bool:
        """Reserve a configuration; whether it is new, and no other launch has it."""
        return self.is_new(key) and self._take(key)

    def _take(self, key: str) -> bool:
        self._keys.add(key)
        holder = None if self._reservations is None else self._reservations.take(key)
        if holder is not None:
            self._held_by_others[holder].add(key)
        return holder is None

    def learn_closed(self, launch: int, keys: Collection[str]) -> None:
        """Learn the configurations of a closed launch by their ``keys``: others that it had reserved are free."""
        self._keys.update(keys)
        for held in self._held_by_others.values():  # the launch that held it then may have released it
            held.difference_update(keys)
        if self._reservations is not None:
            self._reservations.learn_closed(launch)
        for key in self._held_by_others.pop(launch, set()):
            self._free(key)

    @property
    def may_be_freed(self) -> bool:
        """Whether other launches have reserved configurations, and may leave them."""
        return any(self._held_by_others.values())

    def is_new(self, key: str) -> bool:
        """Whether a configuration may be admitted."""
        return self._duplicates or key not in self._keys

    def readmit(self, assignments: Iterable[Assignment], *, first: bool = False) -> None:
        """Evaluate these again, which were admitted; ``first``: before the other assignments."""
        (self.assignments.extendleft if first else self.assignments.extend)(assignments)

    @property
    def exhausted(self) -> bool:
        """Whether no island has a new configuration."""
        return all(unseen.exhausted for unseen in self._unseen)

    def exhausted_for(self, island: int) -> bool:
        return self._unseen[island].exhausted

    @property
    def granted(self) -> int:
        """Number of individuals granted so far, in earlier launches too."""
        return self._admitted - self.remaining - len(self.assignments)

    @property
    def available(self) -> bool:
        """Whether anything can be granted to a worker."""
        return not self.owed and (bool(self.assignments) or (self.remaining > 0 and not self.exhausted))

    def available_to(self, island: int) -> bool:
        fresh = self.remaining > 0 and not self.exhausted_for(island)
        return not self.owed and (fresh or any(self._suits(island, one) for one in self.assignments))

    def next_assignment(self, island: int) -> Assignment | None:
        """Take the first assignment that a worker of ``island`` may evaluate; None where there is none."""
        found = next((one for one in self.assignments if self._suits(island, one)), None)
        if found is not None:
            self.assignments.remove(found)
        return found

    def admit(self, key: str, island: int) -> bool:
        """Admit a configuration that ``island`` bred, unless it is known, or ``key`` is empty: then nothing was
        bred."""
        if not key or not self.reserve(key):
            return False
        self.remaining -= 1
        self._unseen[island].bred_a_new_one()
        return True

    @property
    def refused(self) -> int:
        """Number of proposals that the constraints refused in a row, where unseen configurations cannot be listed."""
        return max(unseen.refused for unseen in self._unseen)

    def refused_for(self, island: int) -> int:
        return self._unseen[island].refused

    def admit_unseen(self, island: int, leader: int, *, refused: int, drawn_s: float) -> Assignment | None:
        """Admit a new configuration that ``island`` may evaluate, if there is one (see
        ``UnseenConfigurations.next``)."""
        unseen = self._unseen[island].next(
            self._keys, self._take, leader=leader, refused=refused, drawn_s=drawn_s
        )
        if unseen is not None:
            self.remaining -= 1
        return unseen

    def give_back(self, item: Admitted) -> None:
        """Take back what was granted and not begun."""
        if isinstance(item, Assignment):
            self.assignments.appendleft(item)
        else:
            self.remaining += 1
            self._release(item)

    def _release(self, key: str) -> None:
        if self._reservations is not None:
            self._reservations.release(key)
        self._free(key)

    def _free(self, key: str) -> None:
        self._keys.discard(key)
        for unseen in self._unseen:  # any island may find it
            unseen.given_back()
