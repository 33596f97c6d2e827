"""The entries of a campaign's ledger, on which its launches agree, and the line of JSON that each is written as.

Entry N names the digest of the line of entry N - 1, so that a storage that loses an entry which it had confirmed is
noticed. A line ends with a checksum, as those of journals do (see ``hpo.journal.records``)."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Annotated, Any, Union

import msgspec

from hpo.individual import Scalar
from hpo.journal.commands import Drain, Enqueue, Pause, Request, Retry, Set, Stop, Unpause
from hpo.journal.records import TAIL_BYTES, Count, Hash, Id, Index, check_line, line_of
from hpo.task.limits import OutcomeLimits

if TYPE_CHECKING:
    from hpo.config.settings import Settings

    Number = int
else:
    # Launches and entries are counted from 1.
    Number = Annotated[int, msgspec.Meta(ge=1, lt=10**9)]


class Go(Request, kw_only=True, frozen=True):
    """A person starts the campaign: no earlier stop holds any more."""


class Recount(Request, kw_only=True, frozen=True):
    """A launch that begins finds other individuals in the journals of closed launches than the ledger has: damaged
    lines were left out (``hpo check --repair``)."""

    final: Count
    """Number of individuals that ended and count."""
    pool: tuple[Id, ...] = ()
    """Individuals that were begun and did not end."""
    resting: tuple[Id, ...] = ()
    """Pruned individuals that count and may go on."""


class Limits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Limits of a campaign that ``hpo set`` may change."""

    evaluations: Count | None = None
    """Number of individuals to evaluate; None without a limit."""
    deadline_s: float | None = None
    """Seconds that each launch may last; None without a limit."""
    rank_hours: float | None = None
    """Hours of all evaluations, each times the ranks of its worker; None without a limit."""
    stop_value: float | dict[str, float] | None = None
    """Value, or values by objective, that end the campaign once an individual has them; None: none do."""
    stop_gain: float | None = None
    """Gain in the objective below which the expected gain of ``stop_over`` more evaluations ends the campaign."""
    stop_over: Count = 50
    outcomes: OutcomeLimits | None = None
    """The task's limits of outcomes, by which individuals are judged; None: as on record."""

    @classmethod
    def of(cls, settings: Settings, outcomes: OutcomeLimits | None = None) -> Limits:
        """Limits of a campaign's settings and of its task's outcomes."""
        stop = settings.stop
        return cls(
            outcomes=outcomes,
            evaluations=settings.evaluations,
            deadline_s=settings.deadline_s,
            rank_hours=settings.rank_hours,
            stop_value=stop.value,
            stop_gain=stop.gain,
            stop_over=stop.over,
        )

    @property
    def ends(self) -> tuple[object, ...]:
        """Limits that an end by an entry ``Completed`` with a reason comes from."""
        return self.rank_hours, self.stop_value, self.stop_gain, self.stop_over, self.outcomes


class LedgerEntry(
    msgspec.Struct,
    kw_only=True,
    frozen=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    tag_field="type",
    tag=str.lower,
):
    """Base of all entries. The writer fills in these fields where the entry is appended."""

    n: Count = 0
    """Number of the entry, from 1."""
    before: str = ""
    """Digest of the line of entry ``n - 1``; "" in the first."""
    nonce: str = ""
    """Random text by which a writer knows its entry from an equal entry of another writer."""
    time: float = 0.0
    """Unix seconds by the writer's clock, which may be wrong by hours: for people alone."""
    host: str = ""
    """Name of the writer's host."""


class Opened(LedgerEntry, kw_only=True, frozen=True):
    """First entry."""

    limits: Limits
    """Limits that hold."""
    in_file: Limits = Limits()
    """Limits of the campaign file. They hold again where a later launch's file has others."""
    islands: Number
    """Number of islands."""
    seed: int
    """Seed from which those of all workers derive."""
    points: tuple[dict[str, Scalar], ...] = ()
    """Configurations to evaluate before any that is bred, from an earlier version."""
    code: Hash = ""
    """Hash of the task's code, "" where it could not be read."""
    # State of a campaign that began without a ledger:
    launches: Count = 0
    """Number of its launches."""
    workers: Count = 0
    """Least number that no worker of these launches has."""
    rank_s: float = 0.0
    """Seconds of all their evaluations; their journals do not say how many ranks a worker had."""
    final: Count = 0
    """Number of individuals that ended and count."""
    pool: tuple[Id, ...] = ()
    """Individuals that were begun and did not end."""
    resting: tuple[Id, ...] = ()
    """Pruned individuals that count and may go on."""
    paused: bool = False
    """Whether nothing new may begin."""


