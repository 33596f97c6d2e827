"""A campaign in words and numbers: what a report says before its figures."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from hpo.individual import COMPLETED, FINAL, PRUNED, Individual, Scalar, is_known
from hpo.results import overview
from hpo.results.analysis import pareto
from hpo.results.analysis.repeated import in_words
from hpo.space.parameters import Float, Int, Ordinal, Parameter
from hpo.terminal import one_line
from hpo.views import text
from hpo.views.figures.drawing.theme import duration, number
from hpo.views.figures.source import Source
from hpo.views.figures.timeline import busy_share
from hpo.views.report.health import Finding, findings, improvement

_TOP = 10


class Fact(msgspec.Struct, frozen=True):
    """A number that stands alone, what it is of, and what is beside it."""

    label: str
    value: str
    note: str = ""


class Table(msgspec.Struct, frozen=True):
    """``numeric``: by column, whether it holds numbers."""

    columns: list[str]
    rows: list[list[str]]
    numeric: list[bool]


class Row(msgspec.Struct, frozen=True):
    """A parameter in the configurations compared. ``places``: where each value lies in the range, from 0 to 1, None
    where there is none, or no order; ``low``, ``high``: the ends of the range; ``differs``: not all have the same."""

    name: str
    values: list[str]
    places: list[float | None]
    low: str = ""
    high: str = ""
    differs: bool = True


class Comparison(msgspec.Struct, frozen=True):
    """Configurations side by side. ``heads``: what each is; ``ids``; ``results``: a row an objective."""

    title: str
    heads: list[str]
    ids: list[str]
    results: list[Row]
    parameters: list[Row]


class Missing(msgspec.Struct, frozen=True):
    """A figure that the data do not fill, and why."""

    title: str
    reason: str


class Summary(msgspec.Struct, kw_only=True):
    """One campaign. Times are in words, in the time zone of whoever made it."""

    name: str
    directory: str
    task: str
    state: str
    lead: str
    facts: list[Fact]
    health: list[Finding]
    comparison: Comparison | None
    top: Table | None
    span: str
    missing: list[Missing] = []


def summary(source: Source) -> Summary:
    """What is to be said of one campaign."""
    record = source.record
    standing = overview.folded(record)
    busy = busy_share(source)
    task = one_line(record.identity.get("task") or "")
    return Summary(
        name=one_line(source.name),
        directory=one_line(record.directory),
        task=task,
        state=f"{text.state(standing)}",
        lead=_lead(source, standing),
        facts=_facts(source, standing, busy),
        health=findings(source, busy),
        comparison=_comparison(source),
        top=_top(source),
        span=_span(record.started, record.updated),
    )


def _values(one: Individual) -> str:
    return " and ".join(f"{one_line(key)} {number(value)}" for key, value in (one.objectives or {}).items())


def _span(started: float | None, updated: float | None) -> str:
    if started is None or updated is None:
        return ""
    first, last = time.localtime(started), time.localtime(updated)
    day = time.strftime("%-d %B %Y, %H:%M", first)
    same = first[:3] == last[:3]
    return f"{day} to {time.strftime('%H:%M' if same else '%-d %B %Y, %H:%M', last)}"


def _lead(source: Source, standing: overview.Overview) -> str:
    best, record = source.best, source.record
    if best is None:
        return "No evaluation has completed yet."
    name, count = one_line(source.objective), len(source.ended)
    parts = []
    value = number(source.value(best))
    if len(source.objectives) > 1:
        front = pareto.front(record)
        ways = " and ".join(
            f"{one_line(key)} ({'more' if way == 'maximize' else 'less'} is better)"
            for key, way in source.objectives.items()
        )
        parts.append(
            f"Of {len(source.completed)} completed evaluations, {len(front)} are on the Pareto front of {ways}."
            if len(front) > 1
            else f"Of {len(source.completed)} completed evaluations one is the best in {ways}."
        )
        knee = pareto.knee(front, source.objectives)
        if len(front) > 1:
            parts.append(f"The best in {name}, {best.id}, has {_values(best)}.")
        if knee is not None and len(front) > 2:
            parts.append(f"Its knee, {knee.id}, has {_values(knee)}.")
        return " ".join([*parts, _work(source, standing)])
    if is_known(best.id):
        parts.append(
            f"The best is still a known point, {name} {value}: none of {count} evaluations is better."
        )
        return " ".join([*parts, _work(source, standing)])
    found = f"The best of {number(count)} evaluations, {best.id}, has {name} {value}"
    default = source.default
    if default is not None and default.id != best.id and (gain := improvement(source, best, default)):
        which = "the first given point" if source.default_is_given else "the default"
        found += f": {gain} better than {which} ({number(source.value(default))})"
    parts.append(f"{found}.")
    if best.id in source.number and best.finished is not None:
        at = source.number[best.id]
        seconds = float(source.at_work([best.finished])[0])
        kind = {"default": "as the task's default", "given": "as a given point"}.get(
            best.operator, f"by {one_line(best.operator)}"
        )
        parts.append(f"It was proposed {kind} and found as number {number(at)}, after {duration(seconds)}.")
    again = [one for one in pareto.repeated(record) if one.individual.id == best.id]
    if again:
        parts.append(f"Its configuration is the best {in_words(again[0])}.")
    return " ".join([*parts, _work(source, standing)])


def _work(source: Source, standing: overview.Overview) -> str:
    launches = len(source.record.launches)
    islands = f" on {standing.islands} islands" if standing.islands > 1 else ""
    workers = f"{standing.workers} worker{'s' if standing.workers != 1 else ''}"
    times = f" in {launches} launches" if launches > 1 else ""
    return f"{workers[0].upper()}{workers[1:]}{islands} worked for {duration(standing.seconds)}{times}."


def _facts(source: Source, standing: overview.Overview, busy: float | None) -> list[Fact]:
    counts = Counter(one.status for one in source.ended)
    ended = len(source.ended)
    failed = sum(counts[status] for status in FINAL - {COMPLETED, PRUNED})
    facts = []
    if source.best is not None and len(source.objectives) == 1:
        way = "higher is better" if source.sign() < 0 else "lower is better"
        facts.append(Fact(f"best {one_line(source.objective)}", number(source.value(source.best)), way))
    elif source.best is not None:
        front = len(pareto.front(source.record))
        facts.append(Fact("on the Pareto front", str(front), f"{len(source.objectives)} objectives"))
    of = f"of {number(standing.budget)}" if standing.budget is not None else ""
    running = f"{standing.running} running" if standing.running else ""
    facts.append(Fact("evaluations", number(ended), ", ".join(filter(None, (of, running)))))
    launches = len(source.record.launches)
    facts.append(
        Fact(
            "at work",
            duration(standing.seconds),
            f"{launches} launch{'es' if launches != 1 else ''}",
        )
    )
    if standing.workers:
        share = "" if busy is None else f"{busy:.0%} busy".replace("%", " %")
        facts.append(Fact("workers", number(standing.workers), share))
    if counts[PRUNED]:
        facts.append(
            Fact("pruned", number(counts[PRUNED]), f"{counts[PRUNED] / ended:.0%}".replace("%", " %"))
        )
    share = f"{failed / ended:.0%}".replace("%", " %") if ended and failed else ""
    facts.append(Fact("failed", number(failed), share))
    return facts


def _comparison(source: Source) -> Comparison | None:
    """Best and default; with several objectives the best in each of them, the first before the knee."""
    best = source.best
    if best is None:
        return None
    chosen: list[tuple[str, Individual]] = []
    if len(source.objectives) > 1:
        front = pareto.front(source.record)
        knee = pareto.knee(front, source.objectives)
        for name in list(source.objectives)[:3]:
            sign = source.sign(name)
            top = min(front, key=lambda one: sign * (one.objectives or {})[name])
            chosen.append((f"best {one_line(name)}", top))
        if knee is not None:
            chosen.insert(1, ("knee of the front", knee))
    else:
        chosen.append(("best", best))
    if source.default is not None and source.default.id != best.id:
        chosen.append(("first given" if source.default_is_given else "default", source.default))
    individuals = [one for _, one in chosen]
    results = [
        Row(one_line(name), [_shown((one.objectives or {}).get(name)) for one in individuals], [])
        for name in source.objectives
    ]
    parameters = source.space.parameters if source.space is not None else {}
    names = [*parameters, *(name for one in individuals for name in one.params if name not in parameters)]
    several = len(source.objectives) > 1
    title = "Notable configurations" if several else " and ".join(head for head, _ in chosen).capitalize()
    return Comparison(
        title=title,
        heads=[head for head, _ in chosen],
        ids=[one.id for one in individuals],
        results=results,
        parameters=[
            _row(name, parameters.get(name), [one.params for one in individuals])
            for name in dict.fromkeys(names)
        ],
    )


def _row(name: str, parameter: Parameter | None, chosen: Sequence[Mapping[str, Scalar]]) -> Row:
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
    return Row(
        one_line(name),
        shown,
        places,
        low,
        high,
        differs=len({(text, repr(one)) for text, one in zip(shown, values, strict=True)}) > 1,
    )


def _shown(value: object) -> str:
    return "–" if value is None else number(value)


def _chosen(params: Mapping[str, Scalar], name: str) -> str:
    """The value of a parameter, which may be None; not that of one that does not exist in ``params``."""
    if name not in params:
        return "–"
    return "None" if params[name] is None else number(params[name])


def _top(source: Source) -> Table | None:
    """The best, or the front, a line each."""
    found = pareto.best(source.record, _TOP)
    if len(found) < 2:
        return None
    space = source.space
    names = (
        list(space.names)
        if space is not None
        else list(dict.fromkeys(n for one in found for n in one.params))
    )
    objectives = list(source.objectives)
    return Table(
        columns=["id", *map(one_line, objectives), *map(one_line, names)],
        rows=[
            [
                one.id,
                *(_shown((one.objectives or {}).get(name)) for name in objectives),
                *(_chosen(one.params, name) for name in names),
            ]
            for one in found
        ],
        numeric=[
            False,
            *(True for _ in objectives),
            *(
                all(isinstance(one.params.get(name), (int, float, type(None))) for one in found)
                for name in names
            ),
        ],
    )


def compared(sources: Sequence[Source]) -> Table:
    """Several campaigns, a row each; the columns that all have."""
    rows = []
    objective = sources[0].objective
    for source in sources:
        standing = overview.folded(source.record)
        best, default = source.best, source.default
        # Its values cannot stand beside those of the first.
        other = source.sign() != sources[0].sign() or source.objective != objective
        failed = sum(one.status in FINAL - {COMPLETED, PRUNED} for one in source.ended)
        found = source.number.get(best.id) if best is not None else None
        rows.append(
            [
                one_line(source.name),
                _shown(None if best is None or other else source.value(best)),
                _shown(None if default is None or other else source.value(default)),
                _shown(found),
                number(len(source.ended)),
                duration(standing.seconds),
                number(standing.workers),
                number(failed),
                standing.state,
            ]
        )
    best_of = f"best {one_line(objective)}"
    columns = [
        "campaign",
        best_of,
        "default",
        "found as number",
        "evaluations",
        "at work",
        "workers",
        "failed",
        "state",
    ]
    return Table(columns=columns, rows=rows, numeric=[False, *[True] * 7, False])
