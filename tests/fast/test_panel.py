"""The panel: what is drawn, how it stays whole beside what others write, and what runs now."""

from __future__ import annotations

import os
import re
import sys
import time
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import living
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from individuals import make_finished, make_started
from rich.console import Console, Group
from rich.text import Text
from screens import Screen, set_size

from hpo import cli
from hpo.campaign.live_panel import Printed
from hpo.config import process
from hpo.individual import RUNNING, STATUSES
from hpo.journal import directory
from hpo.journal.curves import Point, curve_path, encode
from hpo.journal.files import JournalWriter, journal_path
from hpo.journal.records import Header, Launched, Left
from hpo.results import overview
from hpo.results.overview import Best, Island, Overview, Pace
from hpo.results.record import load
from hpo.results.running import Running, Tails
from hpo.views import text
from hpo.views.terminal import panel
from hpo.views.terminal.live import Below, LivePanel

COLOURS = re.compile(r"\x1b\[[0-9;]*m")
OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
HOSTILE = "\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202egpj\n"


IDENTITY = {"task": "t", "objectives": {"value": "minimize"}, "space": {}}
FAILED = "12 failed, 0-1-3 the latest: ValueError: it diverged"


def campaign(workers: int = 6, **changes: object) -> Overview:
    """As it might stand."""
    now = 10_000.0
    hostile = {f"na{HOSTILE}me": HOSTILE}
    counts = {**dict.fromkeys(STATUSES, 0), "completed": 380, "pruned": 20, "failed": 12}
    best = Best(value=0.97312, params={"lr": 0.0123, **hostile, "width": 64}, id="0-2-17")
    islands = {0: Island(completed=200, best=0.97312)}
    one = Overview(
        evaluations=counts, running=workers - 2, budget=1000, deadline_s=7200.0, best=best, islands=2,
        workers=workers, started=now - 3600, updated=now, seconds=3600.0, taken=now,
        left=[("0-3", f"a rank died{HOSTILE}")], alive=True, stopping=None, paused=False, storage=None, ended=None,
        known=0, codes={}, errors=[FAILED], torn=[],
        pace=Pace(recent=256, since=now - 600, ends_at=now + 3600, islands=islands),
        individuals=[
            Running(
                id=f"0-{n}-9", worker=f"0-{n}", host=f"n{n}{HOSTILE}", started=now - 60 * n,
                params={"lr": 0.5, **hostile}, step=n, value=float("nan"), reported=now - 3,
            )
            for n in range(workers - 2)
        ],
    )  # fmt: skip
    return msgspec.structs.replace(one, **changes)


def drawn(stands: Overview | None, columns: int, rows: int, name: str = f"runs/{HOSTILE}") -> list[str]:
    """What is sent to a terminal for the panel, by lines."""
    console = Console(width=columns, height=rows, force_terminal=True, highlight=False)
    shown = panel.panel(Path(name), stands, 10_000.0, columns=columns, rows=rows, own=True)
    with console.capture() as captured:
        console.print(Below(shown), soft_wrap=True)
    *lines, last = captured.get().split("\n")
    assert lines[0].startswith("\x1b[?7l") and last == f"\x1b[?7h\r\x1b[{len(lines)}A"
    return [lines[0].removeprefix("\x1b[?7l"), *lines[1:]]


@pytest.mark.parametrize("columns", [20, 79, 199])
@pytest.mark.parametrize("rows", [3, 22, 60])
def test_it_fits_any_terminal_and_obeys_nothing(columns: int, rows: int) -> None:
    for stands in (
        None,
        campaign(),
        campaign(1000),
        campaign(budget=None, deadline_s=None, best=None, pace=None),
        campaign(alive=False, ended=("done", 0), individuals=[]),
        campaign(stopping="stopped", storage=("disk: full", 9_990.0)),
    ):
        lines = [COLOURS.sub("", line) for line in drawn(stands, columns, rows)]
        assert 0 < len(lines) <= rows
        assert not any(OBEYED.search(line) or len(line) > columns for line in lines), lines


def test_it_says_what_matters() -> None:
    shown = COLOURS.sub("", "\n".join(drawn(campaign(), 140, 40)))
    for words in (
        "running ──",
        "412 of 1000",
        "1 h 00 min of 2 h 00 min",
        "22 min left",  # 588 more at 1536 an hour, before the deadline
        "0.9731 by 0-2-17   lr=0.0123",
        "4 busy, 1 idle, 1 left (0-3: a rank died",
        "0: 0.9731 of 200   1: none yet",
        "1536 an hour",
        "380 completed, 20 pruned, 12 failed",
        FAILED,
        "step 2: nan, 3 s ago",
    ):
        assert words in shown, (words, shown)
    pace = Pace(recent=0, since=0.0, grace_until=10_030.0)
    shown = "\n".join(drawn(campaign(stopping="stopped", pace=pace), 100, 40))
    assert "may save or finish for 30 s more; a second Ctrl-C" in shown
    many = drawn(campaign(1000), 100, 30)
    assert len(many) == 30 and "and 9" in many[-1]


