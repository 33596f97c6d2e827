"""Figures as SVG and PDF, for papers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from hpo.errors import CampaignError
from hpo.results.figures.files.to_matplotlib import rendered
from hpo.results.figures.registry import FIGURES
from hpo.results.figures.source import NotDrawn, Source

FORMATS = ("svg", "pdf")


def write(sources: Sequence[Source], folder: Path) -> list[str]:
    """Each figure that the data fill as ``NAME.svg`` and ``NAME.pdf`` in ``folder``, which is made; of several
    campaigns ``NAME-2.svg`` and so on. Returns a line a figure that was left out, and one of what was written.

    Raises:
        CampaignError: a file cannot be written.
    """
    written, left_out = 0, []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for entry in FIGURES:
            together = entry.overlaid or len(sources) == 1
            for place, group in enumerate([sources] if together else [[one] for one in sources], start=1):
                name = entry.name if place == 1 else f"{entry.name}-{place}"
                try:
                    plot = entry.plot(group)
                except NotDrawn as reason:
                    left_out.append(f"{name}: left out, {reason}")
                    continue
                for suffix, data in rendered(plot, FORMATS).items():
                    _replace(folder / f"{name}.{suffix}", data)
                    written += 1
    except OSError as error:
        raise CampaignError(
            f"{error.filename or folder} cannot be written ({error.strerror or error}). Name a folder that you may "
            "write."
        ) from error
    return [f"{folder}: {written} files", *left_out]


def _replace(path: Path, data: bytes) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_bytes(data)
    os.replace(partial, path)
