"""What ranks say to each other: small typed messages, JSON on the wire.

JSON and not pickle: a message comes over the network, and nothing that does may be executed. Every message is
an array whose first element names its kind; ``decode`` refuses whatever does not have exactly the fields of
that kind."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import orjson

MOST_REMARKS = 20
"""Names of metrics of which something is said in a launch."""


class MessageError(ValueError):
    """Bytes that are no message of ours."""


class Evaluated(NamedTuple):
    """What an island knows of a finished individual: all that breeding needs, and nothing else.

    ``losses`` holds one number an objective, to be minimised; None unless the individual completed.
    ``history`` lists the islands that it left, oldest first. ``progress``: the steps and the loss of the last
    report of one that was pruned or completed, the loss None where that was not finite; None of others.
    ``operator``: what proposed it."""

    id: str
    genome: list[float]
    losses: list[float] | None
    status: str
    history: list[int]
    progress: list[Any] | None = None
    operator: str = ""


class Hello(NamedTuple):
    """Rank to coordinator, once: I am here, on this host, and could (or could not) read the campaign."""

    host: str
    pid: int
    fingerprint: str
    error: str | None


class Start(NamedTuple):
    """Coordinator to rank, once. ``hosts``: host name by world rank; ``sequences``: first free number of this
    worker; ``population``: what the island knows from earlier launches; ``owned``: ids among them for this
    leader to emigrate, to promote, or to go on from; ``reports``: as in ``Records``."""

    leg: int
    hosts: list[str]
    sequence: int
    population: list[list[Any]]
    owned: list[str]
    reports: list[list[Any]]


class Claim(NamedTuple):
    """Leader to coordinator: may I evaluate these? ``wants``: pairs (token, key of the configuration), or triples
    with the id of an individual that was pruned, and counted, and is to go on.

    ``stuck``: only known configurations were bred lately, so any unseen one is welcome."""

    wants: list[list[Any]]
    stuck: bool


class Grant(NamedTuple):
    """Coordinator to leader. ``takes``: pairs (token, task to evaluate in place of what was bred)."""

    accepted: list[int]
    duplicates: list[int]
    takes: list[list[Any]]


class Finished(NamedTuple):
    """Leader to coordinator, after the journal was synced: tuples (token, id, status, losses, seconds, reported,
    fault); the last two are those of ``hpo.islands.coordinator.futility.Futility.ended``."""

    results: list[list[Any]]


class Remark(NamedTuple):
    """Leader to coordinator: a sentence for the user of a metric that is not kept as it is; of each name one."""

    name: str
    sentence: str


class Recall(NamedTuple):
    """Coordinator to leader: give back up to ``number`` granted but unstarted individuals, somebody idles."""

    number: int


class Returned(NamedTuple):
    """Leader to coordinator: these tokens were granted and will not be started here."""

    tokens: list[int]


class Unfit(NamedTuple):
    """Leader to coordinator: no evaluator can be started here, this worker takes no more part.
    ``unfinished``: what it had begun, pairs (token, assignment), for others to evaluate."""

    error: str
    unfinished: list[list[Any]]


class Lost(NamedTuple):
    """Coordinator to all that live: these ranks are dead, and the workers that these ranks led have ended."""

    ranks: list[int]
    leaders: list[int]


class Disbanded(NamedTuple):
    """A surviving rank of a worker that lost one to coordinator: nothing of this worker runs here any more.
    ``unfinished``: what its leader had begun, pairs (token, assignment), for others to evaluate."""

    unfinished: list[list[Any]]


class Form(NamedTuple):
    """Coordinator to ranks that stand by: be a worker now, led by the first of ``ranks``. ``number``: of this
    kind of message in this launch, from 1; ``leaders``: those of each island; the rest as in ``Start``."""

    number: int
    island: int
    worker: int
    ranks: list[int]
    leaders: list[list[int]]
    sequence: int
    population: list[list[Any]]
    owned: list[str]
    reports: list[list[Any]]


class Joined(NamedTuple):
    """Coordinator to leaders: there is a new one on that island."""

    island: int
    leader: int


class Records(NamedTuple):
    """Leader to the leaders of its island: newly finished individuals, and ids that emigrated.

    ``reports``: intermediate results at rungs, triples (id, steps, loss), the loss None where it is not finite."""

    evaluated: list[list[Any]]
    emigrated: list[str]
    reports: list[list[Any]]


class Migrant(NamedTuple):
    """Leader to one leader of another island, which owns the individual from now on and tells its island."""

    evaluated: list[Any]


class Worker(NamedTuple):
    """Between the leader of a worker and its other ranks: what the evaluation modules say to each other."""

    content: dict[str, Any]


class StopRequest(NamedTuple):
    """Any rank to coordinator: this rank was told to stop (a signal)."""

    reason: str
    urgent: bool


class Stop(NamedTuple):
    """Coordinator to leaders: start nothing more; ask what runs to save. ``urgent``: do not wait for it."""

    reason: str
    urgent: bool


class End(NamedTuple):
    """Coordinator to all: the campaign is over for this launch; ``error`` tells why it never began."""

    reason: str
    exit_code: int
    error: str | None


Message = (
    Hello
    | Start
    | Claim
    | Grant
    | Finished
    | Remark
    | Recall
    | Returned
    | Unfit
    | Lost
    | Disbanded
    | Form
    | Joined
    | Records
    | Migrant
    | Worker
    | StopRequest
    | Stop
    | End
)

_FIELDS: dict[Any, tuple[Any, ...]] = {
    Hello: (str, int, str, (str, type(None))),
    Start: (int, list, int, list, list, list),
    Claim: (list, bool),
    Grant: (list, list, list),
    Finished: (list,),
    Remark: (str, str),
    Recall: (int,),
    Returned: (list,),
    Unfit: (str, list),
    Lost: (list, list),
    Disbanded: (list,),
    Form: (int, int, int, list, list, int, list, list, list),
    Joined: (int, int),
    Records: (list, list, list),
    Migrant: (list,),
    Worker: (dict,),
    StopRequest: (str, bool),
    Stop: (str, bool),
    End: (str, int, (str, type(None))),
}
_KINDS = {kind.__name__: (kind, types) for kind, types in _FIELDS.items()}


def encode(message: Message) -> bytes:
    """Bytes of ``message``. NaN and infinity do not exist in JSON: losses are finite by contract."""
    return orjson.dumps([type(message).__name__, *message])


def decode(data: bytes | bytearray) -> Message:
    """The message in ``data``; raises :class:`MessageError` on anything that is none."""
    try:
        content = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise MessageError(f"not JSON: {error}") from None
    if not isinstance(content, list) or not content or not isinstance(content[0], str):
        raise MessageError("a message is an array that begins with the name of its kind")
    if content[0] not in _KINDS:
        raise MessageError(f"unknown kind of message {content[0]!r}")
    kind, types = _KINDS[content[0]]
    fields = content[1:]
    if len(fields) != len(types) or not all(map(isinstance, fields, types)):
        raise MessageError(f"{content[0]} does not have the fields of its kind")
    message: Message = kind(*fields)
    return message


def evaluated(fields: list[Any]) -> Evaluated:
    """Checked view of one individual inside a message; raises :class:`MessageError`."""
    if (
        isinstance(fields, list)
        and len(fields) == 7
        and type(fields[0]) is str
        and type(fields[1]) is list
        and (fields[2] is None or type(fields[2]) is list)
        and type(fields[3]) is str
        and type(fields[4]) is list
        and (
            fields[5] is None
            or (type(fields[5]) is list and len(fields[5]) == 2 and type(fields[5][0]) is int)
        )
        and type(fields[6]) is str
    ):
        return Evaluated._make(fields)
    raise MessageError(
        "an evaluated individual has an id, a genome, losses, a status, a history, a progress and an operator"
    )


def reports(triples: list[list[Any]]) -> list[tuple[str, int, float]]:
    """Checked view of intermediate results inside a message; raises :class:`MessageError`."""
    for one in triples:
        number = (
            isinstance(one, list) and len(one) == 3 and (one[2] is None or isinstance(one[2], (int, float)))
        )
        if not (number and type(one[0]) is str and type(one[1]) is int):
            raise MessageError("a report has an id, a number of steps and a loss")
    return [(name, step, math.inf if loss is None else loss) for name, step, loss in triples]


def report_fields(found: Iterable[tuple[str, int, float]]) -> list[list[Any]]:
    """``found`` as ``reports`` takes it back."""
    return [[name, step, loss if math.isfinite(loss) else None] for name, step, loss in found]


class Counter:
    """Messages and bytes by kind, for measuring what the protocol costs."""

    __slots__ = ("bytes", "messages")

    def __init__(self) -> None:
        self.messages = dict.fromkeys(_KINDS, 0)
        self.bytes = dict.fromkeys(_KINDS, 0)

    def add(self, kind: str, size: int) -> None:
        self.messages[kind] += 1
        self.bytes[kind] += size
