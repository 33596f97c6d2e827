"""Renders with matplotlib what our figures use of plotly: lines, marks, bars, heat maps, axes, notes and legends.

For papers: vector graphics without a browser. What plotly lays out by itself, such as room for labels, is only
approximated."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy

from hpo.results.figures.drawing import theme
from hpo.results.figures.drawing.panels import Plot
from hpo.results.figures.files import values
from hpo.results.figures.files.traces import DASHES, POINT, Plain, bar, heatmap, scatter

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PERCENT = re.compile(r"\.?(\d?)%")
_WIDTH = 720
_INCH = 100
"""Pixels of plotly an inch."""


def rendered(plot: Plot, formats: Sequence[str]) -> dict[str, bytes]:
    """The figure in each of the formats that matplotlib knows by these names."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    layout: Plain = plot["layout"]
    height = float(layout.get("height") or theme.HEIGHT)
    canvas = Figure(figsize=(_WIDTH / _INCH, height / _INCH))
    FigureCanvasAgg(canvas)
    frame = _Frame(canvas, layout, height)
    for trace in plot["data"]:
        if trace.get("visible") not in (False, "legendonly"):
            frame.draw(trace)
    frame.finish()
    found = {}
    for name in formats:
        file = io.BytesIO()
        # Without dates the same campaign gives the same bytes.
        dated: Mapping[str, None] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(name, {})
        canvas.savefig(file, format=name, metadata=dict(dated), bbox_inches="tight", pad_inches=0.08)
        found[name] = file.getvalue()
    return found


