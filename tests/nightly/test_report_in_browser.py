"""The report in a real browser: every figure is drawn on load, nothing is said on its console, and nothing is fetched.

Needs Debian's chromium (apt-get install chromium)."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest
from synthetic import make

import hpo
from hpo.views.report.command import report

_BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = [
    pytest.mark.skipif(_BROWSER is None, reason="chromium is missing: apt-get install chromium"),
    pytest.mark.timeout(300),
]


def opened(page: Path, profile: Path, *flags: str) -> tuple[str, str]:
    """The document after its scripts have run, and what the console was given."""
    assert _BROWSER is not None
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom")
    place = (f"--user-data-dir={profile}", "--virtual-time-budget=20000", *flags, page.as_uri())
    done = subprocess.run(
        [_BROWSER, *options, *place], capture_output=True, text=True, timeout=240, check=True
    )
    console = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    return done.stdout, "\n".join(console)


@pytest.mark.parametrize(("width", "count"), [(390, 1), (1400, 2)])
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


def test_a_click_shows_the_individual_of_the_marks_own_campaign(tmp_path: Path) -> None:
    homes = [make(tmp_path / name, 60, seed=seed) for seed, name in enumerate(("one", "other"))]
    page = tmp_path / "report.html"
    report(homes, page, None)
    ended = [
        {one.id: one for one in hpo.Result(home).individuals if one.status == "completed"} for home in homes
    ]
    identity = next(one for one in ended[1] if one in ended[0])
    click = f"""<script>
      addEventListener("load", () => {{
        const timer = setInterval(() => {{
          const figure = document.querySelector('figure[data-plot="history"] .plot');
          if (!figure?.data) return;
          clearInterval(timer);
          const data = figure.data.find((trace) => trace.meta === 1 && trace.customdata.includes("{identity}"));
          figure.emit("plotly_click", {{ points: [{{ data, customdata: "{identity}" }}] }});
        }}, 100);
      }});
    </script></body>"""
    # Without the policy, which allows the page no script but its own.
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text())
    page.write_text(text.replace("</body>\n</html>", f"{click}</html>"))
    document, console = opened(page, tmp_path / "profile")
    assert console == ""
    panel = document.partition('<aside class="panel">')[2].partition("</aside>")[0]
    assert f">{identity}<" in panel and "other · " in panel
    shown = float(panel.partition('>accuracy</th><td class="value">')[2].partition("<")[0])
    values = [(one[identity].objectives or {})["accuracy"] for one in ended]
    assert shown == pytest.approx(values[1], rel=1e-4) and shown != pytest.approx(values[0], rel=1e-4)


def test_the_button_of_a_figure_saves_it_as_svg(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    report([make(tmp_path / "c", 60)], page, None)
    script = """
      URL.createObjectURL = (blob) => {
        blob.text().then((text) => document.body.setAttribute("data-saved", text.slice(0, 200)));
        return "#";
      };
      addEventListener("load", () => {
        const timer = setInterval(() => {
          const button = document.querySelector('figure[data-plot="history"] [data-title^="Download plot"]');
          if (!button) return;
          clearInterval(timer);
          button.click();
        }, 100);
      });
    """
    # The page's policy holds; this script is allowed beside its own.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    text = page.read_text().replace("script-src ", f"script-src 'sha256-{digest}' ", 1)
    page.write_text(text.replace("</body>\n</html>", f"<script>{script}</script></body>\n</html>"))
    document, console = opened(page, tmp_path / "profile", "--window-size=1400,900")
    assert console == ""
    saved = re.search(r'data-saved="([^"]*)', document)
    assert saved is not None and saved[1].startswith("&lt;svg")
    assert 'data-title="Share chart' not in document


def test_figures_are_vector_graphics(tmp_path: Path) -> None:
    pytest.importorskip("kaleido", reason="installed by the extra plots")
    folder = tmp_path / "figures"
    report([make(tmp_path / "c", 120, objectives=2)], tmp_path / "x.html", folder)
    drawn = [path.stem for path in folder.glob("*.svg")]
    assert {"history", "timeline", "islands", "importance", "front"} <= {*drawn}
    for name in drawn:
        tree = ElementTree.parse(folder / f"{name}.svg")
        assert len(list(tree.iter("{http://www.w3.org/2000/svg}path"))) > 10, name
        assert (folder / f"{name}.pdf").read_bytes().startswith(b"%PDF")
