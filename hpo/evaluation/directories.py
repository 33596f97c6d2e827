"""The individuals' own directories, ``DIR/evaluations/ID/``: what they print, and checkpoints as long as they
are needed."""

from __future__ import annotations

import errno
import itertools
import os
import re
import shutil
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from hpo.individual import FINAL

OUTPUT = "output-"
"""What an evaluation prints is in files of this prefix; they stay when checkpoints go."""


_ID = re.compile(r"(0|[1-9]\d{0,8})-(0|[1-9]\d{0,8})-(0|[1-9]\d{0,14})")


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


class Kept:
    """Whose checkpoints one leader leaves: those of the ``best`` of its own, and of the ``latest`` so many.

    The best are those of the lowest losses, or those that come first as ``order`` puts them, which gets pairs of loss
    and id. With several objectives the best are a front, which is known at the end only: all stay until then."""

    def __init__(
        self,
        best: int,
        *,
        latest: int = 0,
        order: Callable[[list[tuple[float, str]]], list[tuple[float, str]]] = sorted,
    ) -> None:
        self._most = best
        self._most_latest = latest
        self._order = order
        self._best: list[tuple[float, str]] = []
        self._latest: deque[tuple[str, list[float]]] = deque()

    def add(self, identity: str, losses: list[float] | None) -> list[str]:
        """One has ended, without ``losses`` if it failed; the ids of those that are let go of for it."""
        if losses is None:
            return [identity]
        if self._most_latest:
            self._latest.append((identity, losses))
            if len(self._latest) <= self._most_latest:
                return []
            identity, losses = self._latest.popleft()
        if len(losses) > 1:
            return []
        self._best.append((losses[0], identity))
        if len(self._best) <= self._most:
            return []
        self._best = self._order(self._best)
        return [self._best.pop()[1]]


class Rooms:
    """The directories of all individuals of the campaign in ``directory``."""

    def __init__(self, directory: Path) -> None:
        self._root = directory / "evaluations"

    def path(self, identity: str) -> Path:
        return self._root / identity

    def taken(self) -> dict[tuple[int, int], int]:
        """By island and worker, the first sequence number beyond all ids that something here is called by, whatever
        it is and whoever made it: a new individual gets a directory that was not there."""
        first: dict[tuple[int, int], int] = {}
        for name in self._names():
            if found := _ID.fullmatch(name):
                island, worker, sequence = map(int, found.groups())
                first[island, worker] = max(first.get((island, worker), 0), sequence + 1)
        return first

    def _names(self) -> list[str]:
        try:
            return os.listdir(self._root)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def printed(self, identity: str) -> str:
        """Which files have what the individual printed, in words; empty where it printed nothing."""
        try:
            names = sorted(name for name in os.listdir(self.path(identity)) if name.startswith(OUTPUT))
        except OSError:
            return ""
        more = f" (and {len(names) - 1} more there)" if len(names) > 1 else ""
        return f"{self.path(identity) / names[0]}{more} has what it printed" if names else ""

    def holds(self, identity: str) -> bool:
        """Whether the individual has saved anything that is still there."""
        try:
            refuse_link(self.path(identity))
            return any(not name.startswith(OUTPUT) for name in os.listdir(self.path(identity)))
        except OSError:
            return False

    def forget(self, identity: str) -> None:
        """Remove what the individual saved; what it printed stays. Nothing happens where there is nothing."""
        path = self.path(identity)
        with suppress(OSError):  # another process may hold a file there; it is only space
            clear_directory(path)
        with suppress(OSError):  # not empty: it holds output
            path.rmdir()

    def keep_only_best(self, keep: int, *, needed: Collection[str] = ()) -> None:
        """Remove the checkpoints of all but the ``keep`` best of the campaign and of those ``needed``; to be called
        while nothing is evaluated. What is called by no id that is on record is the user's, and stays.

        Each leader has kept the best of its own; which of them are the best of all is known only now.
        """
        present = {name for name in self._names() if _ID.fullmatch(name)}
        if len(present) <= keep:
            return
        from hpo.results import pareto as fronts
        from hpo.results import result as results

        record = results.load(self._root.parent)
        if repeated := fronts.repeated(record, own=True):
            # Of the best configurations what is there: the evaluation that looks best may have been let go of.
            held = ([one for one in each.individuals if self.holds(one.id)] for each in repeated)
            best = [*itertools.islice((own[0] for own in held if own), keep)]
        else:
            best = fronts.best(record, keep, own=True)
        kept = {*needed, *(one.id for one in best)}
        # With a deadline alone a campaign is done while some are unfinished: they go on if it does.
        unfinished = [one for one in record.individuals if one.status not in FINAL]
        kept |= {name for one in unfinished for name in (one.id, *one.parents[:1])}
        for identity in present & {one.id for one in record.individuals}:
            if identity not in kept:
                self.forget(identity)
