"""torch.compile where a compiler may be missing, and over torch's versions."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any

import torch
import torch._dynamo


@lru_cache
def backend_for(device: torch.device) -> str:
    """ "inductor" on a GPU, if it finds the compilers that it wants there, else "aot_eager"."""
    if device.type == "cpu":
        return "aot_eager"
    try:
        torch.compile(lambda x: x.sin() + 1)(torch.ones(8, device=device))
    except Exception as error:
        print(f"inductor: {type(error).__name__}: {error}")
        return "aot_eager"
    finally:
        torch._dynamo.reset()
    return "inductor"


def recompilations(limit: int) -> AbstractContextManager[Any]:
    """Inside, a function may be compiled this often."""
    config: Any = torch._dynamo.config
    name = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"  # before torch 2.7
    return config.patch(**{name: limit})  # type: ignore[no-any-return]
