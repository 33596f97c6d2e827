"""Settings of a campaign: every key with its default and its rule. ``hpo.Campaign`` says what each of them means."""

from __future__ import annotations

import datetime
import operator
import os
import re
from collections.abc import Mapping
from enum import Enum
from itertools import pairwise
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    PlainValidator,
    ValidationInfo,
    model_validator,
)

from hpo.config.bounds import MOST_OVER
from hpo.config.layout import MOST_RANKS, TOPOLOGIES, topology_matrix
from hpo.config.search_kinds import KINDS, SearchKind
from hpo.errors import UsageError
from hpo.space.choices import is_unicode, plain_number, stored
from hpo.spelling import suggestion
from hpo.text import excerpt, without_password

_UNIT_BYTES = {"kb": 1_000, "mb": 1_000_000, "gb": 1_000_000_000, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]i?b)", re.IGNORECASE)
_SIZE_RULE = 'a size from "64kB" to "1000GB", such as "10MB", or "off"'
_UNIT_S = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_DURATION = re.compile(
    r"(\d+(?:\.\d+)?)\s*(days?|d|hours?|hrs?|h|minutes?|mins?|m|seconds?|secs?|s)(?![a-z])\s*", re.IGNORECASE
)
_SLURM_TIME = re.compile(r"(?:(\d+)-)?(\d{1,2}):([0-5]\d):([0-5]\d)")
# Ten years, far beyond any campaign.
_LONGEST_S = 3650 * 86400.0
_DURATION_RULE = (
    'a duration above 0, at most ten years, such as 90 (seconds), "90s", "30min", "1h30m" or "2d"'
)
# Up to here whole numbers stay exact where the journal's JSON is read as floats.
_LARGEST = 2**53
_FROM_0, _FROM_1, _FROM_2 = (f"a whole number from {least} to 2**53" for least in range(3))
_RANKS_RULE = f"a whole number from 1 to {MOST_RANKS}"
_MOST_GRID_POINTS = 100_000
_SHARE_RULE = "a number from 0 to 1"
_STOP_VALUE_RULE = (
    "a finite number, or a table of numbers by objective, such as { accuracy = 0.9, seconds = 60 }"
)
_ONLY_RULE = 'a table of choices by parameter, such as { optimizer = ["sgd"] }'


def _duration_s(value: object) -> object:
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, datetime.time):  # 08:00:00 without quotes is a time of day in TOML
        value = value.isoformat()
    if isinstance(value, str) and (found := _SLURM_TIME.fullmatch(value.strip())):
        days, hours, minutes, seconds = (float(one or 0) for one in found.groups())
        return days * _UNIT_S["d"] + hours * _UNIT_S["h"] + minutes * _UNIT_S["m"] + seconds
    if isinstance(value, str) and (parts := _DURATION.findall(value.strip())):
        units = [unit[0].lower() for _, unit in parts]
        # Text between the parts, or a unit given twice, is a mistake that the rule's error explains.
        if not _DURATION.sub("", value.strip()) and len(set(units)) == len(units):
            return sum(float(number) * _UNIT_S[unit] for (number, _), unit in zip(parts, units))
    return value


def _size_bytes(value: object) -> object:
    if isinstance(value, str) and (found := _SIZE.fullmatch(value.strip())):
        return int(float(found[1]) * _UNIT_BYTES[found[2].lower()])
    return None if value == "off" else _plain_int(value)


def _plain_int(value: object) -> object:
    """Python's int for whole numbers of other libraries."""
    # numpy.timedelta64 is registered as Integral and has no __index__.
    if isinstance(value, bool) or not isinstance(value, Integral) or not hasattr(value, "__index__"):
        return value
    return operator.index(value)


def _check_writable(value: object, info: ValidationInfo) -> object:
    """Raise ValueError for values that the journal's JSON cannot hold: ints beyond 64 bits, text with surrogates."""
    inner = (*value, *value.values()) if isinstance(value, dict) else value
    for item in inner if isinstance(inner, (list, tuple)) else ():
        _check_writable(item, info)
    if type(value) is int and not -(2**63) <= value < 2**63:
        rule = "a whole number must be from -2**63 to 2**63 - 1. Write a smaller number, or text"
        raise ValueError(f"{info.field_name}: {excerpt(value)}: {rule}.")
    if isinstance(value, str) and not is_unicode(value):
        raise ValueError(
            f"{info.field_name}: {excerpt(value)}: text must be Unicode. Write it without surrogates."
        )
    return value


