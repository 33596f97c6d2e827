"""Names of functions and objects, such as a run's loss, that are equal in all processes and on all machines.

Names leave out what may differ between ranks, or when the same run is started again: modules, paths, devices, ranks,
and the state of an object.
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
from types import CodeType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_DEVICE = re.compile(r"(cpu|cuda|mps|xpu|hpu|meta)(:\d+)?")
_NUMBER = re.compile(r"(?<![\w.])-?(\d+(\.\d+)?(e[+-]?\d+)?|inf|nan)(?![\w.])")
_OF_RANKS = ("rank", "local_rank", "world_size", "num_ranks")
"""Settings of contrastive losses that depend on the rank; a run may be resumed on other ranks."""
_ENTRIES = 64
"""Most entries of a container or tensor whose values are in a name."""
_DEPTH = 3
"""Levels of objects and containers inside an object that are in its name."""
# Bytecode differs between versions of Python.
_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def named(value: object, depth: int = 0) -> str:
    """Name of a function, or class and settings of an object.

    Settings are the arguments of the constructor that are attributes of the same name, and submodules without
    parameters, such as losses.
    """
    if value is None:
        return "None"
    if isinstance(value, functools.partial):
        given = [_setting(argument, depth) for argument in value.args]
        keywords = sorted(item for item in value.keywords.items() if item[0] not in _OF_RANKS)
        given += [f"{name}={_setting(argument, depth)}" for name, argument in keywords]
        return f"{named(value.func, depth)}({', '.join(given)})"
    if inspect.ismethod(value):
        return f"{named(value.__self__, depth)}.{value.__name__}"
    name = getattr(value, "__qualname__", None)
    if isinstance(name, str):
        return name.rpartition("<locals>.")[2]
    kept = _kept(value)
    counted = [name for name in _arguments(type(value)) if name in kept and name not in _OF_RANKS]
    settings = [f"{name}={_setting(kept[name], depth)}" for name in counted]
    if isinstance(value, nn.Module) and depth < _DEPTH:
        parts = [(name, part) for name, part in value.named_children() if not [*part.parameters()]]
        settings += [f"{name}={named(part, depth + 1)}" for name, part in parts]
    return f"{named(type(value))}({', '.join(settings)})"


def same_but_numbers(was: str, now: str) -> bool:
    """Whether two results of ``named`` differ at most in numbers, as for a loss with an annealed weight."""
    return _NUMBER.sub("#", was) == _NUMBER.sub("#", now)


def settings_of(value: object) -> str:
    """``repr`` of settings, or the result of ``named`` if that has addresses, which differ between processes."""
    text = repr(value)
    return named(value) if _ADDRESS.search(text) else text


def code_of(value: object) -> str | None:
    """Version of Python, digest of the code that a call of ``value`` runs, with default arguments, and digest of
    captured floats and booleans; None if there is no such code, as for built-in functions.
    """
    while isinstance(value, functools.partial):
        value = value.func
    function: object = inspect.unwrap(value) if callable(value) else value
    function = getattr(function, "__func__", function)
    if not hasattr(function, "__code__"):
        kind = type(function)
        function = getattr(kind, "forward" if isinstance(function, nn.Module) else "__call__", None)
    if str(getattr(function, "__module__", "")).startswith("torch."):
        return f"{_PYTHON} torch"
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        return None
    defaults = [("", value) for value in getattr(function, "__defaults__", None) or ()]
    defaults += sorted((getattr(function, "__kwdefaults__", None) or {}).items())
    parts = [
        *_parts(code, getattr(function, "__doc__", None)),
        # Only immutable defaults, as calls may have changed a list or another object.
        *(f"{name}={value!r}" for name, value in defaults if isinstance(value, (bool, int, float, str))),
    ]
    return f"{_PYTHON} {_digest(parts)} {_digest(_captured_numbers(function))}"


def same_code(was: str | None, now: str | None, *, captured: bool = True) -> bool:
    """Whether two results of ``code_of`` are equal, with ``captured`` also in captured numbers, or not comparable."""
    if was is None or now is None or was.split()[0] != now.split()[0]:
        return True
    last = None if captured else 2
    return all(a == b for a, b in zip(was.split()[:last], now.split()[:last]))


def _captured_numbers(function: object) -> Iterable[str]:
    for cell in getattr(function, "__closure__", None) or ():
        try:
            value = cell.cell_contents
        except ValueError:  # the captured variable has no value yet
            continue
        if isinstance(value, (bool, float)):
            yield repr(value)


def _digest(parts: Iterable[str]) -> str:
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=8).hexdigest()


def _arguments(kind: type) -> Iterable[str]:
    try:
        return inspect.signature(kind).parameters
    except (TypeError, ValueError):
        return ()


def _kept(value: object) -> dict[str, object]:
    """Attributes of ``value`` by name, also by the name without leading underscores."""
    found = dict(getattr(value, "__dict__", {}))
    if isinstance(value, nn.Module):
        found.update(value._buffers)
        found.pop("_modules", None)  # ``named`` adds submodules itself
    return {**{name.lstrip("_"): kept for name, kept in found.items()}, **found}


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
            parts = sorted(f"{key!s}: {_setting(part, depth + 1)}" for key, part in value.items())
            return f"{{{', '.join(parts)}}}"
        if isinstance(value, (list, tuple)) and len(value) <= _ENTRIES:
            return f"({', '.join(_setting(part, depth + 1) for part in value)})"
        if callable(value):
            return named(value, depth + 1)
    return type(value).__name__


def _numbers(value: Tensor | np.ndarray[Any, Any]) -> str:
    """Shape of an array, and its numbers if there are few."""
    # Three digits, in which devices and versions of libraries agree.
    tensor = torch.as_tensor(value) if isinstance(value, Tensor) or value.dtype.kind in "biuf" else None
    shape = tuple(value.shape)
    if tensor is None or tensor.is_meta or tensor.is_complex() or tensor.numel() > _ENTRIES:
        return f"tensor {shape}"
    return f"tensor {shape} {' '.join(f'{number:.3g}' for number in tensor.detach().double().flatten().tolist())}"


def _parts(code: CodeType, documentation: str | None) -> Iterable[str]:
    yield from (code.co_code.hex(), *code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _parts(constant, None)
        elif isinstance(constant, frozenset):
            yield " ".join(sorted(map(repr, constant)))
        elif constant is None or constant != documentation:
            yield repr(constant)
