"""Sink for TensorBoard: a folder of event files for each individual, and a table of hyperparameters (HParams).

A folder gets another file where another process, or another attempt, continues its individual. That file begins with
the step from which TensorBoard has to discard the events of earlier files.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tensorboardX import RecordWriter
from tensorboardX.proto.api_pb2 import (
    DataType,
    Experiment,
    HParamInfo,
    Interval,
    MetricInfo,
    MetricName,
    Status,
)
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData, SessionEndInfo, SessionStartInfo
from tensorboardX.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboardX.summary import text

from hpo.individual import Individual, Scalar
from hpo.journal.curves import Point
from hpo.journal.durable import write_atomically
from hpo.loggers.sink import RESULT, LoggedCampaign, Rows, Sink, choice_text, results, succeeded
from hpo.space.parameters import Categorical, Parameter
from hpo.space.ranges import Float, Int

_EXPERIMENT, _START, _END = (
    f"_hparams_/{name}" for name in ("experiment", "session_start_info", "session_end_info")
)
_VERSION = "brain.Event:2"


class TensorBoardSink(Sink):
    """Writes event files to ``folder``, with a subfolder for each individual."""

    def __init__(self, campaign: LoggedCampaign, folder: Path) -> None:
        self._campaign = campaign
        self._folder = folder
        self._runs: dict[str, _Run] = {}
        self._metrics = dict.fromkeys((*(RESULT + name for name in campaign.objectives), *campaign.results))
        self._experiment: bytes = b""
        self._write_experiment()

    def started(self, individual: Individual) -> None:
        start = SessionStartInfo(group_name=individual.id, start_time_secs=individual.started or 0.0)
        for name, given in individual.params.items():
            value = _hparam(self._campaign.parameters.get(name), given)
            kind = "bool" if isinstance(value, bool) else "string" if isinstance(value, str) else "number"
            setattr(start.hparams[name], f"{kind}_value", value)
        content = HParamsPluginData(session_start_info=start, version=0)
        self._run(individual).write(_plugin(_START, content), 0, individual.started)

    def measured(self, individual: Individual, points: Sequence[Point]) -> None:
        for point in points:
            self._run(individual).reach(point)
            super().measured(individual, [point])

    def finished(self, individual: Individual) -> None:
        run = self._run(individual)
        step = max(run.step, 0)
        for name, value in results(individual).items():
            self._metrics.setdefault(name)
            run.write(_scalar(name, value), step, individual.finished)
        if individual.error:
            # Indented, which makes it code in Markdown.
            shown = text("error", f"    {individual.error}".replace("\n", "\n    "))
            run.write(shown, step, individual.finished)
        status = "STATUS_SUCCESS" if succeeded(individual) else "STATUS_FAILURE"
        end = SessionEndInfo(status=Status.Value(status), end_time_secs=individual.finished or 0.0)
        content = HParamsPluginData(session_end_info=end, version=0)
        run.write(_plugin(_END, content), step, individual.finished)
        self._runs.pop(individual.id).close()

    def flush(self) -> None:
        for run in self._runs.values():
            run.flush()

    def close(self) -> None:
        for run in self._runs.values():
            run.close()
        self._runs.clear()
        self._write_experiment()

    def _log(self, individual: Individual, rows: Rows) -> None:
        run = self._run(individual)
        for values, step, at in rows:
            for name, value in values.items():
                run.write(_scalar(name, value), step, at)

    def _run(self, individual: Individual) -> _Run:
        if individual.id not in self._runs:
            self._runs[individual.id] = _Run(self._folder / individual.id)
        return self._runs[individual.id]

    def _write_experiment(self) -> None:
        """Write the columns of the table of hyperparameters.

        TensorBoard uses the first description that it reads in a folder, so it has a single file, which is replaced
        when there are more metrics.
        """
        experiment = Experiment(
            name=self._campaign.name,
            description=self._campaign.task,
            time_created_secs=self._campaign.created,
            hparam_infos=[_info(name, parameter) for name, parameter in self._campaign.parameters.items()],
            metric_infos=[
                MetricInfo(name=MetricName(tag=name), display_name=name.removeprefix(RESULT))
                for name in self._metrics
            ],
        )
        content = experiment.SerializeToString()
        if content == self._experiment:
            return
        self._experiment = content
        path = self._folder / f"events.out.tfevents.{int(self._campaign.created):010d}.hpo"
        partial = self._folder / ".experiment"
        file = _EventFile(partial)
        file.write(_plugin(_EXPERIMENT, HParamsPluginData(experiment=experiment, version=0)), 0, None)
        file.close()
        write_atomically(path, partial.read_bytes(), durable=False)
        partial.unlink()


class _EventFile:
    """A file of TensorBoard events."""

    def __init__(self, path: Path) -> None:
        self._records = RecordWriter(os.fspath(path))
        self.write_event(Event(file_version=_VERSION, wall_time=time.time()))

    def write(self, summary: Any, step: int, at: float | None) -> None:
        self.write_event(Event(summary=summary, step=step, wall_time=time.time() if at is None else at))

    def write_event(self, event: Any) -> None:
        self._records.write(event.SerializeToString())

    def flush(self) -> None:
        self._records.flush()

    def close(self) -> None:
        self._records.close()


class _Run(_EventFile):
    """A new event file in the folder of an individual. ``step``: last reported step, -1 before the first report."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        # TensorBoard reads the files of a folder in the order of their names, so this file needs the highest number.
        before = sorted(path.name for path in folder.glob("events.out.tfevents.*"))
        number = max([int(time.time()), *(int(name.split(".")[3]) + 1 for name in before)])
        super().__init__(folder / f"events.out.tfevents.{number:010d}.hpo")
        self.step = -1
        self._began: float | None = None
        self._continues = bool(before)

    def reach(self, point: Point) -> None:
        """Discard events of the same and later steps from an earlier process or attempt, before a report is written."""
        again = self._continues if self._began is None else point.began != self._began
        if again or point.step < self.step:
            start = SessionLog(status=SessionLog.START)
            self.write_event(Event(step=point.step, session_log=start, wall_time=point.time))
        self._began, self.step = point.began, point.step


