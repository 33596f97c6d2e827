"""TensorBoard against the library itself; sinks beside a campaign that runs: what hangs, dies or fails there costs it
nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from terminal import wait_until
from written import SPACE, Written, params

import hpo
from hpo.loggers import command, processes

ROWS = [(1, 1.0 + 1.0), (2, 1.0 + 0.5), (3, 1.0 + 1 / 3)]


def _events(folder: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(folder))
        events.Reload()
    return events


def _curve(folder: Path, name: str = "value") -> list[tuple[int, float]]:
    return [(event.step, pytest.approx(event.value)) for event in _events(folder).Scalars(name)]


def test_tensorboard_shows_curves_and_hparams(written: Written) -> None:
    written.start(3)
    written.report(3, 1, 5.0)
    written.report(3, 2, 4.0)
    runs = written.path / "logs/tensorboard"
    assert command.log(written.path, "tensorboard", base=None, follow=False) == 0
    assert _curve(runs / "0-0-0") == ROWS
    assert set(_events(runs / "0-0-0").Tags()["scalars"]) == {"value", "loss", "result/value", "result/size"}
    assert _curve(runs / "0-0-3") == [(1, 5.0), (2, 4.0)]
    error = _events(runs / "0-0-1").Tensors("error/text_summary")[0].tensor_proto.string_val[0]
    assert error == b"    failed: <b>why</b>"  # as code, in Markdown

    # Another process goes on: at a new step, and then with another attempt, which TensorBoard shows alone.
    written.report(3, 3, 3.0)
    command.log(written.path, "tensorboard", base=None, follow=False)
    assert _curve(runs / "0-0-3") == [(1, 5.0), (2, 4.0), (3, 3.0)]
    written.report(3, 1, 9.0, attempt=1)
    written.finish(3, 9.0)
    written.end()
    before = sorted(path.stat().st_size for path in runs.rglob("events*"))
    command.log(written.path, "tensorboard", base=None, follow=True)  # it is complete, so this ends
    assert _curve(runs / "0-0-3") == [(1, 9.0)]
    after = sorted(path.stat().st_size for path in runs.rglob("events*"))
    command.log(written.path, "tensorboard", base=None, follow=False)
    assert sorted(path.stat().st_size for path in runs.rglob("events*")) == after != before

    groups, experiment = _hparams(runs)
    assert {one.name for one in experiment.hparam_infos} == set(SPACE.names)
    assert [one.name.tag for one in experiment.metric_infos] == ["result/value", "result/size"]
    assert {one.name for one in groups} == {f"0-0-{number}" for number in range(4)}
    first, failed = (next(one for one in groups if one.name == name) for name in ("0-0-0", "0-0-1"))
    assert first.hparams["lr"].number_value == params(0)["lr"]
    assert first.hparams["optimizer"].string_value == params(0)["optimizer"]
    assert ("momentum" in first.hparams) == ("momentum" in params(0))
    assert [(one.name.tag, one.value) for one in first.metric_values] == [
        ("result/value", 1.0),
        ("result/size", 7.0),
    ]
    assert [first.sessions[0].status, failed.sessions[0].status] == [1, 2]


def _hparams(folder: Path) -> tuple[list[Any], Any]:
    """What TensorBoard's own HParams shows: a row for each session, and the columns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tensorboard import context
        from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
        from tensorboard.plugins import base_plugin
        from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups

        events = plugin_event_multiplexer.EventMultiplexer()
        events.AddRunsFromDirectory(str(folder))
        events.Reload()
        provider = data_provider.MultiplexerDataProvider(events, str(folder))
        hparams = backend_context.Context(base_plugin.TBContext(data_provider=provider, logdir=str(folder)))
        asks = context.RequestContext()
        experiment = hparams.experiment_from_metadata(
            asks,
            "",
            True,
            hparams.hparams_metadata(asks, ""),
            hparams.hparams_from_data_provider(asks, "", None),
        )
        request = api_pb2.ListSessionGroupsRequest(
            allowed_statuses=[0, 1, 2, 3], start_index=0, slice_size=100
        )
        found = list_session_groups.Handler(asks, hparams, "", request).run()
    return list(found.session_groups), experiment


