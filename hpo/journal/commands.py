"""Commands to a campaign, from any machine that sees its directory, whether it runs or not.

Each is a file in ``DIR/commands/`` until rank 0 has applied it; then it is a record of the journal (``Command``), and
the file is removed. A command whose id is on record is not applied again, so that neither a crash between the two nor a
file that cannot be removed does any harm.
A ``stop`` also leaves ``DIR/stop``, which holds until a person starts the campaign again."""

from __future__ import annotations

import errno
import os
import pwd
import re
import secrets
import socket
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Union

import msgspec

from hpo.errors import CampaignError, UsageError
from hpo.individual import CRASHED, FAILED, INVALID, TIMEOUT, Scalar
from hpo.journal.durable import sync_directory, write_atomically
from hpo.journal.files import journal_files, journal_name
from hpo.journal.records import Command, Launched, Record, decode

MOST_BYTES = 1 << 20
"""Largest size of a command's file."""
_FOLDER, _STOP = "commands", "stop"
_NAME = re.compile(r"([0-9]{20}-[0-9a-f]{16})\.json")
_SUFFIX = ".json"
_RECORD = b'{"type":"command",'
_REFUSED = ".refused"
"""Suffix of files that are no commands, once that was logged."""
# Errors of a symbolic link, another user's file, a socket: none of them passes.
_UNREADABLE = (errno.ELOOP, errno.EMLINK, errno.EACCES, errno.EPERM, errno.ENXIO)

RETRIED = (FAILED, CRASHED, TIMEOUT, INVALID)
"""Statuses of failures, which ``hpo retry`` evaluates again."""

_Worker = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,9}-[0-9]{1,9}\Z")]
_Status = Literal["failed", "crashed", "timeout", "invalid"]


class Request(
    msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True, tag_field="name", tag=str.lower
):
    """A command that a person gave."""

    time: float
    """Unix seconds."""
    by: Annotated[str, msgspec.Meta(max_length=500)]
    """User and host."""


class Stop(Request, kw_only=True, frozen=True):
    """End the launch, as a signal would."""


class Pause(Request, kw_only=True, frozen=True):
    """Start nothing new, in later launches either."""


class Unpause(Request, kw_only=True, frozen=True):
    """End a pause."""


class Drain(Request, kw_only=True, frozen=True):
    """Give ``worker``, named by island and number, nothing more in this launch."""

    worker: _Worker


class Retry(Request, kw_only=True, frozen=True):
    """Evaluate individuals again that ended with one of ``statuses``."""

    statuses: tuple[_Status, ...]


class Enqueue(Request, kw_only=True, frozen=True):
    """Evaluate ``points`` before anything that is bred; they count for the budget."""

    points: list[dict[str, Scalar]]


class Set(Request, kw_only=True, frozen=True):
    """Change the budget or the deadline; None stays as it is."""

    evaluations: int | None = None
    deadline_s: float | None = None

    @property
    def values(self) -> dict[str, int | float]:
        given = {"evaluations": self.evaluations, "deadline_s": self.deadline_s}
        return {key: value for key, value in given.items() if value is not None}


_REQUEST: Any = Union[tuple(Request.__subclasses__())]  # noqa: UP007
_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_REQUEST)


def name_of(request: Request) -> str:
    """Name of the command on the command line."""
    return str(request.__struct_config__.tag)


def asked() -> dict[str, Any]:
    """``time`` and ``by`` of a request that this process makes now."""
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # as in many containers
        user = str(os.geteuid())
    return {"time": time.time(), "by": f"{user}@{socket.gethostname()}"}


# --- files ----------------------------------------------------------------------------------------------------------


def give(directory: Path, request: Request) -> str:
    """Leave ``request`` for the campaign in ``directory`` and return the command's id.

    Raises:
        UsageError: it is too large.
        CampaignError: it cannot be written.
    """
    data = msgspec.json.encode(request)
    if len(data) > MOST_BYTES:
        raise UsageError(
            f"{name_of(request)}: {len(data)} bytes are more than the {MOST_BYTES} that a command may have. Give it in "
            "parts"
        )
    folder = directory / _FOLDER
    try:
        folder.mkdir(exist_ok=True)
        if folder.is_symlink():
            raise NotADirectoryError(errno.ENOTDIR, "it is a symbolic link, which is not followed")
        # It follows those that wait, also those from a host whose clock is ahead.
        before = [int(match[1][:20]) for match in map(_NAME.fullmatch, os.listdir(folder)) if match]
        number = min(max(time.time_ns(), 1 + max(before, default=0)), 10**20 - 1)
        identity = f"{number:020d}-{secrets.token_hex(8)}"
        write_atomically(folder / f"{identity}{_SUFFIX}", data + b"\n")
    except OSError as error:
        raise CampaignError(
            f"{folder} cannot be written ({error.strerror or error}), so the command was not given. Commands are for "
            "those who may write the campaign's directory."
        ) from error
    return identity


