"""Which tests did not run, and whether this machine could have run them.

A test that needs what a machine may lack (a GPU, the right to mount) skips by ``not_possible_here``. Every other skip
could be avoided by installing something, and ``jobs/check.sh`` fails because of it unless it is given ``--lenient``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

import pytest

NOT_POSSIBLE = "not possible here: "


def not_possible_here(reason: str) -> NoReturn:
    """Skip the test that runs, or the module that is imported, because no installation could make it possible."""
    pytest.skip(NOT_POSSIBLE + reason, allow_module_level=True)


def write(path: Path, skipped: Iterable[pytest.TestReport | pytest.CollectReport]) -> None:
    """Append the reason of each report to the file, with the number of tests (or modules) that have it."""
    reasons = Counter(
        re.sub(r"\s+", " ", str(one.longrepr[2] if isinstance(one.longrepr, tuple) else one.longrepr))
        for one in skipped
    )
    with path.open("a") as file:
        file.writelines(
            f"{reason.removeprefix('Skipped: ')} ({number})\n" for reason, number in reasons.items()
        )
