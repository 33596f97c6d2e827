"""The ledger of a simulated campaign, in memory, and launches that take part in it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from hpo.config.layout import Layout
from hpo.individual import birthplace
from hpo.islands.resume.state import ResumeState
from hpo.journal.commands import Request, Retry
from hpo.journal.evaluations import CurrentEvaluations
from hpo.journal.machine import Machine
from hpo.journal.records import Finished, Header, Record
from hpo.ledger.closing import Leftovers
from hpo.ledger.entries import Closed, Go, Limits, Opened
from hpo.ledger.fold import LedgerState
from hpo.ledger.joining import Newcomer
from hpo.ledger.ledger import Ledger
from hpo.ledger.participation import Participation, join
from hpo.space.space import SearchSpace

ASKED = {"time": 0.0, "by": "me"}

Journals = Callable[[], Iterable[tuple[int, Sequence[Record]]]]
"""Returns the records of a launch that are on disk, with the number of the worker that wrote them."""


class MemoryStore:
    """``Store`` of lines in memory. ``disturb``: called at each append, which fails where it raises an OSError;
    ``reaches()``: whether a line is put in place all the same by an append that failed."""

    def __init__(self) -> None:
        self._lines: list[bytes] = []
        self.disturb: Callable[[], object] = lambda: None
        self.reaches: Callable[[], bool] = lambda: False

    def append(self, after: int, line: bytes) -> bool:
        try:
            self.disturb()
        except OSError:
            if after == len(self._lines) and self.reaches():
                self._lines.append(line)
            raise
        if after != len(self._lines):
            return False
        self._lines.append(line)
        return True

    def read(self, start: int) -> Iterator[bytes]:
        return iter(self._lines[start - 1 :])


class _Client:
    """One process's way to a store. ``reach``: called before each use, which fails where it raises an OSError."""

    def __init__(self, store: MemoryStore, reach: Callable[[], object]) -> None:
        self._store, self._reach = store, reach

    def append(self, after: int, line: bytes) -> bool:
        self._reach()
        return self._store.append(after, line)

    def read(self, start: int) -> Iterator[bytes]:
        self._reach()
        return self._store.read(start)


class _Hasty(Machine):
    """Sleeps at once."""

    slept_s = 0.0

    def monotonic(self) -> float:
        return self.slept_s

    def sleep(self, seconds: float) -> None:
        self.slept_s += seconds


class SimulatedLedger:
    """Ledger of a simulated campaign of ``evaluations`` individuals, in memory. ``earlier``: what launches before
    the ledger left; ``limits``: more of the campaign file."""

    def __init__(
        self, evaluations: int, space: SearchSpace, earlier: ResumeState | None = None, **limits: Any
    ) -> None:
        self.store = MemoryStore()
        self.space = space
        self._key = lambda params: space.key(space.validate(params))
        self._journals: dict[int, Journals] = {}
        self.evaluations = evaluations
        self.ranks: dict[int, int] = {}
        """Ranks of each worker, by launch."""
        earlier = earlier or ResumeState()
        pool = [one.id for one in earlier.pending]
        self._limits = limits
        in_file = Limits(evaluations=evaluations, **limits)
        born = [birthplace(one)[1] for one in (*earlier.ended, *pool)]
        opened = Opened(
            limits=in_file,
            in_file=in_file,
            islands=1,
            seed=0,
            launches=max(earlier.launches, default=0),
            workers=1 + max(born, default=-1),
            final=earlier.tally.final,
            pool=tuple(pool),
            resting=tuple(earlier.resting),
        )
        self._followed = self.connected()
        self._followed.append(lambda state: opened)

    def connected(self, reach: Callable[[], object] = lambda: None) -> Ledger:
        """The ledger as a process sees it; ``reach``: see ``_Client``."""
        ledger = Ledger(_Client(self.store, reach), machine=_Hasty())
        ledger.read_on()
        return ledger

    @property
    def state(self) -> LedgerState:
        self._followed.read_on()
        return self._followed.state

    def give(self, request: Request, records: Iterable[Record] = ()) -> None:
        """A person gives a command. ``records``: all on disk."""
        evaluations = CurrentEvaluations()
        for record in records:
            evaluations.take(record)
        retried = [
            one.record.id
            for one in evaluations.failures
            if isinstance(request, Retry)
            and isinstance(one.record, Finished)
            and one.record.status in request.statuses
        ]
        self._followed.append(lambda state: state.command(request, retried))

    def start(self) -> None:
        """A person starts the campaign."""
        if self.state.stop_pending:
            self.give(Go(**ASKED))  # type: ignore[arg-type]

    def join(
        self,
        workers: int,
        journals: Journals,
        reach: Callable[[], object] = lambda: None,
        *,
        beside: Collection[int] = (),
        newcomer: Newcomer | None = None,
        machines: Mapping[str, str] | None = None,
    ) -> Participation:
        """A launch of ``workers`` joins, and closes all others but those ``beside`` it. ``journals``: of that launch;
        ``reach``: see ``_Client``."""
        participation = join(
            self.connected(reach),
            self.closing,
            newcomer or Newcomer(),
            layout=partial(self._layout, workers),
            in_file=Limits(evaluations=self.evaluations, **self._limits),
            machines=machines,
        )
        assert participation is not None
        self._journals[participation.number] = journals
        others = participation.state.open.keys() - {*beside}
        participation.close_others("died", sorted(others))
        participation.begin_reading()
        return participation

    def _layout(self, workers: int, first_island: int) -> Layout:
        return Layout.plan(ranks=workers, sizes=[1], joins=True)

    def closing(self, state: LedgerState, number: int, **ending: Any) -> Closed:
        """As ``hpo.ledger.closing.closing`` does it, also with its further arguments ``ending``; lengths are numbers of
        records."""
        left, lengths = Leftovers(state, number, self._key), {}
        for worker, records in self._journals[number]():
            lengths[worker] = (len(records),)
            ranks = self.ranks.get(number, 1)
            left.take(
                worker, Header(version=1, launch=number, island=0, worker=worker, ranks=ranks, time=0.0)
            )
            for record in records:
                left.take(worker, record)
        return left.entry(lengths, **ending)

    def counted(self, launch: int) -> Iterator[Record]:
        """Records of ``launch`` that count."""
        closed = self.state.closed.get(launch)
        for worker, records in self._journals[launch]():
            yield from records[: None if closed is None else closed.lengths.get(worker, (0,))[0]]

    def ended_in(self, launch: int) -> Iterator[str]:
        """Individuals that ended in ``launch`` by the records that count."""
        evaluations = CurrentEvaluations()
        for record in self.counted(launch):
            evaluations.take(record)
        yield from evaluations.ended_ids

    def check(self, records: Iterable[Record]) -> None:
        """AssertionError where what closed launches left by the ledger is not what is on record. ``records``: of all of
        them."""
        evaluations = CurrentEvaluations()
        for record in records:
            evaluations.take(record)
        state = self.state
        if state.open:
            return
        retried = {one for one in state.pool if one in evaluations.ended_ids}
        assert state.final == len(evaluations.ended_ids) - len(retried), "the ledger has miscounted"
        assert {*state.pool} - retried == {one.record.id for one in evaluations.open}
