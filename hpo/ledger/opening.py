"""The ledger of a campaign's directory, whose entries are files in ``DIR/ledger/``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from hpo.errors import CampaignError, UsageError
from hpo.journal import directory as directories
from hpo.journal.commands import Request, name_of
from hpo.journal.files import listed
from hpo.journal.machine import THIS_MACHINE, Machine
from hpo.ledger.entries import Commanded, LedgerEntry, Limits, Opened
from hpo.ledger.fold import LedgerState
from hpo.ledger.ledger import Ledger
from hpo.ledger.older import first_entry, refuse_while_locked
from hpo.ledger.store import FileStore, Folder

FOLDER = "ledger"
_PATIENCE_S = 10.0
"""Seconds for which a command tries to reach the ledger."""


def open_ledger(directory: Path, new: Opened | None = None, *, machine: Machine = THIS_MACHINE) -> Ledger:
    """The ledger of the campaign in ``directory``, of which all entries have been read; it gets its first entry if need
    be.

    Args:
        new: the first entry, where no launch has worked on the campaign yet; None: one without limits.

    Raises:
        CampaignError: the directory holds no campaign, or the ledger cannot be read or written.
        LedgerDamaged: see ``Ledger.read_on``.
        JournalDamaged: an earlier version began the campaign, and a journal is damaged.
    """
    identity = directories.read_identity(directory)
    ledger = _ledger(directory, machine)
    try:
        _make_folder(directory)
        ledger.read_on()
        if ledger.state.opened is None:
            waiting: list[Commanded] = []
            first = new or Opened(limits=Limits(), islands=1, seed=int(identity.get("seed") or 0))
            if listed(directory):
                refuse_while_locked(directory, machine)
                first, waiting = first_entry(directory, first.seed)
            ledger.append(lambda state: None if state.opened else first)
            for command in waiting:
                ledger.append(partial(_always, command))
    except OSError as error:
        raise directories.unwritable(directory, error) from error
    return ledger


def give(directory: Path, request: Request, retried: Sequence[str] = ()) -> None:
    """Make ``request`` an entry of the campaign's ledger. ``retried``: ids of individuals that ended, to be evaluated
    again.

    Raises:
        UsageError: it is too large.
        CampaignError: there is no campaign, or its directory cannot be written.
    """
    ledger = open_ledger(directory)
    try:
        ledger.append(lambda state: state.command(request, retried), timeout_s=_PATIENCE_S)
    except OSError as error:
        raise CampaignError(
            f"{directory / FOLDER} cannot be written ({error.strerror or error}), so {name_of(request)} was not given. "
            "Commands are for those who may write the campaign's directory."
        ) from error
    except ValueError as error:
        raise UsageError(f"{name_of(request)}: {error}. Give it in parts.") from error


def _make_folder(directory: Path) -> None:
    """Make the ledger's folder, for all who may write the campaign's directory: its maker need not be its owner."""
    with suppress(FileExistsError):
        (directory / FOLDER).mkdir()
        whole = directory.stat()
        with suppress(OSError):
            os.chown(directory / FOLDER, -1, whole.st_gid)
        with suppress(OSError):
            (directory / FOLDER).chmod(whole.st_mode & 0o2777 | 0o700)


def _always(entry: LedgerEntry, state: LedgerState) -> LedgerEntry:
    return entry


def _ledger(directory: Path, machine: Machine) -> Ledger:
    return Ledger(FileStore(Folder(directory / FOLDER)), machine=machine)


def state_of(directory: Path) -> LedgerState:
    """State of the campaign in ``directory`` by its ledger; where it has none yet, the state that ``open_ledger`` would
    give it.

    Raises:
        CampaignError: the ledger cannot be read.
        LedgerDamaged: see ``Ledger.read_on``.
        JournalDamaged: an earlier version began the campaign, and a journal is damaged.
    """
    return FollowedLedger(directory).state()


class FollowedLedger:
    """Reads the ledger of the campaign in ``directory`` as it grows."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ledger = _ledger(directory, THIS_MACHINE)
        self._older: LedgerState | None = None

    def state(self) -> LedgerState:
        """The present state, and errors as of ``state_of``."""
        directory, state = self._directory, self._ledger.state
        try:
            if os.path.lexists(directory / FOLDER):
                self._ledger.read_on()
            if state.opened is None and self._older is None and listed(directory):
                self._older = LedgerState()
                first, waiting = first_entry(directory, 0)
                for number, entry in enumerate((first, *waiting), start=1):
                    self._older.take(replace(entry, n=number))
        except OSError as error:
            raise CampaignError(
                f"{directory / FOLDER} cannot be read ({error.strerror or error}). Give read access, or name another "
                "directory."
            ) from error
        return state if state.opened is not None else self._older or state
