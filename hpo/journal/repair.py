"""``hpo check --repair``: keep what is whole of damaged journals.

Nothing is ever deleted. A journal that is replaced is first kept aside, in ``DIR/damaged/`` under its name with
``.damaged-N`` added, and a reader sees the old file or the new one at any moment.
"""

from __future__ import annotations

import filecmp
import os
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from hpo.errors import CampaignError
from hpo.journal import directory as directories
from hpo.journal import records as journal
from hpo.journal.check import Inspection, check
from hpo.journal.evidence import JournalFile, pieces
from hpo.journal.findings import DAMAGE, LOST, Report, counted


def repair(directory: Path) -> Report:
    """Keep what is whole of damaged journals, and the damaged ones aside; then ``check``, with what was done.

    Raises:
        CampaignError: a campaign is at work, there is none, or the directory cannot be read or written.
    """
    first = check(directory)
    lock = directories.acquire(directory)
    try:
        inspection = Inspection(directory, ours=True)
        try:
            done = [_mend(directory, file, inspection) for file in inspection.files if file.to_do]
        except OSError as error:
            raise CampaignError(
                f"{directory} cannot be repaired ({error.strerror or error}). What was whole is where it was, and "
                f"damaged files are in {directory / 'damaged'}: make room or give write access there, then give the "
                "same command again."
            ) from error
        lost = [one for one in inspection.report.findings if one.lines is not None and one.kind == DAMAGE]
        report = Inspection(directory, ours=True).report if done else inspection.report
    finally:
        lock.release()
    report.lock, report.holder = first.lock, first.holder
    if done:
        # What is gone was told of the damaged file, which is another one now.
        report.findings = [replace(one, kind=LOST) for one in lost] + report.findings
    report.repaired = done
    return report


def _mend(directory: Path, file: JournalFile, inspection: Inspection) -> str:
    """Put what is whole of ``file`` in its place, the file as it was aside; a sentence on it."""
    kept = _keep_aside(directory, file.path)
    name = file.path.name
    if file.misfit or (file.elsewhere is not None and file.elsewhere.exists()):
        file.path.unlink()
        journal.sync_directory(file.path.parent)
        ends = {entry.id for entry in file.entries if entry.result is not None} - set(inspection.finals)
        why = "of another campaign" if file.misfit else "a copy"
        return (
            f"{name}, {why}, moved to {kept}; {counted(len(ends), 'finished individual')} in it count no more"
        )
    target = file.elsewhere or file.path
    first = file.header
    if first is None:
        first = _header(file, inspection.files)
    lines = [journal.encode(first)]
    lines += [
        piece.data
        for piece in pieces(file.path)
        if piece.record is not None and piece.record["type"] != "header" and piece.start not in file.doubled
    ]
    directories.write_atomically(target, b"".join(lines))
    if target != file.path:
        file.path.unlink()
        journal.sync_directory(file.path.parent)
    gone = sum(gap.stop - gap.start for gap in file.gaps)
    parts = [f"{counted(len(lines) - 1, 'record')} kept"]
    if file.gaps:
        parts.append(f"{counted(gone, 'byte')} in {counted(len(file.gaps), 'place')} left out")
    if file.header is None:
        parts.append("its header made anew from its name")
    if target != file.path:
        parts.append(f"it is {target.name} now")
    if file.doubled:
        parts.append(f"{counted(len(file.doubled), 'second end')} of individuals left out")
    return f"{name}: {', '.join(parts)}; as it was, it is {kept}"


def _header(file: JournalFile, files: Iterable[JournalFile]) -> journal.Record:
    """A header by the file's name; its time is that of the launch as far as it can be known."""
    leg, island, worker = file.place
    times = [float(one.header["time"]) for one in files if one.header is not None and one.place[0] == leg]
    if file.earliest is not None:
        times.append(file.earliest)
    at = min(times) if times else file.path.stat().st_mtime
    fields = {"leg": leg, "island": island, "worker": worker, "host": "unknown", "pid": 0, "time": at}
    return {"type": "header", "version": journal.VERSION, **fields}


def _keep_aside(directory: Path, path: Path) -> Path:
    """The file in ``damaged/`` that now has what ``path`` has."""
    aside = directory / "damaged"
    aside.mkdir(exist_ok=True)
    number = 1
    while True:
        kept = aside / f"{path.name}.damaged-{number}"
        # A repair that was cut off has kept it already.
        if kept.exists() and filecmp.cmp(kept, path, shallow=False):
            return kept
        try:
            os.link(path, kept)
        except FileExistsError:
            number += 1
            continue
        except OSError:  # a file system without links
            if not _copied(path, kept):
                number += 1
                continue
        journal.sync_directory(aside)
        journal.sync_directory(directory)
        return kept


def _copied(path: Path, kept: Path) -> bool:
    """Copy ``path`` to ``kept``, durably; False if that exists."""
    try:
        with open(kept, "xb") as target, open(path, "rb") as source:
            shutil.copyfileobj(source, target, 1 << 20)
            target.flush()
            os.fsync(target.fileno())
    except FileExistsError:
        return False
    except OSError:
        kept.unlink(missing_ok=True)
        raise
    return True
