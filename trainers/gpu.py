"""GPUs as torch knows them: NVIDIA's and AMD's by ``torch.cuda``, Intel's by ``torch.xpu``."""

from __future__ import annotations

from typing import Any

import torch


def is_gpu(device: torch.device) -> bool:
    """Whether ``device`` is a GPU: one with a memory of its own, and with streams."""
    return device.type in ("cuda", "xpu")


def module_of(device: torch.device) -> Any:
    """``torch.cuda`` or ``torch.xpu``, whose functions have the same names."""
    return torch.get_device_module(device)


def in_use() -> Any | None:
    """The module by which this process has used GPUs; None where it has used none."""
    cuda, xpu = torch.cuda, torch.xpu
    # Without a generator, as each step asks.
    if cuda.is_initialized():  # type: ignore[no-untyped-call]
        return cuda
    return xpu if xpu.is_initialized() else None  # type: ignore[no-untyped-call]
