"""Trainings of fifteen steps in double precision end with the weights that they had when ``golden/weights.json`` was
recorded.

A change that moves or renames code leaves them as they are. One that changes on purpose what a method computes records
them again, and its commit says why: ``python tests/record.py weights``. Kept are the mean of each
parameter and its root mean square, as low-rank models are merged first: factors are unique but for signs."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from gloo import run_ranks
from places import GOLDEN
from skips import NOT_POSSIBLE
from test_trainers_contract import APART, METHODS, Everything, adamw, sgd, train

import trainers

RECORDED = GOLDEN / "weights.json"
CASES = {
    **{f"{name}, 2 ranks": (name, 2, 1, "sgd") for name in METHODS},
    **{f"{name}, 4 ranks": (name, 4, 2, "adamw") for name in ("DDP", "DASO", "local SGD", "OIALR", "AB")},
    **{f"{name}, 1 rank": (name, 1, 1, "sgd") for name in ("DDP", "OIALR") if name not in APART},
}
"""Method, ranks, ranks a node, optimizer."""
CLOSE = 1e-4
"""Processors differ by up to 5e-6 here (tried with ATEN_CPU_CAPABILITY=default), a change of a method by far more."""


def trained(rank: int, name: str, per_node: int, optimizer: str) -> dict[str, Any]:
    torch.manual_seed(1)
    net = Everything().double()
    result = train(net, name, per_node, optimizer={"sgd": sgd, "adamw": adamw}[optimizer], seed=2)
    weights = {
        parameter: (float(value.mean()), float(value.square().mean().sqrt()))
        for parameter, part in trainers.merged(net).state_dict().items()
        for value in [getattr(part, "full_tensor", lambda part=part: part)()]
        if value.is_floating_point()
    }
    losses = [(entry["train_loss"], entry["validation_loss"]) for entry in result.history]
    return {"losses": losses, "weights": weights}


def run(case: str) -> dict[str, Any]:
    """What rank 0 has; the ranks agree, which test_trainers_contract.py shows."""
    name, ranks, per_node, optimizer = CASES[case]
    if ranks == 1:
        found = trained(0, name, per_node, optimizer)
    else:
        found = run_ranks(ranks, trained, name, per_node, optimizer)[0]
    as_recorded: dict[str, Any] = json.loads(json.dumps(found))
    return as_recorded


@pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13),
    reason=f"{NOT_POSSIBLE}recorded with torch 2.13; torch 2.6 draws other numbers for dropout",
)
@pytest.mark.parametrize("case", CASES)
def test_a_training_ends_where_it_did(case: str) -> None:
    known, found = json.loads(RECORDED.read_text())[case], run(case)
    assert found["losses"] == [pytest.approx(losses, rel=CLOSE) for losses in known["losses"]]
    assert found["weights"].keys() == known["weights"].keys()
    for parameter, (mean, size) in known["weights"].items():
        # A mean may be a sum that cancels: its error is one of the size.
        assert found["weights"][parameter] == pytest.approx([mean, size], rel=CLOSE, abs=CLOSE * size), (
            parameter
        )


def test_no_training_is_left_over() -> None:
    assert json.loads(RECORDED.read_text()).keys() == CASES.keys()


def record() -> None:
    RECORDED.write_text(json.dumps({case: run(case) for case in CASES}, indent=1) + "\n")
