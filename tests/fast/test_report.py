"""The report and its figures: what they show is what the journals say, and nothing in it is obeyed as markup."""

from __future__ import annotations

import io
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import journals
import plotly.graph_objects as go
import pytest
from hypothesis import given
from hypothesis import strategies as st
from individuals import make_individual, make_record
from journals import T
from refusals import refused
from synthetic import make

import hpo
from hpo import cli, views
from hpo.errors import CampaignError, UsageError
from hpo.journal.curves import Point, curve_path
from hpo.journal.curves import encode as curve_row
from hpo.results.launch import most_workers
from hpo.views.figures.drawing import theme
from hpo.views.figures.registry import BY_NAME, FIGURES
from hpo.views.figures.source import NotDrawn, Source
from hpo.views.figures.timeline import busy_share
from hpo.views.report import figure_files
from hpo.views.report.command import names, read, report
from hpo.views.report.content import content, details, encoded
from hpo.views.report.health import findings
from hpo.views.report.page import report as page
from hpo.views.report.summary import summary

_NOT_FILLED = {1: {"front", "hypervolume", "noise"}, 2: {"noise"}}


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    folder = tmp_path_factory.mktemp("campaigns")
    return {count: make(folder / f"{count}", 120, objectives=count, seed=count) for count in (1, 2)}


def finished(
    number: int, value: float | None, params: dict[str, object] | None = None, **fields: object
) -> dict[str, object]:
    error = "ValueError: no" if value is None else None
    chosen = {"lr": 0.1} if params is None else params
    return journals.finished(f"0-0-{number}", value, **{"params": chosen, "error": error, **fields})


def home(
    path: Path, *files: list[dict[str, object]], space: hpo.SearchSpace | None = None, **launched: object
) -> Path:
    """A campaign whose workers wrote these records, from ``T`` on."""
    space = space or hpo.SearchSpace(lr=hpo.Float(1e-4, 1.0, log=True))
    first = [journals.launched(workers=len(files), **launched), *files[0]]
    return journals.campaign(path, first, *files[1:], space=space, time=T)


def source(path: Path) -> Source:
    return read([path])[0]


@pytest.mark.parametrize("objectives", [1, 2])
def test_every_figure_is_drawn_or_says_why_not(homes: dict[int, Path], objectives: int) -> None:
    found = content([source(homes[objectives])])
    assert [one.name for one in found.figures] == [
        one.name for one in FIGURES if one.name not in _NOT_FILLED[objectives]
    ]
    for one in found.figures:
        assert one.own is not None or any(len(trace.get("x", ())) for trace in one.plot["data"]), one.name
    assert len(found.campaigns[0].missing) == len(_NOT_FILLED[objectives])
    colours = set(re.findall(r'"(#[0-9a-f]{6})"', encoded([one.plot for one in found.figures]).decode()))
    assert colours <= set(theme.DARK), "a colour has no counterpart on a dark page"


@given(
    st.lists(st.one_of(st.none(), st.floats(-5, 5)), min_size=1, max_size=30), st.sampled_from(["min", "max"])
)
def test_the_best_so_far_is_the_running_best(values: list[float | None], way: str) -> None:
    individuals = [
        make_individual(
            id=f"0-0-{n}", params={}, status="failed" if one is None else "completed",
            objectives=None if one is None else {"value": one}, started=T + n, finished=T + n + 0.5,
        )
        for n, one in enumerate(values)
    ]  # fmt: skip
    record = make_record(individuals, {"value": f"{way}imize"})
    one = Source(name="x", record=record, curves=hpo.results.curves.Curves().frame())
    if not any(value is not None for value in values):
        with pytest.raises(NotDrawn, match="no evaluation has completed"):
            BY_NAME["history"].draw([one])
        return
    (line,) = [trace for trace in BY_NAME["history"].draw([one]).data if trace.name == "best so far"]
    better = max if way == "max" else min
    for count in range(1, len(values) + 1):
        so_far = [value for value in values[:count] if value is not None]
        drawn = [y for x, y in zip(line.x, line.y) if x <= count]
        assert (drawn[-1] if drawn else None) == (better(so_far) if so_far else None)


