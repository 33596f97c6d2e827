"""Content of a page as data: summaries in words, and figures as plotly's JSON, for the report and the live page."""

from __future__ import annotations

import base64
import platform
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec
import numpy

from hpo.journal.records import storable
from hpo.terminal import one_line
from hpo.views.figures.drawing import theme
from hpo.views.figures.drawing.thinning import thinned
from hpo.views.figures.registry import FIGURES, Entry
from hpo.views.figures.source import NotDrawn, Source
from hpo.views.report.summary import Missing, PageTable, Summary, compared, summary

_MOST_DETAILS_BYTES = 700_000  # of all campaigns, about
_MOST_ERRORS = 500
_FEWEST_PACKED = 50
_LONGEST_ERROR = 600  # characters at the end of a traceback, where the error is


class Drawn(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A figure with either ``plot`` or ``own``."""

    name: str
    title: str
    caption: str
    size: int
    campaign: int | None = None  # place of the campaign among all; None if the figure is of all campaigns
    plot: dict[str, Any] | None = None  # data and layout of plotly
    own: Any = None  # data for the page's script of the figure's name


class Details(msgspec.Struct, kw_only=True):
    """Columns on the individuals of a campaign, for the details of a mark. They are lists, or packed by ``_column``."""

    ids: list[str]
    words: list[str]  # different statuses and operators, whose places are in the next columns
    status: list[int]
    operator: list[int]
    seconds: Any
    objectives: dict[str, Any]
    params: dict[str, Any]
    errors: dict[str, str]


class Content(msgspec.Struct, kw_only=True):
    """Content of a page."""

    title: str
    made: str
    versions: str
    campaigns: list[Summary]
    compared: PageTable | None
    figures: list[Drawn]
    details: list[Details]
    dark: dict[str, str]  # replacements of colours on a dark page


def content(
    sources: Sequence[Source],
    version: str = "",
    figures: Sequence[Entry] = FIGURES,
    begin: Callable[[str], None] = lambda title: None,
) -> Content:
    """Content of the page of one campaign or several. ``begin`` is called with the title of each figure before it is
    drawn."""
    summaries = [summary(source) for source in sources]
    found: list[Drawn] = []
    for entry in figures:
        begin(entry.title)
        together = entry.overlaid or len(sources) == 1
        for place, group in enumerate([sources] if together else [[one] for one in sources]):
            try:
                found.append(drawn(entry, group, None if together else place))
            except NotDrawn as reason:
                for one in summaries if together else [summaries[place]]:
                    one.missing.append(Missing(entry.title, str(reason)))
    return Content(
        title=", ".join(one_line(source.name) for source in sources),
        made=time.strftime("%-d %B %Y, %H:%M"),
        versions=", ".join([*([f"hpo {version}"] if version else []), f"Python {platform.python_version()}"]),
        campaigns=summaries,
        compared=compared(sources) if len(sources) > 1 else None,
        figures=found,
        details=[details(source, marked(found, place)) for place, source in enumerate(sources)],
        dark=theme.DARK,
    )


def drawn(entry: Entry, sources: Sequence[Source], campaign: int | None = None) -> Drawn:
    """One figure of a page; NotDrawn if the campaigns lack the data."""
    own, plot, title = None, None, entry.title
    if (make := entry.content) is not None:
        own = make(sources)
    else:
        plot = entry.plot(sources)
        for trace in plot["data"]:
            _pack(trace)
        title = plot.get("layout", {}).get("title", {}).get("text") or title
    figure = Drawn(name=entry.name, title=title, caption=entry.caption, size=entry.size, campaign=campaign)
    figure.plot, figure.own = plot, own
    return figure


def _pack(trace: dict[str, Any]) -> None:
    """Replace long arrays of numbers by plotly's encoded arrays."""
    for name in ("x", "y"):
        data = _packed(trace.get(name))
        if data is not None:
            trace[name] = {"dtype": "f4", "bdata": data}


def _packed(values: Any) -> str | None:
    """Numbers as single precision in base64, a third as long as digits; None if there are few, or some are not numbers
    or beyond the range."""
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
    """Column of floats as ``{"packed": base64}`` with NaN for None; any other column as it is."""
    if all(type(one) in (float, type(None)) for one in values) and (data := _packed(values)) is not None:
        return {"packed": data}
    return values


def marked(drawn: Sequence[Drawn], campaign: int) -> set[str]:
    """Ids of the individuals that marks of a campaign's figures stand for."""
    found: set[str] = set()
    for figure in drawn:
        if figure.campaign in (None, campaign) and figure.plot is not None:
            for trace in figure.plot["data"]:
                if (
                    trace.get("meta", campaign) != campaign
                ):  # a trace of another campaign in an overlaid figure
                    continue
                for name in ("customdata", "hovertext"):
                    values = trace.get(name)
                    if values is not None and not isinstance(values, str):
                        found.update(one.partition(":")[0] for one in values if isinstance(one, str))
    return found


def details(source: Source, identities: Collection[str]) -> Details:
    """Details of the individuals ``identities``, or of the best and an even choice if there are too many."""
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
    failed = [one for one in found if one.error]
    failed = [failed[index] for index in thinned(len(failed), _MOST_ERRORS)]
    return Details(
        ids=[one.id for one in found],
        words=[one_line(word) for word in words],
        status=[words[one.status] for one in found],
        operator=[words[one.operator] for one in found],
        seconds=_column([one.seconds for one in found]),
        objectives={
            one_line(name): _column([source.value(one, name) for one in found]) for name in source.objectives
        },
        # The page leaves out null, the value of a parameter that does not exist; None may be a choice.
        params={
            one_line(name): _column(
                [
                    str(value)
                    if (value := one.params.get(name, 0)) is None or isinstance(value, tuple)
                    else one.params.get(name)
                    for one in found
                ]
            )
            for name in names
        },
        errors={one.id: (one.error or "")[-_LONGEST_ERROR:] for one in failed},
    )


def _as_list(value: Any) -> Any:
    return value.tolist()


def encoded(found: Content | Any) -> bytes:
    """``found`` as JSON inside a script element, which neither ends the element nor a line of the script."""
    try:
        data = msgspec.json.encode(found, enc_hook=_as_list)
    except UnicodeEncodeError:  # a name has half of a surrogate pair
        data = msgspec.json.encode(storable(msgspec.to_builtins(found, enc_hook=_as_list)))
    for character in ("<", ">", "&", "\u2028", "\u2029"):
        data = data.replace(character.encode(), f"\\u{ord(character):04x}".encode())
    return data
