"""All that a page shows, as data: summaries in words, and figures as plotly's JSON. The report holds it once; the live
page sends it anew."""

from __future__ import annotations

import base64
import platform
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec
import numpy

from hpo.individual import Individual
from hpo.terminal import one_line
from hpo.views.figures.drawing import theme
from hpo.views.figures.registry import FIGURES, Entry
from hpo.views.figures.source import NotDrawn, Source, thinned
from hpo.views.report.summary import Missing, Summary, Table, compared, summary

_MOST_DETAILS_BYTES = 700_000
"""Of all campaigns together, about."""
_MOST_ERRORS = 500
_FEWEST_PACKED = 50
_LONGEST_ERROR = 600
"""Characters, the last ones: there is what was raised."""


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
    """The individuals of one campaign by column, for who points at a mark. ``status``, ``operator``: places in
    ``words``; other columns are lists, or packed (see ``_column``)."""

    ids: list[str]
    words: list[str]
    status: list[int]
    operator: list[int]
    seconds: Any
    objectives: dict[str, Any]
    params: dict[str, Any]
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
    sources: Sequence[Source],
    version: str = "",
    figures: Sequence[Entry] = FIGURES,
    begin: Callable[[str], None] = lambda title: None,
) -> Content:
    """The page of one campaign, or of several side by side. ``version``: of hpo; ``begin`` is called with the title of
    each figure before it is drawn."""
    summaries = [summary(source) for source in sources]
    found: list[Drawn] = []
    for entry in figures:
        begin(entry.title)
        if entry.overlaid or len(sources) == 1:
            _draw(entry, sources, None, summaries, found)
        else:
            for place, source in enumerate(sources):
                _draw(entry, [source], place, [summaries[place]], found)
    return Content(
        title=", ".join(one_line(source.name) for source in sources),
        made=time.strftime("%-d %B %Y, %H:%M"),
        versions=f"hpo {version}, Python {platform.python_version()}".replace("hpo , ", ""),
        campaigns=summaries,
        compared=compared(sources) if len(sources) > 1 else None,
        figures=found,
        details=[details(source, marked(found, place)) for place, source in enumerate(sources)],
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
    if (make := entry.content) is not None:
        own = make(sources)
    else:
        plot = entry.plot(sources)
        for trace in plot["data"]:
            _pack(trace)
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


def _pack(trace: dict[str, Any]) -> None:
    """Many numbers as plotly's encoded arrays."""
    for name in ("x", "y"):
        data = _packed(trace.get(name))
        if data is not None:
            trace[name] = {"dtype": "f4", "bdata": data}


def _packed(values: Any) -> str | None:
    """Single precision in base64, a third as long as digits; None for what is short, not of numbers alone, or beyond
    its range."""
    if isinstance(values, numpy.ndarray):
        values = values.tolist()
    if not isinstance(values, (list, tuple)) or len(values) < _FEWEST_PACKED:
        return None
    if any(type(one) not in (int, float, type(None)) for one in values):
        return None
    numbers = numpy.array([numpy.nan if one is None else one for one in values], dtype=float)
    if (numpy.abs(numbers[numpy.isfinite(numbers)]) > numpy.finfo("f4").max).any():
        return None
    return base64.b64encode(numbers.astype("<f4").tobytes()).decode()


def _column(values: list[Any]) -> Any:
    """Of numbers with a decimal point ``{"packed": base64}``, NaN where there is none; else the list."""
    if all(type(one) in (float, type(None)) for one in values) and (data := _packed(values)) is not None:
        return {"packed": data}
    return values


def marked(drawn: Sequence[Drawn], campaign: int) -> set[str]:
    """The ids that marks of the figures of a campaign stand for."""
    found: set[str] = set()
    for figure in drawn:
        if figure.campaign in (None, campaign) and figure.plot is not None:
            for trace in figure.plot["data"]:
                if trace.get("meta", campaign) != campaign:  # where several are overlaid, that of the trace
                    continue
                for name in ("customdata", "hovertext"):
                    values = trace.get(name)
                    if values is not None and not isinstance(values, str):
                        found.update(one.partition(":")[0] for one in values if isinstance(one, str))
    return found


def details(source: Source, identities: Collection[str]) -> Details:
    """Of the individuals ``identities`` and the best, all or an even choice of them."""
    everyone = [one for one in (*source.record.known, *source.record.individuals) if one.id in identities]
    best = source.best
    keep = [index for index, one in enumerate(everyone) if best is not None and one.id == best.id]
    width = 30 + 6 * max((len(one.params) for one in everyone), default=0)
    found = [everyone[index] for index in thinned(len(everyone), _MOST_DETAILS_BYTES // width, keep)]
    words = {
        word: place
        for place, word in enumerate(dict.fromkeys(w for one in found for w in (one.status, one.operator)))
    }
    names = list(dict.fromkeys(name for one in found for name in one.params))
    return Details(
        ids=[one.id for one in found],
        words=[one_line(word) for word in words],
        status=[words[one.status] for one in found],
        operator=[words[one.operator] for one in found],
        seconds=_column([one.seconds for one in found]),
        objectives={
            one_line(name): _column([source.value(one, name) for one in found]) for name in source.objectives
        },
        # Where a parameter does not exist there is null, which the page leaves out; None may be chosen.
        params={
            one_line(name): _column(
                ["None" if one.params.get(name, 0) is None else one.params.get(name) for one in found]
            )
            for name in names
        },
        errors={
            one.id: (one.error or "")[-_LONGEST_ERROR:] for one in _spread([o for o in found if o.error])
        },
    )


def _spread(failed: list[Individual]) -> list[Individual]:
    return [failed[index] for index in thinned(len(failed), _MOST_ERRORS)]


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
