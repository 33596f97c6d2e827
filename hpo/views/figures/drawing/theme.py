"""Look of all figures: colours, fonts, and texts that are safe inside them.

The colours are those of Okabe and Ito, which the colour-blind can distinguish (jfly.uni-koeln.de/color). Figures use no
other colours than those named here, as a dark page replaces each by its counterpart in ``DARK``."""

from __future__ import annotations

import html
from typing import Any

from hpo.individual import (
    COMPLETED,
    CRASHED,
    FAILED,
    INTERRUPTED,
    INVALID,
    LOST,
    PRUNED,
    RUNNING,
    TIMEOUT,
)
from hpo.terminal import one_line

BLUE = "#0072b2"
ORANGE = "#e69f00"
GREEN = "#009e73"
VERMILION = "#d55e00"
SKY = "#56b4e9"
PURPLE = "#cc79a7"
YELLOW = "#d8c520"
BROWN = "#8c3a00"
INK = "#1d2129"  # text, and lines that matter most
MUTED = "#667080"  # ticks and notes
GREY = "#a3abb8"  # marks in the background, such as pruned evaluations
GRID = "#e8ebf0"
PAPER = "#ffffff"

DARK = {
    BLUE: "#4aa8e0",
    ORANGE: "#f0b63c",
    GREEN: "#2fbf97",
    VERMILION: "#f0803c",
    SKY: "#8fcdf2",
    PURPLE: "#dd9bc0",
    YELLOW: "#e8dc6a",
    BROWN: "#c4622d",
    INK: "#e8ebf0",
    MUTED: "#98a2b3",
    GREY: "#5f6979",
    GRID: "#2a303a",
    PAPER: "#14171c",
}
"""Colours on a dark page."""

SERIES = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION, YELLOW)
"""Colours of things that are alike, such as operators, islands and campaigns."""

STATUS = {
    COMPLETED: BLUE,
    PRUNED: GREY,
    FAILED: VERMILION,
    INVALID: PURPLE,
    TIMEOUT: ORANGE,
    CRASHED: BROWN,
    LOST: INK,
    INTERRUPTED: SKY,
    RUNNING: GREEN,
}
FONT = "ui-sans-serif, system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'Noto Sans', Arial, sans-serif"

SMALL = {"color": MUTED, "size": 12}
STAR = {"color": ORANGE, "symbol": "star", "size": 14, "line": {"color": PAPER, "width": 1}}
CROSS = {"color": MUTED, "symbol": "x-thin", "size": 6, "line": {"color": MUTED, "width": 1}}
BROKEN = "%{customdata}, breaks a limit<br>%{y}<extra></extra>"
"""Box beside the pointer of an individual that breaks a limit."""
HEIGHT = 360  # pixels of a figure without its own height
MOST_POINTS = 4000  # with more than 10 000 marks browsers slow down, and no more can be seen


def layout(title: str, **changes: Any) -> dict[str, Any]:
    """Layout of a figure with a title and a legend above the plot. ``changes``: further keys, such as ``xaxis``, whose
    dictionaries are merged with the defaults."""
    axis = {
        "gridcolor": GRID,
        "linecolor": GREY,
        "tickcolor": GREY,
        "zeroline": False,
        "ticks": "outside",
        "ticklen": 4,
        "automargin": True,
        "tickfont": SMALL,
        "title": {"font": {"color": MUTED, "size": 13}, "standoff": 8},
    }
    base: dict[str, Any] = {
        "template": "none",
        "title": {"text": title, "x": 0, "xref": "container", "pad": {"l": 8}, "font": {"size": 16}},
        "font": {"family": FONT, "size": 13, "color": INK},
        "paper_bgcolor": PAPER,
        "plot_bgcolor": PAPER,
        "colorway": list(SERIES),
        "height": HEIGHT,
        "margin": {"l": 56, "r": 16, "t": 72, "b": 48},
        "hovermode": "closest",
        "hoverlabel": {
            "bgcolor": PAPER,
            "bordercolor": GREY,
            "font": {"family": FONT, "size": 12, "color": INK},
            "align": "left",
        },
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": GREY, "activecolor": INK},
        "legend": {
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "y": 1.01,
            "yanchor": "bottom",
            "font": {"size": 12, "color": INK},
            "itemsizing": "constant",
        },
        "xaxis": {**axis, "showgrid": False},
        "yaxis": {**axis, "showgrid": True, "showline": False, "ticks": ""},
    }
    found = dict(base)
    for name, value in changes.items():
        # Each further axis begins with the defaults of the first, too.
        default = base[name[:5]] if name[:5] in ("xaxis", "yaxis") else base.get(name)
        if isinstance(default, dict) and isinstance(value, dict):
            if isinstance(value.get("title"), str):
                value = {**value, "title": {**default.get("title", {}), "text": value["title"]}}
            value = {**default, **value}
        found[name] = value
    return found


def note(text: str, top: float = 1.0) -> dict[str, Any]:
    """Annotation at the right end of the plot, above the height ``top`` (1: that of the whole)."""
    return {
        "text": text,
        "xref": "paper",
        "yref": "paper",
        "x": 1,
        "y": top,
        "xanchor": "right",
        "yanchor": "bottom",
        "showarrow": False,
        "font": {"size": 11, "color": MUTED},
    }


def vertical(at: float, colour: str = GREY) -> dict[str, Any]:
    """Dotted line over the height of the plot."""
    line = {"color": colour, "width": 1, "dash": "dot"}
    return {"type": "line", "x0": at, "x1": at, "xref": "x", "y0": 0, "y1": 1, "yref": "paper", "line": line}


def label(text: object, most: int = 48) -> str:
    """A name or value of a user as plotly's text: on one line, cut to ``most`` characters, and without markup."""
    shown = one_line(text)
    if len(shown) > most:
        shown = f"{shown[: most - 1]}…"
    # Plotly also replaces %{name} in templates.
    return html.escape(shown, quote=False).replace("%{", "%&#123;")


def number(value: object) -> str:
    """A value with four significant digits and spaces between thousands."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return one_line(value)
    if isinstance(value, int):
        return f"{value:,}".replace(",", "\u202f") if abs(value) >= 10_000 else str(value)
    if value != value or value in (float("inf"), float("-inf")):
        return str(value)
    size = abs(value)
    if size and (size < 1e-3 or size >= 1e6):
        mantissa, _, exponent = f"{value:.3e}".partition("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return f"{value:.4g}" if size < 1e4 else f"{value:,.0f}".replace(",", "\u202f")


def faint(colour: str, alpha: float) -> str:
    """A transparent colour."""
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha:g})"


def time_unit(longest_s: float) -> tuple[str, float]:
    """Unit of an axis that ends at ``longest_s`` seconds, and its length in seconds."""
    for name, seconds in ("hours", 3600.0), ("minutes", 60.0):
        if longest_s >= 2 * seconds:
            return name, seconds
    return "seconds", 1.0
