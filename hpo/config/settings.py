"""A campaign's settings: every key, its default and its rule, once.

A key has the same name in a file, where it stands in its section, and as a keyword of ``hpo.Campaign``,
where there are no sections.
"""

from __future__ import annotations

import datetime
import operator
import os
import re
from itertools import pairwise
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args

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

from hpo.config.layout import MOST_RANKS, TOPOLOGIES, topology_matrix
from hpo.config.search_kinds import KINDS, SearchKind
from hpo.errors import UsageError
from hpo.space.parameters import is_unicode
from hpo.spelling import suggestion
from hpo.text import excerpt, without_password

_UNIT_BYTES = {"kb": 1_000, "mb": 1_000_000, "gb": 1_000_000_000, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]i?b)", re.IGNORECASE)
_SIZE_RULE = 'a size from "64kB" to "1000GB", such as "10MB", or "off"'
_UNIT_S = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_DURATION = re.compile(
    r"(\d+(?:\.\d+)?)\s*(days?|d|hours?|hrs?|h|minutes?|mins?|m|seconds?|secs?|s)(?![a-z])\s*", re.IGNORECASE
)
_OF_SLURM = re.compile(r"(?:(\d+)-)?(\d{1,2}):([0-5]\d):([0-5]\d)")
_LONGEST_S = 3650 * 86400.0
_DURATION_RULE = (
    'a duration above 0, at most ten years, such as 90 (seconds), "90s", "30min", "1h30m" or "2d"'
)
_MOST = 2**53
_FROM_0, _FROM_1, _FROM_2 = (f"a whole number from {least} to 2**53" for least in range(3))
_RANKS_RULE = f"a whole number from 1 to {MOST_RANKS}"
_MOST_GRID_POINTS = 100_000
_SHARE_RULE = "a number from 0 to 1"
_ONLY_RULE = 'a table of choices by parameter, such as { optimizer = ["sgd"] }'


def _seconds(value: object) -> object:
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, datetime.time):  # 08:00:00 without quotes is a time of day in TOML
        value = value.isoformat()
    if isinstance(value, str) and (found := _OF_SLURM.fullmatch(value.strip())):
        days, hours, minutes, seconds = (float(one or 0) for one in found.groups())
        return days * _UNIT_S["d"] + hours * _UNIT_S["h"] + minutes * _UNIT_S["m"] + seconds
    if isinstance(value, str) and (parts := _DURATION.findall(value.strip())):
        units = [unit[0].lower() for _, unit in parts]
        if not _DURATION.sub("", value.strip()) and len(set(units)) == len(units):
            return sum(float(number) * _UNIT_S[unit] for (number, _), unit in zip(parts, units))
    return value


def _bytes(value: object) -> object:
    if isinstance(value, str) and (found := _SIZE.fullmatch(value.strip())):
        return int(float(found[1]) * _UNIT_BYTES[found[2].lower()])
    return None if value == "off" else _whole(value)


def _whole(value: object) -> object:
    """Whole numbers of other libraries as Python's; what is none, and bool, stays what it is."""
    if type(value) is int or isinstance(value, bool) or not isinstance(value, Integral):
        return value
    try:
        return operator.index(value)
    except TypeError:  # numpy's spans of time are registered as whole numbers
        return value


def _writable(value: object, info: ValidationInfo) -> object:
    """Refuses what the journal, which is JSON, cannot hold: whole numbers beyond 64 bits, text that is not Unicode."""
    layer = [value]
    while layer:
        for one in layer:
            if type(one) is int and not -(2**63) <= one < 2**63:
                rule = "a whole number must be from -2**63 to 2**63 - 1. Write a smaller one, or text"
                raise ValueError(f"{info.field_name}: {excerpt(one)}: {rule}.")
            if isinstance(one, str) and not is_unicode(one):
                raise ValueError(
                    f"{info.field_name}: {excerpt(one)}: text must be Unicode. Write it without surrogates."
                )
        layer = [
            inner
            for one in layer
            if isinstance(one, (dict, list, tuple))
            for inner in ((*one, *one.values()) if isinstance(one, dict) else one)
        ]
    return value


def _path(value: object) -> object:
    if not isinstance(value, (str, os.PathLike)) or not str(value) or "\0" in str(value):
        return value
    if not is_unicode(str(value)):
        return None
    return Path(os.path.expanduser(value))  # Path.expanduser raises for users that are not known here


def _lists(value: object) -> object:
    return [_lists(item) for item in value] if isinstance(value, (list, tuple)) else value


def _names(value: object) -> object:
    """Names, each once."""
    value = _lists(value)
    return list(dict.fromkeys(value)) if isinstance(value, list) and {*map(type, value)} == {str} else value


