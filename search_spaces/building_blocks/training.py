"""One configuration of a campaign from its parameters to a trained and judged network: one fit and one test for all."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hpo
from hpo.task.trial import checkpoint_in
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
from search_spaces.options import wrong
from search_spaces.standalone import trained_models

# Ranks that search read this module for its space and need no torch: functions that train import it.
if TYPE_CHECKING:
    from torch import nn
    from torch.distributed import ProcessGroup
    from torch.optim import Optimizer

    import trainers
    from hpo.individual import Scalar
    from trainers.evaluation.metrics import Metric

# Metrics of the trainer that every campaign keeps beside the fitness.
RECORDED = (
    "train_loss", "validation_loss", "trainable_fraction", "compression_ratio",
    "train_s", "wait_s", "bytes_inside_nodes", "bytes_between_nodes",
)  # fmt: skip

# Metrics of the trainer that a test keeps of each training, for jobs/compare.py.
TESTED = (
    "trainable_fraction", "compression_ratio", "factored_compression_ratio",
    "bytes_inside_nodes", "bytes_between_nodes", "train_s",
)  # fmt: skip

# Objectives that ``TrainingOptions.costs`` measures.
MEASURED = ("parameters", "latency_ms")

# judge(result, steps): objectives and further metrics of a run of that many steps.
Judge = Callable[["trainers.Result", int], dict[str, float]]


class TrainedTask(hpo.Task):
    """A task that trains a network by a recipe and judges the result by the metric ``score``.

    A run whose loss is not finite has NaN for every objective. ``ranks``: number of ranks that the space is made for;
    None: any.
    """

    score = "validation_loss"
    """Metric of the trainer that is the fitness, and that is reported after each epoch."""
    direction = "minimize"
    recorded: Sequence[str] = RECORDED
    keeps_best_of_diverged = False
    """Whether a run counts by its best epoch although its loss was not finite later."""
    samples_evaluated_at_once = 256

    def __init__(
        self,
        searched: Searched,
        recipe: MakeRecipe,
        options: TrainingOptions,
        *,
        own: OwnMethod | None = None,
        judge: Judge | None = None,
        objectives: Mapping[str, str] | None = None,
        ranks: int | None = None,
    ) -> None:
        options.check_data()
        if options.init:
            _check_weights(options.init)
        self.options = options
        self._judge, self._recipe, self._own, self._ranks = judge, recipe, own, ranks
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
        """Metrics of the validation part, after each epoch."""
        return {}

    def test_metric(self) -> Metric:
        """Metric of the test part that corresponds to the score."""
        return self.metrics()[self.score]

    def test_metrics(self, parts: Parts) -> dict[str, Metric]:
        """Further metrics of the test part of ``parts``, for jobs/compare.py."""
        return {}

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
        # One configuration by hand has the options of a search, and nothing to compare with.
        minimised = self.options.second_objective == "bytes_between_nodes" and trial.id != "alone"
        nothing_sent = hpo.UsageError(
            "second_objective = 'bytes_between_nodes': must differ between runs, and ranks on one node send none. "
            "Take workers of several nodes, more ranks than folds, or ranks_per_node = 1, or leave it out."
        )
        together = trial.size if group is None else group.size()
        if minimised and (together == 1 or (self.options.ranks_per_node or 1) >= together):
            raise nothing_sent
        parent = trial.parent_checkpoint
        training: dict[str, Any] = trial.training(value=self.score)
        check_value = training["report"].check_metrics

        def check_metrics(names: Iterable[str]) -> None:
            check_value(known := tuple(names))
            # A judge returns after a run; a layer's metric, "rank/NAME", is recorded once the method changes the layer.
            needs = () if self._judge else self.objectives
            measured = MEASURED if getattr(self.options, "architecture", "source") == "deep" else ()
            check_recorded(needs, (*known, "value", *measured, *(name for name in needs if "/" in name)))

        training["report"].check_metrics = check_metrics
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
            raise nothing_sent
        objectives = self.judged(result, self.optimizer_steps(parts), self.options.costs(model))
        if result.reason == "diverged" and not self.keeps_best_of_diverged:
            objectives = dict.fromkeys(objectives, math.nan)
        return {**{name: result.metrics[name] for name in self.recorded}, **objectives}

    def judged(
        self, result: trainers.Result, steps: int, costs: Mapping[str, float] | None = None
    ) -> dict[str, float]:
        """Objectives, and what the campaign's judge and ``costs`` have beside them."""
        found = {**(self._judge(result, steps) if self._judge else {}), **(costs or {})}
        known = {**result.metrics, "value": result.metrics[self.score], **found}
        check_recorded(self.objectives, known)
        return {**found, **{name: known[name] for name in self.objectives}}

    def optimizer_steps(self, parts: Parts) -> int:
        """Optimizer steps of a whole run."""
        return self.options.most_epochs * -(-len(parts.train) // self.options.samples_a_step)

    # A chosen configuration

    def tests(
        self,
        params: Mapping[str, Scalar],
        *,
        seeds: Sequence[int] = (0, 1, 2),
        ranks: int = 1,
        device: str = "cpu",
        saved_in: Callable[[int], Path | None] = lambda seed: None,
    ) -> list[dict[str, float]]:
        """Metrics of a training with each seed, for a chosen configuration; with folds all training samples are used:
        the scores "test" and, on the validation part, "validation", "test_NAME" for each NAME of ``test_metrics``, and
        those of ``TESTED``.

        ``saved_in(seed)``: directory in which the training is saved, and continued if it is there; None: it is not.
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
        """The trained network of ``params`` and its result. ``parts`` None: the task's; ``group`` None: all ranks;
        ``parent``: checkpoint of another run, from whose weights and optimizer state this run begins, if it is there.
        """
        import torch

        import trainers

        options, parts = self.options, self.options.parts() if parts is None else parts
        together = ranks if group is None else group.size()
        self._check_ranks(ranks, together)
        run = Run(data=options.network_facts(parts), ranks=ranks, steps=self.optimizer_steps(parts))
        options.before_training(lambda: self._recipe(dict(params), options, run), ranks=ranks, device=device)
        torch.manual_seed(seed)
        recipe = self._recipe(dict(params), options, run)
        model = recipe.network.to(device)
        if torch.device(device).type == "cuda":
            # Convolutions are fastest with the channels last there, and SyncBatchNorm works on GPUs alone.
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            alike = group is None and ranks > 1 and options.method in ("ddp", "oialr")
            if recipe.synchronise_batch_norms and alike:
                model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
        begun = checkpoint is not None and (checkpoint / "latest").exists()
        optimizer = self._initialised(model, recipe, params, parent, prints=not begun and _is_first_rank())
        stepped = False

        def asked_to_stop() -> bool:
            nonlocal stepped
            stepped = True
            return interrupt is not None and interrupt()

        try:
            result = trainers.train(
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
                topology=trainers.Topology(ranks_per_node=options.ranks_per_node if together > 1 else None),
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
                interrupt=asked_to_stop,
                group=group,
                seed=seed,
            )
        except ValueError as error:
            # Before the first step the trainer refuses settings, or a checkpoint of others.
            if stepped or isinstance(error, hpo.HpoError):
                raise
            raise hpo.UsageError(str(error)) from error
        return model, result

    def _initialised(
        self,
        model: nn.Module,
        recipe: Recipe,
        params: Mapping[str, Any],
        parent: Path | None,
        *,
        prints: bool,
    ) -> Callable[[Iterable[nn.Parameter]], Optimizer]:
        """Fill ``model`` with given weights, or the parent's; returns what makes its optimizer."""
        from search_spaces.building_blocks import initial_weights

        if self.options.init:
            transfer = initial_weights.take_file(model, self.options.init)
            if prints:
                print(f"init = {self.options.init!r}: {transfer}", file=sys.stderr)
        begun = None if parent is None else initial_weights.grow(model, parent)
        if begun is not None and prints:
            print(f"from its parent's checkpoint {begun.transfer}", file=sys.stderr)

        def optimizer(weights: Iterable[nn.Parameter]) -> Optimizer:
            made = recipe.optimizer(weights)
            for settings in made.param_groups:
                settings["lr"] *= params.get(LR_FACTOR, 1.0)
            return made if begun is None else begun.continued(made)

        return optimizer

    def _method(self, params: Mapping[str, Scalar], run: Run) -> trainers.Method:
        name, own = self.options.method, self._own
        if own is not None and own.make is not None and name in own.names:
            return own.make(dict(params), self.options, run)
        return methods.make(name, params, ranks=run.ranks, group_size=self.options.ranks_of_a_group)

    def _check_ranks(self, ranks: int, together: int) -> None:
        if self._ranks not in (None, ranks):
            raise hpo.UsageError(
                f"ranks_per_worker = {self._ranks}: must be the number of ranks, and there are {ranks}. Make the "
                "campaign file's [layout] and [task_options] agree, or start as many with torchrun."
            )
        per_node = self.options.ranks_per_node
        if together > 1 and per_node is not None and together % per_node:
            raise wrong("ranks_per_node", per_node, f"a divisor of the {together} ranks that train together")


def check_recorded(needs: Iterable[str], recorded: Iterable[str]) -> None:
    """UsageError for an objective that is no metric of a run, of which those in ``recorded`` are known."""
    known = sorted(recorded)
    for name in needs:
        if name not in known:
            raise hpo.UsageError(
                f"objectives: a run has no metric {name!r}. Name some of {', '.join(known)}, or give judge, which "
                "returns it."
            )


def _check_weights(init: str) -> None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(init, framework="numpy"):
            pass
    except (OSError, SafetensorError) as error:
        raise hpo.UsageError(
            f"init = {init!r}: cannot be read: {error}. Name a safetensors file, or leave it out."
        ) from error


def _is_first_rank() -> bool:
    """Whether this is the first of all ranks, also where folds divide them: all folds begin alike."""
    from torch import distributed

    joined = distributed.is_available() and distributed.is_initialized()
    return not joined or distributed.get_rank() == 0
