"""Campaigns as text for a person to read."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from hpo.individual import COMPLETED, LOST, STATUSES, Individual, is_known
from hpo.journal.code_copies import changed_files, where
from hpo.results.analysis import pareto
from hpo.results.analysis.repeated import in_words
from hpo.results.overview import Best, Overview, folded
from hpo.task.limits import without_best
from hpo.terminal import one_line
from hpo.text import digits, plural

if TYPE_CHECKING:
    from hpo.results.analysis.pareto import Hypervolume
    from hpo.results.analysis.repeated import Repeated
    from hpo.results.record import CampaignRecord
    from hpo.results.running import Running

_MOST_RUNNING = 10
_COMPLETED_ENDS = {
    "deadline": "deadline: the time was over. Started again in the same way, it goes on for as long again",
    "exhausted": "exhausted: all configurations that the space and its constraints allow are evaluated",
    "handed over": "handed over: other launches were to finish what was left. Started again, it goes on",
    "done": "done: the budget is used up. Started with more evaluations, it goes on",
}
_FAILED_ENDS = {
    "storage": "storage: it did not work for minutes. With room and access there, another start goes on",
    "refused": "refused: for two minutes the constraints refused all that was proposed. Narrow the ranges to where "
    "they hold, in another directory, or loosen the constraints and start it again",
    "futile": "failed: {lost} evaluations failed one after the other, and count as lost. Mend that; when it is "
    "started again, they are evaluated again",
    "nothing completed": "failed: no evaluation completed, and the budget is used up. Mend what failed; after "
    "`hpo retry DIR --status all` and another start it is evaluated again",
}


def status(directory: Path, overview: Overview) -> str:
    """Text of ``hpo status`` for the campaign in ``directory``."""
    counts = {name: overview.evaluations[name] for name in STATUSES if overview.evaluations.get(name)}
    launches = f" in {overview.launches} launches" if overview.launches > 1 else ""
    rows = [
        ("directory", one_line(directory)),
        ("state", state(overview)),
        ("evaluations", ", ".join(f"{count} {name}" for name, count in counts.items()) or "none yet"),
        ("running", str(overview.running)),
        *(("", line) for line in running(overview.individuals, time.time(), _MOST_RUNNING)),
        ("budget", _budget(overview)),
        ("islands, workers", f"{overview.islands}, {overview.workers}{launches}"),
        *_labelled("without", (f"worker {worker}: {reason}" for worker, reason in overview.left)),
        ("best", _best(overview.best)),
        *_labelled("commands", [f"{overview.waiting} not applied yet"] if overview.waiting else []),
        *_labelled("known points", [str(overview.known)] if overview.known else []),
        *_labelled("code", _versions(directory, overview.codes)),
        *_labelled("remarks", (f"{line}." for line in overview.remarks)),
        *_labelled("errors", overview.errors),
        ("started", when(overview.started)),
        (
            "at work",
            f"{duration(overview.seconds)}, {overview.worker_hours:.2g} worker-hours; evaluations took "
            f"{overview.rank_hours:.2g} rank-hours",
        ),
        ("last record", when(overview.updated)),
    ]
    if not overview.alive:  # a journal of a campaign at work is being written
        torn = (f"the last line of {name} was cut off and is left out" for name in overview.torn)
        rows += _labelled("torn", torn)
    return "\n".join(table(rows))


def _labelled(label: str, lines: Iterable[str]) -> list[tuple[str, str]]:
    return [("" if number else label, line) for number, line in enumerate(lines)]


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table without empty columns; the last column is not padded."""
    widths = [max(map(len, column)) for column in zip(*rows)][:-1]
    return [
        "  ".join([*(f"{cell:<{width}}" for cell, width in zip(row, widths) if width), row[-1]]).rstrip()
        for row in rows
    ]


def running(individuals: Sequence[Running], now: float, most: int, *, hosts: bool = True) -> list[str]:
    """At most ``most`` lines on individuals that run, or one more on the rest: those that run longest."""
    shown = individuals
    if len(individuals) > most:
        shown = sorted(individuals, key=lambda one: one.started)[:most]
    rows = [
        (
            one.id,
            f"worker {one.worker}",
            one_line(one.host) if hosts else "",
            f"for {duration(now - one.started)}",
            report(one, now),
            params(one.params),
        )
        for one in shown
    ]
    more = len(individuals) - len(shown)
    return table(rows) + ([f"and {more} more; `hpo status --json` lists all"] if more else [])


def report(one: Running, now: float) -> str:
    """The last report in words; empty before the first."""
    if one.step is None or one.reported is None:
        return ""
    return f"step {one.step}: {short(one.value)}, {duration(now - one.reported)} ago"


