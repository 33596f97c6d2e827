"""What deserves attention in a campaign, in sentences: each check looks at one thing and says nothing, or why it
matters and what to do."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

import msgspec

from hpo.individual import COMPLETED, FINAL, LOST, PRUNED, Individual, Scalar
from hpo.results import overview
from hpo.results.analysis import pareto
from hpo.space.parameters import Categorical, Float, Int, Ordinal, Parameter
from hpo.task.outcome import summary_line
from hpo.terminal import one_line
from hpo.views import text
from hpo.views.figures.drawing.theme import duration, number
from hpo.views.figures.source import Source

Level = Literal["good", "note", "warn", "bad"]

_TOP = 10
_BORDER = 0.03
"""Of the (logarithmic) range: what is nearer to an end is at that end."""
_FEW_VALUES = 2
"""Number of values of which each is at an end."""
_FEWEST = 20
"""Evaluations, below which shares say little."""
_IDLE = 0.8
_SHARE_WARN, _SHARE_BAD = 0.05, 0.25


class Finding(msgspec.Struct, frozen=True):
    """``level``: good, worth knowing, to be looked at, wrong."""

    level: Level
    text: str


def findings(source: Source, busy: float | None = None) -> list[Finding]:
    """All findings, the worst first. ``busy``: the workers' busy share, where it is known."""
    found = [one for check in _CHECKS for one in check(source)]
    if busy is not None and busy < _IDLE and len(source.ended) >= _FEWEST:
        found.append(
            Finding(
                "note",
                f"Workers were busy {_percent(busy)} of the time: start-up, the end of the campaign and short "
                "evaluations cost the rest.",
            )
        )
    if source.ended and all(one.level == "note" for one in found):
        found.append(Finding("good", "Nothing needs attention."))
    order = {"bad": 0, "warn": 1, "good": 2, "note": 3}
    return sorted(found, key=lambda one: order[one.level])


def _percent(share: float) -> str:
    if 0 < share < 0.01:
        return "less than 1 %"
    return f"{share:.0%}".replace("%", " %")


def _failures(source: Source) -> Iterator[Finding]:
    total = len(source.ended)
    if not total:
        return
    bad = [one for one in source.ended if one.status in FINAL - {COMPLETED, PRUNED}]
    if not bad:
        yield Finding("good", "No evaluation failed.")
        return
    for status, count in Counter(one.status for one in bad).most_common():
        share = count / total
        level: Level = "note" if share < _SHARE_WARN or total < 5 else "warn" if share < _SHARE_BAD else "bad"
        lines = Counter(summary_line(one.error or "") for one in bad if one.status == status)
        line, often = lines.most_common(1)[0]
        verb = {"timeout": "timed out", "invalid": "returned no finite number"}.get(status, status)
        why = f", {often} of them with: {_cut(line)}" if often < count else f": {_cut(line)}"
        shown = _percent(share)
        yield Finding(
            level, f"{shown[0].upper()}{shown[1:]} {verb} ({count} of {total}){why if line else '.'}"
        )


def _cut(line: str, most: int = 160) -> str:
    shown = one_line(line)
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def _failing_choices(source: Source) -> Iterator[Finding]:
    """Values with which far more goes wrong than with others."""
    space = source.space
    bad = {one.id for one in source.ended if one.status in FINAL - {COMPLETED, PRUNED}}
    if space is None or len(bad) < 5:
        return
    base = len(bad) / len(source.ended)
    for name, parameter in space.parameters.items():
        if not isinstance(parameter, Categorical | Ordinal):
            continue
        outcomes: dict[object, list[bool]] = defaultdict(list)
        for one in source.ended:
            if name in one.params:
                outcomes[one.params[name]].append(one.id in bad)
        for value, own in outcomes.items():
            share = sum(own) / len(own)
            if len(own) >= 5 and sum(own) >= 4 and share > max(0.3, 2.5 * base):
                yield Finding(
                    "warn",
                    f"{_percent(share)} of the evaluations with {one_line(name)} = {one_line(value)} failed, against "
                    f"{_percent(base)} of all: leave it out, or forbid what breaks it by a constraint.",
                )


