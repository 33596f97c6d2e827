"""Writes a campaign to a sink, from its files alone: what is new since it was last done, by whichever process."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hpo.errors import CampaignError, HpoError
from hpo.individual import FINAL, RUNNING, Individual
from hpo.journal.curves import Point, Sample, curve_files, read_from
from hpo.journal.directory import campaign_key
from hpo.journal.lock import holder
from hpo.loggers import registry
from hpo.loggers.marks import Mark, Marks
from hpo.loggers.sink import LoggedCampaign, Sink, results
from hpo.results.follow import Follower
from hpo.results.parts import Place
from hpo.results.record import CampaignRecord
from hpo.space.description import described_space

_FOLDER = "logs"
_SAVED_S = 10.0
"""After how long what was written is put on record in the midst of a look."""


def sink_folder(directory: Path, base: Path | None, name: str) -> Path:
    """Where the sink of this name keeps its files: in the campaign's directory, or below ``base``, which several
    campaigns may share."""
    if base is None:
        return directory / _FOLDER / name
    return Path(os.path.expanduser(base)) / (directory.resolve().name or "campaign") / name


@dataclass(kw_only=True)
class Written:
    """How much was written."""

    started: int = 0
    rows: int = 0
    ended: int = 0

    def __bool__(self) -> bool:
        return bool(self.started or self.rows or self.ended)

    def add(self, other: Written) -> None:
        self.started += other.started
        self.rows += other.rows
        self.ended += other.ended

    def __str__(self) -> str:
        return f"{self.started} individuals begun, {self.ended} ended, {self.rows} rows of curves"


class CampaignLog:
    """The log of the campaign in ``directory`` in the sink ``name``, whose files are in ``folder``.

    Raises:
        HpoError: there is no campaign, or the folder cannot be used (see ``hpo.loggers.marks.Marks``).
    """

    def __init__(self, directory: Path, name: str, folder: Path, *, patience_s: float = 0.0) -> None:
        self._directory = directory
        self._name = name
        self._folder = folder
        self._follower = Follower(directory)
        self._offsets: dict[Path, int] = {}
        self._record: CampaignRecord | None = None
        self._alive = True
        self._save_at = time.monotonic() + _SAVED_S
        self._individuals: dict[str, Individual] = {}
        self._early: list[Point | Sample] = []
        # What went on on another worker of the same launch: its rows are in files that are not read in their order.
        self._moved: set[str] = set()
        self._sink: Sink | None = None
        self._marks = Marks(folder, self._logged().key, patience_s=patience_s)

    @property
    def done(self) -> bool:
        """Whether the campaign, as it was last read, is complete and nothing more will come."""
        ended = None if self._record is None else self._record.ended
        return not self._alive and ended is not None and ended[1] == 0

    def write(self) -> Written:
        """Write what is new.

        Raises:
            CampaignError: the sink failed, and is made anew by the next call; or the campaign cannot be read.
        """
        written = Written()
        self._read_journals()
        try:
            if self._sink is None:
                self._sink = registry.make(self._name, self._logged(), self._folder)
            self._begin(written)
            self._measure(written)
            self._finish(written)
            if written:
                self._save()
        except HpoError:
            raise
        except Exception as error:  # the sink's library's: there is no end of kinds
            self._reset()
            reason = str(error).strip().splitlines()
            raise CampaignError(
                f"the sink {self._name} failed ({type(error).__name__}{': ' + reason[0] if reason else ''}). `hpo log` "
                "writes what is missing there"
            ) from error
        return written

    def close(self) -> None:
        """End the sink, which has got all that ``write`` wrote."""
        sink, self._sink = self._sink, None
        try:
            if sink is not None:
                sink.close()
        finally:
            self._marks.close()

    def _logged(self) -> LoggedCampaign:
        record = self._record or self._follower.record()
        identity = record.identity
        return LoggedCampaign(
            name=self._directory.resolve().name or "campaign",
            key=campaign_key(identity),
            task=str(identity.get("task", "")),
            created=float(identity.get("created") or 0.0),
            parameters=described_space(identity.get("space")).parameters,
            objectives=record.objectives,
            results=tuple(dict.fromkeys(name for one in record.individuals for name in results(one))),
        )

    def _reset(self) -> None:
        """After a failure of the sink: begin anew with what is known to be written."""
        self._sink = None
        self._marks.reload()
        self._offsets, self._early = {}, []

    def _read_journals(self) -> None:
        changes = self._follower.poll()
        self._alive = holder(self._directory) is not None
        if not changes and self._record is not None:
            return
        while changes.more:
            changes = self._follower.poll()
        self._record = self._follower.record()
        self._individuals = {one.id: one for one in self._record.individuals}
        places: dict[tuple[str, int], set[Place]] = {}
        for part in self._record.parts:
            places.setdefault((part.id, part.place[0]), set()).add(part.place)
        self._moved = {identity for (identity, _), several in places.items() if len(several) > 1}

    # Each individual is begun and ended as near to its rows as can be: a sink may hold a file or a connection for each
    # that has begun and not ended.

    def _begin(self, written: Written) -> None:
        """Those that go on, or that may."""
        for one in self._individuals.values():
            if one.status not in FINAL:
                self._start(one, written)

    def _start(self, one: Individual, written: Written) -> Mark:
        assert self._sink is not None
        mark = self._marks.by_id.get(one.id)
        if mark is None or (mark.ended and one.status == RUNNING):
            self._sink.started(one)
            mark = self._marks.by_id.setdefault(one.id, Mark())
            mark.ended = ""
            written.started += 1
        return mark

    def _end(self, one: Individual, written: Written) -> None:
        assert self._sink is not None
        ended = f"{one.status} {one.finished!r}"
        mark = self._start(one, written)
        if mark.ended != ended:
            self._sink.finished(one)
            mark.ended = ended
            written.ended += 1
            if time.monotonic() >= self._save_at:
                self._save()

    def _save(self) -> None:
        assert self._sink is not None
        self._sink.flush()
        self._marks.save()
        self._save_at = time.monotonic() + _SAVED_S

    def _measure(self, written: Written) -> None:
        """Curves are read after the journals, so that an individual's rows are there before its end is written."""
        early, self._early = self._early, []
        self._log_rows(early, None, written)
        moved: list[Point | Sample] = []
        for place, path in curve_files(self._directory):
            while True:
                offset = self._offsets.get(path, 0)
                rows, end = read_from(path, offset)
                moved += [row for row in rows if row.id in self._moved]
                self._log_rows([row for row in rows if row.id not in self._moved], place.launch, written)
                self._offsets[path] = end
                if end == offset:
                    break
        self._log_rows(sorted(moved, key=lambda row: row.time), None, written)

    def _log_rows(self, rows: Iterable[Point | Sample], launch: int | None, written: Written) -> None:
        """Log the rows of a piece of a file, and end those whose last rows these are. ``launch``: that wrote it."""
        assert self._sink is not None
        found: dict[str, tuple[list[Point], list[Sample]]] = {}
        last = ""
        for row in rows:
            if row.id in self._individuals:
                points, samples = found.setdefault(row.id, ([], []))
                points.append(row) if isinstance(row, Point) else samples.append(row)
                last = row.id
            elif row.id:
                self._early.append(row)  # its beginning is not read yet
        for identity, (points, samples) in found.items():
            one = self._individuals[identity]
            mark = self._start(one, written)
            points = [point for point in points if point.time > mark.reported]
            samples = [sample for sample in samples if sample.time > mark.sampled]
            if points:
                self._sink.measured(one, points)
                mark.reported = max(point.time for point in points)
            if samples:
                self._sink.sampled(one, samples)
                mark.sampled = max(sample.time for sample in samples)
            written.rows += len(points) + len(samples)
            if one.status in FINAL and one.launch == launch and identity != last:
                self._end(one, written)

    def _finish(self, written: Written) -> None:
        for one in self._individuals.values():
            if one.status in FINAL:
                self._end(one, written)
