"""The live page in a real browser beside a real campaign: it grows without being loaded again, nothing is said on its
console, nothing comes from elsewhere, and no text of a task does anything.

Needs Debian's chromium (apt-get install chromium)."""

from __future__ import annotations

import shutil
import signal

import pytest
from terminal import Command, Terminal, wait_until

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is missing: bash jobs/setup.sh dev browser"
)

_BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = [
    pytest.mark.skipif(_BROWSER is None, reason="chromium is missing: apt-get install chromium"),
    pytest.mark.timeout(400),
]

TASK = """
import time, hpo

def evaluate(trial):
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
_FIGURES = {"history", "hours", "curves", "timeline", "importance", "parallel", "slices", "islands", "front"}
_MARKS = """() => Object.fromEntries([...document.querySelectorAll("figure[data-plot]")].map(
    (one) => [one.dataset.plot, one.querySelectorAll("path, rect, circle, line").length]))"""
_ENDED = """() => [...document.querySelectorAll(".fact")].map((one) => one.textContent).join(" ")"""


def _watch(terminal: Terminal) -> tuple[Command, str]:
    command = terminal.start("watch", "run", "--port", 0)
    assert command.process.stdout is not None
    return command, command.process.stdout.readline().strip()


def test_the_page_follows_a_campaign(terminal: Terminal) -> None:
    terminal.write("task.py", TASK)
    terminal.campaign("[layout]\nislands = 2", evaluations=300)
    running = terminal.start("run", "c.toml", "--ranks", 2)
    begun = terminal.directory / "run" / "campaign.json"
    wait_until(
        lambda: begun.exists() or running.process.poll() is not None, "the campaign's beginning", seconds=60
    )
    command, url = _watch(terminal)
    own = url.partition("?")[0]
    said, foreign, dialogs = list[str](), list[str](), list[str]()
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=_BROWSER, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
        page.on(
            "request",
            lambda request: (
                None if request.url.startswith((own, "data:", "blob:")) else foreign.append(request.url)
            ),
        )
        page.goto(url)
        assert page.url == own
        page.evaluate("window.loadedOnce = true")
        page.wait_for_selector("figure[data-plot=history] path", state="attached", timeout=120_000)
        first = page.evaluate(_ENDED)
        page.wait_for_function(f"(before) => ({_ENDED})() !== before", arg=first, timeout=60_000)
        assert running.wait(300).returncode == 0
        page.wait_for_function(f"() => ({_ENDED})().includes('300')", timeout=120_000)
        page.wait_for_function(
            f"(names) => {{ const found = ({_MARKS})(); return names.every((one) => found[one] > 10); }}",
            arg=sorted(_FIGURES),
            timeout=120_000,
        )
        assert page.evaluate("window.loadedOnce")
        assert "could not be drawn" not in page.inner_text("body")
        assert "<img src=x onerror=alert(3)>" in page.inner_text("body")
        assert page.locator("script:not([src]), img, b b, figure i").count() == 0
        command.process.send_signal(signal.SIGTERM)
        assert command.wait(30).returncode == 0
        page.wait_for_function(
            "() => document.getElementById('hpo-live').dataset.state === 'problem'", timeout=30_000
        )
        browser.close()
    lost = ("net::ERR_CONNECTION_REFUSED", "net::ERR_INCOMPLETE_CHUNKED_ENCODING", "net::ERR_EMPTY_RESPONSE")
    assert ([one for one in said if not any(word in one for word in lost)], foreign, dialogs) == ([], [], [])
