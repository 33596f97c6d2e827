"""Interfaces between the island protocol and its parts: breeder, crew, journal, and their data.

Behind them the protocol runs on a cluster and in a simulation alike."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from hpo.individual import FIRST_ATTEMPT, Attempt, Configuration, Facts, Origin, Scalar
from hpo.journal.records import Record
from hpo.search.population import Member, OtherTasks, Population
from hpo.task.known_point import Allows
from hpo.task.outcome import TaskOutcome
from hpo.task.trial import Job

Genome = tuple[float, ...]
"""A gene for each parameter: a number in the unit interval, or the index of a choice."""
Verdict = Literal["go", "pause", "stop"]
"""Answer to a report: train on; save and end, if the task can; end at once."""
GO: Verdict = "go"
PAUSE: Verdict = "pause"
STOP: Verdict = "stop"


@dataclass(frozen=True, slots=True)
class TrialReport:
    """Report of a worker's rank 0 on the individual ``id``: the objective's ``value`` after ``step`` steps."""

    id: str
    step: int
    value: float
    last_step: int | None = None
    """Number of steps of the whole run, None where the task has not said it for this trial."""
    saves: bool = False
    """Whether the task has called ``should_checkpoint`` in this evaluation, so that it can save itself."""


ReportHandler = Callable[[TrialReport], Verdict]


class Offspring(Origin, frozen=True):
    """A breeder's proposal: a genome, and how it came about."""

    genome: Genome


@dataclass(frozen=True, kw_only=True)
class SearchContext:
    """Facts of the campaign for a breeder; the defaults are those of a search outside any campaign."""

    clock: Callable[[], float] | None = None
    """Time in seconds, None where proposals must not depend on it."""
    all_workers: int = 1
    """Workers of the campaign; ``workers`` counts those of the island, ``local_workers`` those led from this host."""
    local_workers: int = 1
    cores: int = 1
    workers: int = 1
    islands: int = 1
    evaluations: int | None = None
    """The budget."""
    reported: int = 0
    """Number of the objective that ``trial.report`` reports."""
    inline: bool = True
    """Whether evaluations run in the process that breeds."""
    allows: Allows | None = None
    """The constraints, None without any."""
    tasks: OtherTasks = field(default_factory=dict)
    """Results of other tasks."""
    offers: Callable[[Sequence[str]], str] = lambda parents: next(iter(parents), "")
    """Function that returns the first of a child's parents that has a checkpoint, empty without any."""


class Breeder:
    """Proposes genomes from a population; all randomness comes from ``rng``. Subclasses override ``breed`` and the
    hooks that they need."""

    checkpoints_for_others = 0
    """Number of the worker's latest individuals that keep their checkpoints, for others to continue from."""

    def breed(self, population: Population, rng: random.Random) -> Offspring:
        """The next genome to evaluate."""
        raise NotImplementedError

    def learn(self, member: Member) -> None:
        """An individual of its own worker has finished."""

    def propose_first(
        self, identity: str, seed: int, population: Population, rng: random.Random
    ) -> Offspring | None:
        """Proposal for the individual ``identity`` in place of breeding, None where nothing else is planned; called
        once for each individual. ``seed``: the campaign's."""
        return None

    def begin_proposal(self, sequence: int) -> None:
        """A proposal follows for the individual that is the worker's ``sequence``-th, earlier launches included."""

    @property
    def may_breed_ahead(self) -> bool:
        """Whether the next individual may be bred before the evaluations ahead of it have finished."""
        return True

    def evaluation_started(self, parents: Sequence[str]) -> None:
        """The evaluation of a child of ``parents`` has begun. A proposal for which this is not called was not
        evaluated here."""

    def begin_phase(self, phase: int) -> None:
        """Another part of the space is open from now on (see ``hpo.search.phases``)."""

    def further_attempts(self, attempts: int) -> int:
        """Number of proposals beyond the usual that may turn out to be known, after ``attempts`` that were, before
        random configurations are tried."""
        return 0

    def unused(self, genome: Genome) -> None:
        """Note that a point of a grid which was proposed was not asked for: it is still to come."""

    def best_first(self, own: Sequence[tuple[float, str]], population: Population) -> list[tuple[float, str]]:
        """Pairs of loss and id in the order in which their checkpoints are worth keeping."""
        return sorted(own)


