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


def seed_generators(seed: int, *, beside_torch: bool = True) -> None:
    """Seed torch's global generators, that of the current GPU, too, if GPUs are in use.

    ``beside_torch``: whether also Python's and numpy's, which takes several times as long.
    """
    if beside_torch:
        seed_beside_torch(seed)
    # torch.manual_seed would ask every accelerator that torch knows of, a hundred times as long.
    torch.default_generator.manual_seed(seed)
    if (gpus := in_use()) is not None:
        gpus.manual_seed(seed)


def seed_beside_torch(seed: int) -> None:
    """Seed the global generators of Python and numpy."""
    random.seed(seed)
    np.random.seed(seed % 2**32)


class Generators(NamedTuple):
    """States of the global generators; None for those that are not asked, or not in use."""

    of_torch: Tensor
    of_gpu: Tensor | None
    of_python: Any = None
    of_numpy: Any = None


def generators(*, beside_torch: bool = True) -> Generators:
    """Present states of the global generators, with the current GPU's; ``beside_torch`` as in ``seed_generators``."""
    gpus = in_use()
    of_torch = torch.get_rng_state(), None if gpus is None else gpus.get_rng_state()
    return Generators(*of_torch, *((random.getstate(), np.random.get_state()) if beside_torch else ()))


def set_generators(states: Generators) -> None:
    """Put the global generators back into ``states``."""
    if states.of_python is not None:
        random.setstate(states.of_python)
        np.random.set_state(states.of_numpy)
    torch.set_rng_state(states.of_torch)
    if states.of_gpu is not None and (gpus := in_use()) is not None:
        gpus.set_rng_state(states.of_gpu)


@contextmanager
def generators_kept(*, beside_torch: bool = True) -> Iterator[None]:
    """Restore the global generators afterwards; ``beside_torch`` as in ``seed_generators``."""
    saved = generators(beside_torch=beside_torch)
    try:
        yield
    finally:
        set_generators(saved)
