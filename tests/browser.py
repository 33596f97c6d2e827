"""Pages in a real browser, for nightly tests; needs Debian's chromium (apt-get install chromium)."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is missing: bash jobs/setup.sh dev browser"
)

_BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

NEEDED = [
    pytest.mark.skipif(_BROWSER is None, reason="chromium is missing: apt-get install chromium"),
    pytest.mark.timeout(600),
]
_MARKS = """() => Object.fromEntries([...document.querySelectorAll("figure[data-plot]")].map(
    (one) => [one.dataset.plot, one.querySelectorAll("path, rect, circle, line").length]))"""


class Seen:
    """Messages, requests and windows of a page. ``own``: the beginning of its own addresses."""

    def __init__(self, page: Any, own: str) -> None:
        self.console, self.foreign, self.dialogs = list[str](), list[str](), list[str]()
        self._own = (own, "data:", "blob:")
        page.on("console", lambda message: self.console.append(message.text))
        page.on("pageerror", lambda error: self.console.append(str(error)))
        page.on("dialog", self._dialog)
        page.on("request", self._request)

    def _dialog(self, dialog: Any) -> None:
        self.dialogs.append(dialog.message)
        dialog.dismiss()

    def _request(self, request: Any) -> None:
        if not request.url.startswith(self._own):
            self.foreign.append(request.url)


@contextmanager
def opened(address: str, *, width: int = 1400, silent: bool = True) -> Iterator[tuple[Any, Seen]]:
    """The page at ``address``; ``silent``: nothing may be said on its console, fetched from elsewhere or opened."""
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=_BROWSER, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": 900})
        seen = Seen(page, address.partition("?")[0])
        page.goto(address, timeout=120_000)
        yield page, seen
        browser.close()
    assert not silent or (seen.console, seen.foreign, seen.dialogs) == ([], [], [])


def check_figures(page: Any, names: Collection[str]) -> None:
    """Figures of these names are there, and each figure holds marks."""
    page.wait_for_function(
        f"(names) => {{ const found = ({_MARKS})(); return names.every((one) => found[one] > 10); }}",
        arg=sorted(names),
        timeout=180_000,
    )
    assert all(count > 10 for count in page.evaluate(_MARKS).values())
    assert "could not be drawn" not in page.inner_text("body")
