"""Terms of Optuna, Ray Tune, DeepHyper, Propulate, Slurm and other programs, each with hpo's term for the same thing.

Errors use them to suggest what a user most likely meant. Add a term of another program here and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping


def _by_alias(names: Mapping[str, str]) -> dict[str, str]:
    return {folded(alias): name for name, aliases in names.items() for alias in aliases.split()}


def folded(word: str) -> str:
    """``word`` as aliases are compared: in lower case, without hyphens and underscores."""
    return word.casefold().replace("_", "").replace("-", "")


SETTINGS = _by_alias(
    {
        "evaluations": "n_trials num_trials max_trials trials num_samples max_evals n_evaluations num_evaluations "
        "max_evaluations n_iter n_calls budget max_num_trials evals generations",
        "deadline": "time_budget time_budget_s time_limit max_time walltime max_duration time",
        "rank_hours": "gpu_hours max_gpu_hours compute_hours node_hours cpu_hours",
        "stop_value": "target target_value goal stop_at metric_threshold",
        "stop_gain": "min_improvement tolerance tol min_delta",
        "directory": "storage storage_path local_dir log_dir output_dir out_dir work_dir study_name path dir",
        "seed": "random_state rng random_seed",
        "keep": "num_to_keep keep_checkpoints save_top_k",
        "known": "warm_start prior previous evaluated_rewards",
        "points": "points_to_evaluate initial_points enqueue_trial initial_point_generator starting_points",
        "islands": "num_islands n_islands",
        "ranks_per_worker": "ranks_per_trial gpus_per_trial resources_per_trial ranks_per_island num_ranks_per_worker",
        "topology": "migration_topology",
        "kind": "sampler algorithm search_alg searcher method strategy surrogate_model acq_func optimizer",
        "pool": "population_size pop_size popsize n_parents",
        "crossover": "crossover_prob crossover_probability swapping_prob",
        "mutation": "mutation_prob mutation_probability mutation_rate",
        "random": "random_init_prob random_probability random_prob",
        "migration": "migration_prob migration_probability",
        "exchange": "pollination migration_kind",
        "initial": "initial_design init init_method",
        "pruner": "scheduler early_stopping early_stopper stopper pruning",
        "min_steps": "min_resource min_t grace_period n_warmup_steps min_budget warmup_steps",
        "reduction": "reduction_factor eta",
        "startup": "n_startup_trials min_samples_required n_min_trials n_initial_points",
        "perturb": "hyperparam_mutations perturbation",
        "reference": "ref_point reference_point",
        "timeout": "timeout_s timeout_seconds trial_timeout evaluation_timeout trial_time_limit",
        "retries": "max_failures max_retries retry",
        "grace": "grace_time",
        "log_sinks": "logger loggers callbacks log_to sink",
        "log_every": "log_interval log_every_n_steps",
        "task_options": "options task_kwargs kwargs config",
    }
)
"""Keyword of ``hpo.Campaign`` by alias; a campaign file has the same key in one of its sections."""

_TASK = "It belongs to the task: hpo.Task(space, evaluate, {})."
_RANKS = (
    "A campaign has as many workers as its ranks fill. Start more ranks: hpo run FILE --ranks N, or in a "
    "script Campaign.run(ranks=N)."
)
_JOB = "It belongs to the job: hpo slurm FILE --nodes N --gpus-per-node N --time T."
ELSEWHERE = _by_alias(
    {
        _TASK.format('"maximize"'): "direction directions mode maximize minimize",
        _TASK.format('objectives={"accuracy": "maximize"}'): "metric objective objectives",
        "It belongs to the task: hpo.Task(hpo.SearchSpace(lr=hpo.Float(1e-5, 1e-1, log=True)), evaluate).": "space "
        "search_space param_space parameters params",
        _TASK.format("constraints=[…]"): "constraints constraint constraints_func",
        _TASK.format("default={…}"): "default defaults default_params",
        _TASK.format("steps=…"): "steps max_steps max_epochs max_t max_resource",
        "A directory that holds a campaign of the same task continues. Leave it out.": "load_if_exists resume "
        "reuse_if_exists",
        "`hpo run` shows how it goes, and `hpo status DIR` and `hpo watch DIR` do. Leave it out.": "verbose "
        "show_progress_bar progress_bar verbosity",
        _RANKS: "n_jobs num_workers n_workers workers ranks max_concurrent_trials max_concurrent concurrency parallel",
        _JOB: "nodes partition account gpus gpus_per_node ntasks ntasks_per_node cpus_per_task slurm cluster resources",
    }
)
"""Sentence that says where to state something that is no setting of a campaign, by alias."""

VALUES = {
    "kind": _by_alias(
        {
            "default": "bayes bayesian bayesopt bo cbo auto automatic botorch hyperopt",
            "surrogate": "rf forest random-forest smac",
            "evolution": "ea evolutionary nsga2 nsgaii NSGAIISampler de differential-evolution",
            "genetic": "ga propulate genetic-algorithm",
            "tpe": "TPESampler parzen",
            "gp": "GPSampler gaussian-process kriging",
            "optuna-cmaes": "CmaEsSampler",
            "cmaes": "cma cma-es",
            "random": "RandomSampler random-search uniform",
            "grid": "GridSampler grid-search brute-force exhaustive",
            "pso": "particle-swarm swarm",
            "nelder-mead": "simplex nm",
            "pbt": "population-based-training pb2 PopulationBasedTraining",
        }
    ),
    "pruner": _by_alias(
        {
            "halving": "asha sha hyperband bohb AsyncHyperBandScheduler ASHAScheduler successive-halving "
            "SuccessiveHalvingPruner HyperbandPruner",
            "median": "MedianPruner MedianStopper median-stopping MedianStoppingRule",
            "none": "off no NopPruner fifo false null",
        }
    ),
    "initial": _by_alias({"latin-hypercube": "lhs latin", "sobol": "qmc quasi-random QMCSampler"}),
    "isolation": _by_alias({"fresh": "process subprocess spawn", "inline": "none thread off serial"}),
    "exchange": _by_alias({"migration": "migrate move", "pollination": "pollinate copy"}),
    "topology": _by_alias({"full": "fully-connected complete all"}),
    "sinks": _by_alias({"tensorboard": "tb tensorboardx", "wandb": "weights-and-biases", "trackio": "track"}),
    "direction": _by_alias(
        {
            "maximize": "max maximise maximum maximization up higher",
            "minimize": "min minimise minimum minimization down lower",
        }
    ),
}
"""Valid value of a setting by alias, by the setting's key ("direction" included, which a task has)."""

