"""The budget of the campaign: how many individuals may still be admitted, and which configurations were."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from hpo.islands.coordinator.unseen import UnseenConfigurations
from hpo.islands.messages import Assignment

UNLIMITED = 1 << 62

Admitted = Assignment | str
"""An individual to evaluate: an assignment, or a configuration that a leader bred, by its key."""


class Budget:
    """``remaining``: number of individuals that may be admitted beside the ``assignments``, which come first; below 0
    where ``hpo set`` made the budget smaller than the number admitted. ``final``: number that ended in earlier
    launches; ``keys``: of all admitted configurations, to which this adds; ``duplicates``: configurations may come
    twice; ``unseen``: configurations that each island can still evaluate, one object for islands of equal parts."""

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
        while self.remaining < 0 and self.assignments:
            self._beyond.appendleft(self.assignments.pop())
            self.remaining += 1
        while self.remaining > 0 and self._beyond:
            self.assignments.append(self._beyond.popleft())
            self.remaining -= 1

    def resize(self, evaluations: int) -> None:
        """Change the budget of the campaign as a whole."""
        self.remaining += evaluations - self._evaluations
        self._evaluations = evaluations
        self._fit()

    def enqueue(self, assignments: Iterable[Assignment]) -> int:
        """Evaluate the ``assignments`` that are new after the others; their number."""
        number = 0
        for assignment in assignments:
            if self._duplicates or assignment.key not in self._keys:
                self._keys.add(assignment.key)
                self._beyond.append(assignment)
                number += 1
        self._fit()
        return number

    def readmit(self, assignments: Iterable[Assignment], *, first: bool = False) -> None:
        """Evaluate these again, which were admitted; ``first``: before the other assignments."""
        (self.assignments.extendleft if first else self.assignments.extend)(assignments)
        self._fit()

    @property
    def exhausted(self) -> bool:
        """Whether no island has a new configuration."""
        return all(unseen.exhausted for unseen in self._unseen)

    def exhausted_for(self, island: int) -> bool:
        return self._unseen[island].exhausted

    @property
    def granted(self) -> int:
        """Number of individuals granted so far, in earlier launches too."""
        return self._evaluations - self.remaining - len(self.assignments)

    @property
    def available(self) -> bool:
        """Whether anything can be granted to a worker."""
        return bool(self.assignments) or (self.remaining > 0 and not self.exhausted)

    def available_to(self, island: int) -> bool:
        return bool(self.assignments) or (self.remaining > 0 and not self.exhausted_for(island))

    def admit(self, key: str, island: int) -> bool:
        """Admit a configuration that ``island`` bred, unless it is known, or ``key`` is empty: then nothing was
        bred."""
        if not key or (not self._duplicates and key in self._keys):
            return False
        self.remaining -= 1
        self._unseen[island].bred_a_new_one()
        self._keys.add(key)
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
        unseen = self._unseen[island].next(self._keys, leader=leader, refused=refused, drawn_s=drawn_s)
        if unseen is not None:
            self.remaining -= 1
        return unseen

    def give_back(self, item: Admitted) -> None:
        """Take back what was granted and not begun."""
        if isinstance(item, Assignment):
            self.assignments.appendleft(item)
        else:
            self.remaining += 1
            self._keys.discard(item)
            for unseen in self._unseen:  # any island may find it
                unseen.given_back()
        self._fit()
