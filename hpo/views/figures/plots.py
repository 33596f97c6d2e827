"""Figures of one campaign for notebooks and scripts: ``result.plot``."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from hpo import views
from hpo.errors import UsageError
from hpo.results import curves
from hpo.views.figures.registry import BY_NAME
from hpo.views.figures.source import NotDrawn, Source

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from hpo.results.record import CampaignRecord


def _figure(name: str) -> Callable[[Plots], go.Figure]:
    def draw(self: Plots) -> go.Figure:
        try:
            return BY_NAME[name].draw([self._source])
        except NotDrawn as reason:
            text = str(reason).removesuffix(".")
            raise UsageError(f"plot.{name}() of {self._source.record.directory}: {text}.") from None

    draw.__name__, draw.__qualname__ = name, f"Plots.{name}"
    draw.__doc__ = f"{BY_NAME[name].title}. {BY_NAME[name].caption}"
    return draw


class Plots:
    """Figures of plotly, which notebooks show and ``figure.write_html(path)`` saves.

    Each method raises UsageError with the reason if the campaign lacks the data for its figure."""

    def __init__(self, record: CampaignRecord) -> None:
        views.require("result.plot", views.FIGURES)
        self._record = record

    @cached_property
    def _source(self) -> Source:
        directory = self._record.directory
        return Source(name=directory.absolute().name, record=self._record, curves=curves.load(directory))

    history = _figure("history")
    hours = _figure("hours")
    curves = _figure("curves")
    timeline = _figure("timeline")
    importance = _figure("importance")
    parallel = _figure("parallel")
    slices = _figure("slices")
    islands = _figure("islands")
    ablation = _figure("ablation")
    failures = _figure("failures")
    family = _figure("family")
    budget = _figure("budget")
    noise = _figure("noise")
    front = _figure("front")
    hypervolume = _figure("hypervolume")
