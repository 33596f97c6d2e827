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

from search_spaces.readers.bigearthnet_format import SPLITS, PatchError, checked_bands
from search_spaces.readers.bigearthnet_lists import Patch
from search_spaces.readers.bigearthnet_sources import Archive, Reader, open_archive
from search_spaces.readers.bigearthnet_store import PIXELS, Layout, Store, Stored, Writer
from search_spaces.readers.bigearthnet_work import Shown, in_processes

ON_ERROR = ("refuse", "skip")
CLASSLESS = "has none of the 19 classes"
_CHUNK = 64  # patches that a process reads at a time, and that are kept at once: 10 MB


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What became of every patch: ``stored`` by split, ``left_out`` by reason, ``skipped`` by name."""

    directory: Path
    stored: dict[str, int]
    left_out: dict[str, int]
    skipped: dict[str, str]

    def __str__(self) -> str:
        counts = ", ".join(f"{self.stored.get(split, 0)} {split}" for split in SPLITS)
        size = (self.directory / PIXELS).stat().st_size
        lines = [f"{self.directory}: {counts} patches, {size / 1e6:.0f} MB"]
        lines += [f"left out: {count}, {reason}" for reason, count in sorted(self.left_out.items())]
        if self.skipped:
            lines.append(
                f"skipped: {len(self.skipped)}, which could not be read; the next run tries them again"
            )
            lines += [f"  {name}: {reason}" for name, reason in islice(self.skipped.items(), 20)]
            if len(self.skipped) > 20:
                lines.append("  … the others are in patches.jsonl")
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

    ``patches``: so many of all splits together, always the same ones (default: all). ``on_error``: "refuse"
    raises the PatchError of the first that cannot be read, "skip" leaves such ones out and names them.

    What was read before an error, a signal or a power cut is kept. ValueError for options that contradict what
    ``directory`` holds or the archive's lists; FileNotFoundError; OSError if the disk is full.
    """
    if on_error not in ON_ERROR:
        raise ValueError(f"on_error = {on_error!r}: must be {' or '.join(ON_ERROR)}. Correct it.")
    if patches is not None and patches < 1:
        raise ValueError(f"patches = {patches}: must be 1 or more. Correct it.")
    chosen = checked_bands(bands)
    archive = open_archive(archive_path, lists=lists)
    wanted = _some(archive.patches, patches)
    layout = Layout(version=archive.reader.version, bands=chosen)
    with Writer(Path(directory), layout) as writer:
        todo = _todo(writer, archive, wanted)
        _check_beforehand(archive, todo, writer, on_error)
        counted = f"{archive.reader.version}'s patches"
        with Shown(counted, len(wanted), done=len(wanted) - len(todo), show=show) as shown:
            for found in in_processes(
                partial(_read, archive.reader, layout), _chunks(todo), processes=processes
            ):
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
        left_out = Counter(archive.left_out)
        classless = [name for name, reason in writer.skipped.items() if reason == CLASSLESS]
        if classless:
            left_out[CLASSLESS] = len(classless)
        if len(wanted) < len(archive.patches):
            left_out["not asked for"] = len(archive.patches) - len(wanted)
        return Summary(
            directory=Path(directory),
            stored=dict(Counter(patch.split for patch in writer.stored)),
            left_out=dict(left_out),
            skipped={name: reason for name, reason in writer.skipped.items() if reason != CLASSLESS},
        )


def verify(directory: str | Path, *, show: bool = True) -> list[str]:
    """The names of the stored patches that are not what was once read from the archive; empty if all are."""
    store = Store(directory)
    damaged = []
    with Shown("verified", len(store), show=show) as shown:
        for name in store.damaged():
            if name is not None:
                damaged.append(name)
            shown.advance(1)
    return damaged


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


def _todo(writer: Writer, archive: Archive, wanted: list[Patch]) -> list[Patch]:
    """What is not yet stored. ValueError if something stored is not, or not so, in the archive's lists."""
    split_of = {patch.name: patch.split for patch in archive.patches}
    for stored in writer.stored:
        if split_of.get(stored.name) != stored.split:
            raise ValueError(
                f"{writer.directory} holds {stored.name} ({stored.split}), which this archive's lists do not. Name "
                "the archive that it was begun with, or another directory."
            )
    there = {stored.name for stored in writer.stored}
    classless = {name for name, reason in writer.skipped.items() if reason == CLASSLESS}
    todo = [patch for patch in wanted if patch.name not in there and patch.name not in classless]
    for patch in todo:
        writer.skipped.pop(patch.name, None)
    return todo


def _check_beforehand(archive: Archive, todo: list[Patch], writer: Writer, on_error: str) -> None:
    """What can be known before hours of reading: patches that are not there, a disk that is too small."""
    missing = set(archive.missing) & {patch.name for patch in todo}
    if missing and on_error == "refuse":
        first = next(patch.name for patch in todo if patch.name in missing)
        raise _refused(
            PatchError(
                first,
                f"its folder is missing, and so are {len(missing) - 1} others of the {len(todo)} to read: the "
                "archive is not completely extracted.",
            )
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
