"""Figures of one GPU, which two ranks share where there have to be two.

    python tests/benchmarks/gpu.py [--device cuda|cpu] [--into FILE] [--quick]

- ``two_ranks``, ``step of trainers.DDP over torch's``: two ranks on the device, gloo between them, a perceptron of 2.6
  million parameters, AdamW; the median of pairs, one after the other in the same processes. Gloo copies to the host and
  back, so this says what our averaging costs beside torch's and nothing of NCCL.
- ``alone``, ``loop over a bare loop``: one rank, the same model, shuffled data from the host; seconds of a step of
  ``trainers.train`` over those of a loop of ten lines that gathers the same number of rows.
- ``layer``: forward and backward of Linear 768 → 3072 as OIALR has it with k a quarter of full rank, over the
  one of full rank and over W = U Σ Vᵀ multiplied in each pass, in single precision and in bfloat16; apart the time on
  the GPU, of twenty passes that are all queued before the first begins, and the time that the host takes to queue them.
- ``decompositions``: milliseconds of one of a 768 × 3072 matrix as ``trainers`` does it, with the cutoff of an update
  and with none, as OIALR converts weights, and by torch.linalg.svd: of random numbers, and of a product of factors of a
  quarter of the rank, as weights are that were made whole. Of a vision transformer (width 768, depth 6) the conversion,
  an update and the step; ``share at source`` is their share of a run of Table A.1: 156 000 steps, converted after a
  third, an update of all weights every 1 000.
- ``busy``, ``busy share``: of the time of a training step of that transformer, in bfloat16, the part in which kernels
  or copies run, by torch's profiler; data from the host, read by the rank itself and by two processes; beside a loop
  of one's own with the same reading.

Ends in one line of JSON. ``--into`` adds it to the file of tests/gpu as a run of its own, after each part."""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from accuracy import VisionTransformer
from arguments import parser_of
from oialr import Materialised, low_rank
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
from training import load_average, noise, perceptron

import trainers
from trainers.lowrank.decomposition import svd

sys.path.extend(str(Path(__file__).resolve().parents[1] / folder) for folder in (".", "gpu"))
from gpu_results import Results

SOURCE_STEPS, SOURCE_EVERY = 156_000, 1000
WIDTHS = (512, 1024, 1024, 1024, 10)
BATCH = 128


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Stretch:
    """Given to ``train`` as ``interrupt``: mean seconds of its steps from ``first`` to ``last``, with nothing under way
    at either end."""

    def __init__(self, device: torch.device, first: int, last: int) -> None:
        self._device, self._ends = device, (first, last)
        self._calls = 0
        self._at: list[float] = []

    def __call__(self) -> bool:
        if self._calls in self._ends:
            synchronise(self._device)
            self._at.append(time.perf_counter())
        self._calls += 1
        return False

    @property
    def step_s(self) -> float:
        begin, end = self._at
        return (end - begin) / (self._ends[1] - self._ends[0])


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


def by_trainers(model: nn.Module, data: TensorDataset, watch: Stretch, **changed: Any) -> None:
    settings: dict[str, Any] = {"epochs": 1, "batch_size": BATCH, "progress": False, "optimizer": adamw}
    settings["data_on_device"] = False  # the loop by hand reads from the host
    trainers.train(model, data, loss=cross_entropy, interrupt=watch, **{**settings, **changed})


def batches(data: TensorDataset, device: torch.device, processes: int) -> Iterator[list[torch.Tensor]]:
    """Shuffled batches as people read them: from memory, or by processes."""
    if processes:
        pinned = device.type == "cuda"
        yield from DataLoader(data, BATCH, shuffle=True, num_workers=processes, pin_memory=pinned)
    else:
        for part in torch.randperm(len(data)).split(BATCH):
            yield [tensor[part] for tensor in data.tensors]


def by_hand(
    model: nn.Module,
    data: TensorDataset,
    watch: Stretch,
    device: torch.device,
    *,
    precision: str = "fp32",
    loader_processes: int = 0,
) -> None:
    """A loop as people write it, which reads as many samples as ours does in ``epochs=1``."""
    optimizer = adamw(model.parameters())
    for inputs, classes in batches(data, device, loader_processes):
        watch()
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            outputs = model(inputs.to(device, non_blocking=True))
            loss = cross_entropy(outputs, classes.to(device, non_blocking=True))
        loss.backward()
        optimizer.step()


