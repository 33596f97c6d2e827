"""The messages between ranks: one class each, with typed fields and the receiver; JSON on the wire.

To add a message, write its class here under the base that says who receives it, and its handler there. A receiver whose
table lacks a handler is refused when it is made (``check_handlers``). JSON and not pickle: nothing that comes over the
network may be executed."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Union

import msgspec
from msgspec.structs import replace

from hpo.individual import FIRST_ATTEMPT, Attempt, Configuration, Facts, Outcome, Scalar
from hpo.search.population import Member, TaskResult

COORDINATOR_RANK = 0
MOST_REMARKS = 20
"""Names of metrics about which a launch makes a remark."""

RungReport = tuple[str, int, float | None]
"""An intermediate result at a rung: id, steps, and the loss, None where that was not finite, as JSON has no
infinity."""


class MessageError(ValueError):
    """The bytes are no message of ours."""


class Assignment(Facts, msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """An individual to evaluate in place of what a leader bred: one of an earlier launch or of a worker that is gone,
    or a given point."""

    configuration: Configuration
    """A given point has no id: it takes the id of the individual in whose place it is evaluated."""
    attempt: Attempt = FIRST_ATTEMPT
    key: str
    """Key that no two individuals share (see ``hpo.search.proposals.key_of``)."""
    admitted: bool = False
    """Whether the budget already counts it."""
    rests: bool = False
    """Whether it was pruned, counted as that, and granted to go on."""

    def as_contested(self) -> Assignment:
        """The same assignment where a former evaluation may still run."""
        return replace(self, attempt=replace(self.attempt, contested=True))


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """On the wire an array: the name of the class, then the fields in order."""


class BeforeServing(Message, frozen=True):
    """Handled by ``hpo.campaign`` before the event loops begin."""


class ToCoordinator(Message, frozen=True):
    """Handled by the coordinator, whichever rank sends it."""


class ToWorker(Message, frozen=True):
    """Handled by the leader on a leader's rank; other ranks of a worker ignore what is for leaders alone."""


class ToEventLoop(Message, frozen=True):
    """Handled by the event loop of any rank."""


class Want(msgspec.Struct, frozen=True, array_like=True):
    """A leader's wish to evaluate a configuration."""

    token: int
    """The leader's number of this wish, which the answer repeats."""
    key: str
    """Key that no two individuals share."""
    paused: str | None = None
    """Id of an individual that was pruned, and counted, and is to go on."""
    phase: int = 0
    """Phase in which it was bred."""
    refused: int = 0
    """Number of proposals that the constraints refused before it."""
    drawn_s: float = 0.0
    """Seconds that all these draws took."""


