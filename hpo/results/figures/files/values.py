"""Values of plotly's figures as matplotlib takes them."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Mapping
from typing import Any

import numpy

from hpo.results.figures.drawing import theme

_TAG = re.compile(r"<[^>]*>")


def plain(values: Any) -> list[Any]:
    """A list of what plotly keeps as list, tuple, array or encoded array."""
    if values is None:
        return []
    if isinstance(values, Mapping):
        data = numpy.frombuffer(base64.b64decode(values["bdata"]), dtype=values["dtype"])
        shape = values.get("shape")
        if shape is not None:
            data = data.reshape([int(one) for one in str(shape).split(",")])
        return list(data.tolist())
    if isinstance(values, numpy.ndarray):
        return list(values.tolist())
    return list(values)


def colours(marker: Mapping[str, Any], count: int) -> list[str]:
    """The colour of each mark; numbers are colours of the marker's scale."""
    given = marker.get("color") or theme.BLUE
    if isinstance(given, str):
        return [given] * count
    found = plain(given)
    if all(isinstance(one, str) for one in found):
        return found
    from matplotlib.colors import LinearSegmentedColormap, to_hex

    scale: Any = marker.get("colorscale") or theme.SCALE
    between = LinearSegmentedColormap.from_list("scale", [(float(at), colour(one)) for at, one in scale])
    low, high = marker.get("cmin", min(found)), marker.get("cmax", max(found))
    return [to_hex(between((float(one) - low) / ((high - low) or 1.0)), keep_alpha=True) for one in found]


def colour(value: str) -> Any:
    """A colour of the theme, see-through or not, as matplotlib takes it."""
    if value.startswith("rgba("):
        red, green, blue, alpha = (float(one) for one in value[5:-1].split(","))
        return (red / 255, green / 255, blue / 255, alpha)
    return value


def one(value: Any, place: int) -> Any:
    """That of the mark at ``place``, where each has its own."""
    return value if value is None or isinstance(value, str) else plain(value)[place]


def number(value: Any) -> float:
    """A coordinate; 0 where it is none."""
    return float(value) if isinstance(value, (int, float)) else 0.0


def text(value: object) -> str:
    """What plotly would show: tags are layout, entities are characters; $ begins no formula."""
    if value is None:
        return ""
    lines = str(value).replace("<br>", "\n")
    return html.unescape(_TAG.sub("", lines)).replace("$", r"\$")
