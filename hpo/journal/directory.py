"""A campaign's directory: whose it is (``campaign.json``) and who is at work in it (``lock``)."""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from hpo.errors import CampaignError
from hpo.journal.records import sync_directory
from hpo.terminal import quoted

VERSION = 1
STALE_S = 60.0
"""A lock held on another machine counts as abandoned when it has not been refreshed for so many seconds."""

Identity = dict[str, Any]

# Another seed draws other configurations from now on, which makes no other campaign.
_NOT_COMPARED = ("created", "seed")


def write_atomically(path: Path, data: bytes) -> None:
    """Replace the content of ``path``: a reader, or a crash, sees all of the old or all of the new.

    Raises:
        OSError: as the file system says; ``path`` is unchanged then.
    """
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with open(partial, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError:
        with suppress(OSError):
            partial.unlink()
        raise
    sync_directory(path.parent)


def stop_file(directory: Path) -> Path:
    """What exists while the campaign in ``directory`` is asked to stop, or was by hand at last."""
    return directory / "stop"


def write_identity(directory: Path, identity: Mapping[str, object]) -> None:
    """Make ``directory`` the home of the campaign that ``identity`` describes.

    Args:
        identity: JSON-able; by agreement ``task`` (its reference), ``description`` (``Task.describe()``),
            ``seed``. The format's ``version`` and ``created`` (Unix seconds) are added.

    Raises:
        CampaignError: the directory cannot be written.
    """
    content = {"version": VERSION, **identity, "created": identity.get("created", time.time())}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_atomically(
            directory / "campaign.json", orjson.dumps(content, option=orjson.OPT_INDENT_2) + b"\n"
        )
    except OSError as error:
        raise _unwritable(directory, error) from error


def read_identity(directory: Path) -> Identity:
    """What :func:`write_identity` wrote.

    Raises:
        CampaignError: there is no campaign in ``directory``, or its identity cannot be read.
    """
    path = directory / "campaign.json"
    try:
        identity = orjson.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise CampaignError(
            f"{directory} holds no campaign (it has no campaign.json). Name the directory that a campaign "
            "file gives as `directory`; it is relative to where hpo was started."
        ) from None
    except OSError as error:
        raise CampaignError(
            f"{path} cannot be read ({error.strerror or error}). Give read access there."
        ) from error
    except orjson.JSONDecodeError as error:
        raise CampaignError(
            f"{path} is not valid JSON ({error}). It is written once and never edited: restore it, or start "
            "the campaign in a new directory."
        ) from error
    if not isinstance(identity, dict) or identity.get("version") != VERSION:
        version = identity.get("version") if isinstance(identity, dict) else None
        raise CampaignError(
            f"{path} has version {version!r}; this hpo reads version {VERSION}. Use the hpo that wrote it, "
            "or start the campaign in a new directory."
        )
    return identity


def differences(recorded: object, given: object, name: str = "") -> list[str]:
    """How two JSON-able values differ: ``["seed was 0, is 1"]``. Types count: 1 is not 1.0."""
    if isinstance(recorded, Mapping) and isinstance(given, Mapping):
        found = []
        for key in [*recorded, *(key for key in given if key not in recorded)]:
            path = f"{name}.{key}" if name else str(key)
            if key not in given:
                found.append(f"{path} is gone (it was {_text(recorded[key])})")
            elif key not in recorded:
                found.append(f"{path} is new ({_text(given[key])})")
            else:
                found += differences(recorded[key], given[key], path)
        return found
    if _text(recorded) == _text(given):
        return []
    return [f"{name or 'the value'} was {_text(recorded)}, is {_text(given)}"]


def _text(value: object) -> str:
    return orjson.dumps(value).decode()


def check_identity(
    directory: Path,
    identity: Mapping[str, object],
    compare: Callable[[Identity, Identity], list[str]] = differences,
) -> Identity | None:
    """Whether the campaign that ``identity`` describes may go on in, or begin in, ``directory``.

    Args:
        identity: as for :func:`write_identity`.
        compare: from the recorded and the given identity (neither has
            ``created`` or ``seed``) to sentences that say what
            differs.

    Returns:
        The recorded identity, or None where no campaign has begun yet.

    Raises:
        CampaignError: another campaign is in the directory (what differs is listed), or it holds other files.
    """
    if not (directory / "campaign.json").exists():
        try:
            others = sorted(entry for entry in os.listdir(directory) if not _is_ours(entry))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unwritable(directory, error) from error
        if others:
            raise CampaignError(
                f"{directory} is not empty (it holds {others[0]!r}) and is no campaign's directory. Name a "
                "new or empty directory."
            )
        return None
    recorded = read_identity(directory)
    mine: Identity = orjson.loads(orjson.dumps({"version": VERSION, **identity}))
    found = compare(_comparable(recorded), _comparable(mine))
    if found:
        raise CampaignError(
            f"{directory} holds another campaign: {'; '.join(found)}. Undo the change to go on with it, or "
            "give this one a directory of its own, which can start from these results: known = "
            f"[{json.dumps(str(directory), ensure_ascii=False)}]."
        )
    return recorded


def _is_ours(entry: str) -> bool:
    return entry == "lock" or entry.startswith((".lock.", ".campaign.json."))


def _comparable(identity: Identity) -> Identity:
    return {key: value for key, value in identity.items() if key not in _NOT_COMPARED}


def _unwritable(directory: Path, error: OSError) -> CampaignError:
    return CampaignError(
        f"{directory} cannot be used as a campaign's directory ({error.strerror or error}). "
        "Name a directory that you may write."
    )


@dataclass(frozen=True, kw_only=True)
class Holder:
    """The process that holds a campaign's lock."""

    host: str
    machine: str
    """Boot and PID namespace: only there can ``pid`` be looked up."""
    pid: int
    process_started: int | None
    """Clock ticks after boot: tells a process from a later one with its ``pid``; None if unknown."""
    time: float
    token: str

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.time))
        return f"process {self.pid} on {self.host} since {since}"


