"""How the file that training reads is written: resumed after any death, and repaired in place."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from search_spaces.readers.bigearthnet_files.format import CLASSES, SPLITS
from search_spaces.readers.bigearthnet_files.store import (
    INDEX,
    JOURNAL,
    NO_SPLIT,
    PIXELS,
    REPAIR,
    Layout,
    Stored,
    are_whole,
)
from search_spaces.readers.files import made_directory, refused_by_system


@dataclass
class Writer:
    """Appends patches to the file in ``directory``, beginning it or going on where the last run ended.

    A patch that had a place already, and was dropped or skipped since, gets it again. ``repair``: pixels that lack at
    the end of the file are no error, but damaged. One process a directory: another is refused. ValueError if what is
    there is another archive's or damaged; OSError, as a sentence, for what cannot be written.
    """

    directory: Path
    layout: Layout
    repair: bool = False
    stored: dict[str, Stored] = field(default_factory=dict, init=False)  # by name
    skipped: dict[str, str] = field(default_factory=dict, init=False)  # name -> why
    _rows: dict[str, int] = field(default_factory=dict, init=False)  # places in the file; some are of no use

    def __post_init__(self) -> None:
        made_directory(self.directory)
        with ExitStack() as files:
            self._journal = files.enter_context(self._opened(JOURNAL))
            _lock(self._journal.fileno(), self.directory)
            self._replay()
            self._pixels = files.enter_context(self._opened(PIXELS))
            self._cut()
            self._files = files.pop_all()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._files.close()
        except OSError:  # nothing that counts: it was said when it was written
            pass

    def append(self, read: Sequence[tuple[Stored, bytes]], skipped: Mapping[str, str]) -> None:
        """Add patches and the reasons of those that are none; when it returns, they are kept whatever happens."""
        with self._told(PIXELS):
            for of, content in read:
                row = self._rows.setdefault(of.name, len(self._rows))
                self._pixels.seek(row * self.layout.patch_bytes)
                self._pixels.write(content)
            self._sync(self._pixels)
        # Only now: what the journal names, the file holds.
        lines: list[dict[str, Any]] = [
            {"patch": of.name, "split": of.split, "classes": of.classes, "crc32": of.checksum}
            for of, _ in read
        ]
        lines += [{"patch": name, "skipped": reason} for name, reason in skipped.items()]
        self._write(lines)
        for of, _ in read:
            self.stored[of.name] = of
            self.skipped.pop(of.name, None)
        for name, reason in skipped.items():
            self.stored.pop(name, None)
            self.skipped[name] = reason

    def damaged(self) -> Iterator[str | None]:
        """Reads each patch that has a place again: its name if it is stored and not what was written, else None."""
        stored = (self.stored.get(name) for name in self._rows)
        checksums = (None if one is None else one.checksum for one in stored)
        for name, whole in zip(
            self._rows, are_whole(self._pixels.fileno(), self.layout, checksums), strict=True
        ):
            yield None if whole else name

    def drop(self, names: Iterable[str]) -> None:
        """Hold these to be not stored. Nothing is written: until they are appended again, or skipped, a later run
        finds them as they were.
        """
        for name in names:
            del self.stored[name]

    def new(self, names: Iterable[str]) -> int:
        """How many of these have no place yet."""
        return sum(name not in self._rows for name in names)

    def finish(self) -> None:
        """Write the index, at once and whole: from now on the file can be read."""
        classes = np.zeros((len(self._rows), len(CLASSES)), np.uint8)
        splits = np.full(len(self._rows), NO_SPLIT, np.uint8)
        checksums = np.zeros(len(self._rows), np.uint32)
        for name, row in self._rows.items():
            patch = self.stored.get(name)
            if patch is not None:
                classes[row, list(patch.classes)] = 1
                splits[row], checksums[row] = SPLITS.index(patch.split), patch.checksum
        partial = self.directory / f".{INDEX}"
        with self._told(INDEX):
            with open(partial, "wb") as file:
                np.savez(
                    file,
                    header=np.frombuffer(json.dumps(self.layout.line()).encode(), np.uint8),
                    names=np.array([name.encode() for name in self._rows], dtype=np.bytes_),
                    splits=splits,
                    classes=classes,
                    checksums=checksums,
                )
                self._sync(file)
            os.replace(partial, self.directory / INDEX)

    @contextmanager
    def _told(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise refused_by_system(self.directory / name, "written", error) from error

    def _opened(self, name: str) -> IO[bytes]:
        with self._told(name):
            file = os.open(self.directory / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            return os.fdopen(file, "r+b")

    def _replay(self) -> None:
        path = self.directory / JOURNAL
        anew = f"Remove {self.directory} and begin anew."
        content = self._journal.read()
        whole = content.rfind(b"\n") + 1  # a torn last line counts for nothing
        lines = content[:whole].split(b"\n")[:-1]
        if not lines:
            self._begin(content)
            return
        found = None
        for number, text in enumerate(lines, start=1):
            try:
                line = json.loads(text)
                if number > 1:
                    self._take(line)
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise ValueError(f"{path}, line {number} is damaged ({error!r}). {anew}") from error
            if number == 1:
                found = Layout.from_line(line, path, remedy=anew)
        assert found is not None
        if found != self.layout:
            raise ValueError(
                f"{self.directory} was begun with {found.version} and the bands {', '.join(found.bands)}. Go on "
                "with the same, or name another directory."
            )
        self._journal.truncate(whole)
        self._journal.seek(whole)

    def _begin(self, content: bytes) -> None:
        """A journal without a line: the first run died at once, and so before there were any pixels."""
        header, pixels = _as_line(self.layout.line()), self.directory / PIXELS
        if not header.startswith(content) or (pixels.is_file() and pixels.stat().st_size):
            raise ValueError(
                f"{self.directory / JOURNAL} has no whole line: what {self.directory} holds is unknown. Remove "
                f"{self.directory} and begin anew, or name another directory."
            )
        self._journal.seek(0)
        self._journal.truncate(0)
        self._write([self.layout.line()])

    def _take(self, line: Mapping[str, Any]) -> None:
        name = line["patch"]
        if not isinstance(name, str):
            raise TypeError(f"the patch {name!r}")
        if "skipped" in line:
            self.stored.pop(name, None)
            self.skipped[name] = str(line["skipped"])
            return
        split, classes, checksum = line["split"], tuple(line["classes"]), line["crc32"]
        if split not in SPLITS:
            raise ValueError(f"the split {split!r}")
        if any(type(number) is not int or not 0 <= number < len(CLASSES) for number in classes):
            raise ValueError(f"the classes {classes}")
        if type(checksum) is not int or not 0 <= checksum < 2**32:
            raise ValueError(f"the checksum {checksum!r}")
        self._rows.setdefault(name, len(self._rows))
        self.stored[name] = Stored(name=name, split=split, classes=classes, checksum=checksum)
        self.skipped.pop(name, None)

    def _cut(self) -> None:
        """Drop pixels that were written, but not yet named, when the last run died."""
        size, named = os.fstat(self._pixels.fileno()).st_size, len(self._rows) * self.layout.patch_bytes
        if size < named and not self.repair:
            raise ValueError(
                f"{self.directory / PIXELS} has {size} bytes, and {JOURNAL} names {named}. {REPAIR}"
            )
        self._pixels.truncate(named)

    def _write(self, lines: Sequence[Mapping[str, Any]]) -> None:
        with self._told(JOURNAL):
            self._journal.write(b"".join(map(_as_line, lines)))
            self._sync(self._journal)

    def _sync(self, file: Any) -> None:
        file.flush()
        os.fsync(file.fileno())


def _as_line(line: Mapping[str, Any]) -> bytes:
    return json.dumps(line).encode() + b"\n"


def _lock(file: int, directory: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ValueError(f"Another process is writing {directory}. Wait for it, or end it.") from None
    except OSError:  # a file system without locks
        pass
