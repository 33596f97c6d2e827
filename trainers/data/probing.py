"""Reading of a few samples of a data set before the run, which leaves the data set unchanged.

If processes are to read ahead, another process reads the samples: objects that a data set makes at its first sample,
such as an open file or a generator for each process, must not exist in this process when others are forked from it.
"""

from __future__ import annotations

import hashlib
import os
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from trainers.data.batches import Batch, length_of
from trainers.data.fetching import BatchOrder, Collate, Fetched
from trainers.data.own_generators import OwnGenerators, comparable
from trainers.data.streams import stream_of
from trainers.randomness import generators_kept
from trainers.structures import parts_of

Part = list[Any]
"""Summary of a tensor, number or text in a sample: shape, up to 16 means of consecutive pieces, root mean square."""
_RANDOM: Part = ["random", [], 0.0]
"""Stands for a part that differs between two readings."""
Samples = list[list[Any]]
"""Number and parts of each sample, in lists as in files."""

_SAMPLES = 4
"""Number of samples that are read."""
_MEANS = 16
"""Most means of a part."""
_LIMIT_S = 2.0
"""Seconds after which no further sample is read."""
_LONGEST_PATH = 4096
_TIMEOUT_S = 60.0
# Decoders and devices differ in roundings.
_SAME = 0.01
"""Largest difference of equal means, relative to the size of the part."""
_REPEATED = 1e-6
"""The same for a sample that a process reads twice."""


@dataclass(frozen=True)
class Probed:
    """Result of reading a few samples."""

    samples: Samples
    """Summaries of the samples; empty for a stream, or if they could not be read."""
    drawn_from: int = 0
    """Hash of the state of the data set's own generators if reading uses them, otherwise 0."""


def probed(samples: Dataset[object], *, processes: int, collate: Collate | None, epoch: int | None) -> Probed:
    """Read a few samples of a data set that is read by number; errors in reading are left to the training.

    ``epoch`` is the number for the data set's ``set_epoch``, which is not called with None.
    """
    if stream_of(samples) is not None:
        return Probed([])
    probe = _SampleProbe(samples, collate, epoch)
    try:
        if not processes:
            return probe.taken()
        # DataLoader draws a number on the default device with a generator of the CPU, so both must be the same.
        with torch.device("cpu"):
            generator = torch.Generator()
            read: DataLoader[Probed] = DataLoader(
                probe, batch_size=None, num_workers=1, timeout=_TIMEOUT_S, generator=generator
            )
            taken: list[Probed] = [*read]
            return taken[0]
    except Exception:  # raised by the user's data set; the training will raise it again
        return Probed([])


def other_samples(was: object, now: Samples) -> bool:
    """Whether ``now`` is of another data set than ``was``, which a checkpoint has.

    That is so if all samples in both differ in parts that are not random.
    """
    before = {sample[0]: sample[1] for sample in was if len(sample) == 2} if isinstance(was, list) else {}
    common = [(before[number], parts) for number, parts in now if number in before]
    return bool(common) and all(_differ(parts, others, _SAME) for parts, others in common)


class _SampleProbe(Dataset[Probed]):
    """Data set with a single item, the result of reading a few samples of another data set."""

    def __init__(self, samples: Dataset[object], collate: Collate | None, epoch: int | None) -> None:
        self._samples, self._collate, self._epoch = samples, collate, epoch

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Probed:
        return self.taken()

    def taken(self) -> Probed:
        own = OwnGenerators(self._samples)
        states = own.states()
        try:
            with generators_kept():
                summaries = self._read_twice()
            drawn = [*map(comparable, own.states())] != [*map(comparable, states)]
        finally:
            own.restore(states)
        # A generator that was made at the first sample is used for it, too.
        made = len(OwnGenerators(self._samples).generators) != len(states)
        number = 0
        if drawn:
            text = "".join(map(comparable, states))
            number = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big") + 1
        return Probed([] if drawn or made else summaries, number)

    def _read_twice(self) -> Samples:
        """Summaries of samples, with _RANDOM for parts that differ between two readings of any sample."""
        fetched = Fetched(self._samples, collate=self._collate, rank=0, ranks=1, seed=0)
        found: Samples = []
        random: set[int] = set()
        begin, last = time.monotonic(), length_of(self._samples) - 1
        for number in sorted({last * part // (_SAMPLES - 1) for part in range(_SAMPLES)}):
            readings: list[list[Part]] = []
            for seed in (2 * number + 1, 2 * number + 2):
                if time.monotonic() - begin > _LIMIT_S:
                    break
                batch = Batch(indices=torch.tensor([number], device="cpu"), weight=1.0, seed=seed)
                readings.append([*_summaries(fetched.__getitems__(BatchOrder(self._epoch, batch)).parts)])
            if len(readings) < 2:
                break
            first, second = readings
            if len(first) != len(second):
                return []
            random |= {
                index for index in range(len(first)) if _differ([first[index]], [second[index]], _REPEATED)
            }
            found.append([number, first])
        return [
            [number, [_RANDOM if index in random else part for index, part in enumerate(parts)]]
            for number, parts in found
        ]


def _summaries(value: object) -> Iterator[Part]:
    if isinstance(value, (Tensor, np.ndarray, np.generic, bool, int, float)):
        tensor = torch.as_tensor(value, device="cpu").detach()
        tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        numbers = tensor.double().nan_to_num().flatten()
        means = [part.mean().item() for part in numbers.tensor_split(min(_MEANS, max(1, len(numbers))))]
        size = numbers.square().mean().sqrt().item()
        yield [str(tuple(tensor.shape)), means if len(numbers) else [], size if len(numbers) else 0.0]
    elif isinstance(value, (str, bytes)):
        content = value.encode() if isinstance(value, str) else value
        # Paths differ between jobs that have their files in directories of their own.
        path = len(content) <= _LONGEST_PATH and os.sep.encode() in content
        yield ["path" if path else f"text {zlib.crc32(content)}", [], 0.0]
    else:
        for _, part in parts_of(value) or ():
            yield from _summaries(part)


def _differ(sample: Sequence[Part], other: Sequence[Part], share: float) -> bool:
    """Whether two samples differ in a part that is random in neither sample."""
    if len(sample) != len(other):
        return True
    for part, of_other in zip(sample, other, strict=True):
        if _RANDOM in (part, of_other):
            continue
        (form, means, size), (other_form, other_means, other_size) = part, of_other
        bound = share * max(size, other_size) + 1e-12
        if form != other_form or any(abs(a - b) > bound for a, b in zip(means, other_means, strict=True)):
            return True
    return False
