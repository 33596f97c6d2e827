"""Report as one HTML file that needs no network, with its data, plotly and the page's scripts."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from hpo.views.figures.registry import FIGURES
from hpo.views.report.content import Content, Drawn, encoded

_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="hpo">
"""
_ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Cpath d='M1 13h4V8h4V4h6' "
    "fill='none' stroke='%230072b2' stroke-width='2'/%3E%3C/svg%3E"
)


@cache
def asset(name: str) -> str:
    """Text of a file of ``assets``."""
    return files("hpo.views.report").joinpath("assets").joinpath(name).read_text(encoding="utf-8")


@cache
def drawers() -> str:
    """Scripts of figures that plotly does not draw."""
    folder = files("hpo.views.report").joinpath("assets")
    names = [f"{one.name}.js" for one in FIGURES]
    return "\n".join(asset(name) for name in names if folder.joinpath(name).is_file())


@cache
def plotly() -> str:
    """Script of plotly, which contains no end of a script element."""
    from plotly.offline import get_plotlyjs

    script: str = get_plotlyjs()
    return script


def report(content: Content) -> bytes:
    """Content of the file. Its policy allows no other scripts, no network and no ``eval``."""
    scripts = [plotly(), asset("page.js"), drawers(), "hpo.start();"]
    allowed = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    policy = f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; font-src data:"
    parts = [
        head(),
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n',
        f"<title>{html.escape(content.title)}</title>\n",
        f"<style>\n{asset('page.css')}</style>\n</head>\n",
        body(content.figures),
        '<script type="application/json" id="hpo-data">',
        encoded(content).decode(),
        "</script>\n",
        *(f"<script>{script}</script>\n" for script in scripts),
        "</body>\n</html>\n",
    ]
    return "".join(parts).encode()


def head() -> str:
    """Beginning of a page's head, with its icon."""
    return _HEAD + f'<link rel="icon" href="{_ICON}">\n'


def body(figures: Sequence[Drawn] = ()) -> str:
    """Beginning of a page's body, which scripts fill."""
    return "".join(
        [
            '<body>\n<main id="hpo-page">\n<noscript><p>This page is drawn by the script inside it: allow it to run, '
            "or read <code>hpo status</code> and <code>hpo best</code>.</p></noscript>\n",
            '<div class="figures" id="hpo-figures">\n',
            *map(_frame, figures),
            "</div>\n</main>\n",
        ]
    )


def _frame(figure: Drawn) -> str:
    identity = figure.name if figure.campaign is None else f"{figure.name}-{figure.campaign}"
    title = html.escape(html.unescape(figure.title))
    return (
        f'<figure data-plot="{figure.name}" id="figure-{identity}"><h3>{title}</h3>'
        f'<figcaption>{html.escape(figure.caption)}</figcaption><div class="plot"></div></figure>\n'
    )


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
