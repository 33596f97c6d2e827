"""Trial: a task's view of its evaluation, with parameters, its place in the worker, and ways to report and save."""

from __future__ import annotations

import math
import operator
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from msgspec.structs import replace

from hpo.errors import Interrupted, Pruned, UsageError
from hpo.individual import (
    COMPLETED,
    CURVE_COLUMNS,
    FAILED,
    FIRST_ATTEMPT,
    INTERRUPTED,
    MOST_STEPS,
    Attempt,
    Configuration,
    Facts,
    Metric,
    Params,
    Scalar,
)
from hpo.spelling import suggestion
from hpo.task.limits import UNLIMITED, OutcomeLimits
from hpo.task.metrics import as_number, keep
from hpo.task.outcome import TaskOutcome, describe_exception, judge, pruned_outcome, with_limits
from hpo.task.trial_directory import clear_directory, make_directory, not_begun
from hpo.text import excerpt

_TAKEN = frozenset(CURVE_COLUMNS)
_DIVERGED = "[diverged]"
"""No name of a metric, as remarks have."""


@dataclass(frozen=True, kw_only=True)
class Job(Facts):
    """An order to evaluate one individual, for all ranks of a worker."""

    configuration: Configuration
    attempt: Attempt = FIRST_ATTEMPT
    seed: int
    directory: str
    """The individual's own. It is emptied first, but for printed output, unless the evaluation goes on
    (``attempt.resumed``)."""
    parent: str | None = None
    """Directory of the individual from whose checkpoint it goes on; empty where that checkpoint is gone."""


class CampaignLink(Protocol):
    """How a trial reaches its campaign. All ranks of the worker make each call and get the same answer."""

    @property
    def device(self) -> str: ...

    @property
    def comm(self) -> object | None: ...

    def report(self, step: int, value: float, last_step: int | None) -> bool:
        """True when the trial should stop; ``value`` of worker rank 0 counts. ``last_step``: of the whole run, None
        where the task has not said it."""
        ...

    def should_checkpoint(self) -> bool: ...

    def should_checkpoint_soon(self) -> bool:
        """Like ``should_checkpoint``, with an answer that may be some calls old: no rank waits for another."""
        ...


class Curve(Protocol):
    """Keeps what a trial reports."""

    def add(self, step: int, value: float, metrics: dict[str, Metric]) -> None: ...


