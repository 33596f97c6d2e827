"""AB training over a whole run on two nodes of two ranks: bytes between them beside DDP's, and who decomposes.

    python tests/benchmarks/ab.py [--steps 1500] [--quick]

The phases have the proportions of table A.7 at a global batch of 4096. The link is as fast as the machine copies. The
model is a perceptron on noise, of whose singular values hardly any is dropped: the worst case for the factors' size.

- Bytes: the interface's counters of both nodes, from before ``train`` to after it. ``fewer`` is 1 - AB / DDP in single
  precision, for AB and for AB whose full-rank phases send bf16. ``expected`` is the share of the steps in groups.
- Between groups: the most bytes in a step of the group phases, of either node. The first and the last step of a phase
  are left out, and all ranks wait for each other at both ends of what is left.
- Decompositions: processor seconds of the busiest rank, over the larger of an equal share and the costliest weight's.
  Medians over repeats, and the worst of three models.

Ends in one line of JSON."""

from __future__ import annotations

import functools
import json
import statistics
import time
from typing import Any

import torch
from arguments import parser_of
from training import Fenced, Watch, course, load_average, perceptron
from two_nodes import RANKS, entered, settled

import trainers
import trainers.methods.ab
from trainers.methods.strategy import steps_of

STEPS_OF_SOURCE = 45_000
WARMUP, GROUPS, REBOUND, LR_REBOUND = (steps / STEPS_OF_SOURCE for steps in (9300, 3000, 300, 750))
WIDTHS = (256, 512, 512, 512, 512, 10)
QUICK = (64, 128, 128, 10)
DECOMPOSED = {
    "one dear weight": (64, 1024, 256, 768, 768, 256, 512, 512, 512, 128, 384, 384, 10),
    "many sizes": (64, 512, 512, 384, 512, 256, 512, 512, 384, 384, 256, 512, 448, 320, 10),
    "equal weights": (64,) + 15 * (320,) + (10,),
}
BATCH_SIZE = 16
MARGIN = 1
LARGEST_OWN_SHARE = 1.3


def method(compression: str | None = None) -> trainers.AB:
    """AB with the phases of the source."""
    return trainers.AB(
        warmup_steps=WARMUP,
        ab_steps=GROUPS,
        rebound_steps=REBOUND,
        lr_rebound_steps=LR_REBOUND,
        compression=compression,
    )


def group_steps(steps: int) -> list[range]:
    """The steps of each group phase in a run of so many."""
    warmup, length = steps_of(WARMUP, steps), steps_of(GROUPS, steps)
    cycle = length + steps_of(REBOUND, steps)
    return [range(first, min(first + length, steps)) for first in range(warmup, steps, cycle)]


def apart(steps: int) -> list[range]:
    """Of each group phase, the steps in which nothing should cross."""
    return [range(phase.start + MARGIN, phase.stop - MARGIN) for phase in group_steps(steps)]


def transmit(rank: int, *, steps: int, widths: list[int]) -> dict[str, dict[str, float]]:
    """What this rank's node sends in a run of ``steps`` with each method."""
    found = {}
    methods: dict[str, trainers.Method] = {"ddp": trainers.DDP(), "ab": method(), "ab bf16": method("bf16")}
    for name, one in methods.items():
        before = settled()
        watch, result = course(
            one,
            widths=widths,
            steps=steps,
            batch_size=BATCH_SIZE,
            optimizer=torch.optim.AdamW,
            lr=1e-3,
            watch=Watch() if name == "ddp" else Fenced(apart(steps)),
        )
        row = {
            "run_bytes": float(settled() - before),
            "ours": result.metrics["bytes_between_nodes"],
            "step_s": watch.step_s(2, steps - 1),
        }
        if name != "ddp":
            row |= between_groups(watch, steps)
            row["mean_rank_fraction"] = result.metrics["mean_rank_fraction"]
            row["decomposition_s"] = result.metrics["decomposition_s"]
        found[name] = row
        if rank == 0:
            print(
                f"{name:8s} {row['run_bytes'] / 1e6:9.1f} MB of node 0, {1e3 * row['step_s']:.1f} ms a step"
            )
    return found