def _machine() -> str:
    parts = [socket.gethostname()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def _process_started(pid: int) -> int | None:
    """Clock ticks after boot at which process ``pid`` started; None without such a process or /proc."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *fields = stat.rpartition(")")[2].split()
    # A zombie does nothing any more; only its parent has yet to notice.
    return None if state in "ZX" else int(fields[18])


def _is_running(holder: Holder) -> bool:
    if holder.process_started is not None:
        return _process_started(holder.pid) == holder.process_started
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _is_sound(holder: Holder) -> bool:
    """Whether its fields are what they are called."""
    return (
        all(type(one) is str for one in (holder.host, holder.machine, holder.token))
        and type(holder.pid) is int
        and 0 < holder.pid < 2**31
        and (holder.process_started is None or type(holder.process_started) is int)
        and type(holder.time) in (int, float)
        and 0 <= holder.time < 2**33
    )


def _read_lock(path: Path) -> tuple[Holder | None, bool] | None:
    """Who the lock file names (None while it is being written) and whether it is held; None if absent."""
    try:
        data = path.read_bytes()
        age = time.time() - path.stat().st_mtime
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _unwritable(path.parent, error) from error
    try:
        holder = Holder(**orjson.loads(data))
    except (orjson.JSONDecodeError, TypeError):
        return None, age < STALE_S
    if not _is_sound(holder):
        return None, age < STALE_S
    return holder, _is_running(holder) if holder.machine == _machine() else age < STALE_S


def holder(directory: Path) -> Holder | None:
    """Who is at work on the campaign in ``directory``; None if nobody is. A dead holder is nobody."""
    found = _read_lock(directory / "lock")
    return found[0] if found and found[1] else None


class Lock:
    """The right to be the one campaign at work in a directory; from :func:`acquire`."""

    def __init__(self, path: Path, holder: Holder) -> None:
        self.path = path
        self.holder = holder

    def refresh(self) -> None:
        """Show other machines that the holder lives: to be called every few seconds.

        Raises:
            CampaignError: another campaign has taken the lock, because this one was not seen for too long.
        """
        found = _read_lock(self.path)
        if found is None or (found[0] is not None and found[0].token != self.holder.token):
            by = f" by {found[0]}" if found else ""
            raise CampaignError(
                f"{self.path} was taken away{by} while this campaign was at work. This one stops, so that "
                "the two do not mix; start it again when the other has finished."
            )
        with suppress(OSError):
            os.utime(self.path)

    def release(self) -> None:
        """Let others in; a lock that was taken away is left to its new holder."""
        found = _read_lock(self.path)
        if found and found[0] and found[0].token == self.holder.token:
            with suppress(FileNotFoundError):
                self.path.unlink()


def acquire(directory: Path) -> Lock:
    """Become the one campaign at work in ``directory``, which is made if need be.

    A dead holder's lock is taken over: one that ran here and whose process is gone, or that ran elsewhere and
    has not refreshed the lock for ``STALE_S`` seconds. File locks are no alternative: across the nodes of a
    cluster they are not to be relied on.

    Raises:
        CampaignError: another campaign holds the lock (the text says which process, where), or the directory
            cannot be written.
    """
    path = directory / "lock"
    pid = os.getpid()
    mine = Holder(
        host=socket.gethostname(),
        machine=_machine(),
        pid=pid,
        process_started=_process_started(pid),
        time=time.time(),
        token=uuid.uuid4().hex,
    )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        data = orjson.dumps(asdict(mine)) + b"\n"
        # One turn is enough unless others acquire or release the lock at the same moment.
        for _ in range(10):
            if _create(path, data):
                return Lock(path, mine)
            found = _read_lock(path)
            if found and found[1]:
                raise _refused(directory, found[0])
            if found and _take_over(path, found[0], data):
                return Lock(path, mine)
    except OSError as error:
        raise _unwritable(directory, error) from error
    raise _refused(directory, None)


def _create(path: Path, data: bytes) -> bool:
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        return False
    try:
        with open(handle, "wb") as file:
            file.write(data)
    except OSError:  # an empty one would be in the way of the next
        with suppress(OSError):
            path.unlink()
        raise
    return True


def _take_over(path: Path, stale: Holder | None, data: bytes) -> bool:
    """Put ``data`` in the place of a dead holder's lock; False if another is doing so, or has done it.

    Of several that found the same dead holder, only the one that could create the claim on it may go on, and
    only if the lock is still the one that it found: so none replaces the lock of another that was quicker.
    """
    claim = path.with_name(f".lock.{stale.token if stale else 'unreadable'}")
    if not _create(claim, data):
        claimed = _read_lock(claim)
        if claimed and not claimed[1]:
            claim.unlink(missing_ok=True)
        return False
    try:
        if _read_lock(path) != (stale, False):
            return False
        write_atomically(path, data)
        return True
    finally:
        claim.unlink(missing_ok=True)


def _refused(directory: Path, by: Holder | None) -> CampaignError:
    return CampaignError(
        f"{directory} is in use by {by or 'another campaign that has just started'}. Let it finish, stop it "
        f"with `hpo stop {quoted(directory)}`, or name another directory."
    )
