"""Search for code that may draw from the global generators of Python or numpy, which take long to seed."""

from __future__ import annotations

import dis
import functools
import random
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    GeneratorType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

import numpy as np
import torch
from torch import Tensor

_VISITS = 50_000
"""Most objects that the search visits, in some 20 ms."""
_GENERATORS = (random.Random, np.random.RandomState, np.random.Generator)
_CONTAINERS: tuple[Any, ...] = (list, tuple, set, frozenset, deque)
_LAZY = (GeneratorType, map, filter, zip, enumerate)
"""Iterators whose code is out of sight."""
_LEAVES = (str, bytes, int, float, complex, Tensor, np.ndarray, torch.dtype, torch.device, type(None))
_TRUSTED = {"torch", "numpy", "trainers"} | (sys.stdlib_module_names - {"random", "statistics", "__main__"})
"""Packages that draw from these generators only where the caller names ``random``."""
_NAMES = {"random", "import_module", "__import__", "eval", "exec"}
"""Names and texts in code that may lead to any generator."""
_IMPORT = dis.opmap["IMPORT_NAME"]


def may_draw_beside_torch(*roots: object) -> bool:
    """Whether code that ``roots`` hold or call may draw from Python's or numpy's global generator.

    It follows attributes, classes, closures and the global names that functions use. It is true where that cannot be
    seen: for compiled code, or after ``_VISITS`` objects.
    """
    waiting = deque(roots)
    # The objects themselves: the id of an object that has gone may be another's.
    seen: dict[int, object] = {}
    for _ in range(_VISITS):
        if not waiting:
            return False
        held = waiting.popleft()
        if issubclass(type(held), _LEAVES) or id(held) in seen:
            continue
        seen[id(held)] = held
        try:
            if _draws(held):
                return True
            waiting.extend(islice(_reached(held), _VISITS))
        except Exception:  # raised by the user's object, such as a lazy proxy
            return True
    return True


def _draws(value: Any) -> bool:
    """Whether ``value`` is a global generator, a method of it, or code that may be anything."""
    if isinstance(value, ModuleType):
        return value.__name__.partition(".")[0] in ("random", "statistics") or value is np.random
    if isinstance(value, CodeType):
        return not _NAMES.isdisjoint(_names(value)) or not all(map(_is_trusted, _imported(value)))
    if isinstance(value, (BuiltinFunctionType, MethodType)):
        of = value.__self__
        if isinstance(of, _GENERATORS):
            return True
        return isinstance(value, BuiltinFunctionType) and not _is_trusted(
            value.__module__ or type(of).__module__
        )
    if isinstance(value, MethodDescriptorType):
        return not _is_trusted(value.__objclass__.__module__)
    if isinstance(value, _LAZY):
        return True
    return value is getattr(random, "_inst", None) or value is np.random.mtrand._rand


def _reached(value: Any) -> Iterable[object]:
    """Objects that ``value`` holds, and code that it may call."""
    if isinstance(value, dict):
        # Read by dict's own method, and so below: a class of the user's may read files to give its items.
        return chain(dict.values(value), _of_instance(value))
    for kind in _CONTAINERS:
        if isinstance(value, kind):
            return chain(kind.__iter__(value), _of_instance(value))
    if isinstance(value, ModuleType):
        return ()
    if isinstance(value, MethodType):
        return value.__self__, value.__func__
    if isinstance(value, (staticmethod, classmethod)):
        return (value.__func__,)
    if isinstance(value, property):
        return value.fget, value.fset
    if isinstance(value, functools.partial):
        return value.func, value.args, value.keywords
    if isinstance(value, FunctionType):
        return _of_function(value)
    if isinstance(value, CellType):
        return _content(value)
    if isinstance(value, type):
        return [
            part for base in value.__mro__ if not _is_trusted(base.__module__) for part in vars(base).values()
        ]
    return _of_instance(value)


def _of_function(function: FunctionType) -> Iterator[object]:
    yield from function.__closure__ or ()
    yield from vars(function).values()
    if _is_trusted(function.__module__):
        return
    yield function.__defaults__
    yield function.__kwdefaults__
    waiting = [function.__code__]
    while waiting:
        code = waiting.pop()
        yield code
        waiting += [part for part in code.co_consts if isinstance(part, CodeType)]
        for name in code.co_names:
            found = function.__globals__.get(name)
            yield found
            if isinstance(found, ModuleType) and not _is_trusted(found.__name__):
                # Attributes of a module of the user's stand among the names, too.
                yield from (vars(found).get(attribute) for attribute in code.co_names)


def _of_instance(value: Any) -> Iterator[object]:
    yield type(value)
    for name, part in getattr(value, "__dict__", {}).items():
        # It is made by torch.compile of the module's own code, which is searched.
        if name != "_compiled_call_impl":
            yield part
    for base in type(value).__mro__:
        slots = vars(base).get("__slots__", ())
        yield from (getattr(value, name, None) for name in ((slots,) if isinstance(slots, str) else slots))


def _names(code: CodeType) -> Iterator[str]:
    for name in code.co_names:
        yield from name.split(".")  # "numpy.random" where a function imports it
    yield from (part for part in code.co_consts if isinstance(part, str))


def _imported(code: CodeType) -> list[str]:
    """Modules that ``code`` imports when it runs: they cannot be searched before."""
    if _IMPORT not in code.co_code[::2]:  # as to take all apart would be slow
        return []
    return [str(part.argval) for part in dis.get_instructions(code) if part.opcode == _IMPORT]


def _content(cell: CellType) -> tuple[object, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # empty
        return ()


def _is_trusted(module: object) -> bool:
    return str(module).partition(".")[0] in _TRUSTED
