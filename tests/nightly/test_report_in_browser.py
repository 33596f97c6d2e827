"""The report in a real browser: every figure is drawn on load, nothing is said on its console, and nothing is fetched.

Needs Debian's chromium (apt-get install chromium)."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from synthetic import make

from hpo.results.report.command import report

_BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = [
    pytest.mark.skipif(_BROWSER is None, reason="chromium is missing: apt-get install chromium"),
    pytest.mark.timeout(300),
]


def opened(page: Path, profile: Path, *flags: str) -> tuple[str, str]:
    """The document after its scripts have run, and what the console was given."""
    assert _BROWSER is not None
    done = subprocess.run(
        [
            _BROWSER,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={profile}",
            "--enable-logging=stderr",
            "--virtual-time-budget=20000",
            "--dump-dom",
            *flags,
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    console = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    return done.stdout, "\n".join(console)


@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize("count", [1, 2])
def test_every_figure_holds_marks(tmp_path: Path, width: int, count: int) -> None:
    homes = [
        make(tmp_path / f"c{n}", 150, objectives=n + 1, seed=n, task="<script>x</script>:task")
        for n in range(count)
    ]
    page = tmp_path / "report.html"
    report(homes, page, None)
    document, console = opened(page, tmp_path / "profile", f"--window-size={width},900")
    assert console == ""
    figures = [one.partition("</figure>")[0] for one in document.split('<figure data-plot="')[1:]]
    names = [figure.partition('"')[0] for figure in figures]
    assert {"history", "hours", "curves", "timeline", "parallel", "slices", "islands", "family"} <= set(names)
    for name, figure in zip(names, figures):
        marks = len(re.findall(r"<(?:path|rect|circle|line)\b", figure))
        assert marks > 10, f"{name} holds {marks} marks"
        assert "could not be drawn" not in figure
    assert "<script>x" not in document
