"""Choices that look alike as text, such as 1 and "1" or None and "None": how tables tell them apart.

The cell of such a choice carries its type, ``1 (int)`` or ``1 (str)``; the cells of other choices do not. A spreadsheet
or pandas, which turn ``1``, ``TRUE`` and ``None`` into values of their own, leave such a cell alone."""

from __future__ import annotations

from collections import defaultdict
from math import isnan

from hpo.individual import Scalar
from hpo.space.parameters import Categorical, Parameter

_GAPS = frozenset({"", "none", "null", "nan", "na", "n/a", "<na>", "#n/a"})
"""Texts that pandas and spreadsheets take for a gap, in lower case."""
_GAP = "a gap"
_TYPES = tuple(f" ({kind.__name__})" for kind in (str, int, float, bool, type(None)))


class LookAlikes:
    """The choices of ``parameter`` that look like another one; there are none unless it is a Categorical.

    Attributes:
        cells: by choice, the cell that tells it apart.
    """

    def __init__(self, parameter: Parameter) -> None:
        self.cells: dict[Scalar, str] = {}
        groups: dict[object, list[Scalar]] = defaultdict(list)
        for choice in parameter.choices if isinstance(parameter, Categorical) else ():
            groups[_likeness(choice)].append(choice)
        self._groups = {
            likeness: group
            for likeness, group in groups.items()
            if len(group) > 1 and any(not isinstance(one, str) for one in group)
        }
        if self._groups and isinstance(parameter, Categorical):
            alike = [one for group in self._groups.values() for one in group]
            # A text that ends like such a cell would be read as one.
            alike += [one for one in parameter.choices if isinstance(one, str) and one.endswith(_TYPES)]
            self.cells = {choice: f"{choice} ({type(choice).__name__})" for choice in alike}
        self._choices = {cell: choice for choice, cell in self.cells.items()}

    def __bool__(self) -> bool:
        return bool(self.cells)

    def of_cell(self, cell: str) -> list[Scalar]:
        """The choices that ``cell`` may stand for: one where it carries its type, several where it does not, none
        where it looks like none of ``cells``."""
        if cell in self._choices:
            return [self._choices[cell]]
        return list(self._groups.get(_likeness(cell), ()))


def _likeness(value: Scalar) -> object:
    """The same for values that a table without types may confuse."""
    if value is None:
        return _GAP
    if isinstance(value, bool):
        return str(value).casefold()
    if not isinstance(value, str):
        return float(value)
    text = value.strip().casefold()
    if text in _GAPS:
        return _GAP
    try:
        number = float(text)
    except ValueError:
        return text
    return _GAP if isnan(number) else number