HANGS = """
import os, time
def init(**given):
    open(os.path.join(os.environ["TRACKIO_DIR"], "hangs"), "w").close()
    time.sleep(1000)
"""
DIES = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"


@pytest.fixture
def strange_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Trackio that hangs and a W&B that dies, for the processes that are started."""
    for name, source in {"trackio": HANGS, "wandb": DIES}.items():
        (tmp_path / "packages" / name).mkdir(parents=True)
        (tmp_path / "packages" / name / "__init__.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'packages'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.syspath_prepend(str(tmp_path / "packages"))
    monkeypatch.setattr(processes, "_LEAST_S", 0.5)


@pytest.mark.usefixtures("strange_packages")
def test_a_sink_that_hangs_ends_after_rank_0_has_died_and_not_by_a_signal_to_the_job(written):
    folder = written.path / "logs/trackio"
    source = "import sys; from hpo.loggers import companion; companion._LAST_S = 1; companion.start()"
    line = [sys.executable, "-c", source, str(written.path), "trackio", str(folder)]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        try:
            wait_until((folder / "hangs").exists, "the call that does not return")
            process.send_signal(signal.SIGTERM)
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(30) == -signal.SIGALRM
        finally:
            process.kill()


def _campaign(directory: Path, evaluate: Any, evaluations: int, sinks: list[str]) -> hpo.Result:
    task = hpo.Task(hpo.SearchSpace(x=hpo.Float(0, 1)), evaluate)
    settings = {"evaluations": evaluations, "isolation": "inline", "kind": "random", "log_sinks": sinks}
    return hpo.Campaign(task, directory=directory, **settings).run()


def test_what_a_sink_could_not_write_in_the_end_is_said(tmp_path, strange_packages, capfd):
    source = "def init(**given):\n    raise RuntimeError('the server is away')\n"
    (tmp_path / "packages/trackio/__init__.py").write_text(source)
    result = _campaign(tmp_path / "x", lambda trial: 0.0, 2, ["trackio"])
    assert result.reason == "done"
    said = capfd.readouterr().err
    assert "the server is away" in said and f"`hpo log {tmp_path / 'x'} --to trackio`" in said


@pytest.mark.usefixtures("strange_packages")
def test_a_sink_that_hangs_and_one_that_dies_cost_a_campaign_nothing(tmp_path, monkeypatch, capfd):
    def evaluate(trial: hpo.Trial) -> float:
        trial.report(1, 0.5)
        if trial.id == "0-0-4":
            # The one that hangs is to have been silent for a while: it gets the least then.
            wait_until(
                (tmp_path / "x/logs/tensorboard/written.json").exists, "the first look of TensorBoard's"
            )
            monkeypatch.setattr(processes, "_FAREWELL_S", 8.0)
        return float(trial.params["x"])

    result = _campaign(tmp_path / "x", evaluate, 5, ["trackio", "tensorboard", "wandb"])
    assert result.reason == "done" and len(result.individuals) == 5
    said = capfd.readouterr().err
    assert "the sink wandb: its process was killed by signal 9" in said
    assert "the sink trackio: it did not write the rest in time, and was ended" in said
    assert f"`hpo log {tmp_path / 'x'} --to trackio`" in said and "sink tensorboard" not in said
    assert "Traceback" not in said
    for one in result.individuals:
        assert _curve(tmp_path / "x/logs/tensorboard" / one.id) == [(1, 0.5)]
        assert _events(tmp_path / "x/logs/tensorboard" / one.id).Scalars("result/value")[
            0
        ].value == pytest.approx(one.value)
