"""Settings of a campaign: every key with its default and its rule.

A key has the same name in a campaign file, inside its section, and as a keyword of ``hpo.Campaign``, which has no
sections.
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
    """Whole numbers of other libraries as Python's int; any other value, bool included, unchanged."""
    if type(value) is int or isinstance(value, bool) or not isinstance(value, Integral):
        return value
    try:
        return operator.index(value)
    except TypeError:  # numpy.timedelta64 is registered as Integral and has no __index__
        return value


def _check_writable(value: object, info: ValidationInfo) -> object:
    """Raise ValueError for values that the journal's JSON cannot hold: ints beyond 64 bits, text with surrogates."""
    # Level by level instead of by recursion: values may be nested deeper than Python's stack.
    level = [value]
    while level:
        for item in level:
            if type(item) is int and not -(2**63) <= item < 2**63:
                rule = "a whole number must be from -2**63 to 2**63 - 1. Write a smaller number, or text"
                raise ValueError(f"{info.field_name}: {excerpt(item)}: {rule}.")
            if isinstance(item, str) and not is_unicode(item):
                raise ValueError(
                    f"{info.field_name}: {excerpt(item)}: text must be Unicode. Write it without surrogates."
                )
        level = [
            inner
            for item in level
            if isinstance(item, (dict, list, tuple))
            for inner in ((*item, *item.values()) if isinstance(item, dict) else item)
        ]
    return value


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
    """A list of names without repetitions; any other value unchanged, for the field's own check."""
    value = _tuples_to_lists(value)
    return list(dict.fromkeys(value)) if isinstance(value, list) and {*map(type, value)} == {str} else value


def _as_known_entry(value: object) -> object:
    """Entry of ``known`` as a table, from the path of a source, or a point that ``hpo.known_points`` returned."""
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


def _choice_rule(choices: object) -> str:
    return "one of " + ", ".join(f'"{choice}"' for choice in get_args(choices))


def _no_pruner(value: object) -> object:
    """The name "none" for None or False in its place; any other value unchanged."""
    return "none" if value is None or value is False else value


def _off_to_none(value: object) -> object:
    return None if value == "off" else value


def _zero_or_duration_s(value: object) -> object:
    return 0.0 if isinstance(value, str) and value.strip() == "0" else _duration_s(value)


Seconds = Annotated[float, BeforeValidator(_duration_s), Field(le=_LONGEST_S)]
From0 = Annotated[int, BeforeValidator(_plain_int), Field(ge=0, le=_LARGEST)]
From1 = Annotated[int, BeforeValidator(_plain_int), Field(ge=1, le=_LARGEST)]
From2 = Annotated[int, BeforeValidator(_plain_int), Field(ge=2, le=_LARGEST)]
Bytes = Annotated[int, Field(ge=64_000, le=1_000 * _UNIT_BYTES["gb"])]
Ranks = Annotated[int, BeforeValidator(_plain_int), Field(ge=1, le=MOST_RANKS)]
Text = Annotated[str, BeforeValidator(_check_writable)]
Share = Annotated[float, Field(ge=0, le=1)]
# A Literal made from the table of kinds, which type checkers cannot follow.
if TYPE_CHECKING:
    Kind = str
else:
    Kind = Literal[tuple(KINDS)]
Initial = Literal["random", "sobol", "latin-hypercube"]
Exchange = Literal["migration", "pollination"]
Pruner = Literal["none", "halving", "median"]
Isolation = Literal["warm", "fresh", "inline"]
Only = Annotated[dict[str, list[str | int | float | bool]], BeforeValidator(_check_writable)]
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

    islands: Ranks = Field(default=1, description=_RANKS_RULE)
    """Number of islands, each with at least one worker."""
    ranks_per_worker: Ranks = Field(default=1, description=_RANKS_RULE)
    """Ranks that evaluate an individual together."""
    topology: Annotated[str | list[list[int]], PlainValidator(_tuples_to_lists)] = Field(
        default="ring", description='"ring", "full" or a matrix with a row and a column for each island'
    )
    """Emigrants from island ``row`` to island ``column`` at a migration, or the name of such a matrix."""


