"""Writes to a campaign's directory that survive a crash and a power cut."""

from __future__ import annotations

import errno
import os
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hpo.errors import CampaignError

_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV, errno.EMLINK)


def write_atomically(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replace the content of ``path``: a reader, or a crash, sees all of the old or all of the new. ``durable``: the
    content survives a power cut after the return. OSError as the file system says; ``path`` is unchanged then."""
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with open(partial, "wb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError:
        with suppress(OSError):
            partial.unlink()
        raise
    if durable:
        sync_directory(path.parent)


def read_bounded(path: Path, most: int) -> tuple[bytes, float]:
    """Content of a file, and its time by the clock of its storage. It neither waits for the writer of a pipe nor
    follows a link out of the directory. OSError as the file system says; ValueError where ``path`` is no file of at
    most that many bytes."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(handle, "rb") as file:
        # Attributes after the file was opened: those of an NFS client may be a minute old otherwise.
        found = os.fstat(handle)
        data = file.read(most + 1) if stat.S_ISREG(found.st_mode) else b""
        if not stat.S_ISREG(found.st_mode) or len(data) > most:
            raise ValueError(f"{path} is no file of at most {most} bytes")
        return data, found.st_mtime


def create_whole(path: Path, data: bytes) -> None:
    """Make the file ``path`` with its content, unless it exists. OSError as the file system says; CampaignError where
    it makes no hard links."""
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with open(partial, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError), links_needed(path.parent):
            os.link(partial, path)
    finally:
        with suppress(OSError):
            partial.unlink()
    sync_directory(path.parent)


@contextmanager
def links_needed(folder: Path) -> Iterator[None]:
    """Context in which a hard link is made in ``folder``; CampaignError where the file system makes none."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_LINKS:
            raise CampaignError(
                f"{folder} is on a file system that refuses hard links ({error.strerror}), and launches agree by them. "
                "Put the campaign's directory on another file system."
            ) from error
        raise


def sync_directory(directory: Path) -> None:
    """Put the names in ``directory`` on disk: without this a power cut may take a new file, synced as it is."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        # Some network file systems cannot sync a directory; there the names are safe once the server has answered.
        with suppress(OSError):
            os.fsync(handle)
    finally:
        os.close(handle)
