"""Reasons for which a launch ends."""

from __future__ import annotations

DONE, EXHAUSTED, DEADLINE, STOPPED, INCOMPLETE = "done", "exhausted", "deadline", "stopped", "incomplete"
REACHED, NO_GAIN, HOURS = "value reached", "no gain expected", "rank_hours used"
EARLY = REACHED, NO_GAIN, HOURS
"""The whole campaign ends, by ``[stop]`` or ``rank_hours``, before its budget of evaluations is used up."""
HANDED_OVER = "handed over"
"""Nothing was left to begin, and other launches finish what they hold."""
UNFIT = "unfit"
STORAGE = "storage"
"""The storage did not work for minutes: what is done could not be kept."""
FUTILE = "futile"
"""All evaluations failed for a while (see ``hpo.islands.coordinator.health``)."""
REFUSED = "refused"
"""The constraints refused all that was drawn for minutes; whether any configuration is left is not known."""
NOTHING_COMPLETED = "nothing completed"
"""It ended as it was to, and in no launch an individual completed or was pruned: all failed."""
LOST = "lost"
"""No worker is left that could go on, or rank 0 is gone: ranks died."""
