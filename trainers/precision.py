"""Precision of products: autocast, TF32 on GPUs, and full single precision where a method needs it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

PRECISIONS = ("fp32", "tf32", "bf16")
BY_BACKEND = hasattr(torch.backends.mkldnn, "matmul")
"""Whether torch has a setting for each backend; before 2.9 a single setting is for all."""


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """The context of a forward pass: autocast for "bf16", else none."""
    return torch.autocast(device.type, dtype=torch.bfloat16) if precision == "bf16" else nullcontext()


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Context in which the caller's autocast does nothing, as weights that a method computes keep their type."""
    if not _in_autocast():
        return nullcontext()
    # torch forgets the weights that it has cast when the outermost autocast ends. An autocast inside this, of each
    # step, must not find those of the step before.
    return torch.autocast(device.type, enabled=False, cache_enabled=False)


def autocast_as_now(device: torch.device) -> AbstractContextManager[object]:
    """Context in which autocast is as where this is called; the weights may be others there."""
    if not _in_autocast():
        return nullcontext()
    kind = device.type
    dtype, enabled = torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
    return torch.autocast(kind, dtype=dtype, enabled=enabled, cache_enabled=False)


def _in_autocast() -> bool:
    """Whether the caller is inside a ``torch.autocast``, enabled or not."""
    depth = torch.autocast_increment_nesting()
    torch.autocast_decrement_nesting()
    return depth > 1


@contextmanager
def matrix_products(device: torch.device, precision: str) -> Iterator[None]:
    """Context in which products of float32 matrices on a GPU use TF32 where ``precision`` is "tf32": 10 bits of the
    mantissa, at several times the speed. Convolutions use it anyway, unless ``torch.backends.cudnn.allow_tf32`` is off.
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
    # The older setting, also from torch 2.9 on: compilers of torch ask for it, which after the newer is an error.
    with _backends_kept(), _older_setting("high", after=allowed):
        yield


@contextmanager
def full_precision() -> Iterator[None]:
    """Context in which products of float32 matrices are float32's, whatever ``torch.set_float32_matmul_precision``
    allows: permanent weights and bases must not lose bits that a gradient can spare.
    """
    if BY_BACKEND:
        with _backends_set_to("ieee", *_backends()):
            yield
    else:
        with _older_setting("highest", after=torch.get_float32_matmul_precision()):
            yield


@contextmanager
def _older_setting(allowed: str, *, after: str) -> Iterator[None]:
    def set_to(precision: str) -> None:
        with warnings.catch_warnings():
            # torch 2.9 advises the newer setting, with which it could not compile.
            warnings.simplefilter("ignore")
            torch.set_float32_matmul_precision(precision)

    set_to(allowed)
    try:
        yield
    finally:
        set_to(after)


def _backends() -> tuple[Any, ...]:
    of_cpu: Any = torch.backends.mkldnn
    return (torch.backends.cuda.matmul, of_cpu.matmul) if BY_BACKEND else ()


@contextmanager
def _backends_set_to(precision: str, *backends: Any) -> Iterator[None]:
    with _backends_kept():
        for backend in backends:
            backend.fp32_precision = precision
        yield


@contextmanager
def _backends_kept() -> Iterator[None]:
    before = [(backend, backend.fp32_precision) for backend in _backends()]
    try:
        yield
    finally:
        for backend, kept in before:
            # First "none", by which a backend follows the setting that is for all of them: it may have done so.
            for precision in ("none", kept):
                if backend.fp32_precision != kept:
                    backend.fp32_precision = precision
