"""Commands to a campaign, from any machine that sees its directory, whether it runs or not. Each is an entry of the
campaign's ledger (``hpo.ledger.entries.Commanded``)."""

from __future__ import annotations

import os
import pwd
import socket
import time
from typing import Annotated, Any, Literal

import msgspec

from hpo.individual import CRASHED, FAILED, INVALID, TIMEOUT, Scalar

RETRIED = (FAILED, CRASHED, TIMEOUT, INVALID)
"""Statuses of failures, which ``hpo retry`` evaluates again."""

_Worker = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,9}-[0-9]{1,9}\Z")]
_Status = Literal["failed", "crashed", "timeout", "invalid"]


class Request(
    msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True, tag_field="name", tag=str.lower
):
    """A command that a person gave."""

    time: float
    """Unix seconds."""
    by: Annotated[str, msgspec.Meta(max_length=500)]
    """User and host."""


class Stop(Request, kw_only=True, frozen=True):
    """End the launch, as a signal would."""


class Pause(Request, kw_only=True, frozen=True):
    """Start nothing new, in later launches either."""


class Unpause(Request, kw_only=True, frozen=True):
    """End a pause."""


class Drain(Request, kw_only=True, frozen=True):
    """Give ``worker``, named by island and number, nothing more in this launch."""

    worker: _Worker


class Retry(Request, kw_only=True, frozen=True):
    """Evaluate individuals again that ended with one of ``statuses``."""

    statuses: tuple[_Status, ...]


class Enqueue(Request, kw_only=True, frozen=True):
    """Evaluate ``points`` before anything that is bred; they count for the budget."""

    points: list[dict[str, Scalar]]


class Set(Request, kw_only=True, frozen=True):
    """Change limits of the campaign (see ``hpo.ledger.entries.Limits``); None stays as it is."""

    evaluations: Annotated[int, msgspec.Meta(ge=1, lt=10**18)] | None = None
    deadline_s: Annotated[float, msgspec.Meta(gt=0, lt=1e9)] | None = None
    rank_hours: Annotated[float, msgspec.Meta(gt=0)] | None = None
    stop_value: float | dict[str, float] | None = None
    stop_gain: Annotated[float, msgspec.Meta(gt=0)] | None = None
    stop_over: Annotated[int, msgspec.Meta(ge=1, lt=10**9)] | None = None

    @property
    def values(self) -> dict[str, Any]:
        """Changed limits by name."""
        given = {
            name: getattr(self, name)
            for name in Set.__struct_fields__
            if name not in Request.__struct_fields__
        }
        return {key: value for key, value in given.items() if value is not None}


def name_of(request: Request) -> str:
    """Name of the command on the command line."""
    return str(request.__struct_config__.tag)


def asked() -> dict[str, Any]:
    """``time`` and ``by`` of a request that this process makes now."""
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # as in many containers
        user = str(os.geteuid())
    return {"time": time.time(), "by": f"{user}@{socket.gethostname()}"}