SBATCH = _by_alias(
    {
        "time": "walltime time-limit timelimit",
        "partition": "queue",
        "account": "project",
        "job-name": "name",
        "mem": "memory mem-per-node",
        "gpus-per-node": "gpu gpus-per-host ngpus",
        "cpus-per-task": "cpus cpu cpus-per-rank cores",
        "ntasks-per-node": "ranks ranks-per-node ppn tasks-per-node procs-per-node",
        "nodelist": "hosts hostfile",
        "output": "log out stdout",
        "error": "stderr",
    }
)
"""Option of sbatch by alias, all without the leading ``--``."""

# Written out because `hpo slurm --dry-run` checks options on machines that have no sbatch to ask.
_OPTIONS = (
    "account acctg-freq array batch bb bbf begin chdir cluster-constraint clusters comment constraint container "
    "container-id contiguous core-spec cores-per-socket cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot "
    "dependency distribution error exclude exclusive export export-file extra extra-node-info get-user-env gid "
    "gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task gres gres-flags help hint hold ignore-pbs "
    "input job-name kill-on-invalid-dep licenses mail-type mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu "
    "mincpus network nice no-kill no-requeue nodefile nodelist nodes ntasks ntasks-per-core ntasks-per-gpu "
    "ntasks-per-node ntasks-per-socket oom-kill-step open-mode output overcommit oversubscribe parsable partition "
    "power prefer priority profile propagate qos quiet reboot requeue reservation segment signal sockets-per-node "
    "spread-job stepmgr switches test-only thread-spec threads-per-core time time-min tmp tres-bind tres-per-task uid "
    "usage use-min-nodes verbose wait wait-all-nodes wckey wrap x11"
)
SBATCH_OPTIONS = frozenset(_OPTIONS.split())
"""Long options of sbatch, up to Slurm 25.05, without the leading ``--``."""