class _Frame:
    """The axes of one figure, made when a trace first needs them."""

    def __init__(self, canvas: Any, layout: Plain, height: float) -> None:
        self._canvas = canvas
        self._layout = layout
        self._axes: dict[tuple[str, str], Axes] = {}
        self._handles: dict[str, Any] = {}
        self._categories: dict[str, dict[str, int]] = {}
        margin = {"l": 56, "r": 16, "t": 72, "b": 48, **(layout.get("margin") or {})}
        self._box = (
            margin["l"] / _WIDTH,
            margin["b"] / height,
            1 - (margin["l"] + margin["r"]) / _WIDTH,
            1 - (margin["t"] + margin["b"]) / height,
        )

    def _rule(self, name: str) -> Plain:
        return dict(self._layout.get(f"{name[0]}axis{name[1:]}") or {})

    def _of(self, trace: Plain) -> Axes:
        x, y = trace.get("xaxis") or "x", trace.get("yaxis") or "y"
        if (x, y) in self._axes:
            return self._axes[x, y]
        left, bottom, width, height = self._box
        across = self._rule(x).get("domain") or (0, 1)
        upward = self._rule(y).get("domain") or (0, 1)
        place = (
            left + width * across[0],
            bottom + height * upward[0],
            width * (across[1] - across[0]),
            height * (upward[1] - upward[0]),
        )
        shared = next((axes for (other, _), axes in self._axes.items() if other == x), None)
        axes: Axes = self._canvas.add_axes(place, sharex=shared, label=f"{x}{y}")
        self._axes[x, y] = axes
        self._dress(axes, x, y)
        return axes

    def _dress(self, axes: Axes, x: str, y: str) -> None:
        from matplotlib.ticker import PercentFormatter

        axes.set_facecolor("none")
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        axes.spines["bottom"].set_color(theme.GREY)
        axes.set_axisbelow(True)
        for name, rule, axis in ((x, self._rule(x), axes.xaxis), (y, self._rule(y), axes.yaxis)):
            across = name[0] == "x"
            if rule.get("visible") is False:
                axis.set_visible(False)
                if across:
                    axes.spines["bottom"].set_visible(False)
                continue
            if rule.get("showgrid"):
                axes.grid(True, axis="x" if across else "y", color=theme.GRID, linewidth=0.8)
            axis.set_tick_params(colors=theme.MUTED, labelsize=12 * POINT, length=3 if across else 0)
            if rule.get("side") == "right":
                axes.yaxis.tick_right()
            title = values.text((rule.get("title") or {}).get("text"))
            if title:
                axis.set_label_text(title, color=theme.MUTED, fontsize=13 * POINT)
            if (shares := PERCENT.fullmatch(str(rule.get("tickformat") or ""))) is not None:
                axis.set_major_formatter(PercentFormatter(1.0, int(shares[1] or 0)))
            if rule.get("type") == "log":
                axes.set_xscale("log") if across else axes.set_yscale("log")

    def draw(self, trace: Plain) -> None:
        """One trace of a kind that our figures use."""
        axes = self._of(trace)
        x = self._numbers(trace.get("x"), trace.get("xaxis") or "x")
        y = self._numbers(trace.get("y"), trace.get("yaxis") or "y")
        kind = trace.get("type") or "scatter"
        if kind == "heatmap":
            heatmap(axes, x, y, trace)
            return
        handle = (bar if kind == "bar" else scatter)(axes, x, y, trace)
        if handle is not None and trace.get("name") and trace.get("showlegend") is not False:
            self._handles.setdefault(values.text(trace["name"]), handle)

    def _numbers(self, given: Any, axis: str) -> Any:
        """Values of a trace as numbers: categories by their order."""
        found = values.plain(given)
        if any(isinstance(one, str) for one in found):
            known = self._categories.setdefault(axis, {})
            return numpy.array([known.setdefault(str(one), len(known)) for one in found], dtype=float)
        return numpy.array([math.nan if one is None else float(one) for one in found], dtype=float)

    # --- what lies over all ------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """What traces do not draw, once all of them are drawn."""
        self._hide_inner()
        for (x, y), axes in self._axes.items():
            self._limit(axes, x, y)
        for shape in self._layout.get("shapes") or ():
            self._shape(shape)
        for note in self._layout.get("annotations") or ():
            self._note(note)
        title = values.text((self._layout.get("title") or {}).get("text"))
        left, bottom, _, height = self._box
        if title:
            self._canvas.text(
                left, 0.995, title, va="top", fontsize=16 * POINT, fontweight="semibold", color=theme.INK
            )
        if self._handles and self._layout.get("showlegend") is not False:
            self._canvas.legend(
                list(self._handles.values()),
                list(self._handles),
                loc="lower left",
                bbox_to_anchor=(left, bottom + height),
                ncols=min(5, len(self._handles)),
                frameon=False,
                fontsize=12 * POINT,
                labelcolor=theme.INK,
                handlelength=1.4,
                columnspacing=1.2,
                borderaxespad=0.2,
                borderpad=0.1,
            )

    def _hide_inner(self) -> None:
        """Of panels that share a horizontal axis only the lowest shows it."""
        for name in {x for x, _ in self._axes}:
            own = [axes for (x, _), axes in self._axes.items() if x == name]
            lowest = min(own, key=lambda axes: axes.get_position().y0)
            for axes in own:
                if axes is not lowest:
                    axes.xaxis.set_visible(False)
                    axes.spines["bottom"].set_visible(False)

    def _limit(self, axes: Axes, x: str, y: str) -> None:
        for name, across in ((x, True), (y, False)):
            rule = self._rule(name)
            limits, axis = rule.get("range"), axes.xaxis if across else axes.yaxis
            set_limits = axes.set_xlim if across else axes.set_ylim
            if limits is not None and None not in limits:
                ends = (
                    [10.0 ** float(one) for one in limits]
                    if rule.get("type") == "log"
                    else [float(one) for one in limits]
                )
                set_limits(*ends)
            elif rule.get("autorange") == "reversed":
                axis.set_inverted(True)
            elif rule.get("rangemode") == "tozero" and across:
                axes.set_xlim(left=0)
            texts = rule.get("ticktext")
            if name in self._categories:
                known = self._categories[name]
                axis.set_ticks(list(known.values()), labels=[values.text(one) for one in known])
            elif rule.get("tickvals") is not None and texts is not None:
                axis.set_ticks(
                    [float(one) for one in values.plain(rule["tickvals"])],
                    labels=[values.text(one) for one in values.plain(texts)],
                )
                axis.set_tick_params(which="minor", length=0, labelsize=0)

    def _at(self, shape: Plain, names: tuple[str, str]) -> tuple[Any, Any]:
        """The transform of a shape's or note's coordinates, and the axes that they are of."""
        from matplotlib.transforms import blended_transform_factory

        x_of, y_of = str(shape.get(f"{names[0]}ref") or "x"), str(shape.get(f"{names[1]}ref") or "y")
        x_name, y_name = x_of.split()[0], y_of.split()[0]
        first = next(iter(self._axes.values()))
        axes = next(
            (
                one
                for (x, y), one in self._axes.items()
                if (x == x_name or x_name == "paper") and (y == y_name or y_name == "paper")
            ),
            first,
        )
        from matplotlib.transforms import Bbox, BboxTransformTo, TransformedBbox

        paper = BboxTransformTo(TransformedBbox(Bbox.from_bounds(*self._box), self._canvas.transFigure))

        def one(of: str) -> Any:
            return paper if of == "paper" else axes.transAxes if of.endswith("domain") else axes.transData

        return blended_transform_factory(one(x_of), one(y_of)), axes

    def _shape(self, shape: Plain) -> None:
        where, axes = self._at(shape, ("x", "y"))
        line: Plain = shape.get("line") or {}
        x0, x1, y0, y1 = (values.number(shape.get(key)) for key in ("x0", "x1", "y0", "y1"))
        if shape.get("type") == "rect":
            from matplotlib.patches import Rectangle

            fill = values.colour(shape.get("fillcolor") or "rgba(0,0,0,0)")
            patch = Rectangle(
                (x0, y0), x1 - x0, y1 - y0, transform=where, facecolor=fill, edgecolor="none", zorder=0.5
            )
            axes.add_patch(patch)
        else:
            axes.plot(
                [x0, x1],
                [y0, y1],
                transform=where,
                color=values.colour(line.get("color") or theme.GREY),
                linewidth=float(line.get("width") or 1) * POINT,
                linestyle=DASHES.get(line.get("dash") or "", "-"),
                clip_on=False,
                scalex=False,
                scaley=False,
            )
        words: Plain = shape.get("label") or {}
        if words.get("text"):
            start = words.get("textposition") == "start"
            upright = x0 == x1
            axes.text(
                x0 if upright else x1,
                y0 if start or not upright else y1,
                f" {values.text(words['text'])} ",
                transform=where,
                ha="left" if upright else "right",
                va="bottom",
                fontsize=11 * POINT,
                color=theme.MUTED,
            )

    def _note(self, note: Plain) -> None:
        where, axes = self._at(note, ("x", "y"))
        font: Plain = note.get("font") or {}
        x, y = note.get("x"), note.get("y")
        names = [str(note.get(key) or "") for key in ("xref", "yref")]
        x_at, y_at = (
            self._categories.get(name, {}).get(value, value) if isinstance(value, str) else value
            for name, value in zip(names, (x, y), strict=True)
        )
        shift = (float(note.get("xshift") or 0) * POINT, float(note.get("yshift") or 0) * POINT)
        axes.annotate(
            values.text(note.get("text")),
            (values.number(x_at), values.number(y_at)),
            xycoords=where,
            xytext=shift,
            textcoords="offset points",
            ha={"left": "left", "right": "right"}.get(str(note.get("xanchor")), "center"),
            va={"top": "top", "bottom": "bottom"}.get(str(note.get("yanchor")), "center"),
            fontsize=float(font.get("size") or 12) * POINT,
            color=values.colour(font.get("color") or theme.INK),
            annotation_clip=False,
        )
