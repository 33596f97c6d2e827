"""Campaigns as text for a person to read."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from hpo.individual import LOST, STATUSES, Individual, is_known
from hpo.journal.code_copies import changed_files, where
from hpo.results.analysis.repeated import in_words
from hpo.results.overview import Best, Overview, folded
from hpo.terminal import one_line
from hpo.text import digits

if TYPE_CHECKING:
    import pandas

    from hpo.results.analysis.pareto import Hypervolume
    from hpo.results.analysis.repeated import Repeated
    from hpo.results.record import CampaignRecord
    from hpo.results.running import Running

_MOST_RUNNING = 10


def status(directory: Path, overview: Overview) -> str:
    """What ``hpo status`` prints of the campaign in ``directory``."""
    counts = {name: overview.evaluations[name] for name in STATUSES if overview.evaluations.get(name)}
    lines = [
        ("directory", one_line(directory)),
        ("state", state(overview)),
        ("evaluations", ", ".join(f"{count} {name}" for name, count in counts.items()) or "none yet"),
        ("running", str(overview.running)),
        *[("", line) for line in running(overview, time.time())],
        ("budget", _budget(overview)),
        ("islands, workers", f"{overview.islands}, {overview.workers}"),
        *[
            ("" if number else "without", f"worker {worker}: {reason}")
            for number, (worker, reason) in enumerate(overview.left)
        ],
        ("best", _best(overview.best)),
        *([("commands", f"{overview.waiting} not applied yet")] if overview.waiting else []),
        *([("known points", str(overview.known))] if overview.known else []),
        *[("code", line) for line in _versions(directory, overview.codes)],
        *[("" if number else "remarks", f"{line}.") for number, line in enumerate(overview.remarks)],
        *[("" if number else "errors", line) for number, line in enumerate(overview.errors)],
        ("started", when(overview.started)),
        ("last record", when(overview.updated)),
    ]
    if not overview.alive:  # else it is being written
        lines += [("torn", f"the last line of {name} was cut off and is left out") for name in overview.torn]
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in lines)


def running(overview: Overview, now: float) -> list[str]:
    """A line each for the individuals that run, those that run longest where there are many."""
    everyone = overview.individuals
    shown = everyone
    if len(everyone) > _MOST_RUNNING:
        shown = sorted(everyone, key=lambda one: one.started)[:_MOST_RUNNING]
    rows = [
        [
            one.id,
            f"worker {one.worker}",
            one_line(one.host),
            f"for {duration(now - one.started)}",
            report(one, now),
        ]
        for one in shown
    ]
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = [
        "  ".join([*(f"{cell:<{width}}" for cell, width in zip(row, widths) if width), params(one.params)])
        for row, one in zip(rows, shown)
    ]
    more = len(everyone) - len(shown)
    return lines + ([f"and {more} more; `--json` lists all"] if more else [])


def report(one: Running, now: float) -> str:
    """The last report in words; empty before the first."""
    if one.step is None or one.reported is None:
        return ""
    return f"step {one.step}: {short(one.value)}, {duration(now - one.reported)} ago"


def nothing(record: CampaignRecord) -> str:
    """Where no evaluation has completed: that, and what went wrong."""
    lines = [f"{one_line(record.directory)}: no evaluation has completed yet", *folded(record).errors]
    return "\n    ".join(lines)


def state(overview: Overview) -> str:
    """How the campaign stands, and what to do where it has ended."""
    now = overview.state
    if now == "stopping":
        return f"stopping ({overview.stopping or 'stopped'}): what runs may save itself"
    if now == "paused":
        return "paused: what runs goes on, and nothing new starts until `hpo unpause`"
    if now == "running" and overview.storage:
        error, since = overview.storage
        return f"running; storage: {one_line(error)}, waiting {max(0.0, time.time() - since):.0f} s"
    if now == "running":
        return "running"
    paused = "; paused: it begins nothing until `hpo unpause`" if overview.paused else ""
    return _ended(overview.ended, overview.evaluations.get(LOST, 0)) + paused


def _ended(ended: tuple[str, int] | None, lost: int) -> str:
    if ended is None:
        return (
            "cut off: its processes ended before the campaign did. Started again in the same way, it goes on"
        )
    reason, code = one_line(ended[0]), ended[1]
    if reason == "in vain":  # as earlier versions have it in their journals
        reason = "nothing completed"
    more = {
        "deadline": "deadline: the time was over. Started again in the same way, it goes on for as long again",
        "exhausted": "exhausted: all configurations that the space and its constraints allow are evaluated",
        "done": "done: the budget is used up. Started with more evaluations, it goes on",
    }
    failed = {
        "storage": "storage: it did not work for minutes. With room and access there, another start goes on",
        "refused": "refused: for two minutes the constraints refused all that was proposed. Narrow the ranges to where "
        "they hold, in another directory, or loosen the constraints and start it again",
        "futile": f"failed: {lost} evaluations failed one after the other, and count as lost. Mend that; when it is "
        "started again, they are evaluated again",
        "nothing completed": "failed: no evaluation completed, and the budget is used up. Mend what failed; after "
        "`hpo retry DIR --status all` and another start it is evaluated again",
    }
    if code:
        return failed.get(reason, f"{reason}. Started again in the same way, it goes on")
    return more.get(reason, reason)


def _versions(directory: Path, codes: Mapping[int, str]) -> list[str]:
    """A line where the task's code was not the same in all launches."""
    launches = list(codes.items())
    changes = [(now, before[1], code) for before, (now, code) in pairwise(launches) if code != before[1]]
    if not changes:
        return []
    launch, before, after = changes[-1]
    count = len({code for _, code in launches})
    return [
        f"{count} versions, in {one_line(directory / 'code')}; last changed before launch {launch}"
        f"{changed_files(directory, before, after)}"
    ]


