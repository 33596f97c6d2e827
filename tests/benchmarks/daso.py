"""DASO while cycling, on two nodes of two ranks joined by 200 Mbit/s: its step over one without traffic between nodes
and over DDP's, hpo's and torch's; the bytes that it sends over those expected.

    python tests/benchmarks/daso.py [--rounds 5] [--cycles 10] [--rate 200 | --steps-on-link 2] [--shared-cores]
                                    [--wire bf16] [--sync-every 4] [--fragments 1] [--outer] [--quick]

A perceptron of 2.6 million parameters, 128 samples a rank and step, AdamW, B = 4, bf16 on the wire; by the options
other forms of numbers, another B, fragments in turn, and an outer optimizer (DiLoCo). In each round the same processes
train it with ``alone`` (DASO that never synchronises), ``delay 1`` to ``delay 3`` (S), ``ddp`` and ``ddp bf16`` of hpo,
and ``torch ddp``, torch's DistributedDataParallel in a plain loop.

The time of a step is the mean over whole cycles of B steps but the first; ratios are medians of those within
a round. Bytes are those of each node's interface in these cycles, for each parameter and step: 0.5 is expected of DASO
(one rank of a node sends all parameters every fourth step, in two bytes each), 6 of DDP in fp32, 3 in bf16. Beside
DASO's part of DDP's bytes stands that of a run with the default warm-up and cool-down, which follows from it.

``floor_delay_S`` is the ratio at which only the link's time is waited for, beyond S steps. ``--steps-on-link`` chooses
the rate at which one synchronisation takes so many steps, so that S has as much to hide on any machine. With
``--shared-cores`` the scheduler lets one node run ahead of the other, for which DASO then waits. Ends in one line of
JSON."""

from __future__ import annotations

import json
import os
import statistics
from functools import partial
from typing import Any

import torch
from arguments import parser_of
from torch.utils.data import DataLoader, DistributedSampler
from training import Watch, course, load_average, noise, perceptron
from two_nodes import RANKS, entered

import trainers

WIDTHS = (512, 1024, 1024, 1024, 10)
BATCH_SIZE = 128
OUTER = partial(torch.optim.SGD, lr=0.7, momentum=0.9, nesterov=True)
WIRE_BYTES = {"bf16": 2.0, "fp32": 4.0, "int8": 1 + 4 / 64, "int4": 1 / 2 + 4 / 64}
SYNCHRONOUS = 0.25 + 0.05
"""Share of warm-up and cool-down by default, in which nodes synchronise at each step."""
TORCH = "torch ddp"
DELAYS = (1, 2, 3)
EXPECTED_BYTES = {"ddp": 6.0, "ddp bf16": 3.0, TORCH: 6.0}
"""A node, parameter and step."""
NEVER = 10**6


def cycling(sync_every: int, sync_delay: int, *, outer: bool = False, **settings: Any) -> trainers.DASO:
    """DASO with neither warm-up nor cool-down nor changes of its period."""
    settings |= {"outer_optimizer": OUTER} if outer else {}
    phases: dict[str, Any] = {"warmup_epochs": 0, "cooldown_epochs": 0, "adaptive": False}
    return trainers.DASO(sync_every=sync_every, sync_delay=sync_delay, **phases, **settings)


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


def measure(
    rank: int, *, rounds: int, cycles: int, sync_every: int, settings: dict[str, Any]
) -> list[dict[str, dict[str, float]]]:
    """Seconds and transmitted bytes of a step, by round and method, as this rank saw them."""
    methods: dict[str, trainers.Method] = {"alone": cycling(NEVER, 1)}
    methods |= {f"delay {delay}": cycling(sync_every, delay, **settings) for delay in DELAYS}
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
            first = 2 * sync_every - 1
            last = first + length * sync_every
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
    first, last = 7, 31
    found = []
    for _ in range(3):
        watch, _ = of_steps(cycling(NEVER, 1), last + 2)
        found.append(watch.step_s(first, last))
    return statistics.median(found)


def main() -> None:
    parser = parser_of(__doc__, quick="one round of two cycles")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cycles", type=int, default=10, help="of B steps each")
    parser.add_argument("--wire", choices=list(WIRE_BYTES), default="bf16", help="form of DASO's numbers")
    parser.add_argument("--sync-every", type=int, default=4, help="B, at least 3")
    parser.add_argument("--fragments", type=int, default=1)
    parser.add_argument("--outer", action="store_true", help="with SGD with momentum as the outer optimizer")
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
    every, wire_bytes = options.sync_every, WIRE_BYTES[options.wire]
    settings = {"wire_dtype": options.wire, "fragments": options.fragments, "outer": options.outer}
    expected = EXPECTED_BYTES | {f"delay {delay}": wire_bytes / every for delay in DELAYS}
    if options.steps_on_link is not None:
        with entered(None, shared_cores=options.shared_cores) as nodes:
            step_s = nodes.run(alone_s, {}, timeout_s=600)[0]
        options.rate = round(wire_bytes * parameters * 8 / 1e6 / (options.steps_on_link * step_s), 1)
    with entered(options.rate, shared_cores=options.shared_cores) as nodes:
        keywords = {"rounds": options.rounds, "cycles": options.cycles, "sync_every": every}
        ranks = nodes.run(measure, keywords | {"settings": settings}, timeout_s=1800)
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
    link_s = wire_bytes * parameters * 8 / (1e6 * options.rate)
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
        "bytes_to_expected": {name: sent[name] / expected[name] for name in expected},
        "settings": settings | {"sync_every": every},
        "load_average": load_average(),
        "cores": os.cpu_count(),
        "shared_cores": options.shared_cores,
    }
    for delay in DELAYS:
        name = f"delay {delay}"
        result[f"delay_{delay}_to_alone"] = ratio(name, "alone")
        result[f"delay_{delay}_to_ddp"] = ratio(name, "ddp")
        waited = max(0.0, link_s - delay * step_s)
        result[f"floor_delay_{delay}"] = 1 + waited / (every * step_s)
        part = sent[name] / sent["ddp"]
        result[f"bytes_delay_{delay}_to_ddp"] = part
        result[f"bytes_delay_{delay}_to_ddp_with_phases"] = part * (1 - SYNCHRONOUS + SYNCHRONOUS * every)
    for name in names:
        print(
            f"{name:9s} {result['step_ms'][name]:7.1f} ms a step, {sent[name]:.3f} bytes a parameter and node"
        )
    print(
        f"DASO sends 1/{1 / result['bytes_delay_1_to_ddp']:.1f} of DDP's bytes; with warm-up and cool-down by default "
        f"1/{1 / result['bytes_delay_1_to_ddp_with_phases']:.1f}"
    )
    print(json.dumps(result))


if __name__ == "__main__":
    main()
