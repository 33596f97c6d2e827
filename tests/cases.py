"""Which cases of a parametrised test run: some on every change, and nightly all (``--all-cases``)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

_T = TypeVar("_T")

all_cases = False
"""Set by tests/conftest.py before tests are collected."""


def cases(every_time: Iterable[_T], nightly: Iterable[_T]) -> list[_T]:
    """The cases of a parametrised test, of which those of ``nightly`` walk code that the others walk as well."""
    return [*every_time, *(nightly if all_cases else ())]
