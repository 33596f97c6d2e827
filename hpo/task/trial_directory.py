"""The directory of one evaluation: what it saves there is removed before it begins anew, what it printed stays."""

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
"""What an evaluation prints is in files of this prefix; they stay when checkpoints go."""


class PlaceTaken(OSError):
    """Something else stands where an individual's directory belongs: of all individuals this one alone is hit."""


def mode_of(path: Path) -> int | None:
    """What ``path`` itself is, as os.lstat says; None where nothing is there. OSError where the storage fails, which
    Path.is_dir and its like hide in part, by version of Python."""
    try:
        return os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None


def refuse_link(path: Path) -> None:
    """PlaceTaken where ``path`` is a symbolic link: what it points to is not the campaign's."""
    if path.is_symlink():
        reason = "is a symbolic link, which hpo does not follow. Remove it, or put the directory itself there"
        raise PlaceTaken(errno.ELOOP, reason, str(path))


def check_place(path: Path) -> None:
    """PlaceTaken where ``path`` is a symbolic link, or anything else that is no directory."""
    refuse_link(path)
    mode = mode_of(path)
    if mode is not None and not stat.S_ISDIR(mode):
        raise PlaceTaken(errno.ENOTDIR, "is no directory. Remove it", str(path))


def make_directory(path: Path) -> None:
    """Make ``path``, and the one that it lies in, if need be; none above, which are the campaign's: where that is gone
    for a while, another in its place would keep results from it, or be in its way when it comes back. OSError as the
    file system says."""
    try:
        path.mkdir(exist_ok=True)
    except FileNotFoundError:
        path.parent.mkdir(exist_ok=True)
        path.mkdir(exist_ok=True)


def not_begun(error: OSError, directory: object) -> TaskOutcome:
    """The outcome of an evaluation for which its ``directory`` could not be prepared."""
    if isinstance(error, PlaceTaken):
        return TaskOutcome(status=FAILED, error=f"the evaluation's directory cannot be used: {error}")
    return TaskOutcome(status=FAILED, error=describe_os_error(error, directory), storage=True)


def clear_directory(path: Path) -> None:
    """Remove what an evaluation has saved in ``path``, if anything; what it printed stays.

    Raises:
        OSError: as the file system says; PlaceTaken where ``path`` is a symbolic link, or no directory.
    """
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
