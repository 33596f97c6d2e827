"""Whether a launch is futile: the first evaluations to end all failed, so that the rest of the budget would be spent on
failures, too.

What fails everywhere (a data set that is not there, an import that is wrong on the compute nodes) fails at once, and a
budget of thousands is gone in minutes. So a launch ends by itself once as many as ``[evaluation] first_failures`` have
failed before anything showed that the task can work here.

- *What counts* is the status ``failed`` alone, of individuals that were begun in this launch. What was begun before (in
  an earlier launch, or by ranks that died, or by a process that crashed) may have failed of that. ``timeout`` and
  ``crashed`` say neither: a hanging file system looks like long training, and a crash may be its machine's doing.
  ``interrupted`` and ``lost`` are no ends of their own.
- *A sign of life* is whatever trained: one that completed, was pruned, or returned NaN or an infinity (``invalid``),
  or had reported a finite value before it ended in any way. One is enough, and nothing is counted any more in this
  launch: that many of a search's configurations fail is then the search's own matter.
- *What runs beside the failures* may be what works: where those that fail do so at once, the first to end are all
  failures. So there are two rounds of waiting. What each worker is at when the last failure that is needed comes is
  waited for, and so is what each is at when the last of these has ended. Others begin meanwhile, so that none idles
  on a suspicion, but only until twice as many have failed, or twice as many as there are workers: while one worker's
  evaluators start, which may take a minute, another may fail a thousand times. That holds the others up no longer than
  evaluators may take to start: who runs on after that trains, most likely, and in some spaces most fail at once.
- *Each launch counts anew*, even where earlier ones completed individuals: the data may have gone since.

All of it is pure; the coordinator feeds it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hpo.individual import COMPLETED, FAILED, INVALID, PRUNED

_SIGNS_OF_LIFE = frozenset({COMPLETED, PRUNED, INVALID})
_ROUNDS = 2
_MOST_TIMES = 2
"""While a round is waited for, at most this many times the limit, or the number of workers, may fail; then nothing more
is begun."""
_MOST_KINDS = 100
"""Errors that hold an address or a time differ in each individual; this many are kept."""


def fault(status: str, *, resumed: bool, error: str) -> str | None:
    """What to count an end as: ``error`` where the individual failed of its own, else None."""
    return error if status == FAILED and not resumed else None


class Futility:
    """The watch over one launch. ``limit``: of failures, None to watch for nothing; ``printed``: where what the
    individual of that id has printed is to be found, in words, empty where it printed nothing; ``patience_s``: seconds
    for which nothing is begun, at most; ``workers``: how many there are."""

    def __init__(
        self,
        limit: int | None,
        *,
        printed: Callable[[str], str] = lambda identity: "",
        patience_s: float,
        workers: int = 1,
    ) -> None:
        self._limit = limit
        self._patience_s = patience_s
        # Many workers have that many failures in a second where a part of the configurations fails at once.
        self._most = _MOST_TIMES * max(limit or 0, workers)
        self._held_since: float | None = None
        self._patient = True
        self._printed = printed
        self.alive = False
        """Whether there was a sign of life."""
        self._failed = 0
        self._rounds = 0
        self._awaited: set[str] = set()
        # By error how often, and the latest id; the order is that of the latest.
        self._errors: dict[str, tuple[int, str]] = {}

    def ended(self, key: str, identity: str, status: str, *, reported: bool, fault: str | None) -> None:
        """The individual with the configuration ``key`` has ended. ``reported``: it had reported a finite value;
        ``fault``: see the function of that name."""
        self._awaited.discard(key)
        self.alive |= reported or status in _SIGNS_OF_LIFE
        if self._limit is None or self.alive or fault is None:
            return
        self._failed += 1
        times, _ = self._errors.pop(fault, (0, ""))
        self._errors[fault] = (times + 1, identity)
        if len(self._errors) > _MOST_KINDS:
            del self._errors[next(iter(self._errors))]

    def released(self, key: str) -> None:
        """That configuration was granted and does not end where it was: it is not begun after all, or ranks died."""
        self._awaited.discard(key)

    @property
    def holds(self) -> bool:
        """Whether nothing more is to be begun while those that are hoped for run."""
        if self._limit is None or self.alive or not self._patient:
            return False
        return self._failed >= self._most

    def lost_patience(self, now: float) -> bool:
        """Whether nothing was begun for so long that, from now on, others are begun again. To be asked often."""
        if not self.holds:
            return False
        if self._held_since is None:
            self._held_since = now
        self._patient = now - self._held_since < self._patience_s
        return not self._patient

    def futile(self, running: Callable[[], Iterable[str]]) -> bool:
        """Whether it is time to end. ``running``: the keys of what is evaluated now; asked for once a round."""
        if self._limit is None or self.alive or self._failed < self._limit:
            return False
        while not self._awaited and self._rounds < _ROUNDS:
            self._rounds += 1
            self._awaited = set(running())
        return not self._awaited

    def sentence(self) -> str:
        """What happened, the rule and the remedy."""
        times, error, identity = max(
            ((times, error, identity) for error, (times, identity) in reversed(self._errors.items())),
            key=lambda entry: entry[0],
            default=(0, "", ""),
        )
        last, (_, last_identity) = next(reversed(self._errors.items()), ("", (0, "")))
        shown = [f"{times} of them for this, {identity} the latest: {error}", self._printed(identity)]
        if last != error:
            shown += [f"The last was {last_identity}: {last}", self._printed(last_identity)]
        causes = "\n    ".join(filter(None, shown))
        return (
            f"{self._failed} evaluations failed and none completed, so this launch was ended before the whole budget "
            f"is spent on failures ([evaluation] first_failures = {self._limit}).\n    {causes}\n"
            "What was recorded stays. Mend this and give the same command again, which goes on and counts anew; where "
            'failures like these are expected, raise first_failures, or set it to "off".'
        )
