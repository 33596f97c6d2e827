"""From an archive of BigEarthNet to the files that training reads."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np

from search_spaces.readers.bigearthnet_files.format import SPLITS, PatchError, checked_bands
from search_spaces.readers.bigearthnet_files.lists import Patch
from search_spaces.readers.bigearthnet_files.processes import in_processes, shown
from search_spaces.readers.bigearthnet_files.sources import V2_FOLDER, Archive, Reader, open_archive
from search_spaces.readers.bigearthnet_files.store import (
    INDEX,
    NAME_BYTES,
    PATCH,
    PIXELS,
    Patches,
    Store,
    bands_of,
    checksum,
    refused,
    row_of,
)
from search_spaces.readers.bigearthnet_files.writer import begun, finish, keep, locked, named
from search_spaces.readers.files import made_directory

ON_ERROR = ("refuse", "skip")
CLASSLESS = "has none of the 19 classes"
# Patches that a process reads at a time: 10 MB.
_CHUNK = 64
# Flushing the pixels may take seconds on a network file system.
_KEPT_EVERY_S = 30.0

_Chunk = Sequence[tuple[int, Patch]]


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Result of a conversion."""

    directory: Path
    stored: dict[str, int]
    """Number of stored patches by split."""
    left_out: dict[str, int]
    """Number of patches that are not for training, by reason."""
    skipped: dict[str, str]
    """Reasons why patches could not be read, by name."""
    listed: dict[str, int]
    """Number of patches that the lists name, by split."""
    damaged: int | None = None
    """Number of damaged patches that were read again; None if nothing was verified."""

    def __str__(self) -> str:
        counts = ", ".join(f"{self.stored.get(split, 0)} {split}" for split in SPLITS)
        size = (self.directory / PIXELS).stat().st_size
        lines = [f"{self.directory}: {counts} patches, {size / 1e6:.0f} MB"]
        if self.damaged is not None:
            lines.append(f"damaged, and read again: {self.damaged}")
        lines += [f"left out: {count}, {reason}" for reason, count in sorted(self.left_out.items())]
        if self.skipped:
            lines.append(
                f"skipped: {len(self.skipped)}, which could not be read; the next run tries them again"
            )
            lines += [f"  {name}: {reason}" for name, reason in islice(self.skipped.items(), 20)]
            if len(self.skipped) > 20:
                lines.append(f"  … and {len(self.skipped) - 20} others; {INDEX} has no labels for them")
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
    repair: bool = False,
    processes: int | None = None,
    show: bool = True,
) -> Summary:
    """Read the patches of an archive and store them in ``directory``; continue if some of them are there.

    An error loses nothing that was read; a kill or a power cut loses the last half minute.

    Args:
        archive_path (path): archive of BigEarthNet.
        directory (path): directory to make.
        lists (path; default None): directory of the split lists or parquet files; None: in or beside the archive.
        bands (sequence of str; default None): bands to store; None: all.
        patches (int; default None): number of patches, drawn from all splits and always the same; None: all.
        on_error (str; default "refuse"): "refuse" raises the error of the first unreadable patch, "skip" reports it.
        repair (bool; default False): whether to verify the stored patches first, and to read damaged patches again.
        processes (int; default None): number of processes that read; None: one for each core.
        show (bool; default True): whether to show the progress.

    Raises:
        ValueError: options contradict the content of ``directory`` or the lists, or files are damaged.
        PatchError: a patch cannot be read.
        FileNotFoundError: the archive or a list is missing.
        OSError: the disk is full.
        ChildProcessError: a process that reads was killed.
    """
    if on_error not in ON_ERROR:
        raise ValueError(f"on_error = {on_error!r}: must be {' or '.join(ON_ERROR)}. Correct it.")
    if patches is not None and patches < 1:
        raise ValueError(f"patches = {patches}: must be 1 or more. Correct it.")
    chosen = checked_bands(bands)
    archive = open_archive(archive_path, lists=lists)
    directory, version = made_directory(_apart(archive, Path(directory))), archive.reader.version
    if patches is not None and patches > len(archive.patches):
        raise ValueError(f"patches = {patches}: the lists name {len(archive.patches)}. Name fewer, or none.")
    wanted = _some(archive.patches, patches)
    if long := [patch.name for patch in wanted if len(patch.name.encode()) > NAME_BYTES]:
        raise ValueError(
            f"{archive_path}: the name {long[0]!r} has more than {NAME_BYTES} bytes. Correct the lists."
        )
    skipped: dict[str, str] = {}
    with locked(directory):
        rows = begun(directory, version, wanted, chosen)
        damaged = _forget_damaged(directory, rows, show=show) if repair else None
        todo = [(row, wanted[row]) for row in np.flatnonzero(~rows["labels"].any(axis=1)).tolist()]
        _check_beforehand(archive, directory, [patch for _, patch in todo], chosen, on_error)
        done, kept_at = len(wanted) - len(todo), time.monotonic()
        try:
            with shown(f"{version}'s patches", len(wanted), done=done, show=show) as advance:
                for found in _all_stored(archive, directory / PIXELS, chosen, todo, len(rows), processes):
                    rows[found.numbers] = found.rows
                    skipped.update(found.skipped)
                    unread = next((name for name, why in found.skipped.items() if why != CLASSLESS), None)
                    if unread is not None and on_error == "refuse":
                        raise _unread(unread, skipped[unread])
                    # The rows name what a later run need not read again.
                    if time.monotonic() > kept_at + _KEPT_EVERY_S:
                        keep(directory, rows)
                        kept_at = time.monotonic()
                    advance(len(found.rows))
        finally:
            keep(directory, rows)
        stored = rows["split"][rows["labels"].any(axis=1)].tolist()
        if not stored:
            first = next((f"Patch {name}: {why}" for name, why in skipped.items()), "The lists name none.")
            raise ValueError(f"{archive_path}: no patch could be read. {first}")
        finish(directory)
    left_out = archive.left_out | {
        CLASSLESS: sum(why == CLASSLESS for why in skipped.values()),
        "not asked for": len(archive.patches) - len(wanted),
    }
    return Summary(
        directory=directory,
        stored=dict(Counter(split.decode() for split in stored)),
        left_out={why: count for why, count in left_out.items() if count},
        skipped={name: why for name, why in skipped.items() if why != CLASSLESS},
        listed=dict(Counter(patch.split for patch in archive.patches)),
        damaged=damaged,
    )


