"""What can go wrong through no fault of ours: one class a kind, each with the exit code that the command line
returns."""

from __future__ import annotations

EXIT_RESUMABLE = 75
"""EX_TEMPFAIL of sysexits.h: stopped early, start the same command again to go on."""
EXIT_REPORTED = 64
"""Added to the exit code of a rank that has said why it ends, so that ``hpo run`` need not guess."""


class HpoError(Exception):
    """A mistake or a fault outside this package; its text states the value, the rule and the remedy."""

    exit_code = 1


class UsageError(HpoError, ValueError):
    """The command, the campaign file, the layout or the search space is not valid."""

    exit_code = 2


class CampaignError(HpoError):
    """The environment does not allow the campaign: the task, its directory or MPI."""


class RanksDied(CampaignError):
    """Ranks died before the campaign had begun; it may be tried again."""

    exit_code = EXIT_RESUMABLE


class JournalDamaged(CampaignError):
    """A journal holds a record, other than a torn last one, whose checksum does not fit."""

    def __init__(self, path: object, line: int, reason: str) -> None:
        super().__init__(
            f"{path}, line {line}: {reason}. `hpo check DIR` says what is whole; with --repair it keeps that, and "
            "the damaged file aside."
        )
        self.path = path
        self.line = line


class SpaceExhausted(HpoError):
    """Every configuration that the space and its constraints allow has been evaluated or is being
    evaluated."""


class Pruned(Exception):
    """Raised by ``trial.report`` on all ranks of a worker at once when the trial should stop early."""


class Interrupted(Exception):
    """Raised by a task that has saved its state after ``trial.should_checkpoint()`` became true."""
