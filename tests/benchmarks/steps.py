"""A training step of ``trainers`` beside the same step without it.

    python tests/benchmarks/steps.py [--pairs 10] [--steps 40] [--quick]

- ``ddp``: with ``trainers.DDP`` over with torch's DistributedDataParallel in a plain loop, on 2 and on 4 ranks of gloo,
  on the loopback, each rank with one thread; 2.6 million parameters, 128 samples a rank, AdamW;
- ``compiled``: the same on 2 ranks, each layer compiled by itself, by inductor;
- ``loop``: one rank, steps of about 1 ms: ``trainers.train`` over a bare loop that takes the same batches from memory;
- ``loop_short``: the same with steps of 0.4 to 0.5 ms and fused AdamW, in the process's own seconds, 20 pairs;
- ``read_batch``, ``on_device``: the same with a data set that has such a method, which the bare loop calls, too;
- ``plan``: milliseconds before the first of 40 000 steps that come on top of the permutation, the least of five.

Pairs alternate in which comes first. A time of a step is the mean over all but the first fifth of a run; printed are
the medians of the pairs' ratios, and the smallest and largest. Ends in one line of JSON."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from arguments import parser_of
from torch import Tensor, nn
from torch.utils.data import Dataset, DistributedSampler, TensorDataset
from training import load_average, noise, perceptron

import trainers

sys.path.insert(0, str(Path(__file__).parents[1]))

from gloo import run_ranks

WIDTHS = (512, 1024, 1024, 1024, 10)
BATCH_SIZE = 128
SMALL_WIDTHS = (256, 256, 256, 10)
"""A step takes about a millisecond with batches of ``SMALL_BATCH``."""
SMALL_BATCH = 64
SHORT_WIDTHS = (128, 128, 10)
"""A step takes 0.4 to 0.5 ms with batches of ``SMALL_BATCH`` and the fused optimizer."""
SHORT_STEPS, SHORT_PAIRS = 1000, 20
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


class Read(Dataset[object]):
    """Data set that reads whole batches, of ``noise`` in bytes."""

    def __init__(self, samples: int, width: int) -> None:
        inputs, self.classes = noise(samples, width).tensors
        self.bytes = inputs.mul(32).add(128).clamp(0, 255).byte()

    def __len__(self) -> int:
        return len(self.bytes)

    def read_batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return self.bytes[indices].float().div_(255), self.classes[indices]


class Finished(Read):
    """The same, which makes numbers of the bytes on the device."""

    def read_batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return self.bytes[indices], self.classes[indices]

    def on_device(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return inputs.float().div_(255), targets


def batch_of(data: Any, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Batch as a loop of one's own reads it."""
    if isinstance(data, TensorDataset):
        inputs, classes = data.tensors
        return inputs[indices], classes[indices]
    read = data.read_batch(indices)
    return data.on_device(*read) if isinstance(data, Finished) else read


def adamw(parameters: Iterable[nn.Parameter], *, fused: bool | None = None) -> torch.optim.AdamW:
    return torch.optim.AdamW(parameters, lr=LR, fused=fused)


def ours(
    model: nn.Module,
    data: Dataset[object],
    batch_size: int,
    *,
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.AdamW] = adamw,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Seconds of a step by ``trainers.train``."""
    begun: list[float] = []

    def watch() -> bool:
        begun.append(clock())
        return False

    trainers.train(
        model,
        data,
        loss=nn.functional.cross_entropy,
        optimizer=optimizer,
        epochs=1,
        batch_size=batch_size,
        interrupt=watch,
        progress=False,
    )
    return seconds_a_step(begun)


def by_hand(
    model: nn.Module,
    data: Dataset[object],
    batches: Iterable[Tensor],
    *,
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.AdamW] = adamw,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Seconds of a step of a loop that does nothing but train, with ``batches`` of data that lie in memory already: a
    DataLoader would be slower."""
    updates = optimizer(model.parameters())
    begun = []
    for batch in batches:
        begun.append(clock())
        updates.zero_grad()
        inputs, classes = batch_of(data, batch)
        nn.functional.cross_entropy(model(inputs), classes).backward()
        updates.step()
    return seconds_a_step(begun)


