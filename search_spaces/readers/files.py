"""Files that the readers read and write: what the system refuses is an error with the file's name and a remedy."""

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
    """All of a file. OSError of the system's kind, as a sentence, where it cannot be read."""
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            # A pipe or a device may have no end.
            raise OSError(errno.EINVAL, "it is no file")
        return path.read_bytes()
    except OSError as error:
        raise refused_by_system(path, "read", error) from error


def made_directory(path: Path) -> Path:
    """``path``, with all above it. OSError, as a sentence, where it cannot be made."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise refused_by_system(path, "made a directory", error) from error
    return path


def made_once(path: Path, make: Callable[[Path], None], *, timeout_s: float = 1800.0) -> Path:
    """``path``, a file or a folder that ``make(elsewhere)`` makes, whole or not at all, if it is not there yet.

    Several processes may call it at once: one makes it, the others wait for it. Where a file system has no locks each
    makes it, and one of theirs stays. TimeoutError if that takes longer than ``timeout_s``.
    """
    if path.exists():  # as in a folder that may not be written to
        return path
    made_directory(path.parent)
    try:
        lock_file = open(path.parent / f".{path.name}.lock", "wb")  # noqa: SIM115
    except OSError as error:
        raise refused_by_system(path.parent, "written to", error) from error
    with lock_file as lock:
        deadline = time.monotonic() + timeout_s
        while not path.exists():
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"Another process has been making {path} for {timeout_s:.0f} s. End it and try again."
                    ) from None
                time.sleep(0.2)
                continue
            except OSError:
                pass  # no locks here
            if not path.exists():
                _make(path, make)
    return path


def _make(path: Path, make: Callable[[Path], None]) -> None:
    elsewhere = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        make(elsewhere / path.name)
        os.rename(elsewhere / path.name, path)
    except OSError:
        if not path.exists():
            raise
    finally:
        shutil.rmtree(elsewhere, ignore_errors=True)


def write_new(contents: dict[Path, bytes]) -> None:
    """Write these files, each whole or not at all, and their directories.

    What is there with the same content stays. FileExistsError, and nothing is written, if one has another; OSError,
    as a sentence, if one cannot be written.
    """
    other = [
        path for path, content in contents.items() if os.path.lexists(path) and not _holds(path, content)
    ]
    if other:
        raise FileExistsError(
            f"{', '.join(map(str, other))}: there already, with other content, which would be lost. Name another "
            "place, or move it away."
        )
    for path, content in contents.items():
        if path.exists():
            continue
        made_directory(path.parent)
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            partial.write_bytes(content)
            os.replace(partial, path)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise refused_by_system(path, "written", error) from error


def refused_by_system(path: Path, what: str, error: OSError) -> OSError:
    """The same kind of error as a sentence: ``path`` cannot be ``what``, why, and what to do."""
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


def _holds(path: Path, content: bytes) -> bool:
    return path.is_file() and path.stat().st_size == len(content) and content_of(path) == content
