"""Which checkpoints stay when a campaign has ended, or goes on."""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection, Container
from pathlib import Path

from hpo.config.reader import Settings
from hpo.evaluation.directories import EvaluationDirectories
from hpo.individual import FINAL
from hpo.islands.resume.fold import KEPT
from hpo.islands.resume.state import ResumeState
from hpo.results.analysis import pareto as fronts
from hpo.results.record import load

_SHARE = 0.05
"""Of its time that rank 0 spends on removing, at most."""


def keep_only_best(directory: Path, keep: int, *, needed: Collection[str] = ()) -> None:
    """Remove the checkpoints of all but the ``keep`` best of the campaign and of those ``needed``; to be called
    while nothing is evaluated. What is called by no id that is on record is the user's, and stays.

    Each leader has kept the best of its own; which of them are the best of all is known only now.
    """
    directories = EvaluationDirectories(directory)
    present = directories.present()
    if len(present) <= keep:
        return

    record = load(directory)
    if repeated := fronts.repeated(record, own=True):
        # Of the best configurations what is there: the evaluation that looks best may have been let go of.
        held = ([one for one in each.individuals if directories.may_hold(one.id)] for each in repeated)
        best = [*itertools.islice((own[0] for own in held if own), keep)]
    elif len(record.objectives) > 1:
        best = fronts.most_telling(record, keep)
    else:
        best = fronts.best(record, keep, own=True)
    kept = {*needed, *(one.id for one in best)}
    # With a deadline alone a campaign is done while some are unfinished: they go on if it does.
    unfinished = [one for one in record.individuals if one.status not in FINAL]
    kept |= {name for one in unfinished for name in (one.id, *one.parents[:1])}
    for identity in present & {one.id for one in record.individuals}:
        if identity not in kept:
            directories.forget(identity)


class Cleanup:
    """Removes, while a launch evaluates, the checkpoints that leaders of earlier launches kept: each begins anew to
    count its best. Those of the ``keep`` best stay, and what any evaluation may go on from. Only for one objective."""

    def __init__(self, directory: Path, keep: int, earlier: ResumeState) -> None:
        self._directories = EvaluationDirectories(directory)
        kept = {*earlier.resting}
        for one in earlier.pending:
            kept |= {one.id, one.inherits, *one.parents[:1]}
        for last, _ in earlier.leading[:keep][-1:]:  # and all that are as good
            kept |= {identity for loss, identity in earlier.leading if loss <= last}
        present = self._directories.present()
        self._left = sorted(one for one in present if one in earlier.ended and one not in kept)
        self._next = 0.0

    @staticmethod
    def possible(keep: int, earlier: ResumeState) -> bool:
        """Whether ``earlier`` says which are the best."""
        return keep <= KEPT and not earlier.repeats

    def step(self, now: float, needed: Container[str]) -> None:
        """Remove those of one individual, unless it is ``needed`` now, if it is time to."""
        if now < self._next or not self._left:
            return
        begun = time.perf_counter()
        identity = self._left.pop()
        if identity not in needed:
            self._directories.forget(identity)
        self._next = now + (time.perf_counter() - begun) / _SHARE


def begin_cleanup(
    settings: Settings, *, objectives: int, islands: int, launch: int, earlier: ResumeState
) -> Cleanup | None:
    """The cleanup of checkpoints that the leaders of launches before ``launch`` kept; None where there is nothing to
    remove, or where it is done at once. ``objectives``, ``islands``: numbers of them."""
    inherits = any(
        settings.search_of(one).traits.needs_checkpoints or settings.inherits(one) for one in range(islands)
    )
    # Lineages may go on from any of the latest; a front keeps all until the end.
    cleanup = None
    if launch > 1 and not inherits and objectives == 1:
        if Cleanup.possible(settings.keep, earlier):
            cleanup = Cleanup(settings.directory, settings.keep, earlier)
        else:
            keep_only_best(settings.directory, settings.keep, needed=earlier.resting)
    earlier.ended = ()  # may be millions
    return cleanup
