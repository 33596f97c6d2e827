"""How fast BigEarthNet's patches come from the file made for training, against their archive and a training step.

    python tests/benchmarks/data_loading.py [--patches 2000] [--size 120] [--filters 16] [--directory DIR] [--quick]

On a made-up archive of v2, in one process with one thread. Measured are, in samples a second by the wall clock,
and by the processor time, which other people's work on the machine disturbs less:

- archive: a dozen GeoTIFFs a patch, read, brought to one grid, normalised and stacked;
- file: the memory-mapped file, in random order, as trainers.data.batches gives batches to a training;
- both once more after the system was told to forget what it had read of them (cold: the disk's speed counts);
- step: forward, backward and Adam's update of a ResNet-50 of ``filters`` in its first stage, and of the usual 64;
- loader: epochs of eight batches that two processes read, from one ``Loader`` for all of them, and each from a new one;
- memory: how far the resident set goes up over an epoch of the file after its first batches, in MB.

And what it took to make the archive and the file. Ends in one line of JSON."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil
import torch
from torch import nn

from search_spaces.networks.resnet import ResNet50
from search_spaces.readers.bigearthnet import load_bigearthnet
from search_spaces.readers.bigearthnet_archive import make_archive
from search_spaces.readers.bigearthnet_files.convert import convert
from search_spaces.readers.bigearthnet_files.dataset import BigEarthNet, Grid, RawBigEarthNet
from search_spaces.readers.bigearthnet_files.format import BANDS, CLASSES
from search_spaces.readers.bigearthnet_files.sources import open_archive
from trainers.data.batches import in_order
from trainers.data.loader import Loader

BATCH = 64
CPU = torch.device("cpu")


def rates(counts: Iterable[int]) -> tuple[float, float]:
    """Samples a second by the wall clock and by this process's time, of what counts samples as it goes."""
    wall, processor = time.perf_counter(), time.process_time()
    samples = sum(counts)
    return samples / (time.perf_counter() - wall), samples / (time.process_time() - processor)


def reading(samples: BigEarthNet | RawBigEarthNet, limit: int) -> Iterable[int]:
    order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(0))[:limit].tolist()
    with Loader(samples, device=CPU, processes=0) as loader:
        for _, targets in loader.batches(in_order(order, batch_size=BATCH)):
            yield len(targets)


def forget(root: Path) -> None:
    """Asks the system to drop what it holds in memory of the files below ``root``."""
    os.sync()
    for path in root.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def steps(size: int, filters: int, count: int) -> Iterable[int]:
    batch = 16
    model = ResNet50(channels=len(BANDS), classes=len(CLASSES), filters=filters)
    optimizer = torch.optim.Adam(model.parameters())
    images, targets = torch.randn(batch, len(BANDS), size, size), torch.zeros(batch, len(CLASSES))
    for _ in range(count):
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(images), targets).backward()
        optimizer.step()
        yield batch


def epochs_s(samples: BigEarthNet, *, kept: bool, epochs: int = 5) -> float:
    """Seconds of an epoch of eight batches, the first left out."""
    planned = in_order(range(min(len(samples), 8 * BATCH)), batch_size=BATCH)
    seconds = []
    loader = Loader(samples, device=CPU, processes=2)
    for _ in range(1 + epochs):
        begun = time.perf_counter()
        if not kept:
            loader.close()
        for _ in loader.batches(planned):
            pass
        seconds.append(time.perf_counter() - begun)
    loader.close()
    return sum(seconds[1:]) / epochs


def growth_mb(samples: BigEarthNet) -> float:
    """Of the resident set over an epoch, from its fourth batch on."""
    process = psutil.Process()
    resident = [process.memory_info().rss / 1e6 for _ in reading(samples, len(samples))]
    return max(resident[3:]) - resident[3] if len(resident) > 4 else 0.0


def timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--patches", type=int, default=2000)
    parser.add_argument("--size", type=int, default=120, help="pixels along a side of an image")
    parser.add_argument("--filters", type=int, default=16, help="of the small network's first stage")
    parser.add_argument(
        "--directory", type=Path, help="keep the archive and the file here, or take them from it"
    )
    parser.add_argument("--quick", action="store_true", help="64 patches, images of 20×20, 4 filters")
    options = parser.parse_args()
    if options.quick:
        options.patches, options.size, options.filters = 64, 20, 4
    torch.set_num_threads(1)
    result: dict[str, object] = {
        "benchmark": "data_loading",
        "patches": options.patches,
        "size": options.size,
    }
    with tempfile.TemporaryDirectory(prefix="data-loading-") as scratch:
        home = options.directory or Path(scratch)
        archive, file = home / "archive", home / "file"
        if not archive.exists():
            result["make_archive_s"] = timed(lambda: make_archive(archive, patches=options.patches))
            result["make_file_s"] = timed(lambda: convert(archive, file))
        opened = open_archive(archive)
        grid = Grid("v2", bands=BANDS, size=options.size, upsampling="nearest", normalise=True)
        raw = RawBigEarthNet(opened.reader, opened.patches, grid)
        fast = load_bigearthnet(file, "train", size=options.size)
        some = min(len(raw), 256)
        for temperature, (name, samples, count) in itertools.product(
            ("cold", "warm"), (("archive", raw, some), ("file", fast, len(fast)))
        ):
            if temperature == "cold":
                forget(home)
            wall, processor = rates(reading(samples, count))
            result[f"{name}_{temperature}_per_s"], result[f"{name}_{temperature}_per_cpu_s"] = wall, processor
            print(
                f"{name:8s} {temperature}  {wall:8.0f} a second, {processor:8.0f} a processor second",
                flush=True,
            )
        pairs = [(epochs_s(fast, kept=True), epochs_s(fast, kept=False)) for _ in range(3)]
        result["loader_kept_to_new"] = statistics.median(kept / new for kept, new in pairs)
        print(f"loader    an epoch takes {result['loader_kept_to_new']:.2f} of one whose processes are new")
        result["epoch_growth_mb"] = growth_mb(fast)
        for filters, count in ((options.filters, 4), *(() if options.quick else ((64, 2),))):
            for _ in steps(options.size, filters, 1):
                pass  # what only the first step does
            wall, processor = rates(steps(options.size, filters, count))
            result[f"step_{filters}_filters_per_s"] = wall
            result[f"step_{filters}_filters_per_cpu_s"] = processor
            print(
                f"step, {filters} filters  {wall:8.1f} a second, {processor:8.1f} a processor second",
                flush=True,
            )
            if filters == options.filters:
                result["file_to_step_cpu"] = float(str(result["file_warm_per_cpu_s"])) / processor
    result["file_to_archive_cpu"] = float(str(result["file_warm_per_cpu_s"])) / float(
        str(result["archive_warm_per_cpu_s"])
    )
    print(json.dumps(result))


if __name__ == "__main__":
    main()