def _forget_damaged(directory: Path, rows: Patches, *, show: bool) -> int:
    """Remove the labels of damaged patches, so that they are read again; returns their number."""
    if not (directory / INDEX).exists():
        # The last run did not come to its end; its patches have only just been written.
        return 0
    damaged = np.isin(rows["name"], np.array(verify(directory, show=show), dtype=rows["name"].dtype))
    rows["labels"][damaged] = False
    return int(damaged.sum())


def verify(directory: str | Path, *, show: bool = True) -> list[str]:
    """Names of the stored patches whose checksum is wrong."""
    store, names = Store(directory), []
    with shown("verified", len(store), show=show) as advance:
        for name in store.damaged():
            if name is not None:
                names.append(name)
            advance(1)
    return names


@dataclass(frozen=True, kw_only=True)
class _Stored:
    """Chunk of patches that a process has stored."""

    numbers: list[int]
    """Row numbers in patches.npy."""
    rows: Patches
    skipped: dict[str, str]
    """Reasons why patches have no pixels, by name."""


def _store(reader: Reader, pixels: Path, begin: int, bands: Sequence[str], chunk: _Chunk) -> _Stored:
    numbers, patches = [number for number, _ in chunk], [patch for _, patch in chunk]
    found = _Stored(numbers=numbers, rows=named(patches, reader.version), skipped={})
    values = np.zeros((), row_of(bands))
    contents: dict[int, bytes] = {}
    for number, patch, row in zip(numbers, patches, found.rows):
        try:
            sample = reader.read(patch, bands)
        except PatchError as error:
            found.skipped[patch.name] = error.reason
            continue
        if not sample.classes:
            found.skipped[patch.name] = CLASSLESS
            continue
        for band in bands:
            values[band] = sample.bands[band]
        contents[number] = values.tobytes()
        row["labels"][list(sample.classes)] = True
        row["crc32"] = checksum(row, contents[number])
    with refused(pixels, "written"), open(pixels, "r+b") as file:
        for number, content in contents.items():
            file.seek(begin + number * values.itemsize)
            file.write(content)
    return found


def _all_stored(
    archive: Archive, pixels: Path, bands: Sequence[str], todo: _Chunk, rows: int, processes: int | None
) -> Iterator[_Stored]:
    _, begin = bands_of(pixels, rows)
    chunks = [todo[start : start + _CHUNK] for start in range(0, len(todo), _CHUNK)]
    store = partial(_store, archive.reader, pixels, begin, bands)
    try:
        yield from in_processes(store, chunks, processes=processes, apart=archive.reader.mapped)
    except ChildProcessError as error:
        raise ChildProcessError(f"{archive.path}: {error}") from error


def _apart(archive: Archive, directory: Path) -> Path:
    """``directory``; ValueError if it is inside the archive."""
    if directory.resolve() in (archive.path.resolve(), (archive.path / V2_FOLDER).resolve()):
        raise ValueError(
            f"OUT is {directory}, which holds the archive itself. Name another directory to make."
        )
    return directory


def _check_beforehand(
    archive: Archive, directory: Path, todo: list[Patch], bands: Sequence[str], on_error: str
) -> None:
    """Errors that are known before hours of reading: missing patches, a disk that is too small."""
    known = set(archive.missing)
    missing = [patch.name for patch in todo if patch.name in known]
    if missing and on_error == "refuse":
        others, more = len(missing) - 1, ""
        if others:
            more = f", and so {'is 1 other' if others == 1 else f'are {others} others'} of the {len(todo)} to read"
        raise _unread(missing[0], f"its folder is missing{more}: the archive is not completely extracted.")
    needed = (len(todo) - len(missing)) * (row_of(bands).itemsize + PATCH.itemsize)
    free = shutil.disk_usage(directory).free
    if needed > free:
        raise OSError(
            f"{directory} needs {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free. Make room, choose "
            "fewer bands or patches, or name another directory."
        )


def _unread(patch: str, reason: str) -> PatchError:
    return PatchError(patch, f"{reason} Repair it and start again, which goes on; or pass --on-error skip.")


def _some(patches: list[Patch], count: int | None) -> list[Patch]:
    if count is None:
        return patches
    # A prefix of one permutation: a larger selection contains each smaller one.
    chosen = np.random.default_rng(0).permutation(len(patches))[:count]
    return [patches[i] for i in sorted(chosen.tolist())]
