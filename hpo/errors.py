"""The errors that users see: one class per kind, each with the exit code that the command line returns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

EXIT_RESUMABLE = 75
"""EX_TEMPFAIL of sysexits.h: stopped early, start the same command again to go on."""
EXIT_REPORTED = 32
"""Added to the exit code of a rank that has said why it ends, so that ``hpo run`` need not guess. The sums stay below
128, from where mpirun's codes are those of ranks that a signal ended."""
EXIT_REFUSED = 8
"""Added to that where the campaign was refused before this launch of it began."""
EXIT_STORAGE = 76
"""From a rank to ``hpo run`` only: as EXIT_RESUMABLE, and to start again at once would be in vain."""


class HpoError(Exception):
    """Base of all errors of this package that a user can mend; the text states the value, the rule and the remedy."""

    exit_code = 1


class UsageError(HpoError, ValueError):
    """The command, the campaign file, the layout, a keyword or the search space is not valid."""

    exit_code = 2


class CampaignError(HpoError):
    """The environment does not allow the campaign: the task, its directory or MPI."""


class RanksDied(CampaignError):
    """Ranks died, or did not start in time, before the campaign had begun; it may be tried again."""

    exit_code = EXIT_RESUMABLE


class LockLost(CampaignError):
    """Another launch has taken the campaign's lock, or may have; when that is over, this one may go on."""

    exit_code = EXIT_RESUMABLE


class StorageFailed(CampaignError):
    """The campaign's storage did not work for minutes; with room and access again the same command goes on."""

    exit_code = EXIT_RESUMABLE


class JournalDamaged(CampaignError):
    """A journal holds a record, other than a torn last one, whose checksum does not fit.

    Attributes:
        path (path): of the journal.
        line (int): of the record, from 1.
    """

    def __init__(self, path: object, line: int, reason: str) -> None:
        super().__init__(
            f"{path}, line {line}: {reason}. `hpo check DIR` says what is whole; with --repair it keeps that, and "
            "the damaged file aside."
        )
        self.path = path
        self.line = line


def describe_os_error(error: OSError, path: object) -> str:
    """``PATH: reason``. ``path``: what was used, where the error names none."""
    return f"{error.filename or path}: {error.strerror or error}"


class SpaceExhausted(HpoError):
    """No configuration is left: all that the space and its constraints allow are evaluated or pending."""


class Pruned(Exception):
    """``trial.report`` raises it on all ranks of a worker at once when the trial should stop early; let it pass. A task
    may raise it itself."""

    on_all_ranks = False
    """Whether all ranks of the worker raise it after the same call, so that none waits for another."""


class Interrupted(Exception):
    """A task raises it once it has saved its state, after ``trial.should_checkpoint()`` was true."""


@contextmanager
def noted(problems: dict[str, None]) -> Iterator[None]:
    """Put what a check finds wrong with the rest, so that all is reported together."""
    try:
        yield
    except UsageError as error:
        problems.update(dict.fromkeys(str(error).splitlines()))