def _known(value: object) -> object:
    """An entry of ``known``: a source alone, a table, or what ``hpo.known_points`` gave."""
    if isinstance(value, (str, os.PathLike)):
        return {"source": str(value)}
    params = getattr(value, "params", None)
    if params is not None:
        return {"params": params, "objectives": getattr(value, "objectives", None) or {}}
    if isinstance(value, dict):
        for key in value:
            if key not in KnownSettings.model_fields:
                near = suggestion(key, KnownSettings.model_fields)
                raise ValueError(f"known: an entry has no key {key!r}. {near}")
    return value


def _one_of(choices: object) -> str:
    return "one of " + ", ".join(f'"{choice}"' for choice in get_args(choices))


def _none(value: object) -> object:
    """The name of no pruner, also where None or False is written for it."""
    return "none" if value is None or value is False else value


def _off(value: object) -> object:
    return None if value == "off" else value


def _zero(value: object) -> object:
    return 0.0 if isinstance(value, str) and value.strip() == "0" else value


Seconds = Annotated[float, BeforeValidator(_seconds), Field(le=_LONGEST_S)]
From0 = Annotated[int, BeforeValidator(_whole), Field(ge=0, le=_MOST)]
From1 = Annotated[int, BeforeValidator(_whole), Field(ge=1, le=_MOST)]
From2 = Annotated[int, BeforeValidator(_whole), Field(ge=2, le=_MOST)]
Bytes = Annotated[int, Field(ge=64_000, le=1_000 * _UNIT_BYTES["gb"])]
Ranks = Annotated[int, BeforeValidator(_whole), Field(ge=1, le=MOST_RANKS)]
Text = Annotated[str, BeforeValidator(_writable)]
Share = Annotated[float, Field(ge=0, le=1)]
if TYPE_CHECKING:
    Kind = str
else:
    Kind = Literal[tuple(KINDS)]
Initial = Literal["random", "sobol", "latin-hypercube"]
Exchange = Literal["migration", "pollination"]
Pruner = Literal["none", "halving", "median"]
Isolation = Literal["warm", "fresh", "inline"]
Only = Annotated[dict[str, list[str | int | float | bool]], BeforeValidator(_writable)]
Sink = Literal["tensorboard", "mlflow", "wandb", "trackio"]
"""Where ``hpo.loggers`` can write."""


class Section(BaseModel):
    """Frozen settings; a field's description is its rule, as errors word it after "must be"."""

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        allow_inf_nan=False,
        populate_by_name=True,
    )


class LayoutSettings(Section):
    """How the ranks are divided, and which island sends to which."""

    islands: Ranks = Field(default=1, description=_RANKS_RULE)
    ranks_per_worker: Ranks = Field(default=1, description=_RANKS_RULE)
    topology: Annotated[str | list[list[int]], PlainValidator(_lists)] = Field(
        default="ring", description='"ring", "full" or a matrix with a row and a column for each island'
    )


class SearchSettings(Section):
    """Breeding, migration and early stopping. ``pool``: individuals to breed from; None leaves it to the kind.
    ``reevaluate``: the share of individuals that are known configurations once more (see
    ``hpo.search.kinds.reevaluation``).

    ``pruner`` to ``promote`` are those of ``hpo.search.early_stopping.PruningSettings``; ``reported``: the objective
    that ``trial.report`` gets, where there are several; ``reference``: values beyond which nothing is wanted, there;
    ``perturb``: what population-based training may change. ``inherit``: children go on from the checkpoints of their
    parents; None: where there are phases."""

    kind: Kind = Field(default="default", description=_one_of(Kind))
    crossover: Share = Field(default=0.7, description=_SHARE_RULE)
    mutation: Share = Field(default=0.4, description=_SHARE_RULE)
    random: Share = Field(default=0.1, description=_SHARE_RULE)
    migration: Share = Field(default=0.9, description=_SHARE_RULE)
    exchange: Exchange = Field(default="migration", description=_one_of(Exchange))
    pool: From2 | None = Field(default=None, description=_FROM_2)
    duplicates: bool = Field(default=False, description="true or false")
    reevaluate: float = Field(default=0.0, ge=0, le=0.5, description="a number from 0 to 0.5")
    initial: Initial = Field(default="random", description=_one_of(Initial))
    grid_points: Annotated[int, BeforeValidator(_whole)] = Field(
        default=5, ge=2, le=_MOST_GRID_POINTS, description=f"a whole number from 2 to {_MOST_GRID_POINTS}"
    )
    pruner: Annotated[Pruner, BeforeValidator(_none)] = Field(default="none", description=_one_of(Pruner))
    min_steps: From1 = Field(default=1, description=_FROM_1)
    reduction: From2 = Field(default=3, description=_FROM_2)
    patience: From0 = Field(default=0, description=_FROM_0)
    startup: From1 | None = Field(default=None, description=_FROM_1)
    promote: bool = Field(default=True, description="true or false")
    reported: Text | None = Field(default=None, min_length=1, description="the name of an objective")
    perturb: list[Text] | None = Field(
        default=None, min_length=1, description="a list of names of parameters"
    )
    reference: dict[str, float] = Field(
        default_factory=dict,
        description="a table of numbers by objective, such as { accuracy = 0.5, seconds = 60 }",
    )
    only: Only = Field(default_factory=dict, description=_ONLY_RULE)
    inherit: bool | None = Field(default=None, description="true or false")

    @property
    def traits(self) -> SearchKind:
        """What its kind can and cannot do."""
        return KINDS[self.kind]


