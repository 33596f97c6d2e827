"""One process's view of a campaign's ledger: it follows the entries of all launches, and adds its own."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable

from msgspec import structs

from hpo.errors import CampaignError, LedgerDamaged
from hpo.journal.machine import THIS_MACHINE, Machine
from hpo.ledger.entries import LedgerEntry, UnknownEntry, decode, digest, encode
from hpo.ledger.fold import LedgerState
from hpo.ledger.store import Store

# Seconds. Forty launches that see the same event try at different times, and few of them in vain.
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.002, 0.5

Decide = Callable[[LedgerState], LedgerEntry | None]
"""Makes the entry to append in a state, without the fields of ``LedgerEntry`` itself; None to append nothing."""


class Ledger:
    """The ledger in ``store``. ``state``: its state after all entries that this process has read."""

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
        # Number of the last entry that this process tried to append.
        self._tried = 0

    @property
    def settled(self) -> bool:
        """Whether ``state`` shows what became of every entry that this process tried to append.

        After an error the storage may put the entry in place even minutes later. Until this is settled, by that entry
        or by another in its place, nothing may be begun that the entry would return, and nothing at all where it would
        close the launch.
        """
        return self.state.entries >= self._tried

    def read_on(self) -> list[LedgerEntry]:
        """Take all further entries into ``state``, and return them.

        Raises:
            OSError: the storage cannot be read for now.
            LedgerDamaged: an entry is damaged, or contradicts those before it.
            CampaignError: a later version wrote an entry.
        """
        entries = []
        for line in self._store.read(self.state.entries + 1):
            entry = self._decoded(line)
            self._take(entry, line)
            entries.append(entry)
        return entries

    def _decoded(self, line: bytes) -> LedgerEntry:
        number = self.state.entries + 1
        try:
            entry = decode(line)
        except UnknownEntry as error:
            raise CampaignError(
                f"entry {number} of the ledger was written by a later version of hpo ({error}). Use that version."
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

    def _take(self, entry: LedgerEntry, line: bytes) -> None:
        self.state.take(entry)
        self._last = digest(line)

    def append(self, decide: Decide, *, timeout_s: float = 120.0) -> LedgerEntry | None:
        """Append the entry that ``decide`` makes, and return it; None where it makes none.

        Where another writer was faster, ``decide`` is asked again, with the state after that entry: nothing is appended
        that was decided in an older state. After an error of the storage the entry may be there all the same: see
        ``settled``. A launch holds what ``state`` says, whatever its own calls returned.

        Args:
            decide: must not change the state.
            timeout_s: seconds after which no further attempt is made.

        Raises:
            OSError: the storage fails, or others were faster (TimeoutError), for ``timeout_s`` seconds.
            LedgerDamaged: as ``read_on``, or the entry that ``decide`` made contradicts the state.
            CampaignError: a later version wrote an entry, or the file system makes no hard links.
        """
        deadline = self._machine.monotonic() + timeout_s
        tried: set[str] = set()
        wait_s = _FIRST_WAIT_S
        while True:
            error: Exception = TimeoutError(f"other launches were faster for {timeout_s:g} seconds")
            try:
                for entry in self.read_on():
                    if entry.nonce in tried:
                        return entry
                made = decide(self.state)
                if made is None:
                    return None
                signed = self._signed(made)
                contradiction = self.state.problem(signed)
                if contradiction:
                    # It may rest on journals that are newer than the entries that a cache shows.
                    error = LedgerDamaged(contradiction)
                else:
                    line = encode(signed)
                    tried.add(signed.nonce)
                    self._tried = signed.n
                    if self._store.append(self.state.entries, line):
                        self._take(signed, line)
                        return signed
            except OSError as failure:
                error = failure
            if self._machine.monotonic() >= deadline:
                raise error
            self._machine.sleep(self._rng.uniform(0, wait_s))
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    def _signed(self, entry: LedgerEntry) -> LedgerEntry:
        return structs.replace(
            entry,
            n=self.state.entries + 1,
            before=self._last,
            nonce=f"{self._rng.getrandbits(64):016x}",
            time=self._machine.time(),
            host=self._machine.host,
        )
