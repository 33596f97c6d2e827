"""Derived randomness: the seed of every draw comes from the run's seed and the draw's purpose, and none is stored.

So a resumed run needs no saved generators, and a method that draws more numbers changes nothing for the data.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from trainers.gpu import in_use


def derive(seed: int, *purpose: str | int) -> int:
    """A seed of 63 bits for ``purpose``, such as ("order", epoch)."""
    text = "\0".join(map(str, (seed, *purpose)))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def seed_generators(seed: int) -> None:
    """Seed the global generators of Python, numpy, torch and, if GPUs are in use, that of the current GPU."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    # torch.manual_seed would ask every accelerator that torch knows of, a hundred times as long.
    torch.default_generator.manual_seed(seed)
    if (gpus := in_use()) is not None:
        gpus.manual_seed(seed)


class Generators(NamedTuple):
    """States of the global generators; ``of_gpu``: the current GPU's, None where none is in use."""

    of_python: Any
    of_numpy: Any
    of_torch: Tensor
    of_gpu: Tensor | None


def generators() -> Generators:
    """Present states of the global generators."""
    gpus = in_use()
    of_gpu = None if gpus is None else gpus.get_rng_state()
    return Generators(random.getstate(), np.random.get_state(), torch.get_rng_state(), of_gpu)


def set_generators(states: Generators) -> None:
    """Put the global generators back into ``states``."""
    random.setstate(states.of_python)
    np.random.set_state(states.of_numpy)
    torch.set_rng_state(states.of_torch)
    if states.of_gpu is not None and (gpus := in_use()) is not None:
        gpus.set_rng_state(states.of_gpu)


@contextmanager
def generators_kept() -> Iterator[None]:
    """Restore the global generators afterwards."""
    saved = generators()
    try:
        yield
    finally:
        set_generators(saved)
