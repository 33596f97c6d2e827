"""Disks that fail: calls to the operating system raise errors."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable
from typing import Any

import pytest


def failing(
    monkeypatch: pytest.MonkeyPatch, name: str, number: int, when: Callable[[Any], bool] = lambda first: True
) -> list[object]:
    """``os.NAME`` raises the error where ``when`` holds of its first argument; these arguments."""
    real, hit = getattr(os, name), []

    def call(first: Any, *rest: Any, **keywords: Any) -> Any:
        if when(first):
            hit.append(first)
            where = [first] if isinstance(first, (str, os.PathLike)) else []
            raise OSError(number, os.strerror(number), *where)
        return real(first, *rest, **keywords)

    monkeypatch.setattr(os, name, call)
    accessor = getattr(pathlib, "_NormalAccessor", None)  # by which Path of Python 3.10 calls os
    if hasattr(accessor, name):
        monkeypatch.setattr(accessor, name, staticmethod(call))
    return hit
