"""The report in a real browser: all figures are drawn on load, the console stays silent, and nothing is fetched."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from browser import NEEDED, check_figures, opened
from synthetic import make

import hpo
from hpo.views.report.command import report

pytestmark = NEEDED


@pytest.mark.parametrize(("width", "count"), [(390, 1), (1400, 2)])
def test_every_figure_holds_marks(tmp_path: Path, width: int, count: int) -> None:
    homes = [
        make(tmp_path / f"c{n}", 150, objectives=n + 1, seed=n, task="<script>x</script>:task")
        for n in range(count)
    ]
    report(homes, tmp_path / "report.html", None)
    with opened((tmp_path / "report.html").as_uri(), width=width) as (page, _):
        check_figures(
            page, ("history", "hours", "curves", "timeline", "parallel", "slices", "islands", "family")
        )
        assert "<script>x" not in page.content()


def test_a_click_shows_the_individual_of_the_marks_own_campaign(tmp_path: Path) -> None:
    homes = [make(tmp_path / name, 60, seed=seed) for seed, name in enumerate(("one", "other"))]
    report(homes, tmp_path / "report.html", None)
    ended = [
        {one.id: one for one in hpo.Result(home).individuals if one.status == "completed"} for home in homes
    ]
    identity = next(one for one in ended[1] if one in ended[0])
    click = """(identity) => {
      const figure = document.querySelector('figure[data-plot="history"] .plot');
      const data = figure.data.find((trace) => trace.meta === 1 && trace.customdata.includes(identity));
      figure.emit("plotly_click", { points: [{ data, customdata: identity }] });
    }"""
    with opened((tmp_path / "report.html").as_uri()) as (page, _):
        check_figures(page, ["history"])
        page.evaluate(click, identity)
        panel = page.inner_text("aside.panel")
        assert identity in panel and "other · " in panel
        shown = float(page.inner_text("aside.panel tr:has(th:text-is('accuracy')) td.value"))
    values = [(one[identity].objectives or {})["accuracy"] for one in ended]
    assert shown == pytest.approx(values[1], rel=1e-4) and shown != pytest.approx(values[0], rel=1e-4)


def test_the_button_of_a_figure_saves_it_as_svg(tmp_path: Path) -> None:
    report([make(tmp_path / "c", 60)], tmp_path / "report.html", None)
    with opened((tmp_path / "report.html").as_uri()) as (page, _):
        check_figures(page, ["history"])
        with page.expect_download() as saved:
            page.dispatch_event('figure[data-plot="history"] [data-title^="Download plot"]', "click")
        assert Path(saved.value.path()).read_text().startswith("<svg")
        assert page.locator('[data-title^="Share chart"]').count() == 0


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
