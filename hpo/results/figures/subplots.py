"""Several panels in the theme's layout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hpo.results.figures import theme

if TYPE_CHECKING:
    import plotly.graph_objects as go


def placed(figure: go.Figure, axes: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """``axes`` for ``theme.layout`` with where ``make_subplots`` has put them, which it would replace."""
    return {
        name: {**figure.layout[name].to_plotly_json(), **axes[name]} for name in sorted(axes, reverse=True)
    }


def headed(figure: go.Figure, axis: str, text: str) -> None:
    """Writes ``text``, which is none of a user's, above the panel whose axes end in ``axis`` ("", "2", …)."""
    figure.add_annotation(
        text=text,
        xref=f"x{axis} domain", yref=f"y{axis} domain", x=0, y=1, xanchor="left", yanchor="bottom", yshift=4,
        showarrow=False, font={"color": theme.MUTED, "size": 13},
    )  # fmt: skip