def stop_pending(directory: Path) -> bool:
    """Whether ``hpo stop`` holds: it was given, and no person has started the campaign since."""
    if os.path.lexists(directory / _STOP):
        return True
    requests = _all_requests(directory)
    if not any(isinstance(request, Stop) for _, request in requests):
        return False
    # Where its file cannot be removed, the launch that a person began after it shows that it holds no more.
    applied, last = _on_record(directory)
    return any(
        isinstance(request, Stop) and applied.get(identity, last) == last for identity, request in requests
    )


def clear_stop(directory: Path) -> None:
    """A person starts the campaign: no earlier ``hpo stop`` holds any more; CampaignError if it cannot be removed."""
    stops = [identity for identity, request in _all_requests(directory) if isinstance(request, Stop)]
    applied = _on_record(directory)[0] if stops else {}
    for identity in [None, *stops]:
        path = directory / _STOP if identity is None else _file(directory, identity)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            if identity not in applied:
                raise CampaignError(
                    f"{path} cannot be removed ({error.strerror or error}), and while it is there `hpo stop` holds. "
                    "Remove it."
                ) from error


def waiting(directory: Path) -> int:
    """Number of commands that have not been applied yet."""
    requests = _all_requests(directory)
    applied = _on_record(directory)[0] if requests else {}
    return sum(identity not in applied for identity, _ in requests)


def _all_requests(directory: Path) -> list[tuple[str, Request]]:
    return Inbox(directory).look().requests


def _on_record(directory: Path) -> tuple[dict[str, int], int]:
    """Launch that applied each command on record, by the command's id; and the last launch. Commands in journals that
    cannot be read count as new."""
    found: dict[str, int] = {}
    last = 0
    with suppress(CampaignError):
        for path in journal_files(directory):
            place = journal_name(path)
            assert place is not None
            last = max(last, place.launch)
            if (place.island, place.worker) == (0, 0):  # the journals of rank 0
                found.update(dict.fromkeys(_commands_in(path), place.launch))
    return found, last


def _commands_in(path: Path) -> list[str]:
    found = []
    with suppress(OSError), open(path, "rb") as file:
        for line in file:
            if line.startswith(_RECORD):
                with suppress(ValueError):
                    record = decode(line)
                    found += [record.id] if isinstance(record, Command) else []
    return found


def _file(directory: Path, identity: str) -> Path:
    return directory / _FOLDER / f"{identity}{_SUFFIX}"


class Look(NamedTuple):
    """Files that were found in ``commands/``."""

    requests: list[tuple[str, Request]]
    """Requests by id, in the order in which they were given."""
    nonsense: list[tuple[str, str]]
    """Names of files that are no commands, with the reason."""


class _NoCommand(ValueError):
    """The file holds no command."""