def test_without_colours_where_none_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert COLOURS.search("".join(drawn(campaign(), 80, 20)))
    monkeypatch.setenv("NO_COLOR", "1")
    assert re.search(r"\x1b\[[0-9;]*3[0-9]", "".join(drawn(campaign(), 80, 20))) is None


@pytest.mark.parametrize("kind", ["", "dumb", "unknown", None, "xterm"])
def test_nothing_is_drawn_where_the_cursor_cannot_be_moved(monkeypatch, kind):
    monkeypatch.delenv("TERM", raising=False)
    if kind is not None:
        monkeypatch.setenv("TERM", kind)
    master, handle = os.openpty()
    with os.fdopen(handle, "w") as stream:
        assert (process.terminal_columns(stream) is None) == (kind != "xterm")
    os.close(master)


ROWS = 40


class Terminal(Screen):
    """A terminal that can be resized."""

    def __init__(self, columns: int) -> None:
        master, self.handle = os.openpty()
        super().__init__(master, columns, ROWS)
        self.resize(columns)

    def resize(self, columns: int) -> None:
        set_size(self.handle, columns, ROWS)
        self.screen.resize(ROWS, columns)

    def close(self) -> None:
        os.close(self.master)
        os.close(self.handle)


WORDS = st.text("abcé─", min_size=1, max_size=12)


@given(
    st.lists(
        st.tuples(
            st.lists(WORDS, max_size=3),
            st.lists(WORDS, max_size=6),
            st.sampled_from([None, None, 20, 31, 60]),
        ),
        max_size=6,
    )
)
def test_what_scrolls_by_stays_and_what_is_drawn_is_replaced(steps: list) -> None:
    with closing(Terminal(40)) as terminal:
        live = LivePanel(terminal.handle)
        live.start()
        stays: list[str] = []
        for above, lines, columns in steps:
            if columns is not None:
                terminal.resize(columns)
            content = Group(*map(Text, lines)) if lines else None
            live.draw(content, Text("\n").join(map(Text, above)) if above else None)
            stays += above
            assert terminal.rows == stays + lines and not terminal.screen.cursor.hidden
        live.draw(None, Text("the end"))
        live.stop()
        assert terminal.rows == [*stays, "the end"] and not terminal.screen.cursor.hidden


def test_a_panel_that_a_narrower_terminal_has_wrapped_is_erased_whole() -> None:
    terminal = Terminal(60)
    live = LivePanel(terminal.handle)
    live.start()
    live.draw(Group(*(Text(f"{number}" * 55) for number in range(3))), Text("stays"))
    assert terminal.rows == ["stays", "0" * 55, "1" * 55, "2" * 55]
    # A terminal that wraps anew, which the simulated one does not.
    terminal.resize(30)
    live.console.file.write(
        "".join(f"{str(number) * 30}\r\n{str(number) * 25}\r\n" for number in range(3)) + "\x1b[6A"
    )
    live.draw(Group(Text("narrow")))
    assert terminal.rows == ["stays", "narrow"]
    live.stop()
    terminal.close()


TOLD = (
    "plain\n\x1b[31mred\x1b[0m\nbar 1%\rbar 50%\rbar 99%\r\ncleared\x1b[2J\x1b[Hhome\x1b]0;title\x07 \x9b2J\n"
    "\u20ac\u202e\ttab\nlast without end \x1b[1A"
).encode()
SEEN = ["plain", "red", "bar 99%", "clearedhome \\x9b2J", "\u20ac\\u202e\ttab", "last without end "]


@given(st.lists(st.integers(0, len(TOLD)), max_size=6))
def test_what_arrives_in_pieces_is_one_text_without_orders(cuts: list[int]) -> None:
    printed = Printed()
    places = [0, *sorted(cuts), len(TOLD)]
    for begin, end in pairwise(places):
        printed.add(TOLD[begin:end])
    assert str(printed.tail) == SEEN[-1]
    printed.add(b"", final=True)
    text = printed.take()
    assert text is not None and text.plain.split("\n") == SEEN
    assert [(text.plain[span.start : span.end], str(span.style)) for span in text.spans] == [
        ("red", "color(1)")
    ]
    assert printed.tail is None and printed.take() is None


def test_a_line_that_never_ends_fills_no_memory() -> None:
    printed = Printed()
    for number in range(2000):
        printed.add(f"\r{number} of 2000 {'#' * 60}".encode())
    assert str(printed.tail).startswith("1999 of 2000") and printed.take() is None
    printed.add(b"y" * 100_000)
    assert printed.tail is None and len(printed.take() or "") > 90_000


def started(identity: str, **more: object) -> dict[str, object]:
    sequence = int(identity.rpartition("-")[2])
    return {"id": identity, "params": {"x": sequence}, "operator": "random", **more}


