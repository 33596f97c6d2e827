"""Progressive search against the same budget without phases: deep networks on scikit-learn's digits.

    python tests/benchmarks/phases.py [--quick] [--seeds 3] [--evaluations 60]

Each way evaluates as many individuals of as many epochs, in one process: at once, with the whole space open from the
start; inherited, the same, where children begin with their parents' weights; phases, where first all networks have one
block a stage, then up to two, then any number, and children begin with their parents' weights, grown. The learning rate
is searched, too. Printed are the accuracy of the best on the validation part, and on the test part of the network that
was trained there; the seconds of training in all; and the blocks of the best.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import hpo
from search_spaces import digits

STAGES = ("blocks1", "blocks2", "blocks3", "blocks4")
FIXED = {
    "width": [8], "optimizer": ["adam"], "schedule": ["cosine"], "stem": ["convolution"], "kernel": [3],
    "activation": ["relu"], "squeeze": [0.0], "groups": [1],
}  # fmt: skip
"""The same in every way: what is left is depth, bottleneck ratio, activation order, learning rate and its schedule."""


def ways(evaluations: int) -> dict[str, dict[str, Any]]:
    return {
        "at once": {},
        "inherited": {"inherit": True},
        "phases": {
            "phase": [
                {"until": evaluations // 3, "only": {name: [1] for name in STAGES}},
                {"until": 2 * evaluations // 3, "only": {name: [1, 2] for name in STAGES}},
            ]
        },
    }


def search(way: dict[str, Any], *, evaluations: int, epochs: int, seed: int) -> dict[str, float]:
    """One campaign, and what its best comes to."""
    import trainers
    from search_spaces.readers.small_images import load_images

    options: dict[str, Any] = {"architecture": "deep", "cost": "none", "epochs": epochs}
    task = digits.make_task(**options)
    # From one block a stage.
    points = [{**(task.default or {}), "width": 8, "schedule": "cosine", "k_decay": 1.0}]
    with tempfile.TemporaryDirectory() as directory:
        result = hpo.Campaign(
            hpo.Task(task.space, task.evaluate, "maximize"),
            directory=directory,
            evaluations=evaluations,
            seed=seed,
            kind="evolution",
            only=FIXED,
            points=points,
            isolation="inline",
            **way,
        ).run()
        best = result.best
        model = trainers.load_trained(
            digits.untrained(best.params, **options), Path(directory) / "evaluations" / best.id / "1-ranks"
        )
        test = trainers.evaluate(
            model, load_images("digits").test, metrics={"accuracy": task.test_metric()}, batch_size=256
        )
    return {
        "validation": float(best.value or 0.0),
        "test": test["accuracy"],
        "train_s": sum(float(one.metrics.get("train_s", 0.0)) for one in result.individuals),  # type: ignore[arg-type]
        "blocks": float(sum(int(best.params[name]) for name in STAGES)),
        "inherited": float(sum(bool(one.inherits) for one in result.individuals)),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--evaluations", type=int, default=60)
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()
    if options.quick:
        options.seeds, options.evaluations, options.epochs = 1, 12, 1
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ways(options.evaluations)}
    for seed in range(options.seeds):
        for name, way in ways(options.evaluations).items():
            one = search(way, evaluations=options.evaluations, epochs=options.epochs, seed=seed)
            found[name].append(one)
            print(f"seed {seed}, {name}: {one}", file=sys.stderr, flush=True)
    means = {
        name: {key: statistics.mean(one[key] for one in each) for key in each[0]}
        for name, each in found.items()
    }
    for name, mean in means.items():
        values = ", ".join(f"{100 * one['test']:.1f}" for one in found[name])
        print(
            f"{name}: best {100 * mean['validation']:.1f} % on the validation part, {100 * mean['test']:.1f} % on the "
            f"test part ({values}), {mean['blocks']:.1f} blocks, {mean['train_s']:.0f} s of training"
        )
    print(json.dumps({"benchmark": "phases", **means}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
