"""DASO while cycling, on two nodes of two ranks joined by 200 Mbit/s: its step over one without traffic between nodes
and over DDP's, hpo's and torch's; the bytes that it sends over those expected.

    python tests/benchmarks/daso.py [--rounds 5] [--cycles 10] [--rate 200 | --steps-on-link 2] [--shared-cores]
                                    [--quick]

A perceptron of 2.6 million parameters, 128 samples a rank and step, AdamW, B = 4, bf16 on the wire. In each round the
same processes train it with ``alone`` (DASO that never synchronises), ``delay 1`` to ``delay 3`` (S), ``ddp`` and
``ddp bf16`` of hpo, and ``torch ddp``, torch's DistributedDataParallel in a plain loop.

The time of a step is the mean over whole cycles of B steps but the first; ratios are medians of those within
a round. Bytes are those of each node's interface in these cycles, for each parameter and step: 0.5 is expected of DASO
(one rank of a node sends all parameters every fourth step, in two bytes each), 6 of DDP in fp32, 3 in bf16.

``floor_delay_S`` is the ratio at which only the link's time is waited for, beyond S steps. ``--steps-on-link`` chooses
the rate at which one synchronisation takes so many steps, so that S has as much to hide on any machine. With
``--shared-cores`` the scheduler lets one node run ahead of the other, for which DASO then waits. Ends in one line of
JSON."""

from __future__ import annotations

import json
import os
import statistics
from typing import Any

import torch
from arguments import parser_of
from torch.utils.data import DataLoader, DistributedSampler
from training import Watch, course, load_average, noise, perceptron
from two_nodes import RANKS, entered

import trainers

WIDTHS = (512, 1024, 1024, 1024, 10)
BATCH_SIZE = 128
SYNC_EVERY = 4
TORCH = "torch ddp"
DELAYS = (1, 2, 3)
EXPECTED_BYTES = {"ddp": 6.0, "ddp bf16": 3.0, TORCH: 6.0} | {
    f"delay {delay}": 2 / SYNC_EVERY for delay in DELAYS
}
"""A node, parameter and step."""
NEVER = 10**6


def cycling(sync_every: int, sync_delay: int) -> trainers.DASO:
    """DASO with neither warm-up nor cool-down nor changes of its period."""
    return trainers.DASO(
        sync_every=sync_every, sync_delay=sync_delay, warmup_epochs=0, cooldown_epochs=0, adaptive=False
    )


def of_steps(method: trainers.Method, steps: int) -> tuple[Watch, trainers.Result]:
    """So many steps with ``method``."""
    adamw = torch.optim.AdamW
    return course(method, widths=WIDTHS, steps=steps, batch_size=BATCH_SIZE, optimizer=adamw, lr=1e-3)


def torch_ddp(*, steps: int) -> Watch:
    """``steps`` steps with torch's DistributedDataParallel, watched as a course is."""
    model = torch.nn.parallel.DistributedDataParallel(perceptron(WIDTHS))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = noise(steps * BATCH_SIZE * RANKS, WIDTHS[0])
    sampler = DistributedSampler(data, shuffle=True)
    watch = Watch()
    for inputs, classes in DataLoader(data, batch_size=BATCH_SIZE, sampler=sampler):
        watch()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), classes).backward()
        optimizer.step()
    return watch