def test_the_timeline_has_lost_and_resumed_parts_and_the_busy_share(tmp_path: Path) -> None:
    begun = {key: finished(7, 1.0)[key] for key in ("island", "worker", "sequence", "params", "operator")}
    again = {"type": "started", "id": "0-0-7", **begun, "parents": [], "retries": 0}
    lost = [{**again, "time": T + 10}, finished(1, 1.0, started=T + 30, finished=T + 40)]
    other = [{**again, "time": T + 50}, finished(7, 2.0, started=T + 50, finished=T + 100)]
    one = source(home(tmp_path, lost, other))
    assert [(part.id, part.place, part.status, part.resumed) for part in one.record.parts] == [
        ("0-0-7", (1, 0, 0), "lost", False),
        ("0-0-1", (1, 0, 0), "completed", False),
        ("0-0-7", (1, 0, 1), "completed", True),
    ]
    # What was lost lasts until its worker begins something else: 20 s, and 10 and 50 s of two workers' 100 s.
    assert busy_share(one) == pytest.approx((20 + 10 + 50) / 200)
    figure = BY_NAME["timeline"].draw([one])
    assert {trace.name for trace in figure.data} == {"completed 2", "lost 1", "resumed 1"}
    assert "40 %" in figure.layout.title.text


def test_launches_that_were_at_work_together_have_areas_behind_their_workers(homes) -> None:
    record = source(homes[1]).record
    first, *later = record.launches
    assert later and not [
        shape for shape in BY_NAME["timeline"].draw([source(homes[1])]).layout.shapes if shape.type == "rect"
    ]
    one = source(homes[1])
    one.record.launches[0].updated = one.record.launches[1].updated
    shapes = BY_NAME["timeline"].draw([one]).layout.shapes
    assert {shape.type for shape in shapes} == {"rect"} and len(shapes) >= len(record.launches)
    assert most_workers(one.record.launches) == first.workers + later[0].workers


@pytest.mark.parametrize("most", [40, 3])
def test_many_parts_become_few_bars_of_the_same_extent(homes, monkeypatch, most):
    one = source(homes[1])
    whole = BY_NAME["timeline"].draw([one])
    monkeypatch.setattr(theme, "MOST_POINTS", most)
    few = BY_NAME["timeline"].draw([one])

    def extents(figure: go.Figure) -> dict[str, float]:
        bars = [bar for bar in figure.data if bar.type == "bar"]
        ends = {f"{bar.name} ends": max(base + width for base, width in zip(bar.base, bar.x)) for bar in bars}
        return ends | {f"{bar.name} begins": min(bar.base) for bar in bars}

    assert extents(few) == pytest.approx(extents(whole))
    # No merging makes fewer bars than there are workers and statuses.
    fewest = {(part.place[1:], part.status) for part in one.record.parts}
    assert sum(len(bar.x) for bar in few.data if bar.type == "bar") <= max(most, len(fewest))


def test_campaigns_of_other_objectives_stand_side_by_side_where_they_can(homes, tmp_path):
    other = home(tmp_path / "other", [finished(number, 1000.0 + number) for number in range(9)])
    for paths in ([homes[2], homes[1], other], [homes[1], other, homes[2]], [other, homes[2]]):
        sources = read(paths)
        found = content(sources)
        (history,) = [one for one in found.figures if one.name == "history"]
        there = [one.objectives.keys() >= {sources[0].objective} for one in sources]
        assert {trace["meta"] for trace in history.plot["data"]} == {
            n for n, each in enumerate(there) if each
        }
        assert found.compared is not None
        assert [row[1] != "–" for row in found.compared.rows] == there
        assert [one.campaign for one in found.figures if one.name == "timeline"] == [*range(len(paths))]


def test_a_mark_is_of_its_own_campaign_where_several_are_overlaid(homes, tmp_path):
    few = home(tmp_path / "few", [finished(number, 1.0 - number / 10) for number in range(3)])
    many = home(tmp_path / "many", [finished(number, 5.0 - number / 10) for number in range(9)])
    found = content(read([few, many]))
    assert [len(one.ids) for one in found.details] == [3, 9]
    for name in ("history", "hours"):
        (figure,) = [one for one in found.figures if one.name == name]
        for trace in figure.plot["data"]:
            ids = found.details[trace["meta"]].ids
            assert set(trace["customdata"]) <= {*ids}
            best = dict(zip(ids, found.details[trace["meta"]].objectives["value"]))
            assert [best[each] for each in trace["customdata"]] == pytest.approx(list(trace["y"]))


def test_of_several_objectives_the_best_in_the_first_leads(homes: dict[int, Path]) -> None:
    found = summary(source(homes[2]))
    best, knee = found.lead.find("The best in "), found.lead.find("Its knee, ")
    assert 0 < best < knee and hpo.Result(homes[2]).best.id in found.lead[best:knee]
    assert found.comparison is not None
    assert found.comparison.heads[0].startswith("best ") and found.comparison.heads[1] == "knee of the front"


