"""Launches of a campaign, as ``hpo launches`` lists them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from hpo.journal.directory import read_identity
from hpo.journal.machine import THIS_MACHINE
from hpo.ledger.alive import signs_of
from hpo.ledger.opening import state_of


class ListedLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """A launch that has joined."""

    number: int
    job: str
    """Job of the scheduler; "" without one."""
    hosts: list[str]
    devices: str
    """Devices that its first rank may use; "" for none."""
    workers: int
    ranks_per_worker: int
    """Number of ranks of its largest worker."""
    done: int
    """Number of individuals that ended in it, and count."""
    silent_s: float | None
    """Seconds since its last sign of life; None where it is closed, or has given none."""
    state: str
    """``open`` or ``closed``."""


def listed_launches(directory: Path) -> list[ListedLaunch]:
    """All launches of the campaign in ``directory``, without those before the ledger.

    Raises:
        CampaignError: there is no campaign, or its ledger or signs of life cannot be read.
    """
    read_identity(directory)
    state = state_of(directory)
    signs = signs_of(directory, state)
    now = THIS_MACHINE.file_time(directory / "launches") if signs else 0.0
    found = []
    for number, joined in state.joined.items():
        sign, closed = signs.get(number), state.closed.get(number)
        holder = None if sign is None else sign.holder
        done = closed.final if closed is not None else 0 if holder is None else holder.ended
        found.append(
            ListedLaunch(
                number=number,
                job=joined.job,
                hosts=[*joined.hosts],
                devices=joined.devices,
                workers=joined.workers,
                ranks_per_worker=joined.ranks_per_worker,
                done=done,
                silent_s=None if sign is None or holder is None else max(0.0, now - sign.stamp),
                state="open" if closed is None else "closed",
            )
        )
    return found


def launches_as_data(directory: Path) -> list[dict[str, object]]:
    """``listed_launches`` as JSON takes them."""
    found: list[dict[str, object]] = msgspec.to_builtins(listed_launches(directory))
    return found