class EvaluationEnd(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """End of one individual's evaluation, for the coordinator's counts."""

    token: int
    """The number by which the individual was granted."""
    id: str
    outcome: Outcome
    """Its error is one line, and it has no metrics; the journal has them."""
    losses: tuple[float, ...] | None
    """A finite number to be minimised for each objective; None unless it completed and keeps all limits."""
    reported: bool = False
    """Whether it had reported a finite value, and did not return what is no value."""
    fault: str | None = None
    """See ``hpo.islands.leader.evaluations.fault``."""
    again: Assignment | None = None
    """Assignment by which it is evaluated if its failure does not count; None where it did not fail."""
    started: float = 0.0
    """Unix seconds."""
    params: dict[str, Scalar] | None = None
    """Parameters, where its worker has evaluated nothing better before."""


class Hello(BeforeServing, frozen=True):
    """Rank to coordinator, once: it runs on this host, and could (or could not) read the campaign."""

    host: str
    pid: int
    fingerprint: str
    error: str | None
    cores: str = ""
    """Text that is equal for ranks that see the same cores and GPUs of the host."""
    machine: str = ""
    """Identity of the host's boot: see ``hpo.journal.machine.Machine.identity``."""


class Surroundings(msgspec.Struct, frozen=True, array_like=True):
    """Place of a rank."""

    hosts: tuple[str, ...]
    """Host names by worker rank; ``local_rank`` and ``local_size`` count all ranks of the launch on a host."""
    local_rank: int
    local_size: int
    local_leaders: int
    """Number of ranks on this host that lead workers."""
    cores_agreed: bool = False
    """Whether all ranks on this host see the same cores and GPUs."""


class Start(BeforeServing, frozen=True):
    """Coordinator to rank, once."""

    launch: int
    first_worker: int
    """Number of the launch's first worker in the campaign."""
    first_island: int
    """Island of that worker."""
    surroundings: Surroundings
    earlier: int
    """Number of individuals that each worker of the island has begun in earlier launches, on average."""
    population: list[Member]
    """Individuals that the island knows from earlier launches."""
    owned: list[str]
    """Ids of the individuals that this leader may send as migrants, promote, or continue."""
    reports: Sequence[RungReport]
    resting: dict[str, tuple[int, str]]
    """Number of times that each paused individual was reopened, and whose checkpoint it inherits."""
    tasks: dict[str, list[TaskResult]] = {}
    """Results of other tasks by their sources."""


class Claim(ToCoordinator, frozen=True):
    """Leader to coordinator: may these be evaluated? ``stuck``: breeding gave only known configurations lately, so any
    unseen configuration is welcome."""

    wants: list[Want]
    stuck: bool


class Results(ToCoordinator, frozen=True):
    """Leader to coordinator, after the journal was synced."""

    results: list[EvaluationEnd]


class Remark(ToCoordinator, frozen=True):
    """Leader to coordinator: a sentence for the user, at most one for each name."""

    name: str
    sentence: str


class Returned(ToCoordinator, frozen=True):
    """Leader to coordinator: these tokens were granted and will not be started here. ``points``: configurations among
    them that keep their units, for others to evaluate. ``unfinished``: as of ``Unfit``, beside ``tokens``."""

    tokens: list[int]
    points: list[Assignment] = []
    unfinished: list[tuple[int, Assignment]] = []


class Unfit(ToCoordinator, frozen=True):
    """Leader to coordinator: no evaluator can be started here, or (``storage``) its journal cannot be written: this
    worker takes no more part. ``unfinished``: individuals that it had begun, by token, for others to evaluate."""

    error: str
    unfinished: list[tuple[int, Assignment]]
    storage: bool = False


class Waiting(ToCoordinator, frozen=True):
    """Leader to coordinator: its journal or the directory of its individual cannot be written for this ``error``, path
    and reason, and it tries again; None: they can again. ``over``: the directory could not be for too long."""

    error: str | None
    over: bool


class Disbanded(ToCoordinator, frozen=True):
    """A surviving rank of a worker that lost a rank to coordinator: nothing of this worker runs here any more.
    ``unfinished``: individuals that its leader had begun, by token, for others to evaluate."""

    unfinished: list[tuple[int, Assignment]]


class StopRequest(ToCoordinator, frozen=True):
    """Any rank to coordinator: this rank received a signal to stop."""

    reason: str
    urgent: bool


class Grant(ToWorker, frozen=True):
    """Coordinator to leader, the answer to claims."""

    accepted: list[int]
    refused: list[int]
    """Tokens of configurations that are known already, or were bred in another phase than ``phase``, the present."""
    assigned: list[tuple[int, Assignment]]
    """Individuals to evaluate in place of those bred, by token."""
    phase: int = 0


class Recall(ToWorker, frozen=True):
    """Coordinator to leader: give back up to ``number`` granted but unstarted individuals, another worker idles."""

    number: int


class Lost(ToWorker, frozen=True):
    """Coordinator to all that live, and to those that hang: these ranks are dead or given up, and the workers that
    these ranks led have ended. A rank that wakes up and finds itself among them ends."""

    ranks: list[int]
    leaders: list[int]


class Retired(ToWorker, frozen=True):
    """Coordinator to leaders: the workers of an island, which these ``leaders`` lead, get nothing more to evaluate, so
    nothing migrates to them. They pass what they own, and what still comes, to ``heir``, a leader whose worker goes on;
    None: there is none."""

    leaders: list[int]
    heir: int | None


class Records(ToWorker, frozen=True):
    """Leader to the leaders of its island: newly finished individuals, ids that emigrated, intermediate results."""

    evaluated: list[Member]
    emigrated: list[str]
    reports: Sequence[RungReport]


class Migrant(ToWorker, frozen=True):
    """Leader to a leader of another island, which owns the individual from now on and sends it to its island."""

    evaluated: Member


class WorkerMessage(ToWorker, frozen=True):
    """Between the leader of a worker and its other ranks: see ``hpo.evaluation.conversation``."""

    content: dict[str, Any]


class StopWorker(ToWorker, frozen=True):
    """Coordinator to leaders: start nothing more; ask what runs to save. ``urgent``: do not wait for it."""

    reason: str
    urgent: bool


class Alive(ToEventLoop, frozen=True):
    """Any rank to rank 0, and rank 0 to all that live: the sender's event loop goes round."""


class End(ToWorker, frozen=True):
    """Coordinator to all: the campaign is over for this launch; ``error`` says why it never began."""

    reason: str
    exit_code: int
    error: str | None


KINDS: dict[str, type[Message]] = {
    kind.__name__: kind
    for receiver in (BeforeServing, ToCoordinator, ToWorker, ToEventLoop)
    for kind in receiver.__subclasses__()
}
_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Union[tuple(KINDS.values())])  # noqa: UP007


def encode(message: Message) -> bytes:
    """Bytes of ``message``. NaN and infinity, which JSON does not have, become null."""
    return _ENCODER.encode(message)


def decode(data: bytes | bytearray) -> Message:
    """The message in ``data``; MessageError where there is none."""
    try:
        message: Message = _DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MessageError(f"no message of ours: {error}") from None
    return message


def check_handlers(receiver: type[Message], handled: Collection[type[Message]]) -> None:
    """Raise TypeError unless ``handled`` are exactly the messages of ``receiver``."""
    if set(handled) != set(receiver.__subclasses__()):
        different = set(handled) ^ set(receiver.__subclasses__())
        names = ", ".join(sorted(kind.__name__ for kind in different))
        raise TypeError(f"handlers of {receiver.__name__} and its messages differ by {names}")


def reports(received: Iterable[RungReport]) -> list[tuple[str, int, float]]:
    """Intermediate results of a message, with infinite losses in place of None."""
    return [(name, step, math.inf if loss is None else loss) for name, step, loss in received]
