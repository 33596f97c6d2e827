"""An individual that the coordinator assigns to a worker."""

from __future__ import annotations

import msgspec

from hpo.individual import Scalar


class Assignment(msgspec.Struct, array_like=True):
    """An individual to evaluate in place of what a leader bred: one of an earlier launch or of a worker that is gone,
    or a given point.

    ``id`` is None for a point, which takes the id of the leader that evaluates it. ``admitted``: the budget already
    counts it. ``resumed_at_step``: steps after which it had paused, and from which it goes on; ``inherits``: the
    individual from whose checkpoint it goes on; ``rests``: pruned, counted as that, and granted to go on; ``reopened``:
    how often a failure of it was reopened; ``contested``: what evaluated it before may still run and write into its
    directory, so that a copy is used."""

    params: dict[str, Scalar]
    key: str
    operator: str
    id: str | None = None
    parents: tuple[str, ...] = ()
    retries: int = 0
    resumed: bool = False
    admitted: bool = False
    resumed_at_step: int = 0
    inherits: str = ""
    rests: bool = False
    reopened: int = 0
    contested: bool = False


def anew(assignment: Assignment, reopened: int) -> Assignment:
    """To be evaluated from the start, as if for the first time. ``reopened``: how often a failure of it was."""
    return msgspec.structs.replace(
        assignment, reopened=reopened, retries=0, resumed=False, resumed_at_step=0, admitted=True
    )
