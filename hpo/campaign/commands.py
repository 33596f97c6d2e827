"""Commands to a campaign: each is checked, left in the campaign's directory, and answered by when it takes effect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from hpo.config import reader as config
from hpo.errors import EXIT_RESUMABLE, UsageError
from hpo.journal import directory as directories
from hpo.journal.commands import (
    RETRIED,
    Drain,
    Enqueue,
    Pause,
    Request,
    Retry,
    Set,
    Stop,
    Unpause,
    asked,
    give,
    stop_pending,
)
from hpo.journal.files import journal_files, journal_name, last_launch
from hpo.journal.launches import read_launch
from hpo.journal.lock import holder
from hpo.prior_results.configurations import read_points
from hpo.results.record import load
from hpo.space.space import described_space
from hpo.spelling import suggestion
from hpo.text import excerpt

ALL = "all"
"""Value of ``hpo retry --status`` for every kind of failure."""


def stop(directory: Path) -> str:
    """Raises CampaignError, as all here: there is no campaign, or its directory cannot be written."""
    directories.read_identity(directory)
    if holder(directory) is not None:
        give(directory, Stop(**asked()))
        return (
            f"{directory}: asked to stop; running evaluations get their grace time to save. Started again in the same "
            "way, it goes on."
        )
    last = read_launch(directory, last_launch(directory))
    if last is not None and last.end is not None and last.end[1] != EXIT_RESUMABLE:
        return f"{directory}: no campaign is running there, so there is nothing to stop."
    if not stop_pending(directory):
        give(directory, Stop(**asked()))
    return (
        f"{directory}: no campaign is running there now. A job that Slurm starts again will end at once; a start by a "
        "person goes on."
    )


def drain(directory: Path, worker: str) -> str:
    """``worker``: island and number, such as "0-3". Raises UsageError: the last launch has no such worker."""
    directories.read_identity(directory)
    files = map(journal_name, journal_files(directory, last_launch(directory)))
    workers = dict.fromkeys(f"{name.island}-{name.worker}" for name in files if name is not None)
    if worker not in workers:
        raise UsageError(
            f"{excerpt(worker)}: must be a worker of the last launch, by island and number: the first two numbers of "
            f"the ids that it begins. {suggestion('', workers)}"
        )
    return _given(directory, Drain(**asked(), worker=worker), f"worker {worker} gets nothing more")


def retry(directory: Path, status: str) -> str:
    """``status``: of the failures to evaluate again, or ALL."""
    statuses = RETRIED if status == ALL else (status,)
    # Not status.json: rank 0 writes it every few seconds, and a failure that the panel already shows would be missed.
    ended = Counter(individual.status for individual in load(directory).individuals)
    if not any(ended.get(one) for one in statuses):
        others = [f"{ended[one]} {one} (--status {one})" for one in RETRIED if ended.get(one)]
        return (
            f"{directory}: no individual has ended as {' or '.join(statuses)}, so there is nothing to evaluate again."
            + (f" There are {', '.join(others)}." if others else "")
        )
    return _given(
        directory,
        Retry(**asked(), statuses=statuses),  # type: ignore[arg-type]
        f"individuals that ended as {' or '.join(statuses)} are evaluated again",
    )


def enqueue(directory: Path, points: str) -> str:
    """``points``: a configuration as JSON, or where known points may come from. Raises UsageError: they cannot be read,
    or do not fit the campaign's space."""
    identity = directories.read_identity(directory)
    space = described_space(identity.get("space"))
    entry: object = points
    if points.lstrip().startswith("{"):
        try:
            entry = msgspec.json.decode(points)
        except (ValueError, RecursionError) as error:
            raise UsageError(
                f'POINTS = {excerpt(points)}: must be a configuration as JSON ({error}), such as {{"lr": 0.1}}, or the '
                "path of a table."
            ) from None
    left_out: list[str] = []
    found = read_points(entry, space, label="POINTS", left_out=left_out)  # type: ignore[arg-type]
    if not found:
        raise UsageError(f'POINTS = {excerpt(points)}: must hold a configuration, such as {{"lr": 0.1}}.')
    count = "1 configuration" if len(found) == 1 else f"{len(found)} configurations"
    said = "; ".join([f"{count} to be evaluated next", *left_out])
    return _given(directory, Enqueue(**asked(), points=found), said)


def set_limits(directory: Path, words: Sequence[str]) -> str:
    """``words``: such as "evaluations=40". Raises UsageError: one is not allowed."""
    limits = config.limits(words)
    request = Set(**asked(), evaluations=limits.evaluations, deadline_s=limits.deadline_s)
    return _given(directory, request, ", ".join(words))


def _given(directory: Path, request: Request, said: str) -> str:
    directories.read_identity(directory)
    runs = holder(directory) is not None
    give(directory, request)
    when = "within seconds" if runs else "when the next launch begins, as no campaign is running there now"
    return f"{directory}: {said}; this takes effect {when}."


COMMANDS: dict[str, Callable[..., str]] = {
    "stop": stop,
    "pause": lambda directory: _given(
        directory, Pause(**asked()), "what runs goes on, and nothing new starts until `hpo unpause`"
    ),
    "unpause": lambda directory: _given(directory, Unpause(**asked()), "goes on"),
    "drain": drain,
    "retry": retry,
    "enqueue": enqueue,
    "set": set_limits,
}
