"""A campaign's directory that a test writes by hand, record after record, while what reads it looks on."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from individuals import make_finished, make_started

import hpo
from hpo.journal.curves import CurveWriter, Point, curve_path
from hpo.journal.directory import write_identity
from hpo.journal.files import JournalWriter, journal_path
from hpo.journal.records import Ended, Header, Launched, Reopened

SPACE = hpo.SearchSpace(
    lr=hpo.Float(1e-5, 0.1, log=True),
    depth=hpo.Int(1, 64, log=True),
    act=hpo.Categorical("relu", "elu", None, True),
    width=hpo.Ordinal(32, 64, 128),
    optimizer=hpo.Categorical("sgd", "adam"),
    momentum=hpo.Float(0.0, 0.99, when={"optimizer": "sgd"}),
)
BEGAN = 1.7e9
"""Unix seconds of the first launch; the individual of sequence number n starts 10 n seconds later."""


def params(number: int) -> dict[str, Any]:
    """The configuration of the individual of this sequence number."""
    chosen = SPACE.decode(
        [((number + 1) * share) % 1.0 for share in (0.31, 0.57)] + [number % 4, number % 3, number % 2, 0.4]
    )
    return dict(chosen)


class Written:
    """One worker's journal and curves in ``path``; what is added is on disk at once."""

    def __init__(
        self, path: Path, objectives: dict[str, str] | None = None, *, seed: int = 0, worker: int = 0
    ) -> None:
        self.path = path
        self.objectives = objectives or {"value": "minimize"}
        task = hpo.Task(SPACE, lambda trial: 0.0, objectives=self.objectives)
        write_identity(
            path, {"task": "x:task", "options": {}, **task.describe(), "seed": seed, "created": BEGAN}
        )
        place = {"launch": 1, "island": 0, "worker": worker}
        header = Header(version=1, **place, host="node", pid=1, time=BEGAN)
        self._journal = JournalWriter(journal_path(path, **place), header)
        self._curves = CurveWriter(curve_path(path, **place), 0.0)
        launched = Launched(evaluations=100, deadline_s=None, islands=1, workers=1, time=BEGAN)
        self._write(launched)

    def start(self, number: int, **fields: Any) -> str:
        """The individual of this sequence number starts; returns its id."""
        self._write(make_started(**self._who(number, **fields), time=BEGAN + 10 * number))
        return f"0-0-{number}"

    def report(self, number: int, step: int, value: float, *, attempt: int = 0, **metrics: Any) -> None:
        """A row of its curve; later attempts begin later."""
        began = BEGAN + 10 * number + 5 * attempt
        row = Point(
            id=f"0-0-{number}", step=step, value=value, time=began + 0.1 * step, began=began, metrics=metrics
        )
        self._curves.write(row)

    def finish(
        self, number: int, value: float | None = None, status: str = "completed", **fields: Any
    ) -> None:
        """It ends; with several objectives all have ``value``."""
        values = None if value is None else dict.fromkeys(self.objectives, value)
        error = None if status in ("completed", "pruned") else f"{status}: <b>why</b>"
        ended = {"objectives": values, "error": error, "metrics": {}, "finished": BEGAN + 10 * number + 4.5}
        ended |= {key: fields.pop(key) for key in list(fields) if key in ended}
        self._write(
            make_finished(**self._who(number, **fields), started=BEGAN + 10 * number, status=status, **ended)
        )

    def evaluate(
        self, number: int, value: float | None, status: str = "completed", steps: int = 3, **fields: Any
    ) -> None:
        """It starts, reports and ends."""
        self.start(number)
        for step in range(1, steps + 1):
            self.report(number, step, (value or 0.0) + 1 / step, loss=2.0 / step)
        self.finish(number, value, status, **fields)

    def reopen(self, number: int) -> None:
        """Its failure does not count any more."""
        self._write(Reopened(id=f"0-0-{number}", number=1, reason="retry", time=time.time()))

    def end(self, reason: str = "done", exit: int = 0) -> None:
        """The launch is over."""
        self._write(Ended(reason=reason, exit=exit, time=BEGAN + 1e4))

    def _who(self, number: int, **fields: Any) -> dict[str, Any]:
        parents = (f"0-0-{number - 3}", f"0-0-{number - 2}") if number > 2 else ()
        return {
            "id": f"0-0-{number}",
            "island": 0,
            "worker": 0,
            "sequence": number,
            "params": params(number),
            "operator": "evolution" if parents else "random",
            "parents": parents,
            "retries": 0,
            **fields,
        }

    def _write(self, record: Any) -> None:
        self._journal.append(record)
        self._journal.commit()