def nothing(record: CampaignRecord) -> str:
    """Text for a campaign without a best individual, with its errors."""
    completed = sum(one.status == COMPLETED for one in record.individuals)
    remarks = without_best(record.limits, completed) or ["no evaluation has completed yet"]
    lines = [f"{one_line(record.directory)}: {one_line(remarks[0])}", *folded(record).errors]
    return "\n    ".join(lines)


def state(overview: Overview) -> str:
    """State of the campaign, with what to do if it has ended."""
    match overview.state:
        case "stopping" if overview.ended_early:
            return f"stopping ({one_line(overview.ended_early)}): what runs may save itself"
        case "stopping":
            return f"stopping ({overview.stopping or 'stopped'}): what runs may save itself"
        case "paused":
            return "paused: what runs goes on, and nothing new starts until `hpo unpause`"
        case "running" if overview.storage:
            error, since = overview.storage
            return f"running; storage: {one_line(error)}, waiting {max(0.0, time.time() - since):.0f} s"
        case "running":
            return "running"
    paused = "; paused: it begins nothing until `hpo unpause`" if overview.paused else ""
    return _ended(overview) + paused


def _ended(overview: Overview) -> str:
    if overview.ended_early:
        return f"done: {one_line(overview.ended_early)}. With another limit there, `hpo run` goes on"
    if overview.ended is None:
        return (
            "cut off: its processes ended before the campaign did. Started again in the same way, it goes on"
        )
    reason, code = one_line(overview.ended[0]), overview.ended[1]
    if reason == "in vain":  # journals of earlier versions
        reason = "nothing completed"
    if not code:
        return _COMPLETED_ENDS.get(reason, reason)
    text = _FAILED_ENDS.get(reason, f"{reason}. Started again in the same way, it goes on")
    return text.replace("{lost}", str(overview.evaluations.get(LOST, 0)))


def _versions(directory: Path, codes: Mapping[int, str]) -> list[str]:
    changes = [(launch, old, new) for (_, old), (launch, new) in pairwise(codes.items()) if old != new]
    if not changes:
        return []
    launch, before, after = changes[-1]
    return [
        f"{len({*codes.values()})} versions, in {one_line(directory / 'code')}; last changed before launch {launch}"
        f"{changed_files(directory, before, after)}"
    ]


def code(record: CampaignRecord, one: Individual) -> str:
    """Sentence on changes of the task's code since ``one`` was evaluated; empty without any."""
    versions = record.code_versions
    used = versions.get(one.launch)
    latest = versions[max(versions)] if versions else None
    if used is None or latest is None or used == latest:
        return ""
    return (
        f"the task's code has changed since {one.id} was evaluated{changed_files(record.directory, used, latest)}. Of "
        f"the version that evaluated it {where(record.directory, used)}"
    )


def _budget(overview: Overview) -> str:
    parts = []
    if overview.budget is not None:
        parts.append(f"{overview.budget} evaluations")
    if overview.deadline_s is not None:
        parts.append(f"deadline {overview.deadline_s}")
    if overview.rank_hours_limit is not None:
        parts.append(f"{overview.rank_hours_limit:g} rank-hours")
    return ", ".join(parts) or "unknown"


def _best(best: Best | None) -> str:
    if best is None:
        return "none yet"
    value, by = best.value, f"by {best.id}: {params(best.params)}"
    if not isinstance(value, Mapping):
        return f"{value} {by}" + (f" ({best.mean})" if best.mean else "")
    first = one_line(next(iter(value)))
    return f"{values_of(best, ' = ')} {by} (of {len(value)} objectives the best in {first}; `hpo best` shows the front)"


def values_of(best: Best, between: str = " ") -> str:
    """Values of the best individual, with as many digits as distinguish them from the next best; ``between`` separates
    names from values of several objectives."""
    if not isinstance(best.value, Mapping):
        return short(best.value, *best.digits)
    counts = best.digits or [4] * len(best.value)
    return ", ".join(
        f"{one_line(name)}{between}{short(value, count)}"
        for (name, value), count in zip(best.value.items(), counts)
    )


def when(seconds: float | None) -> str:
    """Unix seconds as local date and time."""
    return "never" if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def duration(seconds: float) -> str:
    """Seconds in words, which are coarser for longer times."""
    whole = max(0, round(seconds))
    minutes, hours = whole // 60, whole // 3600
    if whole < 60:
        return f"{whole} s"
    if hours < 1:
        return f"{minutes} min"
    if hours < 48:
        return f"{hours} h {minutes % 60:02d} min"
    return f"{hours // 24} d {hours % 24} h"


def percent(share: float) -> str:
    """A share in percent."""
    return f"{share:.0%}".replace("%", " %") if not 0 < share < 0.01 else "less than 1 %"


