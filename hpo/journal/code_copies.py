"""Copies of the code that evaluated: ``DIR/code/HASH/``, one for each version."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

from hpo.journal.durable import write_atomically
from hpo.task.code_version import MOST_BYTES, CodeVersion
from hpo.task.trial_directory import refuse_link
from hpo.terminal import one_line

_MOST_NAMED = 5


def copy_path(directory: Path, version: str) -> Path:
    """Place of the copy of the version with this hash."""
    return directory / "code" / version


def keep_copy(directory: Path, code: CodeVersion) -> bool:
    """Write the files of ``code`` that are missing; whether all are there then."""
    home = copy_path(directory, code.hash)
    try:
        for name, content in code.files.items():
            path = home / PurePosixPath(name)
            for folder in [*reversed(path.relative_to(directory).parents)][1:]:
                refuse_link(directory / folder)
                (directory / folder).mkdir(exist_ok=True)
            refuse_link(path)
            if not path.exists() or path.read_bytes() != content:
                write_atomically(path, content)
    except (OSError, ValueError):
        return False
    return True


def read_copy(directory: Path, version: str) -> CodeVersion | None:
    """The copy of a version; None where it is missing or was changed."""
    home = copy_path(directory, version)
    files: dict[str, bytes] = {}
    size = 0
    try:
        refuse_link(home.parent)
        refuse_link(home)
        for folder, _, names in os.walk(home):
            # Other files: Python's cache, and the remains of a write that was cut off.
            for name in (one for one in names if one.endswith(".py")):
                path = Path(folder, name)
                if path.is_symlink() or not path.is_file():
                    return None
                size += path.stat().st_size
                if size > MOST_BYTES:
                    return None
                files[path.relative_to(home).as_posix()] = path.read_bytes()
    except OSError:
        return None
    code = CodeVersion(files)
    return code if code.hash == version else None


def changed_files(directory: Path, before: str, after: str) -> str:
    """The files that differ between two versions, as ": model.py, task.py"; empty where a copy of one is missing."""
    old, new = read_copy(directory, before), read_copy(directory, after)
    if old is None or new is None:
        return ""
    names = old.differences(new)
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f": {', '.join(map(one_line, names[:_MOST_NAMED]))}{more}"


def where(directory: Path, version: str) -> str:
    """Sentence on the place of the copy."""
    path = copy_path(directory, version)
    return f"a copy is in {one_line(path)}" if path.is_dir() else f"there is no copy ({version})"


def change(directory: Path, before: str, after: str) -> str:
    """Sentence for a launch that goes on with another version than the launch before; else empty."""
    if not before or not after or before == after:
        return ""
    return (
        f"the task's code has changed since the last launch{changed_files(directory, before, after)}. The campaign "
        f"goes on, and its results are then of both versions. Of the earlier one {where(directory, before)}."
    )
