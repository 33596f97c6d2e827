"""Launches that are at work on a campaign, or seem to be."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from hpo.config.layout import Layout
from hpo.journal.directory import write_identity
from hpo.journal.machine import THIS_MACHINE, Machine
from hpo.ledger.alive import SignOfLife
from hpo.ledger.closing import closing
from hpo.ledger.entries import Limits, Opened
from hpo.ledger.fold import LedgerState
from hpo.ledger.joining import Newcomer
from hpo.ledger.ledger import Ledger
from hpo.ledger.opening import open_ledger
from hpo.ledger.participation import Participation, join


def plan_of(workers: int, first_island: int = 0) -> Layout:
    """Layout of workers of a rank on one island."""
    return Layout.plan(ranks=workers, sizes=[1], joins=True)


def joined(
    home: Path,
    workers: int = 1,
    evaluations: int | None = None,
    newcomer: Newcomer = Newcomer(),  # noqa: B008
    machines: dict[str, str] | None = None,
) -> Participation:
    """A launch of ``workers`` that has joined the campaign in ``home``, which begins if need be, with a budget of
    eight."""
    if not (home / "campaign.json").exists():
        write_identity(home, {"objectives": {"value": "minimize"}})
    limits = Limits(evaluations=evaluations or 8)
    ledger = open_ledger(home, Opened(limits=limits, in_file=limits, islands=1, seed=0))

    def key(params: dict[str, Any]) -> str:
        return repr(sorted(params.items()))

    in_file = ledger.state.in_file if evaluations is None else limits
    made = join(
        ledger,
        partial(closing, home, key),
        newcomer,
        layout=partial(plan_of, workers),
        in_file=in_file,
        machines=machines,
    )
    assert made is not None
    return made


def at_work(
    home: Path,
    workers: int = 1,
    *,
    machine: Machine = THIS_MACHINE,
    newcomer: Newcomer = Newcomer(),  # noqa: B008
) -> SignOfLife:
    """The sign of life of a launch of this process, with a worker on ``machine``."""
    number = joined(home, workers, newcomer=newcomer, machines={machine.identity: machine.host}).number
    return SignOfLife(home, number, machine=machine)


def elsewhere(home: Path, age_s: float = 0.0, newcomer: Newcomer = Newcomer()) -> SignOfLife:  # noqa: B008
    """Sign of life of a launch on another machine, refreshed ``age_s`` ago."""
    sign = SignOfLife(home, joined(home, newcomer=newcomer, machines={"elsewhere": "n17"}).number)
    sign.holder = msgspec.structs.replace(sign.holder, machine="elsewhere", host="n17")
    sign.path.write_bytes(msgspec.json.encode(sign.holder))
    stamp(sign, -age_s)
    return sign


def stamp(sign: SignOfLife, seconds: float) -> None:
    at = time.time() + seconds
    os.utime(sign.path, (at, at))


def reader(home: Path) -> Any:
    """Function that reads the ledger on."""
    ledger: Ledger = open_ledger(home)

    def read() -> LedgerState:
        ledger.read_on()
        return ledger.state

    return read


def closed(home: Path) -> None:
    """All open launches are closed."""
    made = joined(home)
    made.close_others("the test")
    made.close("the test", 0, at_rest=True)
