"""Findings that deserve attention in a campaign: sentences on why something matters and what to do."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

import msgspec

from hpo.individual import COMPLETED, FAILURES, LOST, Individual, Scalar
from hpo.results import overview
from hpo.results.analysis import pareto
from hpo.space.parameters import Categorical, Ordinal, Parameter
from hpo.space.ranges import Float, Int
from hpo.task.outcome import summary_line
from hpo.terminal import one_line
from hpo.text import plural
from hpo.views import text
from hpo.views.figures.drawing.theme import number
from hpo.views.figures.source import Source

Level = Literal["bad", "warn", "good", "note"]

_ORDER = ("bad", "warn", "good", "note")
_TOP = 10
_BORDER = 0.03  # part of the (logarithmic) range that counts as its end
_FEW_VALUES = 2  # each of so few values is at an end
_FEWEST = 20  # evaluations below which shares say little
_SHARE_WARN, _SHARE_BAD = 0.05, 0.25
_LONGEST = 160  # characters of an error


class Attention(msgspec.Struct, frozen=True):
    """A sentence on a campaign, with how much it matters."""

    level: Level
    text: str


def findings(source: Source) -> list[Attention]:
    """All findings, the worst first."""
    found = [one for check in _CHECKS for one in check(source)]
    if source.ended and all(one.level == "note" for one in found):
        found.append(Attention("good", "Nothing needs attention."))
    return sorted(found, key=lambda one: _ORDER.index(one.level))


def _failures(source: Source) -> Iterator[Attention]:
    total = len(source.ended)
    bad = [one for one in source.ended if one.status in FAILURES]
    for status, count in Counter(one.status for one in bad).most_common():
        share = count / total
        level: Level = "note" if share < _SHARE_WARN or total < 5 else "warn" if share < _SHARE_BAD else "bad"
        lines = Counter(summary_line(one.error or "") for one in bad if one.status == status)
        line, often = lines.most_common(1)[0]
        verb = {"timeout": "timed out", "invalid": "returned no finite number"}.get(status, status)
        why = f", {often} of them with: {_cut(line)}" if often < count else f": {_cut(line)}"
        said = f"{text.percent(share)} {verb} ({count} of {total}){why if line else '.'}"
        yield Attention(level, _sentence(said))


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}"


def _cut(line: str) -> str:
    shown = one_line(line)
    return shown if len(shown) <= _LONGEST else f"{shown[: _LONGEST - 1]}…"


def _failing_choices(source: Source) -> Iterator[Attention]:
    bad = {one.id for one in source.ended if one.status in FAILURES}
    if source.space is None or len(bad) < 5:
        return
    base = len(bad) / len(source.ended)
    for name, parameter in source.space.parameters.items():
        if not isinstance(parameter, Categorical | Ordinal):
            continue
        outcomes: dict[object, list[bool]] = defaultdict(list)
        for one in source.ended:
            if name in one.params:
                outcomes[one.params[name]].append(one.id in bad)
        for value, own in outcomes.items():
            share = sum(own) / len(own)
            if len(own) >= 5 and sum(own) >= 4 and share > max(0.3, 2.5 * base):
                yield Attention(
                    "warn",
                    f"{text.percent(share)} of the evaluations with {one_line(name)} = {one_line(value)} failed, "
                    f"against {text.percent(base)} of all: leave it out, or forbid what breaks it by a constraint.",
                )


def _borders(source: Source) -> Iterator[Attention]:
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
        if ordinal := isinstance(parameter, Ordinal):
            low, high = parameter.choices[0], parameter.choices[-1]
        else:
            low, high = parameter.low, parameter.high
        values = [one.params[name] for one in top if name in one.params]
        for gene, end, word in (0.0, low, "lower"), (1.0, high, "upper"):
            # Nothing lies beyond 0, which no user chose as an end, or None.
            natural = end in (0, None) and not getattr(parameter, "log", False)
            if natural or _distance(parameter, best.params[name], gene, end) > _BORDER:
                continue
            others = sum(_distance(parameter, one, gene, end) <= 3 * _BORDER for one in values)
            if 2 * others >= len(values):
                yield Attention(
                    "warn",
                    f"Best {one_line(name)} at its border: {number(best.params[name])}, where the "
                    f"{'choices are' if ordinal else 'range is'} {number(low)} to {number(high)}; so are {others} of "
                    f"the best {len(values)}. Beyond its {word} end there may be better: widen it.",
                )


def _distance(parameter: Parameter, value: Scalar, gene: float, end: Scalar) -> float:
    """Distance of a value from the end of the range (whose gene is 0 or 1) as a part of the range; 0 or 1 for discrete
    values."""
    if isinstance(parameter, Float) and parameter.count is None and isinstance(value, (int, float)):
        return abs(parameter.encoder()(value) - gene)
    return 0.0 if value == end else 1.0


def _stalled(source: Source) -> Iterator[Attention]:
    if len(source.objectives) > 1 or len(source.completed) < _FEWEST:
        return
    idle = _evaluations_without_better(source, source.ended)
    if idle > max(_FEWEST, len(source.ended) // 2):
        yield Attention(
            "note",
            f"Nothing better for {idle} of {len(source.ended)} evaluations: the search has levelled off, and more "
            "evaluations may bring little.",
        )
    by_island: dict[int, list[Individual]] = defaultdict(list)
    for one in source.ended:
        by_island[one.island].append(one)
    for island, own in sorted(by_island.items()):
        idle = _evaluations_without_better(source, own)
        if len(by_island) > 1 and idle > max(50, len(own) // 2):
            yield Attention(
                "note", f"Island {island} found nothing better of its own for {idle} evaluations."
            )


def _evaluations_without_better(source: Source, ended: list[Individual]) -> int:
    sign, best, idle = source.sign(), float("inf"), 0
    for one in ended:
        value = source.value(one) if one.status == COMPLETED else None
        idle += 1
        if value is not None and sign * value < best:
            best, idle = sign * value, 0
    return idle


def _default(source: Source) -> Iterator[Attention]:
    default, best = source.default, source.best
    if default is None or best is None or len(source.objectives) > 1 or len(source.completed) < _FEWEST:
        return
    if best.id == default.id:
        yield Attention(
            "warn",
            f"Nothing is better than the {source.default_name}: the ranges may leave out what is good, or noise hides "
            "it.",
        )


def _settings(source: Source) -> Iterator[Attention]:
    for remark in overview.remarks(source.record):
        yield Attention("warn", f"{_sentence(remark)}.")


def _launches(source: Source) -> Iterator[Attention]:
    record = source.record
    cut = [one for one in record.launches if one.ended is None and one.number not in record.at_work]
    if cut:
        names = ", ".join(str(one.number) for one in cut[:8])
        ending = "es" if len(cut) > 1 else ""
        yield Attention("note", f"Launch{ending} {names} ended without notice: killed, or its host died.")
    lost = [one.id for one in record.parts if one.status == LOST]
    if lost:
        rest = len({*lost} - source.number.keys())
        left = f"the next launch evaluates {rest} again" if rest else "all were evaluated again"
        yield Attention("note", f"Ranks died in the midst of {plural(len(lost), 'evaluation')}; {left}.")


def _workers(source: Source) -> Iterator[Attention]:
    for launch in source.record.launches[-3:]:
        for one in launch.left[:5]:
            yield Attention(
                "warn",
                f"Worker {one.island}-{one.worker} took no more part in launch {launch.number} after "
                f"{text.duration(one.time - launch.started)}: {_cut(one.reason)}",
            )
        if len(launch.left) > 5:
            yield Attention("warn", f"So did {len(launch.left) - 5} more.")


def _storage(source: Source) -> Iterator[Attention]:
    for launch in source.record.launches:
        begun: float | None = None
        waited, errors = 0.0, Counter[str]()
        for one in launch.waits:
            if one.error is not None:
                errors[one.error] += 1
                begun = one.time if begun is None else begun
            elif begun is not None:
                waited, begun = waited + one.time - begun, None
        if errors:
            waited += launch.updated - begun if begun is not None else 0.0
            yield Attention(
                "warn",
                f"Launch {launch.number} waited {text.duration(max(1.0, waited))} for its storage: "
                f"{_cut(errors.most_common(1)[0][0])}",
            )


def _code(source: Source) -> Iterator[Attention]:
    if source.best is not None and (line := text.code(source.record, source.best)):
        yield Attention("note", f"{_sentence(line)}.")


_CHECKS: tuple[Callable[[Source], Iterable[Attention]], ...] = (
    _default,
    _failures,
    _failing_choices,
    _borders,
    _stalled,
    _settings,
    _workers,
    _storage,
    _launches,
    _code,
)