def _check_choices(value: object, info: ValidationInfo) -> object:
    """``value`` with lists for tuples and names for members of enumerations, checked by ``_check_writable``."""
    return _check_writable(_choices(value), info)


def _choices(value: object) -> object:
    if isinstance(value, Enum):
        value = stored(value)  # of an enumeration of tuples, a tuple
    if isinstance(value, Mapping):
        return {key: _choices(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_choices(one) for one in value]
    number = plain_number(value, Real)  # also of NumPy's types, as in choices
    return value if number is None else number


def _as_schedule(value: object, info: ValidationInfo) -> object:
    """``schedule``, whose intervals may be individuals, as ``Result.schedule`` returns them."""
    if isinstance(value, (list, tuple)):
        value = [getattr(one, "params", one) for one in value]
    return _check_choices(value, info)


def _as_path(value: object) -> object:
    if not isinstance(value, (str, os.PathLike)) or not str(value) or "\0" in str(value):
        return value
    if not is_unicode(str(value)):
        return None
    # Path.expanduser raises for unknown users; os.path.expanduser leaves "~name" as it is.
    return Path(os.path.expanduser(value))


def _tuples_to_lists(value: object) -> object:
    return [_tuples_to_lists(item) for item in value] if isinstance(value, (list, tuple)) else value


def _distinct_names(value: object) -> object:
    value = _tuples_to_lists(value)
    return list(dict.fromkeys(value)) if isinstance(value, list) and {*map(type, value)} == {str} else value


def _as_known_entry(value: object) -> object:
    """Entry of ``known`` as a table, from the path of a source, or a point that ``hpo.known_points`` returned."""
    if isinstance(value, (str, os.PathLike)):
        return {"source": str(value)}
    params = getattr(value, "params", None)
    if params is not None:
        return {"params": params, "objectives": getattr(value, "objectives", None) or {}}
    for key in value if isinstance(value, dict) else ():
        names = [field.validation_alias or name for name, field in KnownSettings.model_fields.items()]
        if key not in names:
            near = suggestion(key, map(str, names))
            raise ValueError(f"known: an entry has no key {key!r}. {near}")
    if isinstance(value, dict) and value.get("as", "task") != "task":
        raise ValueError(
            f'known: as = {excerpt(value["as"])}: must be "task". Leave it out where the results are of this very task.'
        )
    return value


def _choice_rule(choices: object) -> str:
    return "one of " + ", ".join(f'"{choice}"' for choice in get_args(choices))


def _no_pruner(value: object) -> object:
    return "none" if value is None or value is False else value


def _off_to_none(value: object) -> object:
    return None if value == "off" else value


def _zero_or_duration_s(value: object) -> object:
    return 0.0 if isinstance(value, str) and value.strip() == "0" else _duration_s(value)


def _setting(default: Any, rule: str, alias: str | None = None, **checks: Any) -> Any:
    """Field with its ``rule``, which errors show after "must be". ``alias``: name that users write."""
    return Field(default=default, description=rule, validation_alias=alias, **checks)


Seconds = Annotated[float, BeforeValidator(_duration_s), Field(le=_LONGEST_S)]
From0 = Annotated[int, BeforeValidator(_plain_int), Field(ge=0, le=_LARGEST)]
From1 = Annotated[int, BeforeValidator(_plain_int), Field(ge=1, le=_LARGEST)]
From2 = Annotated[int, BeforeValidator(_plain_int), Field(ge=2, le=_LARGEST)]
Bytes = Annotated[int, Field(ge=64_000, le=1_000 * _UNIT_BYTES["gb"])]
Ranks = Annotated[int, BeforeValidator(_plain_int), Field(ge=1, le=MOST_RANKS)]
Text = Annotated[str, BeforeValidator(_check_writable)]
Share = Annotated[float, Field(ge=0, le=1)]
StopValue = float | Annotated[dict[str, float], Field(min_length=1)]
# A Literal made from the table of kinds, which type checkers cannot follow.
if TYPE_CHECKING:
    Kind = str
else:
    Kind = Literal[tuple(KINDS)]
Initial = Literal["random", "sobol", "latin-hypercube"]
Exchange = Literal["migration", "pollination"]
Pruner = Literal["none", "halving", "median"]
Isolation = Literal["warm", "fresh", "inline"]
# Lists stand for choices that are tuples; the search space checks what is in them.
Choice = str | int | float | bool | list[Any] | None
Only = Annotated[dict[str, list[Choice]], BeforeValidator(_check_choices)]
Sink = Literal["tensorboard", "mlflow", "wandb", "trackio"]
"""Names of the sinks of ``hpo.loggers``."""


class Section(BaseModel):
    """Base of all frozen settings; a field's ``description`` is its rule, which errors show after "must be"."""

    model_config = ConfigDict(
        frozen=True,
        # TOML has types of its own: the text "3" in place of 3 is a mistake, which a hint corrects.
        strict=True,
        extra="forbid",
        allow_inf_nan=False,
        # Fields carry a unit in their names; their aliases are the names that users write.
        populate_by_name=True,
    )


class LayoutSettings(Section):
    """Division of the ranks into workers and islands, and the topology of migration."""

    islands: Ranks = _setting(1, _RANKS_RULE)
    ranks_per_worker: Ranks = _setting(1, _RANKS_RULE)
    topology: Annotated[str | list[list[int]], PlainValidator(_tuples_to_lists)] = _setting(
        "ring", '"ring", "full" or a matrix with a row and a column for each island'
    )


class SearchSettings(Section):
    """Breeding, migration and early stopping."""

    kind: Kind = _setting("default", _choice_rule(Kind))
    crossover: Share = _setting(0.7, _SHARE_RULE)
    mutation: Share = _setting(0.4, _SHARE_RULE)
    random: Share = _setting(0.1, _SHARE_RULE)
    migration: Share = _setting(0.9, _SHARE_RULE)
    exchange: Exchange = _setting("migration", _choice_rule(Exchange))
    pool: From2 | None = _setting(None, _FROM_2)
    duplicates: bool = _setting(False, "true or false")
    reevaluate: float = _setting(0.0, "a number from 0 to 0.5", ge=0, le=0.5)
    initial: Initial = _setting("random", _choice_rule(Initial))
    grid_points: Annotated[int, BeforeValidator(_plain_int)] = _setting(
        5, f"a whole number from 2 to {_MOST_GRID_POINTS}", ge=2, le=_MOST_GRID_POINTS
    )
    pruner: Annotated[Pruner, BeforeValidator(_no_pruner)] = _setting("none", _choice_rule(Pruner))
    min_steps: From1 = _setting(1, _FROM_1)
    reduction: From2 = _setting(3, _FROM_2)
    patience: From0 = _setting(0, _FROM_0)
    startup: From1 | None = _setting(None, _FROM_1)
    promote: bool = _setting(True, "true or false")
    reported: Text | None = _setting(None, "the name of an objective", min_length=1)
    perturb: list[Text] | None = _setting(None, "a list of names of parameters", min_length=1)
    reference: dict[str, float] = _setting(
        {}, "a table of numbers by objective, such as { accuracy = 0.5, seconds = 60 }"
    )
    only: Only = _setting({}, _ONLY_RULE)
    inherit: bool | None = _setting(None, "true or false")

    @property
    def traits(self) -> SearchKind:
        return KINDS[self.kind]


class IslandSettings(SearchSettings):
    """Settings of an island, in place of those of ``[search]`` and ``[layout]``."""

    ranks_per_worker: Ranks | None = _setting(None, _RANKS_RULE)


class EvaluationSettings(Section):
    """Evaluation of an individual."""

    isolation: Isolation = _setting("warm", _choice_rule(Isolation))
    timeout_s: Seconds | None = _setting(None, _DURATION_RULE, "timeout", gt=0)
    retries: From0 = _setting(1, _FROM_0)
    grace_s: Seconds = _setting(60.0, f"0, or {_DURATION_RULE}", "grace", ge=0)
    start_timeout_s: Seconds = _setting(300.0, _DURATION_RULE, "start_timeout", gt=0)
    hang_timeout_s: Seconds = _setting(120.0, f"{_DURATION_RULE}, at least 1 s", "hang_timeout", ge=1)
    first_failures: Annotated[From1 | None, BeforeValidator(_off_to_none)] = _setting(
        30, f'{_FROM_1}, or "off"'
    )
    checkpoints: bool | None = _setting(None, "true or false")
    interface: Text | None = _setting(None, 'the name of a network interface, such as "ib0"', min_length=1)

    @model_validator(mode="after")
    def _no_timeout_inline(self) -> EvaluationSettings:
        if self.isolation == "inline" and self.timeout_s is not None:
            raise ValueError(
                'timeout cannot be kept with isolation = "inline", where nothing could end the evaluation. '
                'Remove timeout or use isolation = "warm".'
            )
        return self


class StopSettings(Section):
    """End of the campaign before its budget is used up. As keywords, these keys begin with ``stop_``."""

    value: StopValue | None = _setting(None, _STOP_VALUE_RULE)
    gain: float | None = _setting(None, "a finite number above 0", gt=0)
    over: From1 = _setting(50, f"a whole number from 1 to {MOST_OVER}", le=MOST_OVER)


class LoggingSettings(Section):
    """Records of running evaluations, and the sinks that get them. As keywords, these keys begin with ``log_``."""

    curves: bool = _setting(True, "true or false")
    every_s: Annotated[float, BeforeValidator(_zero_or_duration_s), Field(le=_LONGEST_S)] = _setting(
        1.0, f"0, or {_DURATION_RULE}", "every", ge=0
    )
    sinks: Annotated[list[Sink], BeforeValidator(_distinct_names)] = _setting(
        [], f"a list of names, each {_choice_rule(Sink)}"
    )
    directory: Annotated[Path | None, BeforeValidator(_as_path)] = _setting(None, "the path of a directory")
    system_s: Annotated[Seconds | None, BeforeValidator(_off_to_none)] = _setting(
        None, f'"off", or {_DURATION_RULE}, at least 1 s', "system", ge=1
    )
    output_bytes: Annotated[Bytes | None, BeforeValidator(_size_bytes)] = _setting(
        10_000_000, _SIZE_RULE, "output"
    )


class KnownSettings(Section):
    """Entry of ``known``: a source of points (see ``hpo.prior_results.points``), or a single point."""

    source: Text | None = _setting(None, "a path", min_length=1)
    study: Text | None = _setting(None, "the name of a study", min_length=1)
    unknown: Literal["drop", "refuse"] | None = None
    relation: Literal["task"] | None = Field(default=None, validation_alias="as")
    """"task": results of another task, whose values do not compare with this task's."""
    columns: Annotated[dict[str, str], BeforeValidator(_check_writable)] = Field(default_factory=dict)
    params: Annotated[dict[str, Choice] | None, BeforeValidator(_check_choices)] = None
    value: float | None = None
    objectives: dict[str, float] = Field(default_factory=dict)

    @property
    def recorded_as(self) -> str | None:
        """Name of the source in the campaign's journal; None for a single point."""
        if self.source is None:
            return None
        source = without_password(self.source)
        return source if self.study is None else f"{source}, study {self.study}"

    @model_validator(mode="after")
    def _one_or_the_other(self) -> KnownSettings:
        if (self.source is None) is (self.params is None):
            raise ValueError("known: an entry has either source or params. Write one of them.")
        if self.relation is not None and self.source is None:
            raise ValueError('known: as = "task" is for a source of many results. Write them into a table.')
        return self


class PhaseSettings(Section):
    """Phase of a campaign that uses a part of the choices."""

    until: From1 = _setting(..., _FROM_1)
    only: Only = _setting(..., _ONLY_RULE, min_length=1)


class Settings(Section):
    """All settings of a campaign."""

    task: Text | None = _setting(None, '"package.module:name" or "file.py:name"', min_length=1)
    directory: Annotated[Path, BeforeValidator(_as_path)] = _setting(..., "the path of a directory")
    evaluations: From1 | None = _setting(None, _FROM_1)
    deadline_s: Seconds | None = _setting(None, _DURATION_RULE, "deadline", gt=0)
    rank_hours: float | None = _setting(None, "a finite number above 0", gt=0)
    seed: Annotated[int, BeforeValidator(_plain_int)] = _setting(
        0, "a whole number from 0 to 2**63 - 1", ge=0, lt=2**63
    )
    keep: From0 = _setting(3, _FROM_0)
    restarts: From0 = _setting(10, _FROM_0)
    known: tuple[Annotated[KnownSettings, BeforeValidator(_as_known_entry)], ...] = _setting(
        (),
        "a list of sources of known points: tables, directories of campaigns, Optuna storages, or tables "
        'such as { source = "study.db", study = "a" } and { params = { lr = 0.1 }, value = 0.5 }',
        strict=False,
    )
    points: Annotated[tuple[str | dict[str, Choice], ...], BeforeValidator(_check_choices)] = _setting(
        (),
        'a list of configurations, such as { lr = 0.1 }, and of files of them, such as "points.csv"',
        strict=False,
    )
    schedule: Annotated[tuple[dict[str, Choice], ...], BeforeValidator(_as_schedule)] = _setting(
        (),
        "a list with a table of parameters for each interval of training: all of the first, then those that change",
        strict=False,
    )
    layout: LayoutSettings = LayoutSettings()
    search: SearchSettings = SearchSettings()
    island: tuple[IslandSettings, ...] = _setting((), "one [[island]] table an island", strict=False)
    phase: tuple[PhaseSettings, ...] = _setting((), "one [[phase]] table a phase", strict=False)
    evaluation: EvaluationSettings = EvaluationSettings()
    stop: StopSettings = StopSettings()
    logging: LoggingSettings = LoggingSettings()
    task_options: Annotated[dict[str, JsonValue], BeforeValidator(_check_writable)] = _setting(
        {}, "strings, numbers, true, false, and lists and tables of these"
    )

    def search_of(self, island: int) -> SearchSettings:
        """Search settings of an island: ``search`` with the keys of the island's own table."""
        if island >= len(self.island):
            return self.search
        own = self.island[island]
        # Only the keys that the table sets: its defaults must not override those of ``search``.
        given = own.model_fields_set & SearchSettings.model_fields.keys()
        return self.search.model_copy(update={name: getattr(own, name) for name in given})

    @property
    def worker_sizes(self) -> tuple[int, ...]:
        """Ranks of each worker, by island."""
        own = [one.ranks_per_worker or self.layout.ranks_per_worker for one in self.island]
        return (*own, *[self.layout.ranks_per_worker] * (self.layout.islands - len(own)))

    def inherits(self, island: int) -> bool:
        """Whether children on an island continue from their parents' checkpoints."""
        search = self.search_of(island)
        chosen = bool(self.phase) if search.inherit is None else search.inherit
        # Kinds that need checkpoints, such as population-based training, pass them on by themselves.
        return chosen and not search.traits.needs_checkpoints

    @model_validator(mode="after")
    def _agree(self) -> Settings:
        problems = [
            f"[[phase]] number {number}: until = {later.until} must be above that of the phase before it, "
            f"{earlier.until}. Order them by until."
            for number, (earlier, later) in enumerate(pairwise(self.phase), start=2)
            if later.until <= earlier.until
        ]
        # Fewer tables than islands are fine: the islands without a table have the settings of ``search``.
        islands = self.layout.islands
        if len(self.island) > islands:
            problems.append(
                f"there are {len(self.island)} [[island]] tables and islands = {islands}: table i is for "
                f"island i. Remove {len(self.island) - islands} or raise islands."
            )
        # Duplicates are known to the whole campaign, and a reference compares individuals of all islands.
        problems += [
            f"[[island]] number {number + 1}: {name} holds for the whole campaign. Move it to [search]."
            for number, own in enumerate(self.island)
            for name in ("duplicates", "reference")
            if name in own.model_fields_set
        ]
        sizes = sorted({*self.worker_sizes})
        if any(size % sizes[0] for size in sizes):
            problems.append(
                f"ranks_per_worker of the islands, {', '.join(map(str, sizes))}: must be multiples of the least. "
                "Correct them."
            )
        own = {one.recorded_as for one in self.known if one.source and not one.relation}
        problems += [
            f'known: {one.source} is listed with and without as = "task". Its results are of this task or of another: '
            "remove one of the two."
            for one in self.known
            if one.relation and one.recorded_as in own
        ]
        try:
            # Named topologies are valid for any islands; their matrix for many islands would be large.
            if self.layout.topology not in TOPOLOGIES:
                topology_matrix(self.layout.topology, islands)
        except UsageError as error:
            problems.append(str(error))
        if problems:
            raise ValueError("\n".join(problems))
        return self
