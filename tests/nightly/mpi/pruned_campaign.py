"""Workers of two ranks that agree with each other at every step, and prune and pause all the time:
``mpirun -n 4 python pruned_campaign.py '{"directory": …}'``."""

from __future__ import annotations

import json
import sys

import hpo

STEPS = 9
space = hpo.SearchSpace(x=hpo.Float(0, 1), saves=hpo.Categorical(True, False))


def evaluate(trial: hpo.Trial) -> float:
    """Comes down to x; what one saves is the number of steps done."""
    import torch
    import torch.distributed as dist

    saved = trial.directory / "steps"
    done = int(saved.read_text()) if saved.exists() else 0
    trial.log(begun_at=done)
    for step in range(done + 1, STEPS + 1):
        total = torch.tensor([float(step)])
        dist.all_reduce(total)
        assert total.item() == step * trial.size, "the ranks are at different steps"
        trial.report(step, trial.params["x"] + 1 / step)
        if trial.params["saves"] and trial.should_checkpoint():
            if trial.rank == 0:
                saved.write_text(str(step))
            raise hpo.Interrupted
    return trial.params["x"]


if __name__ == "__main__":
    task = hpo.Task(space, evaluate)
    result = hpo.Campaign(task, **json.loads(sys.argv[1])).run()
    print("REASON", result.reason)
