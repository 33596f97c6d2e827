"""Cells of a table as values of parameters: tables give them as text, as another type of number, or as gaps."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress

from hpo.space.look_alikes import LookAlikes
from hpo.space.parameters import Categorical, Float, Int, Parameter

_DECIMAL_COMMA = re.compile(r"\s*[-+]?\d+(\.\d{3})*,\d+([eE][-+]?\d+)?\s*\Z")


class Ambiguous(ValueError):
    """A cell that may stand for several choices; ``str`` says which, and how to write each."""


class DecimalComma(ValueError):
    """A number with a decimal comma."""

    def __init__(self, cell: object) -> None:
        super().__init__(
            f"{cell!r} has a comma. Save the table with a point as decimal sign, without separators of thousands and "
            "with commas between cells"
        )


class Cells:
    """Reads the cells of the columns of ``parameters``. ``typed``: a text cell is a text, as in JSON; in csv it may
    stand for a number, a truth value or None as well."""

    def __init__(self, parameters: Mapping[str, Parameter], *, typed: bool) -> None:
        self._parameters = parameters
        self._typed = typed
        self._alike = {name: LookAlikes(one) for name, one in parameters.items()}

    def missing(self, name: str, cell: object) -> bool:
        """Whether the cell gives no value: it is empty, and that is none of the parameter's choices."""
        parameter = self._parameters[name]
        # A table writes None as a gap.
        return empty(cell) and not (
            isinstance(parameter, Categorical)
            and any(choice is None or (choice == "" and cell == "") for choice in parameter.choices)
        )

    def value(self, name: str, cell: object) -> object:
        """The cell's value, of the parameter's type where that can be, whether the space allows it or not.

        Raises:
            Ambiguous: several choices look like that.
            DecimalComma: it is a number of a spreadsheet in another language.
        """
        parameter = self._parameters[name]
        if isinstance(parameter, Categorical):
            return self._choice(parameter, self._alike[name], cell)
        value = number(cell)
        if value is None:
            refuse_decimal_comma(cell)
            return cell
        if isinstance(parameter, Int):
            if isinstance(cell, int):
                return cell
            return int(value) if math.isfinite(value) and value == int(value) else value
        return value if isinstance(parameter, Float) else cell

    def _choice(self, parameter: Categorical, alike: LookAlikes, cell: object) -> object:
        if not isinstance(cell, str):
            return _typed_choice(parameter, cell)
        if alike and not (self._typed and cell in parameter.choices):
            found = alike.of_cell(cell)
            if cell == "" and None in found and "" not in found:
                return None
            if len(found) > 1:
                ways = " or ".join(f'"{alike.cells[one]}"' for one in found)
                raise Ambiguous(f"{cell!r} may be any of {', '.join(map(repr, found))}. Write {ways}")
            if found:
                return found[0]
        return _text_choice(parameter, cell)


def _typed_choice(parameter: Categorical, cell: object) -> object:
    if isinstance(cell, (list, tuple, dict)) or bool(getattr(cell, "ndim", False)):
        return cell  # which compares with no choice
    if empty(cell) and None in parameter.choices:
        return None
    for choice in parameter.choices:
        if isinstance(choice, bool) is isinstance(cell, bool) and choice == cell:
            return choice
    with suppress(ValueError):  # of a whole number of more than 4300 digits
        return str(cell) if str(cell) in parameter.choices else cell
    return cell


def _text_choice(parameter: Categorical, cell: str) -> object:
    if cell in parameter.choices:
        return cell
    if cell == "" and None in parameter.choices:
        return None
    for choice in parameter.choices:
        if not isinstance(choice, str) and str(choice).casefold() == cell.casefold():
            return choice
    value = number(cell)
    for choice in parameter.choices:
        if isinstance(choice, (int, float)) and not isinstance(choice, bool) and choice == value:
            return choice
    if any(isinstance(choice, (int, float)) for choice in parameter.choices):
        refuse_decimal_comma(cell)
    return cell


def empty(cell: object) -> bool:
    """Whether there is nothing in the cell: tables write gaps as empty text, null or NaN."""
    return (
        cell is None or (isinstance(cell, str) and not cell) or (isinstance(cell, float) and math.isnan(cell))
    )


def number(cell: object) -> float | None:
    """The cell as a number, which may be infinite or NaN; None if it is none."""
    if isinstance(cell, bool) or not isinstance(cell, (str, int, float)):
        return None
    try:
        return float(cell)
    except (ValueError, OverflowError):
        return None


def refuse_decimal_comma(cell: object) -> None:
    """Raise DecimalComma where the cell is a number as a spreadsheet writes it in a language with decimal commas."""
    if isinstance(cell, str) and _DECIMAL_COMMA.match(cell):
        raise DecimalComma(cell)