def _borders(source: Source) -> Iterator[Finding]:
    """Numbers and ordered choices whose best values lie at an end of their range."""
    space, best = source.space, source.best
    if space is None or best is None or len(source.completed) < _FEWEST or len(source.objectives) > 1:
        return
    top = pareto.best(source.record, _TOP)
    for name, parameter in space.parameters.items():
        if name not in best.params or not isinstance(parameter, Float | Int | Ordinal):
            continue
        if parameter.count is not None and parameter.count <= _FEW_VALUES:
            continue
        low: Scalar
        high: Scalar
        if isinstance(parameter, Ordinal):
            low, high, ordinal = parameter.choices[0], parameter.choices[-1], True
        else:
            low, high, ordinal = parameter.low, parameter.high, False
        values = [one.params[name] for one in top if name in one.params]
        for gene, end, word in (0.0, low, "lower"), (1.0, high, "upper"):
            natural = end in (0, None) and not getattr(parameter, "log", False)  # nothing lies beyond
            if natural or _distance(parameter, best.params[name], gene, end) > _BORDER:
                continue
            others = sum(_distance(parameter, one, gene, end) <= 3 * _BORDER for one in values)
            if 2 * others >= len(values):
                yield Finding(
                    "warn",
                    f"Best {one_line(name)} at its border: {number(best.params[name])}, where the "
                    f"{'choices are' if ordinal else 'range is'} {number(low)} to {number(high)}; so are {others} of "
                    f"the best {len(values)}. Beyond its {word} end there may be better: widen it.",
                )


def _distance(parameter: Parameter, value: Scalar, gene: float, end: Scalar) -> float:
    """How far a value is from the end of its range, whose gene is 0 or 1, as a part of the range; of discrete values
    each is at the end or not."""
    if isinstance(parameter, Float) and isinstance(value, (int, float)):
        return abs(parameter.encoder()(value) - gene)
    return 0.0 if value == end else 1.0