def measure(rank: int, *, rounds: int, cycles: int) -> list[dict[str, dict[str, float]]]:
    """Seconds and transmitted bytes of a step, by round and method, as this rank saw them."""
    methods: dict[str, trainers.Method] = {"alone": cycling(NEVER, 1)}
    methods |= {f"delay {delay}": cycling(SYNC_EVERY, delay) for delay in DELAYS}
    methods |= {"ddp": trainers.DDP(), "ddp bf16": trainers.DDP(compression="bf16")}
    names = [*methods, TORCH]
    rows = []
    for number in range(rounds):
        row = {}
        # Each round begins elsewhere: what drifts meets every method.
        for name in names[number % len(names) :] + names[: number % len(names)]:
            # DDP's steps are all alike, and long.
            length = max(1, cycles // 3) if "ddp" in name else cycles
            # A step before a multiple of B nothing is under way, whatever S is.
            first = 2 * SYNC_EVERY - 1
            last = first + length * SYNC_EVERY
            own = {}
            if name == TORCH:
                watch = torch_ddp(steps=last + 2)
            else:
                watch, result = of_steps(methods[name], last + 2)
                own = {"wait_s": result.metrics["wait_s"] / (last + 2)}
            row[name] = {
                "step_s": watch.step_s(first, last),
                "step_bytes": watch.step_bytes(first, last),
                **own,
            }
        rows.append(row)
        if rank == 0:
            print("  ".join(f"{name} {1e3 * row[name]['step_s']:.0f} ms" for name in names), flush=True)
    return rows


def alone_s(rank: int) -> float:
    """Median seconds of a step without traffic between nodes, of three courses."""
    first, last = 2 * SYNC_EVERY - 1, 8 * SYNC_EVERY - 1
    found = []
    for _ in range(3):
        watch, _ = of_steps(cycling(NEVER, 1), last + 2)
        found.append(watch.step_s(first, last))
    return statistics.median(found)


def main() -> None:
    parser = parser_of(__doc__, quick="one round of two cycles")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cycles", type=int, default=10, help="of four steps each")
    parser.add_argument("--rate", type=float, default=200.0, help="of the link, in Mbit/s")
    parser.add_argument(
        "--steps-on-link", type=float, help="steps that one synchronisation is to take; chooses the rate"
    )
    parser.add_argument(
        "--shared-cores", action="store_true", help="both nodes use all of this machine's cores"
    )
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.cycles = 1, 2
    parameters = sum(parameter.numel() for parameter in perceptron(WIDTHS).parameters())
    if options.steps_on_link is not None:
        with entered(None, shared_cores=options.shared_cores) as nodes:
            step_s = nodes.run(alone_s, {}, timeout_s=600)[0]
        options.rate = round(2 * parameters * 8 / 1e6 / (options.steps_on_link * step_s), 1)
    with entered(options.rate, shared_cores=options.shared_cores) as nodes:
        ranks = nodes.run(measure, {"rounds": options.rounds, "cycles": options.cycles}, timeout_s=1800)
    rows = ranks[0]
    names = [*rows[0]]

    def median(name: str, key: str) -> float:
        return statistics.median(row[name][key] for row in rows)

    def ratio(name: str, other: str) -> float:
        return statistics.median(row[name]["step_s"] / row[other]["step_s"] for row in rows)

    # One rank of each node: both count what their node sent.
    sent = {
        name: statistics.median(one[name]["step_bytes"] for both in (ranks[0], ranks[2]) for one in both)
        / parameters
        for name in names
    }
    link_s = 2 * parameters * 8 / (1e6 * options.rate)
    step_s = median("alone", "step_s")
    result: dict[str, Any] = {
        "benchmark": "daso",
        "parameters": parameters,
        "rate_mbit": options.rate,
        "step_ms": {name: 1e3 * median(name, "step_s") for name in names},
        "wait_ms_a_step": {name: 1e3 * median(name, "wait_s") for name in names if name != TORCH},
        "ddp_to_alone": ratio("ddp", "alone"),
        "torch_ddp_to_alone": ratio(TORCH, "alone"),
        "ddp_to_torch_ddp": ratio("ddp", TORCH),
        "ddp_bf16_to_alone": ratio("ddp bf16", "alone"),
        "synchronisation_on_link_ms": 1e3 * link_s,
        "bytes_a_parameter": sent,
        "bytes_to_expected": {name: sent[name] / expected for name, expected in EXPECTED_BYTES.items()},
        "load_average": load_average(),
        "cores": os.cpu_count(),
        "shared_cores": options.shared_cores,
    }
    for delay in DELAYS:
        name = f"delay {delay}"
        result[f"delay_{delay}_to_alone"] = ratio(name, "alone")
        result[f"delay_{delay}_to_ddp"] = ratio(name, "ddp")
        waited = max(0.0, link_s - delay * step_s)
        result[f"floor_delay_{delay}"] = 1 + waited / (SYNC_EVERY * step_s)
    for name in names:
        print(
            f"{name:9s} {result['step_ms'][name]:7.1f} ms a step, {sent[name]:.3f} bytes a parameter and node"
        )
    print(json.dumps(result))


if __name__ == "__main__":
    main()
