"""Configurations with known results, and the check of a point that a user enters by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite

from hpo.errors import UsageError
from hpo.individual import COMPLETED, FAILED
from hpo.space.space import Params, SearchSpace
from hpo.task.metrics import as_number
from hpo.text import excerpt

Allows = Callable[[Params], bool]


@dataclass(frozen=True, kw_only=True)
class KnownPoint:
    """A configuration of the task's space with its result from elsewhere."""

    params: Params
    objectives: dict[str, float] | None
    """Values by objective; None where the evaluation failed."""
    status: str = COMPLETED
    """Status of the evaluation: completed, failed or invalid."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Numbers that the task limits."""
    origin: str = ""
    """Id of the individual in the campaign or study that the point comes from."""

    @property
    def value(self) -> float | None:
        """Value of the only objective; None after a failure or with several objectives."""
        values = list((self.objectives or {}).values())
        return values[0] if len(values) == 1 else None


def wanted(label: str, params: Mapping[str, object], space: SearchSpace, allows: Allows) -> Params:
    """The configuration as ``space`` has it; UsageError, which begins with ``label``, where it is not allowed."""
    try:
        checked = space.validate(params)
    except UsageError as error:
        raise UsageError("\n".join(f"{label}: {line}" for line in str(error).splitlines())) from None
    if not allows(checked):
        raise UsageError(f"{label}: a constraint refuses {checked}. Leave it out.")
    return checked


def single_point(
    params: Mapping[str, object],
    values: Mapping[str, object],
    space: SearchSpace,
    objectives: Mapping[str, str],
    allows: Allows = lambda params: True,
) -> KnownPoint:
    """Known point from values that a user entered by hand; UsageError where they are not valid. ``values``: results by
    objective, empty for a failed evaluation; ``objectives``: directions by name."""
    checked = wanted("known point", params, space, allows)
    numbers = {name: as_number(value) for name, value in values.items()}
    known = {name: value for name, value in numbers.items() if value is not None and isfinite(value)}
    if values and (set(known) != set(objectives) or set(values) != set(objectives)):
        raise UsageError(
            f"known point {checked}: its result {excerpt(dict(values))} must have a finite number for each of "
            f"{', '.join(objectives)}. Leave the result out if it failed."
        )
    # The task's order of objectives, as losses and tables are tuples in that order.
    ordered = {name: known[name] for name in objectives} if known else None
    return KnownPoint(params=checked, objectives=ordered, status=COMPLETED if known else FAILED)