def code(record: CampaignRecord, one: Individual) -> str:
    """Where the task's code has changed since ``one`` was evaluated, a line that says so; else empty."""
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
    return ", ".join(parts) or "unknown"


def _best(best: Best | None) -> str:
    if best is None:
        return "none yet"
    value, of = best.value, f"by {best.id}: {params(best.params)}"
    if not isinstance(value, Mapping):
        return f"{value} {of}" + (f" ({best.mean})" if best.mean else "")
    first = one_line(next(iter(value)))
    return f"{values_of(best, ' = ')} {of} (of {len(value)} objectives the best in {first}; `hpo best` shows the front)"


def values_of(best: Best, between: str = " ") -> str:
    """The best values, each with as many digits as tell it from the next best; of several objectives with their names.
    ``between``: what separates a name from its value."""
    if not isinstance(best.value, Mapping):
        return short(best.value, *best.digits)
    counts = best.digits or [4] * len(best.value)
    return ", ".join(
        f"{one_line(name)}{between}{short(value, count)}"
        for (name, value), count in zip(best.value.items(), counts)
    )


def when(seconds: float | None) -> str:
    """A moment, in Unix seconds, by the local clock."""
    return "never" if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def duration(seconds: float) -> str:
    """A time in words, coarser the longer it is."""
    whole = max(0, round(seconds))
    minutes, hours = whole // 60, whole // 3600
    if whole < 60:
        return f"{whole} s"
    if hours < 1:
        return f"{minutes} min"
    if hours < 48:
        return f"{hours} h {minutes % 60:02d} min"
    return f"{hours // 24} d {hours % 24} h"


def params(values: Mapping[str, object]) -> str:
    """A configuration on one line."""
    return ", ".join(f"{one_line(name)}={short(value)}" for name, value in values.items())


def short(value: object, digits: int = 4) -> str:
    """A value on one line, floats with so many ``digits``."""
    return f"{value:.{digits}g}" if isinstance(value, float) else one_line(value)


def best(individuals: Sequence[Individual], repeated: Mapping[str, Repeated]) -> str:
    """A block for each individual: its value and its parameters in full; ``repeated``: by id, what evaluations of the
    same configuration were in the mean.
    """
    return "\n".join(_block(one, repeated.get(one.id)) for one in individuals)


def _block(one: Individual, repeated: Repeated | None = None) -> str:
    values = ", ".join(f"{one_line(name)} = {value!r}" for name, value in (one.objectives or {}).items())
    rows = [f"{one.id}: {values}{_source_of(one)}{_of(repeated)}"]
    shown = {one_line(name): repr(value) for name, value in one.params.items()}
    width = max((len(name) for name in shown), default=0)
    rows += [f"    {name:<{width}} = {value}" for name, value in shown.items()]
    return "\n".join(rows)


