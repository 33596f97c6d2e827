"""Choices that tables without types confuse, such as 1 and "1" or a gap and "None": the cells that tell them apart.

The cell of such a choice carries its type, ``1 (int)`` or ``None (str)``; the cells of other choices do not. A
spreadsheet or pandas, which turn ``01``, ``TRUE`` and ``None`` into values of their own, leave such a cell alone."""

from __future__ import annotations

from collections import defaultdict
from math import isnan

from hpo.individual import Scalar
from hpo.space.parameters import Categorical, Parameter

_GAPS = frozenset({"", "none", "null", "nan", "na", "n/a", "<na>", "#n/a", "#na"})
"""Texts that pandas and spreadsheets take for a gap, in lower case."""
_GAP = "a gap"
_TRUTHS = frozenset({"true", "false"})


class LookAlikes:
    """The choices of ``parameter`` that a table without types confuses; there are none unless it is a Categorical.

    These are choices that become the same value where pandas or a spreadsheet reads their texts as numbers or truth
    values (``1``, ``"1"`` and ``"01"``; ``True``, ``"True"`` and ``"true"``), and texts that become a gap (``"None"``,
    ``"NA"``).

    Attributes:
        cells: by choice, the cell that tells it apart.
    """

    def __init__(self, parameter: Parameter) -> None:
        self.cells: dict[Scalar, str] = {}
        self._choices: dict[str, Scalar] = {}
        self._same_text = False
        self._groups: dict[object, list[Scalar]] = defaultdict(list)
        if not isinstance(parameter, Categorical):
            return
        for choice in parameter.choices:
            likeness = _likeness(choice)
            if likeness is not None:
                self._groups[likeness].append(choice)
        typed = {choice: f"{choice} ({type(choice).__name__})" for choice in parameter.choices}
        alike = [
            one
            for likeness, group in self._groups.items()
            if len(group) > 1 or (likeness == _GAP and group not in ([None], [""]))
            for one in group
        ]
        # A text that is such a cell itself would be read as the choice of that cell.
        cells = {typed[one] for one in alike}
        while more := [one for one in parameter.choices if one in cells and typed[one] not in cells]:
            alike += more
            cells |= {typed[one] for one in more}
        self.cells = {choice: typed[choice] for choice in alike}
        # Tables of a space with other choices may have the cells of choices that need none here.
        others = {cell: choice for choice, cell in typed.items() if cell not in typed}
        self._choices = others | {cell: choice for choice, cell in self.cells.items()}
        self._same_text = len({*map(str, parameter.choices)}) < len(parameter.choices)

    def __bool__(self) -> bool:
        return bool(self.cells)

    def of_cell(self, cell: str) -> list[Scalar]:
        """The choices that ``cell`` may stand for: one where it carries its type or is like no other, several where it
        may be any of these, none where a table would not have rewritten any choice to it."""
        if cell in self._choices:
            return [self._choices[cell]]
        likeness = _likeness(cell)
        group = self._groups.get(likeness, [])
        if likeness == _GAP and all(isinstance(one, str) for one in group):
            return [cell] if cell in group else []  # a gap is rewritten to no text
        return list(group)

    def text(self, choice: Scalar) -> str:
        """``choice`` as text that is no other choice's: its cell where two choices have the same text."""
        return self.cells.get(choice, str(choice)) if self._same_text else str(choice)


def _likeness(value: Scalar) -> object:
    """A key that values have in common where a table without types may confuse them; None for a text that no table
    rewrites."""
    if value is None:
        return _GAP
    if isinstance(value, bool):
        return str(value).casefold()
    if not isinstance(value, str):
        return float(value)
    text = value.strip().casefold()
    if text in _GAPS:
        return _GAP
    if text in _TRUTHS:
        return text
    try:
        number = float(text)
    except ValueError:
        return None
    return _GAP if isnan(number) else number
