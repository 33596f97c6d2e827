"""Names of functions and objects that are the same in every process and on every machine.

A checkpoint keeps those of a run's loss, step and metrics. What a process only holds at the moment does not count: what
a function captured, the state of an object, paths and devices. Ranks and resumed runs may differ in all of that.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import re
import sys
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_DEVICE = re.compile(r"(cpu|cuda|mps|xpu|hpu|meta)(:\d+)?")
_ENTRIES = 64
"""The most entries of a container or tensor whose values count."""
_DEPTH = 4
_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
"""Bytecode is that of this version."""


def named(value: object, depth: int = 0) -> str:
    """Name of a function, or class and settings of an object: the arguments of its constructor that it keeps by name.
    A lambda has the name of the place where it stands; see ``code_of``.
    """
    if value is None:
        return "None"
    if isinstance(value, functools.partial):
        given = [_setting(one, depth) for one in value.args]
        given += [f"{name}={_setting(one, depth)}" for name, one in sorted(value.keywords.items())]
        return f"{named(value.func, depth)}({', '.join(given)})"
    if inspect.ismethod(value):
        owner = value.__self__
        return f"{_name(owner if isinstance(owner, type) else type(owner))}.{value.__name__}"
    if isinstance(getattr(value, "__qualname__", None), str):
        return _name(value)
    kept = _kept(value)
    settings = [f"{name}={_setting(kept[name], depth)}" for name in _arguments(type(value)) if name in kept]
    return f"{_name(type(value))}({', '.join(settings)})"


def settings_of(value: object) -> str:
    """``repr`` of settings, where it is of use in another process, else their class and settings."""
    text = repr(value)
    return named(value) if _ADDRESS.search(text) else text


def code_of(value: object) -> str | None:
    """Python's version and a digest of the code that runs where ``value`` is called; None where there is no such code
    or it belongs to torch.
    """
    while isinstance(value, functools.partial):
        value = value.func
    function: object = inspect.unwrap(value) if callable(value) else value
    function = getattr(function, "__func__", function)
    if not hasattr(function, "__code__"):
        kind = type(function)
        function = getattr(kind, "forward" if isinstance(function, nn.Module) else "__call__", None)
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType) or str(getattr(function, "__module__", "")).startswith("torch."):
        return None
    digest = hashlib.blake2b(digest_size=8)
    for part in _parts(code, getattr(function, "__doc__", None)):
        digest.update(part.encode() + b"\0")
    return f"{_PYTHON} {digest.hexdigest()}"


def same_code(was: str | None, now: str | None) -> bool:
    """Whether two answers of ``code_of`` are of the same code, or of what cannot be compared."""
    if was is None or now is None or was.split()[0] != now.split()[0]:
        return True
    return was == now


def _name(value: object) -> str:
    module = getattr(value, "__module__", None) or ""
    if module in ("__main__", "__mp_main__"):
        main = sys.modules.get("__main__")
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        # The same file may be imported in another process.
        module = spec.name if spec is not None else Path(file).stem if file else "__main__"
    elif os.sep in module:  # a task file that was imported by its path
        module = Path(module).stem
    return f"{module}.{getattr(value, '__qualname__', type(value).__qualname__)}".lstrip(".")


def _arguments(kind: type) -> Iterable[str]:
    try:
        return inspect.signature(kind).parameters
    except (TypeError, ValueError):
        return ()


def _kept(value: object) -> dict[str, object]:
    """Attributes of ``value`` by name, without a leading underscore."""
    found = dict(getattr(value, "__dict__", {}))
    if isinstance(value, nn.Module):
        found.update(value._buffers)
    return {**{name.lstrip("_"): one for name, one in found.items()}, **found}


def _setting(value: object, depth: int) -> str:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, complex, torch.dtype)):
        return repr(value)
    if isinstance(value, str):
        return "…" if os.sep in value or _DEVICE.fullmatch(value) else repr(value)
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, (Tensor, np.ndarray)):
        return _numbers(value)
    if depth < _DEPTH:
        if isinstance(value, Mapping) and len(value) <= _ENTRIES:
            return f"{{{', '.join(sorted(f'{key!s}: {_setting(one, depth + 1)}' for key, one in value.items()))}}}"
        if isinstance(value, (list, tuple, set, frozenset)) and len(value) <= _ENTRIES:
            parts = [_setting(one, depth + 1) for one in value]
            return f"({', '.join(sorted(parts) if isinstance(value, (set, frozenset)) else parts)})"
        if callable(value):
            return named(value, depth + 1)
    return type(value).__name__


def _numbers(value: Tensor | np.ndarray[Any, Any]) -> str:
    """Shape, and few numbers themselves, of as many digits as other devices and libraries agree in."""
    tensor = torch.as_tensor(value) if isinstance(value, Tensor) or value.dtype.kind in "biuf" else None
    shape = tuple(value.shape)
    if tensor is None or tensor.is_meta or tensor.is_complex() or tensor.numel() > _ENTRIES:
        return f"tensor {shape}"
    return f"tensor {shape} {' '.join(f'{one:.3g}' for one in tensor.detach().double().flatten().tolist())}"


def _parts(code: CodeType, documentation: str | None) -> Iterable[str]:
    yield from (code.co_code.hex(), *code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _parts(constant, None)
        elif isinstance(constant, frozenset):
            yield " ".join(sorted(map(repr, constant)))
        elif constant is None or constant != documentation:
            yield repr(constant)
