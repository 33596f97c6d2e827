"""Live page and report in a real browser, of a real campaign with two objectives, pruning, failures and two launches:
the live page grows without being loaded again, every figure holds marks, nothing is said on the console, nothing comes
from elsewhere, and no text of a task does anything."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

from browser import NEEDED, check_figures, opened
from individuals import make_finished
from living import joined
from terminal import Command, Terminal, wait_until

from hpo.individual import COMPLETED, FAILED, PRUNED
from hpo.journal.files import JournalWriter, journal_path
from hpo.journal.records import Header

pytestmark = NEEDED

TASK = """
import os, time, hpo

GO_ON = os.path.join(os.path.dirname(os.path.abspath(__file__)), "go-on")

def evaluate(trial):
    while int(trial.id.split("-")[2]) > 60 and not os.path.exists(GO_ON):
        if trial.should_checkpoint():
            raise hpo.Interrupted
        time.sleep(0.02)
    x = trial.params["<script>alert(1)</script>"]
    for step in range(1, 7):
        time.sleep(0.02)
        trial.report(step, x ** 2 + 1 / step, **{"<b>loss</b>": 1 / step})
    if trial.params["kind"] == "</script><script>alert(2)</script>" and x < 0:
        raise ValueError("<img src=x onerror=alert(3)>")
    return {"<i>error</i>": x ** 2, "size": 10 - abs(x)}

space = hpo.SearchSpace(**{
    "<script>alert(1)</script>": hpo.Float(-5.0, 5.0),
    "kind": hpo.Categorical("plain", "</script><script>alert(2)</script>"),
    "depth": hpo.Int(1, 8),
})
task = hpo.Task(space, evaluate, objectives={"<i>error</i>": "minimize", "size": "maximize"})
"""
CAMPAIGN = """
[search]
kind = "evolution"
pruner = "halving"
min_steps = 2
reported = "<i>error</i>"

[layout]
islands = 2
"""
_FIGURES = {
    *("history", "hours", "curves", "timeline", "importance", "parallel", "slices", "islands", "family"),
    *("budget", "front", "hypervolume"),
}
_ENDED = """() => [...document.querySelectorAll(".fact")].map((one) => one.textContent).join(" ")"""


def _watch(terminal: Terminal) -> tuple[Command, str]:
    command = terminal.start("watch", "run", "--port", 0)
    assert command.process.stdout is not None
    return command, command.process.stdout.readline().strip()


def _check_figures(page: Any) -> None:
    """All that two objectives, islands and a pruner have are there and hold marks; no text of a task is markup."""
    check_figures(page, _FIGURES)
    shown = page.inner_text("body")
    assert "<img src=x onerror=alert(3)>" in shown
    assert "<script>alert(1)</script>" in shown
    assert page.locator("img, b b, figure i, iframe").count() == 0


def _add_record(directory: Path, parent: str) -> None:
    """The end of an evaluation, the best, in a launch that has just joined."""
    now = time.time()
    added = make_finished(
        id="0-0-9999", island=0, worker=0, sequence=9999, operator="evolution", parents=(parent,), retries=0,
        params={"<script>alert(1)</script>": 0.0, "kind": "plain", "depth": 1},
        started=now - 1, finished=now, status=COMPLETED,
        objectives={"<i>error</i>": 0.0, "size": 10.0}, metrics={}, error=None,
    )  # fmt: skip
    launch = joined(directory)
    place = {"launch": launch.number, "island": 0, "worker": launch.first_worker}
    with JournalWriter(journal_path(directory, **place), Header.of_this_process(**place)) as writer:
        writer.append(added)


def test_the_pages_of_a_campaign(terminal: Terminal) -> None:
    home = terminal.directory / "run"
    terminal.write("task.py", TASK)
    terminal.campaign(CAMPAIGN, evaluations=300, kind=None)
    first = terminal.start("run", "c.toml", "--ranks", 2)
    wait_until(
        lambda: (home / "campaign.json").exists() or first.process.poll() is not None,
        "the campaign's beginning",
        seconds=60,
    )
    command, url = _watch(terminal)
    with opened(url, silent=False) as (page, seen):
        assert page.url == url.partition("?")[0]
        page.evaluate("window.loadedOnce = true")
        page.wait_for_selector("figure[data-plot=history] path", state="attached", timeout=120_000)
        wait_until(lambda: len(terminal.records("finished")) > 100, "a third of the campaign", seconds=120)
        first.signal(signal.SIGTERM)
        assert first.wait(120).returncode == 75
        terminal.write("go-on", "")
        assert terminal.hpo("run", "c.toml", "--ranks", 2, seconds=300).returncode == 0
        page.wait_for_function(f"() => ({_ENDED})().includes('300')", timeout=120_000)
        _check_figures(page)
        assert page.locator("script:not([src])").count() == 0
        bred = [one for one in terminal.records("finished") if one["status"] == COMPLETED and one["parents"]]
        _add_record(home, parent=bred[-1]["id"])
        page.wait_for_function(f"() => ({_ENDED})().includes('301')", timeout=60_000)
        page.wait_for_function("() => document.body.innerText.includes('0-0-9999')", timeout=60_000)
        assert page.evaluate("window.loadedOnce")
        command.process.send_signal(signal.SIGTERM)
        assert command.wait(60).returncode == 0
        page.wait_for_function(
            "() => document.getElementById('hpo-live').dataset.state === 'problem'", timeout=60_000
        )
    lost = ("net::ERR_CONNECTION_REFUSED", "net::ERR_INCOMPLETE_CHUNKED_ENCODING", "net::ERR_EMPTY_RESPONSE")
    said = [one for one in seen.console if not any(word in one for word in lost)]
    assert (said, seen.foreign, seen.dialogs) == ([], [], [])
    statuses = {record["status"] for record in terminal.records("finished")}
    assert {COMPLETED, PRUNED, FAILED} <= statuses
    _check_report(terminal, home / "report.html")


def _check_report(terminal: Terminal, path: Path) -> None:
    done = terminal.hpo("report", "run", seconds=120)
    assert done.returncode == 0, done.stderr
    with opened(path.as_uri()) as (page, _):
        _check_figures(page)
