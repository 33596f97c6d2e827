"""Conversion of a table's cells to values of parameters.

Tables may give a value as text, as another type of number, or as an empty cell."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from enum import Enum
from math import isnan

from hpo.space.choices import stored
from hpo.space.look_alikes import LookAlikes
from hpo.space.parameters import Categorical, Parameter
from hpo.space.ranges import Int

ABSENT = object()
"""Stand-in for a cell that the row does not have, as opposed to an empty cell."""


class Ambiguous(ValueError):
    """A cell that may stand for several choices; the text names the choices, and how to write each."""


class Cells:
    """Reader of the cells in the columns of ``parameters``. ``typed``: whether a text cell stands for a text, as in
    JSON; in csv, it may also stand for a number, a truth value or None."""

    def __init__(self, parameters: Mapping[str, Parameter], *, typed: bool) -> None:
        self._parameters = parameters
        self._typed = typed
        self._alike = {name: LookAlikes(parameter) for name, parameter in parameters.items()}

    def missing(self, name: str, cell: object) -> bool:
        """Whether the cell has no value: it is absent, or empty and that stands for none of the parameter's choices."""
        parameter = self._parameters[name]
        if cell is ABSENT or not empty(cell) or not isinstance(parameter, Categorical):
            return cell is ABSENT or empty(cell)
        # Tables write None as an empty cell.
        return None not in parameter.choices and not (cell == "" and "" in parameter.choices)

    def value(self, name: str, cell: object) -> object:
        """Value of the cell, converted to the parameter's type if possible; the space may not allow it. Ambiguous where
        the cell may stand for several choices."""
        parameter = self._parameters[name]
        if isinstance(parameter, Categorical):
            return self._choice(parameter, self._alike[name], cell)
        value = number(cell)
        if value is None or isinstance(cell, int):  # large integers would be rounded as floats
            return cell
        return int(value) if isinstance(parameter, Int) and value.is_integer() else value

    def _choice(self, parameter: Categorical, alike: LookAlikes, cell: object) -> object:
        if isinstance(cell, (list, tuple, dict, Enum)) or bool(getattr(cell, "ndim", False)):
            with suppress(ValueError):
                return stored(cell)
            return cell  # comparing a choice with an array would give an array
        if isinstance(cell, str):
            if self._typed and cell in parameter.choices:
                return cell
        elif empty(cell) and None in parameter.choices:
            return None
        else:
            for choice in parameter.choices:
                if isinstance(choice, bool) is isinstance(cell, bool) and choice == cell:
                    return choice
        try:
            # A choice that is a text may have become a number or truth value in a table that pandas read.
            found = alike.of_cell(str(cell))
        except ValueError:  # Python refuses to write an int of more than 4300 digits
            return cell
        if cell == "" and None in found and "" not in found:
            return None
        if len(found) > 1:
            ways = " or ".join(f'"{alike.cells[choice]}"' for choice in found)
            raise Ambiguous(f"{cell!r} may be any of {', '.join(map(repr, found))}. Write {ways}")
        return found[0] if found else cell


def empty(cell: object) -> bool:
    """Whether the cell is empty; tables have empty text, null or NaN for a missing value."""
    if isinstance(cell, float):
        return isnan(cell)
    return cell is ABSENT or cell is None or (isinstance(cell, str) and not cell)


def number(cell: object) -> float | None:
    """Cell as a number, which may be infinite or NaN; None for anything but a number."""
    if isinstance(cell, bool) or not isinstance(cell, (str, int, float)):
        return None
    try:
        return float(cell)
    except (ValueError, OverflowError):
        return None
