"""In which precision products are computed: autocast, TF32 on GPUs, and single precision where it is asked for."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

PRECISIONS = ("fp32", "tf32", "bf16")
BY_BACKEND = hasattr(torch.backends.mkldnn, "matmul")
"""Whether torch has a setting for each backend; before 2.9 one is for all."""


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """The context of a forward pass: autocast for "bf16", else none."""
    return torch.autocast(device.type, dtype=torch.bfloat16) if precision == "bf16" else nullcontext()


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Inside, an autocast that the caller is in does nothing on ``device``: what a method computes becomes weights and
    bases, which keep their type.
    """
    if not _in_autocast():
        return nullcontext()
    # torch forgets the weights that it has cast when the outermost autocast ends. One inside this, of each step, shall
    # not find those of the step before.
    return torch.autocast(device.type, enabled=False, cache_enabled=False)


def autocast_as_now(device: torch.device) -> AbstractContextManager[object]:
    """Inside, autocast does on ``device`` what it does where this is called; the weights may be others there."""
    if not _in_autocast():
        return nullcontext()
    kind = device.type
    dtype, enabled = torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
    return torch.autocast(kind, dtype=dtype, enabled=enabled, cache_enabled=False)


def _in_autocast() -> bool:
    """Whether the caller is inside a ``torch.autocast``, be it one that is not enabled."""
    depth = torch.autocast_increment_nesting()
    torch.autocast_decrement_nesting()
    return depth > 1


@contextmanager
def matrix_products(device: torch.device, precision: str) -> Iterator[None]:
    """Inside, products of float32 matrices on a GPU use TF32 where ``precision`` is "tf32": 10 bits of the mantissa,
    at several times the speed. Convolutions use it anyway, unless ``torch.backends.cudnn.allow_tf32`` is off.
    """
    if precision != "tf32" or device.type != "cuda":
        yield
        return
    try:
        allowed = torch.get_float32_matmul_precision()
    except RuntimeError:
        # The user has set a backend's own precision, after which torch does not read its older setting.
        with _backends_set_to("tf32", torch.backends.cuda.matmul):
            yield
        return
    # The older setting, also from torch 2.9 on: compilers of torch ask for it, which after the newer one is an error.
    with _backends_kept():
        _set_for_all(allowed="high")
        try:
            yield
        finally:
            _set_for_all(allowed=allowed)


@contextmanager
def full_precision() -> Iterator[None]:
    """Inside, products of float32 matrices are float32's, whatever ``torch.set_float32_matmul_precision`` and its
    like allow: what becomes weights and bases for good shall not lose bits that a gradient can spare.
    """
    if BY_BACKEND:
        with _backends_set_to("ieee", *_backends()):
            yield
        return
    allowed = torch.get_float32_matmul_precision()
    _set_for_all(allowed="highest")
    try:
        yield
    finally:
        _set_for_all(allowed=allowed)


def _backends() -> tuple[Any, ...]:
    """Where a precision of products can be set, by the newer setting."""
    of_cpu: Any = torch.backends.mkldnn
    return (torch.backends.cuda.matmul, of_cpu.matmul) if BY_BACKEND else ()


def _set_for_all(*, allowed: str) -> None:
    """By the older setting."""
    with warnings.catch_warnings():
        # torch 2.9 advises the newer one, with which it could not compile.
        warnings.simplefilter("ignore")
        torch.set_float32_matmul_precision(allowed)


@contextmanager
def _backends_set_to(precision: str, *backends: Any) -> Iterator[None]:
    with _backends_kept():
        for backend in backends:
            backend.fp32_precision = precision
        yield


@contextmanager
def _backends_kept() -> Iterator[None]:
    """Afterwards each backend's precision is what it was."""
    before = [(backend, backend.fp32_precision) for backend in _backends()]
    try:
        yield
    finally:
        for backend, kept in before:
            # First "none", by which a backend follows the setting that is for all of them: it may have done so.
            for precision in ("none", kept):
                if backend.fp32_precision != kept:
                    backend.fp32_precision = precision