def _stalled(source: Source) -> Iterator[Finding]:
    """Since when the campaign, and each island, has found nothing better."""
    if len(source.objectives) > 1 or len(source.completed) < _FEWEST:
        return
    sign, last, best = source.sign(), 0, None
    own_best: dict[int, float] = {}
    own_last: dict[int, int] = {}
    own_count: Counter[int] = Counter()
    for place, one in enumerate(source.ended, start=1):
        own_count[one.island] += 1
        value = source.value(one) if one.status == COMPLETED else None
        if value is None:
            continue
        loss = sign * value
        if best is None or loss < best:
            best, last = loss, place
        if one.island not in own_best or loss < own_best[one.island]:
            own_best[one.island], own_last[one.island] = loss, own_count[one.island]
    since = len(source.ended) - last
    if since > max(_FEWEST, len(source.ended) // 2):
        yield Finding(
            "note",
            f"Nothing better for {since} of {len(source.ended)} evaluations: the search has levelled off, and more "
            "evaluations may bring little.",
        )
    for island in sorted(own_count):
        idle = own_count[island] - own_last.get(island, 0)
        if len(own_count) > 1 and idle > max(50, own_count[island] // 2):
            yield Finding("note", f"Island {island} found nothing better of its own for {idle} evaluations.")


def _default(source: Source) -> Iterator[Finding]:
    default, best = source.default, source.best
    if default is None or best is None or len(source.objectives) > 1 or len(source.completed) < _FEWEST:
        return
    if best.id == default.id:
        which = "first given point" if source.default_is_given else "default"
        yield Finding(
            "warn",
            f"Nothing is better than the {which}: the ranges may leave out what is good, or noise hides it.",
        )


def _pruned(source: Source) -> Iterator[Finding]:
    pruned = sum(one.status == PRUNED for one in source.ended)
    if pruned and pruned > 0.85 * len(source.ended) >= 0.85 * _FEWEST:
        yield Finding(
            "note",
            f"{_percent(pruned / len(source.ended))} were pruned: models learn from the few that completed. A larger "
            "min_steps or patience leaves more.",
        )


def _settings(source: Source) -> Iterator[Finding]:
    for remark in overview.remarks(source.record):
        yield Finding("warn", f"{remark[0].upper()}{remark[1:]}.")


def _launches(source: Source) -> Iterator[Finding]:
    record = source.record
    cut = [one for one in record.launches[:-1] if one.ended is None]
    if record.launches and record.launches[-1].ended is None and not record.alive:
        cut.append(record.launches[-1])
    if cut:
        names = ", ".join(str(one.number) for one in cut[:8])
        plural = "s" if len(cut) > 1 else ""
        yield Finding(
            "note", f"Launch{'es' if plural else ''} {names} ended without notice: killed, or its host died."
        )
    lost = [one for one in record.parts if one.status == LOST]
    if lost:
        ended = {one.id for one in source.ended}
        again = sum(one in ended for one in {one.id for one in lost})
        rest = len({one.id for one in lost}) - again
        what = (
            f"{len(lost)} evaluations were lost with their ranks"
            if len(lost) > 1
            else "One evaluation was lost"
        )
        left = (
            f"{rest} of them {'waits' if rest == 1 else 'wait'} for the next launch"
            if rest
            else "evaluated again"
        )
        yield Finding("note", f"{what}; {left}.")


def _workers(source: Source) -> Iterator[Finding]:
    for launch in source.record.launches[-3:]:
        for one in launch.left[:5]:
            yield Finding(
                "warn",
                f"Worker {one.island}-{one.worker} took no more part in launch {launch.number} after "
                f"{duration(max(0.0, one.time - launch.started))}: {_cut(one.reason)}",
            )
        if len(launch.left) > 5:
            yield Finding("warn", f"So did {len(launch.left) - 5} more.")


def _storage(source: Source) -> Iterator[Finding]:
    for launch in source.record.launches:
        begun: tuple[str, float] | None = None
        waited, errors = 0.0, Counter[str]()
        for one in launch.waits:
            if one.error is None:
                waited += 0.0 if begun is None else one.time - begun[1]
                begun = None
            else:
                errors[one.error] += 1
                begun = begun or (one.error, one.time)
        if errors:
            waited += launch.updated - begun[1] if begun else 0.0
            yield Finding(
                "warn",
                f"Launch {launch.number} waited {duration(max(1.0, waited))} for its storage: "
                f"{_cut(errors.most_common(1)[0][0])}",
            )


def _code(source: Source) -> Iterator[Finding]:
    if source.best is not None and (line := text.code(source.record, source.best)):
        yield Finding("note", f"{line[0].upper()}{line[1:]}.")


def _torn(source: Source) -> Iterator[Finding]:
    if source.record.torn and not source.record.alive:
        count = len(source.record.torn)
        yield Finding(
            "note",
            f"The last line of {count} journal{'s' if count > 1 else ''} was cut off and is left out.",
        )


_CHECKS: tuple[Callable[[Source], Iterable[Finding]], ...] = (
    _default,
    _failures,
    _failing_choices,
    _borders,
    _stalled,
    _pruned,
    _settings,
    _workers,
    _storage,
    _launches,
    _code,
    _torn,
)


def improvement(source: Source, best: Individual, default: Individual) -> str:
    """By how much the best is better than the default, in words; empty where it is not."""
    one, other = source.value(best), source.value(default)
    if one is None or other is None or source.sign() * (other - one) <= 0:
        return ""
    return f"{abs(one - other):.2g}" if abs(one - other) < 100 else number(abs(one - other))
