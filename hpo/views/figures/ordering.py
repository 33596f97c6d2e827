"""Which parameters come first in a figure."""

from __future__ import annotations

from hpo.views.figures.source import NotDrawn, Source


def important(source: Source) -> list[str]:
    """All parameters that have more than one value: the most important for the first objective first; in the order of
    the space where there are too few evaluations to know."""
    if source.space is None:
        raise NotDrawn("campaign.json describes no search space")
    names = [name for name, one in source.space.parameters.items() if one.count != 1]
    try:
        shares = source.importance().shares
    except NotDrawn:
        return names
    return sorted(names, key=lambda name: -shares[name].total)