class EvaluationSettings(Section):
    """How one individual is evaluated. ``checkpoints``: whether the task saves when it is asked to, None where that is
    to be seen; ``interface``: the network interface between the hosts of a worker; ``first_failures``: how many
    failures in a row end a launch (see ``hpo.islands.coordinator.health``), None for "off"."""

    isolation: Isolation = Field(default="warm", description=_one_of(Isolation))
    timeout_s: Seconds | None = Field(
        default=None, gt=0, validation_alias="timeout", description=_DURATION_RULE
    )
    retries: From0 = Field(default=1, description=_FROM_0)
    grace_s: Seconds = Field(
        default=60.0, ge=0, validation_alias="grace", description=f"0, or {_DURATION_RULE}"
    )
    start_timeout_s: Seconds = Field(
        default=300.0, gt=0, validation_alias="start_timeout", description=_DURATION_RULE
    )
    hang_timeout_s: Seconds = Field(
        default=120.0, ge=1, validation_alias="hang_timeout", description=f"{_DURATION_RULE}, at least 1 s"
    )
    first_failures: Annotated[From1 | None, BeforeValidator(_off)] = Field(
        default=30, description=f'{_FROM_1}, or "off"'
    )
    checkpoints: bool | None = Field(default=None, description="true or false")
    interface: Text | None = Field(
        default=None, min_length=1, description='the name of a network interface, such as "ib0"'
    )

    @model_validator(mode="after")
    def _no_timeout_inline(self) -> EvaluationSettings:
        if self.isolation == "inline" and self.timeout_s is not None:
            raise ValueError(
                'timeout cannot be kept with isolation = "inline", where nothing could end the evaluation. '
                'Remove timeout or use isolation = "warm".'
            )
        return self


class LoggingSettings(Section):
    """What is kept of running evaluations, and where else it goes. As keywords, these keys begin with ``log_``.

    ``every_s``: the least seconds between a trial's reports that are kept besides its first 50, its last and its best,
    0: all are; ``directory``: where sinks write, None for ``logs`` in the campaign's; ``system_s``: between samples of
    processor, memory and GPU, None for "off"; ``output_bytes``: how much of an evaluation's output is kept for each
    rank, None for "off".
    """

    curves: bool = Field(default=True, description="true or false")
    every_s: Annotated[Seconds, BeforeValidator(_zero)] = Field(
        default=1.0, ge=0, validation_alias="every", description=f"0, or {_DURATION_RULE}"
    )
    sinks: Annotated[list[Sink], BeforeValidator(_names)] = Field(
        default_factory=list, description=f"a list of names, each {_one_of(Sink)}"
    )
    directory: Annotated[Path | None, BeforeValidator(_path)] = Field(
        default=None, description="the path of a directory"
    )
    system_s: Annotated[Seconds | None, BeforeValidator(_off)] = Field(
        default=None, ge=1, validation_alias="system", description=f'"off", or {_DURATION_RULE}, at least 1 s'
    )
    output_bytes: Annotated[Bytes | None, BeforeValidator(_bytes)] = Field(
        default=10_000_000, validation_alias="output", description=_SIZE_RULE
    )


class KnownSettings(Section):
    """An entry of ``known``: a ``source`` of points (see ``hpo.prior_results.points``), or one point: its ``params``,
    and its ``value`` or ``objectives``; without these it failed."""

    source: Text | None = Field(default=None, min_length=1, description="a path")
    study: Text | None = Field(default=None, min_length=1, description="the name of a study")
    unknown: Literal["drop", "refuse"] | None = None
    columns: Annotated[dict[str, str], BeforeValidator(_writable)] = Field(default_factory=dict)
    params: Annotated[dict[str, str | int | float | bool | None] | None, BeforeValidator(_writable)] = None
    value: float | None = None
    objectives: dict[str, float] = Field(default_factory=dict)

    @property
    def recorded_as(self) -> str | None:
        """What a campaign's journal calls the source; None for one point."""
        if self.source is None:
            return None
        source = without_password(self.source)
        return source if self.study is None else f"{source}, study {self.study}"

    @model_validator(mode="after")
    def _one_or_the_other(self) -> KnownSettings:
        if (self.source is None) is (self.params is None):
            raise ValueError("known: an entry has either source or params. Write one of them.")
        return self


