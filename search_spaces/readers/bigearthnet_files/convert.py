"""From an archive of BigEarthNet to the file that training reads."""

from __future__ import annotations

import shutil
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np

from search_spaces.readers.bigearthnet_files.format import SPLITS, PatchError, checked_bands
from search_spaces.readers.bigearthnet_files.lists import Patch
from search_spaces.readers.bigearthnet_files.processes import Shown, in_processes
from search_spaces.readers.bigearthnet_files.sources import V2_FOLDER, Archive, Reader, open_archive
from search_spaces.readers.bigearthnet_files.store import PIXELS, Layout, Store, Stored
from search_spaces.readers.bigearthnet_files.writer import Writer

ON_ERROR = ("refuse", "skip")
CLASSLESS = "has none of the 19 classes"
_CHUNK = 64  # patches that a process reads at a time, and that are kept at once: 10 MB


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What became of every patch: ``stored`` by split, ``left_out`` by reason, ``skipped`` by name.

    ``listed``: how many the lists name, by split. ``beyond``: how many of those stored were not asked for now, but
    were there. ``lacking``: how many more were asked for than the lists name.
    """

    directory: Path
    stored: dict[str, int]
    left_out: dict[str, int]
    skipped: dict[str, str]
    listed: dict[str, int]
    beyond: int
    lacking: int

    def __str__(self) -> str:
        counts = ", ".join(f"{self.stored.get(split, 0)} {split}" for split in SPLITS)
        size = (self.directory / PIXELS).stat().st_size
        lines = [f"{self.directory}: {counts} patches, {size / 1e6:.0f} MB"]
        if self.beyond:
            lines.append(
                f"among them {self.beyond} that were there already and are more than was asked for; for fewer, name "
                "another directory, or say so where they are read"
            )
        if self.lacking:
            listed = sum(self.listed.values())
            lines.append(
                f"{listed + self.lacking} patches were asked for, and the lists name {listed}: those are all there are"
            )
        lines += [f"left out: {count}, {reason}" for reason, count in sorted(self.left_out.items())]
        if self.skipped:
            lines.append(
                f"skipped: {len(self.skipped)}, which could not be read; the next run tries them again"
            )
            lines += [f"  {name}: {reason}" for name, reason in islice(self.skipped.items(), 20)]
            if len(self.skipped) > 20:
                lines.append("  … the others are in patches.jsonl")
        lines += [
            f"warning: nothing for {split}: of {self.listed.get(split, 0)} patches that the lists name for it none "
            "is stored. Check that lists and archive belong together."
            for split in SPLITS
            if not self.stored.get(split)
        ]
        return "\n".join(lines)


def convert(
    archive_path: str | Path,
    directory: str | Path,
    *,
    lists: str | Path | None = None,
    bands: Sequence[str] | None = None,
    patches: int | None = None,
    on_error: str = "refuse",
    processes: int | None = None,
    show: bool = True,
) -> Summary:
    """Read the archive's patches and store them in ``directory``; goes on if some of them are there.

    ``patches``: this many of all splits together, always the same ones (default: all). ``on_error``: "refuse"
    raises the PatchError of the first that cannot be read, "skip" leaves such ones out and names them.

    What was read before an error, a signal or a power cut is kept. ValueError for options that contradict what
    ``directory`` holds or the archive's lists, or damaged files; FileNotFoundError; OSError if the disk is full;
    ChildProcessError if a process that reads was killed.
    """
    if on_error not in ON_ERROR:
        raise ValueError(f"on_error = {on_error!r}: must be {' or '.join(ON_ERROR)}. Correct it.")
    if patches is not None and patches < 1:
        raise ValueError(f"patches = {patches}: must be 1 or more. Correct it.")
    chosen = checked_bands(bands)
    archive = open_archive(archive_path, lists=lists)
    _check_apart(archive, Path(directory))
    wanted = _some(archive.patches, patches)
    layout = Layout(version=archive.reader.version, bands=chosen)
    with Writer(Path(directory), layout) as writer:
        _check_belongs(writer, archive)
        before = set(writer.stored)
        todo = _todo(writer, archive, {patch.name for patch in wanted})
        _check_beforehand(archive, todo, writer, on_error)
        if todo:
            writer.reopen()
        counted = f"{archive.reader.version}'s patches"
        with Shown(counted, len(writer.stored) + len(todo), done=len(writer.stored), show=show) as shown:
            for found in _all_read(archive, layout, todo, processes):
                refused = next((error for error in found.errors if on_error == "refuse"), None)
                skipped = dict.fromkeys(found.classless, CLASSLESS)
                if refused is None:
                    skipped.update({error.patch: error.reason for error in found.errors})
                writer.append(found.read, skipped)
                if refused is not None:
                    raise _refused(refused)
                shown.advance(len(found.read) + len(skipped))
        if not writer.stored:
            raise ValueError(f"{archive_path}: no patch could be read. {_first_reason(writer.skipped)}")
        writer.finish()
        return Summary(
            directory=Path(directory),
            stored=dict(Counter(patch.split for patch in writer.stored.values())),
            left_out=_left_out(writer, archive, wanted),
            skipped={name: reason for name, reason in writer.skipped.items() if reason != CLASSLESS},
            listed=dict(Counter(patch.split for patch in archive.patches)),
            beyond=len(before - {patch.name for patch in wanted}) if patches is not None else 0,
            lacking=max(0, (patches or 0) - len(archive.patches)),
        )


def verify(directory: str | Path, *, show: bool = True) -> list[str]:
    """The names of the stored patches that are not what was once read from the archive; empty if all are."""
    store, names = Store(directory), []
    with Shown("verified", len(store), show=show) as shown:
        for name in store.damaged():
            if name is not None:
                names.append(name)
            shown.advance(1)
    return names


@dataclass(frozen=True, kw_only=True)
class _Read:
    """What one process found in its chunk of patches."""

    read: list[tuple[Stored, bytes]]
    classless: list[str]
    errors: list[PatchError]


def _read(reader: Reader, layout: Layout, patches: Sequence[Patch]) -> _Read:
    found = _Read(read=[], classless=[], errors=[])
    for patch in patches:
        try:
            sample = reader.read(patch, layout.bands)
        except PatchError as error:
            found.errors.append(error)
            continue
        if not sample.classes:
            found.classless.append(patch.name)
            continue
        content = layout.pack(sample.bands)
        stored = Stored(
            name=patch.name, split=patch.split, classes=sample.classes, checksum=zlib.crc32(content)
        )
        found.read.append((stored, content))
    return found


def _all_read(archive: Archive, layout: Layout, todo: list[Patch], processes: int | None) -> Iterator[_Read]:
    try:
        yield from in_processes(
            partial(_read, archive.reader, layout),
            _chunks(todo),
            processes=processes,
            apart=archive.reader.mapped,
        )
    except ChildProcessError as error:
        raise ChildProcessError(f"{archive.path}: {error}") from error


def _check_apart(archive: Archive, directory: Path) -> None:
    """ValueError where what is made would lie among what it is made from."""
    if directory.resolve() in (archive.path.resolve(), (archive.path / V2_FOLDER).resolve()):
        raise ValueError(
            f"OUT is {directory}, which holds the archive itself. Name another directory to make."
        )


def _check_belongs(writer: Writer, archive: Archive) -> None:
    """ValueError if something stored is not, or not so, in the archive's lists."""
    split_of = {patch.name: patch.split for patch in archive.patches}
    for stored in writer.stored.values():
        if split_of.get(stored.name) != stored.split:
            raise ValueError(
                f"{writer.directory} holds {stored.name} ({stored.split}), which this archive's lists do not. Name "
                "the archive that it was begun with, or another directory."
            )


