"""Individuals that are granted and have not ended, and claims that wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from hpo.islands.coordinator.budget import Admitted
from hpo.islands.messages import Assignment, Want


def key_of(item: Admitted) -> str:
    """Key of the configuration that was granted."""
    return item.key if isinstance(item, Assignment) else item


class Grants:
    """``running``: number of individuals granted to all leaders together. Claims that found the budget used up wait for
    individuals that may come back, in ``idle`` if their leaders idle and else in ``later``. ``held``: claims of leaders
    that get nothing for now."""

    def __init__(self, leaders: Iterable[int]) -> None:
        self._outstanding: dict[int, dict[int, Admitted]] = {leader: {} for leader in leaders}
        self.running = 0
        # Leaders that hold more than they evaluate, and those that were asked to give some of it back.
        self._holders: set[int] = set()
        self._recalled: set[int] = set()
        self.idle: deque[tuple[int, Want]] = deque()
        self.later: dict[int, list[Want]] = {}
        self.held: dict[int, list[Want]] = {}

    @property
    def leaders(self) -> Iterable[int]:
        return self._outstanding

    def count(self, leader: int) -> int:
        return len(self._outstanding[leader])

    def grant(self, leader: int, token: int, item: Admitted) -> None:
        mine = self._outstanding[leader]
        mine[token] = item
        self.running += 1
        if len(mine) > 1:
            self._holders.add(leader)

    def take(self, leader: int, token: int) -> Admitted | None:
        """Remove and return the individual granted under ``token``; None where there is none."""
        item = self._outstanding[leader].pop(token, None)
        if item is not None:
            self.running -= 1
        return item

    @property
    def keys(self) -> set[str]:
        """Keys of all granted configurations."""
        return {key_of(item) for mine in self._outstanding.values() for item in mine.values()}

    def tokens(self, leader: int) -> dict[str, list[int]]:
        """Tokens of the individuals that ``leader`` holds, by key, the oldest first."""
        found: dict[str, list[int]] = {}
        for token, item in self._outstanding[leader].items():
            found.setdefault(key_of(item), []).append(token)
        return found

    def defer(self, leader: int, want: Want) -> None:
        """Let a claim wait."""
        if self._outstanding[leader]:
            self.later.setdefault(leader, []).append(want)
        else:
            self.idle.append((leader, want))

    def left(self, leader: int) -> None:
        """Note that ``leader`` holds less than before, and may idle now."""
        count = len(self._outstanding[leader])
        if count < 2:
            self._holders.discard(leader)
        if not count and leader in self.later:
            self.idle.extend((leader, want) for want in self.later.pop(leader))

    def drop_claims_of(self, leader: int) -> None:
        self.idle = deque(entry for entry in self.idle if entry[0] != leader)
        self.later.pop(leader, None)
        self.held.pop(leader, None)

    @property
    def holds_promotion(self) -> bool:
        """Whether a held claim is for a paused individual."""
        return any(want.paused is not None for wants in self.held.values() for want in wants)

    def forget(self, leader: int) -> list[Admitted]:
        """Forget a leader; the individuals that it still held."""
        items = list(self._outstanding[leader].values())
        self._outstanding[leader].clear()
        self.running -= len(items)
        self._holders.discard(leader)
        self._recalled.discard(leader)
        self.drop_claims_of(leader)
        return items

    def drop_claims(self) -> None:
        self.idle.clear()
        self.later.clear()
        self.held.clear()

    @property
    def held_ahead(self) -> bool:
        """Whether any leader holds more than the individual that it evaluates."""
        return bool(self._holders)

    def next_idle(self, suits: Callable[[int], bool]) -> tuple[int, Want] | None:
        """Remove and return the first claim of an idle leader that ``suits``; None where there is none."""
        place = next((place for place, (leader, _) in enumerate(self.idle) if suits(leader)), None)
        if place is None:
            return None
        claim = self.idle[place]
        del self.idle[place]
        return claim

    def lacking(self, has_enough: Callable[[int], bool] | None) -> int:
        """Number of idle leaders, without those that ``has_enough`` accepts, less the number of recalls under way."""
        enough = 0 if has_enough is None else sum(has_enough(leader) for leader, _ in self.idle)
        return len(self.idle) - enough - len(self._recalled)

    def recall(self, wanted: int) -> list[tuple[int, int]]:
        """Leaders to ask for ``wanted`` individuals in all, those that hold most first, each with a number."""
        asked = []
        for leader in sorted(self._holders - self._recalled, key=lambda rank: -len(self._outstanding[rank])):
            if wanted <= 0:
                break
            spare = min(wanted, len(self._outstanding[leader]) - 1)
            wanted -= spare
            self._recalled.add(leader)
            asked.append((leader, spare))
        return asked

    def holds_ahead(self, leader: int) -> bool:
        return leader in self._holders

    def answered_recall(self, leader: int) -> None:
        self._recalled.discard(leader)

    @property
    def assigned(self) -> list[str]:
        """Ids of granted assignments."""
        items = (item for mine in self._outstanding.values() for item in mine.values())
        return [item.id for item in items if isinstance(item, Assignment) and item.id]

    @property
    def first(self) -> list[tuple[int, int]]:
        """Leaders that have something to evaluate, with the token of the individual that runs."""
        return [(leader, next(iter(mine))) for leader, mine in self._outstanding.items() if mine]

    @property
    def busy_leaders(self) -> list[int]:
        return [leader for leader, mine in self._outstanding.items() if mine]
