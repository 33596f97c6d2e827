"""K-fold cross-validation as a fitness: the mean over the folds, with their spread on record.

    def evaluate(trial):
        return cross_validated(trial, evaluate_fold, folds=5)

    def evaluate_fold(trial, fold):
        train, validation = fold.split(len(samples), classes=classes)       # indices
        …
        trainers.train(model, Subset(samples, train), Subset(samples, validation), …,
                       batch_size=32 // trial.size, group=fold.group, **trial.training(value="accuracy"))
        return accuracy

Folds are evaluated side by side by gcd(ranks, folds) groups of as many ranks each, else one after the other. Folds that
are done before an interruption are not repeated.
"""

from __future__ import annotations

import json
import math
import os
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hpo
from hpo.individual import Attempt, Configuration
from hpo.task.trial import Job

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

# Some ranks may evaluate for hours while the others wait for them.
_WAIT = timedelta(days=1)
_RESULT = "result.json"


@dataclass(frozen=True, kw_only=True)
class Fold:
    """Fold of a cross-validation.

    Attributes:
        index (int): number of the fold, from 0.
        folds (int): number of folds.
        group (ProcessGroup; default None): ranks that evaluate it; None: all of the worker's.
    """

    index: int
    folds: int
    group: ProcessGroup | None = None

    def split(
        self, samples: int, *, classes: Sequence[int] | None = None, seed: int = 0
    ) -> tuple[list[int], list[int]]:
        """Indices of training and of validation samples, the same for every individual. Over all folds each sample is a
        validation sample once, and folds differ by at most one sample; with ``classes``, the class of each sample, also
        within each class.

        Args:
            samples (int): number of samples.
            classes (sequence of int; default None): class of each sample.
            seed (int; default 0): seed of the division.

        Raises:
            UsageError: there are fewer samples than folds.
        """
        if not hasattr(samples, "__index__"):
            raise hpo.UsageError(
                f"fold.split: samples is a {type(samples).__name__}: must be their number. Write "
                "fold.split(len(samples), …)."
            )
        if samples < self.folds:
            raise hpo.UsageError(
                f"{samples} samples for {self.folds} folds: each needs a sample. Use fewer folds."
            )
        if classes is not None and len(classes) != samples:
            raise ValueError(f"{len(classes)} classes for {samples} samples: each has a class. Correct them.")
        order = list(range(samples))
        random.Random(f"folds/{seed}").shuffle(order)
        if classes is not None:
            order.sort(key=lambda sample: classes[sample])
        held = sorted(order[self.index :: self.folds])
        out = set(held)
        return [sample for sample in range(samples) if sample not in out], held

    def block(self, samples: int, *, gap: int = 0) -> tuple[list[int], list[int]]:
        """``split`` of samples in an order, such as windows of a series: validation samples are consecutive, and the
        next ``gap`` on either side, which share points with them, are left out. UsageError if either part is empty.
        """
        begin, end = (samples * index // self.folds for index in (self.index, self.index + 1))
        training = [*range(max(0, begin - gap)), *range(min(samples, end + gap), samples)]
        if begin == end or not training:
            raise hpo.UsageError(
                f"{samples} samples for {self.folds} folds with gaps of {gap}: a part of a fold is empty. Use fewer "
                "folds, or more samples."
            )
        return training, [*range(begin, end)]


Returned = float | Mapping[str, float]
EvaluateFold = Callable[[hpo.Trial, Fold], Returned]


def cross_validated(trial: hpo.Trial, evaluate: EvaluateFold, *, folds: int) -> dict[str, float]:
    """Means over folds of what ``evaluate(trial, fold)`` returns, by name, or of ``value``.

    Beside each name X is X_deviation, the standard deviation over the folds (n - 1 in the denominator), and beside
    the value value/fold-0, value/fold-1, … If the value of a fold is not finite, the mean is not, and the rest is not
    evaluated. The trial of a fold has ranks, seed and directory of its own. It need not report: after each round of
    folds the mean so far is reported. All ranks of the worker make this call.

    Args:
        trial (Trial): the evaluation.
        evaluate (callable): ``evaluate(trial, fold)`` returns a number, or a dictionary of numbers by name.
        folds (int): number of folds, at least 2.

    Raises:
        ValueError: ``folds`` is less than 2.
        Interrupted: that of hpo or of trainers, as ``evaluate`` raises it.
    """
    if isinstance(folds, bool) or not isinstance(folds, int) or folds < 2:
        raise ValueError(f"folds = {folds!r}: must be a whole number of at least 2. Correct it.")
    with closing(_FoldGroups(trial, folds)) as groups:
        # Ranks may see the files of an earlier attempt at different times: all take what rank 0 sees.
        kept = json.loads(groups.broadcast(_kept(trial, folds)))
        done = {int(index): found for index, found in kept.items()}
        while all(math.isfinite(found.get("value", 0.0)) for found in done.values()):
            pending = [index for index in range(folds) if index not in done]
            if not pending:
                break
            done.update(groups.evaluated(evaluate, pending[: groups.count]))
            values = [found["value"] for found in done.values() if "value" in found]
            if values:
                trial.report(len(done), statistics.fmean(values))
    return _summary(dict(sorted(done.items())))


def _summary(done: Mapping[int, Mapping[str, float]]) -> dict[str, float]:
    results = [*done.values()]
    summary: dict[str, float] = {}
    for name in results[0]:
        values = [found[name] for found in results]
        finite = all(map(math.isfinite, values))
        summary[name] = statistics.fmean(values) if finite else math.nan
        if finite and len(values) > 1:
            summary[f"{name}_deviation"] = statistics.stdev(values)
    each = {f"value/fold-{index}": found["value"] for index, found in done.items() if "value" in found}
    return {**summary, **each}


def _kept(trial: hpo.Trial, folds: int) -> str:
    """Results of folds that were done before an interruption, as JSON by index. ValueError: they are of another run."""
    done: dict[int, dict[str, float]] = {}
    own = _run_of(trial, folds)
    for index in range(folds):
        path = trial.directory / f"fold-{index}" / _RESULT
        if not path.exists():
            continue
        found = json.loads(path.read_text())
        run = found.get("run")
        if run is None:  # written before results named their run
            continue
        for name, value in own.items():
            if run[name] != value:
                raise ValueError(
                    f"{path} is the result of a run with {name} = {run[name]}, and this run has {name} = {value}. "
                    "Name another directory, or remove it."
                )
        done[index] = found["values"]
    return json.dumps(done)


def _run_of(trial: hpo.Trial, folds: int) -> dict[str, Any]:
    """Settings that the result of a fold depends on, as JSON has them."""
    settings: dict[str, Any] = json.loads(
        json.dumps({"folds": folds, "seed": trial.seed, "params": dict(trial.params)})
    )
    return settings


class _FoldGroups:
    """The worker's ranks in ``count`` groups of as many each, which evaluate folds side by side.

    Several groups keep step: each of their calls of ``should_checkpoint`` meets those of the other groups, and groups
    that are done go on meeting them, so that all ranks hear of a stop at once.
    """

    def __init__(self, trial: hpo.Trial, folds: int) -> None:
        self._trial, self._folds = trial, folds
        self.count = math.gcd(trial.size, folds)
        self._size = trial.size // self.count
        self._control: ProcessGroup | None = None
        self._own: ProcessGroup | None = None
        if self.count > 1:
            import torch.distributed as dist

            # Its messages are numbers of the CPU, whatever device the folds are trained on.
            self._control = dist.new_group(backend="gloo", timeout=_WAIT)
            # All ranks have to take part in making each group.
            made = [
                dist.new_group([group * self._size + place for place in range(self._size)])
                for group in range(self.count)
            ]
            self._own = made[trial.rank // self._size]

    def close(self) -> None:
        """Leave the groups."""
        if self.count > 1:
            from trainers.communication.process_groups import give_back

            groups = [self._own, self._control]
            # gloo waits where the last reference goes.
            del self._own, self._control
            give_back(groups)

    def broadcast(self, text: str, source: int = 0) -> str:
        """``text`` of the rank ``source``, on all ranks."""
        if self._trial.size == 1:
            return text
        import torch
        import torch.distributed as dist

        content = torch.frombuffer(bytearray(f"{text} ".encode()), dtype=torch.uint8)
        length = torch.tensor(len(content))
        dist.broadcast(length, group=self._control, group_src=source)
        if self._trial.rank != source:
            content = torch.zeros(int(length), dtype=torch.uint8)
        dist.broadcast(content, group=self._control, group_src=source)
        return bytes(content.tolist()).decode().removesuffix(" ")

    def evaluated(self, evaluate: EvaluateFold, indices: Sequence[int]) -> dict[int, dict[str, float]]:
        """Results of the folds ``indices``, one per group, on all ranks."""
        import trainers

        group, rank = divmod(self._trial.rank, self._size)
        text = ""
        interrupted: hpo.Interrupted | trainers.Interrupted | None = None
        if group < len(indices):
            fold = Fold(index=indices[group], folds=self._folds, group=self._own)
            trial = self._trial_of(fold.index, rank)
            try:
                found = evaluate(trial, fold)
            except (hpo.Interrupted, trainers.Interrupted) as saved:
                if self.count == 1:
                    raise
                interrupted = saved
            else:
                if rank == 0:
                    text = _keep(trial.directory, found, _run_of(self._trial, self._folds))
        while self._running(0):
            self._trial.should_checkpoint()
        each = {index: self.broadcast(text, number * self._size) for number, index in enumerate(indices)}
        if not all(each.values()):
            raise interrupted or hpo.Interrupted("another fold is not done")
        return {index: json.loads(result) for index, result in each.items()}

    def meet(self) -> None:
        """Keep step with the other groups while the fold of this rank runs."""
        self._running(1)

    def _running(self, mine: int) -> int:
        """Number of ranks whose fold runs; a collective operation of several groups."""
        if self.count == 1:
            return 0
        import torch
        import torch.distributed as dist

        count = torch.tensor(mine)
        dist.all_reduce(count, group=self._control)
        return int(count)

    def _trial_of(self, index: int, rank: int) -> hpo.Trial:
        whole = self._trial
        parent = whole.parent_checkpoint
        job = Job(
            configuration=Configuration(id=f"{whole.id}/fold-{index}", params=whole.params),
            attempt=Attempt(resumed=True),
            seed=random.Random(f"{whole.seed}/fold-{index}").getrandbits(63),
            directory=str(whole.directory / f"fold-{index}"),
            parent=None if parent is None else str(parent / f"fold-{index}"),
        )
        link = _FoldLink(whole, self)
        return hpo.Trial(link, job, rank=rank, size=self._size, local_rank=whole.local_rank)


def _keep(directory: Path, found: Returned, run: dict[str, Any]) -> str:
    """Write the result of a fold of ``run`` to its directory; returns it as JSON."""
    named = found if isinstance(found, Mapping) else {"value": found}
    values = {str(name): float(value) for name, value in named.items()}
    directory.mkdir(parents=True, exist_ok=True)
    partial = directory / "result.partial"
    partial.write_text(json.dumps({"run": run, "values": values}))
    os.replace(partial, directory / _RESULT)
    return json.dumps(values)


class _FoldLink:
    """Link of a fold's trial: it hears of a stop of the whole trial, and its reports are not passed on."""

    comm: object | None = None

    def __init__(self, trial: hpo.Trial, groups: _FoldGroups) -> None:
        self._trial, self._groups = trial, groups

    @property
    def device(self) -> str:
        return self._trial.device

    def report(self, step: int, value: float, last_step: int | None) -> bool:
        return False

    def should_checkpoint(self) -> bool:
        self._groups.meet()
        return self._trial.should_checkpoint()

    def should_checkpoint_soon(self) -> bool:
        # Several groups have to hear of a stop at once.
        if self._groups.count > 1:
            return self.should_checkpoint()
        return self._trial._should_checkpoint_soon()
