"""What the island protocol asks of the world around it, so that it runs on a cluster and in a simulation
alike."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from hpo.individual import Metric, Scalar
from hpo.search.population import Member, Population

Genome = tuple[float, ...]
"""One gene a parameter: a number in the unit interval, or the index of a choice."""


Verdict = Literal["go", "pause", "stop"]
"""The answer to a report: train on; save and end, if the task can; end at once."""
GO: Verdict = "go"
PAUSE: Verdict = "pause"
STOP: Verdict = "stop"


@dataclass(frozen=True, slots=True)
class TrialReport:
    """What worker rank 0 reported of the individual ``id``: the objective's ``value`` after ``step`` steps.

    ``last_step``: the number of steps of the whole run, None where the task has not said it for this trial.
    ``saves``: whether the task has called ``should_checkpoint`` in this evaluation: then it can save itself."""

    id: str
    step: int
    value: float
    last_step: int | None = None
    saves: bool = False


ReportHandler = Callable[[TrialReport], Verdict]


@dataclass(frozen=True, slots=True)
class Offspring:
    """What a breeder proposes: a genome, the operator's name and the parents' ids.

    ``inherits``: the individual from whose checkpoint it goes on training, if from any."""

    genome: Genome
    operator: str
    parents: tuple[str, ...] = ()
    inherits: str = ""


class Breeder(Protocol):
    """Proposes genomes from a population; all randomness comes from ``rng``."""

    def breed(self, population: Population, rng: random.Random) -> Offspring: ...
    def learn(self, member: Member) -> None: ...


@runtime_checkable
class Lineages(Protocol):
    """A breeder whose individuals take turns: a proposal that is not evaluated was no turn."""

    def begun(self, parents: Sequence[str]) -> None:
        """A child of ``parents`` is evaluated; the last of them is whose turn it was."""
        ...


@runtime_checkable
class Sequenced(Protocol):
    """A breeder to which it matters how far the campaign is. ``sequence``: how many individuals its worker has proposed
    before, in earlier launches too; set before each proposal."""

    sequence: int

    @property
    def screens(self) -> bool:
        """Whether models judge the next one however long that takes. The later it is bred the more they know, so it is
        not to be bred ahead of the evaluations before it."""
        ...

    def evaluating(self) -> None:
        """An evaluation of its worker has begun, whose time it may use to prepare what comes next."""
        ...


@runtime_checkable
class Repeating(Protocol):
    """A breeder around another, ``breeder``, of whose individuals some repeat what is known."""

    breeder: Breeder

    def again(self, identity: str, population: Population, rng: random.Random) -> Offspring | None:
        """What the individual ``identity`` repeats, if it does; to be asked once for each."""
        ...

    def best_first(self, own: Sequence[tuple[float, str]], population: Population) -> list[tuple[float, str]]:
        """Pairs of loss and id, by what is believed of their configurations; of each configuration one first."""
        ...


class Codec(Protocol):
    """What the protocol needs of a search space."""

    def decode(self, genome: Sequence[float]) -> dict[str, Scalar]: ...
    def encode(self, params: Mapping[str, Scalar]) -> Genome: ...
    def key(self, params: dict[str, Scalar]) -> str: ...
    def validate(self, params: Mapping[str, object]) -> dict[str, Scalar]: ...
    def sample(self, rng: random.Random) -> Genome: ...
    def project_to_allowed(self, genome: Genome) -> Genome: ...


class Outcome(Protocol):
    """How an evaluation ended (see ``hpo.task.outcome``)."""

    @property
    def status(self) -> str: ...
    @property
    def objectives(self) -> dict[str, float] | None: ...
    @property
    def metrics(self) -> dict[str, Metric]: ...
    @property
    def remarks(self) -> dict[str, str]: ...
    @property
    def error(self) -> str | None: ...


class Crew(Protocol):
    """Those who evaluate (see ``hpo.evaluation.crew``); one individual at a time."""

    @property
    def busy(self) -> bool: ...
    @property
    def ready(self) -> bool: ...
    @property
    def failed_starts(self) -> int: ...
    def start(self, candidate: Candidate) -> None: ...
    def poll(self) -> Sequence[Outcome]: ...
    def receive(self, worker_rank: int, content: dict[str, object]) -> None: ...
    def listen(self, on_report: ReportHandler) -> None: ...
    def request_checkpoint(self) -> None: ...
    def kill(self, status: str) -> None: ...
    def disband(self) -> None: ...
    @property
    def gone(self) -> bool: ...
    def deadline(self) -> float | None: ...


class Journal(Protocol):
    """Where records go (see ``hpo.journal.records``)."""

    def append(self, record: Mapping[str, object]) -> None: ...
    def commit(self) -> None: ...


@dataclass(slots=True)
class Candidate:
    """An individual on its way through this leader.

    ``promoted``: steps after which it had paused, and from which it goes on; 0 where it has not paused."""

    token: int
    id: str
    sequence: int
    genome: Genome
    params: dict[str, Scalar]
    key: str
    operator: str
    parents: tuple[str, ...] = ()
    retries: int = 0
    resumed: bool = False
    attempts: int = 0
    started: float = 0.0
    home: tuple[int, int] = (0, 0)
    promoted: int = 0
    inherits: str = ""