class Trial:
    """One evaluation, as seen by one rank of the worker. A campaign makes it and passes it to ``evaluate``.

    Attributes:
        params (dict): the configuration: the parameters that exist in it, by name.
        id (str): of the individual; the same in each retry.
        seed (int): of the individual; the same on all ranks and in each retry.
        rank (int): this rank in the worker, from 0.
        size (int): the number of ranks of the worker. If there are several, a torch.distributed group is initialised.
        local_rank (int): this rank among those of the worker on this host, from 0.
        metrics (dict): what was logged so far.
        remarks (dict): by name, what could not be logged and why.
        last_report (tuple): step and value of the last report; None before the first.
    """

    __slots__ = (
        "_asked_to_save",
        "_before",
        "_curve",
        "_directory",
        "_diverged_in",
        "_last_interval",
        "_last_step",
        "_limits",
        "_link",
        "_offset",
        "_parent",
        "_stale",
        "_storage_error",
        "id",
        "last_report",
        "local_rank",
        "metrics",
        "params",
        "rank",
        "remarks",
        "seed",
        "size",
    )

    def __init__(
        self,
        link: CampaignLink,
        job: Job,
        *,
        rank: int = 0,
        size: int = 1,
        local_rank: int = 0,
        stale: bool = False,
        curve: Curve | None = None,
    ) -> None:
        """``stale``: what the directory holds, except printed output, is removed at its first use. ``curve``: where
        this rank's reports are kept; None on all but worker rank 0."""
        self.params: Params = dict(job.params)
        self.id = job.id
        self.seed = job.seed
        self.rank = rank
        self.size = size
        self.local_rank = local_rank
        self.metrics: dict[str, Metric] = {}
        self.remarks: dict[str, str] = {}
        self.last_report: tuple[int, float] | None = None
        self._limits = UNLIMITED
        self._link = link
        self._curve = curve
        self._last_step: int | None = None
        # Steps are counted on from the interval before, where the task counts each interval's from 0.
        self._before, self._last_interval = 0, True
        self._offset: int | None = 0
        self._asked_to_save = False
        # The epoch in which the loss of a training was not finite.
        self._diverged_in: int | None = None
        self._directory = job.directory
        self._parent = job.parent
        if job.parent == "":
            self.metrics["parent_checkpoint"] = "gone"
        self._stale = stale
        self._storage_error: OSError | None = None

    @classmethod
    def alone(
        cls,
        params: Mapping[str, Scalar],
        *,
        directory: str | Path = ".",
        seed: int = 0,
        rank: int = 0,
        size: int = 1,
        local_rank: int = 0,
        device: str = "cpu",
    ) -> Trial:
        """A trial without a campaign, for tests and for a task's own command line. Nothing prunes or stops it.

        Args:
            params (dict): a configuration.
            directory (path; default "."): where ``evaluate`` may save.
            seed (int; default 0): ``trial.seed``.
            rank (int; default 0): ``trial.rank``.
            size (int; default 1): ``trial.size``.
            local_rank (int; default 0): ``trial.local_rank``.
            device (str; default "cpu"): ``trial.device``.

        Raises:
            UsageError: ``params`` is no dictionary, or ``directory`` no path.
        """
        for name, value, kinds, rule in (
            ("params", params, Mapping, "a configuration, such as {'lr': 0.1}"),
            ("directory", directory, (str, os.PathLike), "the path of a directory"),
        ):
            if not isinstance(value, kinds):
                raise UsageError(f"Trial.alone: {name} = {excerpt(value)}: must be {rule}.")
        job = Job(
            configuration=Configuration(id="alone", params=dict(params)),
            attempt=Attempt(resumed=True),
            seed=seed,
            directory=str(directory),
        )
        return cls(_Alone(device), job, rank=rank, size=size, local_rank=local_rank)

    def _begin_interval(
        self, params: Params, *, directory: Path, parent: Path | None, seed: int, steps: int, last: bool
    ) -> None:
        """Go on as the trial of an interval of a schedule, after ``steps`` steps; ``last``: whether none follows."""
        self.params, self.seed = params, seed
        self._directory, self._parent = str(directory), None if parent is None else str(parent)
        self._before, self._last_interval = steps, last
        self._offset = None if steps else 0

    @property
    def directory(self) -> Path:
        """The individual's own directory, made when first used. It is kept when the individual is interrupted, and
        for the best few; else it is removed after the evaluation, except for printed output.
        """
        path = Path(self._directory)
        if isinstance(self._link, _Alone):
            path.mkdir(parents=True, exist_ok=True)
            return path
        try:
            if self._stale:
                clear_directory(path)
                self._stale = False
            make_directory(path)
        except OSError as error:
            self._storage_error = error
            raise
        return path

    @property
    def parent_checkpoint(self) -> Path | None:
        """Directory of the individual whose training this individual continues (kind "pbt", ``inherit``, phases), to be
        read only. None where the training starts from scratch, or where that state is gone.
        """
        return Path(self._parent) if self._parent else None

    @property
    def device(self) -> str:
        """This rank's device as torch names it: "cpu", "cuda:0".

        Raises:
            CampaignError: it is a GPU that does not work.
        """
        return self._link.device

    @property
    def comm(self) -> object:
        """The worker's MPI communicator; only with ``isolation = "inline"``. UsageError elsewhere."""
        comm = self._link.comm
        if comm is None:
            raise UsageError(
                'trial.comm is there only with isolation = "inline" in a campaign started by mpirun; other '
                'evaluations run without MPI. Use torch.distributed, or set isolation to "inline".'
            )
        return comm

    def report(self, /, step: int, value: object, **metrics: object) -> None:
        """Report an intermediate value of the objective, for the learning curves and early stopping. Every rank must
        call it; worker rank 0's value and metrics count.

        Args:
            step (int): how far the training is, in steps or epochs of your choice: from 0 to 2**53.
            value (float): of the objective; NaN ranks last.
            **metrics (as for ``log``): further values at this step, columns of ``Result.curves()``; ``id`` and
                ``time`` are no names of metrics.

        Raises:
            Pruned: on all ranks at once, where the trial should stop.
            UsageError: ``step`` is no whole number from 0, ``value`` no number, or a metric's name is taken.
        """
        number = as_number(value)
        if number is None:
            kind = type(value).__name__
            raise UsageError(f"trial.report takes one number as value, not {excerpt(value)} of type {kind}.")
        try:
            whole = operator.index(step)
        except TypeError:
            whole = None
        if whole is None or not 0 <= whole <= MOST_STEPS:  # a journal's numbers have 64 bits
            raise UsageError(
                f"trial.report takes a whole number of steps, from 0 to 2**53, not {excerpt(step)}: write "
                "trial.report(step, value)."
            )
        for name in _TAKEN & metrics.keys():
            raise UsageError(
                f"trial.report: {name} = {excerpt(metrics[name])}: no metric may be called "
                f"{', '.join(CURVE_COLUMNS)}, as columns of the curves are. Give it another name."
            )
        if self._offset is None:
            self._offset = 0 if whole > self._before else self._before
        whole += self._offset
        last = None if self._last_step is None or not self._last_interval else self._last_step + self._offset
        self.last_report = (whole, number)
        kept: dict[str, Metric] = {}
        if self._curve is not None or self._limits:
            for name, metric in metrics.items():
                keep(name, metric, kept, self.remarks)
        if self._curve is not None:
            self._curve.add(whole, number, kept)
        # Early stopping ranks what breaks a limit behind all else, as it does NaN.
        broken = self._limits.broken(None, {**self.metrics, **kept})
        if self._link.report(whole, math.nan if broken else number, last):
            pruned = Pruned(f"pruned at step {whole} with value {number!r}")
            pruned.on_all_ranks = True
            raise pruned

    def log(self, **metrics: object) -> None:
        """Record further results, columns ``metrics.*`` of the export. Worker rank 0's count.

        Args:
            **metrics (number, bool, str, None, or flat list, array or tensor of up to 1000 numbers): by name; a later
                value replaces an earlier one. Text beyond 10000 characters is cut. What cannot be recorded is left
                out, and the campaign says so once for each name; no metric fails an evaluation.
        """
        for name, value in metrics.items():
            keep(name, value, self.metrics, self.remarks)

    def should_checkpoint(self) -> bool:
        """Whether the campaign is stopping or pauses this trial: then save into ``directory`` and raise
        ``hpo.Interrupted``; the individual continues later and finds its directory. Every rank must call it, and all
        get the same answer.
        """
        self._asked_to_save = self._link.should_checkpoint()
        return self._asked_to_save

    def training(self, *, value: str) -> dict[str, Any]:
        """Keywords for ``trainers.train`` by which the campaign stops, resumes and prunes a training:
        ``trainers.train(…, **trial.training(value="accuracy"))``.

        They are ``seed``; ``checkpoint``, a directory in ``directory``, named after the number of ranks that began the
        training; ``on_other_ranks``: on another number of ranks a training goes on where its method can, and starts
        from scratch elsewhere; ``interrupt``, by which a stop takes effect within about a second or two steps; and
        ``report``. The ranks do not wait for one another to ask whether to stop, as ``should_checkpoint`` would have
        them do before each step.

        Args:
            value (str): the metric of the training that is reported after each epoch; the others go with it.
        """
        return {
            "seed": self.seed,
            "checkpoint": checkpoint_in(self.directory, self.size),
            "on_other_ranks": "restart",
            "interrupt": self._should_checkpoint_soon,
            "report": _EpochReport(self, value),
        }

    def _should_checkpoint_soon(self) -> bool:
        self._asked_to_save = self._link.should_checkpoint_soon()
        return self._asked_to_save

    def __repr__(self) -> str:
        return f"Trial(id={self.id!r}, rank={self.rank} of {self.size}, params={self.params!r})"


