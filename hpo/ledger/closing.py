"""The entry that closes a launch: up to which length its journals count, and what it leaves to other launches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hpo.errors import UsageError
from hpo.individual import GIVEN_OPERATORS
from hpo.journal.evaluations import CurrentEvaluations
from hpo.journal.files import PlaceInFile, opened, read_on
from hpo.journal.records import Fenced, Finished, Header, Left, Record, Reopened, Started
from hpo.ledger.entries import Closed
from hpo.ledger.fold import LedgerState
from hpo.ledger.journals import Bounds, journal_files
from hpo.space.space import SearchSpace

Key = Callable[[dict[str, Any]], str]
"""Makes a text that is equal for equal configurations."""


def key_or_text(space: SearchSpace, params: dict[str, Any]) -> str:
    """Key of a configuration in ``space``; of parameters that do not fit it, their text, which no key equals."""
    try:
        return space.key(space.validate(params))
    except UsageError:
        return repr(sorted(params.items()))


def closing(
    directory: Path,
    key: Key,
    state: LedgerState,
    number: int,
    *,
    by: int,
    reason: str,
    exit: int | None = None,
    at_rest: bool = False,
) -> Closed:
    """Entry by which launch ``by`` closes the open launch ``number``. It reads the journals of that launch.

    Args:
        state: of the ledger. If it has changed meanwhile, the entry does not hold.
        exit: exit code of a launch that ends by itself.
        at_rest: no process of the launch writes any more, except those of workers that it has given up.

    Raises:
        JournalDamaged, CampaignError: see ``hpo.journal.files.read_file``.
    """
    left = Leftovers(state, number, key)
    bounds, lengths = Bounds(state), dict[int, list[int]]()
    for journal in journal_files(directory, number, state=state):
        worker, place = journal.name.worker, PlaceInFile()
        with opened(journal.path) as (file, size):
            end = bounds.end(journal.name)
            for record in read_on(journal.path, file, place, size if end is None else min(size, end)):
                bounds.take(number, record)
                left.take(worker, record)
        parts = lengths.setdefault(worker, [])
        parts += [0] * (journal.name.part + 1 - len(parts))
        # A person may have put a file there that has the name of another island.
        parts[journal.name.part] = max(place.offset, parts[journal.name.part])
    counted = {worker: tuple(parts) for worker, parts in lengths.items()}
    return left.entry(counted, by=by, reason=reason, exit=exit, at_rest=at_rest)


class Leftovers:
    """Individuals that the open launch ``number`` leaves by its records, of which ``take`` gets all that count, in the
    order of ``journal_files``."""

    def __init__(self, state: LedgerState, number: int, key: Key) -> None:
        self._number = number
        self._launch = state.open[number]
        self._points = {one: state.points[one] for one in sorted(self._launch.points)}
        self._key = key
        self._evaluations = CurrentEvaluations()
        self._resting: set[str] = set()
        self._given: dict[str, dict[str, Any]] = {}
        # Worker that began an individual last, by its time.
        self._begun: dict[str, tuple[float, int]] = {}
        self._running: set[int] = set()
        self._retried: dict[str, int] = {}
        self._ranks: dict[int, int] = {}
        self._rank_s = 0.0

    def take(self, worker: int, record: Record) -> None:
        """Count a record in the journal of ``worker``."""
        change = self._evaluations.take(record)
        if isinstance(record, Header):
            self._ranks[worker] = record.ranks
        elif isinstance(record, Finished):
            self._rank_s += record.outcome.seconds * self._ranks.get(worker, 1)
        if isinstance(record, (Started, Finished)):
            self._begun[record.id] = max(self._begun.get(record.id, (0.0, worker)), (record.at, worker))
            if record.operator in GIVEN_OPERATORS:
                self._given[record.id] = record.params
            if change is not None and change.counts:
                rests = change.ends and isinstance(record, Finished) and record.resting
                (self._resting.add if rests else self._resting.discard)(record.id)
        elif isinstance(record, Reopened):
            self._resting.discard(record.id)
            self._retried[record.id] = max(record.entry, self._retried.get(record.id, 0))
        elif isinstance(record, Fenced) or (isinstance(record, Left) and record.may_run):
            self._running.add(record.worker)

    def entry(
        self,
        lengths: Mapping[int, tuple[int, ...]],
        *,
        by: int,
        reason: str,
        exit: int | None = None,
        at_rest: bool = False,
    ) -> Closed:
        """The entry that closes the launch (see ``closing``); ``lengths``: bytes of the journals' parts by worker."""
        launch = self._launch
        # Failures that ``hpo retry`` names, and that the launch has not reopened since.
        failed = {one.record.id for one in self._evaluations.failures}
        again = {one for one, n in launch.again.items() if one in failed and self._retried.get(one, 0) < n}
        # An individual that it neither drew nor bred is still where it was.
        ended = {one for one in self._evaluations.ended_ids if launch.evaluates(one)} - again
        unfinished = [one.record.id for one in self._evaluations.open if launch.evaluates(one.record.id)]
        asleep = {one for one in launch.rested if one not in ended and one not in unfinished}
        drawn = (one for one in launch.ids if one not in ended and one not in asleep)
        pool = tuple(dict.fromkeys((*drawn, *unfinished, *sorted(again))))
        resting = tuple(sorted((self._resting & ended) | asleep))
        return Closed(
            launch=self._number,
            by=by,
            reason=reason,
            exit=exit,
            lengths=dict(lengths),
            final=len(ended) + len(asleep),
            rank_s=self._rank_s,
            pool=pool,
            points=self._points_left(),
            resting=resting,
            in_place=tuple(filter(self._is_at_rest, (*pool, *resting))) if at_rest else (),
        )

    def _points_left(self) -> tuple[int, ...]:
        begun = Counter(map(self._key, self._given.values()))
        left = []
        for number, point in self._points.items():
            key = self._key(point)
            if begun[key]:
                begun[key] -= 1
            else:
                left.append(number)
        return tuple(left)

    def _is_at_rest(self, identity: str) -> bool:
        """Whether no process may still write in the individual's directory."""
        if identity in self._begun:
            return self._begun[identity][1] not in self._running
        return self._launch.ids.get(identity, False)
