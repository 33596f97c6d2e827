"""One process's view of a campaign's ledger: it follows the entries of all launches, and adds its own."""

from __future__ import annotations

import errno
import random
import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress

from msgspec import structs

from hpo.errors import CampaignError, LedgerDamaged
from hpo.journal.machine import THIS_MACHINE, Machine
from hpo.ledger.entries import LedgerEntry, UnknownEntry, decode, digest, encode
from hpo.ledger.fold import LedgerState
from hpo.ledger.store import Store

# Seconds. Forty launches that see the same event try at different times, and few of them in vain.
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.002, 0.5
_LASTING = (errno.EACCES, errno.EPERM, errno.EROFS)
"""Errors after which trying again is in vain."""

Decide = Callable[[LedgerState], LedgerEntry | None]
"""Makes the entry to append in a state, without the fields of ``LedgerEntry`` itself; None to append nothing."""


class Ledger:
    """The ledger in ``store``, for one thread. ``state``: its state after all entries that this process has read."""

    def __init__(
        self, store: Store, *, machine: Machine = THIS_MACHINE, rng: random.Random | None = None
    ) -> None:
        self.state = LedgerState()
        self._store = store
        self._machine = machine
        # Not the global generator: a task may have seeded that of all launches alike.
        self._rng = rng or random.Random(secrets.randbits(128))
        # Digest of the last line that was read.
        self._last = ""

    def read_on(self) -> list[LedgerEntry]:
        """Take all further entries into ``state``, and return them. ``append`` reads on, too.

        Raises:
            OSError: no more can be read for now.
            LedgerDamaged: an entry is damaged, or contradicts those before it.
            CampaignError: a later version wrote an entry, or a file is no entry.
        """
        return list(self._further())

    def _further(self) -> Iterator[LedgerEntry]:
        for line in self._store.read(self.state.entries + 1):
            entry = self._decoded(line)
            self._take(entry, line)
            yield entry

    def _take(self, entry: LedgerEntry, line: bytes) -> None:
        self.state.take(entry)
        self._last = digest(line)

    def _decoded(self, line: bytes) -> LedgerEntry:
        number = self.state.entries + 1
        try:
            entry = decode(line)
        except UnknownEntry as error:
            raise CampaignError(
                f"entry {number} of the ledger is none of this version's ({error}): a later version of hpo has written "
                "it. Use that version."
            ) from None
        except ValueError as error:
            raise LedgerDamaged(
                f"entry {number} of the ledger is damaged ({error}). Restore it from a backup of the campaign's "
                "directory."
            ) from None
        if entry.before != self._last:
            raise LedgerDamaged(
                f"entry {number} of the ledger follows another entry {number - 1} than the one that was read: the "
                "storage has lost or replaced an entry that it had confirmed. Look for a server that exports with "
                "`async`, and restore the ledger from a backup."
            )
        return entry

    def append(self, decide: Decide, *, timeout_s: float = 120.0) -> LedgerEntry | None:
        """Append the entry that ``decide`` makes, and return it; None where it makes none.

        Where another writer was faster, ``decide`` is asked again, with the state after that entry: nothing is appended
        that was decided in an older state. After an error the storage may put the entry in place even minutes later:
        begin nothing that it returns, and where it closes this launch nothing at all. A launch holds what ``state``
        says, whatever its own calls returned.

        Args:
            decide: must not change the state.
            timeout_s: seconds after which no further attempt is made, and the last error is raised.

        Raises:
            OSError: the storage fails, or others were faster (TimeoutError).
            LedgerDamaged: as ``read_on``, or the entry that ``decide`` made contradicts the state.
            CampaignError: as ``read_on``, or the file system refuses hard links.
            ValueError: the entry that ``decide`` made is none.
        """
        deadline = self._machine.monotonic() + timeout_s
        tried: set[str] = set()
        placed: LedgerEntry | None = None
        wait_s = _FIRST_WAIT_S
        while True:
            error: Exception = TimeoutError(f"other launches were faster for {timeout_s:g} seconds")
            try:
                for entry in self._further():
                    placed = entry if entry.nonce in tried else placed
                if placed is not None:
                    return placed
                made = self._made(decide)
                if made is None:
                    return None
                entry, line = made
                contradiction = self.state.problem(entry)
                if contradiction:
                    # It may rest on journals that are newer than the entries that a cache shows.
                    error = LedgerDamaged(contradiction)
                else:
                    tried.add(entry.nonce)
                    if self._store.append(self.state.entries, line):
                        self._take(entry, line)
                        # Entries behind it are read before it is acted on: where it has filled the place of an entry
                        # that the storage lost, they name another digest.
                        with suppress(OSError):
                            self.read_on()
                        return entry
            except OSError as failure:
                error = failure
                if placed is not None:
                    return placed
                if failure.errno in _LASTING:
                    raise
            if self._machine.monotonic() >= deadline:
                raise error
            self._machine.sleep(self._rng.uniform(0, wait_s))
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    def _made(self, decide: Decide) -> tuple[LedgerEntry, bytes] | None:
        """The entry that ``decide`` makes, as readers will have it, and its line."""
        made = decide(self.state)
        if made is None:
            return None
        signed = structs.replace(
            made,
            n=self.state.entries + 1,
            before=self._last,
            nonce=secrets.token_hex(8),
            time=self._machine.time(),
            host=self._machine.host,
        )
        line = encode(signed)
        return decode(line), line
