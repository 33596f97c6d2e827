"""The directory of one evaluation: what it saves there is removed before it begins anew, what it printed stays."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

OUTPUT = "output-"
"""What an evaluation prints is in files of this prefix; they stay when checkpoints go."""


def refuse_link(path: Path) -> None:
    """OSError where ``path`` is a symbolic link: what it points to is not the campaign's."""
    if path.is_symlink():
        reason = "is a symbolic link, which hpo does not follow. Remove it, or put the directory itself there"
        raise OSError(errno.ELOOP, reason, str(path))


def directory_unusable(error: OSError) -> str:
    """What is said of an evaluation that could not begin for ``error``."""
    return f"the evaluation's directory cannot be used: {error}"


def clear_directory(path: Path) -> None:
    """Remove what an evaluation has saved in ``path``, if anything; what it printed stays.

    Raises:
        OSError: as the file system says, or ``path`` is a symbolic link.
    """
    refuse_link(path)
    try:
        entries = list(os.scandir(path))
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        elif not entry.name.startswith(OUTPUT):
            os.unlink(entry.path)