class SearchSettings(Section):
    """Breeding, migration and early stopping."""

    kind: Kind = Field(default="default", description=_choice_rule(Kind))
    """Kind of search, a name in ``hpo.config.search_kinds``."""
    crossover: Share = Field(default=0.7, description=_SHARE_RULE)
    """Probability of two parents; "genetic": share of the first parent's genes."""
    mutation: Share = Field(default=0.4, description=_SHARE_RULE)
    """Probability of a point mutation ("genetic")."""
    random: Share = Field(default=0.1, description=_SHARE_RULE)
    """Probability of a random individual; "surrogate": a quarter of the share of random candidates."""
    migration: Share = Field(default=0.9, description=_SHARE_RULE)
    """Probability, after each evaluation, that individuals leave the island."""
    exchange: Exchange = Field(default="migration", description=_choice_rule(Exchange))
    """Whether emigrants leave their island ("migration") or are copied ("pollination")."""
    pool: From2 | None = Field(default=None, description=_FROM_2)
    """Number of individuals to breed from; None: chosen by the kind."""
    duplicates: bool = Field(default=False, description="true or false")
    """Whether a configuration may be evaluated more than once."""
    reevaluate: float = Field(default=0.0, ge=0, le=0.5, description="a number from 0 to 0.5")
    """Share of individuals that repeat a known configuration (see ``hpo.search.kinds.reevaluation``)."""
    initial: Initial = Field(default="random", description=_choice_rule(Initial))
    """Design of the first individuals."""
    grid_points: Annotated[int, BeforeValidator(_plain_int)] = Field(
        default=5, ge=2, le=_MOST_GRID_POINTS, description=f"a whole number from 2 to {_MOST_GRID_POINTS}"
    )
    """Values of each Float, and of each Int with more values ("grid")."""
    pruner: Annotated[Pruner, BeforeValidator(_no_pruner)] = Field(
        default="none", description=_choice_rule(Pruner)
    )
    """Rule of early stopping by ``trial.report``."""
    min_steps: From1 = Field(default=1, description=_FROM_1)
    """Steps before the first comparison."""
    reduction: From2 = Field(default=3, description=_FROM_2)
    """Reduction factor of "halving": the best 1/reduction continue, reduction times as far."""
    patience: From0 = Field(default=0, description=_FROM_0)
    """Failed comparisons in a row before an individual is stopped."""
    startup: From1 | None = Field(default=None, description=_FROM_1)
    """Individuals to compare with before any is stopped; None: 1 for "halving", 5 for "median"."""
    promote: bool = Field(default=True, description="true or false")
    """Whether "halving" pauses individuals, which may continue later, instead of ending them."""
    reported: Text | None = Field(default=None, min_length=1, description="the name of an objective")
    """Objective whose values ``trial.report`` gets, of several objectives."""
    perturb: list[Text] | None = Field(
        default=None, min_length=1, description="a list of names of parameters"
    )
    """Parameters that "pbt" may change during training; None: all Float and Int."""
    reference: dict[str, float] = Field(
        default_factory=dict,
        description="a table of numbers by objective, such as { accuracy = 0.5, seconds = 60 }",
    )
    """Worst acceptable values by objective, of several objectives; worse individuals rank last."""
    only: Only = Field(default_factory=dict, description=_ONLY_RULE)
    """Allowed choices by parameter."""
    inherit: bool | None = Field(default=None, description="true or false")
    """Whether children continue from their parents' checkpoints; None: if the campaign has phases."""

    @property
    def traits(self) -> SearchKind:
        """Module and restrictions of the kind."""
        return KINDS[self.kind]


