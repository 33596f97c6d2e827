"""A user's plain script: ``mpirun -n N python one_campaign.py '{"directory": …}'``; every rank prints what it
got."""

from __future__ import annotations

import json
import sys
import time

import hpo

keywords = json.loads(sys.argv[1])
space = hpo.SearchSpace(
    x=hpo.Float(-5, 5),
    rate=hpo.Float(1e-4, 1e-1, log=True),
    size=hpo.Ordinal(16, 32, 64),
    kind=hpo.Categorical("a", "b"),
    inner=hpo.Int(1, 5, when={"kind": "b"}),
)
task_name = keywords.pop("task", "cheap")


def cheap(trial):
    return trial.params["x"] ** 2 + trial.params.get("inner", 3)


def with_comm(trial):
    """MPI code of the task's own, over the worker's communicator."""
    assert trial.comm.size == trial.size and trial.comm.rank == trial.rank
    assert trial.local_rank == trial.rank  # all are on one host
    total = trial.comm.allreduce(trial.rank + 1)
    trial.report(0, 1.0)
    return trial.params["x"] ** 2 + total


def slow(trial):
    time.sleep(0.05)
    return trial.params["x"] ** 2


def patient(trial):
    """Rank 0's first evaluation lasts until the other ranks have ended four, with MPI code of its own meanwhile."""
    here = trial.directory.parent.parent
    if trial.id.startswith("0-0-"):
        end = time.monotonic() + 30
        while len(list(here.glob("other-*"))) < 4:
            trial.report(trial.comm.allreduce(1), 1.0)
            assert time.monotonic() < end, "nobody else evaluates meanwhile"
            time.sleep(0.01)
    else:
        (here / f"other-{trial.id}").touch()
    return trial.params["x"] ** 2


task = hpo.Task(space, globals()[task_name], default={"x": 1.0, "rate": 0.01, "size": 32, "kind": "a"})
result = hpo.Campaign(task, **keywords).run()
frame = result.dataframe()
best = [result.best.id, result.best.value]
# One write a line: the ranks' lines must not mix.
sys.stdout.write("RESULT " + json.dumps({"reason": result.reason, "rows": len(frame), "best": best}) + "\n")
