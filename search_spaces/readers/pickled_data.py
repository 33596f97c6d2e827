"""Reader of plain data in a pickle, which calls nothing that the file names except to make NumPy arrays of numbers."""

from __future__ import annotations

import io
import math
import pickle
import warnings
from typing import Any

import numpy as np

_TYPES = ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8")


class _Refused(ValueError):
    pass


# The following classes take the place of NumPy's own, which crash the process when they get a damaged state.


class _Type:
    """Type of numbers, which is made from its code and then gets its byte order."""

    def __init__(self, code: str | bytes, *flags: object) -> None:
        self._code, self._order = _text(code), "|"

    def __setstate__(self, state: tuple[object, ...]) -> None:
        self._order = _text(state[1])

    def numpy(self) -> np.dtype[Any]:
        if self._code not in _TYPES or self._order not in ("|", "<", ">", "="):
            raise _Refused("holds an array that is not of plain numbers")
        return np.dtype(self._code if self._order == "|" else self._order + self._code)


class _Array:
    """Array, which is made empty and then gets its shape, type and bytes."""

    value: np.ndarray[Any, Any] | None = None

    def __init__(self, *announced: object) -> None:
        pass

    def __setstate__(self, state: tuple[Any, tuple[int, ...], object, bool, str | bytes]) -> None:
        _, shape, kind, by_columns, content = state
        if not isinstance(kind, _Type):
            raise _Refused("holds an array that is not of plain numbers")
        content = content.encode("latin1") if isinstance(content, str) else content
        dtype = kind.numpy()
        # Checked before NumPy sees it, as a damaged shape may ask for any amount of memory.
        if any(side < 0 for side in shape) or len(content) != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"{len(content)} bytes for an array of {shape}")
        self.value = np.frombuffer(content, dtype).reshape(shape, order="F" if by_columns else "C")


def _text(value: object) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


def _encode(text: str, encoding: str) -> bytes:
    # Pickles of protocol 2 have bytes as text, which this function encodes.
    if encoding not in ("latin1", "latin-1"):
        raise _Refused(f"encodes by {encoding}")
    return text.encode("latin1")


_ADMITTED = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("_codecs", "encode"): _encode,
}


# Unpickler in Python, because that in C takes a damaged number of an entry for the length of a list, and fills the
# memory.
class _PlainUnpickler(pickle._Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            raise _Refused(f"names {module}.{name}")
        return _ADMITTED[module, name]


def _plain(value: object) -> object:
    """``value``, or the NumPy array for which it stands."""
    if (
        isinstance(value, (_Type, type))
        or callable(value)
        or (isinstance(value, _Array) and value.value is None)
    ):
        raise ValueError("a name where data should be")
    return value.value if isinstance(value, _Array) else value


def read_pickled(content: bytes, *, source: str) -> object:
    """Plain data in a pickle: dictionaries, lists, tuples, numbers, strings and bytes.

    NumPy arrays of numbers are allowed as the whole content, or as values of a dictionary. Strings of Python 2 become
    bytes.

    Args:
        content (bytes): the pickle.
        source (str): name of the content in errors.

    Raises:
        ValueError: the content is no pickle, is cut short, or needs anything else.
    """
    try:
        with warnings.catch_warnings():
            # Python warns of escape sequences in damaged names.
            warnings.simplefilter("ignore", DeprecationWarning)
            found = _PlainUnpickler(io.BytesIO(content), encoding="bytes").load()
        return (
            {key: _plain(part) for key, part in found.items()} if isinstance(found, dict) else _plain(found)
        )
    except _Refused as error:
        raise ValueError(
            f"{source} {error}, which plain data has no need of: it is not read. Take the binary form."
        ) from error
    except Exception as error:  # a damaged pickle raises errors of any class, which differ between versions
        raise ValueError(
            f"{source} is no whole pickle ({error}). Extract it again, or take the binary form."
        ) from error