def checkpoint_in(directory: Path, ranks: int) -> Path:
    """Checkpoint directory of the training in an individual's ``directory``: the latest, by whichever number of ranks
    it was written; without any the directory that ``ranks`` ranks begin."""
    # trainers names what it saved last in a file called latest.
    saved = [(latest.stat().st_mtime_ns, latest.parent) for latest in directory.glob("*-ranks/latest")]
    return max(saved)[1] if saved else directory / f"{ranks}-ranks"


class _EpochReport:
    """``report`` of ``trainers.train`` for ``trial``: after each epoch one metric as the value, with all others."""

    def __init__(self, trial: Trial, value: str) -> None:
        self._trial = trial
        self._value = value

    def set_last_epoch(self, epochs: int) -> None:
        """The run ends after ``epochs`` epochs: early stopping decides nothing at the last one."""
        self._trial._last_step = epochs

    def check_metrics(self, names: Iterable[str]) -> None:
        """UsageError if the training will not record the metric; a layer's, "rank/NAME", may come later."""
        if self._value not in (known := tuple(names)) and "/" not in self._value:
            raise UsageError(
                f"trial.training(value={self._value!r}): the training records no such metric. "
                f"{suggestion(self._value, known)}"
            )

    def __call__(self, epoch: int, metrics: Mapping[str, float]) -> None:
        if self._value not in metrics:
            raise UsageError(
                f"trial.training(value={self._value!r}): the training has not recorded it in epoch {epoch}. "
                f"{suggestion(self._value, metrics)}"
            )
        named = {name: metric for name, metric in metrics.items() if name not in CURVE_COLUMNS}
        for name in metrics.keys() - named.keys() - {self._value}:
            remark = f"metric {name!r} of the training is not in the curves, whose column {name} is another"
            self._trial.remarks[name] = remark
        if not all(math.isfinite(metrics.get(name, 0.0)) for name in ("train_loss", "validation_loss")):
            self._trial._diverged_in = epoch
        self._trial.report(epoch, metrics[self._value], **named)


