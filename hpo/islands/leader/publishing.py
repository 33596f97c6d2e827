"""Publication of results: first on disk, then to the coordinator, to the island's leaders and to other islands."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from hpo.errors import describe_os_error
from hpo.islands.leader.island import IslandSearch, OwnWorker
from hpo.islands.leader.migration import Departure
from hpo.islands.messages import (
    COORDINATOR_RANK,
    EvaluationEnd,
    Migrant,
    Records,
    Results,
    RungReport,
    encode,
)
from hpo.islands.storage import StorageWait
from hpo.islands.transport import Transport
from hpo.search.population import Member
from hpo.search.protocols import Candidate

# Results of evaluations faster than this share a sync of the journal; results of slower evaluations are synced at once.
COMMIT_INTERVAL_S = 0.02


@dataclass
class Unpublished:
    """News that the journal has not yet synced."""

    results: list[EvaluationEnd] = field(default_factory=list)
    candidates: list[Candidate] = field(default_factory=list)
    """The candidates of ``results``."""
    records: list[Member] = field(default_factory=list)
    own: list[Member] = field(default_factory=list)
    """Completed individuals, each of which may cause emigration."""
    departures: list[Departure] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    """Ids whose checkpoints are not needed any more."""


class Publisher:
    """Publishes the results of ``worker``. ``peers``: the other leaders of the island."""

    def __init__(
        self,
        *,
        peers: Sequence[int],
        transport: Transport,
        worker: OwnWorker,
        island: IslandSearch,
    ) -> None:
        self.peers = tuple(peers)
        self._transport = transport
        self._journal = worker.journal
        self._migration = island.migration
        self._population = island.population
        self._early_stopping = island.early_stopping
        self._forget = worker.jobs.forget
        self._last_commit = 0.0
        self._last_sent = 0.0
        self.pending = Unpublished()
        self.wait = StorageWait()
        """State of the journal."""

    def publish(self, before_results: Callable[[], object] = lambda: None) -> bool:
        """Sync the journal, after which results count, and send them to other ranks. False where the sync failed: all
        stays pending. ``before_results``: called between the sync and the message to the coordinator."""
        # Migration is journalled with the results that caused it, in the same sync.
        news = self.pending
        departures = [one for member in news.own for one in self._migration.departures(member)]
        news.own = []
        news.departures += departures
        for departure in departures:
            if departure.left:
                self._population.discard(departure.traveller.id)
        try:
            self._journal.commit()
        except OSError as error:
            self.wait.failed(describe_os_error(error, "the journal"), self._transport.now())
            return False
        self.wait.worked()
        self.pending = Unpublished()
        self._last_commit = self._transport.now()
        emigrated = [departure.traveller.id for departure in news.departures if departure.left]
        if news.results:
            before_results()
            self._transport.send(COORDINATOR_RANK, encode(Results(news.results)))
        self._send_to_peers(news.records, emigrated)
        for departure in news.departures:
            self.pass_on([departure.traveller], departure.gateway)
        for identity in news.forgotten:
            self._forget(identity)
        return True

    def give_up(self) -> list[Candidate]:
        """Drop all that is not synced; the candidates whose results are dropped, for others to evaluate."""
        self._journal.discard()
        news, self.pending = self.pending, Unpublished()
        self.wait.worked()
        # A candidate that paused may have asked to go on meanwhile, under another token.
        return [replace(one, token=end.token) for one, end in zip(news.candidates, news.results)]

    def publish_when_due(self, *, at_once: bool, before_results: Callable[[], object]) -> None:
        now = self._transport.now()
        if self._journal.error is not None and self.wait.error is None:  # a commit of the coordinator failed
            self.wait.failed(describe_os_error(self._journal.error, "the journal"), now)
        if self.wait.error is not None:
            due = now >= self.wait.retry_at
        else:
            due = bool(self.pending.results) and (at_once or now >= self._last_commit + COMMIT_INTERVAL_S)
        if due:
            self.publish(before_results)
        if self._early_stopping.news and self._transport.now() >= self._last_sent + COMMIT_INTERVAL_S:
            self._send_to_peers([], [])

    def next_wake(self) -> float:
        """Time of the next ``publish_when_due``, in Unix seconds."""
        wake = math.inf
        if self.wait.error is not None:
            wake = self.wait.retry_at
        elif self.pending.results:
            wake = self._last_commit + COMMIT_INTERVAL_S
        return min(wake, self._last_sent + COMMIT_INTERVAL_S) if self._early_stopping.news else wake

    def _send_to_peers(self, records: list[Member], emigrated: list[str]) -> None:
        """Send ``records``, which are on disk, and reports at rungs, which need not be."""
        found, self._early_stopping.news = self._early_stopping.news, []
        self._last_sent = self._transport.now()
        if (records or emigrated or found) and self.peers:
            self._broadcast(Records(records, emigrated, found))

    def _broadcast(self, records: Records) -> None:
        data = encode(records)
        for peer in self.peers:
            self._transport.send(peer, data)

    def introduce(self, members: list[Member], reports: Sequence[RungReport] = ()) -> None:
        """Tell the island of individuals that came from another island or another launch, and of its reports."""
        if members or reports:
            self._broadcast(Records(members, [], reports))

    def lose(self, leaders: frozenset[int]) -> None:
        """Send nothing more to ``leaders``."""
        self.peers = tuple(rank for rank in self.peers if rank not in leaders)
        for departure in self._migration.lose(leaders):
            # The gateway may have died before its island learnt of the migrant: better twice than never.
            self.pass_on([departure.traveller], departure.gateway)

    def pass_on(self, members: Iterable[Member], heir: int) -> None:
        """Send ``members`` to the leader ``heir``, which owns them from now on."""
        for member in members:
            self._transport.send(heir, encode(Migrant(member)))
