"""How long a checkpoint holds training up, written in the background and waited for, and how long it takes to read.

    python tests/benchmarks/checkpoints.py [--millions 100] [--saves 5] [--directory DIR] [--quick]

One rank saves a model of that many float32 parameters, ``--saves`` times each way in turn, after a first save that is
left out. Beside it, the time of a copy of the same bytes in memory that is there already. What was saved is read as a
resumed run does it, which compares checksums, and mapped and copied by ``torch.load(mmap=True)``, which does not. All
in one run; medians.
Between saves the background has as long as it needs. Ends in one line of JSON."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import torch
from arguments import parser_of

from trainers.checkpoints.checkpoint import Checkpoint
from trainers.checkpoints.files import CheckpointFiles, latest_text, step_directory
from trainers.communication.communicator import Communicator


def main() -> None:
    parser = parser_of(__doc__, quick="2 million parameters")
    parser.add_argument("--millions", type=float, default=100.0, help="of parameters")
    parser.add_argument("--saves", type=int, default=5, help="each way")
    parser.add_argument(
        "--directory", type=Path, help="save below here; else below the system's temporary folder"
    )
    options = parser.parse_args()
    millions = 2.0 if options.quick else options.millions
    torch.set_num_threads(1)
    layers = {f"layer {index}": torch.randn(int(millions * 1e6 / 10)) for index in range(10)}
    memory = {name: torch.empty_like(layer) for name, layer in layers.items()}
    communicator = Communicator(topology=None, timeout=timedelta(minutes=10), device=torch.device("cpu"))
    seconds: dict[str, list[float]] = {
        name: [] for name in ("copy", "background", "waited for", "read", "mapped and copied")
    }

    def timed(name: str, begun: float) -> None:
        seconds[name].append(time.perf_counter() - begun)

    def copy() -> None:
        for name, layer in layers.items():
            memory[name].copy_(layer)

    with tempfile.TemporaryDirectory(prefix="checkpoints-", dir=options.directory) as home:
        checkpoint = Checkpoint(home, communicator)
        checkpoint.save(0, shared={"model": layers}, own={}, wait=True)
        copy()
        for number in range(1, 2 * options.saves + 1):
            begun = time.perf_counter()
            copy()
            timed("copy", begun)
            wait = number % 2 == 0
            begun = time.perf_counter()
            checkpoint.save(number, shared={"model": layers}, own={}, wait=wait)
            timed("waited for" if wait else "background", begun)
            checkpoint.finish()
        for _ in range(options.saves):
            files = CheckpointFiles(Path(home), latest_text(Path(home)))
            begun = time.perf_counter()
            _ = files.shared
            timed("read", begun)
            begun = time.perf_counter()
            mapped = torch.load(
                step_directory(Path(home), files.number) / "shared.pt", weights_only=True, mmap=True
            )
            for name, layer in mapped["model"].items():
                memory[name] = layer.clone()
            timed("mapped and copied", begun)
    medians = {name: statistics.median(found) for name, found in seconds.items()}
    for name, median in medians.items():
        print(f"{name:17s} {median:8.3f} s")
    print(
        json.dumps(
            {
                "benchmark": "checkpoints",
                "millions": millions,
                "seconds": medians,
                "background_to_copy": medians["background"] / medians["copy"],
                "background_to_waited_for": medians["background"] / medians["waited for"],
                "read_to_mapped": medians["read"] / medians["mapped and copied"],
            }
        )
    )


if __name__ == "__main__":
    main()
