"""Log of a campaign in a sink, made from the campaign's files alone; each call writes the new records.

Any process on any host may continue the log, one at a time: marks in the sink's folder say what is written.
"""

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
from hpo.ledger.alive import living
from hpo.loggers import registry
from hpo.loggers.marks import Mark, Marks
from hpo.loggers.sink import LoggedCampaign, Sink, results
from hpo.results.follow import Follower
from hpo.results.parts import Place
from hpo.results.record import CampaignRecord
from hpo.space.space import described_space

_FOLDER = "logs"
_SAVED_S = 10.0
"""Seconds between two saves of the marks during a long look."""


def sink_folder(directory: Path, base: Path | None, name: str) -> Path:
    """Folder of the files of the sink ``name``: in the campaign's ``directory``, or below ``base``."""
    if base is None:
        return directory / _FOLDER / name
    # Several campaigns may share a base: each has a folder with its name.
    return Path(os.path.expanduser(base)) / (directory.resolve().name or "campaign") / name


@dataclass(kw_only=True)
class Written:
    """Numbers of records written. ``rows``: reports and samples of the host."""

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
    """Log of the campaign in ``directory`` in the sink ``name``, whose files are in ``folder``.

    ``patience_s``: seconds to wait while another process writes to the folder. HpoError where there is no campaign, or
    the folder cannot be used.
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
        """Rows of individuals whose beginnings are not read yet."""
        # Each worker has a file of its own, and files are read one after the other: rows of an individual that
        # continued on another worker of the same launch have to be sorted by time.
        self._moved: set[str] = set()
        self._sink: Sink | None = None
        self._marks = Marks(folder, self._logged().key, patience_s=patience_s)

    @property
    def done(self) -> bool:
        """Whether the campaign was complete, and no launch of it ran, at the last look."""
        ended = None if self._record is None else self._record.ended
        return not self._alive and ended is not None and ended[1] == 0

    def write(self) -> Written:
        """Write the records that are new since the last call; CampaignError where the sink failed, of which the next
        call makes another, or the campaign cannot be read."""
        written = Written()
        self._read_journals()
        try:
            # Curves are read after the journals, so that they have all rows of an individual whose end was read.
            if self._sink is None:
                self._sink = registry.make(self._name, self._logged(), self._folder)
            for individual in self._individuals.values():
                if individual.status not in FINAL:
                    self._start(individual, written)
            self._measure(written)
            for individual in self._individuals.values():
                if individual.status in FINAL:
                    self._end(individual, written)
            if written:
                self._save()
        except HpoError:
            raise
        except Exception as error:  # the sinks' libraries raise exceptions of many unrelated classes
            # The next sink continues from the saved marks.
            self._sink = None
            self._marks.load()
            self._offsets, self._early = {}, []
            reason = str(error).strip().splitlines()
            raise CampaignError(
                f"the sink {self._name} failed ({type(error).__name__}{': ' + reason[0] if reason else ''}). `hpo log` "
                "writes what is missing there"
            ) from error
        return written

    def close(self) -> None:
        """Close the sink and release its folder; all that ``write`` wrote is in the sink."""
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
            results=tuple(
                dict.fromkeys(name for individual in record.individuals for name in results(individual))
            ),
        )

    def _read_journals(self) -> None:
        changes = self._follower.poll()
        self._alive = bool(living(self._directory))
        if not changes.new and self._record is not None:
            return
        # A poll reads a bounded piece; the curves below must not be ahead of the journals.
        while changes.more:
            changes = self._follower.poll()
        self._record = self._follower.record()
        self._individuals = {individual.id: individual for individual in self._record.individuals}
        places: dict[tuple[str, int], set[Place]] = {}
        for part in self._record.parts:
            places.setdefault((part.id, part.place[0]), set()).add(part.place)
        self._moved = {identity for (identity, _), several in places.items() if len(several) > 1}

    # Individuals are begun right before their first rows and ended right after their last: sinks may keep a file or a
    # connection open for each individual that has begun and not ended.

    def _start(self, individual: Individual, written: Written) -> Mark:
        assert self._sink is not None
        mark = self._marks.by_id.get(individual.id)
        if mark is None or (mark.ended and individual.status == RUNNING):
            self._sink.started(individual)
            mark = self._marks.by_id.setdefault(individual.id, Mark())
            mark.ended = ""
            written.started += 1
        return mark

    def _end(self, individual: Individual, written: Written) -> None:
        assert self._sink is not None
        ended = f"{individual.status} {individual.finished!r}"
        mark = self._start(individual, written)
        if mark.ended != ended:
            self._sink.finished(individual)
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
        """Log rows of a piece of a file, and end the individuals whose last rows they are. ``launch``: the launch that
        wrote the file; None for rows of several files, which end no individual."""
        assert self._sink is not None
        found: dict[str, tuple[list[Point], list[Sample]]] = {}
        last = ""
        for row in rows:
            if row.id in self._individuals:
                points, samples = found.setdefault(row.id, ([], []))
                points.append(row) if isinstance(row, Point) else samples.append(row)
                last = row.id
            elif row.id:
                self._early.append(row)
        # The last individual of the piece may have further rows in the next piece.
        for identity, (points, samples) in found.items():
            individual = self._individuals[identity]
            mark = self._start(individual, written)
            points = [point for point in points if point.time > mark.reported]
            samples = [sample for sample in samples if sample.time > mark.sampled]
            if points:
                self._sink.measured(individual, points)
                mark.reported = max(point.time for point in points)
            if samples:
                self._sink.sampled(individual, samples)
                mark.sampled = max(sample.time for sample in samples)
            written.rows += len(points) + len(samples)
            if individual.status in FINAL and individual.launch == launch and identity != last:
                self._end(individual, written)