class WrappingBreeder(Breeder):
    """Breeds as ``breeder`` does, as far as a subclass does not override it."""

    def __init__(self, breeder: Breeder) -> None:
        self.breeder = breeder
        self.checkpoints_for_others = breeder.checkpoints_for_others

    def breed(self, population: Population, rng: random.Random) -> Offspring:
        return self.breeder.breed(population, rng)

    def learn(self, member: Member) -> None:
        self.breeder.learn(member)

    def propose_first(
        self, identity: str, seed: int, population: Population, rng: random.Random
    ) -> Offspring | None:
        return self.breeder.propose_first(identity, seed, population, rng)

    def begin_proposal(self, sequence: int) -> None:
        self.breeder.begin_proposal(sequence)

    @property
    def may_breed_ahead(self) -> bool:
        return self.breeder.may_breed_ahead

    def evaluation_started(self, parents: Sequence[str]) -> None:
        self.breeder.evaluation_started(parents)

    def begin_phase(self, phase: int) -> None:
        self.breeder.begin_phase(phase)

    def further_attempts(self, attempts: int) -> int:
        return self.breeder.further_attempts(attempts)

    def unused(self, genome: Genome) -> None:
        self.breeder.unused(genome)

    def best_first(self, own: Sequence[tuple[float, str]], population: Population) -> list[tuple[float, str]]:
        return self.breeder.best_first(own, population)


class Codec(Protocol):
    """Part of a search space that the protocol needs."""

    def decode(self, genome: Sequence[float]) -> dict[str, Scalar]: ...
    def encode(self, params: Mapping[str, Scalar]) -> Genome: ...
    def key(self, params: dict[str, Scalar]) -> str: ...
    def validate(self, params: Mapping[str, object]) -> dict[str, Scalar]: ...
    def sample(self, rng: random.Random) -> Genome: ...
    def project_to_allowed(self, genome: Genome) -> Genome: ...


class Crew(Protocol):
    """Evaluates an individual at a time: ``ProcessCrew`` or ``InlineCrew`` of ``hpo.evaluation``."""

    @property
    def busy(self) -> bool: ...
    @property
    def ready(self) -> bool: ...
    @property
    def failed_starts(self) -> int: ...
    @property
    def prepared(self) -> bool: ...
    def start(self, job: Job) -> None: ...
    def poll(self) -> Sequence[TaskOutcome]: ...
    def receive(self, content: dict[str, object]) -> None: ...
    def listen(self, on_report: ReportHandler) -> None: ...
    def request_checkpoint(self) -> None: ...
    def kill(self, status: str) -> None: ...
    def disband(self) -> None: ...
    @property
    def gone(self) -> bool: ...
    def deadline(self) -> float | None: ...


class Journal(Protocol):
    """Destination of records (see ``hpo.journal.records``)."""

    @property
    def error(self) -> OSError | None: ...
    def append(self, record: Record) -> None: ...
    def commit(self) -> None: ...
    def discard(self) -> None: ...


@dataclass(slots=True)
class Candidate(Facts):
    """An individual on its way through this leader."""

    token: int
    """Number by which the coordinator's answer to its claim names it."""
    configuration: Configuration
    """Configuration, of which only the id is set before ``Proposals.fill``."""
    attempt: Attempt = FIRST_ATTEMPT
    genome: Genome = ()
    key: str = ""
    """Key that no two individuals share (see ``hpo.search.proposals.key_of``)."""
    phase: int = 0
    promoted: bool = False
    """Whether it had paused here, and continues from there."""
    retried: bool = False
    """Whether it crashed here, and is tried again."""
    draws: int = 0
    """Number of configurations that were drawn for it."""
    refused: int = 0
    """Draws that the constraints refused since it was claimed last."""
    drawn_s: float = 0.0
    """Seconds of drawing since it was claimed last."""
    started: float = 0.0
    """Begin of its evaluation here, in Unix seconds; 0 before."""
