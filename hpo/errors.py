"""The errors that users see: one class per kind, each with the exit code that the command line returns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

EXIT_RESUMABLE = 75
"""Stopped early; the same command continues the campaign. This is EX_TEMPFAIL of sysexits.h."""
# mpirun reports a rank that a signal ended as 128 plus the signal, so the sums below must stay under 128.
EXIT_REPORTED = 32
"""Added to the exit code of a rank that has reported why it ends, so that ``hpo run`` need not guess."""
EXIT_REFUSED = 8
"""Added to EXIT_REPORTED where the campaign was refused before this launch of it began."""
EXIT_STORAGE = 76
"""Exit code from a rank to ``hpo run`` only: resumable, but not before the storage works again."""


class HpoError(Exception):
    """Base of all errors of this package that a user can fix; the text states the value, the rule and the remedy."""

    exit_code = 1


class UsageError(HpoError, ValueError):
    """The command, the campaign file, the layout, a keyword or the search space is not valid."""

    exit_code = 2


class CampaignError(HpoError):
    """The environment does not allow the campaign: the task, its directory or MPI."""


class RanksDied(CampaignError):
    """Ranks died, or did not start in time, before the campaign began; the same command may be tried again."""

    exit_code = EXIT_RESUMABLE


class LaunchClosed(CampaignError):
    """Another launch took this launch for dead and has closed it: its later results do not count."""

    exit_code = EXIT_RESUMABLE


class StorageFailed(CampaignError):
    """The campaign's storage failed for minutes; the same command continues once there is space and access again."""

    exit_code = EXIT_RESUMABLE


class JournalDamaged(CampaignError):
    """A record of a journal has a wrong checksum, and is not just the last record, cut off while it was written.

    Attributes:
        path (path): the journal's file.
        line (int): line of the record, from 1.
    """

    def __init__(self, path: object, line: int, reason: str) -> None:
        super().__init__(
            f"{path}, line {line}: {reason}. `hpo check DIR` says what is whole; with --repair it keeps that, and "
            "the damaged file aside."
        )
        self.path = path
        self.line = line


class LedgerDamaged(CampaignError):
    """An entry of the campaign's ledger was lost, changed or damaged: nobody can tell what is left of the budget."""

    exit_code = EXIT_RESUMABLE


def describe_os_error(error: OSError, path: object) -> str:
    """``PATH: reason`` for an error of the operating system. ``path``: the path shown where the error names none."""
    return f"{error.filename or path}: {error.strerror or error}"


class SpaceExhausted(HpoError):
    """No configuration is left: all that the space and its constraints allow are evaluated or running."""


class Pruned(Exception):
    """``trial.report`` raises it on all ranks of a worker at once when the trial should stop early; let it pass. A task
    may raise it itself."""

    on_all_ranks = (
        False  # True where all ranks of the worker raise it after the same call: none waits for another
    )


class Interrupted(Exception):
    """A task raises it once it has saved its state, after ``trial.should_checkpoint()`` was true."""


@contextmanager
def noted(problems: dict[str, None]) -> Iterator[None]:
    """Collect the mistakes that a check raises in ``problems``, so that all are reported together."""
    # A dictionary, not a list: several checks may find the same mistake, which is reported once, in order.
    try:
        yield
    except UsageError as error:
        problems.update(dict.fromkeys(str(error).splitlines()))
