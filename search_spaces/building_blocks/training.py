"""One configuration of a campaign from its parameters to a trained and judged network: one fit and one test for all.

A campaign says which network, optimizer, schedule and loss a configuration means, its *recipe*; its options say what
is trained on. Everything else is here: folds, the method, weights to begin with, checkpoints, reports, several seeds.
torch is imported by what trains: the ranks that search need none.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hpo
from hpo.task.trial import checkpoint_in
from search_spaces import options as check
from search_spaces.building_blocks import methods
from search_spaces.building_blocks.recipes import (
    LR_FACTOR,
    MakeRecipe,
    OwnMethod,
    Parts,
    Recipe,
    Run,
    Searched,
    TrainingOptions,
)
from search_spaces.folds import Fold, cross_validated
from search_spaces.standalone import trained_models

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed import ProcessGroup
    from torch.optim import Optimizer

    import trainers
    from hpo.individual import Scalar
    from trainers.evaluation.metrics import Metric

RECORDED = (
    "train_loss", "validation_loss", "trainable_fraction", "compression_ratio",
    "train_s", "wait_s", "bytes_inside_nodes", "bytes_between_nodes",
)  # fmt: skip
"""Metrics of the trainer that every campaign keeps beside the fitness."""

TESTED = (
    "trainable_fraction", "compression_ratio", "factored_compression_ratio",
    "bytes_inside_nodes", "bytes_between_nodes", "train_s",
)  # fmt: skip
"""Metrics of the trainer that a test keeps of each training, for jobs/compare.py, as far as its method has them."""


class TrainedTask(hpo.Task):
    """A task that trains a network by a recipe, and judges the result by the metric ``score``.

    A run whose loss is not finite has NaN for every objective, and so is an invalid individual. UsageError where the
    data are not there. ``ranks``: how many the space is made for; None: any. ``needs``: the trainer's metrics that
    ``judge`` reads, as far as that is known before a run.
    """

    score = "validation_loss"
    """The metric of the trainer that is the fitness, and that is reported after each epoch."""
    direction = "minimize"
    recorded: Sequence[str] = RECORDED
    keeps_best_of_diverged = False
    """Whether a run counts by its best epoch although its loss was not finite later."""
    samples_evaluated_at_once = 256

    def __init__(
        self,
        searched: Searched,
        recipe: MakeRecipe[Any],
        options: TrainingOptions,
        *,
        own: OwnMethod[Any] | None = None,
        judge: Callable[[trainers.Result, int], dict[str, float]] | None = None,
        needs: Sequence[str] = (),
        objectives: Mapping[str, str] | None = None,
        ranks: int | None = None,
    ) -> None:
        options.check_data()
        if options.init:
            _check_weights(options.init)
        self.options = options
        self.judge = self._last if judge is None else judge
        self._needs = needs
        self._recipe, self._own, self._ranks = recipe, own, ranks
        searched = searched.with_method(options.method, own)
        super().__init__(
            searched.space,
            self._evaluate,
            None if objectives else self.direction,
            objectives=objectives,
            default=searched.default,
            points=searched.points,
            constraints=searched.constraints,
            steps=options.folds or options.most_epochs,
        )

    def metrics(self) -> dict[str, Metric]:
        """Of the validation part, after each epoch."""
        return {}

    def test_metric(self) -> Metric:
        """What the test part is judged by."""
        return self.metrics()[self.score]

    def test_metrics(self, parts: Parts) -> dict[str, Metric]:
        """What the test part of ``parts`` is judged by beside that, for jobs/compare.py."""
        return {}

    def _last(self, result: trainers.Result, steps: int) -> dict[str, float]:
        return {"value": result.metrics[self.score]}

    # The search

    def _evaluate(self, trial: hpo.Trial) -> dict[str, float]:
        if self.options.folds:
            return cross_validated(trial, self._evaluate_fold, folds=self.options.folds)
        return self._trained(trial, self.options.parts(), None)

    def _evaluate_fold(self, trial: hpo.Trial, fold: Fold) -> dict[str, float]:
        return self._trained(trial, self.options.of_fold(self.options.parts(), fold), fold.group)

    def _trained(self, trial: hpo.Trial, parts: Parts, group: ProcessGroup | None) -> dict[str, float]:
        facts, inputs = self.options.network_facts(parts), self.options.input_facts(parts)
        if trial.rank == 0 and (facts or inputs):
            trained_models.note(trial.directory, facts, inputs)
        together = trial.size if group is None else group.size()
        # One configuration by hand has the options of a search, and nothing to compare with.
        minimised = self.options.second_objective == "bytes_between_nodes" and trial.id != "alone"
        if minimised and (together == 1 or (self.options.ranks_per_node or 1) >= together):
            raise self._nothing_sent(together)
        parent = trial.parent_checkpoint
        training = trial.training(value=self.score)
        training["report"] = _CheckedReport(training["report"], self._needs)
        model, result = self.fit(
            trial.params,
            parts,
            ranks=trial.size,
            device=trial.device,
            parent=None if parent is None else checkpoint_in(parent, trial.size),
            group=group,
            **training,
        )
        if minimised and not result.metrics["bytes_between_nodes"]:
            raise self._nothing_sent(together)
        objectives = {**self.judge(result, self.optimizer_steps(parts)), **self.options.costs(model)}
        if result.reason == "diverged" and not self.keeps_best_of_diverged:
            objectives = dict.fromkeys(objectives, math.nan)
        return {**{name: result.metrics[name] for name in self.recorded}, **objectives}

    def optimizer_steps(self, parts: Parts) -> int:
        """Of a whole run."""
        return self.options.most_epochs * -(-len(parts.train) // self.options.samples_a_step)

    # A chosen configuration

    def test(
        self,
        params: Mapping[str, Scalar],
        *,
        seeds: Sequence[int] = (0, 1, 2),
        ranks: int = 1,
        device: str = "cpu",
    ) -> float:
        """Mean score on the test part of ``params`` trained anew with each of ``seeds``; for a chosen configuration
        only. With folds all training samples are trained with.
        """
        each = self.tests(params, seeds=seeds, ranks=ranks, device=device)
        return sum(one["test"] for one in each) / len(each)

    def tests(
        self,
        params: Mapping[str, Scalar],
        *,
        seeds: Sequence[int],
        ranks: int = 1,
        device: str = "cpu",
        saved_in: Callable[[int], Path | None] = lambda seed: None,
    ) -> list[dict[str, float]]:
        """As ``test``: of each seed the score, "test", and on the training's own validation part, where there is one,
        "validation"; "test_NAME" for each NAME of ``test_metrics``; and what ``TESTED`` names.

        ``saved_in``: from a seed to the directory of an individual, or one like it, in which its training is saved and
        from which it goes on; a training that has ended there is not repeated. None: it is not saved.
        """
        import trainers

        parts, found = self.options.parts(), []
        metrics = {f"test_{name}": metric for name, metric in self.test_metrics(parts).items()}
        for seed in seeds:
            directory = saved_in(seed)
            model, result = self.fit(
                params,
                parts,
                seed=seed,
                ranks=ranks,
                device=device,
                checkpoint=None if directory is None else checkpoint_in(directory, ranks),
                on_other_ranks="restart",
            )
            scores = trainers.evaluate(
                model,
                parts.test,
                metrics={"test": self.test_metric(), **metrics},
                batch_size=self.samples_evaluated_at_once,
                precision=self.options.precision,
                loader_processes=self.options.loader_processes,
            )
            if self.score in result.metrics:
                scores["validation"] = result.metrics[self.score]
            costs = {name: result.metrics[name] for name in TESTED if name in result.metrics}
            found.append({"seed": seed, **scores, **costs})
        return found

    def fit(
        self,
        params: Mapping[str, Scalar],
        parts: Parts | None = None,
        *,
        seed: int = 0,
        ranks: int = 1,
        device: str = "cpu",
        checkpoint: Path | None = None,
        on_other_ranks: str = "refuse",
        parent: Path | None = None,
        report: Callable[[int, dict[str, float]], None] | None = None,
        interrupt: Callable[[], bool] | None = None,
        group: ProcessGroup | None = None,
    ) -> tuple[nn.Module, trainers.Result]:
        """The network that ``params`` describe, trained on the training part and watched on the validation part, by the
        ranks of ``group``; None: by all there are. ``parts`` None: the task's. ``parent``: the checkpoint of another
        run, from whose weights and optimizer's state this one begins, if it is there.
        """
        import torch

        import trainers
        from search_spaces.building_blocks import initial_weights

        self._check_ranks(ranks)
        options, parts = self.options, self.options.parts() if parts is None else parts
        together = ranks if group is None else group.size()
        per_node = options.ranks_per_node if together > 1 else None
        if per_node is not None and together % per_node:
            check.refuse("ranks_per_node", per_node, f"a divisor of the {together} ranks that train together")
        run = Run(data=options.network_facts(parts), ranks=ranks, steps=self.optimizer_steps(parts))
        options.before_training(lambda: self.recipe(params, run), ranks=ranks, device=device)
        torch.manual_seed(seed)
        recipe = self.recipe(params, run)
        model = _on_device(recipe.network, device)
        if recipe.synchronise_batch_norms and group is None and options.method in ("ddp", "oialr"):
            model = _with_synchronised_batch_norms(model, ranks, device)
        prints = (checkpoint is None or not (checkpoint / "latest").exists()) and _is_first_rank()
        if options.init:
            transfer = initial_weights.take_file(model, options.init)
            if prints:
                print(f"init = {options.init!r}: {transfer}", file=sys.stderr)
        begun = None if parent is None else initial_weights.grow(model, parent)
        if begun is not None and prints:
            print(f"of its parent's checkpoint {begun.transfer}", file=sys.stderr)

        def optimizer(weights: Iterable[nn.Parameter]) -> Optimizer:
            made = recipe.optimizer(weights)
            for settings in made.param_groups:
                settings["lr"] *= params.get(LR_FACTOR, 1.0)
            return made if begun is None else begun.going_on(made)

        result = check.refusing(trainers.train)(
            model,
            options.training_set(parts, seed),
            parts.validation,
            loss=torch.nn.functional.cross_entropy if recipe.loss is None else recipe.loss,
            metrics=self.metrics() if parts.validation is not None else None,
            optimizer=optimizer,
            schedule=recipe.schedule,
            method=self._method(params, run),
            early_stopping=recipe.early_stopping,
            assignment=recipe.assignment,
            topology=trainers.Topology(ranks_per_node=per_node),
            clip_norm=recipe.clip_norm,
            label_smoothing=recipe.label_smoothing,
            precision=options.precision,
            epochs=options.most_epochs,
            batch_size=-(-(recipe.samples_a_step or options.samples_a_step) // ranks),
            evaluation_batch_size=self.samples_evaluated_at_once,
            loader_processes=options.loader_processes,
            checkpoint=checkpoint,
            on_other_ranks=on_other_ranks,
            checkpoint_every=None if options.saves_each_epoch or checkpoint is None else sys.maxsize,
            report=report,
            interrupt=interrupt,
            group=group,
            seed=seed,
        )
        return model, result

    def network(self, params: Mapping[str, Scalar] | None = None) -> nn.Module:
        """The network of a configuration, None: the default, untrained; for data of which only the task knows."""
        facts = self.options.network_facts(self.options.parts())
        return self.recipe(self.default or {} if params is None else params, Run(data=facts)).network

    def recipe(self, params: Mapping[str, Scalar], run: Run) -> Recipe:
        """What a configuration means in ``run``."""
        made = self._recipe(dict(params), self.options, run)
        if not isinstance(made, Recipe):
            raise hpo.UsageError(
                f"the recipe returned an object of type {type(made).__name__}: must be a Recipe. "
                "Write return Recipe(network=…, optimizer=…, schedule=…)."
            )
        return made

    def _method(self, params: Mapping[str, Scalar], run: Run) -> trainers.Method:
        p: dict[str, Any] = dict(params)
        if self._own is not None and self.options.method in self._own.names:
            return self._own.make(p, self.options, run)
        return methods.make(self.options.method, p, ranks=run.ranks)

    def _nothing_sent(self, ranks: int) -> hpo.UsageError:
        who = "one rank sends" if ranks == 1 else f"{ranks} ranks on one node send"
        if self.options.folds:
            who = (
                f"of {self.options.folds} folds, which share the worker's ranks, each has {ranks}, and {who}"
            )
        return hpo.UsageError(
            f"second_objective = 'bytes_between_nodes': {who} nothing between nodes, so that there is nothing to "
            "minimise. Take workers of several nodes, or of several ranks that pose as nodes (ranks_per_node = 1), or "
            "leave it out."
        )

    def _check_ranks(self, ranks: int) -> None:
        if self._ranks not in (None, ranks):
            raise hpo.UsageError(
                f"ranks_per_worker = {self._ranks} is what this task is for, and there are {ranks}. Make the campaign "
                "file's [layout] and [task_options] agree, or start as many with torchrun."
            )


class _CheckedReport:
    """``report`` of ``trial.training``; a run without the metrics ``needs`` ends before its first step."""

    def __init__(self, report: Any, needs: Sequence[str]) -> None:
        self._report, self._needs = report, needs
        self.set_last_epoch: Callable[[int], None] = report.set_last_epoch

    def check_metrics(self, names: Iterable[str]) -> None:
        self._report.check_metrics(known := tuple(names))
        # A layer's, "rank/NAME", are recorded from the step on at which the method changes it.
        check_recorded([name for name in self._needs if "/" not in name], known)

    def __call__(self, epoch: int, metrics: Mapping[str, float]) -> None:
        self._report(epoch, metrics)


def check_recorded(needs: Sequence[str], recorded: Iterable[str]) -> None:
    """UsageError for one of the objectives ``needs`` that is no metric of a run, of which these are ``recorded``."""
    known = sorted(recorded)
    for name in needs:
        if name not in known:
            raise hpo.UsageError(
                f"objectives: a run has no metric {name!r}. Name some of {', '.join(known)}, or give judge, which says "
                "what else it is."
            )


def _check_weights(init: str) -> None:
    """UsageError where ``init`` is no safetensors file, as far as its header shows."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(init, framework="numpy"):
            pass
    except (OSError, SafetensorError) as error:
        raise hpo.UsageError(
            f"init = {init!r}: cannot be read: {error}. Name a safetensors file, or leave it out."
        ) from error


def _is_first_rank() -> bool:
    """Of those that there are; also where folds divide them into groups: all begin alike."""
    from torch import distributed

    joined = distributed.is_available() and distributed.is_initialized()
    return not joined or distributed.get_rank() == 0


def _on_device(network: nn.Module, device: str) -> nn.Module:
    """``network`` there, on GPUs with its filters in the order in which their convolutions are fastest."""
    import torch

    if torch.device(device).type != "cuda":
        return network.to(device)
    return network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def _with_synchronised_batch_norms(model: nn.Module, ranks: int, device: str) -> nn.Module:
    """``model`` with torch's SyncBatchNorm, which works on GPUs alone."""
    import torch

    if ranks == 1 or torch.device(device).type != "cuda":
        return model
    return torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-any-return,no-untyped-call]
