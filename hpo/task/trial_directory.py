"""Directory of one evaluation: its files are removed before it starts again, except for its output."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from pathlib import Path

from hpo.errors import describe_os_error
from hpo.individual import FAILED
from hpo.task.outcome import TaskOutcome

OUTPUT = "output-"
"""Prefix of the files with an evaluation's output; they stay when checkpoints are removed."""


class PlaceTaken(OSError):
    """Something else than a directory has the path of an individual's directory. It concerns this individual alone, any
    other OSError the storage and so all of them."""


def mode_of(path: Path) -> int | None:
    """Mode of ``path`` itself, links not followed; None for a missing path, OSError where the storage fails."""
    # Path.is_dir and the like hide some errors of the storage, which differ between versions of Python.
    try:
        return os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None


def refuse_link(path: Path) -> None:
    """Raise PlaceTaken where ``path`` is a symbolic link, as its target does not belong to the campaign."""
    if path.is_symlink():
        reason = "is a symbolic link, which hpo does not follow. Remove it, or put the directory itself there"
        raise PlaceTaken(errno.ELOOP, reason, str(path))


def check_place(path: Path) -> None:
    """Raise PlaceTaken where ``path`` exists and is no directory, or is a symbolic link."""
    refuse_link(path)
    mode = mode_of(path)
    if mode is not None and not stat.S_ISDIR(mode):
        raise PlaceTaken(errno.ENOTDIR, "is no directory. Remove it", str(path))


def make_directory(path: Path) -> None:
    """Make the directory ``path`` and, if missing, its parent."""
    # No more than the parent: the directories above are the campaign's. Where their file system is unmounted for a
    # while, new directories in its place would receive results, or prevent mounting it again.
    try:
        path.mkdir(exist_ok=True)
    except FileNotFoundError:
        path.parent.mkdir(exist_ok=True)
        path.mkdir(exist_ok=True)


def not_begun(error: OSError, directory: object) -> TaskOutcome:
    """Outcome of an evaluation whose ``directory`` could not be prepared."""
    if isinstance(error, PlaceTaken):
        return TaskOutcome(status=FAILED, error=f"the evaluation's directory cannot be used: {error}")
    return TaskOutcome(status=FAILED, error=describe_os_error(error, directory), storage=True)


def clear_directory(path: Path) -> None:
    """Remove the files that an evaluation has saved in the directory ``path``, except for its output. PlaceTaken where
    ``path`` is a symbolic link, or no directory."""
    check_place(path)
    try:
        entries = list(os.scandir(path))
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        elif not entry.name.startswith(OUTPUT):
            os.unlink(entry.path)
