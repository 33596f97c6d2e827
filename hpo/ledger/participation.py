"""A launch's part in its campaign: it joins, closes launches that have died, draws units of the budget, and leaves."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from hpo.config.layout import Layout
from hpo.errors import LaunchClosed
from hpo.journal.commands import asked
from hpo.ledger.closing import Key
from hpo.ledger.entries import (
    Closed,
    Commanded,
    Completed,
    Drew,
    Joined,
    LedgerEntry,
    Limits,
    Recount,
    UnitsReturned,
)
from hpo.ledger.fold import UNLIMITED, LedgerState, OpenLaunch
from hpo.ledger.joining import Newcomer
from hpo.ledger.ledger import Ledger

_MANY = 10**12
"""Units that a launch draws at once from a campaign without a budget."""


_PATIENCE_S = 0.5
"""Seconds to try again where other launches are faster: meanwhile a launch does nothing else."""
MakeClosed = Callable[..., Closed]
"""Makes the entry that closes an open launch: ``hpo.ledger.closing.closing`` without its first two arguments."""


class Participation:
    """Launch ``number``, which has joined by an entry of ``ledger``. ``closing``: makes the entries that close
    launches."""

    def __init__(self, ledger: Ledger, number: int, closing: MakeClosed) -> None:
        self.ledger = ledger
        self.number = number
        self._closing = closing
        self.first_worker = self.own.joined.first_worker
        self.begin_reading()

    def begin_reading(self) -> None:
        """Note which launches are closed before the journals are read: the state that results has what they left."""
        self.read_closed = frozenset(self.state.closed)
        self.read_alone = len(self.state.open) == 1
        """Whether no other launch was open then."""

    @property
    def state(self) -> LedgerState:
        return self.ledger.state

    @property
    def own(self) -> OpenLaunch:
        """This launch in the ledger; LaunchClosed where another launch has closed it."""
        found = self.state.open.get(self.number)
        if found is None:
            raise LaunchClosed(
                f"launch {self.number} was closed by another launch, which took it for dead and goes on with the "
                "campaign. No later result of it counts, so it stops."
            )
        return found

    def is_evaluated_elsewhere(self, identity: str) -> bool:
        """Whether another open launch bred or drew the individual."""
        return any(
            one.evaluates(identity) for number, one in self.state.open.items() if number != self.number
        )

    def close_others(self, reason: str, others: Iterable[int] | None = None) -> None:
        """Close ``others`` (None: all), as far as they are open. What they leave may be drawn.

        Raises:
            JournalDamaged, CampaignError: a journal cannot be read.
            OSError, LedgerDamaged: see ``Ledger.append``.
        """
        for other in [*self.state.open] if others is None else others:
            self.ledger.append(partial(self._closing_of, other, reason))

    def _closing_of(self, other: int, reason: str, state: LedgerState) -> Closed | None:
        if other not in state.open or self.number not in state.open or other == self.number:
            return None
        return self._closing(state, other, by=self.number, reason=reason)

    def recount(self, entries: int, final: int, pool: Collection[str], resting: Collection[str]) -> bool:
        """Correct what closed launches left by their journals, as damaged lines may have been left out of these;
        whether there was something to correct. Errors as of ``Ledger.append``.

        Args:
            entries: number of the ledger's entries before the journals were read; after others the next launch does it.
        """

        def decide(state: LedgerState) -> LedgerEntry | None:
            known = state.final, {*state.pool}, {*state.resting}
            if state.held or state.entries != entries or known == (final, {*pool}, {*resting}):
                return None
            request = Recount(**asked(), final=final, pool=tuple(pool), resting=tuple(resting))
            return Commanded(request=request)

        return self.ledger.append(decide) is not None

    def draw(
        self,
        ids: Collection[str] = (),
        points: Collection[int] = (),
        *,
        most: int | None = None,
        kept: int = 0,
    ) -> Drew | None:
        """Draw units that are free: for ``ids`` and ``points``, as far as they are to be drawn, and to breed. None
        where there is nothing to draw. Errors as of ``Ledger.append``.

        Args:
            ids: individuals of the pool, and resting individuals, which cost none.
            most: number of units to draw; None for all.
            kept: number of units to leave for individuals that this launch cannot evaluate.
        """

        def decide(state: LedgerState) -> LedgerEntry | None:
            if not state.may_draw() or self.number not in state.open:
                return None
            left = max(0, state.free if most is None else min(most, state.free))
            resting = [one for one in ids if one in state.resting]
            unfinished = [one for one in ids if one in state.pool][:left]
            left -= len(unfinished)
            given = [one for one in points if one in state.waiting][:left]
            left -= len(given)
            fresh = max(0, min(left, state.free - kept - len(unfinished) - len(given)))
            if state.free > UNLIMITED // 2 and most is None:
                fresh = 0 if self.own.fresh else _MANY
            if not (resting or unfinished or given or fresh):
                return None
            return Drew(launch=self.number, fresh=fresh, ids=(*unfinished, *resting), points=tuple(given))

        drew = self.ledger.append(decide, timeout_s=_PATIENCE_S)
        assert drew is None or isinstance(drew, Drew)
        return drew

    def give_back(
        self, held: int, fresh: int, ids: Collection[str] = (), points: Collection[int] = ()
    ) -> None:
        """Return units that this launch does not use, unless an earlier call that failed has returned them. Errors as
        of ``Ledger.append``, after which they may be returned or not.

        Args:
            held: number of units to breed that it held before.
        """
        returned = UnitsReturned(launch=self.number, fresh=fresh, ids=tuple(ids), points=tuple(points))

        def decide(state: LedgerState) -> LedgerEntry | None:
            own = state.open.get(self.number)
            if (
                own is None
                or own.fresh != held
                or not own.ids.keys() >= {*ids}
                or not own.points >= {*points}
            ):
                return None
            return returned

        self.ledger.append(decide, timeout_s=_PATIENCE_S)

    def complete(self, reason: str) -> None:
        """End the campaign for ``reason`` (see ``Completed``), unless its limits change meanwhile. Errors as of
        ``Ledger.append``."""
        ends = self.state.limits.ends

        def decide(state: LedgerState) -> LedgerEntry | None:
            if state.completed is not None or self.number not in state.open or state.limits.ends != ends:
                return None
            return Completed(final=state.final, reason=reason)

        self.ledger.append(decide, timeout_s=_PATIENCE_S)

    def close(self, reason: str, exit: int, *, at_rest: bool) -> None:
        """Close this launch, which evaluates nothing any more. ``at_rest``: see ``closing``. Errors as of
        ``close_others``."""

        def decide(state: LedgerState) -> LedgerEntry | None:
            if self.number not in state.open:
                return None
            return self._closing(
                state, self.number, by=self.number, reason=reason, exit=exit, at_rest=at_rest
            )

        self.ledger.append(decide, timeout_s=10.0)


def join(
    ledger: Ledger,
    closing: MakeClosed,
    newcomer: Newcomer,
    *,
    key: Key = repr,
    points: Sequence[dict[str, Any]] = (),
    layout: Callable[[int], Layout],
    in_file: Limits,
    machines: Mapping[str, str] | None = None,
    devices: str = "",
    among: Collection[int] | None = None,
) -> Participation | None:
    """Join the campaign of ``ledger``. Errors as of ``Ledger.append``.

    Args:
        closing: see ``Participation``.
        key: makes a text that is equal for equal configurations.
        points: configurations of the task and its file to evaluate before any that is bred.
        layout: plans the launch, given the island that gets a worker first.
        in_file: limits of the campaign file.
        devices: number and model of the devices of its first host.
        machines: names of the hosts of its ranks by ``Machine.identity``, that of its first rank first.
        among: open launches beside which it may join: None where another has joined meanwhile. None for all.
    """

    def decide(state: LedgerState) -> Joined | None:
        if among is not None and not state.open.keys() <= {*among}:
            return None
        planned = layout(0)
        lacking = len({place.island for place in planned.workers}) < planned.islands
        # Launches that lack workers for some islands take turns on the islands.
        turn = state.workers if len({*planned.sizes}) == 1 else state.launches
        first_island = turn % planned.islands if lacking else 0
        hosts, given = machines or {}, set(map(key, state.points))
        new = {key(one): one for one in points if key(one) not in given}
        return Joined(
            launch=state.launches + 1,
            workers=len((planned := layout(first_island)).workers),
            first_worker=state.workers,
            first_island=first_island,
            ranks_per_worker=max(len(place.ranks) for place in planned.workers),
            in_file=in_file,
            kinds=newcomer.kinds or (),
            hosts=tuple(hosts.values()),
            machines=tuple(hosts),
            supervisor=newcomer.supervisor,
            job=newcomer.job,
            devices=devices,
            points=tuple(new.values()),
            submitted=state.submitted if newcomer.submitted is None else newcomer.submitted,
        )

    joined = ledger.append(decide)
    if joined is None:
        return None
    assert isinstance(joined, Joined)
    return Participation(ledger, joined.launch, closing)