def worker_journal(home: Path, worker: int, launch: int = 1) -> JournalWriter:
    path = journal_path(home, launch=launch, island=0, worker=worker)
    return JournalWriter(path, Header.of_this_process(launch=launch, island=0, worker=worker))


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(["begin", "end", "crash", "filler", "look"])),
        max_size=40,
    )
)
def test_the_ends_of_the_journals_say_what_the_journals_say(tmp_path_factory, steps: list) -> None:
    home = tmp_path_factory.mktemp("home")
    directory.write_identity(home, IDENTITY)
    sign = living.at_work(home, workers=3)
    writers = [worker_journal(home, worker) for worker in range(3)]
    writers[0].append(Launched(evaluations=9, deadline_s=None, islands=1, workers=3, time=1.0))
    at_work: dict[int, dict[str, object]] = {}
    tails, clock, number = Tails(home), 10.0, 0
    with sign:
        for worker, what in [*steps, (0, "look")]:
            clock += 1
            if what == "begin" and worker not in at_work:
                number += 1
                at_work[worker] = started(f"0-{worker}-{number}")
                writers[worker].append(make_started(**at_work[worker], time=clock))
            elif what in ("end", "crash") and worker in at_work:
                record = at_work.pop(worker)
                status = "completed" if what == "end" else "crashed"
                objectives = {"value": 1.0} if what == "end" else None
                writers[worker].append(
                    make_finished(
                        **record, started=clock - 1, finished=clock, status=status, objectives=objectives,
                        metrics={"much": "x" * 9000}, error=None,
                    )
                )  # fmt: skip
            elif what == "filler":
                for _ in range(300):
                    writers[worker].append(Left(island=0, worker=9, reason="x" * 50, time=clock))
            for writer in writers:
                writer.commit()
            if what == "look":
                found = tails.poll()
                assert found == Tails(home).poll()
                expected = {one.id for one in load(home).individuals if one.status == RUNNING}
                assert {one.id for one in found} == expected
                assert {one.worker for one in found} == {f"0-{one}" for one in at_work}


def test_of_what_other_workers_took_over_the_last_counts_and_reports_are_its_own(tmp_path: Path) -> None:
    home = tmp_path / "run"
    directory.write_identity(home, IDENTITY)
    with living.at_work(home, workers=2):
        pass
    sign = living.at_work(home, workers=2)
    for worker, retries in (2, 1), (3, 0):
        with worker_journal(home, worker, launch=2) as writer:
            writer.append(make_started(**started("0-1-4", retries=retries), time=100.0 + retries))
    with worker_journal(home, 1, launch=1) as writer:
        writer.append(make_started(**started("0-1-0"), time=50.0))
    curve = curve_path(home, launch=2, island=0, worker=2)
    curve.parent.mkdir()
    points = [("0-1-4", 9, 90.0), ("0-1-4", 1, 102.0), ("0-1-4", 2, 103.0), ("0-1-3", 7, 104.0)]
    curve.write_bytes(b"".join(encode(Point(id=i, step=s, value=0.5, time=t, began=t)) for i, s, t in points))
    with sign:
        (found,) = Tails(home).poll()
        assert (found.id, found.worker, found.step, found.reported) == ("0-1-4", "0-2", 2, 103.0)
        assert found.host and found.params == {"x": 4}
        with open(curve, "ab") as file:
            file.write(b'{"type":"point","id":"0-1-4","st')
        assert Tails(home).poll() == [found]
        assert Tails(home).poll({"0-2"})[0].worker == "0-3"
        # As ``hpo status`` shows them.
        table = overview.of(home).table()
        assert [one["id"] for one in table["running_individuals"]] == ["0-1-4"]
        assert "0-1-4  worker 0-2" in text.status(home, overview.of(home))
    assert overview.of(home).individuals == []


def test_watching_a_campaign_that_is_not_at_work_says_how_it_stands(tmp_path, capsys):
    directory.write_identity(tmp_path / "run", IDENTITY)
    assert cli.main(["status", str(tmp_path / "run"), "--watch"]) == 0
    assert "cut off" in capsys.readouterr().out
    assert cli.main(["status", str(tmp_path), "--watch"]) == 1
    with pytest.raises(SystemExit) as caught:
        cli.main(["status", str(tmp_path / "run"), "--watch", "--json"])
    assert caught.value.code == 2


def test_a_watched_campaign_has_a_line_where_nothing_can_be_drawn(tmp_path, capsys, monkeypatch):
    home = tmp_path / "run"
    directory.write_identity(home, IDENTITY)
    slept = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            raise KeyboardInterrupt

    with living.at_work(home), worker_journal(home, 0) as writer:
        writer.append(Launched(evaluations=9, deadline_s=None, islands=1, workers=3, time=time.time()))
        writer.commit()
        monkeypatch.setattr("hpo.views.terminal.live.time.sleep", sleep)
        assert cli.main(["status", str(home), "--watch"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("running: 0 of 8  best none yet") and lines[1].startswith("directory")
    assert "\x1b" not in "".join(lines) and not sys.stdout.isatty()
