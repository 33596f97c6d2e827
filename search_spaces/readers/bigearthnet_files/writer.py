"""How the file that training reads is written, and resumed after any death."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from search_spaces.readers.bigearthnet_files.format import CLASSES, SPLITS
from search_spaces.readers.bigearthnet_files.store import INDEX, JOURNAL, PIXELS, Layout, Stored, anew
from search_spaces.readers.files import made_directory, refused_by_system


@dataclass
class Writer:
    """Appends patches to the file in ``directory``, beginning it or going on where the last run ended.

    One process a directory: another is refused. ValueError if what is there is another archive's or damaged; OSError,
    as a sentence, for what cannot be written.
    """

    directory: Path
    layout: Layout
    stored: dict[str, Stored] = field(default_factory=dict, init=False)  # by name, in the file's order
    skipped: dict[str, str] = field(default_factory=dict, init=False)  # name -> why

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
        with self._as_sentence(PIXELS):
            for _, content in read:
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
        self.skipped.update(skipped)

    def reopen(self) -> None:
        """More patches follow: until ``finish`` the file cannot be read, as what interrupts it would look complete."""
        with self._as_sentence(INDEX):
            (self.directory / INDEX).unlink(missing_ok=True)

    def finish(self) -> None:
        """Write the index, at once and whole: from now on the file can be read."""
        patches = list(self.stored.values())
        classes = np.zeros((len(patches), len(CLASSES)), np.uint8)
        for row, patch in enumerate(patches):
            classes[row, list(patch.classes)] = 1
        partial = self.directory / f".{INDEX}"
        with self._as_sentence(INDEX):
            with open(partial, "wb") as file:
                np.savez(
                    file,
                    header=np.frombuffer(json.dumps(self.layout.line()).encode(), np.uint8),
                    names=np.array([patch.name.encode() for patch in patches], dtype=np.bytes_),
                    splits=np.array([SPLITS.index(patch.split) for patch in patches], np.uint8),
                    classes=classes,
                    checksums=np.array([patch.checksum for patch in patches], np.uint32),
                )
                self._sync(file)
            os.replace(partial, self.directory / INDEX)

    @contextmanager
    def _as_sentence(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise refused_by_system(self.directory / name, "written", error) from error

    def _opened(self, name: str) -> IO[bytes]:
        with self._as_sentence(name):
            file = os.open(self.directory / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            return os.fdopen(file, "r+b")

    def _replay(self) -> None:
        path = self.directory / JOURNAL
        remedy = anew(self.directory)
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
                raise ValueError(f"{path}, line {number} is damaged ({error!r}). {remedy}") from error
            if number == 1:
                found = Layout.from_line(line, path, remedy=remedy)
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
                f"{self.directory / JOURNAL} has no whole line: what {self.directory} holds is unknown. "
                f"{anew(self.directory)}"
            )
        self._journal.seek(0)
        self._journal.truncate(0)
        self._write([self.layout.line()])

    def _take(self, line: Mapping[str, Any]) -> None:
        name = line["patch"]
        if not isinstance(name, str):
            raise TypeError(f"the patch {name!r}")
        if name in self.stored:
            raise ValueError(f"{name} for the second time")
        if "skipped" in line:
            self.skipped[name] = str(line["skipped"])
            return
        split, classes, checksum = line["split"], tuple(line["classes"]), line["crc32"]
        if split not in SPLITS:
            raise ValueError(f"the split {split!r}")
        if any(type(number) is not int or not 0 <= number < len(CLASSES) for number in classes):
            raise ValueError(f"the classes {classes}")
        if type(checksum) is not int or not 0 <= checksum < 2**32:
            raise ValueError(f"the checksum {checksum!r}")
        self.stored[name] = Stored(name=name, split=split, classes=classes, checksum=checksum)
        self.skipped.pop(name, None)

    def _cut(self) -> None:
        """Drop pixels that were written, but not yet named, when the last run died."""
        size, named = os.fstat(self._pixels.fileno()).st_size, len(self.stored) * self.layout.patch_bytes
        if size < named:
            raise ValueError(
                f"{self.directory / PIXELS} has {size} bytes, and {JOURNAL} names {named}. {anew(self.directory)}"
            )
        self._pixels.truncate(named)
        self._pixels.seek(named)

    def _write(self, lines: Sequence[Mapping[str, Any]]) -> None:
        with self._as_sentence(JOURNAL):
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
