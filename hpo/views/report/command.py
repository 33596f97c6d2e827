"""``hpo report``: reads campaigns and writes their report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from hpo.errors import CampaignError, UsageError
from hpo.journal.durable import write_atomically
from hpo.results import curves
from hpo.results.record import collector_paused, load
from hpo.steps import Steps
from hpo.terminal import one_line
from hpo.views.figures.registry import FIGURES
from hpo.views.figures.source import Source
from hpo.views.report import page
from hpo.views.report.content import content
from hpo.views.report.figure_files import write

_SUFFIX = ".html"


def report(
    arguments: Sequence[Path], output: Path | None = None, figures: Path | None = None, *, version: str = ""
) -> str:
    """Write the report of campaigns; returns lines on what was written.

    An argument that ends in .html is the output. ``figures``: folder for each figure as SVG and PDF.

    Raises:
        UsageError: there is no directory or several outputs; or ``figures`` cannot be drawn, but the report is written.
        CampaignError: a directory holds no campaign, or the output cannot be written.
        JournalDamaged: a journal is damaged.
    """
    outputs = [one for one in arguments if one.suffix.lower() == _SUFFIX and not one.is_dir()]
    directories = [one for one in arguments if one not in outputs]
    if output is not None:
        outputs.append(output)
    if not directories:
        raise UsageError(
            "hpo report: no campaign's directory was given. Name one or several: hpo report runs/digits."
        )
    if len(outputs) > 1:
        raise UsageError(
            f"hpo report: {len(outputs)} files to write were given ({', '.join(map(str, outputs))}). All campaigns go "
            "into one: name one file."
        )
    target = outputs[0] if outputs else directories[0] / "report.html"
    if target.suffix.lower() != _SUFFIX:
        raise UsageError(
            f"hpo report: {target}: must end in {_SUFFIX}. Name {target.with_suffix(_SUFFIX).name}."
        )
    lines = []
    count = len(directories) + len(FIGURES) + (figures is not None)
    with Steps(count) as steps, collector_paused():
        sources = read(directories, steps.begin)
        data = page.report(content(sources, version, begin=lambda title: steps.begin(f"drawing {title}")))
        try:
            write_atomically(target, data, durable=False)
        except OSError as error:
            raise CampaignError(
                f"{target} cannot be written ({error.strerror or error}). Name a file in a directory that exists and "
                "that you may write: hpo report DIR PATH.html."
            ) from error
        lines.append(f"{target}: {len(data) / 1e6:.1f} MB, open it in a browser")
        if figures is not None:
            steps.begin(f"writing {figures}")
            lines += write(sources, figures)
    return "\n".join(lines)


def read(directories: Sequence[Path], begin: Callable[[str], None] = lambda what: None) -> list[Source]:
    """Read campaigns, with the errors of :func:`report`. ``begin`` is called before each."""
    found = []
    for name, directory in zip(names(directories), directories, strict=True):
        begin(f"reading {name}")
        found.append(Source(name=name, record=load(directory), curves=curves.load(directory)))
    return found


def names(directories: Sequence[Path]) -> list[str]:
    """Last parts of the paths, as many as it takes to distinguish them."""
    whole = [directory.absolute() for directory in directories]
    for count in range(1, max(len(path.parts) for path in whole) + 1):
        found = ["/".join(path.parts[-count:]) for path in whole]
        if len(set(found)) == len(found):
            break
    return [one_line(name) for name in found]
