"""What people try first: 60 evaluations of a toy function, beside Optuna's TPE, each as its documentation begins.

    python tests/benchmarks/first_try.py [--evaluations 60] [--seeds 10] [--quick]

Ours is ``hpo.Campaign(task, directory=…, evaluations=60, seed=…).run()`` with all defaults: one worker, the default
kind, evaluations in a process of their own. TPE is ``optuna.create_study(sampler=TPESampler(seed=…))`` and
``study.optimize(objective, n_trials=60)``. Counted is the regret, the best value found less the function's optimum:
its median over the seeds, and on how many of them ours is lower. Settings were chosen on other functions and seeds; but
that a search may stick to the wrong choice of an unordered parameter was first seen on "network". Ends in one line of
JSON."""

from __future__ import annotations

import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import optuna
from arguments import parser_of
from peers import Optuna

import hpo


def training(params: dict[str, object]) -> float:
    """Like the validation loss over learning rate and weight decay: a tilted bowl in their logarithms."""
    rate, decay = math.log10(float(params["lr"])) + 2.7, math.log10(float(params["decay"])) + 4.2
    return rate**2 + 0.3 * decay**2 + 0.4 * rate * decay


def branin(params: dict[str, object]) -> float:
    """Three equal optima (Surjanovic and Bingham, Virtual Library of Simulation Experiments)."""
    x, y = float(params["x"]), float(params["y"])
    valley = y - 5.1 / (4 * math.pi**2) * x**2 + 5 / math.pi * x - 6
    return valley**2 + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10


def network(params: dict[str, object]) -> float:
    """The best learning rate depends on the optimizer, and deeper networks want smaller ones."""
    offset, best = {"sgd": (0.2, -1.0), "adam": (0.0, -3.0), "rmsprop": (0.1, -3.5)}[str(params["optimizer"])]
    layers = int(str(params["layers"]))
    rate = math.log10(float(params["lr"])) - best + 0.1 * (layers - 4)
    return offset + 0.5 * rate**2 + 0.05 * (layers - 4) ** 2 + (float(params["dropout"]) - 0.3) ** 2


@dataclass(frozen=True)
class Toy:
    space: hpo.SearchSpace
    value: Callable[[dict[str, object]], float]
    optimum: float


TOYS = {
    "training": Toy(
        hpo.SearchSpace(lr=hpo.Float(1e-5, 1.0, log=True), decay=hpo.Float(1e-7, 1e-1, log=True)),
        training,
        0.0,
    ),
    "branin": Toy(hpo.SearchSpace(x=hpo.Float(-5, 10), y=hpo.Float(0, 15)), branin, 0.39788735772973816),
    "network": Toy(
        hpo.SearchSpace(
            optimizer=hpo.Categorical("sgd", "adam", "rmsprop"),
            lr=hpo.Float(1e-5, 1.0, log=True),
            layers=hpo.Int(1, 8),
            dropout=hpo.Float(0.0, 0.8),
        ),
        network,
        0.0,
    ),
}


def ours(toy: Toy, evaluations: int, seed: int) -> float:
    value = toy.value
    task = hpo.Task(toy.space, lambda trial: value(trial.params))
    with tempfile.TemporaryDirectory(prefix="first-try-") as scratch:
        campaign = hpo.Campaign(task, directory=Path(scratch, "toy"), evaluations=evaluations, seed=seed)
        return float(campaign.run().best.value)


def tpe(toy: Toy, evaluations: int, seed: int) -> float:
    def objective(trial: optuna.Trial) -> float:
        parameters = toy.space.parameters.items()
        return toy.value({name: Optuna._suggest(trial, name, parameter) for name, parameter in parameters})

    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    study.optimize(objective, n_trials=evaluations)
    return float(study.best_value)


def main() -> None:
    parser = parser_of(__doc__, quick="15 evaluations, one seed")
    parser.add_argument("--evaluations", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=10, help="how many: 0, 1, … (default: 10)")
    options = parser.parse_args()
    if options.quick:
        options.evaluations, options.seeds = 15, 1
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    rows: dict[str, dict[str, object]] = {}
    print(f"{'':10s} median regret of ours   of TPE    ratio   ours lower   seconds a search: ours, TPE")
    for name, toy in TOYS.items():
        regrets: dict[str, list[float]] = {"ours": [], "tpe": []}
        seconds: dict[str, list[float]] = {"ours": [], "tpe": []}
        for seed in range(options.seeds):
            for system, search in (("ours", ours), ("tpe", tpe)):
                begun = time.perf_counter()
                regrets[system].append(search(toy, options.evaluations, seed) - toy.optimum)
                seconds[system].append(time.perf_counter() - begun)
        median = {system: statistics.median(found) for system, found in regrets.items()}
        lower = sum(mine < theirs for mine, theirs in zip(regrets["ours"], regrets["tpe"]))
        took = {system: statistics.median(found) for system, found in seconds.items()}
        # A regret may be zero up to rounding.
        ratio = median["tpe"] / max(median["ours"], 1e-15)
        rows[name] = {"median_regret": median, "tpe_to_ours": ratio, "ours_lower": lower, "seconds": took}
        rows[name]["regrets"] = regrets
        print(
            f"{name:10s} {median['ours']:21.2g} {median['tpe']:8.2g} {ratio:8.3g} {lower:7d} of {options.seeds} "
            f"{took['ours']:15.2f}, {took['tpe']:.2f}",
            flush=True,
        )
    how = {"evaluations": options.evaluations, "seeds": options.seeds}
    print(json.dumps({"benchmark": "first_try", **how, "functions": rows}))


if __name__ == "__main__":
    main()
