"""The records of a campaign's journal, and the line of JSON that each is written as.

A record type is one class here: to add one, write its class; to add a field, give it a default, with which it is not
written and which older journals are read with. Evaluations are nested in memory and flat in their lines: ``flat`` and
``nested`` alone know both. All times are Unix seconds.

The last key of a line, ``crc``, is the CRC-32 (eight hexadecimal digits) of the line's bytes before ``,"crc":``. JSON
has no non-finite numbers: among metrics and objectives they are the words "nan", "inf" and "-inf"."""

from __future__ import annotations

import os
import re
import socket
import time
import zlib
from collections.abc import Mapping
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

import msgspec
from msgspec import structs

from hpo.individual import Attempt, Configuration, Facts, FinalFacts, Outcome, Plain, Scalar, make_id
from hpo.task.limits import UNLIMITED, OutcomeLimits

VERSION = 1

if TYPE_CHECKING:
    Number = float
    Id = str
    Index = int
    Count = int
    Hash = str
else:
    # A whole number stays whole; a word becomes its number in ``decode``.
    Number = int | float | Literal["nan", "inf", "-inf"]
    # The name of a directory: nothing else may pass for an id.
    Id = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,9}-[0-9]{1,9}-[0-9]{1,18}\Z")]
    Index = Annotated[int, msgspec.Meta(ge=0, lt=10**9)]
    Count = Annotated[int, msgspec.Meta(ge=0, lt=10**18)]
    # The name of a directory, too.
    Hash = Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{12})?\Z")]


class Record(msgspec.Struct, kw_only=True, omit_defaults=True, tag_field="type", tag=str.lower):
    """Base of all records, which have a ``type``, the name of the class in lower case, and a time."""

    @property
    def at(self) -> float:
        """The time that orders this record among others."""
        return self.time  # type: ignore[attr-defined, no-any-return]


class Header(Record, kw_only=True, rename={"launch": "leg"}):
    """First record of each file: which worker of which launch wrote it, and where. ``job``: the attempt at a Slurm job,
    such as "123.0" (see ``hpo.config.process.SlurmAttempt``), "" outside Slurm."""

    version: int
    launch: Annotated[int, msgspec.Meta(ge=1)]
    island: Index
    worker: Index
    ranks: Annotated[int, msgspec.Meta(ge=1)] = 1
    """Number of the worker's ranks; 1 where an earlier version wrote it."""
    host: str = ""
    pid: int = 0
    job: str = ""
    time: float

    @classmethod
    def of_this_process(
        cls, *, launch: int, island: int, worker: int, ranks: int = 1, job: str = ""
    ) -> Header:
        return cls(
            version=VERSION,
            launch=launch,
            island=island,
            worker=worker,
            ranks=ranks,
            host=socket.gethostname(),
            pid=os.getpid(),
            job=job,
            time=time.time(),
        )


class Launched(Record, kw_only=True):
    """Settings that a launch was started with."""

    evaluations: int | None
    deadline_s: float | None
    islands: int
    workers: int
    """Number of workers of all islands together."""
    ranks_per_worker: int | None = None
    time: float
    reference: dict[str, int | float] | None = None
    """Reference values by objective."""
    code: Hash = ""
    """Hash of the task's code (``hpo.task.code_version``), "" where it could not be read."""
    pruner: str = "none"
    """First pruner of the islands that is not "none"."""
    limits: OutcomeLimits = UNLIMITED
    """The task's limits of outcomes."""


class Evaluation(Facts, Record, kw_only=True):
    """An individual, and the run of its evaluation that a record is about."""

    configuration: Configuration
    attempt: Attempt


class Started(Evaluation, kw_only=True):
    """An evaluation begins."""

    time: float


class Finished(FinalFacts, Evaluation, kw_only=True):
    """An evaluation has ended; a ``Started`` of it need not exist. ``resting``: it was pruned and may go on."""

    outcome: Outcome
    started: float | None
    finished: float
    resting: bool = False

    @property
    def at(self) -> float:
        return self.finished

    @property
    def steps(self) -> int | None:
        return self.outcome.steps


class Reopened(Record, kw_only=True):
    """A failure does not count: its individual is evaluated from the start again. ``number``: how often this has been
    done; later records of the individual have it as ``reopened``."""

    id: Id
    number: Annotated[int, msgspec.Meta(ge=1)]
    reason: str
    time: float
    entry: Count = 0
    """Number of the ledger's entry that asks for it; 0: the launch itself decided it."""


class Note(Record, kw_only=True):
    """An evaluation crashed, and the same worker tries it again."""

    id: Id
    status: str
    error: str | None
    time: float


class Reported(Record, kw_only=True):
    """An intermediate result at a rung. ``loss``, to be minimised, is null where it was not finite."""

    id: Id
    island: Index
    step: int
    loss: float | None
    time: float


