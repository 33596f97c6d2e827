"""Individuals on their way between islands: migration moves them, pollination copies them (Propulate, Taubert
et al. 2023)."""

from __future__ import annotations

import math
import random
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from msgspec import structs

from hpo.journal.records import Migrated
from hpo.search.population import Member
from hpo.search.protocols import Journal

_OWNED = 64
# The last departures are remembered: their gateways may die before they pass the migrants on.
_REMEMBERED = 64


@dataclass(frozen=True, kw_only=True)
class MigrationSettings:
    """``probability``: of migration after an own evaluation; ``emigrants[i]``: number that then goes to island i;
    ``copy``: pollination, the original stays; ``ring``: the next island takes the place of an island without
    workers."""

    probability: float
    copy: bool
    emigrants: tuple[int, ...]
    ring: bool = False


@dataclass(frozen=True)
class Departure:
    """``traveller`` goes to the leader ``gateway``, which owns it from then on; ``left``: it has left this island."""

    gateway: int
    traveller: Member
    left: bool


class Migration:
    """Individuals that a leader owns and may send away; no two leaders own the same. ``islands[i]``: leaders of island
    i."""

    def __init__(
        self,
        settings: MigrationSettings,
        *,
        seed: int,
        here: int,
        islands: Sequence[Sequence[int]],
        journal: Journal,
        clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._seed = seed
        self._here = here
        self._islands = [tuple(leaders) for leaders in islands]
        self._journal = journal
        self._clock = clock
        # Best first; equals in the order in which they came.
        self._owned: list[Member] = []
        self._ids: set[str] = set()
        self._rng = random.Random()
        self._sent: deque[tuple[int, Departure]] = deque(maxlen=_REMEMBERED)

    def lose(self, dead: frozenset[int]) -> list[Departure]:
        """Send nothing to ``dead`` leaders from now on; late departures that have to be repeated to another leader of
        the same island."""
        self._islands = [tuple(one for one in leaders if one not in dead) for leaders in self._islands]
        again: list[Departure] = []
        for index, (target, departure) in enumerate(self._sent):
            if departure.gateway in dead and self._islands[target]:
                again.append(replace(departure, gateway=self._islands[target][0]))
                self._sent[index] = (target, again[-1])
        return again

    @property
    def active(self) -> bool:
        """Whether individuals leave this island at all."""
        return bool(self._settings.probability) and any(self._settings.emigrants)

    def disown(self) -> list[Member]:
        """Give up all individuals, and return them."""
        owned, self._owned, self._ids = self._owned, [], set()
        return owned

    def forget(self, identities: set[str]) -> None:
        """Give up individuals that do not count."""
        for identity in identities & self._ids:
            self._release(identity)

    def own(self, member: Member) -> None:
        """Own ``member``, which was evaluated here or came from another island."""
        if member.id in self._ids:  # pollen that came here twice, by different ways
            self._release(member.id)
        self._ids.add(member.id)
        self._owned.insert(bisect_right(self._owned, _losses(member), key=_losses), member)
        if len(self._owned) > _OWNED:
            worst = bisect_left(self._owned, _losses(self._owned[-1]), key=_losses)
            self._ids.remove(self._owned.pop(worst).id)

    def departures(self, cause: Member) -> list[Departure]:
        """Departures after the evaluation of ``cause``: none by chance, else the best owned individuals. Each is
        appended to the journal, which the caller commits before it sends them."""
        settings = self._settings
        if not self.active:
            return []
        rng = self._rng
        rng.seed(f"{self._seed}/{cause.id}/migration")
        if rng.random() >= settings.probability:
            return []
        departures: list[Departure] = []
        for wanted, count in enumerate(settings.emigrants):
            target = self._reached(wanted) if count and wanted != self._here else None
            if target is None:
                continue
            # An individual is not sent where it has been, or it would travel in circles.
            fit = (one for one in self._owned if target not in one.history)
            departures += [
                self._send(member, target, rng.choice(self._islands[target]))
                for member in list(islice(fit, count))
            ]
        return departures

    def _reached(self, target: int) -> int | None:
        """``target``, or in a ring the first island behind it that has workers; None where there is none."""
        number = len(self._islands)
        behind = ((target + step) % number for step in range(number if self._settings.ring else 1))
        for island in behind:
            if island == self._here:
                return None
            if self._islands[island]:
                return island
        return None

    def _send(self, member: Member, target: int, gateway: int) -> Departure:
        copy = self._settings.copy
        self._journal.append(
            Migrated(
                id=member.id,
                source=self._here,
                target=target,
                hop=len(member.history),
                copy=copy,
                time=self._clock(),
            )
        )
        traveller = structs.replace(member, history=(*member.history, self._here), progress=None)
        if copy:
            # The same pollen is not sent twice.
            member.history = (*member.history, target)
        else:
            self._release(member.id)
        departure = Departure(gateway, traveller, left=not copy)
        self._sent.append((target, departure))
        return departure

    def _release(self, identity: str) -> None:
        self._ids.remove(identity)
        self._owned = [one for one in self._owned if one.id != identity]


def _losses(member: Member) -> tuple[float, ...]:
    return member.violation, *(member.losses or (math.inf,))