def _info(name: str, parameter: Parameter) -> Any:
    """Column of the table of hyperparameters for a parameter."""
    if isinstance(parameter, (Float, Int)):
        return HParamInfo(
            name=name,
            type=DataType.Value("DATA_TYPE_FLOAT64"),
            domain_interval=Interval(min_value=parameter.low, max_value=parameter.high),
        )
    info = HParamInfo(name=name)
    values = [_hparam(parameter, value) for value in parameter.values()]
    kind = type(values[0])
    info.type = DataType.Value(
        {bool: "DATA_TYPE_BOOL", str: "DATA_TYPE_STRING"}.get(kind, "DATA_TYPE_FLOAT64")
    )
    info.domain_discrete.extend(values)
    return info


def _hparam(parameter: Parameter | None, value: Scalar) -> bool | float | str:
    """Value in the table of hyperparameters, where all values of a column need the same type."""
    kinds: set[type] = {type(value)}
    if isinstance(parameter, Categorical):
        kinds = {float if type(choice) is int else type(choice) for choice in parameter.choices}
    if len(kinds) == 1 and isinstance(value, (bool, str)):
        return value
    if len(kinds) == 1 and isinstance(value, (int, float)):
        return float(value)
    return choice_text(parameter, value)


def _scalar(name: str, value: float) -> Any:
    """Summary of a number under its own name."""
    # tensorboardX replaces characters in names: two metrics could get the same, and HParams would find neither.
    return Summary(value=[Summary.Value(tag=name, simple_value=value)])


def _plugin(tag: str, content: Any) -> Any:
    data = SummaryMetadata.PluginData(plugin_name="hparams", content=content.SerializeToString())
    return Summary(value=[Summary.Value(tag=tag, metadata=SummaryMetadata(plugin_data=data))])