class Migrated(Record, kw_only=True):
    """An individual went from island ``source`` to island ``target``."""

    id: Id
    source: Index
    target: Index
    hop: int
    """Number of this move among the individual's moves."""
    copy: bool
    """Whether the original stayed."""
    time: float


class Known(Record, kw_only=True):
    """A result from elsewhere."""

    number: Annotated[int, msgspec.Meta(ge=1)]
    """Number of the result in its source, from 1."""
    params: dict[str, Scalar]
    status: str
    objectives: dict[str, Number] | None
    source: str
    origin: str
    """Name of the result in ``source``."""
    time: float
    metrics: dict[str, Number] = {}
    """Numbers that the task limits."""
    other_task: bool = False
    """Whether it is a result of another task, so that nothing but the order of that task's values counts."""


class Entered(Record, kw_only=True):
    """All known points of ``source`` are on record, and the sentence that the user read about them."""

    source: str
    told: str
    time: float
    entry: str = ""
    """Options with which the campaign reads the source, empty for the defaults."""
    content: str = ""
    """Hash of a table; empty for other sources."""


class Withdrawn(Record, kw_only=True):
    """The known points of these numbers do not count any more: their source was read again, and differs."""

    numbers: list[Annotated[int, msgspec.Meta(ge=1)]]
    source: str
    time: float


class Command(Record, kw_only=True):
    """A command to the campaign was applied, in a launch before commands were entries of the ledger; ``by`` gave it at
    the time ``given``."""

    id: Annotated[str, msgspec.Meta(pattern=r"^[0-9]{20}-[0-9a-f]{16}\Z")]
    name: str
    arguments: dict[str, Any]
    by: str
    given: float
    time: float
    refused: str | None = None
    """Reason why the command had no effect, else null."""
    in_file: dict[str, int | float | None] | None = None
    """Values of the campaign file that ``set`` replaced."""


class Storage(Record, kw_only=True):
    """A worker waits for its storage because of ``error``, path and reason; null: none waits any more."""

    error: str | None
    time: float


class Left(Record, kw_only=True):
    """A worker takes no more part in this launch. ``may_run``: a rank of it counts as dead and may run on."""

    island: Index
    worker: Index
    reason: str
    time: float
    may_run: bool = False


class Fenced(Record, kw_only=True):
    """A worker is given up whose leader may run on: of its journal in this launch no more bytes count than those of
    ``lengths``, by part. It stands in the journal of the launch's first worker."""

    worker: Index
    lengths: tuple[Count, ...]
    time: float


class Stopping(Record, kw_only=True):
    """The launch begins nothing more, and running evaluations may save themselves."""

    reason: str
    time: float


class Ended(Record, kw_only=True):
    """The launch ended by itself, and returned the code ``exit``."""

    reason: str
    exit: int
    time: float


class _EvaluationLine(
    msgspec.Struct, kw_only=True, omit_defaults=True, tag_field="type", rename={"resumed_at_step": "promoted"}
):
    """Line of an ``Evaluation``: all facts side by side, and the three numbers that make up the id."""

    id: str
    island: Index
    worker: Index
    sequence: Count
    params: dict[str, Scalar]
    operator: str
    parents: tuple[str, ...]
    retries: int
    resumed_at_step: int = 0
    inherits: str = ""
    reopened: int = 0

    def __post_init__(self) -> None:
        if self.id != make_id(self.island, self.worker, self.sequence):
            raise ValueError(f"the id {self.id[:80]!r} does not fit island, worker and sequence")


class _StartedLine(_EvaluationLine, kw_only=True, tag="started"):
    time: float


class _FinishedLine(_EvaluationLine, kw_only=True, tag="finished"):
    started: float | None
    finished: float
    status: str
    objectives: dict[str, Number] | None
    metrics: dict[str, Plain | list[Number]]
    error: str | None
    resting: bool = False
    steps: int | None = None


def flat(record: Record) -> msgspec.Struct:
    """``record`` as its line has it."""
    if not isinstance(record, Evaluation):
        return record
    kind = _FinishedLine if isinstance(record, Finished) else _StartedLine
    return kind(**{name: getattr(record, name) for name in kind.__struct_fields__})


def nested(line: msgspec.Struct) -> Record:
    """The record of a ``line``, as ``flat`` made it."""
    if not isinstance(line, _EvaluationLine):
        assert isinstance(line, Record)
        return line
    configuration = Configuration(
        id=line.id,
        params=line.params,
        operator=line.operator,
        parents=line.parents,
        inherits=line.inherits,
    )
    attempt = Attempt(retries=line.retries, resumed_at_step=line.resumed_at_step, reopened=line.reopened)
    if isinstance(line, _StartedLine):
        return Started(configuration=configuration, attempt=attempt, time=line.time)
    assert isinstance(line, _FinishedLine)
    outcome = Outcome(
        status=line.status,
        objectives=line.objectives,
        metrics=line.metrics,
        error=line.error,
        seconds=0.0 if line.started is None else line.finished - line.started,
        steps=line.steps,
    )
    return Finished(
        configuration=configuration,
        attempt=attempt,
        outcome=outcome,
        started=line.started,
        finished=line.finished,
        resting=line.resting,
    )


