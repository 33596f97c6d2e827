"""Trackio: a run an individual, in the project of the campaign's name. ``TRACKIO_SPACE_ID`` and the other variables of
its own hold; without ``TRACKIO_DIR`` the runs lie in the sink's folder."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from hpo.individual import Individual
from hpo.journal.curves import Point, Sample
from hpo.loggers.sink import (
    LoggedCampaign,
    facts,
    finite,
    reported,
    results,
    sampled,
    seconds_since_start,
)


class TrackioSink:
    """A run is open only while something of it is written, as Trackio has one at a time."""

    def __init__(self, campaign: LoggedCampaign, folder: Path) -> None:
        os.environ.setdefault(
            "TRACKIO_DIR", os.fspath(folder.resolve())
        )  # which it reads when it is imported
        self._campaign = campaign
        self._project = re.sub(r"[^\w.\-]", "_", campaign.name)

    def started(self, one: Individual) -> None:
        with self._run(one):
            pass

    def measured(self, one: Individual, points: Sequence[Point]) -> None:
        self._log(one, ((reported(point), point.step) for point in points))

    def sampled(self, one: Individual, samples: Sequence[Sample]) -> None:
        self._log(one, ((sampled(sample), seconds_since_start(one, sample)) for sample in samples))

    def finished(self, one: Individual) -> None:
        self._log(one, [({**results(one)}, None)], {f"hpo/{name}": text for name, text in facts(one).items()})

    def flush(self) -> None:
        """Each run is closed when it is written."""

    def close(self) -> None:
        """As ``flush``."""

    def _log(
        self,
        one: Individual,
        rows: Iterable[tuple[dict[str, float], int | None]],
        more: dict[str, str] | None = None,
    ) -> None:
        with self._run(one) as run:
            for values, step in rows:
                if values or more:
                    run.log({**finite(values), **(more or {})}, step=step)

    @contextmanager
    def _run(self, one: Individual) -> Iterator[Any]:
        import trackio

        with redirect_stdout(io.StringIO()):  # it announces each
            run = trackio.init(
                project=self._project,
                name=one.id,
                group=self._campaign.key,
                config={"island": one.island, "operator": one.operator, **one.params},
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
            try:
                yield run
            finally:
                trackio.finish()
