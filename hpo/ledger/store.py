"""Storage of a ledger: numbered lines, of which each is put in place by one writer and never changes.

A store needs two operations, so that a database could serve as well: put a line in the place N + 1 unless another is
there, and read all lines from a place on. ``FileStore`` keeps each line in a file of its own. link(2) puts it in place,
which is atomic on local and on network file systems, and the file is whole and synced by then."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Protocol

from hpo.errors import CampaignError
from hpo.journal.durable import links_needed, sync_directory

MOST_BYTES = 1 << 26
"""Largest size of an entry's file: one that is larger was not made here."""


class Store(Protocol):
    """Storage of numbered lines, from 1, that many writers share."""

    def append(self, after: int, line: bytes) -> bool:
        """Put ``line`` in the place ``after`` + 1, unless another line is there: then False.

        The caller has read the places up to ``after``. OSError: the line may be there or not, now or later; reading
        shows which. The same line may be tried again.
        """

    def read(self, start: int) -> Iterator[bytes]:
        """All lines from the place ``start`` on, up to the first that is free. Caches of a network file system may
        hide the last lines for a minute. OSError: no more can be read for now."""


class Folder:
    """Files in one directory, by name. It is opened for each operation, as a handle would outlive a file server. No
    symbolic link is followed. All methods raise OSError, as the file system says."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, name: str, data: bytes) -> None:
        """Make the file ``name``, with its content on disk, for all who may read the directory."""
        with self._opened() as folder:
            its = os.fstat(folder)
            handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=folder)
        with open(handle, "wb") as file:
            # Whatever the writer's umask and group are: an entry that others cannot read would end their launches.
            with suppress(OSError):
                os.fchown(handle, -1, its.st_gid)
            with suppress(OSError):
                os.fchmod(handle, 0o600 | its.st_mode & 0o044)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def read(self, name: str) -> bytes:
        """Content of the file ``name``; FileNotFoundError without one, CampaignError if it is no plain file."""
        with self._opened() as folder:
            try:
                # Not to wait for whoever might write into a pipe.
                handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENXIO):  # a link, a socket
                    raise self._no_entry(name) from None
                raise
        try:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_BYTES:
                raise self._no_entry(name)
            with open(handle, "rb", closefd=False) as file:
                return file.read()
        finally:
            os.close(handle)

    def _no_entry(self, name: str) -> CampaignError:
        return CampaignError(f"{self.path / name} is no entry of a ledger. Move it out of the way.")

    def link(self, name: str, other: str) -> None:
        """Give the file ``name`` the name ``other``, too; FileExistsError if there is one."""
        with self._opened() as folder:
            os.link(name, other, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)

    def remove(self, name: str) -> None:
        """Remove the name ``name``."""
        with self._opened() as folder:
            os.unlink(name, dir_fd=folder)

    def sync(self) -> None:
        """Put the names on disk."""
        sync_directory(self.path)

    @contextmanager
    def _opened(self) -> Iterator[int]:
        try:
            handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except FileNotFoundError as error:  # it is no empty ledger
            raise OSError(errno.ESTALE, "the folder is gone", os.fspath(self.path)) from error
        try:
            yield handle
        finally:
            os.close(handle)


class FileStore:
    """``Store`` of the files ``00000001``, ``00000002`` and so on in ``folder``."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def append(self, after: int, line: bytes) -> bool:
        """Put ``line`` in the file of number ``after`` + 1, unless it exists: then False; see ``Store``.

        Raises:
            OSError: as the file system says; the file may be there or not.
            CampaignError: the file system makes no hard links.
            ValueError: ``line`` has more than ``MOST_BYTES`` bytes.
        """
        if len(line) > MOST_BYTES:  # nobody would read it
            raise ValueError(f"an entry of {len(line)} bytes is longer than the {MOST_BYTES} that are read")
        temporary, name = f".{secrets.token_hex(8)}", _name(after + 1)
        try:
            self._folder.write(temporary, line)
            with suppress(FileExistsError):
                self._link(temporary, name)
            # Only the content shows whose entry it is. Where the server's answer was lost, the repeated call finds the
            # link that the first one made; and some clients of NFS take that for granted and report success.
            placed = self._folder.read(name) == line
        finally:
            with suppress(OSError):
                self._folder.remove(temporary)
        if placed:
            self._folder.sync()
        return placed

    def _link(self, temporary: str, name: str) -> None:
        with links_needed(self._folder.path):
            self._folder.link(temporary, name)

    def read(self, start: int) -> Iterator[bytes]:
        """Content of the files from number ``start`` on; see ``Store``."""
        with suppress(FileNotFoundError):
            for number in count(start):
                yield self._folder.read(_name(number))


def _name(number: int) -> str:
    return f"{number:08d}"