class Inbox:
    """The commands in ``directory``. Errors of the storage pass: until then nothing is found."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ignored: set[str] = set()
        self.error: OSError | None = None
        """Why the last ``look`` may have missed something."""

    def look(self) -> Look:
        found = Look([], [])
        self.error = None
        try:
            folder = os.open(self._directory / _FOLDER, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError as error:
            if error.errno != errno.ENOENT:
                self.error = error
            return found
        try:
            for name in self._names(folder):
                match = _NAME.fullmatch(name)
                try:
                    if match is None:
                        raise _NoCommand("a command has another name")
                    found.requests.append((match[1], _read(name, folder)))
                except _NoCommand as error:
                    found.nonsense.append((name, str(error)))
                except OSError as error:
                    if error.errno in _UNREADABLE:
                        found.nonsense.append((name, error.strerror or str(error)))
                    elif error.errno != errno.ENOENT:
                        self.error = error
        finally:
            os.close(folder)
        return found

    def _names(self, folder: int) -> list[str]:
        try:
            names = os.listdir(folder)
        except OSError as error:
            self.error = error
            return []
        known = (name for name in names if name not in self._ignored)
        return sorted(name for name in known if not name.startswith(".") and not name.endswith(_REFUSED))

    def set_aside(self, name: str) -> None:
        """Ignore this file from now on."""
        self._ignored.add(name)
        path = self._directory / _FOLDER / name
        with suppress(OSError):
            path.rename(path.with_name(name + _REFUSED))

    def finish(self, identity: str, request: Request) -> None:
        """Remove the file of a command that is on record. Where another user's folder does not allow that, the file is
        ignored; after another error it is found again, and known."""
        try:
            if isinstance(request, Stop):
                flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW
                os.close(os.open(self._directory / _STOP, flags, 0o666))
                sync_directory(self._directory)
            _file(self._directory, identity).unlink(missing_ok=True)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM):
                self._ignored.add(f"{identity}{_SUFFIX}")


def _read(name: str, folder: int) -> Request:
    # Neither waits for whoever might write into a pipe, nor follows a link out of the directory.
    handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise _NoCommand("it is no plain file")
        data = b""
        while len(data) <= MOST_BYTES and (piece := os.read(handle, MOST_BYTES)):
            data += piece
    finally:
        os.close(handle)
    if len(data) > MOST_BYTES:
        raise _NoCommand(f"it has more than {MOST_BYTES} bytes")
    try:
        request: Request = _decoder.decode(data)
    except (ValueError, RecursionError) as error:
        raise _NoCommand(str(error)) from None
    return request


# --- records --------------------------------------------------------------------------------------------------------


def record_of(
    identity: str,
    request: Request,
    *,
    time: float,
    refused: str | None = None,
    in_file: Mapping[str, int | float | None] | None = None,
) -> Command:
    """Record of a command that was applied at ``time``, or ``refused`` for a reason. ``in_file``: the campaign file's
    values that ``hpo set`` replaces."""
    arguments: dict[str, Any] = msgspec.to_builtins(request)
    for key in ("name", "time", "by"):
        del arguments[key]
    return Command(
        id=identity,
        name=name_of(request),
        arguments=arguments,
        by=request.by,
        given=request.time,
        time=time,
        refused=refused,
        in_file=None if in_file is None else dict(in_file),
    )


def request_of(record: Command) -> Request | None:
    """The request that was applied; None where it was refused, or this version does not know it."""
    if record.refused is not None:
        return None
    try:
        request: Request = msgspec.convert(
            {**record.arguments, "name": record.name, "time": record.given, "by": record.by}, _REQUEST
        )
    except msgspec.ValidationError:
        return None
    return request


@dataclass
class Standing:
    """State that follows from the commands on record."""

    applied: set[str] = field(default_factory=set)
    """Ids of all commands."""
    paused: bool = False
    points: list[tuple[str, dict[str, Scalar]]] = field(default_factory=list)
    """Points that were enqueued, each with the id of its command."""
    # New value by key, and the campaign file's value when it was set.
    _set: dict[str, tuple[int | float, int | float | None]] = field(default_factory=dict)

    def take(self, record: Record) -> None:
        """Count ``record``, if it is about a launch or a command."""
        if isinstance(record, Launched):
            self.launched(record)
        elif isinstance(record, Command):
            self.add(record)

    def launched(self, record: Launched) -> None:
        """Forget values of ``hpo set`` where the campaign file has changed since."""
        for key, (value, _) in list(self._set.items()):
            if getattr(record, key) != value:
                del self._set[key]

    def add(self, record: Command) -> Request | None:
        """Count a command; the request that had an effect, if any."""
        if record.id in self.applied:
            return None
        self.applied.add(record.id)
        request = request_of(record)
        if isinstance(request, (Pause, Unpause)):
            self.paused = isinstance(request, Pause)
        elif isinstance(request, Enqueue):
            self.points += [(record.id, point) for point in request.points]
        elif isinstance(request, Set):
            before = record.in_file or {}
            self._set.update({key: (value, before.get(key)) for key, value in request.values.items()})
        return request

    def evaluations(self, in_file: int | None) -> int | None:
        """Budget that holds where the campaign file has the budget ``in_file``."""
        value = self._changed("evaluations", in_file)
        return None if value is None else int(value)

    def deadline_s(self, in_file: float | None) -> float | None:
        """Deadline that holds where the campaign file has the deadline ``in_file``."""
        return self._changed("deadline_s", in_file)

    def _changed(self, key: str, in_file: int | float | None) -> int | float | None:
        value, before = self._set.get(key, (in_file, in_file))
        return value if in_file == before else in_file
