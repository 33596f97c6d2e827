"""Derived randomness: every draw's seed comes from the run's seed and from what the draw is for; none is
stored.

So a resumed run needs no saved generators, and a method that draws more numbers than another changes nothing
for the data.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b

import numpy as np
import torch


def derive(seed: int, *purpose: str | int) -> int:
    """A seed of 63 bits for ``purpose``, such as ("order", epoch)."""
    text = "\0".join(map(str, (seed, *purpose)))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def seed_generators(seed: int) -> None:
    """Seed the global generators of Python, numpy, torch and, if CUDA is in use, its devices."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    # torch.manual_seed would ask every accelerator that torch knows of, a hundred times as long.
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)


@contextmanager
def generators_kept() -> Iterator[None]:
    """Give the global generators back as they were found."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
    saved = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(saved[0])
        np.random.set_state(saved[1])
        torch.set_rng_state(saved[2])
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)
