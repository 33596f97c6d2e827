"""K-fold cross-validation as a fitness: the mean over the folds, with their spread on record.

    def evaluate(trial):
        return cross_validated(trial, one_fold, folds=5)

    def one_fold(trial, fold):
        train, validation = fold.split(len(samples), classes=classes)       # indices
        …
        trainers.train(model, Subset(samples, train), Subset(samples, validation), …,
                       batch_size=32 // trial.size, group=fold.group, **trial.training(value="accuracy"))
        return accuracy

With ranks enough folds are evaluated side by side, by gcd(ranks, folds) groups of as many ranks each; else one
after the other. A fold that is done stays done: when an interrupted individual goes on, the others are left.
"""

from __future__ import annotations

import json
import math
import operator
import os
import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import hpo
from hpo.individual import Attempt, Configuration
from hpo.task.trial import Job

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_WAIT = timedelta(days=1)
"""Some ranks may evaluate for hours while the others wait for them."""


@dataclass(frozen=True, kw_only=True)
class Fold:
    """One of the folds.

    Attributes:
        index (int): which one, counted from 0.
        folds (int): how many there are.
        group (ProcessGroup; default None): the ranks that evaluate it; None: all of the worker's.
    """

    index: int
    folds: int
    group: ProcessGroup | None = None

    def split(
        self, samples: int, *, classes: Sequence[int] | None = None, seed: int = 0
    ) -> tuple[list[int], list[int]]:
        """Indices to train with and, disjoint, to validate with; over all folds each is in the latter once.
        ``samples``: how many there are.

        The same for every individual. Folds differ by at most one sample; with ``classes``, one a sample, also
        in those of each class. UsageError for fewer samples than folds.
        """
        try:
            samples = operator.index(samples)
        except TypeError:
            raise hpo.UsageError(
                f"fold.split: samples is a {type(samples).__name__}: must be how many there are, and the answer is "
                "their indices. Write fold.split(len(samples), …)."
            ) from None
        if samples < self.folds:
            raise hpo.UsageError(
                f"{samples} samples for {self.folds} folds: each needs one. Use fewer folds."
            )
        if classes is not None and len(classes) != samples:
            raise ValueError(f"{len(classes)} classes for {samples} samples: each has one. Correct them.")
        order = list(range(samples))
        random.Random(f"folds/{seed}").shuffle(order)
        if classes is not None:
            order.sort(key=lambda sample: classes[sample])
        held = sorted(order[self.index :: self.folds])
        out = set(held)
        return [sample for sample in range(samples) if sample not in out], held

    def block(self, samples: int, *, gap: int = 0) -> tuple[list[int], list[int]]:
        """As ``split``, for samples that stand in an order, as windows of a series do: a stretch of them to validate
        with, and the others to train with but for the next ``gap`` on either side, which share points with it.

        UsageError for fewer samples than folds, or where the gaps leave none to train with.
        """
        begin, end = (samples * index // self.folds for index in (self.index, self.index + 1))
        training = [*range(max(0, begin - gap)), *range(min(samples, end + gap), samples)]
        if begin == end or not training:
            raise hpo.UsageError(
                f"{samples} samples for {self.folds} folds with gaps of {gap}: a fold has none to train with, or to "
                "validate with. Use fewer folds, or more samples."
            )
        return training, [*range(begin, end)]


Returned = float | Mapping[str, float]
EvaluateFold = Callable[[hpo.Trial, Fold], Returned]


def cross_validated(trial: hpo.Trial, evaluate: EvaluateFold, *, folds: int) -> dict[str, float]:
    """``evaluate(trial, fold)`` for each fold: the mean of what it returns by name, or of ``value``.

    Beside each name X is X_deviation, the standard deviation over the folds (n - 1 in the denominator), and beside
    the value value/fold-0, value/fold-1, … Once the value of a fold is not finite the mean is none either, and the
    rest is not evaluated. The trial that a fold gets has ranks, seed and directory of its own. It need not report:
    after each round of folds the mean so far is reported. All ranks of the worker make this call.

    Args:
        trial (Trial): the evaluation, of which each fold gets a trial of its own.
        evaluate (callable): ``evaluate(trial, fold)`` returns a number, or a dictionary of numbers by name.
        folds (int): how many, at least 2.

    Raises:
        ValueError: ``folds`` is less than 2.
        Interrupted: that of hpo or of trainers, as ``evaluate`` raises it.
    """
    if isinstance(folds, bool) or not isinstance(folds, int) or folds < 2:
        raise ValueError(f"folds = {folds!r}: must be a whole number of at least 2. Correct it.")
    with _team(trial, folds) as team:
        done = {
            int(index): found for index, found in json.loads(team.from_rank_0(_known(trial, folds))).items()
        }
        while not _hopeless(done) and (pending := [index for index in range(folds) if index not in done]):
            done.update(team.round(evaluate, pending[: team.groups]))
            values = [found["value"] for found in done.values() if "value" in found]
            if values:
                trial.report(len(done), statistics.fmean(values))
    return _summary(done)


def _summary(done: Mapping[int, Mapping[str, float]]) -> dict[str, float]:
    summary: dict[str, float] = {}
    results = [done[index] for index in sorted(done)]
    for name in results[0]:
        values = [found[name] for found in results]
        finite = all(map(math.isfinite, values))
        summary[name] = statistics.fmean(values) if finite else math.nan
        if finite and len(values) > 1:
            summary[f"{name}_deviation"] = statistics.stdev(values)
    for index, found in sorted(done.items()):
        if "value" in found:
            summary[f"value/fold-{index}"] = found["value"]
    return summary


def _hopeless(done: Mapping[int, Mapping[str, float]]) -> bool:
    return any(not math.isfinite(found.get("value", 0.0)) for found in done.values())


# --- what is on disk ----------------------------------------------------------------------------------------


def _directory(trial: hpo.Trial, index: int) -> Path:
    return trial.directory / f"fold-{index}"


def _known(trial: hpo.Trial, folds: int) -> str:
    """The folds that were done before the individual was interrupted, as rank 0 sees them."""
    if trial.rank:
        return ""
    found = {}
    for index in range(folds):
        path = _directory(trial, index) / "result.json"
        if path.exists():
            found[index] = json.loads(path.read_text())
    return json.dumps(found)


def _keep(place: Path, found: Mapping[str, float]) -> None:
    place.mkdir(parents=True, exist_ok=True)
    partial = place / "result.partial"
    partial.write_text(json.dumps(found))
    os.replace(partial, place / "result.json")


# --- who evaluates what -------------------------------------------------------------------------------------


class _Team:
    """The worker's ranks, in ``groups`` of as many each; with one group they need nothing of their own."""

    groups = 1

    def __init__(self, trial: hpo.Trial, folds: int) -> None:
        self.trial = trial
        self.folds = folds

    def from_rank_0(self, text: str) -> str:
        """What rank 0 says, on all ranks."""
        return _broadcast(text, 0, None) if self.trial.size > 1 else text

    def round(self, evaluate: EvaluateFold, indices: Sequence[int]) -> dict[int, dict[str, float]]:
        """What the folds brought, one a group. Collective."""
        trial, index = self.trial, indices[0]
        own = _trial(_Link(trial), trial, index, rank=trial.rank, size=trial.size)
        found = evaluate(own, Fold(index=index, folds=self.folds))
        text = ""
        if trial.rank == 0:
            result = _plain(found)
            _keep(_directory(trial, index), result)
            text = json.dumps(result)
        return {index: json.loads(self.from_rank_0(text))}


class _Teams(_Team):
    """Several groups. Between them ranks keep step: at each of its calls of ``should_checkpoint`` a fold meets the
    others there, and those that are done go on meeting them until all are: so all hear of a stop at once.
    """

    def __init__(self, trial: hpo.Trial, folds: int, groups: int) -> None:
        import torch.distributed as dist

        super().__init__(trial, folds)
        self.groups = groups
        self._size = trial.size // groups
        self._mine = trial.rank // self._size
        # Numbers of the CPU, whatever device the folds are trained on; all ranks make each group.
        self._control = dist.new_group(backend="gloo", timeout=_WAIT)
        made = [
            dist.new_group([group * self._size + place for place in range(self._size)])
            for group in range(groups)
        ]
        self._group = made[self._mine]

    def close(self) -> None:
        import torch.distributed as dist

        from trainers.communication.process_groups import give_back

        groups: list[dist.ProcessGroup | None] = [self._group, self._control]
        # gloo waits where the last reference goes.
        del self._group, self._control
        give_back(groups)

    def from_rank_0(self, text: str) -> str:
        return _broadcast(text, 0, self._control)

    def round(self, evaluate: EvaluateFold, indices: Sequence[int]) -> dict[int, dict[str, float]]:
        import trainers

        trial, text = self.trial, ""
        interrupted: hpo.Interrupted | trainers.Interrupted | None = None
        if self._mine < len(indices):
            index, rank = indices[self._mine], trial.rank % self._size
            own = _trial(_Link(trial, self), trial, index, rank=rank, size=self._size)
            try:
                found = evaluate(own, Fold(index=index, folds=self.folds, group=self._group))
            except (hpo.Interrupted, trainers.Interrupted) as saved:
                interrupted = saved
            else:
                if rank == 0:
                    result = _plain(found)
                    _keep(_directory(trial, index), result)
                    text = json.dumps(result)
        while self._count(running=False):
            trial.should_checkpoint()
        results = {
            index: _broadcast(text, group * self._size, self._control) for group, index in enumerate(indices)
        }
        if not all(results.values()):
            raise interrupted or hpo.Interrupted("another fold is not done")
        return {index: json.loads(result) for index, result in results.items()}

    def meet(self) -> bool:
        """Whether the campaign wants to stop; for ranks whose fold is not done."""
        self._count(running=True)
        return self.trial.should_checkpoint()

    def _count(self, *, running: bool) -> int:
        """How many ranks have a fold that is not done. Collective."""
        import torch
        import torch.distributed as dist

        count = torch.tensor(int(running))
        dist.all_reduce(count, group=self._control)
        return int(count)


@contextmanager
def _team(trial: hpo.Trial, folds: int) -> Iterator[_Team]:
    groups = math.gcd(trial.size, folds)
    if groups == 1:
        yield _Team(trial, folds)
        return
    teams = _Teams(trial, folds, groups)
    try:
        yield teams
    finally:
        teams.close()


def _broadcast(text: str, source: int, group: ProcessGroup | None) -> str:
    import torch
    import torch.distributed as dist

    mine = text.encode()
    length = torch.tensor(len(mine))
    dist.broadcast(length, group=group, group_src=source)
    content = torch.zeros(int(length), dtype=torch.uint8)
    if mine and dist.get_rank(group) == source:
        content = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
    if len(content):
        dist.broadcast(content, group=group, group_src=source)
    return bytes(content.tolist()).decode()


def _plain(found: Returned) -> dict[str, float]:
    if isinstance(found, Mapping):
        return {str(name): float(value) for name, value in found.items()}
    return {"value": float(found)}


class _Link:
    """A fold's way to the campaign: it hears of a stop, and what it reports stays here."""

    comm: object | None = None

    def __init__(self, trial: hpo.Trial, teams: _Teams | None = None) -> None:
        self._trial = trial
        self._teams = teams

    @property
    def device(self) -> str:
        return self._trial.device

    def report(self, step: int, value: float, last_step: int | None) -> bool:
        return False

    def should_checkpoint(self) -> bool:
        return self._trial.should_checkpoint() if self._teams is None else self._teams.meet()

    def should_checkpoint_soon(self) -> bool:
        # Several groups meet: they have to hear of a stop at once.
        return self._trial._should_checkpoint_soon() if self._teams is None else self._teams.meet()


def _trial(link: _Link, whole: hpo.Trial, index: int, *, rank: int, size: int) -> hpo.Trial:
    parent = whole.parent_checkpoint
    job = Job(
        configuration=Configuration(id=f"{whole.id}/fold-{index}", params=whole.params),
        attempt=Attempt(resumed=True),
        seed=random.Random(f"{whole.seed}/fold-{index}").getrandbits(63),
        directory=str(_directory(whole, index)),
        parent=None if parent is None else str(parent / f"fold-{index}"),
    )
    return hpo.Trial(link, job, rank=rank, size=size, local_rank=whole.local_rank)
