"""Whether a launch may work on a campaign beside the launches that are open, and which of these it closes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from hpo.config.process import SlurmAttempt
from hpo.errors import CampaignError
from hpo.journal.machine import THIS_MACHINE, Machine
from hpo.ledger.alive import Holder, signs_of
from hpo.ledger.entries import Joined
from hpo.ledger.fold import LedgerState
from hpo.terminal import quoted

_LOOK_S = 0.25
_JOINING_S = 15.0
"""Seconds in which a launch that has joined makes its file."""


@dataclass(frozen=True, kw_only=True)
class Newcomer:
    """A launch that is to join."""

    join: bool | None = None
    """Whether it also joins launches on its own host; False: it joins none. None: those on other hosts, and on its own
    host where a scheduler stands between."""
    kinds: tuple[str, ...] | None = None
    """Kind of search of each island; None: not to be compared."""
    supervisor: str = ""
    """See ``Joined``."""
    job: str = ""
    """See ``Joined``."""
    submitted: int | None = None
    """See ``Joined``; None: now."""


def beside(
    directory: Path,
    read: Callable[[], LedgerState],
    newcomer: Newcomer,
    *,
    machine: Machine = THIS_MACHINE,
) -> tuple[LedgerState, dict[int, Holder | None]]:
    """State of the ledger, and the launches that are at work in it, which ``newcomer`` may join; all other open
    launches have died.

    Args:
        read: reads the ledger's present state.

    Raises:
        CampaignError: it may not join; or the directory cannot be read.
    """
    began = machine.monotonic()
    while True:
        state = read()
        started = newcomer.supervisor and any(
            one.supervisor == newcomer.supervisor for one in state.joined.values()
        )
        if started and newcomer.join is None:  # it goes on with its part, whoever has joined it meanwhile
            newcomer = replace(newcomer, join=True)
        signs = signs_of(directory, state, machine=machine)
        joining = [
            one
            for one in signs
            if signs[one].holder is None and machine.identity in state.joined[one].machines
        ]
        if joining and machine.monotonic() - began < _JOINING_S:
            machine.sleep(_LOOK_S)  # whether it lives is known at once here
            continue
        at_work = {
            launch: sign.holder
            for launch, sign in signs.items()
            if (sign.alive or (sign.holder is None and launch not in joining))
            and not _precedes(state.joined[launch], newcomer)
        }
        for launch, holder in at_work.items():
            if problem := _problem(directory, state.joined[launch], holder, newcomer, machine):
                raise CampaignError(problem)
        return state, at_work


def _precedes(joined: Joined, newcomer: Newcomer) -> bool:
    """Whether the launch has ended, as the same program starts ``newcomer`` in its place."""
    if newcomer.supervisor and joined.supervisor == newcomer.supervisor:
        return True
    before, own = SlurmAttempt.parse(joined.job), SlurmAttempt.parse(newcomer.job)
    return before is not None and own is not None and before.job == own.job and before.number < own.number


def _problem(
    directory: Path, joined: Joined, holder: Holder | None, newcomer: Newcomer, machine: Machine
) -> str:
    who = f"launch {joined.launch} on {joined.host}" if holder is None else str(holder)
    here = machine.identity in joined.machines
    if newcomer.join is False or (here and newcomer.join is None and not newcomer.job):
        more = ", let this start join it (`--join`)" if here and newcomer.join is None else ""
        return (
            f"{directory} is in use by {who}. Let it finish, stop it with `hpo stop {quoted(directory)}`{more}, or "
            "name another directory."
        )
    kinds = newcomer.kinds
    if kinds is not None and joined.kinds and kinds != joined.kinds:
        of, own = joined.kinds, kinds
        differs = f"{len(of)} islands and this start {len(own)}"
        if len(of) == len(own):
            island = next(number for number, (one, other) in enumerate(zip(of, own)) if one != other)
            differs = f'kind "{of[island]}" on island {island + 1} and this start "{own[island]}"'
        return (
            f"{directory} is in use by {who} with {differs}: launches of a campaign that are at work together have the "
            "same. Let it finish, use its campaign file, or name another directory."
        )
    return ""
