"""Draws one of plotly's traces into axes of matplotlib."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy

from hpo.results.figures.drawing import theme
from hpo.results.figures.files import values

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POINT = 0.72
"""Points a pixel of plotly."""
_MARKERS = {
    "circle": "o",
    "circle-open": "o",
    "square": "s",
    "diamond": "D",
    "star": "*",
    "x": "X",
    "x-thin-open": "x",
    "x-thin": "x",
    "cross": "P",
    "triangle-right": ">",
    "triangle-up": "^",
    "triangle-down": "v",
    "line-ns-open": "|",
    "line-ns": "|",
    "line-ew-open": "_",
}
DASHES = {"dash": (0, (5, 4)), "dot": (0, (1, 2.5)), "dashdot": (0, (5, 3, 1, 3))}
Plain = dict[str, Any]


def scatter(axes: Axes, x: Any, y: Any, trace: Plain) -> Any:
    """Lines, marks and texts; returns what stands for them in a legend."""
    mode = trace.get("mode") or "lines"
    opacity = float(trace.get("opacity") or 1.0)
    line: Plain = trace.get("line") or {}
    handle: Any = None
    colour = line.get("color") or theme.BLUE
    if trace.get("fill") in ("toself", "tonext", "tonexty"):
        fill = values.colour(trace.get("fillcolor") or colour)
        whole = numpy.isfinite(x) & numpy.isfinite(y)
        axes.fill(x[whole], y[whole], color=fill, linewidth=0)
    if "lines" in mode and line.get("width", 2):
        step = {"hv": "steps-post", "vh": "steps-pre", "hvh": "steps-mid"}.get(
            line.get("shape") or "", "default"
        )
        (handle,) = axes.plot(
            x,
            y,
            color=values.colour(colour),
            alpha=opacity if opacity < 1 else None,
            linewidth=float(line.get("width") or 2) * POINT,
            linestyle=DASHES.get(line.get("dash") or "", "-"),
            drawstyle=step,
        )
    if "markers" in mode:
        handle = _marks(axes, x, y, trace.get("marker") or {}, opacity)
    if "text" in mode:
        font: Plain = trace.get("textfont") or {}
        for place, (at, up, text) in enumerate(zip(x, y, values.plain(trace.get("text")), strict=True)):
            shown = values.one(font.get("color"), place) or theme.INK
            axes.annotate(
                values.text(text),
                (at, up),
                color=values.colour(shown),
                fontsize=11 * POINT,
                annotation_clip=True,
            )
    _errors(axes, x, y, trace)
    return handle


def _marks(axes: Axes, x: Any, y: Any, marker: Plain, opacity: float) -> Any:
    outline: Plain = marker.get("line") or {}
    symbols = marker.get("symbol") or "circle"
    own_opacity = marker.get("opacity")
    opacity *= float(own_opacity) if isinstance(own_opacity, (int, float)) else 1.0
    handle = None
    each = values.plain(symbols) if not isinstance(symbols, str) else [symbols] * len(x)
    for symbol in dict.fromkeys(each):
        own = numpy.array([one == symbol for one in each], dtype=bool)
        sizes = marker.get("size", 6)
        size = (
            numpy.array(values.plain(sizes), dtype=float)[own]
            if not isinstance(sizes, (int, float))
            else sizes
        )
        colours = [values.colour(one) for one in values.colours(marker, len(x))]
        hollow = str(symbol).endswith("-open") and not str(symbol).startswith(("line", "x-thin"))
        shape = _MARKERS.get(str(symbol), "o")
        own_colours = [one for one, mine in zip(colours, own, strict=True) if mine]
        edge = (
            own_colours
            if hollow or shape in "|_x"
            else values.colour(outline.get("color") or theme.PAPER)
            if outline.get("width")
            else "none"
        )
        handle = axes.scatter(
            x[own],
            y[own],
            s=(numpy.asarray(size) * POINT) ** 2,
            marker=shape,
            c="none" if hollow else own_colours,
            edgecolors=None if shape in "|_x" else edge,
            linewidths=float(outline.get("width") or 1) * POINT,
            alpha=opacity if opacity < 1 else None,
        )
    return handle


def _errors(axes: Axes, x: Any, y: Any, trace: Plain) -> None:
    for name, across in (("error_x", True), ("error_y", False)):
        rule: Plain = trace.get(name) or {}
        if rule.get("array") is None:
            continue
        less = rule.get("arrayminus", rule["array"])
        size = numpy.array([values.plain(one) for one in (less, rule["array"])], dtype=float)
        axes.errorbar(
            x,
            y,
            xerr=size if across else None,
            yerr=None if across else size,
            fmt="none",
            ecolor=values.colour(rule.get("color") or theme.INK),
            elinewidth=float(rule.get("thickness") or 1.5) * POINT,
            capsize=2,
        )


def bar(axes: Axes, x: Any, y: Any, trace: Plain) -> Any:
    """Bars, standing or lying; returns what stands for them in a legend."""
    lying = trace.get("orientation") == "h"
    marker: Plain = trace.get("marker") or {}
    base = trace.get("base")
    start: Any = 0.0 if base is None else numpy.array(values.plain(base), dtype=float)
    width = trace.get("width")
    thick: Any = (
        0.8
        if width is None
        else width
        if isinstance(width, (int, float))
        else numpy.array(values.plain(width))
    )
    colours = [values.colour(one) for one in values.colours(marker, len(x))]
    hatch = {"/": "////", "\\": "\\\\\\\\", "x": "xxxx"}.get(str((marker.get("pattern") or {}).get("shape")))
    outline: Plain = marker.get("line") or {}
    more: Any = {
        "color": colours,
        "edgecolor": theme.INK if hatch else values.colour(outline.get("color") or "rgba(0,0,0,0)"),
        "linewidth": 0.0 if hatch else float(outline.get("width") or 0) * POINT,
        "hatch": hatch,
    }
    handle: Any = (
        axes.barh(y, x, height=thick, left=start, **more)
        if lying
        else axes.bar(x, y, width=thick, bottom=start, **more)
    )
    _errors(axes, x, y, trace)
    return handle


def heatmap(axes: Axes, x: Any, y: Any, trace: Plain) -> None:
    """Cells, with a text in each."""
    from matplotlib.colors import LinearSegmentedColormap

    z = numpy.array(
        [[math.nan if one is None else one for one in values.plain(row)] for row in values.plain(trace["z"])],
        dtype=float,
    )
    scale = [
        (float(at), values.colour(colour))
        for at, colour in trace.get("colorscale") or [(0, "#ffffff"), (1, theme.BLUE)]
    ]
    colours = LinearSegmentedColormap.from_list("scale", scale)
    axes.pcolormesh(
        x, y, z, cmap=colours, vmin=trace.get("zmin"), vmax=trace.get("zmax"), edgecolors=theme.PAPER
    )
    texts = trace.get("text")
    for row, line in enumerate(values.plain(texts) if texts is not None else ()):
        for column, text in enumerate(values.plain(line)):
            axes.text(
                x[column],
                y[row],
                values.text(text),
                ha="center",
                va="center",
                fontsize=12 * POINT,
                color=theme.INK,
            )
