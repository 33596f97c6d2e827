"""In which precision products are computed: autocast, TF32 on GPUs, and single precision where it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

PRECISIONS = ("fp32", "tf32", "bf16")


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """The context of a forward pass: autocast for "bf16", else none."""
    return torch.autocast(device.type, dtype=torch.bfloat16) if precision == "bf16" else nullcontext()


@contextmanager
def matrix_products(device: torch.device, precision: str) -> Iterator[None]:
    """Inside, products of float32 matrices on a GPU use TF32 where ``precision`` is "tf32": 10 bits of the mantissa,
    at several times the speed. Convolutions use it anyway, unless ``torch.backends.cudnn.allow_tf32`` is off.
    """
    if precision != "tf32" or device.type != "cuda":
        yield
        return
    with _fp32_precision("tf32", "high", cpu=False):
        yield


@contextmanager
def full_precision() -> Iterator[None]:
    """Inside, products of float32 matrices are float32's, whatever ``torch.set_float32_matmul_precision`` and its
    like allow: what becomes weights and bases for good shall not lose bits that a gradient can spare.
    """
    with _fp32_precision("ieee", "highest", cpu=True):
        yield


@contextmanager
def _fp32_precision(precision: str, before_torch_2_9: str, *, cpu: bool) -> Iterator[None]:
    if not hasattr(torch.backends.mkldnn, "matmul"):  # before torch 2.9 one setting is for all
        allowed = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(before_torch_2_9)
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(allowed)
        return
    backends = (torch.backends.cuda.matmul, *((torch.backends.mkldnn.matmul,) if cpu else ()))
    before = [backend.fp32_precision for backend in backends]
    try:
        for backend in backends:
            backend.fp32_precision = precision
        yield
    finally:
        for backend, kept in zip(backends, before, strict=True):
            backend.fp32_precision = kept
