"""An individual that the coordinator assigns to a worker."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from hpo.individual import FIRST_ATTEMPT, Attempt, Configuration, Facts


class Assignment(Facts, msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """An individual to evaluate in place of what a leader bred: one of an earlier launch or of a worker that is gone,
    or a given point."""

    configuration: Configuration
    """A given point has no id: it takes that of the individual in whose place it is evaluated."""
    attempt: Attempt = FIRST_ATTEMPT
    key: str
    """Key that no two individuals share (see ``hpo.search.proposals.key_of``)."""
    admitted: bool = False
    """Whether the budget already counts it."""
    rests: bool = False
    """Whether it was pruned, counted as that, and granted to go on."""

    def as_contested(self) -> Assignment:
        """The same, where what evaluated it before may still run."""
        return replace(self, attempt=replace(self.attempt, contested=True))
