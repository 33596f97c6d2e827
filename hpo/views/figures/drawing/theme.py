"""How all figures look: colours, fonts, and texts that are safe inside them.

The colours are those of Okabe and Ito, which the colour-blind can distinguish (jfly.uni-koeln.de/color). Figures are
made in the light colours; the page swaps each for its counterpart of ``DARK`` where a dark display is asked for, so
figures use no colours but those named here."""

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
INK = "#1d2129"
"""Text, and lines that matter most."""
MUTED = "#667080"
"""Secondary text: ticks, notes."""
GREY = "#a3abb8"
"""Marks in the background: what was pruned, what is not best."""
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
    INK: "#e8ebf0",
    MUTED: "#98a2b3",
    GREY: "#5f6979",
    GRID: "#2a303a",
    PAPER: "#14171c",
}
"""What each colour is on a dark page."""

SERIES = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION, YELLOW)
"""Of things that are alike, in their order: operators, islands, campaigns."""

STATUS = {
    COMPLETED: BLUE,
    PRUNED: GREY,
    FAILED: VERMILION,
    INVALID: PURPLE,
    TIMEOUT: ORANGE,
    CRASHED: "#8c3a00",
    LOST: INK,
    INTERRUPTED: SKY,
    RUNNING: GREEN,
}
DARK["#8c3a00"] = "#c4622d"

FONT = "ui-sans-serif, system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'Noto Sans', Arial, sans-serif"

HEIGHT = 360
"""Pixels, where a figure does not need its own."""

_FEWEST_UNITS = 2
"""Hours, or minutes, that a campaign has to last for its axis to be in them."""

MOST_POINTS = 4000
"""The most marks in a figure: with more than 10 000 browsers slow down, and no more is seen."""


def layout(title: str, **changes: Any) -> dict[str, Any]:
    """The layout of a figure: a title in words, room for axes, a legend above the plot. ``changes``: more of it, such
    as ``xaxis``; what a dictionary lacks is as here."""
    axis = {
        "gridcolor": GRID,
        "linecolor": GREY,
        "tickcolor": GREY,
        "zeroline": False,
        "ticks": "outside",
        "ticklen": 4,
        "automargin": True,
        "tickfont": {"color": MUTED, "size": 12},
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
        # What the first axis was given is none of the second's.
        default = base[name[:5]] if name[:5] in ("xaxis", "yaxis") else base.get(name)
        if isinstance(default, dict) and isinstance(value, dict):
            if isinstance(value.get("title"), str):
                value = {**value, "title": {**default.get("title", {}), "text": value["title"]}}
            value = {**default, **value}
        found[name] = value
    return found


def note(text: str, top: float = 1.0) -> dict[str, Any]:
    """An annotation at the right end of the plot, above the height ``top`` (1: that of the whole)."""
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
    """A dotted line over the height of the plot."""
    line = {"color": colour, "width": 1, "dash": "dot"}
    return {"type": "line", "x0": at, "x1": at, "xref": "x", "y0": 0, "y1": 1, "yref": "paper", "line": line}


def label(text: object, most: int = 48) -> str:
    """A name or value from outside as plotly shows it: on one line, cut where it is long, and none of it obeyed as
    markup."""
    shown = one_line(text)
    if len(shown) > most:
        shown = f"{shown[: most - 1]}…"
    # Plotly also replaces %{name} in templates.
    return html.escape(shown, quote=False).replace("%{", "%&#123;")


def number(value: object) -> str:
    """A value as a person reads it: four significant digits, thousands apart."""
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
    """A colour of this module, see-through."""
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha:g})"


def time_unit(longest_s: float) -> tuple[str, float]:
    """The unit of an axis that ends at ``longest_s`` seconds, and how many seconds it has."""
    for name, seconds in ("hours", 3600.0), ("minutes", 60.0):
        if longest_s >= _FEWEST_UNITS * seconds:
            return name, seconds
    return "seconds", 1.0


def duration(seconds: float) -> str:
    """Such as "2 h 5 min"."""
    if seconds < 1:
        return f"{seconds:.2g} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    if minutes < 90:
        return f"{minutes:.0f} min"
    hours, rest = divmod(round(minutes), 60)
    if hours < 48:
        return f"{hours} h {rest} min" if rest else f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if hours else f"{days} d"
