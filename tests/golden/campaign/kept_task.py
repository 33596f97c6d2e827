"""The task of tests/golden/campaign: every status that an individual can end with, and early stopping."""

from __future__ import annotations

import math
import os
import time

import hpo

space = hpo.SearchSpace(
    x=hpo.Float(-5, 5),
    rate=hpo.Float(1e-4, 1.0, log=True),
    depth=hpo.Int(1, 8),
    width=hpo.Ordinal(8, 16, 32),
    optimizer=hpo.Categorical("sgd", "adam"),
    momentum=hpo.Float(0.0, 0.9, when={"optimizer": "sgd"}),
)


def evaluate(trial: hpo.Trial) -> dict[str, object]:
    p = trial.params
    goal = p["x"] ** 2 + abs(math.log10(p["rate"]) + 2) + p["depth"] / 8 + p["width"] / 32
    if p["depth"] == 8:
        raise ValueError(f"depth = {p['depth']} is too deep")
    if p["depth"] == 7:
        return {"value": math.nan}
    if p["depth"] == 6 and p["optimizer"] == "sgd":
        os._exit(3)
    state = trial.directory / "step"
    done = int(state.read_text()) if state.exists() else 0
    for step in range(done + 1, 10):
        time.sleep(0.01)
        trial.report(step, goal + 3 / step)
        if trial.should_checkpoint():
            state.write_text(str(step))
            raise hpo.Interrupted
    return {"value": goal, "note": "whole", "parameters": p["depth"] * p["width"]}


task = hpo.Task(
    space,
    evaluate,
    default={"x": 1.0, "rate": 0.01, "depth": 2, "width": 16, "optimizer": "adam"},
    constraints=[lambda params: params["width"] > 8 or params["depth"] > 1],
)
