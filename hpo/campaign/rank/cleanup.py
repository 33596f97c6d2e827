"""Removal of checkpoints when a campaign has ended, or goes on."""

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

# Most of rank 0's time for removing.
_SHARE = 0.05


def keep_only_best(directory: Path, keep: int, *, needed: Collection[str] = ()) -> None:
    """Remove the checkpoints of all but the ``keep`` best of the campaign and of those ``needed``; to be called
    while nothing is evaluated. Directories whose names are no ids on record are the user's, and stay."""
    directories = EvaluationDirectories(directory)
    present = directories.present()
    if len(present) <= keep:
        return

    record = load(directory)
    if repeated := fronts.repeated(record, own=True):
        # A configuration's evaluation that looks best may have lost its checkpoint.
        held = ([one for one in each.individuals if directories.may_hold(one.id)] for each in repeated)
        best = [*itertools.islice((own[0] for own in held if own), keep)]
    elif len(record.objectives) > 1:
        best = fronts.most_telling(record, keep)
    else:
        best = fronts.best(record, keep, own=True)
    kept = {*needed, *(one.id for one in best)}
    # A campaign that ends by its deadline leaves unfinished individuals, which continue if the campaign does.
    unfinished = [one for one in record.individuals if one.status not in FINAL]
    kept |= {name for one in unfinished for name in (one.id, *one.parents[:1])}
    for identity in present & {one.id for one in record.individuals}:
        if identity not in kept:
            directories.forget(identity)


class Cleanup:
    """Removes, during a launch, checkpoints that leaders of earlier launches kept: each counts its best afresh. Those
    of the ``keep`` best stay, and of parents and paused individuals. Only for one objective."""

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

    def step(self, now: float, needed: Container[str]) -> None:
        """Remove the checkpoints of one individual, unless it is ``needed`` now, if it is time to."""
        if now < self._next or not self._left:
            return
        begun = time.perf_counter()
        identity = self._left.pop()
        if identity not in needed:
            self._directories.forget(identity)
        self._next = now + (time.perf_counter() - begun) / _SHARE


def begin_cleanup(
    settings: Settings, *, objectives: int, islands: int, removes: bool, earlier: ResumeState
) -> Cleanup | None:
    """Cleanup of checkpoints that leaders of earlier launches kept; None where there is nothing to remove, or it is
    removed at once. ``objectives``, ``islands``: numbers of them; ``removes``: there were earlier launches, and no
    other launch is at work, which may need what they kept."""
    inherits = any(
        settings.search_of(one).traits.needs_checkpoints or settings.inherits(one) for one in range(islands)
    )
    # Lineages may go on from any of the latest. Of several objectives, each worker's fronts stay until the end.
    cleanup = None
    if removes and not inherits and objectives == 1:
        if settings.keep <= KEPT and not earlier.repeats:
            cleanup = Cleanup(settings.directory, settings.keep, earlier)
        else:
            keep_only_best(settings.directory, settings.keep, needed=earlier.resting)
    earlier.ended = ()  # may be millions
    return cleanup