def attempt(
    evaluate: Callable[[Trial], object],
    trial: Trial,
    objectives: Sequence[str],
    limits: OutcomeLimits = UNLIMITED,
) -> TaskOutcome:
    """Call the task once and say how that ended; only worker rank 0's return value is looked at. The working directory
    is afterwards what it was.

    KeyboardInterrupt passes: it is for the campaign. An OSError of ``trial.directory`` is the storage's, and no failure
    of the individual. One that the task meets is the task's own, also in that directory: the checkpoint of a large
    network may be what fills a disk.
    """
    begun = time.perf_counter()
    trial._limits = limits
    try:
        with _same_working_directory():
            returned = evaluate(trial)
        outcome = judge(returned, objectives) if trial.rank == 0 else TaskOutcome(status=COMPLETED)
    except Pruned:
        outcome = pruned_outcome(trial.last_report, objectives[0] if len(objectives) == 1 else None)
    except Interrupted:
        outcome = TaskOutcome(status=INTERRUPTED)
    except SystemExit as error:
        outcome = TaskOutcome(
            status=FAILED, error=f"the task called sys.exit({error.code!r}): return or raise instead."
        )
    except Exception as error:
        # As trainers.train ends where its ``interrupt`` is ``trial.should_checkpoint``.
        if trial._asked_to_save and getattr(error, "saved", False) is True:
            outcome = TaskOutcome(status=INTERRUPTED)
        elif error is trial._storage_error:
            outcome = not_begun(trial._storage_error, trial._directory)
        else:
            outcome = TaskOutcome(status=FAILED, error=describe_exception(error))
    if outcome.status == COMPLETED and trial._diverged_in is not None:
        trial.remarks[_DIVERGED] = (
            f"the loss of a training was not finite in epoch {trial._diverged_in}, where it ended, and what evaluate "
            f"returned counts all the same. Where result.reason is 'diverged', return float('nan')"
        )
    metrics = {**trial.metrics, **outcome.metrics}
    if trial.rank == 0:
        outcome = with_limits(replace(outcome, metrics=metrics), limits)
    return replace(
        outcome,
        metrics=metrics,
        remarks={**trial.remarks, **outcome.remarks},
        seconds=time.perf_counter() - begun,
    )


@contextmanager
def _same_working_directory() -> Iterator[None]:
    """Restores the working directory, so that the next evaluation does not inherit a changed directory."""
    try:
        before = os.getcwd()
    except OSError:  # it was removed
        yield
        return
    try:
        yield
    finally:
        with suppress(OSError):
            os.chdir(before)


class _Alone:
    """The link of a trial outside any campaign."""

    comm: object | None = None

    def __init__(self, device: str) -> None:
        self.device = device

    def report(self, step: int, value: float, last_step: int | None) -> bool:
        return False

    def should_checkpoint(self) -> bool:
        return False

    should_checkpoint_soon = should_checkpoint
