"""A training step of ``trainers`` beside the same step without it.

    python tests/benchmarks/steps.py [--pairs 10] [--steps 40] [--quick]

- ``ddp``: with ``trainers.DDP`` over with torch's DistributedDataParallel in a plain loop, on 2 and on 4 ranks of gloo,
  on the loopback, each rank with one thread; 2.6 million parameters, 128 samples a rank, AdamW;
- ``compiled``: the same on 2 ranks, each layer compiled by itself, by inductor;
- ``loop``: one rank, steps of about 1 ms: ``trainers.train`` over a bare loop that takes the same batches from memory.

Pairs alternate in which comes first. A time of a step is the mean over all but the first fifth of a run; printed are
the medians of the pairs' ratios, and the smallest and largest. Ends in one line of JSON."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from arguments import parser_of
from torch import Tensor, nn
from torch.utils.data import DistributedSampler, TensorDataset
from training import load_average, noise, perceptron

import trainers

sys.path.insert(0, str(Path(__file__).parents[1]))

from gloo import run_ranks

WIDTHS = (512, 1024, 1024, 1024, 10)
BATCH_SIZE = 128
SMALL_WIDTHS = (256, 256, 256, 10)
"""A step takes about a millisecond with batches of ``SMALL_BATCH``."""
SMALL_BATCH = 64
LR = 1e-3


def model_of(widths: Sequence[int], *, compiled: bool) -> nn.Sequential:
    model = perceptron(widths)
    if compiled:
        for layer in model:
            layer.compile()
    return model


def seconds_a_step(begun: Sequence[float]) -> float:
    """Of a run whose steps began at these times."""
    first = len(begun) // 5
    return (begun[-1] - begun[first]) / (len(begun) - 1 - first)


def ours(widths: Sequence[int], batch_size: int, *, steps: int, ranks: int, compiled: bool) -> float:
    """Seconds of a step by ``trainers.train``."""
    begun: list[float] = []

    def watch() -> bool:
        begun.append(time.perf_counter())
        return False

    trainers.train(
        model_of(widths, compiled=compiled),
        noise(steps * batch_size * ranks, widths[0]),
        loss=nn.functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=LR),
        epochs=1,
        batch_size=batch_size,
        interrupt=watch,
        progress=False,
    )
    return seconds_a_step(begun)


def by_hand(model: nn.Module, data: TensorDataset, batches: Iterable[Tensor]) -> float:
    """Seconds of a step of a loop that does nothing but train, with ``batches`` of data that lie in memory already: a
    DataLoader would be slower."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    inputs, classes = data.tensors
    begun = []
    for batch in batches:
        begun.append(time.perf_counter())
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[batch]), classes[batch]).backward()
        optimizer.step()
    return seconds_a_step(begun)


def torch_ddp(*, steps: int, ranks: int, compiled: bool) -> float:
    """Seconds of a step with torch's own DistributedDataParallel, by its tutorial's loop."""
    data = noise(steps * BATCH_SIZE * ranks, WIDTHS[0])
    model = nn.parallel.DistributedDataParallel(model_of(WIDTHS, compiled=compiled))
    return by_hand(model, data, torch.tensor([*DistributedSampler(data)]).split(BATCH_SIZE))


def bare(*, steps: int) -> float:
    data = noise(steps * SMALL_BATCH, SMALL_WIDTHS[0])
    return by_hand(perceptron(SMALL_WIDTHS), data, torch.randperm(len(data)).split(SMALL_BATCH))


def in_pairs(
    first: Callable[[], float], second: Callable[[], float], pairs: int
) -> list[tuple[float, float]]:
    """What both gave, ``pairs`` times, after one of each that is left out."""
    first(), second()
    found = []
    for number in range(pairs):
        if number % 2:
            later = second()
            found.append((first(), later))
        else:
            found.append((first(), second()))
    return found


def of_ranks(rank: int, ranks: int, pairs: int, steps: int, compiled: bool) -> list[tuple[float, float]]:
    """Pairs of seconds of a step on this rank: ours, torch's."""
    torch.set_num_threads(1)

    def together(measure: Callable[[], float]) -> Callable[[], float]:
        def run() -> float:
            dist.barrier()
            return measure()

        return run

    return in_pairs(
        together(lambda: ours(WIDTHS, BATCH_SIZE, steps=steps, ranks=ranks, compiled=compiled)),
        together(lambda: torch_ddp(steps=steps, ranks=ranks, compiled=compiled)),
        pairs,
    )


def summary(what: str, found: list[tuple[float, float]]) -> dict[str, float]:
    ratios = [one / other for one, other in found]
    line = {
        "ratio": statistics.median(ratios),
        "least": min(ratios),
        "most": max(ratios),
        "ours_ms": 1e3 * statistics.median(one for one, _ in found),
        "other_ms": 1e3 * statistics.median(other for _, other in found),
    }
    print(
        f"{what}: {line['ratio']:.3f} ({line['least']:.3f} to {line['most']:.3f}); "
        f"{line['ours_ms']:.2f} ms over {line['other_ms']:.2f} ms",
        flush=True,
    )
    return {name: round(value, 3) for name, value in line.items()}


def main() -> None:
    parser = parser_of(__doc__, quick="one pair of ten steps, not compiled")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument(
        "--steps", type=int, default=40, help="of a run; of the small model, ten times as many"
    )
    options = parser.parse_args()
    pairs, steps = (1, 10) if options.quick else (options.pairs, options.steps)
    torch.set_num_threads(1)
    found: dict[str, object] = {}
    found["loop"] = summary(
        "loop over a bare one",
        in_pairs(
            lambda: ours(SMALL_WIDTHS, SMALL_BATCH, steps=10 * steps, ranks=1, compiled=False),
            lambda: bare(steps=10 * steps),
            pairs,
        ),
    )
    for ranks in (2, 4):
        times = run_ranks(ranks, of_ranks, ranks, pairs, steps, False, timeout_s=1800)[0]
        found[f"ddp_{ranks}"] = summary(f"trainers.DDP over torch's, {ranks} ranks", times)
    if not options.quick:
        times = run_ranks(2, of_ranks, 2, pairs, steps, True, timeout_s=1800)[0]
        found["compiled_2"] = summary("the same by compiled layers, 2 ranks", times)
    print(json.dumps({"benchmark": "steps", **found, "load_average": load_average()}))


if __name__ == "__main__":
    main()
