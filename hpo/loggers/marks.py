"""What a sink has got of a campaign: a file in the sink's own folder, so that nothing is written twice, by whichever
process and from whichever host."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from hpo.errors import CampaignError, UsageError
from hpo.journal.durable import write_atomically

_NAME, _LOCK = "written.json", ".lock"
VERSION = 1
_LOOK_S = 0.2


class Mark(msgspec.Struct, array_like=True):
    """What is written of an individual: reports and samples up to these times (Unix seconds), and how it had ended,
    "" where it had not."""

    reported: float = 0.0
    sampled: float = 0.0
    ended: str = ""


class _Written(msgspec.Struct, kw_only=True):
    version: int
    campaign: str
    marks: dict[str, Mark]


class Marks:
    """The marks of a campaign's individuals by id. One process at a time has those of a folder.

    Args:
        folder: of the sink; it is made where it is missing.
        campaign: key of the campaign.
        patience_s: how long another process is waited for that has the folder.

    Raises:
        UsageError: the folder has the log of another campaign, or another process writes there.
        CampaignError: it cannot be written.
    """

    def __init__(self, folder: Path, campaign: str, *, patience_s: float = 0.0) -> None:
        self._path = folder / _NAME
        self._campaign = campaign
        try:
            for one in (folder.parent, folder):
                if one.is_symlink():
                    raise UsageError(
                        f"{one} is a symbolic link, which is not followed. Name the directory itself by "
                        "--directory, or as directory in [logging]."
                    )
                with suppress(FileExistsError):
                    one.mkdir(parents=one is not folder)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._lock = os.open(folder / _LOCK, flags, 0o666)
            self._take(folder, patience_s)
            self.by_id = self._read()
        except OSError as error:
            raise _unusable(folder, error) from error

    def save(self) -> None:
        """Put the marks on disk, all at once.

        Raises:
            CampaignError: they could not be.
        """
        written = _Written(version=VERSION, campaign=self._campaign, marks=self.by_id)
        try:
            write_atomically(self._path, msgspec.json.encode(written), durable=False)
        except OSError as error:
            raise _unusable(self._path, error) from error

    def reload(self) -> None:
        """Forget marks that were not saved; CampaignError where the file cannot be read."""
        try:
            self.by_id = self._read()
        except OSError as error:
            raise _unusable(self._path, error) from error

    def close(self) -> None:
        """Leave the folder to others."""
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
            except OSError:  # a file system without such locks
                return
            time.sleep(_LOOK_S)

    def _read(self) -> dict[str, Mark]:
        try:
            file = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return {}
        with open(file, "rb") as content:
            data = content.read()
        try:
            written = msgspec.json.decode(data, type=_Written)
        except (ValueError, RecursionError):
            raise CampaignError(
                f"{self._path} is damaged, so what has been written is not known. Remove the directory to write all "
                "anew, or name another."
            ) from None
        if written.campaign != self._campaign or written.version != VERSION:
            raise UsageError(
                f"{self._path.parent} has the log of another campaign. Name another directory by --directory, or as "
                "directory in [logging]."
            )
        return written.marks


def _unusable(path: Path, error: OSError) -> CampaignError:
    return CampaignError(
        f"{error.filename or path} cannot be used for what a sink has got ({error.strerror or error}). Name a "
        "directory that you may write by --directory, or as directory in [logging]."
    )
