"""Learning curves of random configurations of search_spaces/digits, trained once, as a table.

python tests/benchmarks/curves.py --configurations 200     appends to curves.csv.gz what it lacks of so many

A row is a configuration: the processor seconds of an epoch, the validation accuracy after
each of 24 epochs in ten-thousandths, and the parameters as JSON. ``early_stopping.py`` replays it."""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import os
import random
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

TABLE = Path(__file__).with_name("curves.csv.gz")
EPOCHS = 24


@dataclass(frozen=True, kw_only=True)
class Curve:
    """``accuracy[k]``: on the validation part after epoch k + 1."""

    params: dict[str, object]
    epoch_s: float
    accuracy: tuple[float, ...]


def read(path: Path = TABLE) -> list[Curve]:
    """All curves of the table, in the order in which they were drawn."""
    with gzip.open(path, "rt", newline="") as file:
        return [
            Curve(
                params=json.loads(row["params"]),
                epoch_s=float(row["epoch_s"]),
                accuracy=tuple(int(value) / 10_000 for value in row["accuracy"].split()),
            )
            for row in csv.DictReader(file)
        ]


def write(curves: list[Curve], path: Path = TABLE) -> None:
    """Replace the table; the same curves give the same bytes."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["epoch_s", "accuracy", "params"])
    for curve in curves:
        accuracy = " ".join(str(round(10_000 * value)) for value in curve.accuracy)
        rows.writerow([f"{curve.epoch_s:.4f}", accuracy, json.dumps(curve.params)])
    partial = path.with_suffix(".partial")
    partial.write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))
    os.replace(partial, path)


def train(number: int) -> Curve:
    """The curve of the configuration of that number; a run that diverges stays at what it had."""
    from hpo import Trial
    from search_spaces import digits

    rng = random.Random(f"curves/{number}")
    params = digits.space.decode(digits.space.sample(rng))
    accuracy: list[float] = []

    class Watched(Trial):
        def report(self, step: int, value: object, **metrics: object) -> None:
            accuracy.append(float(value))  # type: ignore[arg-type]

    with tempfile.TemporaryDirectory() as directory:
        watched = Watched.alone(params, directory=directory, seed=number)
        begun = time.process_time()  # others may be at work on the machine
        digits.make_task(epochs=EPOCHS).evaluate(watched)
        seconds = (time.process_time() - begun) / max(1, len(accuracy))
    last = accuracy[-1] if accuracy else 0.1
    return Curve(params=params, epoch_s=seconds, accuracy=tuple(accuracy + [last] * (EPOCHS - len(accuracy))))


def main() -> None:
    """Train what is lacking; the table is written anew every twenty configurations."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--configurations", type=int, default=200)
    wanted = parser.parse_args().configurations
    os.nice(10)
    torch.set_num_threads(1)
    curves = read() if TABLE.exists() else []
    for number in range(len(curves), wanted):
        curves.append(train(number))
        if len(curves) % 20 == 0 or len(curves) == wanted:
            write(curves)
            print(f"{len(curves)} of {wanted}", flush=True)


if __name__ == "__main__":
    main()