def pairs(
    device: torch.device, steps: int, rounds: int, wrap: Callable[[nn.Module], nn.Module]
) -> list[float]:
    """Ratios of a step by ``trainers`` over one by hand, a pair a round, by turns the one and the other first."""
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    data = noise(steps * BATCH * ranks, WIDTHS[0])
    own = TensorDataset(*(tensor[: steps * BATCH] for tensor in data.tensors))
    ratios = []
    for turn in range(rounds + 1):
        seconds: dict[str, float] = {}
        for name in ("ours", "other") if turn % 2 else ("other", "ours"):
            model, watch = perceptron(WIDTHS).to(device), Stretch(device, steps // 4, steps - 1)
            if name == "ours":
                by_trainers(model, data, watch)
            else:
                by_hand(wrap(model), own, watch, device)
            seconds[name] = watch.step_s
        ratios.append(seconds["ours"] / seconds["other"])
    return ratios[1:]  # the first pair loads libraries


def beside_torch(rank: int, kind: str, folder: str, steps: int, rounds: int) -> None:
    """One of two ranks; the first writes the ratios."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    device = torch.device(kind, 0) if kind == "cuda" else torch.device("cpu")
    if kind == "cuda":
        torch.cuda.set_device(device)
    store = dist.FileStore(f"{folder}/store", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=60))
    ratios = pairs(device, steps, rounds, nn.parallel.DistributedDataParallel)
    if rank == 0:
        Path(folder, "ratios").write_text(json.dumps(ratios))
    dist.destroy_process_group()


def two_ranks(device: torch.device, quick: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        arguments = (device.type, folder, 12 if quick else 60, 2 if quick else 10)
        torch.multiprocessing.spawn(beside_torch, args=arguments, nprocs=2)
        ratios = json.loads(Path(folder, "ratios").read_text())
    return {"step of trainers.DDP over torch's": statistics.median(ratios), "pairs": ratios}


def alone(device: torch.device, quick: bool) -> dict[str, Any]:
    ratios = pairs(device, 12 if quick else 200, 2 if quick else 10, lambda model: model)
    return {"loop over a bare loop": statistics.median(ratios), "pairs": ratios}


def median_ms(
    variants: dict[str, Callable[[], object]], device: torch.device, repeats: int
) -> dict[str, float]:
    """Milliseconds of each, interleaved, each waited for."""
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for repeat in range(repeats + 2):
        for name, run in variants.items():
            synchronise(device)
            begin = time.perf_counter()
            run()
            synchronise(device)
            if repeat > 1:
                seconds[name].append(time.perf_counter() - begin)
    return {name: 1e3 * statistics.median(kept) for name, kept in seconds.items()}


QUEUED = 20


def queued_ms(
    variants: dict[str, Callable[[], object]], device: torch.device, repeats: int
) -> dict[str, dict[str, float]]:
    """Medians of milliseconds of a pass of each, interleaved: on the host, and on the GPU where there is one."""
    kept: dict[str, dict[str, list[float]]] = {name: {} for name in variants}
    for repeat in range(repeats + 2):
        for name, run in variants.items():
            synchronise(device)
            events = []
            if device.type == "cuda":
                # Some 50 ms, in which the host queues all passes: else its time would be in the GPU's.
                torch.cuda._sleep(10**8)  # type: ignore[no-untyped-call]
                events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
                events[0].record()
            begin = time.perf_counter()
            for _ in range(QUEUED):
                run()
            ms = {"host": 1e3 * (time.perf_counter() - begin) / QUEUED}
            if events:
                events[1].record()
                synchronise(device)
                ms["GPU"] = events[0].elapsed_time(events[1]) / QUEUED
            if repeat > 1:
                for where, value in ms.items():
                    kept[name].setdefault(where, []).append(value)
    return {
        name: {where: statistics.median(values) for where, values in of_name.items()}
        for name, of_name in kept.items()
    }


def layer(device: torch.device, quick: bool) -> dict[str, Any]:
    columns, rows = (96, 384) if quick else (768, 3072)
    found: dict[str, Any] = {}
    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(0)
        low = low_rank(rows, columns, columns // 4).to(device, dtype)
        modules = {
            "full": nn.Linear(columns, rows).to(device, dtype),
            "low": low,
            "materialised": Materialised(low),
        }
        for samples in (256,) if quick else (256, 8192, 25216):
            x = torch.randn(samples, columns, device=device, dtype=dtype, requires_grad=True)
            gradient = torch.randn(samples, rows, device=device, dtype=dtype)

            def run(module: nn.Module, x: torch.Tensor = x, gradient: torch.Tensor = gradient) -> None:
                x.grad = None
                module.zero_grad(set_to_none=True)
                module(x).backward(gradient)

            ms = queued_ms(
                {name: (lambda module=module: run(module)) for name, module in modules.items()},
                device,
                2 if quick else 10,
            )
            found[f"{str(dtype).removeprefix('torch.')}, {samples} rows"] = {
                where: {
                    "full ms": full,
                    "low over full": ms["low"][where] / full,
                    "low over materialised": ms["low"][where] / ms["materialised"][where],
                }
                for where, full in ms["full"].items()
            }
    return found


def transformer(device: torch.device, quick: bool) -> nn.Module:
    torch.manual_seed(0)
    width, depth, heads = (64, 2, 4) if quick else (768, 6, 12)
    return VisionTransformer(channels=3, side=32, classes=10, width=width, depth=depth, heads=heads).to(
        device
    )


def images(samples: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(
        torch.randn(samples, 3, 32, 32, generator=generator),
        torch.randint(10, (samples,), generator=generator),
    )


def decompositions(device: torch.device, quick: bool) -> dict[str, Any]:
    shape = (96, 384) if quick else (768, 3072)
    quarter = min(shape) // 4
    ways: dict[str, Callable[[], object]] = {}
    for name, matrix in (
        ("", torch.randn(shape, device=device)),
        (
            ", of a quarter of the rank",
            torch.randn(shape[0], quarter, device=device) @ torch.randn(quarter, shape[1], device=device),
        ),
    ):
        ways |= {
            f"ours{name}": lambda matrix=matrix: svd(matrix, cutoff=0.1),
            f"ours without a cutoff{name}": lambda matrix=matrix: svd(matrix, cutoff=0.0),
            f"torch.linalg.svd{name}": lambda matrix=matrix: torch.linalg.svd(matrix, full_matrices=False),
        }
    found: dict[str, Any] = {
        f"{name}, ms": ms for name, ms in median_ms(ways, device, 2 if quick else 3).items()
    }
    steps, batch = (10, 32) if quick else (22, BATCH)
    delay = steps - 2  # the conversion in the first epoch, two updates of all weights in the second
    watch = Stretch(device, steps // 4, delay - 1)
    method = trainers.OIALR(delay=delay, update_every=steps // 2, layer_step=1.0, sigma_cutoff=0.1)
    result = trainers.train(
        transformer(device, quick), images(steps * batch), loss=cross_entropy, optimizer=adamw, method=method, epochs=2,
        batch_size=batch, interrupt=watch, precision="bf16", progress=False,
    )  # fmt: skip
    conversion, all_of_them = (epoch["decomposition_s"] for epoch in result.history)
    update = (all_of_them - conversion) / 2
    spent = conversion + update * ((SOURCE_STEPS - SOURCE_STEPS // 3) // SOURCE_EVERY)
    found |= {"conversion, s": conversion, "update, s": update, "step, ms": 1e3 * watch.step_s}
    found["share at source"] = spent / (SOURCE_STEPS * watch.step_s + spent)
    return found


def kernel_s(profile: Any) -> float:
    """Seconds in which anything ran on the GPU, however many at once."""
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in profile.events()
        # Ranges that Python has named lie over kernels and the gaps between them.
        if event.device_type == torch.autograd.DeviceType.CUDA
        and "#" not in event.name
        and not getattr(event, "is_user_annotation", False)
    )
    busy = until = 0.0
    for start, end in spans:
        busy += max(0.0, end - max(start, until))
        until = max(until, end)
    return busy / 1e6


def busy(device: torch.device, quick: bool) -> dict[str, Any]:
    steps = 10 if quick else 60
    data = images(steps * BATCH)
    found: dict[str, Any] = {}
    for processes in (0, 2):
        watch = Stretch(device, steps // 4, steps - 1)
        settings: dict[str, Any] = {"precision": "bf16", "loader_processes": processes}
        by_trainers(transformer(device, quick), data, watch, **settings)
        name = f"{processes} loader processes"
        found[name] = {"step, ms": 1e3 * watch.step_s, "images a second": BATCH / watch.step_s}
        other = Stretch(device, steps // 4, steps - 1)
        by_hand(transformer(device, quick), data, other, device, **settings)
        found[name] |= {
            "step by hand, ms": 1e3 * other.step_s,
            "step over by hand": watch.step_s / other.step_s,
        }
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            # Beside the profiler steps take longer, kernels do not: their time over that of steps without it.
            activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
            with torch.profiler.profile(activities=activities) as profile:
                by_trainers(
                    transformer(device, quick), data, Stretch(device, steps // 4, steps - 1), **settings
                )
            a_step = kernel_s(profile) / steps
            # None: the machine does not let programs see kernels.
            found[name]["busy share"] = min(1.0, a_step / watch.step_s) if a_step else None
            found[name]["peak memory, MiB"] = torch.cuda.max_memory_allocated(device) // 2**20
    return found


def main() -> None:
    parser = parser_of(__doc__, quick="few steps of small models; on the CPU always")
    there = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=("cuda", "cpu"), default=there)
    parser.add_argument("--into", type=Path, help="a file of JSON, whose figures these are added to")
    options = parser.parse_args()
    if options.device == "cuda" and there == "cpu":
        print("not possible here: there is no GPU that torch can use; --device cpu runs this on the CPU")
        return
    device = torch.device("cuda", 0) if options.device == "cuda" else torch.device("cpu")
    quick = options.quick or options.device == "cpu"
    result: dict[str, Any] = {"benchmark": "gpu", "device": str(device), "quick": quick, "seconds": {}}
    results = None
    if options.into is not None:
        results = Results(options.into, command=" ".join(sys.argv), device=str(device))
    for part in (two_ranks, alone, layer, decompositions, busy):
        begin = time.perf_counter()
        result |= {part.__name__: part(device, quick)}
        seconds = result["seconds"][part.__name__] = round(time.perf_counter() - begin, 1)
        print(f"{part.__name__}: {seconds:.0f} s: {json.dumps(result[part.__name__])}", flush=True)
        result["load_average"] = load_average()
        if results is not None:
            results.write(figures={"benchmark": result})
    print(json.dumps(result))


if __name__ == "__main__":
    main()
