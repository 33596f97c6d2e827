"""Cells of a table as values of parameters: tables give them as text, as another type of number, or as gaps."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from hpo.space.look_alikes import LookAlikes
from hpo.space.parameters import Categorical, Float, Int, Parameter

_SEPARATED = re.compile(
    r"\s*[-+]?(\d+,\d+|\d{1,3}([.\s'’]\d{3})+,\d+|\d{1,3}([,\s'’]\d{3})+(\.\d*)?)([eE][-+]?\d+)?\s*\Z"
)


ABSENT = object()
"""Stand-in for a cell that the row does not have, which is no gap."""


class Ambiguous(ValueError):
    """A cell that may stand for several choices; ``str`` says which, and how to write each."""


class SeparatedNumber(ValueError):
    """A number with a decimal comma or separators of thousands, as spreadsheets write it."""

    def __init__(self, cell: object) -> None:
        super().__init__(
            f"{cell!r} has a decimal comma or separators of thousands. Save the table with a point as decimal sign, "
            "without separators of thousands and with commas between cells"
        )


class Cells:
    """Reads the cells of the columns of ``parameters``. ``typed``: a text cell is a text, as in JSON; in csv it may
    stand for a number, a truth value or None as well."""

    def __init__(self, parameters: Mapping[str, Parameter], *, typed: bool) -> None:
        self._parameters = parameters
        self._typed = typed
        self._alike = {name: LookAlikes(one) for name, one in parameters.items()}

    def missing(self, name: str, cell: object) -> bool:
        """Whether the cell gives no value: it is absent, or empty where that is none of the parameter's choices."""
        parameter = self._parameters[name]
        # A table writes None as a gap.
        return cell is ABSENT or (
            empty(cell)
            and not (
                isinstance(parameter, Categorical)
                and any(choice is None or (choice == "" and cell == "") for choice in parameter.choices)
            )
        )

    def value(self, name: str, cell: object) -> object:
        """The cell's value, of the parameter's type where that can be, whether the space allows it or not.

        Raises:
            Ambiguous: several choices look like that.
            SeparatedNumber: it has a decimal comma or separators of thousands.
        """
        parameter = self._parameters[name]
        if isinstance(parameter, Categorical):
            return self._choice(parameter, self._alike[name], cell)
        value = number(cell)
        if value is None:
            refuse_separators(cell)
            return cell
        if isinstance(parameter, Int):
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
    """The choice that a table may have rewritten to ``text``, of ``cell``; _NO_CHOICE where there is none."""
    found = alike.of_cell(text)
    if text == "" and None in found and "" not in found:
        return None
    if len(found) > 1:
        ways = " or ".join(f'"{alike.cells[one]}"' for one in found)
        raise Ambiguous(f"{cell!r} may be any of {', '.join(map(repr, found))}. Write {ways}")
    return found[0] if found else _NO_CHOICE


def _typed_choice(parameter: Categorical, alike: LookAlikes, cell: object) -> object:
    if isinstance(cell, (list, tuple, dict)) or bool(getattr(cell, "ndim", False)):
        return cell  # which compares with no choice
    if empty(cell) and None in parameter.choices:
        return None
    for choice in parameter.choices:
        if isinstance(choice, bool) is isinstance(cell, bool) and choice == cell:
            return choice
    try:
        text = str(cell)
    except ValueError:  # a whole number of more than 4300 digits
        return cell
    # A table read by pandas has a number or truth value where the choice is a text.
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
    if any(isinstance(choice, (int, float)) for choice in parameter.choices):
        refuse_separators(cell)
    return cell


def empty(cell: object) -> bool:
    """Whether there is nothing in the cell: tables write gaps as empty text, null or NaN."""
    return (
        cell is ABSENT
        or cell is None
        or (isinstance(cell, str) and not cell)
        or (isinstance(cell, float) and math.isnan(cell))
    )


def number(cell: object) -> float | None:
    """The cell as a number, which may be infinite or NaN; None if it is none."""
    if isinstance(cell, bool) or not isinstance(cell, (str, int, float)):
        return None
    try:
        return float(cell)
    except (ValueError, OverflowError):
        return None


def refuse_separators(cell: object) -> None:
    """Raise SeparatedNumber where the cell is a number with a decimal comma or separators of thousands."""
    if isinstance(cell, str) and _SEPARATED.match(cell):
        raise SeparatedNumber(cell)
