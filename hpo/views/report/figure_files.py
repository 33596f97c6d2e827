"""Figures as SVG and PDF for papers, drawn by plotly in a Chrome without a window."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hpo.errors import CampaignError, UsageError
from hpo.terminal import one_line
from hpo.views.figures.drawing import theme
from hpo.views.figures.registry import FIGURES
from hpo.views.figures.source import NotDrawn, Source

FORMATS = ("svg", "pdf")
_WIDTH = 720  # pixels


def write(sources: Sequence[Source], folder: Path) -> list[str]:
    """Write figures as ``NAME.svg`` and ``NAME.pdf``, of further campaigns as ``NAME-2.svg`` and so on, to ``folder``;
    returns lines on what was written and left out.

    Raises:
        UsageError: no Chrome starts.
        CampaignError: a file cannot be written.
    """
    import plotly.io

    figures, paths, left_out = [], [], []
    for entry in FIGURES:
        together = entry.overlaid or len(sources) == 1
        for place, group in enumerate([sources] if together else [[one] for one in sources], start=1):
            name = entry.name if place == 1 else f"{entry.name}-{place}"
            try:
                figure = entry.draw(group)
            except NotDrawn as reason:
                left_out.append(f"{name}: left out, {reason}")
                continue
            for suffix in FORMATS:
                figures.append(figure)
                paths.append(folder / f"{name}.{suffix}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if figures:
            heights = [one.layout.height or theme.HEIGHT for one in figures]
            plotly.io.write_images(figures, paths, width=_WIDTH, height=heights)
    except OSError as error:
        raise CampaignError(
            f"{error.filename or folder} cannot be written ({error.strerror or error}). Name a folder that you may "
            "write."
        ) from error
    except RuntimeError as error:  # plotly, kaleido and the library that starts Chrome raise it
        said = next(filter(None, str(error.args[0] if error.args else "").splitlines()), type(error).__name__)
        raise UsageError(
            f"hpo report --figures needs a Chrome or Chromium that starts ({one_line(said.strip(' .'))}). Install "
            "it, for example by `apt-get install chromium` or `plotly_get_chrome`, or save each figure as SVG by the "
            "button above it in the report, which is written."
        ) from error
    return [f"{folder}: {len(paths)} files", *left_out]