def params(values: Mapping[str, object]) -> str:
    """A configuration on a line."""
    return ", ".join(f"{one_line(name)}={short(value)}" for name, value in values.items())


def short(value: object, digits: int = 4) -> str:
    """A value on a line; ``digits``: significant digits of floats."""
    return f"{value:.{digits}g}" if isinstance(value, float) else one_line(value)


def block(one: Individual, repeated: Repeated | None = None) -> str:
    """Values and parameters of an individual in full, with the mean of its configuration's evaluations."""
    values = ", ".join(f"{one_line(name)} = {value!r}" for name, value in (one.objectives or {}).items())
    shown = {one_line(name): repr(value) for name, value in one.params.items()}
    width = max(map(len, shown), default=0)
    lines = [f"    {name:<{width}} = {value}" for name, value in shown.items()]
    return "\n".join([f"{one.id}: {values}{_source_of(one)}{_mean_of(repeated)}", *lines])


def schedule(
    line: Sequence[Individual],
    changed: Sequence[Mapping[str, object]],
    steps: Mapping[str, tuple[int, int]],
) -> str:
    """Intervals of training that led to an individual, if it continued from others. ``steps``: first and last reported
    step by id; where intervals count from their own begins, steps are shown from the begin of the first."""
    if len(line) < 2:
        return ""
    ranges = _continued([one.id for one in line], steps)
    counts, rows = _digits(line), []
    for one, fresh in zip(line, changed):
        reported = steps_of(*ranges[one.id]) if one.id in ranges else ""
        values = (one.objectives or {}).items()
        shown = [f"{one_line(name)} = {short(value, counts[name])}" for name, value in values]
        rows.append((f"    {one.id}", reported, "  ".join(shown), params(fresh) or "goes on"))
    head = f"schedule of {line[-1].id}, {plural(len(line), 'interval')}, with the parameters that change:"
    return "\n".join([head, *table(rows)])


def _digits(individuals: Sequence[Individual]) -> dict[str, int]:
    names = {name for one in individuals for name in one.objectives or {}}
    return {name: digits((one.objectives or {}).get(name) for one in individuals) for name in names}


def _continued(ids: Sequence[str], steps: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    before = 0
    for identity in ids:
        if identity in steps:
            first, last = steps[identity]
            offset = 0 if first > before else before
            found[identity] = offset + first, offset + last
            before = offset + last
    return found


def steps_of(first: int, last: int) -> str:
    """A range of steps in words."""
    return f"step {first}" if first == last else f"steps {first} to {last}"


def steadiest(record: CampaignRecord) -> str:
    """Line on the configuration with the best estimated mean; empty if none was evaluated repeatedly."""
    for one in pareto.repeated(record)[:1]:
        return f"\nmost likely the best: {one.individual.id}{_mean_of(one)}: {params(one.individual.params)}"
    return ""


def _mean_of(repeated: Repeated | None) -> str:
    return "" if repeated is None else f"    ({in_words(repeated)})"


def _source_of(one: Individual) -> str:
    return f"    (known, from {one_line(one.metrics.get('source'))})" if is_known(one.id) else ""


def front(
    individuals: Sequence[Individual],
    knee: Individual,
    volume: Hypervolume,
    whole: int,
    objectives: Mapping[str, str],
) -> str:
    """Table of members of the front, the configurations of the first and of the knee in full, and the hypervolume.
    ``whole``: number of members of the whole front."""
    names, counts = list(objectives), _digits(individuals)
    rows = [["", "id", *map(one_line, names), "configuration"]]
    for one in individuals:
        values = [short((one.objectives or {})[name], counts[name]) for name in names]
        rows.append(["*" if one is knee else "", one.id, *values, params(one.params) + _source_of(one)])
    shown = f"{len(individuals)} of {whole}" if len(individuals) < whole else str(whole)
    ways = ", ".join(f"{one_line(name)} ({way})" for name, way in objectives.items())
    half = volume.after((volume.evaluations or [0])[-1] // 2)
    corner = ", ".join(f"{one_line(name)} = {short(value)}" for name, value in volume.reference.items())
    return "\n".join(
        [
            f"{len(objectives)} objectives, {ways}: front of {shown} that no other dominates; the first is the best in "
            f"{one_line(names[0])}, as in all views; * is the knee, the nearest to the best of each objective:",
            *table(rows),
            *(block(one) for one in {one.id: one for one in (individuals[0], knee)}.values()),
            f"hypervolume {volume.last:.6g} up to {corner}{'' if volume.given else ', the worst of each'}; "
            f"{half:.6g} after half of the evaluations",
        ]
    )
