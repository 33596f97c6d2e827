"""MLflow, W&B and Trackio against the libraries themselves, as far as they run without a network."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from programs import called
from written import Written, params

CURVE = [[1, 2.0], [2, 1.5], [3, 1.0 + 1 / 3]]


def _printed(script: str, *arguments: object, **variables: str) -> Any:
    """What a script of Python prints last, as JSON."""
    done = called(sys.executable, "-c", script, *arguments, env={**os.environ, **variables})
    return json.loads(done.stdout.splitlines()[-1])


MLFLOW = """
import json, sys
from pathlib import Path
from mlflow import MlflowClient
from hpo.loggers import command
from hpo.loggers.mlflow import MLflowSink

directory = Path(sys.argv[1])
command.log(directory, "mlflow", base=None, follow=False)
(directory / "logs/mlflow/written.json").unlink()  # as if it had died before the marks were written
command.log(directory, "mlflow", base=None, follow=False)
client = MlflowClient(f"sqlite:///{directory}/logs/mlflow/mlflow.db")
experiment = client.get_experiment_by_name("digits")
runs = client.search_runs([experiment.experiment_id])
found = {
    run.info.run_name: {
        "status": run.info.status,
        "params": run.data.params,
        "metrics": run.data.metrics,
        "tags": {name: value for name, value in run.data.tags.items() if name.startswith("hpo.")},
        "curve": [(one.step, one.value) for one in client.get_metric_history(run.info.run_id, "value")],
        "seconds": (run.info.end_time - run.info.start_time) / 1000,
    }
    for run in runs
}
print(json.dumps([len(runs), found]))
"""


def test_names_in_mlflow_are_legal_and_distinct() -> None:
    pytest.importorskip("mlflow")
    from hpo.loggers.mlflow import _name

    given = ["recall@5", "recall_5", "val//acc", "val/acc", "/acc", "acc", "..", "%", "x" * 300, "x" * 301]
    names = [_name(name) for name in given]
    assert len(set(names)) == len(given) and names[1] == "recall_5" and names[3] == "val/acc"
    for name in names:
        assert len(name) <= 250 and name == os.path.normpath(name) and name[0] not in "./"


def test_mlflow_has_each_run_once_also_where_it_was_written_twice(written: Written) -> None:
    pytest.importorskip("mlflow")
    count, found = _printed(MLFLOW, written.path, MLFLOW_TRACKING_URI="", MLFLOW_DISABLE_TELEMETRY="true")
    assert count == 3
    first, failed, pruned = (found[f"0-0-{number}"] for number in range(3))
    assert first["curve"] == CURVE
    assert first["params"] == {name: str(value) for name, value in params(0).items()}
    assert first["metrics"]["result/value"] == 1.0 and first["metrics"]["result/size"] == 7.0
    assert [one["status"] for one in (first, failed, pruned)] == ["FINISHED", "FAILED", "FINISHED"]
    assert failed["tags"]["hpo.error"] == "failed: <b>why</b>" and pruned["tags"]["hpo.status"] == "pruned"
    assert first["seconds"] == 4.5


WANDB = """
import json, struct, subprocess, sys
from pathlib import Path
from wandb.proto import wandb_internal_pb2

def records(data, at=7, whole=b""):
    "Of a LevelDB log: blocks of 32 KiB of pieces with checksum, length and type."
    while at < len(data):
        at += -at % 32768 if -at % 32768 < 7 else 0
        length, kind = struct.unpack_from("<HB", data, at + 4)
        whole, at = whole + data[at + 7 : at + 7 + length], at + 7 + length
        if kind in (1, 4):
            yield whole
            whole = b""

directory = Path(sys.argv[1])
# Files are whole once the process that writes them has ended: wandb's own process writes them after a run's end.
for _ in range(2):
    subprocess.run([sys.executable, "-m", "hpo", "log", directory, "--to", "wandb"], check=True, timeout=100)
found = {}
for path in directory.glob("logs/wandb/wandb/offline-run-*/*.wandb"):
    name, run = "", {"curve": [], "summary": {}}
    for data in records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.HasField("run"):
            config = {one.key: json.loads(one.value_json) for one in record.run.config.update}
            run |= {"group": record.run.run_group, "id": record.run.run_id, "config": config}
            name = record.run.display_name
        if record.HasField("history"):
            values = {(one.key or one.nested_key[0]): json.loads(one.value_json) for one in record.history.item}
            run["curve"].append([values["step"], values["value"]])
        for one in record.summary.update:
            run["summary"][one.key or one.nested_key[0]] = json.loads(one.value_json)
        if record.HasField("exit"):
            run["exit"] = record.exit.exit_code
    assert name not in found
    found[name] = run
print(json.dumps(found))
"""


def test_wandb_has_a_run_an_individual_offline(written: Written) -> None:
    pytest.importorskip("wandb")
    found = _printed(WANDB, written.path, WANDB_MODE="offline", WANDB_PROJECT="")
    assert set(found) == {"0-0-0", "0-0-1", "0-0-2"}
    first = found["0-0-0"]
    assert first["curve"] == CURVE and first["group"] == "digits" and first["id"].endswith("-0-0-0")
    assert params(0).items() <= first["config"].items()
    assert first["summary"]["result/value"] == 1.0 and first["summary"]["hpo/status"] == "completed"
    assert [found[f"0-0-{number}"]["exit"] for number in range(3)] == [0, 1, 0]


TRACKIO = """
import json, sys
from pathlib import Path
from hpo.loggers import command

directory = Path(sys.argv[1])
command.log(directory, "trackio", base=None, follow=False)
command.log(directory, "trackio", base=None, follow=False)
import trackio
from trackio.sqlite_storage import SQLiteStorage

names = [run.name for run in trackio.Api().runs("digits")]
print(json.dumps({name: SQLiteStorage.get_logs("digits", name) for name in names}))
"""


def test_trackio_has_a_run_an_individual(written: Written, tmp_path: Path) -> None:
    pytest.importorskip("trackio")
    found = _printed(TRACKIO, written.path, TRACKIO_DIR=str(tmp_path / "trackio"))
    assert set(found) == {"0-0-0", "0-0-1", "0-0-2"}
    assert [[row["step"], row["value"]] for row in found["0-0-0"] if "value" in row] == CURVE
    assert found["0-0-0"][-1]["result/value"] == 1.0 and found["0-0-1"][-1]["hpo/status"] == "failed"