def _todo(writer: Writer, archive: Archive, wanted: set[str]) -> list[Patch]:
    """What is not yet stored."""
    classless = {name for name, reason in writer.skipped.items() if reason == CLASSLESS}
    there = writer.stored.keys() | classless
    todo = [patch for patch in archive.patches if patch.name in wanted and patch.name not in there]
    for patch in todo:
        writer.skipped.pop(patch.name, None)
    return todo


def _left_out(writer: Writer, archive: Archive, wanted: list[Patch]) -> dict[str, int]:
    left_out = Counter(archive.left_out)
    classless = sum(reason == CLASSLESS for reason in writer.skipped.values())
    if classless:
        left_out[CLASSLESS] = classless
    known = {patch.name for patch in wanted} | writer.stored.keys() | writer.skipped.keys()
    not_asked = sum(patch.name not in known for patch in archive.patches)
    if not_asked:
        left_out["not asked for"] = not_asked
    return dict(left_out)


def _check_beforehand(archive: Archive, todo: list[Patch], writer: Writer, on_error: str) -> None:
    """What can be known before hours of reading: patches that are not there, a disk that is too small."""
    missing = set(archive.missing) & {patch.name for patch in todo}
    if missing and on_error == "refuse":
        first = next(patch.name for patch in todo if patch.name in missing)
        others = len(missing) - 1
        more = ""
        if others:
            more = f", and so {'is 1 other' if others == 1 else f'are {others} others'} of the {len(todo)} to read"
        raise _refused(
            PatchError(first, f"its folder is missing{more}: the archive is not completely extracted.")
        )
    needed, free = (
        (len(todo) - len(missing)) * writer.layout.patch_bytes,
        shutil.disk_usage(writer.directory).free,
    )
    if needed > free:
        raise OSError(
            f"{writer.directory} needs {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free. Make room, choose "
            "fewer bands or patches, or name another directory."
        )


def _refused(error: PatchError) -> PatchError:
    return PatchError(
        error.patch, f"{error.reason} Repair it and start again, which goes on; or pass --on-error skip."
    )


def _first_reason(skipped: dict[str, str]) -> str:
    return next((f"Patch {name}: {reason}" for name, reason in skipped.items()), "The lists name none.")


def _some(patches: list[Patch], count: int | None) -> list[Patch]:
    """So many, drawn from all; a larger number's contain a smaller one's."""
    if count is None or count >= len(patches):
        return patches
    chosen = np.random.default_rng(0).permutation(len(patches))[:count]
    return [patches[i] for i in sorted(chosen.tolist())]


def _chunks(patches: list[Patch]) -> Iterator[list[Patch]]:
    for start in range(0, len(patches), _CHUNK):
        yield patches[start : start + _CHUNK]