def between_groups(watch: Watch, steps: int) -> dict[str, float]:
    """The most bytes that this node sent in a step inside a group phase, and how many steps were looked at."""
    inside = [step for stretch in apart(steps) for step in stretch]
    return {
        "group_phase_bytes": float(max(watch.sent[step + 1] - watch.sent[step] for step in inside)),
        "group_phase_bytes_in_all": float(sum(watch.sent[step + 1] - watch.sent[step] for step in inside)),
        "group_phase_steps": float(len(inside)),
    }


def decompose(rank: int, *, repeats: int, widths: list[int]) -> list[dict[str, float]]:
    """By weight, the processor seconds of the decompositions that this rank did: a list of repeats."""
    seconds: dict[str, float] = {}
    original = trainers.methods.ab.svd

    @functools.wraps(original)
    def timed(matrix: torch.Tensor, *, cutoff: float) -> tuple[torch.Tensor, ...]:
        begin = time.thread_time()
        result = original(matrix, cutoff=cutoff)
        label = "×".join(map(str, matrix.shape)) + f" at {matrix.data_ptr():x}"
        seconds[label] = time.thread_time() - begin
        return result

    trainers.methods.ab.svd = timed  # type: ignore[assignment]
    rows = []
    for _ in range(repeats):
        seconds.clear()
        course(trainers.AB(warmup_steps=1, ab_steps=2), widths=widths, steps=3, batch_size=2)
        rows.append(dict(seconds))
    return rows


def shared(ranks: list[list[dict[str, float]]]) -> float:
    """How evenly the decompositions of a model were dealt: the median over the repeats but for the first."""
    ratios = []
    for repeat in range(1, len(ranks[0])):
        own = [sum(one[repeat].values()) for one in ranks]
        dearest = max(value for one in ranks for value in one[repeat].values())
        ratios.append(max(own) / max(sum(own) / RANKS, dearest))
    return statistics.median(ratios)


def main() -> None:
    parser = parser_of(__doc__, quick="150 steps of a small model, two repeats")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--repeats", type=int, default=7, help="of the decompositions")
    options = parser.parse_args()
    if options.quick:
        options.steps, options.repeats = 150, 2
    widths = QUICK if options.quick else WIDTHS
    with entered(None) as nodes:
        ranks = nodes.run(transmit, {"steps": options.steps, "widths": list(widths)}, timeout_s=1800)
        decomposed = {
            name: nodes.run(decompose, {"repeats": options.repeats, "widths": list(widths_decomposed)})
            for name, widths_decomposed in [*DECOMPOSED.items()][: 1 if options.quick else None]
        }
    both = (ranks[0], ranks[2])
    sent = {name: sum(one[name]["run_bytes"] for one in both) for name in ranks[0]}
    full_rank = 1 - sum(map(len, group_steps(options.steps))) / options.steps
    result: dict[str, Any] = {
        "benchmark": "ab",
        "steps": options.steps,
        "parameters": sum(parameter.numel() for parameter in perceptron(widths).parameters()),
        "fewer": 1 - sent["ab"] / sent["ddp"],
        "fewer_bf16": 1 - sent["ab bf16"] / sent["ddp"],
        "expected": 1 - full_rank,
        "expected_bf16": 1 - full_rank / 2,
        "run_mb": {name: value / 1e6 for name, value in sent.items()},
        "counted_by_trainers": {name: ranks[0][name]["ours"] / value for name, value in sent.items()},
        "group_phase_bytes": max(
            one[name]["group_phase_bytes"] for one in both for name in ("ab", "ab bf16")
        ),
        "group_phase_steps": ranks[0]["ab"]["group_phase_steps"],
        "mean_rank_fraction": ranks[0]["ab"]["mean_rank_fraction"],
        "step_ms": {name: 1e3 * row["step_s"] for name, row in ranks[0].items()},
        "busiest_by_model": {name: shared(one) for name, one in decomposed.items()},
        "load_average": load_average(),
    }
    result["busiest_to_fair_share"] = max(result["busiest_by_model"].values())
    for name in ("fewer", "fewer_bf16"):
        print(f"{name}: {result[name]:.2%}, by the full-rank steps alone {result[f'expected{name[5:]}']:.2%}")
    print(
        f"the busiest rank's decompositions: {result['busiest_to_fair_share']:.2f} of the larger of an equal "
        f"share and the dearest (at most {LARGEST_OWN_SHARE} is asked for)"
    )
    print(json.dumps(result))


if __name__ == "__main__":
    main()
