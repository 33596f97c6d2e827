"""The budget of the campaign: how many individuals may still be admitted, and which configurations have been."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from hpo.islands.coordinator.unseen import UnseenConfigurations
from hpo.islands.messages import Assignment

UNLIMITED = 1 << 62

Admitted = Assignment | str
"""What a leader evaluates: an assignment, or a configuration that it bred, by its key."""


class Budget:
    """``remaining``: how many individuals may be admitted beside the ``assignments``, which come first; below 0 where
    the budget was made smaller than what had been admitted. ``final``: how many have ended in earlier launches;
    ``keys``: of all admitted configurations, to which it adds; ``duplicates``: configurations may come twice;
    ``unseen``: what each island can still evaluate, by island: islands that may evaluate the same share one."""

    def __init__(
        self,
        evaluations: int | None,
        *,
        final: int,
        keys: set[str],
        assignments: Iterable[Assignment],
        duplicates: bool,
        unseen: Sequence[UnseenConfigurations],
    ) -> None:
        self._keys = keys
        self._duplicates = duplicates
        self._unseen = unseen
        self.assignments: deque[Assignment] = deque()
        # Assignments for which the budget has no room: a larger one may have.
        self._beyond: deque[Assignment] = deque()
        self._evaluations = UNLIMITED if evaluations is None else evaluations
        self.remaining = self._evaluations - final
        taken = frozenset(keys) if duplicates else keys
        for assignment in assignments:
            if not assignment.admitted:
                if assignment.key in taken:
                    continue
                self._keys.add(assignment.key)
            self._beyond.append(assignment)
        self._fit()

    def _fit(self) -> None:
        """Keep as many assignments as the budget has room for, the first ones."""
        while self.remaining < 0 and self.assignments:
            self._beyond.appendleft(self.assignments.pop())
            self.remaining += 1
        while self.remaining > 0 and self._beyond:
            self.assignments.append(self._beyond.popleft())
            self.remaining -= 1

    def resize(self, evaluations: int) -> None:
        """Another budget, for the campaign as a whole."""
        self.remaining += evaluations - self._evaluations
        self._evaluations = evaluations
        self._fit()

    def enqueue(self, assignments: Iterable[Assignment]) -> int:
        """Evaluate these after the other assignments, except for those that are known; how many that are."""
        number = 0
        for assignment in assignments:
            if self._duplicates or assignment.key not in self._keys:
                self._keys.add(assignment.key)
                self._beyond.append(assignment)
                number += 1
        self._fit()
        return number

    def readmit(self, assignments: Iterable[Assignment], *, first: bool = False) -> None:
        """Evaluate these again: they were admitted, and have not ended, or do not count as that any more. ``first``:
        before the other assignments."""
        (self.assignments.extendleft if first else self.assignments.extend)(assignments)
        self._fit()

    @property
    def exhausted(self) -> bool:
        """Whether no island has a configuration that is new."""
        return all(unseen.exhausted for unseen in self._unseen)

    @property
    def partly_exhausted(self) -> bool:
        """Whether an island has no configuration that is new."""
        return any(unseen.exhausted for unseen in self._unseen)

    def exhausted_for(self, island: int) -> bool:
        """Whether ``island`` has no configuration that is new."""
        return self._unseen[island].exhausted

    @property
    def granted(self) -> int:
        """How many individuals have been given out, those of earlier launches included."""
        return self._evaluations - self.remaining - len(self.assignments)

    @property
    def open(self) -> bool:
        """Whether something bred can be admitted."""
        return self.remaining > 0 and not self.exhausted

    @property
    def available(self) -> bool:
        """Whether anything can be given to a worker."""
        return bool(self.assignments) or self.open

    def available_to(self, island: int) -> bool:
        """Whether anything can be given to a worker of ``island``."""
        return bool(self.assignments) or (self.remaining > 0 and not self.exhausted_for(island))

    def admit(self, key: str, island: int) -> bool:
        """Admit a configuration that ``island`` bred, unless it is known; an empty ``key`` stands for none at all."""
        if not key or (not self._duplicates and key in self._keys):
            return False
        self.remaining -= 1
        self._unseen[island].bred_a_new_one()
        self._keys.add(key)
        return True

    @property
    def refused(self) -> int:
        """How many proposals the constraints refused in a row, in a space of which it is not known whether anything is
        left."""
        return max(unseen.refused for unseen in self._unseen)

    def refused_for(self, island: int) -> int:
        """How many proposals in a row the constraints refused for ``island``, where it is not known whether it has
        anything left."""
        return self._unseen[island].refused

    def admit_unseen(self, island: int, leader: int, *, refused: int, drawn_s: float) -> Assignment | None:
        """Admit a configuration that is not taken and that ``island`` may evaluate, if one can be found. The ``leader``
        drew for ``drawn_s`` seconds in vain, and the constraints ``refused`` so many of its draws."""
        unseen = self._unseen[island].next(self._keys, leader=leader, refused=refused, drawn_s=drawn_s)
        if unseen is not None:
            self.remaining -= 1
        return unseen

    def give_back(self, item: Admitted) -> None:
        """What was granted and not begun can be granted again."""
        if isinstance(item, Assignment):
            self.assignments.appendleft(item)
        else:
            self.remaining += 1
            self._keys.discard(item)
            for unseen in self._unseen:  # any island may find it
                unseen.given_back()
        self._fit()
