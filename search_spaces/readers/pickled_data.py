"""The data in a pickle, without running it: the program that a pickle is gets interpreted here, and what it may
build is plain values and numpy arrays.

``pickle.load`` calls whatever a file names. Here names are never looked up: five are known and mean an array,
its type, or bytes; any other one is refused. Of pickle itself only the parser of ``pickletools`` is used.
"""

from __future__ import annotations

import math
import pickletools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

_MARK = object()

_ARRAY, _TYPE, _MAKE_ARRAY, _ENCODE = "ndarray", "dtype", "_reconstruct", "encode"
_KNOWN = {
    ("numpy", "ndarray"): _ARRAY,
    ("numpy", "dtype"): _TYPE,
    ("numpy.core.multiarray", "_reconstruct"): _MAKE_ARRAY,
    ("numpy._core.multiarray", "_reconstruct"): _MAKE_ARRAY,
    ("_codecs", "encode"): _ENCODE,
}
_TYPES = ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8")


class _Name:
    """One of the known names; it stands for what would be called, and is not."""

    def __init__(self, meaning: str) -> None:
        self.meaning = meaning


class _Type:
    """A numpy type as it is pickled: made from its code, then given its byte order."""

    def __init__(self, code: str) -> None:
        self.code, self.order = code, "|"


class _Array:
    """An array that was announced and gets its shape and bytes later."""

    value: np.ndarray[Any, Any] | None = None


def read_pickled(content: bytes, *, source: str) -> object:
    """What ``content`` describes: dictionaries, lists, tuples, numbers, strings, bytes; numpy arrays by themselves
    or as values of a dictionary.

    Strings of Python 2 come as bytes. ``source`` names the content in errors. ValueError if it is no pickle, is
    cut short, or asks for anything else.
    """
    try:
        with warnings.catch_warnings():
            # Python's own, of escape sequences in damaged names.
            warnings.simplefilter("ignore", DeprecationWarning)
            return _plain(_Reader(source).run(content))
    except _Refused:
        raise
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError) as error:
        # The parser's own words differ from version to version, and so does what a damaged file trips over.
        raise ValueError(
            f"{source} is no whole pickle ({error}). Extract it again, or take the binary form."
        ) from error


class _Refused(ValueError):
    pass


