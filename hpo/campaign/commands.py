"""Commands to a campaign: each is checked, becomes an entry of the campaign's ledger, and is answered by when it takes
effect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec

from hpo.campaign.progress import ended_early
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
)
from hpo.journal.evaluations import CurrentEvaluations
from hpo.journal.records import Finished
from hpo.ledger.alive import living
from hpo.ledger.closing import closing, key_or_text
from hpo.ledger.entries import Closed
from hpo.ledger.fold import LedgerState
from hpo.ledger.journals import journal_files, last_launch, read_directory
from hpo.ledger.launches import read_launch
from hpo.ledger.opening import give, open_ledger, state_of
from hpo.prior_results.configurations import read_points
from hpo.results.listing import listed_launches
from hpo.search import campaign_end
from hpo.space.space import described_space
from hpo.spelling import suggestion
from hpo.text import excerpt
from hpo.views.text import table

_MOST_HOSTS = 4
ALL = "all"
"""Value of ``hpo retry --status`` for every kind of failure."""


def stop(directory: Path) -> str:
    """Raises CampaignError, as all here: there is no campaign, or its directory cannot be written."""
    directories.read_identity(directory)
    if living(directory):
        give(directory, Stop(**asked()))
        return (
            f"{directory}: asked to stop; running evaluations get their grace time to save. Started again in the same "
            "way, it goes on."
        )
    last = read_launch(directory, last_launch(directory))
    if last is not None and last.end is not None and last.end[1] != EXIT_RESUMABLE:
        return f"{directory}: no campaign is running there, so there is nothing to stop."
    if not state_of(directory).stop_pending:
        give(directory, Stop(**asked()))
    return (
        f"{directory}: no campaign is running there now. A job that Slurm starts again will end at once; a start by a "
        "person goes on."
    )


def drain(directory: Path, worker: str) -> str:
    """``worker``: island and number, such as "0-3". Raises UsageError: no launch at work has such a worker."""
    directories.read_identity(directory)
    state = state_of(directory)
    at_work = living(directory, state)
    files = (one for launch in at_work for one in journal_files(directory, launch, state=state))
    workers = dict.fromkeys(f"{one.name.island}-{one.name.worker}" for one in files)
    if worker not in workers:
        raise UsageError(
            f"{excerpt(worker)}: must be a worker at work, by island and number: the first two numbers of the ids that "
            f"it begins. {suggestion('', workers) if workers else 'No campaign is running there.'}"
        )
    return _given(directory, Drain(**asked(), worker=worker), f"worker {worker} gets nothing more")


def retry(directory: Path, status: str) -> str:
    """``status``: of the failures to evaluate again, or ALL."""
    directories.read_identity(directory)
    statuses = RETRIED if status == ALL else (status,)
    evaluations = CurrentEvaluations()
    for record in read_directory(directory, []):
        evaluations.take(record)
    # Not status.json: rank 0 writes it every few seconds, and a failure that the panel already shows would be missed.
    failed = {
        one.record.id: one.record.status for one in evaluations.failures if isinstance(one.record, Finished)
    }
    chosen = [one for one, ended in failed.items() if ended in statuses]
    if not chosen:
        number = Counter(failed.values())
        others = [f"{number[one]} {one} (--status {one})" for one in RETRIED if number[one]]
        return (
            f"{directory}: no individual has ended as {' or '.join(statuses)}, so there is nothing to evaluate again."
            + (f" There are {', '.join(others)}." if others else "")
        )

    request = Retry(**asked(), statuses=statuses)  # type: ignore[arg-type]
    said = f"individuals that ended as {' or '.join(statuses)} are evaluated again"
    return _given(directory, request, said, chosen)


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
    stop = limits.stop
    campaign_end.check(stop.value, stop.gain, directories.objectives_of(directories.read_identity(directory)))
    request = Set(
        **asked(),
        evaluations=limits.evaluations,
        deadline_s=limits.deadline_s,
        rank_hours=limits.rank_hours,
        stop_value=stop.value,
        stop_gain=stop.gain,
        stop_over=stop.over if "over" in stop.model_fields_set else None,
    )
    return _given(directory, request, ", ".join(words))


def close(directory: Path, launch: int) -> str:
    """Close an open launch. Raises UsageError: there is none of this number."""
    space = described_space(directories.read_identity(directory).get("space"))
    ledger = open_ledger(directory)

    def decide(state: LedgerState) -> Closed | None:
        if launch not in state.open:
            return None
        key = partial(key_or_text, space)
        return closing(directory, key, state, launch, by=0, reason="closed by a person")

    try:
        closed = ledger.append(decide)
    except OSError as error:
        raise directories.unwritable(directory, error) from error
    if closed is None:
        numbers = map(str, ledger.state.open)
        raise UsageError(
            f"{launch}: must be the number of an open launch of {directory}, as `hpo launches` lists them: "
            f"{', '.join(numbers) or 'there is none now'}."
        )
    return (
        f"{directory}: launch {launch} is closed. If it is at work, it ends within seconds, and nothing that it does "
        "from now on counts; what it had begun is evaluated by others."
    )


def launches(directory: Path) -> str:
    """A line for each launch."""
    rows = [("launch", "state", "workers", "done", "silent for", "job", "GPUs", "hosts")]
    for one in listed_launches(directory):
        silent = "" if one.silent_s is None else f"{one.silent_s:.0f} s"
        hosts = ", ".join(one.hosts[:_MOST_HOSTS]) + (", …" if len(one.hosts) > _MOST_HOSTS else "")
        rows.append(
            (str(one.number), one.state, str(one.workers), str(one.done), silent, one.job, one.devices, hosts)
        )
    return "\n".join(table(rows))


def _given(directory: Path, request: Request, said: str, retried: Sequence[str] = ()) -> str:
    directories.read_identity(directory)
    runs = bool(living(directory))
    give(directory, request, retried)
    if (ended := state_of(directory).ended_early) is not None:
        return (
            f"{directory}: {said}, once the campaign goes on. It has ended: {ended_early(directory, ended)}"
        )
    when = "within seconds" if runs else "when the next launch begins, as no campaign is running there now"
    return f"{directory}: {said}; this takes effect {when}."


COMMANDS: dict[str, Callable[..., str]] = {
    "stop": stop,
    "pause": lambda directory: _given(
        directory, Pause(**asked()), "what runs goes on, and nothing new starts until `hpo unpause`"
    ),
    "unpause": lambda directory: _given(directory, Unpause(**asked()), "goes on"),
    "drain": drain,
    "close": close,
    "retry": retry,
    "enqueue": enqueue,
    "set": set_limits,
}
