"""The budget of the campaign: how many individuals may still be admitted, and which configurations have been."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from hpo.islands.assignment import Assignment
from hpo.islands.coordinator.unseen import Configurations, UnseenConfigurations

UNLIMITED = 1 << 62

Admitted = Assignment | str
"""What a leader evaluates: an assignment, or a configuration that it bred, by its key."""


class Budget:
    """``remaining``: how many individuals may be admitted beside the ``assignments``, which come first. ``final``: how
    many have ended in earlier launches; ``keys``: of all admitted configurations, to which it adds;
    ``duplicates``: configurations may come twice."""

    def __init__(
        self,
        evaluations: int | None,
        *,
        final: int,
        keys: set[str],
        assignments: Iterable[Assignment],
        duplicates: bool,
        configurations: Callable[[], Configurations] | None,
    ) -> None:
        self._keys = keys
        self._duplicates = duplicates
        self._unseen = UnseenConfigurations(configurations)
        self.assignments: deque[Assignment] = deque()
        self.remaining = UNLIMITED if evaluations is None else max(0, evaluations - final)
        taken = frozenset(keys) if duplicates else keys
        for assignment in assignments:
            if not assignment.admitted:
                if assignment.key in taken:
                    continue
                self._keys.add(assignment.key)
            # A budget made smaller than what is already admitted cuts the unfinished ones off.
            if self.remaining > 0:
                self.remaining -= 1
                self.assignments.append(assignment)

    @property
    def exhausted(self) -> bool:
        """Whether the space holds no configuration that is new."""
        return self._unseen.exhausted

    @property
    def open(self) -> bool:
        """Whether something bred can be admitted."""
        return self.remaining > 0 and not self.exhausted

    @property
    def available(self) -> bool:
        """Whether anything can be given to a worker."""
        return bool(self.assignments) or self.open

    def admit(self, key: str) -> bool:
        """Admit a configuration that was bred, unless it is known; an empty ``key`` stands for none at all."""
        if not key or (not self._duplicates and key in self._keys):
            return False
        self.remaining -= 1
        self._unseen.bred_a_new_one()
        self._keys.add(key)
        return True

    def admit_unseen(self) -> Assignment | None:
        """Admit a configuration that is not taken, if one can be found."""
        unseen = self._unseen.next(self._keys)
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
            self._unseen.given_back()
