"""Reading and writing of files for the readers; errors of the system have the file's name and a remedy."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path


def content_of(path: Path) -> bytes:
    """Content of a file; OSError of the system's class, with a remedy, if it cannot be read."""
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            # Reading a pipe or a device may never end.
            raise OSError(errno.EINVAL, "it is no file")
        return path.read_bytes()
    except OSError as error:
        raise refused_by_system(path, "read", error) from error


def made_directory(path: Path) -> Path:
    """Make the directory ``path`` and its parents, and return it; OSError, with a remedy, if it cannot be made."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise refused_by_system(path, "made a directory", error) from error
    return path


# Most seconds that a process waits while another makes the same file.
_PATIENCE_S = 1800.0


def made_once(path: Path, make: Callable[[Path], None]) -> Path:
    """``path``, a file or folder that is made atomically by ``make(elsewhere)`` if it is missing.

    Several processes may call this at the same time: the first makes it, and the others wait. On a file system without
    locks each process makes it, and one result stays.

    Raises:
        TimeoutError: another process takes longer than half an hour.
    """
    # Checked before the lock, which cannot be made in a folder without write permission.
    if path.exists():
        return path
    made_directory(path.parent)
    try:
        lock_file = open(path.parent / f".{path.name}.lock", "wb")  # noqa: SIM115
    except OSError as error:
        raise refused_by_system(path.parent, "written to", error) from error
    with lock_file as lock:
        deadline = time.monotonic() + _PATIENCE_S
        while not path.exists():
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"Another process has been making {path} for {_PATIENCE_S:.0f} s. End it and try again."
                    ) from None
                time.sleep(0.2)
                continue
            except OSError:
                pass  # a file system without locks
            if not path.exists():
                _make(path, make)
    return path


def _make(path: Path, make: Callable[[Path], None]) -> None:
    # Made in the same directory and then renamed, so that a process that dies leaves nothing at ``path``.
    elsewhere = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        make(elsewhere / path.name)
        os.rename(elsewhere / path.name, path)
    except OSError:
        # Without locks, another process may have been faster; its result is as good.
        if not path.exists():
            raise
    finally:
        shutil.rmtree(elsewhere, ignore_errors=True)


def refused_by_system(path: Path, what: str, error: OSError) -> OSError:
    """Error of the same class whose text says that ``path`` cannot be ``what``, why, and what to do."""
    if isinstance(error, PermissionError):
        remedy = "Get the right to it from its owner, or name another."
    elif isinstance(error, IsADirectoryError):
        remedy = "Name a file, not a directory."
    elif isinstance(error, (FileExistsError, NotADirectoryError)):
        remedy = "There is a file where a directory must be: name another place."
    elif isinstance(error, FileNotFoundError):
        remedy = "Bring it, or name one that is there."
    elif error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        remedy = "Make room, and start again."
    else:
        remedy = "Bring it again, or name another."

    return type(error)(f"{path} cannot be {what} ({error.strerror or error}). {remedy}")