class Joined(LedgerEntry, kw_only=True, frozen=True):
    """A launch takes part from now on."""

    launch: Number
    """Number of the launch: the next after that of the last to join."""
    workers: Number
    """Number of its workers, numbered from ``first_worker``."""
    first_worker: Index
    """Least number that no worker of any launch has had."""
    first_island: Index = 0
    """Island that gets a worker first."""
    in_file: Limits | None = None
    """Limits of the launch's campaign file; None: as before."""
    ranks_per_worker: Number = 1
    """Number of ranks of its largest worker."""
    kinds: tuple[str, ...] = ()
    """Kind of search of each island."""
    hosts: tuple[str, ...] = ()
    """Names of the hosts of its ranks, that of its first rank first."""
    machines: tuple[str, ...] = ()
    """``hpo.journal.machine.Machine.identity`` of these hosts."""
    supervisor: str = ""
    """Token of the ``hpo run`` that started it and watches it; "" without one."""
    job: str = ""
    """Attempt at a job of the scheduler, such as "123.0"; "" without one."""
    devices: str = ""
    """Devices that its first rank may use, such as "4 NVIDIA H100"; "" for none."""
    points: tuple[dict[str, Scalar], ...] = ()
    """Configurations of its task and campaign file to evaluate before any that is bred, beside those given before."""
    submitted: Count = 0
    """Number of the last entry when the launch was submitted: a later stop holds for it."""


class Drew(LedgerEntry, kw_only=True, frozen=True):
    """A launch takes units of the budget, of which each is one individual to evaluate."""

    launch: Number
    fresh: Count = 0
    """Number of units for individuals that the launch will breed."""
    ids: tuple[Id, ...] = ()
    """Individuals of the pool, and resting individuals that go on."""
    points: tuple[Count, ...] = ()
    """Given points, by their numbers: from 0, those of ``Opened`` before those that were enqueued."""


class UnitsReturned(LedgerEntry, kw_only=True, frozen=True, tag="returned"):
    """A launch gives units back that it drew and did not begin."""

    launch: Number
    fresh: Count = 0
    ids: tuple[Id, ...] = ()
    points: tuple[Count, ...] = ()


class Closed(LedgerEntry, kw_only=True, frozen=True):
    """A launch takes no more part: of its journals the bytes within ``lengths`` count, and no later bytes."""

    launch: Number
    by: Count
    """Number of the launch that closed it, its own where it ended by itself; 0 for a person."""
    reason: str
    exit: int | None = None
    """Exit code, where the launch ended by itself."""
    lengths: dict[Index, tuple[Count, ...]] = {}
    """Bytes that count of each part of each worker's journal, by the worker's number."""
    final: Count = 0
    """Number of individuals that ended within these lengths, and count."""
    rank_s: float = 0.0
    """Seconds of all evaluations that ended within these lengths, each times the ranks of its worker."""
    pool: tuple[Id, ...] = ()
    """Individuals that it drew or began, and did not end."""
    points: tuple[Count, ...] = ()
    """Given points that it drew and did not begin."""
    resting: tuple[Id, ...] = ()
    """Pruned individuals that ended in it or that it drew and did not begin: they count as ``final``, and may go on."""
    in_place: tuple[Id, ...] = ()
    """Those of ``pool`` and ``resting`` in whose directories no process may still write: whoever draws them goes on
    there, and copies the directories of all others. An individual that the launch drew to copy it, and did not begin,
    is none of them."""


if TYPE_CHECKING:
    AnyRequest = Request
else:
    AnyRequest = Union[Stop, Go, Pause, Unpause, Drain, Retry, Enqueue, Set, Recount]  # noqa: UP007


class Commanded(LedgerEntry, kw_only=True, frozen=True, tag="command"):
    """A person gave a command."""

    request: AnyRequest
    pool: tuple[Id, ...] = ()
    """Individuals that ended in closed launches and count no more, because ``hpo retry`` has them evaluated again."""
    again: tuple[Id, ...] = ()
    """Individuals that ended in open launches, which evaluate them again for ``hpo retry``."""


class Completed(LedgerEntry, kw_only=True, frozen=True):
    """The campaign has reached its end: nothing more is drawn. Whoever finds that all launches are closed and nothing
    is left appends it; and, with a reason, a launch that finds that the campaign is to end, whatever others hold."""

    final: Count
    """Number of individuals that ended and count."""
    reason: str = ""
    """Reason why it ends before its budget is used up, whatever is left in the pool; "" where it is used up. It begins
    with one of ``hpo.islands.end_reasons.EARLY`` and a colon."""

    @property
    def name(self) -> str:
        """The reason in short, as launches end for it."""
        return self.reason.partition(":")[0]


class UnknownEntry(ValueError):
    """The line is whole, and no entry that this version knows."""


_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(Union[tuple(LedgerEntry.__subclasses__())])  # noqa: UP007


def encode(entry: LedgerEntry) -> bytes:
    """``entry`` as one line, newline included."""
    return line_of(entry)


def decode(line: bytes) -> LedgerEntry:
    """The entry in ``line``.

    Raises:
        NotWhole: the line is cut off, or does not fit its checksum.
        UnknownEntry: a later version or a person wrote it. Unlike records of journals such entries cannot be skipped,
            as the budget that is left follows from all of them.
    """
    check_line(line)
    try:
        entry: LedgerEntry = _decoder.decode(line[:-TAIL_BYTES] + b"}")
    except (ValueError, RecursionError) as error:
        raise UnknownEntry(str(error)) from error
    return entry


def digest(line: bytes) -> str:
    """Digest of an entry's ``line`` that the next entry names: 16 hexadecimal digits."""
    return hashlib.blake2b(line, digest_size=8).hexdigest()
