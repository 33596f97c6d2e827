"""Which cases of a parametrised test run: some on every change, and nightly all (``--all-cases``)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any, TypeVar

import pytest

_T = TypeVar("_T")

all_cases = False
"""Set by tests/conftest.py before tests are collected."""

nightly = pytest.mark.nightly
"""Mark of a test that takes long and whose faults other tests notice on every change."""


def cases(every_time: Iterable[_T], nightly: Iterable[_T]) -> list[_T]:
    """The cases of a parametrised test, of which those of ``nightly`` walk code that the others walk as well."""
    return [*every_time, *(nightly if all_cases else ())]


def combinations(*axes: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Combinations of a value of each axis: so many that each value occurs on every change, nightly all."""
    values: list[Sequence[Any]] = [[*axis] for axis in axes]
    longest = max(map(len, values))
    every_time = [tuple(axis[number % len(axis)] for axis in values) for number in range(longest)]
    return cases(every_time, (one for one in product(*values) if one not in every_time))
