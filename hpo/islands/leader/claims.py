"""Breeding of candidates, and claims for them, as many as it takes for the worker never to run dry."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from hpo.config.layout import WorkerPlacement
from hpo.individual import GRID, Attempt, Configuration, make_id
from hpo.islands.leader.island import IslandSearch
from hpo.islands.messages import Assignment, Claim, Grant, Message, Returned, Want
from hpo.search.population import Member
from hpo.search.proposals import STUCK, key_of
from hpo.search.protocols import Candidate

_MOST_AHEAD = 64


def assignment_of(candidate: Candidate, attempt: Attempt) -> Assignment:
    """The next ``attempt`` at ``candidate``, for any worker."""
    return Assignment(
        configuration=candidate.configuration, attempt=attempt, key=candidate.key, admitted=True
    )


def unfinished_of(
    candidate: Candidate, *, resumed: bool = True, retries: int | None = None
) -> tuple[int, Assignment]:
    """Token and assignment of an individual that was begun, for others to evaluate. ``retries``: None leaves the number
    as it is."""
    retries = candidate.retries if retries is None else retries
    return candidate.token, assignment_of(
        candidate, replace(candidate.attempt, resumed=resumed, retries=retries)
    )


@dataclass
class _EvaluationTimes:
    """Running means, in seconds, that decide how many individuals to claim ahead."""

    cycle_s: float | None = None
    answer_s: float | None = None

    def evaluated(self, seconds: float) -> None:
        self.cycle_s = seconds if self.cycle_s is None else 0.8 * self.cycle_s + 0.2 * seconds

    def answered(self, seconds: float) -> None:
        self.answer_s = seconds if self.answer_s is None else 0.8 * self.answer_s + 0.2 * seconds

    @property
    def ahead(self) -> int:
        """Number of individuals to hold beside the running individual."""
        # None while an answer costs under a hundredth of an evaluation, since a later child descends from more results;
        # else enough to bridge two answers.
        if self.cycle_s is None or self.answer_s is None or self.answer_s < 0.01 * self.cycle_s:
            return 0
        return min(_MOST_AHEAD, math.ceil(2.0 * self.answer_s / max(self.cycle_s, 1e-6)))


class Claims:
    """``queue``: granted candidates that wait for their evaluation. ``send``: sends a message to the coordinator;
    ``now``: Unix seconds."""

    def __init__(
        self,
        *,
        place: WorkerPlacement,
        send: Callable[[Message], None],
        now: Callable[[], float],
        island: IslandSearch,
    ) -> None:
        self._place = place
        self._send = send
        self._now = now
        self._space = island.space
        self._breeder = island.breeder
        self._proposals = island.proposals
        self._population = island.population
        self._early_stopping = island.early_stopping
        self._sequence = 0
        self._token = 0
        # The candidate, and the time of its claim, by token.
        self._claimed: dict[int, tuple[Candidate, float]] = {}
        self._promotion: int | None = None
        self._breeding_s = 0.0
        self._phase = 0
        self.queue: deque[Candidate] = deque()
        self._times = _EvaluationTimes()

    def begin(self, earlier: int) -> None:
        """``earlier``: number of individuals that each worker of the island has begun in earlier launches."""
        self._proposals.earlier = earlier

    def request(self, *, running: bool) -> None:
        """Breed and claim as many candidates as are lacking, given whether the worker is ``running`` one of them."""
        ahead = self._times.ahead if self._breeder.may_breed_ahead else 0
        lacking = ahead + (not running) - len(self.queue) - len(self._claimed)
        # An idle worker asks for a promotion even while claims are open: these may wait for good once the
        # budget is used up.
        if lacking > 0 or not (running or self.queue):
            lacking -= self.promote()
        if lacking <= 0:
            return
        begun = self._now()
        candidates = [self._bred() for _ in range(lacking)]
        now = self._now()
        self._breeding_s = (now - begun) / lacking
        self._claim(candidates, now)

    def promote(self) -> bool:
        """Ask to go on with a paused individual, if any is worth it by now; it comes before new individuals."""
        # One promotion at a time: which individual comes next depends on what is known then.
        candidate = self._early_stopping.promoted() if self._promotion is None else None
        if candidate is None:
            return False
        candidate.token = self._promotion = self._next_token()
        candidate.attempt = replace(candidate.attempt, retries=0, resumed=True)
        candidate.started, candidate.promoted, candidate.retried = 0.0, True, False
        self._claimed[candidate.token] = candidate, self._now()
        self._send(Claim([Want(candidate.token, candidate.key, candidate.id)], False))
        return True

    def paused_before(self, member: Member, reopened: int, inherits: str) -> Candidate:
        """An individual that paused in an earlier launch. ``reopened``, ``inherits``: as on record, or its end would
        not count."""
        params = self._space.decode(member.genome)
        configuration = Configuration(
            id=member.id, params=params, operator=member.operator, inherits=inherits
        )
        return Candidate(
            token=-1,
            configuration=configuration,
            attempt=Attempt(reopened=reopened),
            genome=member.genome,
            key=key_of(self._space, configuration),
        )

    def _next_token(self) -> int:
        self._token += 1
        return self._token - 1

    def _bred(self) -> Candidate:
        identity = make_id(self._place.island, self._place.worker, self._sequence)
        self._sequence += 1
        candidate = Candidate(self._next_token(), Configuration(id=identity, params={}))
        self._fill(candidate)
        return candidate

    def _fill(self, candidate: Candidate) -> None:
        candidate.phase = self._phase
        begun = self._now()
        self._proposals.fill(candidate, self._population)
        candidate.drawn_s = self._now() - begun

    def _claim(self, candidates: list[Candidate], now: float) -> None:
        self._claimed.update((candidate.token, (candidate, now)) for candidate in candidates)
        stuck = any(candidate.draws >= STUCK for candidate in candidates)
        self._send(
            Claim(
                [
                    Want(one.token, one.key, phase=one.phase, refused=one.refused, drawn_s=one.drawn_s)
                    for one in candidates
                ],
                stuck,
            )
        )

    def take(self, grant: Grant) -> None:
        """Take the coordinator's answer."""
        now = self._now()
        if grant.phase != self._phase:
            self._phase = grant.phase
            self._breeder.begin_phase(grant.phase)
        for token in grant.accepted:
            if token in self._claimed:
                candidate, claimed_at = self._claimed.pop(token)
                self._times.answered(now - claimed_at)
                self._proposals.known.add(candidate.key)
                if token == self._promotion:
                    self._promotion = None
                    self.queue.appendleft(candidate)
                else:
                    self.queue.append(candidate)
        again: list[Candidate] = []
        for token in grant.refused:
            if token in self._claimed:
                candidate, _ = self._claimed.pop(token)
                if candidate.phase == self._phase:
                    self._proposals.known.add(candidate.key)
                else:  # draws in another part of the space do not count
                    candidate.draws = 0
                self._fill(candidate)
                again.append(candidate)
        if again:
            self._claim(again, now)
        for token, assignment in grant.assigned:
            # Where the token is not claimed, this worker has given up meanwhile, and the coordinator takes it back.
            if token in self._claimed:
                candidate, _ = self._claimed.pop(token)
                self._replace(candidate, assignment)
                # Individuals that were begun before, or that the user asked for, come before bred candidates.
                self.queue.appendleft(candidate)

    def _replace(self, candidate: Candidate, assignment: Assignment) -> None:
        configuration = assignment.configuration
        if candidate.configuration.operator == GRID and candidate.phase == self._phase:
            self._breeder.unused(candidate.genome)
        if not configuration.id:
            configuration = replace(configuration, id=candidate.id)
        candidate.configuration, candidate.attempt = configuration, assignment.attempt
        candidate.genome, candidate.key = self._space.encode(configuration.params), assignment.key
        self._proposals.known.add(assignment.key)

    def evaluated(self, seconds: float) -> None:
        """Note how long an evaluation took."""
        self._times.evaluated(seconds + self._breeding_s)

    def spare(self, number: int) -> Returned:
        """Give up ``number`` candidates at most that wait and were not begun. No leader proposes a point of a grid
        again that was refused to it: another evaluates those."""
        spare = [one for one in reversed(self.queue) if not (one.started or one.resumed_at_step)][:number]
        for candidate in spare:
            self.queue.remove(candidate)
        points = [
            Assignment(configuration=replace(one.configuration, id=""), key=one.key)
            for one in spare
            if one.configuration.operator == GRID
        ]
        return Returned([one.token for one in spare], points=points)

    def take_begun(self) -> list[Candidate]:
        """Take the candidates that were begun off the queue."""
        begun = [one for one in self.queue if one.started]
        for candidate in begun:
            self.queue.remove(candidate)
        return begun

    def give_up(self) -> list[int]:
        """Give up all candidates that are claimed or wait; their tokens."""
        tokens = [candidate.token for candidate in self.queue] + list(self._claimed)
        self.queue.clear()
        self._claimed.clear()
        return tokens
