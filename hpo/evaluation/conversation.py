"""The messages between a worker's crew, the EvaluatorHost of each of its ranks, and their evaluators.

A message is one class here and its handler in the class that takes it. Between processes of a host they travel as lines
of JSON, between ranks inside an ``hpo.islands.messages.WorkerMessage``. JSON is Python's here, which keeps non-finite
numbers and integers of any size: metrics hold both."""

from __future__ import annotations

import json
from typing import Any, Union

import msgspec

from hpo.journal.curves import CurveFile
from hpo.search.protocols import Verdict
from hpo.task.outcome import TaskOutcome
from hpo.task.task import TaskSource
from hpo.task.trial import Job


class CrewOrder(msgspec.Struct, frozen=True, tag=True):
    """To a rank of the worker: its EvaluatorHost follows it, or passes it on to the evaluator."""


class Answer(msgspec.Struct, frozen=True, tag=True):
    """From a rank of the worker to the crew: its evaluator's or its EvaluatorHost's."""


class RankContext(msgspec.Struct, frozen=True, kw_only=True):
    """An evaluator's place in its worker and on its host.

    ``local_rank`` and ``local_size`` count all ranks of the launch on this host.
    """

    worker_rank: int
    size: int
    local_rank: int
    local_size: int
    cores_agreed: bool
    """Whether all ranks of the launch on this host see the same cores and GPUs."""
    hosts: tuple[str, ...]
    """Host names by worker rank."""
    source: TaskSource
    interface: str | None = None
    """Network interface between the hosts, if the user named it."""
    curve: CurveFile | None = None
    output_bytes: int | None = None
    """Most bytes of an evaluation's output that are kept; None: no limit."""

    @property
    def label(self) -> str:
        """The name of this rank in errors."""
        rank = f"worker rank {self.worker_rank}" if self.size > 1 else "the evaluator"
        return f"{rank} on {self.hosts[self.worker_rank]}"

    @property
    def worker_local_rank(self) -> int:
        """The place of this rank among those of its worker on its host."""
        return self.hosts[: self.worker_rank].count(self.hosts[self.worker_rank])

    @property
    def worker_local_size(self) -> int:
        return self.hosts.count(self.hosts[self.worker_rank])


class EvaluatorHello(CrewOrder, frozen=True):
    """The first order to an evaluator. ``device``: the index of its own among the visible devices."""

    context: RankContext
    device: int | None


class Spawn(CrewOrder, frozen=True):
    """Start a new evaluator in place of the present."""

    start_timeout_s: float


class FormGroup(CrewOrder, frozen=True, kw_only=True):
    """Form a process group with the other ranks. ``address``: of worker rank 0's store."""

    generation: int
    address: tuple[str, int] | None
    backend: str
    start_timeout_s: float
    timeout_s: float | None


class LeaveGroup(CrewOrder, frozen=True):
    """Leave the process group, so that ranks which wait in a collective get an error."""


class Evaluate(CrewOrder, frozen=True):
    """Evaluate an individual."""

    turn: int
    """Number of this evaluation among those of the crew."""
    job: Job
    timeout_s: float | None = None
    confirm: bool = False
    """Whether to report when the evaluation's directory is there."""


class SaveState(CrewOrder, frozen=True):
    """``trial.should_checkpoint()`` is true from now on."""

    turn: int


class ReportVerdict(CrewOrder, frozen=True):
    """Whether the evaluation goes on after its report of this ``number``."""

    number: int
    verdict: Verdict


class Probe(CrewOrder, frozen=True):
    """Say whether the evaluator is alive."""

    turn: int


class Exit(CrewOrder, frozen=True):
    """End the evaluator, when its work is done."""


class Kill(CrewOrder, frozen=True):
    """End the evaluator, and all that it started, at once."""


class Ready(Answer, frozen=True):
    """The evaluator has loaded the task."""

    host: str
    gpu: str | None
    """Identity of the evaluator's device, for NCCL."""
    address: tuple[str, int] | None
    """Host and port of the evaluator's store."""


class GroupFormed(Answer, frozen=True):
    """The evaluator is in the process group of this generation."""

    generation: int


class ReportMade(Answer, frozen=True, kw_only=True):
    """``trial.report`` was called."""

    turn: int
    number: int
    step: int
    value: float
    last_step: int | None
    """Last step of the whole run, where the task has stated it."""
    saves: bool
    """Whether the task can save its state."""


class EvaluationOver(Answer, frozen=True, kw_only=True):
    """The evaluation has ended on this rank."""

    turn: int
    outcome: TaskOutcome
    replace: bool = False
    """Whether the evaluator cannot be used again."""
    regroup: bool = False
    """Whether the task has destroyed the process group."""
    unusable: bool = False
    """Whether it ended because the rank's device does not work."""
    joules: float | None = None
    """Energy that it took on this rank; None where that is not known."""


class Warned(Answer, frozen=True):
    """A sentence for the user."""

    text: str


class EvaluatorBroken(Answer, frozen=True):
    """This rank cannot evaluate: the task cannot be loaded, or the device does not work."""

    error: str


class Prepared(Answer, frozen=True):
    """The individual's directory is there, and its output file open: its evaluation begins."""

    turn: int


class Waits(Answer, frozen=True, kw_only=True):
    """This rank has waited for long, and still waits, in ``call`` for other ranks of the worker."""

    turn: int
    call: str
    of_all: bool
    """Whether all ranks of the worker must make this call, not only those of some group."""
    large: bool = False
    """Whether the exchange may take long."""


class EvaluatorAlive(Answer, frozen=True):
    """The evaluator was alive when it was probed."""

    turn: int


class Died(Answer, frozen=True):
    """The evaluator has ended, and was not asked to."""

    error: str


def _any_of(*bases: type[msgspec.Struct]) -> Any:
    return Union[tuple(kind for base in bases for kind in base.__subclasses__())]  # noqa: UP007


class _InEpoch(msgspec.Struct, frozen=True):
    epoch: int
    worker_rank: int
    message: _any_of(CrewOrder, Answer)  # type: ignore[valid-type]


def to_line(message: CrewOrder | Answer) -> bytes:
    """``message`` for a process on this host."""
    return json.dumps(msgspec.to_builtins(message), separators=(",", ":")).encode() + b"\n"


def order_of(line: bytes) -> CrewOrder:
    """The order in a line. ValueError if it is none."""
    order: CrewOrder = msgspec.convert(json.loads(line), _any_of(CrewOrder))
    return order


def answer_of(line: bytes) -> Answer:
    """The answer in a line. ValueError if it is none."""
    answer: Answer = msgspec.convert(json.loads(line), _any_of(Answer))
    return answer


def pack(epoch: int, worker_rank: int, message: CrewOrder | Answer) -> dict[str, Any]:
    """The content of a ``WorkerMessage`` between the leader and ``worker_rank``."""
    content: dict[str, Any] = msgspec.to_builtins(_InEpoch(epoch, worker_rank, message))
    return content


def unpack(content: dict[str, Any]) -> tuple[int, int, Any]:
    """Epoch, worker rank and message. ValueError if ``content`` is no such thing."""
    packed = msgspec.convert(content, _InEpoch)
    return packed.epoch, packed.worker_rank, packed.message
