"""Summary of a campaign in words and numbers, which a report and a notebook show."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

import msgspec

from hpo.individual import FAILURES, PRUNED, Individual, Scalar, is_known
from hpo.results import curves, overview
from hpo.results.analysis import pareto
from hpo.results.analysis.repeated import in_words
from hpo.results.launch import most_workers
from hpo.search import campaign_end
from hpo.space.parameters import Ordinal, Parameter
from hpo.space.ranges import Float, Int
from hpo.task.limits import without_best
from hpo.terminal import one_line
from hpo.text import plural
from hpo.views import text
from hpo.views.figures.drawing.theme import number
from hpo.views.figures.source import Source
from hpo.views.figures.timeline import busy_share
from hpo.views.report.health import Attention, findings

if TYPE_CHECKING:
    from hpo.results.record import CampaignRecord

_TOP = 10


class Fact(msgspec.Struct, frozen=True):
    """A number with its name and a note."""

    label: str
    value: str
    note: str = ""


class PageTable(msgspec.Struct, frozen=True):
    """Table of texts."""

    columns: list[str]
    rows: list[list[str]]
    numeric: list[bool]  # whether each column holds numbers


class ComparedValues(msgspec.Struct, frozen=True):
    """A parameter or objective of the configurations compared."""

    name: str
    values: list[str]
    places: list[float | None]  # place of each value in the range, from 0 to 1; None without value or order
    low: str = ""
    high: str = ""
    differs: bool = True  # whether the values differ


class Comparison(msgspec.Struct, frozen=True):
    """Configurations side by side."""

    title: str
    heads: list[str]
    ids: list[str]
    results: list[ComparedValues]
    parameters: list[ComparedValues]


class Missing(msgspec.Struct, frozen=True):
    """A figure that lacks data, with the reason."""

    title: str
    reason: str


class Summary(msgspec.Struct, kw_only=True):
    """Summary of a campaign. Times are in words."""

    name: str
    directory: str
    task: str
    state: str
    lead: str
    facts: list[Fact]
    health: list[Attention]
    comparison: Comparison | None
    top: PageTable | None
    span: str
    missing: list[Missing] = []


def summary(source: Source) -> Summary:
    """Summary of a campaign."""
    record = source.record
    standing = overview.folded(record)
    busy = busy_share(source)
    return Summary(
        name=one_line(source.name),
        directory=one_line(record.directory),
        task=one_line(record.identity.get("task") or ""),
        state=text.state(standing),
        lead=f"{_lead(source)} {_work(source, standing)}" if source.best else _lead(source),
        facts=_facts(source, standing, busy),
        health=findings(source),
        comparison=_comparison(source),
        top=_top(source),
        span=_span(record.started, record.updated),
    )


def as_html(record: CampaignRecord) -> str:
    """HTML without scripts for a notebook: the campaign in words, findings, and its best as a table."""
    name = record.directory.absolute().name
    found = summary(Source(name=name, record=record, curves=curves.Curves().frame()))
    parts = [f"<p><b>{escape(found.name)}</b> – {escape(found.lead)}</p>"]
    if lines := [f"<li>{escape(one.text)}</li>" for one in found.health if one.level in ("warn", "bad")]:
        parts.append(f"<ul>{''.join(lines)}</ul>")
    if (table := found.comparison) is not None:
        rows = [["", *table.heads], ["id", *table.ids]]
        rows += [[one.name, *one.values] for one in (*table.results, *table.parameters)]
        cells = ["".join(f"<td style='text-align:left'>{escape(cell)}</td>" for cell in row) for row in rows]
        parts.append(f"<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>")
    return "".join(parts)


def _values(one: Individual) -> str:
    return " and ".join(f"{one_line(key)} {number(value)}" for key, value in (one.objectives or {}).items())


def _span(started: float | None, updated: float | None) -> str:
    if started is None or updated is None:
        return ""
    first, last = time.localtime(started), time.localtime(updated)
    moment = "%-d %B %Y, %H:%M"
    end = "%H:%M" if first[:3] == last[:3] else moment
    return f"{time.strftime(moment, first)} to {time.strftime(end, last)}"


def _lead(source: Source) -> str:
    best = source.best
    if best is None:
        remarks = without_best(source.record.limits, len(source.completed))
        remark = one_line((remarks or ["no evaluation has completed yet"])[0])
        return f"{remark[0].upper()}{remark[1:]}."
    if len(source.objectives) > 1:
        return _lead_of_front(source, best)
    name, count, value = one_line(source.objective), len(source.ended), number(source.value(best))
    if is_known(best.id):
        return f"The best is still a known point, {name} {value}: none of {count} evaluations is better."
    found = f"The best of {number(count)} evaluations, {best.id}, has {name} {value}"
    one, other = source.value(best), source.default_value()
    if one is not None and other is not None and source.sign() * (other - one) > 0:
        gain = f"{abs(one - other):.2g}" if abs(one - other) < 100 else number(abs(one - other))
        found += f": {gain} better than the {source.default_name} ({number(other)})"
    parts = [f"{found}."]
    if best.id in source.number and best.finished is not None:
        seconds = float(source.at_work([best.finished])[0])
        kinds = {"default": "as the task's default", "given": "as a given point"}
        kind = kinds.get(best.operator, f"by {one_line(best.operator)}")
        at = number(source.number[best.id])
        parts.append(f"It was proposed {kind} and found as number {at}, after {text.duration(seconds)}.")
    again = [one for one in pareto.repeated(source.record) if one.individual.id == best.id]
    parts += [f"Its configuration is the best {in_words(one)}." for one in again]
    return " ".join(parts)


def _lead_of_front(source: Source, best: Individual) -> str:
    front = pareto.front(source.record)
    ways = " and ".join(
        f"{one_line(key)} ({'more' if way == 'maximize' else 'less'} is better)"
        for key, way in source.objectives.items()
    )
    completed = f"Of {len(source.completed)} completed evaluations"
    if len(front) == 1:
        return f"{completed} one is the best in {ways}."
    parts = [f"{completed}, {len(front)} are on the Pareto front of {ways}."]
    parts.append(f"The best in {one_line(source.objective)}, {best.id}, has {_values(best)}.")
    knee = pareto.knee(front, source.objectives)
    if knee is not None and len(front) > 2:
        parts.append(f"Its knee, {knee.id}, has {_values(knee)}.")
    return " ".join(parts)


def _work(source: Source, standing: overview.Overview) -> str:
    launches = len(source.record.launches)
    islands = f" on {standing.islands} islands" if standing.islands > 1 else ""
    times = f" in {launches} launches" if launches > 1 else ""
    workers = plural(most_workers(source.record.launches), "worker")
    return f"{workers}{islands} worked for {text.duration(standing.seconds)}{times}."


def _facts(source: Source, standing: overview.Overview, busy: float | None) -> list[Fact]:
    counts = Counter(one.status for one in source.ended)
    ended = len(source.ended)
    failed = sum(counts[status] for status in FAILURES)
    facts = []
    if source.best is not None and len(source.objectives) == 1:
        way = "higher is better" if source.sign() < 0 else "lower is better"
        facts.append(Fact(f"best {one_line(source.objective)}", number(source.value(source.best)), way))
    elif source.best is not None:
        front = len(pareto.front(source.record))
        facts.append(Fact("on the Pareto front", str(front), f"{len(source.objectives)} objectives"))
    budget = f"of {number(standing.budget)}" if standing.budget is not None else ""
    running = f"{standing.running} running" if standing.running else ""
    facts.append(Fact("evaluations", number(ended), ", ".join(filter(None, (budget, running)))))
    launches = plural(len(source.record.launches), "launch")
    hours = f"{launches}, {number(round(standing.worker_hours, 1))} worker-hours"
    facts.append(Fact("at work", text.duration(standing.seconds), hours))
    most = "" if standing.rank_hours_limit is None else f"of {number(standing.rank_hours_limit)}"
    facts.append(Fact("rank-hours of evaluations", f"{standing.rank_hours:.3g}", most))
    facts += _expected_gain(source)
    if workers := most_workers(source.record.launches):
        share = "" if busy is None else f"{text.percent(busy)} busy"
        facts.append(Fact("workers", number(workers), share))
    if broken := sum(bool(one.breaks) for one in source.completed):
        facts.append(Fact("breaks a limit", number(broken), one_line(source.record.limits)))
    if counts[PRUNED]:
        facts.append(Fact("pruned", number(counts[PRUNED]), text.percent(counts[PRUNED] / ended)))
    facts.append(Fact("failed", number(failed), text.percent(failed / ended) if failed else ""))
    return facts


def _expected_gain(source: Source) -> list[Fact]:
    """Expected gain of further evaluations, where there is one objective and enough is known."""
    history, over = campaign_end.BestOverTime(), source.record.ledger.limits.stop_over
    for one in source.ended:
        if one.finished is not None:
            value = source.value(one) if one.fit else None
            history.add(one.finished, None if value is None else (source.sign() * value,))
    gain = history.expected_gain(over) if len(source.objectives) == 1 else None
    if gain is None:
        return []
    return [
        Fact(
            f"{over} more evaluations", f"gain at most {gain:.2g}", f"expected by what the last {over} gained"
        )
    ]


def _comparison(source: Source) -> Comparison | None:
    """The best beside the default; with several objectives the best in each, and the knee behind the first."""
    best = source.best
    if best is None:
        return None
    title = "Notable configurations"
    chosen: list[tuple[str, Individual]] = []
    if len(source.objectives) > 1:
        front = pareto.front(source.record)
        knee = pareto.knee(front, source.objectives)
        for name in list(source.objectives)[:3]:
            losses = {one.id: source.sign(name) * (one.objectives or {})[name] for one in front}
            chosen.append((f"best {one_line(name)}", min(front, key=lambda one: losses[one.id])))
        if knee is not None:
            chosen.insert(1, ("knee of the front", knee))
    else:
        chosen.append(("best", best))
    if source.default is not None and source.default.id != best.id:
        chosen.append((source.default_name, source.default))
    if len(source.objectives) == 1:
        title = " and ".join(head for head, _ in chosen).capitalize()
    individuals = [one for _, one in chosen]
    results = [
        ComparedValues(one_line(name), [_shown((one.objectives or {}).get(name)) for one in individuals], [])
        for name in source.objectives
    ]
    parameters = source.space.parameters if source.space is not None else {}
    names = dict.fromkeys([*parameters, *(name for one in individuals for name in one.params)])
    return Comparison(
        title=title,
        heads=[head for head, _ in chosen],
        ids=[one.id for one in individuals],
        results=results,
        parameters=[
            _compared(name, parameters.get(name), [one.params for one in individuals]) for name in names
        ],
    )


def _compared(
    name: str, parameter: Parameter | None, chosen: Sequence[Mapping[str, Scalar]]
) -> ComparedValues:
    values = [params.get(name) for params in chosen]
    shown = [_chosen(params, name) for params in chosen]
    low = high = ""
    places: list[float | None] = []
    if isinstance(parameter, Float | Int) and parameter.low < parameter.high:
        low, high = number(parameter.low), number(parameter.high)
        encode = parameter.encoder()
        places = [
            min(1.0, max(0.0, float(encode(one)))) if isinstance(one, (int, float)) else None
            for one in values
        ]
    elif isinstance(parameter, Ordinal) and len(parameter.choices) > 1:
        low, high = number(parameter.choices[0]), number(parameter.choices[-1])
        choices = list(parameter.choices)
        places = [choices.index(one) / (len(choices) - 1) if one in choices else None for one in values]
    differs = len({(text, repr(one)) for text, one in zip(shown, values, strict=True)}) > 1
    return ComparedValues(one_line(name), shown, places, low, high, differs=differs)


def _shown(value: object) -> str:
    return "–" if value is None else number(value)


def _chosen(params: Mapping[str, Scalar], name: str) -> str:
    """Value of a parameter, which may be None; a dash if the parameter does not exist."""
    return number(params[name]) if name in params else "–"


def _top(source: Source) -> PageTable | None:
    found = pareto.best(source.record, _TOP)
    if len(found) < 2:
        return None
    seen = dict.fromkeys(name for one in found for name in one.params)
    names = list(seen) if source.space is None else list(source.space.names)
    objectives = list(source.objectives)
    rows = []
    for one in found:
        results = [_shown((one.objectives or {}).get(name)) for name in objectives]
        rows.append([one.id, *results, *(_chosen(one.params, name) for name in names)])
    numbers = [
        all(isinstance(one.params.get(name), (int, float, type(None))) for one in found) for name in names
    ]
    columns = ["id", *map(one_line, objectives), *map(one_line, names)]
    return PageTable(columns=columns, rows=rows, numeric=[False, *[True] * len(objectives), *numbers])


def compared(sources: Sequence[Source]) -> PageTable:
    """Table of several campaigns."""
    rows = []
    first = sources[0]
    for source in sources:
        standing = overview.folded(source.record)
        best = source.best
        # Values of another objective or direction would not be comparable.
        alike = source.sign() == first.sign() and source.objective == first.objective
        failed = sum(one.status in FAILURES for one in source.ended)
        rows.append(
            [
                one_line(source.name),
                _shown(source.value(best) if best is not None and alike else None),
                _shown(source.default_value() if alike else None),
                _shown(source.number.get(best.id) if best is not None else None),
                number(len(source.ended)),
                text.duration(standing.seconds),
                number(standing.workers),
                number(failed),
                standing.state,
            ]
        )
    columns = [
        *("campaign", f"best {one_line(first.objective)}", "default", "found as number", "evaluations"),
        *("at work", "workers", "failed", "state"),
    ]
    return PageTable(columns=columns, rows=rows, numeric=[False, *[True] * 7, False])