def torch_ddp(*, steps: int, ranks: int, compiled: bool) -> float:
    """Seconds of a step with torch's own DistributedDataParallel, by its tutorial's loop."""
    data = noise(steps * BATCH_SIZE * ranks, WIDTHS[0])
    model = nn.parallel.DistributedDataParallel(model_of(WIDTHS, compiled=compiled))
    return by_hand(model, data, torch.tensor([*DistributedSampler(data)]).split(BATCH_SIZE))


def beside_bare(
    widths: Sequence[int], make: Callable[[int, int], Any], *, steps: int, pairs: int, short: bool
) -> list[tuple[float, float]]:
    """Pairs of seconds of a step on one rank: ours, a bare loop's."""
    data = make(steps * SMALL_BATCH, widths[0])
    how: dict[str, Any] = {}
    if short:
        how = {"optimizer": partial(adamw, fused=True), "clock": time.process_time}
    return in_pairs(
        lambda: ours(perceptron(widths), data, SMALL_BATCH, **how),
        lambda: by_hand(perceptron(widths), data, torch.randperm(len(data)).split(SMALL_BATCH), **how),
        pairs,
    )


def plan_ms(*, steps: int = 40_000, batch_size: int = SMALL_BATCH, times: int = 5) -> float:
    """Milliseconds of the process from the call of ``train`` to its first step, of a run of an epoch of ``steps``
    steps, beside those of a run of few steps and of the permutation."""

    class Begun(Exception):
        pass

    def stop() -> bool:
        raise Begun

    def first_step_s(data: TensorDataset) -> float:
        begin = time.process_time()
        with suppress(Begun):
            trainers.train(
                nn.Linear(1, 10),
                data,
                loss=nn.functional.cross_entropy,
                optimizer=adamw,
                epochs=1,
                batch_size=batch_size,
                interrupt=stop,
                progress=False,
            )
        return time.process_time() - begin

    def permutation_s(samples: int) -> float:
        begin = time.process_time()
        torch.randperm(samples)
        return time.process_time() - begin

    few, many = noise(4 * batch_size, 1), noise(steps * batch_size, 1)
    least = [
        min(measure() for _ in range(times))
        for measure in (
            lambda: first_step_s(many),
            lambda: first_step_s(few),
            lambda: permutation_s(len(many)),
        )
    ]
    return 1e3 * (least[0] - least[1] - least[2])


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
        together(
            lambda: ours(
                model_of(WIDTHS, compiled=compiled), noise(steps * BATCH_SIZE * ranks, WIDTHS[0]), BATCH_SIZE
            )
        ),
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
    parser.add_argument("--one-rank", action="store_true", help="no run of several ranks")
    options = parser.parse_args()
    pairs, steps = (1, 10) if options.quick else (options.pairs, options.steps)
    torch.set_num_threads(1)
    found: dict[str, object] = {}
    of_one = partial(beside_bare, SMALL_WIDTHS, noise, steps=10 * steps, pairs=pairs, short=False)
    found["loop"] = summary("loop over a bare one", of_one())
    short_steps, short_pairs = (10 * steps, 1) if options.quick else (SHORT_STEPS, SHORT_PAIRS)
    for name, make in (("loop_short", noise), ("read_batch", Read), ("on_device", Finished)):
        times = beside_bare(SHORT_WIDTHS, make, steps=short_steps, pairs=short_pairs, short=True)
        found[name] = summary(f"{name}, fused optimizer, process time", times)
    found["plan_ms"] = round(plan_ms(times=1 if options.quick else 5), 1)
    print(f"plan of 40 000 steps: {found['plan_ms']} ms beside the permutation", flush=True)
    if options.one_rank:
        print(json.dumps({"benchmark": "steps", **found, "load_average": load_average()}))
        return
    for ranks in (2, 4):
        times = run_ranks(ranks, of_ranks, ranks, pairs, steps, False, timeout_s=1800)[0]
        found[f"ddp_{ranks}"] = summary(f"trainers.DDP over torch's, {ranks} ranks", times)
    if not options.quick:
        times = run_ranks(2, of_ranks, 2, pairs, steps, True, timeout_s=1800)[0]
        found["compiled_2"] = summary("the same by compiled layers, 2 ranks", times)
    print(json.dumps({"benchmark": "steps", **found, "load_average": load_average()}))


if __name__ == "__main__":
    main()
