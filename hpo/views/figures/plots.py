"""The figures of one campaign, for notebooks and scripts: ``result.plot``."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from hpo.errors import UsageError
from hpo.results import curves
from hpo.views import page_packages
from hpo.views.figures.registry import BY_NAME
from hpo.views.figures.source import NotDrawn, Source

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from hpo.results.record import CampaignRecord


class Plots:
    """Each method returns a plotly figure, which a notebook shows, and raises UsageError with the reason where the
    campaign's data do not fill it. ``figure.write_html(path)`` keeps one; `hpo report DIR` has all of them."""

    def __init__(self, record: CampaignRecord) -> None:
        page_packages.check("result.plot", page_packages.FIGURES)
        self._record = record

    @cached_property
    def _source(self) -> Source:
        directory = self._record.directory
        return Source(name=directory.absolute().name, record=self._record, curves=curves.load(directory))

    def _drawn(self, name: str) -> go.Figure:
        try:
            return BY_NAME[name].draw([self._source])
        except NotDrawn as reason:
            raise UsageError(
                f"plot.{name}() of {self._record.directory}: {str(reason).removesuffix('.')}."
            ) from None

    def history(self) -> go.Figure:
        """The best so far over evaluations."""
        return self._drawn("history")

    def hours(self) -> go.Figure:
        """The best so far over the time at work, all launches together."""
        return self._drawn("hours")

    def curves(self) -> go.Figure:
        """Learning curves; needs ``trial.report``."""
        return self._drawn("curves")

    def timeline(self) -> go.Figure:
        """What each worker did when."""
        return self._drawn("timeline")

    def importance(self) -> go.Figure:
        """How much each parameter matters."""
        return self._drawn("importance")

    def parallel(self) -> go.Figure:
        """Parallel coordinates."""
        return self._drawn("parallel")

    def slices(self) -> go.Figure:
        """Results by each parameter that matters."""
        return self._drawn("slices")

    def islands(self) -> go.Figure:
        """What islands and operators contributed, and migrations."""
        return self._drawn("islands")

    def family(self) -> go.Figure:
        """The ancestors of the best individual."""
        return self._drawn("family")

    def budget(self) -> go.Figure:
        """Whether early stopping is safe; needs ``trial.report``."""
        return self._drawn("budget")

    def noise(self) -> go.Figure:
        """Repeated evaluations of one configuration; needs ``reevaluate``."""
        return self._drawn("noise")

    def front(self) -> go.Figure:
        """The Pareto front of several objectives."""
        return self._drawn("front")

    def hypervolume(self) -> go.Figure:
        """The hypervolume of several objectives over the campaign."""
        return self._drawn("hypervolume")
