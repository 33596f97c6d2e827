"""The individuals' own directories, ``DIR/evaluations/ID/``: what they print, and checkpoints as long as they
are needed.

Where a rank hangs, what evaluates there may go on writing into the individual's directory. The next attempt gets a copy
of it, ``ID.attempt-2`` and so on, which is the individual's directory from then on."""

from __future__ import annotations

import os
import re
import shutil
import stat
from contextlib import suppress
from itertools import count
from pathlib import Path

from hpo.individual import is_known
from hpo.task.trial_directory import OUTPUT, PlaceTaken, check_place, clear_directory, mode_of

_ID = re.compile(r"(0|[1-9]\d{0,8})-(0|[1-9]\d{0,8})-(0|[1-9]\d{0,14})")
_ATTEMPT = ".attempt-"


class EvaluationDirectories:
    """The directories of all individuals of the campaign in ``directory``."""

    def __init__(self, directory: Path) -> None:
        self._root = directory / "evaluations"

    def path(self, identity: str) -> Path:
        """The directory of the individual's latest attempt, whether it is there or not. OSError where the storage fails
        and does not say which that is."""
        return self._attempts(identity)[-1]

    def first(self, identity: str) -> Path:
        """The directory of the individual's first attempt, whether it is there or not."""
        return self._root / identity

    def _attempts(self, identity: str) -> list[Path]:
        """The directories of the attempts that have one, the first in any case. OSError where the storage fails: an
        earlier attempt, which may still write, is not to be taken for the latest."""
        found = [self.first(identity)]
        while stat.S_ISDIR(mode_of(following := self._attempt(identity, len(found) + 1)) or 0):
            found.append(following)
        return found

    def _attempt(self, identity: str, number: int) -> Path:
        return self._root / f"{identity}{_ATTEMPT}{number}"

    def copy(self, identity: str) -> tuple[Path, bool]:
        """The directory of another attempt, a copy of the latest; and whether that could be made: if not, it is empty.
        OSError as in ``path``."""
        attempts = self._attempts(identity)
        for number in count(len(attempts) + 1):
            target = self._attempt(identity, number)
            try:
                target.mkdir(parents=True)
                break
            except FileExistsError:  # another launch copies at the same time
                continue
            except OSError:
                return target, False
        try:
            check_place(attempts[-1])
            kept = shutil.ignore_patterns(f"{OUTPUT}*")
            shutil.copytree(attempts[-1], target, symlinks=True, ignore=kept, dirs_exist_ok=True)
        except OSError:  # half a copy is no checkpoint
            with suppress(OSError):
                clear_directory(target)
            return target, False
        return target, True

    def present(self) -> set[str]:
        """The ids by which anything here is called."""
        return {identity for name in self._names() if _ID.fullmatch(identity := name.partition(_ATTEMPT)[0])}

    def _names(self) -> list[str]:
        try:
            return os.listdir(self._root)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def printed(self, identity: str) -> str:
        """Which files have what the individual printed, in words; empty where it printed nothing."""
        with suppress(OSError):
            path = self.path(identity)
            names = sorted(name for name in os.listdir(path) if name.startswith(OUTPUT))
            more = f" (and {len(names) - 1} more there)" if len(names) > 1 else ""
            return f"{path / names[0]}{more} has what it printed" if names else ""
        return ""

    def existing(self, identity: str) -> Path | None:
        """The individual's directory where there is one; None too where the storage does not say."""
        with suppress(OSError):
            if not is_known(identity) and stat.S_ISDIR(mode_of(path := self.path(identity)) or 0):
                return path
        return None

    def holds(self, identity: str) -> bool:
        """Whether the individual has saved anything that is still there and may be read. OSError where the storage
        fails: after a False a child begins without it, for good."""
        path = self.path(identity)
        try:
            check_place(path)
            return any(not name.startswith(OUTPUT) for name in os.listdir(path))
        except (FileNotFoundError, NotADirectoryError, PermissionError, PlaceTaken):
            return False

    def may_hold(self, identity: str) -> bool:
        """Like ``holds``, for those who only choose: True where the storage fails."""
        try:
            return self.holds(identity)
        except OSError:
            return True

    def forget(self, identity: str) -> None:
        """Remove what the individual saved; what it printed stays. Nothing happens where there is nothing."""
        with suppress(OSError):  # the storage fails: it is only space
            for path in reversed(self._attempts(identity)):
                with suppress(OSError):  # another process may hold a file there
                    clear_directory(path)
                with suppress(OSError):  # not empty: it holds output
                    path.rmdir()
