"""Marks of the records that a sink has, in a file of the sink's folder.

With them no record is written twice, whichever process on whichever host continues the log.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from hpo.errors import CampaignError, UsageError
from hpo.journal.durable import write_atomically

_NAME, _LOCK = "written.json", ".lock"
_FORMAT = 1
_LOOK_S = 0.2
"""Seconds between two attempts to lock the folder."""


class Mark(msgspec.Struct, array_like=True):
    """Records of an individual that are in the sink: times of its last report and of the last sample of its host, in
    Unix seconds; status and time of its end, "" before that."""

    reported: float = 0.0
    sampled: float = 0.0
    ended: str = ""


class _MarksFile(msgspec.Struct, kw_only=True):
    version: int
    campaign: str
    marks: dict[str, Mark]


class Marks:
    """Marks of a campaign's individuals by id; a single process at a time can have those of a folder.

    ``campaign``: key of the campaign; ``patience_s``: seconds to wait while another process has the folder. UsageError
    where the folder has the log of another campaign, or another process writes to it; CampaignError where it cannot be
    written.
    """

    def __init__(self, folder: Path, campaign: str, *, patience_s: float = 0.0) -> None:
        self._path = folder / _NAME
        self._campaign = campaign
        self.by_id: dict[str, Mark] = {}
        with self._usable():
            # Links are refused, as their targets may be outside of the directories that the user named.
            for place in (folder.parent, folder):
                if place.is_symlink():
                    raise UsageError(
                        f"{place} is a symbolic link, which is not followed. Name the directory itself by "
                        "--directory, or as directory in [logging]."
                    )
                with suppress(FileExistsError):
                    place.mkdir(parents=place is not folder)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._lock = os.open(folder / _LOCK, flags, 0o666)
            self._take(folder, patience_s)
        self.load()

    def save(self) -> None:
        """Write all marks to the file, atomically."""
        written = _MarksFile(version=_FORMAT, campaign=self._campaign, marks=self.by_id)
        with self._usable():
            # Not synced to disk: after a crash of the host, records are at worst written again.
            write_atomically(self._path, msgspec.json.encode(written), durable=False)

    def close(self) -> None:
        """Release the folder for other processes."""
        os.close(self._lock)

    def _take(self, folder: Path, patience_s: float) -> None:
        end = time.monotonic() + patience_s
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise UsageError(
                        f"another process, of `hpo log` or of a campaign that runs, writes {folder}. Let it, or name "
                        "another directory by --directory."
                    ) from None
            except OSError:  # a file system without locks: the user has to start a single process
                return
            time.sleep(_LOOK_S)

    def load(self) -> None:
        """Restore the saved marks, none where there is no file yet."""
        with self._usable():
            try:
                file = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError:
                self.by_id = {}
                return
            with open(file, "rb") as content:
                data = content.read()
        try:
            written = msgspec.json.decode(data, type=_MarksFile)
        except (ValueError, RecursionError):
            raise CampaignError(
                f"{self._path} is damaged, so what has been written is not known. Remove the directory to write "
                "everything again, or name another."
            ) from None
        if written.campaign != self._campaign or written.version != _FORMAT:
            raise UsageError(
                f"{self._path.parent} has the log of another campaign. Name another directory by --directory, or as "
                "directory in [logging]."
            )
        self.by_id = written.marks

    @contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CampaignError(
                f"{error.filename or self._path} cannot be used for the files of a sink ({error.strerror or error}). "
                "Name a directory that you may write by --directory, or as directory in [logging]."
            ) from error
