"""Configurations of a finite space that nobody has evaluated, for leaders whose breeding finds only known points.

Islands that keep to different parts of the space (``[[island]] only``) use them up at different times."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator
from itertools import islice

from hpo.individual import Configuration, Scalar
from hpo.islands.messages import Assignment

_MOST_BARREN = 20_000
_PIECE = 2_000
# Seconds of drawing in vain where constraints refuse proposals: rare configurations are found in this time.
_PATIENCE_S = 120.0

Configurations = Iterator[tuple[dict[str, Scalar], str] | None]
"""Configurations and their keys; None in the place of a configuration that the constraints refuse."""


class UnseenConfigurations:
    """Configurations that islands with equal parts of the space may evaluate. ``configurations``: lists all of them;
    None where they cannot be listed. Then they count as exhausted after 20 000 claims in a row that found nothing new;
    where constraints ``refused`` proposals, after a leader has drawn for two minutes without anything new, not counting
    pauses and evaluations between the draws."""

    def __init__(self, configurations: Callable[[], Configurations] | None = None) -> None:
        self._configurations = configurations
        # The rest of the last piece of the list, the rest of the list, and whether that may hold anything.
        self._unseen: Iterator[tuple[dict[str, Scalar], str]] = iter(())
        self._listing: Configurations | None = None
        self._may_be_left = False
        self._barren = 0
        self._drawn_s: dict[int, float] = {}
        """Seconds of drawing since something new was found, by leader."""
        self.refused = 0
        self.exhausted = False

    def next(
        self,
        taken: Collection[str],
        take: Callable[[str], bool],
        *,
        leader: int = 0,
        refused: int = 0,
        drawn_s: float = 0.0,
    ) -> Assignment | None:
        """A configuration whose key is not in ``taken``; None where there is none, or the space cannot be listed. The
        ``leader`` has claimed in vain: it drew for ``drawn_s`` seconds, and the constraints refused ``refused`` draws.

        Args:
            take: adds a key to ``taken``; whether its configuration may be evaluated.
        """
        if self._configurations is None:
            self._barren += 1
            self.refused += refused
            self._drawn_s[leader] = drawn = self._drawn_s.get(leader, 0.0) + drawn_s
            self.exhausted = drawn >= _PATIENCE_S if self.refused else self._barren >= _MOST_BARREN
            return None
        if (found := self._first_of_piece(taken, take)) is not None:
            return found
        # A piece for each claim in vain: a million at once would take minutes where constraints are slow.
        if self._listing is None:
            self._listing, self._may_be_left = self._configurations(), False
        piece = list(islice(self._listing, _PIECE))
        rest = [entry for entry in piece if entry is not None and entry[1] not in taken]
        self._may_be_left |= bool(rest)
        if len(piece) < _PIECE:
            self._listing = None
            self.exhausted = not self._may_be_left
        # The order must favour no corner of the space.
        random.Random(len(rest)).shuffle(rest)
        self._unseen = iter(rest)
        return self._first_of_piece(taken, take)

    def _first_of_piece(self, taken: Collection[str], take: Callable[[str], bool]) -> Assignment | None:
        for params, key in self._unseen:
            if key not in taken and take(key):
                configuration = Configuration(id="", params=params, operator="last")
                return Assignment(configuration=configuration, key=key)
        return None

    def bred_a_new_one(self) -> None:
        """Note that breeding still finds new configurations."""
        self._barren = self.refused = 0
        self._drawn_s.clear()

    def given_back(self) -> None:
        """Note that a configuration is free again."""
        if self.exhausted:
            self.bred_a_new_one()
        self.exhausted, self._may_be_left = False, True