def step_ranges(curves: pandas.DataFrame) -> dict[str, tuple[int, int]]:
    """By id the first and the last step in a table of learning curves."""
    if not len(curves):
        return {}
    steps = curves.groupby("id")["step"].agg(["min", "max"])
    return {name: (int(first), int(last)) for name, first, last in steps.itertuples()}


def schedule(
    line: Sequence[Individual],
    changed: Sequence[Mapping[str, object]],
    steps: Mapping[str, tuple[int, int]] | None = None,
) -> str:
    """The intervals of training that led to an individual, a line each; empty where it went on from no other.
    ``steps``: the first and the last that was reported, by id; where an interval counts from its own begin, they are
    shown from that of the first."""
    if len(line) < 2:
        return ""
    ranges = _continued([one.id for one in line], steps or {})
    counts = _digits(line)
    rows = [
        [
            one.id,
            *([steps_of(*ranges[one.id]) if one.id in ranges else ""] if ranges else []),
            *(
                f"{one_line(name)} = {short(value, counts[name])}"
                for name, value in (one.objectives or {}).items()
            ),
        ]
        for one in line
    ]
    widths = [
        max(len(row[place]) if place < len(row) else 0 for row in rows)
        for place in range(max(map(len, rows)))
    ]
    lines = [f"schedule of {line[-1].id}, {len(line)} intervals, with the parameters that change:"]
    for row, fresh in zip(rows, changed):
        cells = "  ".join(f"{cell:<{width}}" for cell, width in zip([*row, *[""] * len(widths)], widths))
        lines.append(f"    {cells}  {params(fresh) or 'goes on'}")
    return "\n".join(lines)


def _digits(individuals: Sequence[Individual]) -> dict[str, int]:
    """By objective, the significant digits at which the individuals' values differ."""
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
    """In words."""
    return f"step {first}" if first == last else f"steps {first} to {last}"


def steadiest(record: CampaignRecord) -> str:
    """Where configurations were evaluated more than once, that which is believed to be the best, on a line; else
    empty.
    """
    from hpo.results.analysis import pareto as fronts

    for one in fronts.repeated(record)[:1]:
        return f"\nmost likely the best: {one.individual.id}{_of(one)}: {params(one.individual.params)}"
    return ""


def _of(repeated: Repeated | None) -> str:
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
    """A line an individual of the front, the configurations of the best and of the knee in full, and the hypervolume.
    ``individuals``: the best first; ``whole``: how many the front has."""
    names, counts = list(knee.objectives or {}), _digits(individuals)
    head = ["", "id", *map(one_line, names), "configuration"]
    rows = [
        ["*" if one is knee else "", one.id]
        + [short((one.objectives or {})[name], counts[name]) for name in names]
        + [params(one.params) + _source_of(one)]
        for one in individuals
    ]
    widths = [max(map(len, column)) for column in zip(*[head[:-1], *(row[:-1] for row in rows)])]
    lines = [
        "  ".join([*(f"{cell:<{width}}" for cell, width in zip(row, widths)), row[-1]])
        for row in [head, *rows]
    ]
    of = f"{len(individuals)} of {whole}" if len(individuals) < whole else str(whole)
    ways = ", ".join(f"{one_line(name)} ({way})" for name, way in objectives.items())
    half = volume.after((volume.evaluations or [0])[-1] // 2)
    at = ", ".join(f"{one_line(name)} = {short(value)}" for name, value in volume.reference.items())
    return "\n".join(
        [
            f"{len(objectives)} objectives, {ways}: front of {of} that no other dominates; the first is the best in "
            f"{one_line(names[0])}, as in all views; * is the knee, the nearest to the best of each objective:",
            *lines,
            *(_block(one) for one in {one.id: one for one in (individuals[0], knee)}.values()),
            f"hypervolume {volume.last:.6g} up to {at}{'' if volume.given else ', the worst of each'}; "
            f"{half:.6g} after half of the evaluations",
        ]
    )
