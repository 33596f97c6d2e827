"""Conversion of a table's cells to values of parameters.

Tables may give a value as text, as another type of number, or as an empty cell."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from hpo.space.look_alikes import LookAlikes
from hpo.space.parameters import Categorical, Float, Int, Parameter

# Numbers such as 0,5 and 1.234,5 and 1,234.5. They are refused and never guessed: "1,234" may be 1.234 or 1234.
_SEPARATED = re.compile(
    r"\s*[-+]?(\d+,\d+|\d{1,3}([.\s'’]\d{3})+,\d+|\d{1,3}([,\s'’]\d{3})+(\.\d*)?)([eE][-+]?\d+)?\s*\Z"
)


ABSENT = object()
"""Stand-in for a cell that the row does not have, as opposed to an empty cell."""


class Ambiguous(ValueError):
    """A cell that may stand for several choices; the text names the choices, and how to write each."""


class SeparatedNumber(ValueError):
    """A number with a decimal comma or separators of thousands, as spreadsheets write it."""

    def __init__(self, cell: object) -> None:
        super().__init__(
            f"{cell!r} has a decimal comma or separators of thousands. Save the table with a point as decimal sign, "
            "without separators of thousands and with commas between cells"
        )


class Cells:
    """Reader of the cells in the columns of parameters.

    Args:
        parameters (dict): parameters by name.
        typed (bool): whether a text cell stands for a text only, as in JSON; in csv, it may also stand for a number, a
            truth value or None.
    """

    def __init__(self, parameters: Mapping[str, Parameter], *, typed: bool) -> None:
        self._parameters = parameters
        self._typed = typed
        self._alike = {name: LookAlikes(parameter) for name, parameter in parameters.items()}

    def missing(self, name: str, cell: object) -> bool:
        """Whether the cell has no value: it is absent, or empty and that stands for none of the parameter's choices."""
        parameter = self._parameters[name]
        # Tables write None as an empty cell.
        return cell is ABSENT or (
            empty(cell)
            and not (
                isinstance(parameter, Categorical)
                and any(choice is None or (choice == "" and cell == "") for choice in parameter.choices)
            )
        )

    def value(self, name: str, cell: object) -> object:
        """Value of the cell, converted to the parameter's type if possible; the space may not allow it.

        Raises:
            Ambiguous: the cell may stand for several choices.
            SeparatedNumber: the cell has a decimal comma or separators of thousands.
        """
        parameter = self._parameters[name]
        if isinstance(parameter, Categorical):
            return self._choice(parameter, self._alike[name], cell)
        value = number(cell)
        if value is None:
            refuse_separators(cell)
            return cell
        if isinstance(parameter, Int):
            # Returned before the conversion to float, which would round large integers.
            if isinstance(cell, int):
                return cell
            return int(value) if math.isfinite(value) and value == int(value) else value
        return value if isinstance(parameter, Float) else cell

    def _choice(self, parameter: Categorical, alike: LookAlikes, cell: object) -> object:
        if not isinstance(cell, str):
            return _typed_choice(parameter, alike, cell)
        if not self._typed or (alike and cell not in parameter.choices):
            found = _only_choice(alike, cell, cell)
            if found is not _NO_CHOICE:
                return found
        return _text_choice(parameter, cell)


_NO_CHOICE = object()


def _only_choice(alike: LookAlikes, text: str, cell: object) -> object:
    """Only choice that a table may have rewritten to ``text``, the text of ``cell``; _NO_CHOICE without any.

    Raises:
        Ambiguous: there are several such choices.
    """
    found = alike.of_cell(text)
    if text == "" and None in found and "" not in found:
        return None
    if len(found) > 1:
        ways = " or ".join(f'"{alike.cells[choice]}"' for choice in found)
        raise Ambiguous(f"{cell!r} may be any of {', '.join(map(repr, found))}. Write {ways}")
    return found[0] if found else _NO_CHOICE


def _typed_choice(parameter: Categorical, alike: LookAlikes, cell: object) -> object:
    if isinstance(cell, (list, tuple, dict)) or bool(getattr(cell, "ndim", False)):
        return cell  # comparing a choice with an array would give an array
    if empty(cell) and None in parameter.choices:
        return None
    for choice in parameter.choices:
        if isinstance(choice, bool) is isinstance(cell, bool) and choice == cell:
            return choice
    try:
        text = str(cell)
    except ValueError:  # Python refuses to write an int of more than 4300 digits
        return cell
    # A choice that is a text may have become a number or truth value in a table that pandas read.
    found = _only_choice(alike, text, cell)
    return cell if found is _NO_CHOICE else found


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
    # Only where a number was expected: a text choice such as "1,5" is no number.
    if any(isinstance(choice, (int, float)) for choice in parameter.choices):
        refuse_separators(cell)
    return cell


def empty(cell: object) -> bool:
    """Whether the cell is empty; tables have empty text, null or NaN for a missing value."""
    return (
        cell is ABSENT
        or cell is None
        or (isinstance(cell, str) and not cell)
        or (isinstance(cell, float) and math.isnan(cell))
    )


def number(cell: object) -> float | None:
    """Cell as a number, which may be infinite or NaN; None for anything but a number."""
    if isinstance(cell, bool) or not isinstance(cell, (str, int, float)):
        return None
    try:
        return float(cell)
    except (ValueError, OverflowError):
        return None


def refuse_separators(cell: object) -> None:
    """Raise SeparatedNumber for a number with a decimal comma or separators of thousands."""
    if isinstance(cell, str) and _SEPARATED.match(cell):
        raise SeparatedNumber(cell)
