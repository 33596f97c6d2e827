"""DASO while cycling, on two nodes of two ranks joined by 200 Mbit/s: its step against one without any traffic
between nodes and against DDP, hpo's and torch's; what it sends against what it should.

    python tests/benchmarks/daso.py [--rounds 5] [--cycles 10] [--rate 200 | --steps-on-link 2] [--shared-cores]
                                    [--quick]

A perceptron of 2.6 million parameters, 128 samples a rank and step, AdamW, B = 4, parameters on
the wire in bf16. In each round the same processes train it, one after the other, with

- ``alone``: DASO that never comes to synchronise: gradients are averaged inside the node, nothing crosses;
- ``delay 1``, ``delay 2``, …: DASO with S = 1, 2, 3;
- ``ddp``: hpo's own ``trainers.DDP`` in single precision, and ``ddp bf16``;
- ``torch ddp``: torch's DistributedDataParallel with its default buckets, summed while the backward pass goes on, in a
  plain loop over the same model, batches and optimizer.

The time of a step is the mean over whole cycles of B steps, from the moment at which rank 0 begins one, the
first cycle left out; ratios are taken within a round, and of these the median. The bytes are those that the
interface of each node has transmitted in these cycles, for each parameter and step: 0.5 is expected of DASO
(one rank of a node sends all parameters every fourth step, in two bytes each), 6 of DDP in fp32 (3/4 of all
gradients twice, in four bytes), 3 in bf16.

The link needs a time for one synchronisation that no method can hide where it is longer than S steps without
traffic: ``floor_delay_S`` is the ratio at which only that much is waited for. Two ranks share a node's cores,
half of this machine's, so that a step takes longer than it would with a core for each rank, and a link of 200
Mbit/s is the faster for it; ratios within a round are what counts. ``--steps-on-link`` measures a step without
traffic first and chooses the rate at which one synchronisation takes so many of them: what S has to hide is then
the same on fast machines and slow ones. With ``--shared-cores`` all ranks share all cores: the scheduler lets one
node run ahead of the other there, a synchronisation begins when both have sent, and what DASO then waits for is no
property of the link. Ends in one line of JSON."""

from __future__ import annotations

import argparse
import json
import os
import statistics
from typing import Any

import torch
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
                watch, result = course(
                    methods[name],
                    widths=WIDTHS,
                    steps=last + 2,
                    batch_size=BATCH_SIZE,
                    optimizer=torch.optim.AdamW,
                    lr=1e-3,
                )
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
        watch, _result = course(
            cycling(NEVER, 1),
            widths=WIDTHS,
            steps=last + 2,
            batch_size=BATCH_SIZE,
            optimizer=torch.optim.AdamW,
            lr=1e-3,
        )
        found.append(watch.step_s(first, last))
    return statistics.median(found)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cycles", type=int, default=10, help="of four steps each")
    parser.add_argument("--rate", type=float, default=200.0, help="of the link, in Mbit/s")
    parser.add_argument(
        "--steps-on-link", type=float, help="steps that one synchronisation is to take; chooses the rate"
    )
    parser.add_argument(
        "--shared-cores", action="store_true", help="both nodes use all of this machine's cores"
    )
    parser.add_argument("--quick", action="store_true", help="one round of two cycles")
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
