"""A configuration whose result is known already, and the check of one that is entered by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite

from hpo.errors import UsageError
from hpo.individual import COMPLETED, FAILED
from hpo.space.space import Params, SearchSpace
from hpo.task.metrics import as_number
from hpo.text import excerpt

Allows = Callable[[Params], bool]


@dataclass(frozen=True, kw_only=True)
class KnownPoint:
    """A configuration of this space and its result. ``objectives``: None where it failed; ``origin``: its id there."""

    params: Params
    objectives: dict[str, float] | None
    status: str = COMPLETED
    origin: str = ""

    @property
    def value(self) -> float | None:
        """The only objective's value; None where it failed or there are several."""
        values = list((self.objectives or {}).values())
        return values[0] if len(values) == 1 else None


def single_point(
    params: Mapping[str, object],
    values: Mapping[str, object],
    space: SearchSpace,
    objectives: Mapping[str, str],
    allows: Allows = lambda params: True,
) -> KnownPoint:
    """One point as it is entered by hand; ``values``: by objective, none where it failed.

    Raises:
        UsageError: what is wrong with its parameters or objectives.
    """
    try:
        checked = space.validate(params)
    except UsageError as error:
        raise UsageError("\n".join(f"known point: {line}" for line in str(error).splitlines())) from None
    if not allows(checked):
        raise UsageError(f"known point: a constraint refuses {checked}. Leave it out.")
    numbers = {name: as_number(value) for name, value in values.items()}
    known = {name: value for name, value in numbers.items() if value is not None and isfinite(value)}
    if values and (set(known) != set(objectives) or set(values) != set(objectives)):
        raise UsageError(
            f"known point {checked}: its result {excerpt(dict(values))} must have a finite number for each of "
            f"{', '.join(objectives)}. Leave the result out if it failed."
        )
    ordered = {name: known[name] for name in objectives} if known else None
    return KnownPoint(params=checked, objectives=ordered, status=COMPLETED if known else FAILED)
