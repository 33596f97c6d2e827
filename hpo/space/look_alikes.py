"""Table cells for choices that tables without types confuse, such as 1 and "1", or an empty cell and "None".

The cell of such a choice carries its type, ``1 (int)`` or ``None (str)``; the cells of other choices do not. A
spreadsheet or pandas, which turn ``01``, ``TRUE`` and ``None`` into values of their own, leave such a cell alone."""

from __future__ import annotations

import json
from collections import defaultdict
from math import isnan

from hpo.individual import Scalar
from hpo.space.choices import as_text, stored
from hpo.space.parameters import Categorical, Parameter

_GAPS = frozenset({"", "none", "null", "nan", "na", "n/a", "<na>", "#n/a", "#na"})
"""Texts that pandas and spreadsheets read as a missing value, in lower case."""
_GAP = "a gap"
"""Likeness of all values that are read as missing."""
_TRUTHS = frozenset({"true", "false"})


class LookAlikes:
    """Choices of ``parameter`` that a table without types confuses; none unless it is a Categorical.

    These are choices that become the same value where pandas or a spreadsheet reads their texts as numbers or truth
    values (``1``, ``"1"`` and ``"01"``; ``True``, ``"True"`` and ``"true"``), and texts that become a missing value
    (``"None"``, ``"NA"``).
    """

    def __init__(self, parameter: Parameter) -> None:
        self.cells: dict[Scalar, str] = {}
        """Cell with the choice's type, by choice."""
        self._choices: dict[str, Scalar] = {}
        self._same_text = False
        self._groups: dict[object, list[Scalar]] = defaultdict(list)
        self._tuples = False
        if not isinstance(parameter, Categorical):
            return
        self._tuples = any(isinstance(choice, tuple) for choice in parameter.choices)
        for choice in parameter.choices:
            likeness = self._likeness(choice)
            if likeness is not None:
                self._groups[likeness].append(choice)
        typed = {choice: f"{as_text(choice)} ({type(choice).__name__})" for choice in parameter.choices}
        # None and "" alone are an empty cell, which reads back as the only choice of that kind.
        alike = [
            choice
            for likeness, group in self._groups.items()
            if len(group) > 1 or (likeness == _GAP and group not in ([None], [""]))
            for choice in group
        ]
        # A choice whose text is another choice's cell, such as "1 (int)", would be read as that other choice: then all
        # need a cell with their type.
        if not {typed[choice] for choice in alike}.isdisjoint(parameter.choices):
            alike = list(parameter.choices)
        self.cells = {choice: typed[choice] for choice in alike}
        # A table of another space may have typed cells for choices that need none in this space.
        others = {cell: choice for choice, cell in typed.items() if cell not in typed}
        self._choices = others | {cell: choice for choice, cell in self.cells.items()}
        self._same_text = len({*map(as_text, parameter.choices)}) < len(parameter.choices)

    def __bool__(self) -> bool:
        return bool(self.cells)

    def of_cell(self, cell: str) -> list[Scalar]:
        """Choices that ``cell`` may stand for: several where it is ambiguous, and none where no table program would
        have rewritten a choice to it."""
        if cell in self._choices:
            return [self._choices[cell]]
        likeness = self._likeness(cell)
        group = self._groups.get(likeness, [])
        if likeness == _GAP and all(isinstance(choice, str) for choice in group):
            # Programs turn texts into missing values, never the reverse.
            return [cell] if cell in group else []
        return list(group)

    def _likeness(self, value: Scalar) -> object:
        found = _list_text(value) if self._tuples and isinstance(value, str) else None
        return found or _likeness(value)

    def text(self, choice: Scalar) -> str:
        """Text that stands for ``choice`` alone: its cell where two choices have the same text."""
        return self.cells.get(choice, as_text(choice)) if self._same_text else as_text(choice)


def _list_text(text: str) -> str | None:
    """Text of the tuple that ``text`` stands for, as JSON, or as Python writes one of numbers; None without such."""
    written = text.strip()
    if written.startswith("("):
        written = written.replace("(", "[").replace(",)", "]").replace(")", "]")
    try:
        return as_text(stored(json.loads(written))) if written.startswith("[") else None
    except (ValueError, RecursionError):
        return None


def _likeness(value: Scalar) -> object:
    """Key that is equal for values that a table without types may confuse; None for a text that no table rewrites."""
    if value is None:
        return _GAP
    # Before numbers, as bool is a subclass of int: True is confused with "true", not with 1.
    if isinstance(value, bool):
        return str(value).casefold()
    if isinstance(value, tuple):
        return as_text(value)
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
