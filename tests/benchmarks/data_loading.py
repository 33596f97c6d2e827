"""What BigEarthNet's patches cost from the file made for training to the model, against other ways and a training step.

    python tests/benchmarks/data_loading.py [--patches 2000] [--size 120] [--filters 16] [--directory DIR] [--quick]

On a made-up archive of v2, in one process with one thread. Measured are, in samples a second by the wall clock,
and by the processor time, which other people's work on the machine disturbs less:

- archive: a dozen GeoTIFFs a patch, read and packed as they are in the file;
- host: the file as it was read until November 2026, through a memory map, and made float32 images before a batch
  goes to the device;
- file: as it is read now, by preadv, as uint16, in random order, as trainers' Loader asks for batches: all that a CPU
  does where there is a GPU, but the copy;
- device: what the device does then, made here by the CPU: scaling, normalising and upsampling;
- cold: the first time, after the system was asked to forget what it had read; warm: the median of others, in turn;
- step: forward, backward and Adam's update of a ResNet-50 of ``filters`` in its first stage, and of the usual 64;
- loader: epochs of eight batches that two processes read, from one ``Loader`` for all of them, and each from a new one;
- memory: how far the resident set goes up over an epoch of the file after its first batches, in MB.

And what it took to make the archive and the file. file_to_host_cpu is the processor time of a patch, as a part of what
it was; on a machine without a GPU all_to_host_cpu counts, with the device's part. Ends in one line of JSON."""

from __future__ import annotations

import itertools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from arguments import parser_of
from torch import Tensor, nn

from search_spaces.building_blocks.data_sets.patch_images import PatchImages
from search_spaces.networks.resnet import ResNet50
from search_spaces.readers.bigearthnet import load_bigearthnet
from search_spaces.readers.bigearthnet_archive import make_archive
from search_spaces.readers.bigearthnet_files.convert import convert
from search_spaces.readers.bigearthnet_files.format import BANDS, CLASSES
from search_spaces.readers.bigearthnet_files.sources import open_archive
from search_spaces.readers.bigearthnet_files.store import PIXELS
from trainers.data.batches import in_order
from trainers.data.loader import Loader

BATCH = 64
CPU = torch.device("cpu")


def rates(counts: Iterable[int]) -> tuple[float, float]:
    """Samples a second by the wall clock and by this process's time, of what counts samples as it goes."""
    wall, processor = time.perf_counter(), time.process_time()
    samples = sum(counts)
    return samples / (time.perf_counter() - wall), samples / (time.process_time() - processor)


class ReadOnly:
    """A data set without what the device does."""

    def __init__(self, images: PatchImages) -> None:
        self._images = images

    def __len__(self) -> int:
        return len(self._images)

    def read_batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return self._images.read_batch(indices)


class OnHost(ReadOnly):
    """The file through a map, and images before the device."""

    def __init__(self, images: PatchImages, file: Path) -> None:
        super().__init__(images)
        self._mapped = np.load(file / PIXELS, mmap_mode="r")
        self._mapped = self._mapped.view("<u2").reshape(len(self._mapped), -1)
        self._rows = images.patches._rows

    def read_batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        chosen = indices.numpy()
        values = torch.from_numpy(self._mapped[self._rows[chosen]])
        return self._images.on_device(values, torch.from_numpy(self._images.patches.targets(chosen)))


class Archive:
    """The archive's patches, packed as in the file."""

    def __init__(self, path: Path) -> None:
        self._opened = open_archive(path)

    def __len__(self) -> int:
        return len(self._opened.patches)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        sample = self._opened.reader.read(self._opened.patches[index], BANDS)
        return torch.from_numpy(np.concatenate([sample.bands[band].ravel() for band in BANDS])), index


def reading(samples: Any, limit: int) -> Iterable[int]:
    order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(0))[:limit].tolist()
    with Loader(samples, device=CPU, processes=0) as loader:
        for _, targets in loader.batches(in_order(order, batch_size=BATCH)):
            assert isinstance(targets, Tensor)
            yield len(targets)


def finishing(images: PatchImages) -> Iterable[int]:
    """What the device does, of one batch again and again."""
    inputs, targets = images.read_batch(range(min(BATCH, len(images))))
    for _ in range(-(-len(images) // BATCH)):
        images.on_device(inputs, targets)
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


def epochs_s(samples: PatchImages, *, kept: bool, epochs: int = 5) -> float:
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


def growth_mb(samples: PatchImages) -> float:
    """Of the resident set over an epoch, from its fourth batch on."""
    process = psutil.Process()
    resident = [process.memory_info().rss / 1e6 for _ in reading(samples, len(samples))]
    return max(resident[3:]) - resident[3] if len(resident) > 4 else 0.0


def timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def main() -> None:
    parser = parser_of(__doc__, quick="64 patches, images of 20×20, 4 filters")
    parser.add_argument("--patches", type=int, default=2000)
    parser.add_argument("--size", type=int, default=120, help="pixels along a side of an image")
    parser.add_argument("--filters", type=int, default=16, help="of the small network's first stage")
    parser.add_argument(
        "--directory", type=Path, help="keep the archive and the file here, or take them from it"
    )
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
        fast = PatchImages(load_bigearthnet(file, "train"), size=options.size)
        ways: dict[str, Callable[[], Iterable[int]]] = {
            "file": lambda: reading(ReadOnly(fast), len(fast)),
            "host": lambda: reading(OnHost(fast, file), len(fast)),
            "device": lambda: finishing(fast),
            "archive": lambda: reading(Archive(archive), 256),
        }
        rounds: list[dict[str, tuple[float, float]]] = []
        for number in range(
            2 if options.quick else 6
        ):  # in turn: what else the machine does is the same for all
            if number == 0:
                forget(home)
            rounds.append(
                {name: rates(way()) for name, way in ways.items() if number < 2 or name != "archive"}
            )
        for name, temperature in itertools.product(ways, ("cold", "warm")):
            of_way = [
                one[name] for one in (rounds[:1] if temperature == "cold" else rounds[1:]) if name in one
            ]
            wall, processor = (statistics.median(values) for values in zip(*of_way, strict=True))
            result[f"{name}_{temperature}_per_s"], result[f"{name}_{temperature}_per_cpu_s"] = wall, processor
            print(
                f"{name:8s} {temperature}  {wall:8.0f} a second, {processor:8.0f} a processor second",
                flush=True,
            )
        costs = [{name: 1 / processor for name, (_, processor) in one.items()} for one in rounds[1:]]
        for name, parts in {"file_to_host_cpu": ["file"], "all_to_host_cpu": ["file", "device"]}.items():
            ratio = statistics.median(sum(one[part] for part in parts) / one["host"] for one in costs)
            result[name] = ratio
            print(f"{' and '.join(parts)}: {ratio:.3f} of the processor time of host")
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