class _Reader:
    """A stack machine for the opcodes with which data is written."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def run(self, content: bytes) -> object:
        for opcode, argument, _ in pickletools.genops(content):
            if opcode.name == "STOP":
                return self._stack.pop()
            if opcode.name in _CONSTANTS:
                self._stack.append(_CONSTANTS[opcode.name])
            elif opcode.name in _VALUES:
                self._stack.append(_VALUES[opcode.name](argument))
            else:
                action = getattr(self, "_" + opcode.name.lower(), None)
                if action is None:
                    raise self._refused(f"has the instruction {opcode.name}")
                action(argument)
        raise ValueError("no end")

    def _refused(self, what: str) -> _Refused:
        return _Refused(
            f"{self._source} {what}, which plain data has no need of: it is not read. Take the binary form."
        )

    def _since_mark(self) -> list[Any]:
        place = len(self._stack) - 1
        while self._stack[place] is not _MARK:
            place -= 1
            if place < 0:
                raise ValueError("a mark is missing")
        values = self._stack[place + 1 :]
        del self._stack[place:]
        return values

    def _skip(self, argument: object) -> None:
        pass

    _proto = _frame = _skip

    # Containers

    def _empty_dict(self, argument: object) -> None:
        self._stack.append({})

    def _empty_list(self, argument: object) -> None:
        self._stack.append([])

    def _append(self, argument: object) -> None:
        value = self._stack.pop()
        self._stack[-1].append(value)

    def _appends(self, argument: object) -> None:
        values = self._since_mark()
        self._stack[-1].extend(values)

    def _setitem(self, argument: object) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._stack[-1][key] = value

    def _setitems(self, argument: object) -> None:
        values = self._since_mark()
        self._stack[-1].update(zip(values[::2], values[1::2], strict=True))

    def _tuple(self, argument: object) -> None:
        values = self._since_mark()
        self._stack.append(tuple(values))

    def _last(self, count: int) -> None:
        values = tuple(self._stack[-count:])
        del self._stack[-count:]
        self._stack.append(values)

    def _tuple1(self, argument: object) -> None:
        self._last(1)

    def _tuple2(self, argument: object) -> None:
        self._last(2)

    def _tuple3(self, argument: object) -> None:
        self._last(3)

    # The memo

    def _binput(self, argument: int) -> None:
        self._memo[argument] = self._stack[-1]

    _put = _long_binput = _binput

    def _memoize(self, argument: object) -> None:
        self._memo[len(self._memo)] = self._stack[-1]

    def _binget(self, argument: int) -> None:
        self._stack.append(self._memo[argument])

    _get = _long_binget = _binget

    # Names, and what is done with them

    def _global(self, argument: str) -> None:
        self._named(*argument.split(" ", 1))

    def _stack_global(self, argument: object) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        self._named(module, name)

    def _named(self, module: str, name: str) -> None:
        if (module, name) not in _KNOWN:
            raise self._refused(f"names {module}.{name}")
        self._stack.append(_Name(_KNOWN[module, name]))

    def _reduce(self, argument: object) -> None:
        arguments, called = self._stack.pop(), self._stack.pop()
        meaning = called.meaning if isinstance(called, _Name) else None
        if meaning == _MAKE_ARRAY and isinstance(arguments[0], _Name) and arguments[0].meaning == _ARRAY:
            self._stack.append(_Array())
        elif meaning == _TYPE:
            self._stack.append(_Type(_text(arguments[0])))
        elif meaning == _ENCODE and arguments[1] == "latin1" and isinstance(arguments[0], str):
            self._stack.append(arguments[0].encode("latin1"))
        else:
            raise self._refused("calls something")

    def _build(self, argument: object) -> None:
        state, built = self._stack.pop(), self._stack[-1]
        if isinstance(built, _Type):
            built.order = _text(state[1])
        elif isinstance(built, _Array):
            _, shape, kind, by_columns, content = state
            built.value = self._array(tuple(shape), kind, by_columns, content)
        else:
            raise self._refused("sets attributes")

    def _array(
        self, shape: tuple[int, ...], kind: object, by_columns: object, content: object
    ) -> np.ndarray[Any, Any]:
        if not isinstance(kind, _Type) or kind.code not in _TYPES or kind.order not in ("|", "<", ">", "="):
            raise self._refused("holds an array that is not of plain numbers")
        if isinstance(content, str):
            content = content.encode("latin1")
        if not isinstance(content, bytes) or any(not isinstance(side, int) or side < 0 for side in shape):
            raise ValueError("an array without its numbers")
        order = "=" if kind.order == "|" else kind.order
        dtype = np.dtype(kind.code).newbyteorder(order)  # type: ignore[arg-type]
        if len(content) != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"{len(content)} bytes for an array of {shape}")
        return np.frombuffer(content, dtype).reshape(shape, order="F" if by_columns else "C")


def _text(value: object) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


def _latin(argument: str) -> bytes:
    return argument.encode("latin1")


def _same(argument: Any) -> Any:
    return argument


_CONSTANTS = {"MARK": _MARK, "NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}

# pickletools gives Python 2's strings decoded as latin1.
_VALUES: dict[str, Callable[[Any], object]] = {
    **dict.fromkeys(("BINSTRING", "SHORT_BINSTRING"), _latin),
    **dict.fromkeys(
        (
            "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT",
            "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8",
        ),
        _same,
    ),
}  # fmt: skip


def _plain(value: object) -> object:
    """With arrays in place of what they were collected in. Not deeper than a dictionary's values: lists that hold
    one another twice each would take for ever to walk through.
    """
    if isinstance(value, dict):
        return {key: _finished(part) for key, part in value.items()}
    return _finished(value)


def _finished(value: object) -> object:
    if isinstance(value, (_Name, _Type)) or (isinstance(value, _Array) and value.value is None):
        raise ValueError("a name where data should be")
    return value.value if isinstance(value, _Array) else value