def test_figures_are_written_as_vector_graphics(homes: dict[int, Path], tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(figure_files, "FIGURES", [BY_NAME[name] for name in ("history", "timeline", "noise")])
    wanted: list[Path] = []
    monkeypatch.setattr("plotly.io.write_images", lambda figures, paths, **sizes: wanted.extend(paths))
    folder = tmp_path / "figures"
    said = report([homes[1], homes[2]], tmp_path / "x.html", folder)
    assert f"{folder}: 6 files" in said and "noise-2: left out" in said
    names = ("history", "timeline", "timeline-2")
    assert wanted == [folder / f"{name}.{suffix}" for name in names for suffix in ("svg", "pdf")]


def test_without_a_chrome_or_kaleido_the_remedy_is_said(homes, tmp_path, monkeypatch, capsys):
    def fails(*arguments: object, **keywords: object) -> None:
        raise RuntimeError("\nKaleido requires Google Chrome to be installed.\n")

    monkeypatch.setattr("plotly.io.write_images", fails)
    with pytest.raises(UsageError, match=r"\(Kaleido .* installed\).*apt-get install"):
        report([homes[1]], tmp_path / "x.html", tmp_path / "figures")
    assert (tmp_path / "x.html").exists()
    monkeypatch.setattr(views, "FIGURE_FILES", ("plotly", "not_there"))
    assert cli.main(["report", str(homes[1]), "--figures", str(tmp_path / "figures")]) == 2
    assert "bash jobs/setup.sh plots" in capsys.readouterr().err


def test_plots_of_a_result(homes: dict[int, Path]) -> None:
    result = hpo.Result(homes[1])
    assert isinstance(result.plot.history(), go.Figure) and isinstance(result.plot.parallel(), go.Figure)
    with pytest.raises(UsageError, match=r"plot.front\(\) of .*objective"):
        result.plot.front()
    assert "The best of 120 evaluations" in result._repr_html_() and "<table" in result._repr_html_()
    for one in BY_NAME:
        assert callable(getattr(type(result.plot), one))


class _Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.data = ""
        self._in_data = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._in_data = tag == "script" and dict(attrs).get("id") == "hpo-data"

    def handle_data(self, data: str) -> None:
        if self._in_data:
            self.data, self._in_data = data, False


_HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>%{x}`$&"


def test_nothing_in_a_campaign_is_obeyed(tmp_path: Path) -> None:
    shown = _HOSTILE
    space = hpo.SearchSpace({shown: hpo.Categorical(shown, "b"), "lr": hpo.Float(1e-4, 1.0, log=True)})
    records = [
        finished(n, None if n % 5 == 0 else 1.0 / (n + 1), {shown: shown if n % 3 else "b", "lr": 0.5**n + 1e-3},
                 error=f"ValueError: </script>\u2028{shown}" if n % 5 == 0 else None, operator=shown)
        for n in range(50)
    ]  # fmt: skip
    path = home(tmp_path / "<b>x", records, space=space)
    found = _Elements()
    found.feed(page(content([source(path)])).decode())
    tags = [tag for tag, _ in found.tags]
    assert tags.count("script") == 5 and "img" not in tags and "b" not in tags
    assert not any(
        name.startswith("on") or str(value).startswith(("http", "javascript:"))
        for _, attributes in found.tags
        for name, value in attributes.items()
    )
    assert "<" not in found.data and "\u2028" not in found.data
    data = json.loads(found.data)
    assert shown in data["details"][0]["params"]
    html = hpo.Result(path)._repr_html_()
    assert "<script" not in html and "<img" not in html


def test_the_page_needs_nothing_else(homes: dict[int, Path]) -> None:
    text = page(content([source(homes[1])])).decode()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy and "default-src 'none'" in policy[1] and "unsafe-eval" not in policy[1]
    assert policy[1].count("'sha256-") == 4
    found = _Elements()
    found.feed(text)
    assert not any({"src", "srcset"} & set(attributes) for _, attributes in found.tags)
    plots = [attributes["data-plot"] for tag, attributes in found.tags if tag == "figure"]
    assert plots == [one.name for one in FIGURES if one.name not in _NOT_FILLED[1]]


def test_a_campaign_without_results_has_a_page(tmp_path: Path) -> None:
    found = content([source(home(tmp_path, []))])
    assert {one.title for one in found.campaigns[0].missing} >= {"Learning curves", "Workers over time"}
    assert not found.figures and page(found)


def texts(path: Path, level: str | None = None) -> str:
    return "\n".join(one.text for one in findings(source(path)) if level in (None, one.level))


def test_best_values_at_a_border_are_said(tmp_path: Path) -> None:
    def borders(name: str, records: list[dict[str, object]], space: hpo.SearchSpace | None = None) -> list:
        said = texts(home(tmp_path / name, records, space=space), "warn")
        return re.findall(r"Best (\w+) at its border: (\S+),", said)

    assert borders(
        "a", [finished(n, 1.0 - 0.01 * n, {"lr": min(1.0, 0.05 * (n + 1))}) for n in range(30)]
    ) == [("lr", "1")]
    inside = [finished(n, abs(math.log(0.01 * (n + 1) / 0.1)), {"lr": 0.01 * (n + 1)}) for n in range(30)]
    assert borders("b", inside) == []
    space = hpo.SearchSpace(width=hpo.Ordinal(16, 32, 64), depth=hpo.Int(1, 9), two=hpo.Ordinal(1, 2))
    ordered = [
        finished(n, float(-n), {"width": (16, 64)[n > 20], "depth": 1 + n // 8, "two": 2}) for n in range(40)
    ]
    assert borders("c", ordered, space) == [("width", "64")]
    ordered += [finished(40 + n, -100.0 - n, {"width": 32, "depth": 9, "two": 2}) for n in range(10)]
    assert borders("d", ordered, space) == [("depth", "9")]


def test_failures_are_counted_by_kind_and_by_value(tmp_path: Path) -> None:
    space = hpo.SearchSpace(lr=hpo.Float(1e-4, 1.0, log=True), kind=hpo.Categorical("a", "b"))
    records = [
        finished(n, None, {"lr": 0.1, "kind": "b"}, status="timeout", error="killed after timeout = 5 s")
        if n % 4 == 0
        else finished(n, 1.0 + n, {"lr": 0.1, "kind": "a"})
        for n in range(40)
    ]
    said = texts(home(tmp_path, records, space=space))
    assert "25 % timed out (10 of 40): killed after timeout = 5 s" in said
    assert "100 % of the evaluations with kind = b failed, against 25 % of all" in said


def test_islands_that_find_nothing_and_workers_that_left(tmp_path: Path) -> None:
    first = [finished(n, 1.0 / (n + 1)) for n in range(60)]
    other = [
        finished(n, 2.0 + (n > 3), id=f"1-0-{n}", island=1) | {"started": T + n, "finished": T + n + 0.6}
        for n in range(80)
    ]
    left = {"type": "left", "island": 1, "worker": 0, "reason": "the GPU is gone", "time": T + 90}
    wait = {"type": "storage", "error": "journal: No space left on device", "time": T + 20}
    good = {"type": "storage", "error": None, "time": T + 50}
    said = texts(home(tmp_path, [*first, left, wait, good], other, islands=2))
    assert "Island 1 found nothing better of its own for 79 evaluations." in said
    assert re.search(r"Worker 1-0 took no more part in launch 1 after \d+ (s|min): the GPU is gone", said)
    assert "Launch 1 waited 30 s for its storage: journal: No space left on device" in said


def test_the_best_stands_beside_the_default(tmp_path: Path) -> None:
    records = [
        finished(0, 5.0, {"lr": 0.01}, operator="default"),
        *(finished(n, 5.0 - n, {"lr": 0.1}) for n in (1, 2)),
    ]
    found = summary(source(home(tmp_path, records)))
    assert "0-0-2, has value 3: 2 better than the default (5)" in found.lead
    assert found.comparison is not None and found.comparison.heads == ["best", "default"]
    (row,) = found.comparison.parameters
    assert (row.values, row.places) == (["0.1", "0.01"], pytest.approx([0.75, 0.5]))


def test_a_chosen_none_is_not_a_parameter_that_does_not_exist(tmp_path: Path) -> None:
    records = [
        finished(0, 5.0, {"kind": "sgd", "decay": 0.5}, operator="default"),
        finished(1, 4.0, {"kind": "sgd", "decay": None}),
        finished(2, 6.0, {"kind": "adam"}),
    ]
    space = hpo.SearchSpace(
        kind=hpo.Categorical("sgd", "adam"), decay=hpo.Categorical(None, 0.5, when={"kind": "sgd"})
    )
    drawn = source(home(tmp_path, records, space=space))
    found = summary(drawn)
    assert found.comparison is not None and found.top is not None
    (row,) = [one for one in found.comparison.parameters if one.name == "decay"]
    assert (row.values, row.differs) == (["None", "0.5"], True)
    assert [line[-1] for line in found.top.rows] == ["None", "0.5", "–"]
    assert details(drawn, {"0-0-0", "0-0-1", "0-0-2"}).params["decay"] == [0.5, "None", None]


def test_which_argument_is_the_output(homes: dict[int, Path], tmp_path: Path) -> None:
    report([homes[1], tmp_path / "a.html"], None, None)
    report([homes[1], homes[2]], tmp_path / "b.html", None)
    assert {path.name for path in tmp_path.iterdir()} == {"a.html", "b.html"}
    outside = tmp_path / "outside"
    outside.write_text("kept")
    target = homes[1] / "report.html"
    target.symlink_to(outside)
    report([homes[1]], None, None)
    assert outside.read_text() == "kept" and not target.is_symlink()
    target.unlink()
    for arguments, output, error, word in (
        ([homes[1], tmp_path / "a.html"], "b.html", UsageError, "b.html"),
        ([tmp_path / "a.html"], None, UsageError, "directory"),
        ([homes[1]], "a.txt", UsageError, "a.txt"),
        ([tmp_path], None, CampaignError, str(tmp_path)),
        ([homes[1]], "none/a.html", CampaignError, "none/a.html"),
    ):
        path = output and tmp_path / output
        refused(lambda arguments=arguments, path=path: report(arguments, path, None), word, error=error)
        assert {path.name for path in tmp_path.iterdir()} == {"a.html", "b.html", "outside"}


def test_campaigns_have_the_shortest_names_that_differ() -> None:
    assert names([Path("/a/runs/x"), Path("/b/runs/y")]) == ["x", "y"]
    assert names([Path("/a/x"), Path("/b/x")]) == ["a/x", "b/x"]
    assert len(names([Path("/a/x"), Path("/a/x")])) == 2


def test_curves_are_those_that_were_reported(tmp_path: Path) -> None:
    path = home(
        tmp_path, [finished(n, 1.0 / (n + 1), operator="default" if n == 0 else "random") for n in range(3)]
    )
    rows = [
        Point(id=f"0-0-{n}", step=step, value=n + step, time=T + n, began=T + n)
        for n in range(3)
        for step in (1, 2)
    ]
    file = curve_path(path, launch=1, island=0, worker=0)
    file.parent.mkdir()
    file.write_bytes(b"".join(map(curve_row, rows)))
    found = {trace.name: trace for trace in BY_NAME["curves"].draw([source(path)]).data}
    assert list(found["best"].y[:2]) == [3, 4] and list(found["default"].y[:2]) == [1, 2]
    assert list(found["completed"].x[:2]) == [1, 2] and set(found["completed"].customdata) == {"0-0-1", ""}


@pytest.mark.parametrize("terminal", [True, False])
def test_steps_are_shown_on_a_terminal_only(homes, tmp_path, monkeypatch, terminal):
    shown = io.StringIO()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(shown, "isatty", lambda: terminal)
    monkeypatch.setattr("sys.stderr", shown)
    report([homes[1]], tmp_path / "report.html")
    assert ("drawing" in shown.getvalue()) == terminal
    assert terminal or not shown.getvalue()


@pytest.mark.parametrize("count", [1, 12])
@pytest.mark.parametrize(
    "values",
    [
        lambda x: {"a": x, "b": 1e17},
        lambda x: {"a": 10.0 ** (60 * x), "b": 1e300},
        lambda x: {"a": 1.7e308 * (2 * x - 1), "b": 5e-324 * int(9 * x)},
    ],
    ids=["large constants", "large losses", "the largest and the smallest"],
)
def test_extreme_values_are_drawn_without_an_error_or_warning(tmp_path, values, count):
    task = hpo.Task(
        hpo.SearchSpace(x=hpo.Float(0, 1), y=hpo.Float(0, 1)),
        lambda trial: values(trial.params["x"]),
        objectives={"a": "minimize", "b": "maximize"},
    )
    run = tmp_path / "run"
    hpo.Campaign(task, directory=run, evaluations=count, kind="random", isolation="inline").run()
    report([run], tmp_path / "report.html", None)
    assert 'data-plot="parallel"' in (tmp_path / "report.html").read_text() or count == 1