class EvaluationSettings(Section):
    """Evaluation of an individual."""

    isolation: Isolation = Field(default="warm", description=_choice_rule(Isolation))
    """Evaluator processes: kept ("warm"), one for each evaluation ("fresh"), or none ("inline")."""
    timeout_s: Seconds | None = Field(
        default=None, gt=0, validation_alias="timeout", description=_DURATION_RULE
    )
    """Longest evaluation in seconds; None: no limit."""
    retries: From0 = Field(default=1, description=_FROM_0)
    """Further attempts at an individual whose process died."""
    grace_s: Seconds = Field(
        default=60.0, ge=0, validation_alias="grace", description=f"0, or {_DURATION_RULE}"
    )
    """Seconds that evaluations have to save their state when the campaign stops."""
    start_timeout_s: Seconds = Field(
        default=300.0, gt=0, validation_alias="start_timeout", description=_DURATION_RULE
    )
    """Longest start of an evaluator process in seconds."""
    hang_timeout_s: Seconds = Field(
        default=120.0, ge=1, validation_alias="hang_timeout", description=f"{_DURATION_RULE}, at least 1 s"
    )
    """Seconds without a sign of life after which a rank counts as lost."""
    first_failures: Annotated[From1 | None, BeforeValidator(_off_to_none)] = Field(
        default=30, description=f'{_FROM_1}, or "off"'
    )
    """Failures in a row that end a launch (see ``hpo.islands.coordinator.health``); None for "off"."""
    checkpoints: bool | None = Field(default=None, description="true or false")
    """Whether the task saves its state on request; None: observed from its evaluations."""
    interface: Text | None = Field(
        default=None, min_length=1, description='the name of a network interface, such as "ib0"'
    )
    """Network interface between the hosts of a worker; None: found automatically."""

    @model_validator(mode="after")
    def _no_timeout_inline(self) -> EvaluationSettings:
        if self.isolation == "inline" and self.timeout_s is not None:
            raise ValueError(
                'timeout cannot be kept with isolation = "inline", where nothing could end the evaluation. '
                'Remove timeout or use isolation = "warm".'
            )
        return self


class LoggingSettings(Section):
    """Records of running evaluations, and the sinks that get them. As keywords, these keys begin with ``log_``."""

    curves: bool = Field(default=True, description="true or false")
    """Whether the values that trials report are kept."""
    every_s: Annotated[float, BeforeValidator(_zero_or_duration_s), Field(le=_LONGEST_S)] = Field(
        default=1.0, ge=0, validation_alias="every", description=f"0, or {_DURATION_RULE}"
    )
    """Least seconds between kept reports of a trial, besides its first 50, last and best report; 0 keeps all."""
    sinks: Annotated[list[Sink], BeforeValidator(_distinct_names)] = Field(
        default_factory=list, description=f"a list of names, each {_choice_rule(Sink)}"
    )
    """Names of the sinks that run beside the campaign."""
    directory: Annotated[Path | None, BeforeValidator(_as_path)] = Field(
        default=None, description="the path of a directory"
    )
    """Directory of the sinks' files; None: ``logs`` in the campaign's directory."""
    system_s: Annotated[Seconds | None, BeforeValidator(_off_to_none)] = Field(
        default=None, ge=1, validation_alias="system", description=f'"off", or {_DURATION_RULE}, at least 1 s'
    )
    """Seconds between samples of processor, memory and GPU; None for "off"."""
    output_bytes: Annotated[Bytes | None, BeforeValidator(_size_bytes)] = Field(
        default=10_000_000, validation_alias="output", description=_SIZE_RULE
    )
    """Bytes kept of an evaluation's output on each rank; None for "off"."""


class KnownSettings(Section):
    """Entry of ``known``: a source of points (see ``hpo.prior_results.points``), or a single point."""

    source: Text | None = Field(default=None, min_length=1, description="a path")
    """Path of a table, campaign or Optuna storage, or its URL; None for a single point."""
    study: Text | None = Field(default=None, min_length=1, description="the name of a study")
    """Study in an Optuna storage with several studies."""
    unknown: Literal["drop", "refuse"] | None = None
    """Treatment of parameters that the space does not have (see ``hpo.known_points``)."""
    columns: Annotated[dict[str, str], BeforeValidator(_check_writable)] = Field(default_factory=dict)
    """The source's columns by parameter or objective, where the names differ."""
    params: Annotated[dict[str, str | int | float | bool | None] | None, BeforeValidator(_check_writable)] = (
        None
    )
    """Configuration of a single point."""
    value: float | None = None
    """Result of a single point for a single objective; without ``value`` and ``objectives`` it failed."""
    objectives: dict[str, float] = Field(default_factory=dict)
    """Result of a single point by objective."""

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
        return self