def _leaves(kind: type[msgspec.Struct]) -> list[type[msgspec.Struct]]:
    below = [leaf for child in kind.__subclasses__() for leaf in _leaves(child)]
    return below or [kind]


_TYPES = {
    kind.__struct_config__.tag: kind
    for kind in (*_leaves(Record), *_leaves(_EvaluationLine))
    if not issubclass(kind, Evaluation)
}
_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(Union[tuple(_TYPES.values())])  # noqa: UP007
_encoder = msgspec.json.Encoder(enc_hook=lambda value: storable(value))


class _Type(msgspec.Struct):
    type: str


CRC_KEY = b',"crc":"'
TAIL_BYTES = len(CRC_KEY) + 8 + len(b'"}\n')
_NONFINITE = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}
_NONFINITE_WORD = re.compile(b'"(?:nan|-?inf)"')


class NotWhole(ValueError):
    """The bytes are no whole record: a write was cut off, or they are damaged."""


def encode(record: Record) -> bytes:
    """``record`` as one line of the journal, newline included. Values that JSON cannot hold are stored as text: a
    strange metric must not cost the result that it came with."""
    line = flat(record)
    for name in ("metrics", "objectives"):
        values = getattr(line, name, None)
        if values and not all(map(fits_json, values.values())):
            line = structs.replace(line, **{name: storable(values)})
    return line_of(line)


def line_of(struct: msgspec.Struct) -> bytes:
    """Line of JSON with the fields of ``struct`` and a checksum, newline included."""
    try:
        body = _encoder.encode(struct)[:-1]
    except UnicodeEncodeError:
        body = _encoder.encode(storable(msgspec.to_builtins(struct, enc_hook=storable)))[:-1]
    return with_checksum(body)


def with_checksum(body: bytes) -> bytes:
    """Line of the JSON object whose bytes but for the closing brace are ``body``."""
    return b'%b,"crc":"%08x"}\n' % (body, zlib.crc32(body))


def check_line(line: bytes) -> None:
    """Raise NotWhole where ``line`` is cut off, or does not fit its checksum."""
    if line[-3:] != b'"}\n' or line[-TAIL_BYTES : 8 - TAIL_BYTES] != CRC_KEY:
        raise NotWhole("this is not a whole record")
    if line[-11:-3] != b"%08x" % zlib.crc32(line[:-TAIL_BYTES]):
        raise NotWhole("the checksum does not fit")


def decode(line: bytes) -> Record | None:
    """The record in ``line``; None if it is of a type that this version does not know, which readers skip.

    Raises:
        NotWhole: the line is cut off, or does not fit its checksum.
        ValueError: it is whole and no record, as after an edit.
    """
    check_line(line)
    try:
        found: msgspec.Struct = _decoder.decode(line)
    except (ValueError, RecursionError) as error:
        if _type_of(line) in _TYPES:
            raise ValueError(str(error)) from error
        return None
    if _NONFINITE_WORD.search(line) is not None:
        for name in ("metrics", "objectives"):
            values = getattr(found, name, None)
            if values:
                setattr(found, name, {key: numbers_in(value) for key, value in values.items()})
    return nested(found)


def _type_of(line: bytes) -> str:
    try:
        return msgspec.json.decode(line, type=_Type).type
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the record has no type ({error})") from error


def numbers_in(value: Any) -> Any:
    """``value`` with numbers in place of the words "nan", "inf" and "-inf"."""
    if isinstance(value, list):
        return [numbers_in(one) for one in value]
    return _NONFINITE.get(value, value) if isinstance(value, str) else value


def fits_json(value: object) -> bool:
    """Whether JSON keeps ``value``, a metric, as it is."""
    if isinstance(value, list):
        return all(map(fits_json, value))
    if isinstance(value, float):
        return isfinite(value)
    return not isinstance(value, int) or -(2**63) <= value < 2**64


def storable(value: object) -> object:
    """``value`` in types that JSON has; text with lone surrogates, huge integers and numpy scalars are converted."""
    if isinstance(value, Mapping):
        return {str(storable(str(key))): storable(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [storable(entry) for entry in value]
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if fits_json(value) else str(value)
    if isinstance(value, float):
        return float(value) if isfinite(value) else str(float(value))
    item = getattr(value, "item", None)
    return repr(value) if item is None else storable(item())