class PhaseSettings(Section):
    """Until as many individuals have begun as ``until`` says, the campaign uses ``only`` these choices."""

    until: From1 = Field(description=_FROM_1)
    only: Only = Field(min_length=1, description=_ONLY_RULE)


class Settings(Section):
    """Everything that a campaign file or the keywords of ``hpo.Campaign`` say."""

    task: Text | None = Field(
        default=None, min_length=1, description='"package.module:name" or "file.py:name"'
    )
    directory: Annotated[Path, BeforeValidator(_path)] = Field(description="the path of a directory")
    evaluations: From1 | None = Field(default=None, description=_FROM_1)
    deadline_s: Seconds | None = Field(
        default=None, gt=0, validation_alias="deadline", description=_DURATION_RULE
    )
    seed: Annotated[int, BeforeValidator(_whole)] = Field(
        default=0, ge=0, lt=2**63, description="a whole number from 0 to 2**63 - 1"
    )
    keep: From0 = Field(default=3, description=_FROM_0)
    restarts: From0 = Field(default=10, description=_FROM_0)
    known: tuple[Annotated[KnownSettings, BeforeValidator(_known)], ...] = Field(
        default=(),
        strict=False,
        description="a list of sources of known points: tables, directories of campaigns, Optuna storages, or tables "
        'such as { source = "study.db", study = "a" } and { params = { lr = 0.1 }, value = 0.5 }',
    )
    points: Annotated[
        tuple[str | dict[str, str | int | float | bool | None], ...], BeforeValidator(_writable)
    ] = Field(
        default=(),
        strict=False,
        description='a list of configurations, such as { lr = 0.1 }, and of files of them, such as "points.csv"',
    )
    layout: LayoutSettings = LayoutSettings()
    search: SearchSettings = SearchSettings()
    island: tuple[SearchSettings, ...] = Field(
        default=(), strict=False, description="one [[island]] table an island"
    )
    phase: tuple[PhaseSettings, ...] = Field(
        default=(), strict=False, description="one [[phase]] table a phase"
    )
    evaluation: EvaluationSettings = EvaluationSettings()
    logging: LoggingSettings = LoggingSettings()
    task_options: Annotated[dict[str, JsonValue], BeforeValidator(_writable)] = Field(
        default_factory=dict, description="strings, numbers, true, false, and lists and tables of these"
    )

    @property
    def log_directory(self) -> Path:
        """Where sinks write."""
        return self.logging.directory or self.directory / "logs"

    def search_of(self, island: int) -> SearchSettings:
        """[search] with what the island's own [[island]] table says instead."""
        if island >= len(self.island):
            return self.search
        own = self.island[island]
        return self.search.model_copy(update={name: getattr(own, name) for name in own.model_fields_set})

    def inherits(self, island: int) -> bool:
        """Whether children there go on from their parents' checkpoints; those of population-based training do so in a
        way of their own."""
        search = self.search_of(island)
        chosen = bool(self.phase) if search.inherit is None else search.inherit
        return chosen and not search.traits.needs_checkpoints

    @model_validator(mode="after")
    def _agree(self) -> Settings:
        problems = [
            f"[[phase]] number {number}: until = {later.until} must be above that of the one before it, "
            f"{earlier.until}. Order them by until."
            for number, (earlier, later) in enumerate(pairwise(self.phase), start=2)
            if later.until <= earlier.until
        ]
        islands = self.layout.islands
        if len(self.island) > islands:
            problems.append(
                f"there are {len(self.island)} [[island]] tables and islands = {islands}: table i is for "
                f"island i. Remove {len(self.island) - islands} or raise islands."
            )
        problems += [
            f"[[island]] number {number + 1}: {name} holds for the whole campaign. Move it to [search]."
            for number, own in enumerate(self.island)
            for name in ("duplicates", "reference")
            if name in own.model_fields_set
        ]
        try:
            if self.layout.topology not in TOPOLOGIES:  # the matrix of many islands is large
                topology_matrix(self.layout.topology, islands)
        except UsageError as error:
            problems.append(str(error))
        if problems:
            raise ValueError("\n".join(problems))
        return self
