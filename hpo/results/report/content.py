"""All that a page shows, as data: summaries in words, and figures as plotly's JSON. The report holds it once; the live
page sends it anew."""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import msgspec

from hpo import __version__
from hpo.results.figures import theme
from hpo.results.figures.registry import FIGURES, Entry
from hpo.results.figures.source import NotDrawn, Source, thinned
from hpo.results.report.summary import Missing, Summary, Table, compared, summary
from hpo.terminal import one_line

_MOST_DETAILS = 10_000
_LONGEST_ERROR = 400


class Drawn(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A figure of one campaign (its place among them), or of all (None). Either ``plot``, plotly's data and layout, or
    ``own``, what the drawer of that name draws."""

    name: str
    title: str
    caption: str
    size: int
    campaign: int | None = None
    plot: dict[str, Any] | None = None
    own: Any = None


class Details(msgspec.Struct, kw_only=True):
    """The individuals of one campaign by column, for who points at a mark."""

    ids: list[str]
    status: list[str]
    operator: list[str]
    seconds: list[float | None]
    objectives: dict[str, list[float | None]]
    params: dict[str, list[Any]]
    errors: dict[str, str]


class Content(msgspec.Struct, kw_only=True):
    """A page. ``dark``: by colour, what it is on a dark page."""

    title: str
    made: str
    versions: str
    campaigns: list[Summary]
    compared: Table | None
    figures: list[Drawn]
    details: list[Details]
    dark: dict[str, str]


def content(
    sources: Sequence[Source], figures: Sequence[Entry] = FIGURES, *, with_details: bool = True
) -> Content:
    """The page of one campaign, or of several side by side. The live page asks for its words alone."""
    summaries = [summary(source) for source in sources]
    found: list[Drawn] = []
    for entry in figures:
        if entry.overlaid or len(sources) == 1:
            _draw(entry, sources, None, summaries, found)
        else:
            for place, source in enumerate(sources):
                _draw(entry, [source], place, [summaries[place]], found)
    return Content(
        title=", ".join(one_line(source.name) for source in sources),
        made=time.strftime("%-d %B %Y, %H:%M"),
        versions=f"hpo {__version__}, Python {platform.python_version()}",
        campaigns=summaries,
        compared=compared(sources) if len(sources) > 1 else None,
        figures=found,
        details=[details(source) for source in sources] if with_details else [],
        dark=theme.DARK,
    )


def _draw(
    entry: Entry,
    sources: Sequence[Source],
    campaign: int | None,
    summaries: Sequence[Summary],
    found: list[Drawn],
) -> None:
    """Draw one figure; or note why not, in the summaries of the campaigns that it is of."""
    try:
        found.append(drawn(entry, sources, campaign))
    except NotDrawn as reason:
        for one in summaries:
            one.missing.append(Missing(entry.title, str(reason)))


def drawn(entry: Entry, sources: Sequence[Source], campaign: int | None = None) -> Drawn:
    """One figure as a page has it; NotDrawn where the data do not fill it."""
    own, plot, title = None, None, entry.title
    make = getattr(import_module(f"hpo.results.figures.{entry.name}"), "content", None)
    if make is not None:
        own = make(sources)
    else:
        figure = entry.draw(sources)
        plot = figure.to_dict()
        title = plot.get("layout", {}).get("title", {}).get("text") or title
    return Drawn(
        name=entry.name,
        title=title,
        caption=entry.caption,
        size=entry.size,
        campaign=campaign,
        plot=plot,
        own=own,
    )


def details(source: Source) -> Details:
    """The individuals of ``source``, all or an even choice of them."""
    everyone = [*source.record.known, *source.record.individuals]
    best = source.best
    keep = [index for index, one in enumerate(everyone) if best is not None and one.id == best.id]
    found = [everyone[index] for index in thinned(len(everyone), _MOST_DETAILS, keep)]
    names = list(dict.fromkeys(name for one in found for name in one.params))
    return Details(
        ids=[one.id for one in found],
        status=[one.status for one in found],
        operator=[one.operator for one in found],
        seconds=[_short(one.seconds) for one in found],
        objectives={name: [_short(source.value(one, name)) for one in found] for name in source.objectives},
        params={one_line(name): [_short(one.params.get(name)) for one in found] for name in names},
        errors={one.id: one.error[:_LONGEST_ERROR] for one in found if one.error},
    )


def _short(value: Any) -> Any:
    """A float with the digits that a page shows; what JSON lacks as a word."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if value - value == 0 else str(value)
    return value


def _as_list(value: Any) -> Any:
    """What numpy holds and plotly has left as it was."""
    return value.tolist()


def encoded(found: Content | Any) -> bytes:
    """``found`` as JSON that may stand inside a script element: nothing in it ends the element, or is a line's end to a
    script."""
    from hpo.journal.records import storable

    try:
        data = msgspec.json.encode(found, enc_hook=_as_list)
    except UnicodeEncodeError:  # half a surrogate pair in a name
        data = msgspec.json.encode(storable(msgspec.to_builtins(found, enc_hook=_as_list)))
    for character in ("<", ">", "&", "\u2028", "\u2029"):
        data = data.replace(character.encode(), f"\\u{ord(character):04x}".encode())
    return data