class PhaseSettings(Section):
    """Phase of a campaign that uses a part of the choices."""

    until: From1 = Field(description=_FROM_1)
    """Number of individuals begun in the campaign at which the phase ends."""
    only: Only = Field(min_length=1, description=_ONLY_RULE)
    """Allowed choices by parameter."""


class Settings(Section):
    """All settings of a campaign."""

    task: Text | None = Field(
        default=None, min_length=1, description='"package.module:name" or "file.py:name"'
    )
    """Reference of the task; None where the task is an argument of ``hpo.Campaign``."""
    directory: Annotated[Path, BeforeValidator(_as_path)] = Field(description="the path of a directory")
    """Directory of the campaign."""
    evaluations: From1 | None = Field(default=None, description=_FROM_1)
    """Number of individuals over all launches; None: limited by the deadline only."""
    deadline_s: Seconds | None = Field(
        default=None, gt=0, validation_alias="deadline", description=_DURATION_RULE
    )
    """Seconds from the start of each launch; None: limited by ``evaluations`` only."""
    seed: Annotated[int, BeforeValidator(_plain_int)] = Field(
        default=0, ge=0, lt=2**63, description="a whole number from 0 to 2**63 - 1"
    )
    """Seed of all random numbers."""
    keep: From0 = Field(default=3, description=_FROM_0)
    """Number of the best individuals whose checkpoints are kept."""
    restarts: From0 = Field(default=10, description=_FROM_0)
    """Most restarts of mpirun by ``hpo run`` after ranks died."""
    known: tuple[Annotated[KnownSettings, BeforeValidator(_as_known_entry)], ...] = Field(
        default=(),
        strict=False,
        description="a list of sources of known points: tables, directories of campaigns, Optuna storages, or tables "
        'such as { source = "study.db", study = "a" } and { params = { lr = 0.1 }, value = 0.5 }',
    )
    """Results from elsewhere to start from."""
    points: Annotated[
        tuple[str | dict[str, str | int | float | bool | None], ...], BeforeValidator(_check_writable)
    ] = Field(
        default=(),
        strict=False,
        description='a list of configurations, such as { lr = 0.1 }, and of files of them, such as "points.csv"',
    )
    """Configurations to evaluate first, and paths of tables with such configurations."""
    layout: LayoutSettings = LayoutSettings()
    search: SearchSettings = SearchSettings()
    """Search settings of all islands."""
    island: tuple[SearchSettings, ...] = Field(
        default=(), strict=False, description="one [[island]] table an island"
    )
    """Search settings of islands 0, 1, …; the keys that are set there override those of ``search``."""
    phase: tuple[PhaseSettings, ...] = Field(
        default=(), strict=False, description="one [[phase]] table a phase"
    )
    """Phases in order; after the last phase, the whole space is searched."""
    evaluation: EvaluationSettings = EvaluationSettings()
    logging: LoggingSettings = LoggingSettings()
    task_options: Annotated[dict[str, JsonValue], BeforeValidator(_check_writable)] = Field(
        default_factory=dict, description="strings, numbers, true, false, and lists and tables of these"
    )
    """Keywords for the function that ``task`` names."""

    def search_of(self, island: int) -> SearchSettings:
        """Search settings of an island: ``search`` with the keys of the island's own table."""
        if island >= len(self.island):
            return self.search
        own = self.island[island]
        # Only the keys that the table sets: its defaults must not override those of ``search``.
        return self.search.model_copy(update={name: getattr(own, name) for name in own.model_fields_set})

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
        try:
            # Named topologies are valid for any islands; their matrix for many islands would be large.
            if self.layout.topology not in TOPOLOGIES:
                topology_matrix(self.layout.topology, islands)
        except UsageError as error:
            problems.append(str(error))
        if problems:
            raise ValueError("\n".join(problems))
        return self
