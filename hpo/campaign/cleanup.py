"""Which checkpoints stay when a campaign has ended, or goes on."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from pathlib import Path

from hpo.evaluation.directories import EvaluationDirectories
from hpo.individual import FINAL
from hpo.results import pareto as fronts
from hpo.results.record import load


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
        held = ([one for one in each.individuals if directories.holds(one.id)] for each in repeated)
        best = [*itertools.islice((own[0] for own in held if own), keep)]
    else:
        best = fronts.best(record, keep, own=True)
    kept = {*needed, *(one.id for one in best)}
    # With a deadline alone a campaign is done while some are unfinished: they go on if it does.
    unfinished = [one for one in record.individuals if one.status not in FINAL]
    kept |= {name for one in unfinished for name in (one.id, *one.parents[:1])}
    for identity in present & {one.id for one in record.individuals}:
        if identity not in kept:
            directories.forget(identity)
